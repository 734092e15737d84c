"""Copies of whole tiles by the tensor memory accelerator (PTX ISA, "Tensors"), for sm_90 and later.

One thread begins a copy, of which a tensor map says from where: the driver encodes one from an array's address, type
and sizes when a launch is made, and the kernel has it as a parameter. Lines of 128 bytes arrive with their groups of 16
bytes swizzled, number h of line l at place h ^ (l % 8), as descriptors of `wgmma` say, and zeros where the array ends.

Bytes are counted by a barrier in shared memory. There are as many of these as barriers of the block may have copies
under way: number k % count is for the copies between the barriers k - 1 and k of the block, at which the first thread
arrives for them, and which waits for those `pending` barriers before.
"""

from __future__ import annotations

from tilewright.codegen.llvm.address import address, buffer_offset
from tilewright.codegen.llvm.state import State
from tilewright.codegen.ptx.module import Map
from tilewright.ir.expr import as_int
from tilewright.ir.loops import Intrinsic
from tilewright.schedule.mma_intrinsics import STEP
from tilewright.support.errors import CompileError

MAP_BYTES = 128
"""The size of a tensor map in bytes."""
TILE_ALIGN = 1024
"""The alignment of tiles in bytes: the pattern of the swizzle repeats after eight lines."""
_PREFIX = "tw.tile"

_TEXTS = {
    "init": ("mbarrier.init.shared::cta.b64 [$0], 1; fence.mbarrier_init.release.cluster;", ("i32",)),
    "expect": ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;", ("i32", "i32")),
    "arrive": ("mbarrier.arrive.shared::cta.b64 _, [$0];", ("i32",)),
    "wait": (
        "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @!p bra again; }",
        ("i32", "i32"),
    ),
}
"""Operations on a barrier of bytes, as text for the assembler, and their operands: an address in shared memory, and
bytes or the parity of the phase that is waited for."""


def _call(s: State, name: str, text: str, operands: list[str]) -> None:
    """Emit a call of the internal function `name` with `operands` (type and value), and define it if it is new; the
    function consists of the assembler text `text`."""
    types = [x.split()[0] for x in operands]
    symbol = f"{_PREFIX}.{name}"
    names = ", ".join(f"{t} %a{k}" for k, t in enumerate(types))
    constraints = ",".join([*("l" if t in ("i64", "ptr") else "r" for t in types), "~{memory}"])
    definition = "\n".join(
        [
            f"define internal void @{symbol}({names}) alwaysinline convergent nounwind {{",
            f'  call void asm sideeffect "{text}", "{constraints}"({names})',
            "  ret void",
            "}",
        ]
    )
    s.out.declarations.setdefault(symbol, definition)
    s.out.effect(f"call void @{symbol}({', '.join(operands)})")


class Tiles:
    """Writes the tile copies of one kernel. It has `count` barriers that count bytes, from `offset` in its shared
    memory on; its buffers are at `offsets`."""

    def __init__(self, s: State, memory: str, offset: int, count: int) -> None:
        self.s, self.memory, self.offset, self.count = s, memory, offset, count
        self.maps: list[Map] = []

    def begin(self, first: str) -> None:
        """Emit the initialisation of the barriers by the thread for which the condition `first` holds, and all threads'
        wait for it."""
        s = self.s
        s.out.entry += ["  %tile.turn = alloca i64, align 8", "  store i64 0, ptr %tile.turn, align 8"]
        then, join = s.out.fresh("then"), s.out.fresh("join")
        s.out.branch(first, then, join)
        s.out.start(then)
        for k in range(self.count):
            _call(s, "init", *self._text("init", [self._place(str(k), known=True)]))
        s.out.jump(join)
        s.out.start(join)
        symbol = s.out.declare("llvm.nvvm.barrier.cta.sync.aligned.all", "void", ["i32"], "convergent nounwind")
        s.out.effect(f"call void {symbol}(i32 0)")

    def copy(self, stmt: Intrinsic, position: int) -> None:
        """Emit the start of the tile copy `stmt`; `position` is the source array's among the function's parameters."""
        s, (to,), (source,) = self.s, stmt.outputs, stmt.inputs
        where, _ = address(s, to.buffer, buffer_offset(s, to.buffer, [start for start, _ in to.ranges]))
        shared = s.out.inst(f"addrspacecast ptr {where} to ptr addrspace(3)")
        place = s.out.inst(f"ptrtoint ptr addrspace(3) {shared} to i32")
        lines = (as_int(to.buffer.shape[-4]) or 0) * (as_int(to.buffer.shape[-3]) or 0)
        elements = STEP // source.buffer.dtype.itemsize
        if lines * STEP % TILE_ALIGN:
            raise CompileError("a tile is whole lines of eight", where=to.buffer.name, got=lines)
        box = [1 if as_int(extent) == 1 else lines for _, extent in source.ranges[:-1]]
        number = self._map(Map(position, source.buffer.dtype, source.buffer.shape, (*box, elements)))
        coordinates = [s.out.inst(f"trunc i64 {s.scalar(start)} to i32") for start, _ in reversed(source.ranges)]
        barrier = self._place(self._turn())
        _call(s, "expect", *self._text("expect", [barrier, str(lines * STEP)]))
        rank = len(coordinates)
        at = ", ".join(f"${k + 3}" for k in range(rank))
        text = (
            f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
            f" [$0], [$2, {{{at}}}], [$1];"
        )
        operands = [f"i32 {place}", f"i32 {barrier}", f"ptr %map.{number}", *(f"i32 {c}" for c in coordinates)]
        _call(s, f"copy{rank}", text, operands)
        s.forget_loads(to.buffer)

    def meet(self, pending: int, first: str) -> None:
        """Emit what a barrier of the block does for tile copies: the thread for which `first` holds arrives for the
        copies started since the last barrier, and all threads wait for those started `pending` barriers before."""
        s = self.s
        if pending + 1 != self.count:
            raise CompileError("barriers of one kernel wait for different copies", got=pending, expected=self.count - 1)
        turn = self._turn()
        then, join = s.out.fresh("then"), s.out.fresh("join")
        s.out.branch(first, then, join)
        s.out.start(then)
        _call(s, "arrive", *self._text("arrive", [self._place(turn)]))
        s.out.jump(join)
        s.out.start(join)
        there = s.out.inst(f"icmp sge i64 {turn}, {pending}")
        then, join = s.out.fresh("then"), s.out.fresh("join")
        s.out.branch(there, then, join)
        s.out.start(then)
        old = s.out.inst(f"sub i64 {turn}, {pending}")
        phase = s.out.inst(f"udiv i64 {old}, {self.count}")
        odd = s.out.inst(f"and i64 {phase}, 1")
        parity = s.out.inst(f"trunc i64 {odd} to i32")
        _call(s, "wait", *self._text("wait", [self._place(old), parity]))
        s.out.jump(join)
        s.out.start(join)
        following = s.out.inst(f"add i64 {turn}, 1")
        s.out.effect(f"store i64 {following}, ptr %tile.turn, align 8")

    def _text(self, name: str, values: list[str]) -> tuple[str, list[str]]:
        text, types = _TEXTS[name]
        return text, [f"{t} {v}" for t, v in zip(types, values, strict=True)]

    def _turn(self) -> str:
        """Emit a load of the number of block barriers passed so far; returns its name."""
        return self.s.out.inst("load i64, ptr %tile.turn, align 8")

    def _place(self, number: str, known: bool = False) -> str:
        """Emit the shared-memory address of the byte-counting barrier that serves block barrier `number`; `known`: the
        number is a constant."""
        s = self.s
        base = (
            f"ptrtoint (ptr addrspace(3) getelementptr (i8, ptr addrspace(3) {self.memory}, i64 {self.offset}) to i32)"
        )
        if known:
            return s.out.inst(f"add i32 {base}, {8 * int(number)}")
        left = s.out.inst(f"urem i64 {number}, {self.count}")
        narrow = s.out.inst(f"trunc i64 {left} to i32")
        above = s.out.inst(f"shl i32 {narrow}, 3")
        return s.out.inst(f"add i32 {base}, {above}")

    def _map(self, new: Map) -> int:
        """The index of a tensor map among the kernel's; it is added if it is new."""
        if new not in self.maps:
            self.maps.append(new)
        return self.maps.index(new)


__all__ = ["MAP_BYTES", "TILE_ALIGN", "Tiles"]
