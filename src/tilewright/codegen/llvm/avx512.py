"""Instructions of AVX-512 without a generic LLVM intrinsic: scaling by powers of two, and look-ups in register tables;
and such look-ups with AVX2."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.codegen.llvm.values import register_type, vector_literal
from tilewright.ir.dtype import DType, f32, i32, u8
from tilewright.native.text import Writer

TABLE = 16
"""The number of f32 of a table that one register holds."""

_CURRENT_ROUNDING = 4
"""The operand of LLVM's AVX-512 intrinsics that means the rounding mode which is set."""


def scaleb(out: Writer, x: str, n: str, t: DType, width: int) -> str:
    """Emit x * 2^floor(n) by AVX-512's VSCALEF for vectors of `width` elements of type `t` (f32 or f64), and return the
    result's name."""
    least, most = 128 // t.bits, 512 // t.bits

    def call(parts: list[str], size: int) -> str:
        kind = "ps" if t is f32 else "pd"
        ty = register_type(t, size)
        name = f"llvm.x86.avx512.mask.scalef.{kind}.{size * t.bits}"
        mask = f"i{max(size, 8)}"
        operands = [*((ty, p) for p in parts), (ty, "zeroinitializer"), (mask, "-1")]
        if size == most:
            operands.append(("i32", str(_CURRENT_ROUNDING)))
        return out.intrinsic(name, ty, operands)

    return _in_registers(out, [(x, t), (n, t)], width, least, most, call)


def literal_table(entries: Sequence[str]) -> str:
    """A vector constant of f32 literals."""
    return f"<{', '.join(f'float {entry}' for entry in entries)}>"


def permuted(out: Writer, index: str, table: str, width: int) -> str:
    """Emit a look-up in a vector `table` of 16 f32 by AVX-512's VPERMPS, and return the result's name: each of `width`
    lanes gets the entry at the low four bits of its i32 in `index`."""
    ty, word = register_type(f32, TABLE), register_type(i32, TABLE)

    def call(parts: list[str], size: int) -> str:
        return out.intrinsic("llvm.x86.avx512.permvar.sf.512", ty, [(ty, table), (word, parts[0])])

    return _in_registers(out, [(index, i32)], width, TABLE, TABLE, call, f32)


def permuted_of_two(out: Writer, index: str, low: str, high: str, width: int) -> str:
    """Emit the look-up in a table of 32 f32, in the registers `low` and `high`, by VPERMI2PS: for each of `width` lanes
    the entry at the low five bits of its i32 in `index`."""
    ty, word = register_type(f32, TABLE), register_type(i32, TABLE)

    def call(parts: list[str], size: int) -> str:
        operands = [(ty, low), (word, parts[0]), (ty, high)]
        return out.intrinsic("llvm.x86.avx512.vpermi2var.ps.512", ty, operands)

    return _in_registers(out, [(index, i32)], width, TABLE, TABLE, call, f32)


def permuted_by_eights(out: Writer, index: str, low: str, high: str, width: int) -> str:
    """Emit a look-up in a table of 16 f32, of which `low` has the first and `high` the last eight, and return the
    result's name: each of `width` lanes gets the entry at the low four bits of its i32 in `index`. AVX2's VPERMPS looks
    up three bits in either half, and the fourth bit selects between the two results."""
    half = TABLE // 2
    ty, word = register_type(f32, half), register_type(i32, half)

    def call(parts: list[str], size: int) -> str:
        (x,) = parts
        below, above = (out.intrinsic("llvm.x86.avx2.permps", ty, [(ty, table), (word, x)]) for table in (low, high))
        sign = out.inst(f"shl {word} {x}, splat (i32 28)")
        fourth = out.inst(f"icmp slt {word} {sign}, zeroinitializer")
        return out.inst(f"select <{size} x i1> {fourth}, {ty} {above}, {ty} {below}")

    return _in_registers(out, [(index, i32)], width, half, half, call, f32)


def byte_entries(out: Writer, index: str, table: Sequence[str], width: int) -> str:
    """Emit the look-up in a table of 256 bytes, in four vectors of 64, at `width` numbers of u8 in `index`, by
    VPERMI2B: seven bits of a number pick among 128 entries, the eighth selects the half."""
    size = 64
    ty = register_type(u8, size)
    name = f"llvm.x86.avx512.vpermi2var.qi.{size * 8}"

    def call(parts: list[str], _: int) -> str:
        (x,) = parts
        low, high = (out.intrinsic(name, ty, [(ty, a), (ty, x), (ty, b)]) for a, b in (table[:2], table[2:]))
        above = out.inst(f"icmp slt {ty} {x}, zeroinitializer")
        return out.inst(f"select <{size} x i1> {above}, {ty} {high}, {ty} {low}")

    return _in_registers(out, [(index, u8)], width, size, size, call)


def _in_registers(
    out: Writer,
    args: Sequence[tuple[str, DType]],
    width: int,
    least: int,
    most: int,
    call: Callable[[list[str], int], str],
    result: DType | None = None,
) -> str:
    """Apply `call(operands, size)` to operands of any width, each cut or filled up to vectors of `size` lanes, a power
    of two from `least` to `most`. Returns the joined results."""
    t = result or args[0][1]
    size = min(max(1 << max(0, width - 1).bit_length(), least), most)  # a vector's rest has any width
    if not width:
        first = [
            out.inst(f"insertelement {register_type(a, size)} poison, {register_type(a)} {x}, i64 0") for x, a in args
        ]
        return out.inst(f"extractelement {register_type(t, size)} {call(first, size)}, i64 0")
    if width == size:
        return call([x for x, _ in args], size)
    if width < size:
        wide = [_picked(out, x, a, width, tuple(min(k, width - 1) for k in range(size))) for x, a in args]
        return _picked(out, call(wide, size), t, size, tuple(range(width)))
    parts = []
    for begin in range(0, width, size):
        lanes = tuple(range(begin, min(begin + size, width)))
        pieces = [(_picked(out, x, a, width, lanes), a) for x, a in args]
        parts.append(_in_registers(out, pieces, len(lanes), least, most, call, result))
    return _joined(out, parts, t, width, size)


def _joined(out: Writer, parts: Sequence[str], t: DType, width: int, size: int) -> str:
    """One vector of `width` lanes from parts of `size`, of which the last one may be shorter."""
    whole, covered = parts[0], size
    for part in parts[1:]:
        lanes = min(size, width - covered)
        longer = _picked(out, part, t, lanes, tuple(min(k, lanes - 1) for k in range(covered)))
        ty, both = register_type(t, covered), vector_literal(tuple(range(covered + lanes)), "i32")
        whole = out.inst(f"shufflevector {ty} {whole}, {ty} {longer}, <{covered + lanes} x i32> {both}")
        covered += lanes
    return whole


def _picked(out: Writer, x: str, t: DType, width: int, lanes: tuple[int, ...]) -> str:
    ty = register_type(t, width)
    picks = vector_literal(lanes, "i32")
    return out.inst(f"shufflevector {ty} {x}, {ty} poison, <{len(lanes)} x i32> {picks}")
