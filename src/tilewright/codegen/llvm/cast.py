"""Conversions between element types, as NumPy and ml_dtypes do them, except that floats saturate into integers."""

from __future__ import annotations

import numpy as np

from tilewright.codegen.llvm.values import literal, register_type, splat_literal
from tilewright.ir.dtype import DType, bf16, boolean, f16, f32, f64
from tilewright.native.text import Writer
from tilewright.targets.abi import is_web


def _number(value: float | int, t: DType, width: int) -> str:
    text = literal(value, t)
    return splat_literal(text, register_type(t)) if width else text


def _bits(value: int, bits: int, width: int) -> str:
    return splat_literal(str(value), f"i{bits}") if width else str(value)


def _vector(element: str, width: int) -> str:
    return f"<{width} x {element}>" if width else element


def to_f32(out: Writer, a: str, t: DType, width: int) -> str:
    """Emit the exact conversion of `a`, `width` numbers of type f16 or bf16, to f32."""
    wide = register_type(f32, width)
    if t is f16:
        return out.inst(f"fpext {register_type(f16, width)} {a} to {wide}")
    i32 = _vector("i32", width)
    extended = out.inst(f"zext {_vector('i16', width)} {a} to {i32}")
    shifted = out.inst(f"shl {i32} {extended}, {_bits(16, 32, width)}")
    return out.inst(f"bitcast {i32} {shifted} to {wide}")


def from_f32(out: Writer, a: str, t: DType, width: int) -> str:
    """Emit the conversion of the f32 `a`, a vector of `width` or a scalar (0), to `t` (f16 or bf16), rounded to
    nearest, ties to even; returns the result's name. bf16 is rounded on the bits, because the CPU's instruction flushes
    denormals."""
    wide = register_type(f32, width)
    if t is f16:
        return out.inst(f"fptrunc {wide} {a} to {register_type(f16, width)}")
    i32, i1 = _vector("i32", width), _vector("i1", width)
    bits = out.inst(f"bitcast {wide} {a} to {i32}")
    low = out.inst(f"lshr {i32} {bits}, {_bits(16, 32, width)}")
    odd = out.inst(f"and {i32} {low}, {_bits(1, 32, width)}")
    bias = out.inst(f"add {i32} {odd}, {_bits(0x7FFF, 32, width)}")
    rounded = out.inst(f"lshr {i32} {out.inst(f'add {i32} {bits}, {bias}')}, {_bits(16, 32, width)}")
    quiet = out.inst(f"or {i32} {low}, {_bits(0x40, 32, width)}")
    nan = out.inst(f"fcmp uno {wide} {a}, {a}")
    chosen = out.inst(f"select {i1} {nan}, {i32} {quiet}, {i32} {rounded}")
    return out.inst(f"trunc {i32} {chosen} to {_vector('i16', width)}")


def _round_to_odd(out: Writer, a: str, width: int) -> str:
    """Emit the conversion of `a`, f64 (a vector of `width`, or a scalar if that is 0), to f32, rounded to odd (the last
    bit is set if the result is inexact), so that a second rounding is correct. Returns the result's name."""
    f, d = register_type(f32, width), register_type(f64, width)
    i32, i1 = _vector("i32", width), _vector("i1", width)
    name = f"v{width}f64" if width else "f64"
    rounded = out.inst(f"fptrunc {d} {a} to {f}")
    back = out.inst(f"fpext {f} {rounded} to {d}")
    bits = out.inst(f"bitcast {f} {rounded} to {i32}")
    lost = out.inst(f"fcmp one {d} {back}, {a}")
    size_back = out.intrinsic(f"llvm.fabs.{name}", d, [(d, back)])
    size = out.intrinsic(f"llvm.fabs.{name}", d, [(d, a)])
    above = out.inst(f"fcmp ogt {d} {size_back}, {size}")
    down = out.inst(f"add {i32} {bits}, {out.inst(f'sext {i1} {above} to {i32}')}")
    sticky = out.inst(f"or {i32} {down}, {out.inst(f'zext {i1} {lost} to {i32}')}")
    return out.inst(f"bitcast {i32} {sticky} to {f}")


def cast(out: Writer, a: str, source: DType, to: DType, width: int) -> str:
    """Emit the conversion of `a` from type `source` to type `to`; returns the operand."""
    if source is to:
        return a
    s, r = register_type(source, width), register_type(to, width)
    if source.is_float and to.is_float:
        return _float_to_float(out, a, source, to, width)
    if source in (f16, bf16):
        a, s = to_f32(out, a, source, width), register_type(f32, width)
        source = f32
    if to is boolean:
        if source.is_float:
            return out.inst(f"fcmp une {s} {a}, {_number(0.0, source, width)}")
        return out.inst(f"icmp ne {s} {a}, {_number(0, source, width)}")
    if source is boolean:
        ones, zeros = (_number(1.0 if to.is_float else 1, to, width), _number(0.0 if to.is_float else 0, to, width))
        return out.inst(f"select {s} {a}, {r} {ones}, {r} {zeros}")
    if source.is_float and to.bits < 32:
        return _float_to_narrow(out, a, source, to, width)
    if source.is_float and width:
        return _float_to_wide(out, a, source, to, width)
    if source.is_float:
        name = f"llvm.fpto{'s' if to.kind == 'int' else 'u'}i.sat"
        return out.intrinsic(f"{name}.i{to.bits}.f{source.bits}", r, [(s, a)])
    signed = source.kind == "int"
    if to.is_float:
        return _int_to_float(out, a, source, to, width)
    if source.bits == to.bits:
        return a
    if source.bits > to.bits:
        return out.inst(f"trunc {s} {a} to {r}")
    return out.inst(f"{'sext' if signed else 'zext'} {s} {a} to {r}")


def _float_to_narrow(out: Writer, a: str, source: DType, to: DType, width: int) -> str:
    """Emit the conversion of `a`, `width` floats of type `source`, to a narrow integer type, by way of i32 and clamped
    before, since LLVM would saturate lane by lane."""
    bounded = _bounded(out, a, source, _pair(source, width, to.min, to.max), width)
    whole = out.inst(f"fptosi {register_type(source, width)} {bounded} to {_vector('i32', width)}")
    return _narrow(out, a, whole, source, to, width)


def cast_rounded(
    out: Writer, a: str, offset: str, bounds: tuple[str, str], source: DType, to: DType, width: int, triple: str
) -> str:
    """cast(round(a) + offset) of an f32 or f64 to an integer of at most 16 bits, by the instruction that rounds to
    nearest even as it converts. The value is clamped to the range before it is rounded, which keeps it in the range.

    Args:
        offset: an i32.
        bounds: the least and the largest number of `to`, less the offset, as literals of type `source`.
        triple: of the target. WebAssembly rounds and converts in two instructions; of `lrint` LLVM 22 makes a call of
            libm there, lane by lane.
    """
    s, wide = register_type(source, width), _vector("i32", width)
    bounded = _bounded(out, a, source, bounds, width)
    lanes = f"v{width}" if width else ""
    if is_web(triple):
        even = out.intrinsic(f"llvm.roundeven.{lanes}f{source.bits}", s, [(s, bounded)])
        whole = out.inst(f"fptosi {s} {even} to {wide}")
    else:
        whole = out.intrinsic(f"llvm.lrint.{lanes}i32.{lanes}f{source.bits}", wide, [(s, bounded)])
    whole = out.inst(f"add {wide} {whole}, {offset}")
    return _narrow(out, a, whole, source, to, width)


def _narrow(out: Writer, a: str, whole: str, source: DType, to: DType, width: int) -> str:
    """Emit the conversion of the i32 `whole` to the narrower integer type `to`, 0 where `a`, the float of type `source`
    that `whole` was converted from, is NaN. Both are vectors of `width`. Returns the result's name."""
    wide = _vector("i32", width)
    number = _where(out, f"uno {{s}} {a}, {a}", source, _bits(0, 32, width), whole, wide, width)
    return out.inst(f"trunc {wide} {number} to {register_type(to, width)}")


def _float_to_wide(out: Writer, a: str, source: DType, to: DType, width: int) -> str:
    """Emit the conversion of the floats `a`, of type `source`, to integers `to` of 32 or 64 bits, saturated, with 0 for
    NaN; returns the result's name. The largest integer may have no float, so it is selected separately."""
    r, beyond = register_type(to, width), float(int(to.max) + 1)
    below = float(np.nextafter(source.numpy.type(beyond), source.numpy.type(0)))
    bounded = _bounded(out, a, source, _pair(source, width, to.min, min(below, float(int(to.max)))), width)
    opcode = "fptosi" if to.kind == "int" else "fptoui"
    whole = out.inst(f"{opcode} {register_type(source, width)} {bounded} to {r}")
    most = _number(int(to.max), to, width)
    whole = _where(out, f"oge {{s}} {a}, {_number(beyond, source, width)}", source, most, whole, r, width)
    return _where(out, f"uno {{s}} {a}, {a}", source, _number(0, to, width), whole, r, width)


def _bounded(out: Writer, a: str, source: DType, bounds: tuple[str, str], width: int) -> str:
    """Emit `a`, a vector of `width` floats of type `source`, clamped to `bounds`; NaN becomes the lower bound."""
    s, i1 = register_type(source, width), _vector("i1", width)
    for compare, limit in zip(("ogt", "olt"), bounds, strict=True):
        inside = out.inst(f"fcmp {compare} {s} {a}, {limit}")
        a = out.inst(f"select {i1} {inside}, {s} {a}, {s} {limit}")
    return a


def _pair(source: DType, width: int, low: float, high: float) -> tuple[str, str]:
    return _number(float(low), source, width), _number(float(high), source, width)


def _where(out: Writer, condition: str, source: DType, yes: str, no: str, kind: str, width: int) -> str:
    """Emit a select among `width` lanes of LLVM type `kind`: `yes` where the comparison `condition` of floats of type
    `source` holds, else `no`. In `condition`, "{s}" stands for the LLVM type of these floats."""
    result = out.inst(f"fcmp {condition.format(s=register_type(source, width))}")
    return out.inst(f"select {_vector('i1', width)} {result}, {kind} {yes}, {kind} {no}")


def _int_to_float(out: Writer, a: str, source: DType, to: DType, width: int) -> str:
    """Emit the conversion of `a`, `width` integers of type `source`, to floats; f16 and bf16 by way of f32, as NumPy
    does."""
    opcode = "sitofp" if source.kind == "int" else "uitofp"
    s = register_type(source, width)
    if to in (f32, f64):
        return out.inst(f"{opcode} {s} {a} to {register_type(to, width)}")
    return from_f32(out, out.inst(f"{opcode} {s} {a} to {register_type(f32, width)}"), to, width)


def _float_to_float(out: Writer, a: str, source: DType, to: DType, width: int) -> str:
    if source is f64 and to is f16:
        return from_f32(out, _round_to_odd(out, a, width), to, width)
    if source is f64 and to is bf16:
        # ml_dtypes rounds twice.
        a, source = out.inst(f"fptrunc {register_type(f64, width)} {a} to {register_type(f32, width)}"), f32
    if source in (f16, bf16):
        a = to_f32(out, a, source, width)
        source = f32
    if to in (f16, bf16):
        return from_f32(out, a, to, width)
    if source is to:
        return a
    opcode = "fpext" if to is f64 else "fptrunc"
    return out.inst(f"{opcode} {register_type(source, width)} {a} to {register_type(to, width)}")
