"""The time at which each instruction of a program runs, by a model of the three queues with their tokens.

An instruction begins when its predecessor in the queue has ended and every token that it pops was pushed. Its duration
only depends on its words. Each queue reaches DRAM through a port of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError
from tilewright.targets.vta.access import Queue, queue_of
from tilewright.targets.vta.config import DEFAULT, Config, Memory
from tilewright.targets.vta.isa import Alu, Gemm, Instruction, Load, Store
from tilewright.targets.vta.order import order_of


@dataclass(frozen=True, slots=True)
class Timing:
    """Costs of instructions, in cycles. The model is of a design, not measured on one.

    Args:
        port_bytes: bytes that a port moves in a cycle: a bus of 64 bits, as the public configurations have
            (LOG_BUS_WIDTH 6).
        latency: from the request of a transfer to its first bytes; some hundred nanoseconds at 100 MHz.
        decode: of any instruction.
        fill: until the pipeline of the GEMM core or of the ALU returns its first row; then one row each cycle.
        alu_row: cycles of the ALU for a row whose other operand is a row, too, as accumulators have one read port.
    """

    port_bytes: int = 8
    latency: int = 32
    decode: int = 2
    fill: int = 6
    alu_row: int = 2

    def cycles(self, i: Instruction, config: Config = DEFAULT) -> int:
        """The cycles of one instruction."""
        match i:
            case Load() if i.rows:
                row = config.buffer_bytes(i.memory)
                moved = self._moved(i.x_size * i.y_size * config.dram_bytes(i.memory), i.y_size)
                padded = (i.rows - i.x_size * i.y_size) * max(1, row // (2 * self.port_bytes))
                return self.decode + moved + padded
            case Store() if i.x_size and i.y_size:
                return self.decode + self._moved(i.x_size * i.y_size * config.dram_bytes(Memory.OUT), i.y_size)
            case Gemm() if i.operations:
                return self.decode + self.fill + i.operations
            case Alu() if i.operations:
                each = 1 if i.use_imm else self.alu_row
                return self.decode + self.fill + i.operations * each
        return self.decode

    def _moved(self, nbytes: int, lines: int) -> int:
        """The cycles of transferring `lines` lines of `nbytes` bytes in all: a latency, and each line rounded up to
        whole beats of the bus."""
        if not lines:
            return 0
        return self.latency + lines * -(-(nbytes // lines) // self.port_bytes)


DEFAULT_TIMING = Timing()


@dataclass(frozen=True, slots=True)
class Span:
    """The begin and end of one instruction in cycles."""

    instruction: int
    queue: Queue
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timeline of a program.

    Args:
        spans: of all instructions, in the order of the program.
        cycles: until the last one is over.
        gemms: operations of the GEMM core, which does one a cycle at most.
    """

    spans: tuple[Span, ...]
    cycles: int
    gemms: int

    @property
    def share(self) -> float:
        """The achieved share of the GEMM core's peak."""
        return self.gemms / self.cycles if self.cycles else 0.0

    def busy(self, queue: Queue) -> float:
        """The share of the time in which a queue works."""
        return sum(s.end - s.begin for s in self.spans if s.queue is queue) / self.cycles if self.cycles else 0.0


def timeline(program: Sequence[Instruction], config: Config = DEFAULT, timing: Timing = DEFAULT_TIMING) -> Timeline:
    """The timeline of a program. Raises CompileError for one that stops before its end."""
    order = order_of(program)
    if order.stuck:
        raise CompileError("the program waits for ever", where=f"instruction {order.stuck[0]}")
    free = [0, 0, 0]
    spans: dict[int, Span] = {}
    for k in order.run:
        queue = queue_of(program[k])
        begin = max([free[queue], *(spans[w].end for w in order.waits[k])])
        free[queue] = end = begin + timing.cycles(program[k], config)
        spans[k] = Span(k, queue, begin, end)
    gemms = sum(i.operations for i in program if isinstance(i, Gemm) and not i.reset)
    return Timeline(tuple(spans[k] for k in range(len(program))), max(free), gemms)
