"""The states of a program, by walking over every state that its queues can be in: the oracle of the checker.

A state is how many instructions of each queue have run; tokens follow from it. Nothing here knows of clocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.targets.vta.programs import BASE
from tilewright.targets.vta import Alu, Gemm, Instruction, Load, Memory, Store

State = tuple[int, int, int]


def queue(i: Instruction) -> int:
    if isinstance(i, Store):
        return 2
    return 0 if isinstance(i, Load) and i.memory in (Memory.INP, Memory.WGT) else 1


class Grid:
    """The reachable states of a program."""

    def __init__(self, program: Sequence[Instruction]) -> None:
        self.queues = [[k for k, i in enumerate(program) if queue(i) == q] for q in range(3)]
        self.program = program
        # sums[q][flag][n]: how often the first n instructions of a queue have the flag.
        flags = ("pop_prev", "pop_next", "push_prev", "push_next")
        self.sums = [
            {f: np.cumsum([0, *(getattr(program[k].tokens, f) for k in q)]).tolist() for f in flags}
            for q in self.queues
        ]
        self.states: set[State] = set()
        self.dead: set[State] = set()
        todo = [(0, 0, 0)]
        while todo:
            state = todo.pop()
            if state in self.states:
                continue
            self.states.add(state)
            following = [tuple(n + (p == q) for p, n in enumerate(state)) for q in self.enabled(state)]
            if not following and any(n < len(q) for n, q in zip(state, self.queues, strict=True)):
                self.dead.add(state)
            todo += following

    def enabled(self, state: State) -> list[int]:
        """The queues whose next instruction may run."""
        results = []
        for q in range(3):
            if state[q] == len(self.queues[q]):
                continue
            tokens = self.program[self.queues[q][state[q]]].tokens
            if tokens.pop_prev and not self.tokens(state, q - 1, q):
                continue
            if tokens.pop_next and not self.tokens(state, q + 1, q):
                continue
            results.append(q)
        return results

    def tokens(self, state: State, a: int, b: int) -> int:
        """How many tokens the counter from queue a to queue b has."""
        pushed = self.sums[a]["push_next" if a < b else "push_prev"][state[a]]
        popped = self.sums[b]["pop_prev" if a < b else "pop_next"][state[b]]
        return int(pushed - popped)

    def left(self) -> int:
        """How many tokens are left when all has run."""
        end = tuple(len(q) for q in self.queues)
        return sum(self.tokens(end, a, b) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1)))

    def together(self) -> set[tuple[int, int]]:
        """Pairs of instructions that may both be the next ones, so that either can run first."""
        members = set()
        for state in self.states:
            ready = self.enabled(state)
            for a in ready:
                for b in ready:
                    if a < b:
                        pair = (self.queues[a][state[a]], self.queues[b][state[b]])
                        members.add((min(pair), max(pair)))
        return members


def touched(i: Instruction, uops: np.ndarray, base: int = BASE) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """The accesses of an instruction: rows of buffers and bytes of DRAM, one by one."""
    reads: set[tuple[str, int]] = set()
    writes: set[tuple[str, int]] = set()
    sizes = {Memory.UOP: 4, Memory.WGT: 256, Memory.INP: 16, Memory.ACC: 64, Memory.ACC8: 16, Memory.OUT: 16}
    if isinstance(i, Load | Store) and i.x_size:
        size = sizes[i.memory]
        data = {
            ("dram", (i.dram_base + y * i.x_stride + x) * size + b)
            for y in range(i.y_size)
            for x in range(i.x_size)
            for b in range(size)
        }
        name = {Memory.ACC8: "ACC", Memory.OUT: "ACC"}.get(i.memory, i.memory.name)
        width, height = i.x_pad_0 + i.x_size + i.x_pad_1, i.y_pad_0 + i.y_size + i.y_pad_1
        rows = {(name, i.sram_base + n) for n in range(width * height)}
        reads, writes = (data, rows) if isinstance(i, Load) else (rows, data)
    if isinstance(i, Gemm | Alu):
        for o in range(i.iter_out):
            for n in range(i.iter_in):
                for u in range(i.uop_bgn, i.uop_end):
                    d, s, w = uops[u]
                    reads.add(("UOP", u))
                    d, s = d + o * i.dst_out + n * i.dst_in, s + o * i.src_out + n * i.src_in
                    writes.add(("ACC", d))
                    if isinstance(i, Alu):
                        reads |= {("ACC", d)} | (set() if i.use_imm else {("ACC", s)})
                    elif not i.reset:
                        reads |= {("ACC", d), ("INP", s), ("WGT", w + o * i.wgt_out + n * i.wgt_in)}
    return reads, writes
