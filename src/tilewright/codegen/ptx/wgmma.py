"""Products of four warps together (PTX ISA, "Asynchronous warpgroup level matrix instructions"), for sm_90a.

Both factors are read from shared memory, where descriptors say they are: 14 bits of each a start, the bytes between
groups of depth ("leading") and those between groups of eight lines ("stride"), in units of 16 bytes. Lines of 128 bytes
that copies of whole tiles bring are swizzled (`tensor_maps.py`), which bits 62 and 63 say; all else is not. The sums
are registers of all 128 threads. LLVM has no function for these instructions, so they are text for the assembler, in a
function that is inlined. All of a step's products are in one text, with the wait for them: no register of theirs may be
touched before.
"""

from __future__ import annotations

from tilewright.codegen.llvm.address import address, buffer_offset
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import register_type
from tilewright.codegen.ptx.tiles import element_of, of_lane_0, store_sums, strides
from tilewright.ir.dtype import DType, bf16, f16, f32, i8
from tilewright.ir.expr import Load
from tilewright.ir.loops import Intrinsic, Region
from tilewright.schedule.mma_intrinsics import DEPTH, STEP, SUMS, WIDE, WIDE_TILE
from tilewright.support.classes import dataclass

_TYPES = {f32: "f32.tf32.tf32", f16: "f32.f16.f16", bf16: "f32.bf16.bf16", i8: "s32.s8.s8"}
_TILES = {intrin.name: about for about, intrin in WIDE_TILE.items()}
_WIDE = {intrin.name: about for about, intrin in WIDE.items()} | {
    name: (t, columns, (False, False)) for name, (t, columns) in _TILES.items()
}
SWIZZLED = 1 << 62
"""The bits that mark, in a descriptor, lines of 128 bytes whose groups of 16 bytes are swizzled."""
GROUPS = 2
"""The number of groups of depth that one instruction multiplies, for every type."""


def is_wide(name: str) -> bool:
    """Whether an intrinsic is a product of four warps."""
    return name in _WIDE


@dataclass(frozen=True, slots=True)
class Wide:
    """The products of one step of four warps: the type of the factors, the number of columns, for each factor whether
    its lines run across the depth (`schedule/mma_intrinsics.py`), and for each the bytes between its groups of
    depth."""

    dtype: DType
    columns: int
    across: tuple[bool, bool]
    groups: tuple[int, int]

    @property
    def name(self) -> str:
        """The name of the LLVM function that computes these products, which tells all that it depends on."""
        a, b = (("k", "m")[x] for x in self.across)
        return f"tw.wgmma.{self.dtype.name}.n{self.columns}.{a}{b}.{self.groups[0]}.{self.groups[1]}"

    def definition(self) -> str:
        """The text of the LLVM function that computes these products: it takes two descriptors and the sums, and
        returns the new sums."""
        count = self.columns // 2
        element, letter = register_type(SUMS[self.dtype]), "r" if self.dtype is i8 else "f"
        result = "{ " + ", ".join([element] * count) + " }"
        sums = [f"%c{k}" for k in range(count)]
        constraints = ",".join([*[f"={letter}"] * count, "l", "l", *map(str, range(count))])
        operands = ", ".join(["i64 %a", "i64 %b", *(f"{element} {x}" for x in sums)])
        return "\n".join(
            [
                f"define internal {result} @{self.name}({', '.join(f'{element} {x}' for x in sums)}, i64 %a, i64 %b)"
                " alwaysinline convergent nounwind {",
                f'  %r = call {result} asm sideeffect "{self._text(count)}", "{constraints}"({operands})',
                f"  ret {result} %r",
                "}",
            ]
        )

    def _text(self, count: int) -> str:
        t = self.dtype
        depth, steps = DEPTH[t], STEP // t.itemsize // DEPTH[t]
        sums = "{" + ", ".join(f"${k}" for k in range(count)) + "}"
        # Scale of the old sums (a predicate), signs of the factors, and which of them lie across.
        more = "p" if t is i8 else "p, 1, 1" if t is f32 else f"p, 1, 1, {int(self.across[0])}, {int(self.across[1])}"
        lines = ["{ .reg .pred p; .reg .b64 a, b; setp.eq.u32 p, 0, 0; wgmma.fence.sync.aligned;"]
        for k in range(steps):
            a, b = (f"add.u64 {x}, ${count + n}, {k * GROUPS * self.groups[n] // 16};" for n, x in enumerate("ab"))
            lines.append(f"{a} {b}")
            name = f"wgmma.mma_async.sync.aligned.m64n{self.columns}k{depth}.{_TYPES[t]}"
            lines.append(f"{name} {sums}, a, b, {more};")
        lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }")
        return " ".join(lines)


def emit_wide(s: State, stmt: Intrinsic) -> None:
    """Write the products of `stmt`, one step of four warps, and the stores of their sums."""
    t, columns, across = _WIDE[stmt.name]
    (c,), (a, b) = stmt.outputs, stmt.inputs
    swizzled = SWIZZLED if stmt.name in _TILES else 0
    lies = [(8 * STEP, STEP // 8) if swizzled else strides(r, x) for r, x in zip((a, b), across, strict=True)]
    lines, groups = zip(*lies, strict=True)
    wide = Wide(t, columns, across, (groups[0], groups[1]))
    s.out.declarations.setdefault(wide.name, wide.definition())
    places = [(j, r, k) for j in range(columns // 8) for r in range(2) for k in range(2)]
    loads = [Load(c.buffer, element_of(c, place)) for place in places]
    element = register_type(SUMS[t])
    old = [f"{element} {evaluate(s, load).scalar}" for load in loads]
    descriptors = [
        _descriptor(s, region, line, group, swizzled) for region, line, group in zip((a, b), lines, groups, strict=True)
    ]
    result = "{ " + ", ".join([element] * len(loads)) + " }"
    call = s.out.inst(f"call {result} @{wide.name}({', '.join([*old, *(f'i64 {d}' for d in descriptors)])})")
    store_sums(s, loads, [s.out.inst(f"extractvalue {result} {call}, {k}") for k in range(len(loads))])


def _descriptor(s: State, region: Region, lines: int, groups: int, swizzled: int) -> str:
    """Emit the descriptor of a factor's tile, from the first thread of four warps: its address, the bytes between eight
    lines (`lines`) and between groups of depth (`groups`), and the bits `swizzled`."""
    where, _ = address(s, region.buffer, buffer_offset(s, region.buffer, of_lane_0(s, region, warps=4)))
    shared = s.out.inst(f"addrspacecast ptr {where} to ptr addrspace(3)")
    start = s.out.inst(f"ptrtoint ptr addrspace(3) {shared} to i32")
    inside = s.out.inst(f"and i32 {start}, {(1 << 18) - 1}")
    units = s.out.inst(f"lshr i32 {inside}, 4")
    wide = s.out.inst(f"zext i32 {units} to i64")
    return s.out.inst(f"or i64 {wide}, {(groups // 16 << 16) | (lines // 16 << 32) | swizzled}")


__all__ = ["GROUPS", "Wide", "emit_wide", "is_wide"]
