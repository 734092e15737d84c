"""One operator of `ir.scalar_ops.OPS` on one operand width: the LLVM instructions for it.

Works on *parts* (an LLVM operand, scalar or vector of `width` lanes); `state` splits values into parts. f16 and
bf16 are computed in f32 and rounded after every operation, as NumPy does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.codegen.llvm import avx512
from tilewright.codegen.llvm.cast import cast, from_f32, to_f32
from tilewright.codegen.llvm.values import is_literal, literal, register_type, splat_literal
from tilewright.ir.c_functions import PREFIX
from tilewright.ir.dtype import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16
from tilewright.ir.functions import names_in
from tilewright.native.text import Writer
from tilewright.support.errors import CompileError
from tilewright.targets.target import Target

_FLOAT16 = (f16, bf16)
"""The 16-bit float types, in which most machines do not compute."""

_FLOAT_BINARY = {"add": "fadd contract", "sub": "fsub contract", "mul": "fmul contract", "div": "fdiv"}
_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "bitand": "and", "bitor": "or", "bitxor": "xor"}
_FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_INT_COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven", "sqrt": "sqrt"}
_LIBM = {ours: c for ours, c in names_in("c").items() if ours not in _ROUNDING}
_LIBM |= {name: name for name in ("atan2", "pow", "fmod")}


_EXTENSION = {i8: "signext", i16: "signext", u8: "zeroext", u16: "zeroext"}
"""The LLVM attribute by which C extends arguments narrower than int."""


def is_library(name: str) -> bool:
    """Whether an operator is a call of the C library (on floats), or of another function of C."""
    return name in _LIBM or name.startswith(PREFIX)


def suffix(t: DType, width: int) -> str:
    """The end of an overloaded intrinsic's name, which says its type: "v16f32"."""
    name = f"f{t.bits}" if t.is_float else f"i{1 if t is boolean else t.bits}"
    return f"v{width}{name}" if width else name


def number(value: float | int | bool, t: DType, width: int) -> str:
    """The LLVM text of a literal of type `t`: a scalar where `width` is 0, else a vector of equal lanes."""
    text = literal(value, t)
    return splat_literal(text, register_type(t)) if width else text


class Ops:
    """Emits operators into a writer, for a target."""

    def __init__(self, out: Writer, target: Target) -> None:
        self.out = out
        self.isa = target.isa

    def apply(self, name: str, t: DType, args: Sequence[str], width: int, result: DType) -> str:
        """Emit the operator `name` on operands `args` of type `t`, vectors of `width` or scalars (0), and return its
        result's name; for casts `result` is the type to make."""
        if name == "cast":
            return cast(self.out, args[0], t, result, width)
        if name == "bitcast":
            return self._bitcast(args[0], t, result, width)
        if t in _FLOAT16:
            return self._on_half(name, t, args, width)
        if t is boolean:
            return self._on_bool(name, args, width)
        return self._on_float(name, t, args, width) if t.is_float else self._on_int(name, t, args, width)

    def select(self, condition: str, condition_width: int, a: str, b: str, t: DType, width: int) -> str:
        if condition_width and t in (f32, f64):
            return self._select_float(condition, a, b, t, width)
        ty = register_type(t, width)
        return self.out.inst(f"select {register_type(boolean, condition_width)} {condition}, {ty} {a}, {ty} {b}")

    def _select_float(self, condition: str, a: str, b: str, t: DType, width: int) -> str:
        """`a` where `condition` holds, else `b`, of f32 or f64. LLVM may turn a select and a comparison of the same
        values into a maximum that loses NaN; a fence, which costs nothing, hides that they are the same."""
        ty = register_type(t, width)
        if width and self.isa.loose_extrema:
            a, b = (self.out.intrinsic(f"llvm.arithmetic.fence.{suffix(t, width)}", ty, [(ty, x)]) for x in (a, b))
        return self.out.inst(f"select {self._i1(ty)} {condition}, {ty} {a}, {ty} {b}")

    # floats

    def _on_half(self, name: str, t: DType, args: Sequence[str], width: int) -> str:
        wide = [to_f32(self.out, a, t, width) for a in args]
        if t is f16 and name in _FLOAT_BINARY:
            # LLVM computes this in halves where the CPU can, and would then leave out the rounding before an addition.
            operator = _FLOAT_BINARY[name].removesuffix(" contract")
            result = self.out.inst(f"{operator} {register_type(f32, width)} {wide[0]}, {wide[1]}")
        else:
            result = self._on_float(name, f32, wide, width)
        return result if name in _FLOAT_COMPARE or name in ("isnan", "isinf") else from_f32(self.out, result, t, width)

    def _on_float(self, name: str, t: DType, args: Sequence[str], width: int) -> str:
        ty = register_type(t, width)
        out = self.out
        if name in _FLOAT_BINARY:
            return out.inst(f"{_FLOAT_BINARY[name]} {ty} {args[0]}, {args[1]}")
        if name in _FLOAT_COMPARE:
            return out.inst(f"fcmp {_FLOAT_COMPARE[name]} {ty} {args[0]}, {args[1]}")
        if name in _ROUNDING:
            return out.intrinsic(f"llvm.{_ROUNDING[name]}.{suffix(t, width)}", ty, [(ty, args[0])])
        match name:
            case "fma" if t is f32 and not self.isa.fma:
                # The product is exact in f64; the library's function would be called for each lane.
                a, b, c = (cast(out, x, f32, f64, width) for x in args)
                wide = register_type(f64, width)
                product = out.inst(f"fmul {wide} {a}, {b}")
                return cast(out, out.inst(f"fadd {wide} {product}, {c}"), f64, f32, width)
            case "fma":
                return out.intrinsic(f"llvm.fma.{suffix(t, width)}", ty, [(ty, a) for a in args])
            case "neg":
                return out.inst(f"fneg {ty} {args[0]}")
            case "abs":
                return out.intrinsic(f"llvm.fabs.{suffix(t, width)}", ty, [(ty, args[0])])
            case "isnan":
                return out.inst(f"fcmp uno {ty} {args[0]}, {number(0.0, t, width)}")
            case "isinf":
                size = out.intrinsic(f"llvm.fabs.{suffix(t, width)}", ty, [(ty, args[0])])
                return out.inst(f"fcmp oeq {ty} {size}, {number(float('inf'), t, width)}")
            case "min" | "max":
                return self._extremum(name, t, width, args[0], args[1])
            case "larger":
                better = out.inst(f"fcmp ogt {ty} {args[1]}, {args[0]}")
                return self._select_float(better, args[1], args[0], t, width)
            case "rsqrt":
                root = out.intrinsic(f"llvm.sqrt.{suffix(t, width)}", ty, [(ty, args[0])])
                return out.inst(f"fdiv {ty} {number(1.0, t, width)}, {root}")
            case "sigmoid":
                negated = out.inst(f"fneg {ty} {args[0]}")
                power = self._library("exp", t, [negated], width)
                one = number(1.0, t, width)
                return out.inst(f"fdiv {ty} {one}, {out.inst(f'fadd {ty} {one}, {power}')}")
            case "scaleb":
                x, n = args
                if self.isa.scales:
                    return avx512.scaleb(out, x, n, t, width)
                return self.per_lane(lambda lane: self._scaleb(t, *lane), t, args, width, t)
            case "gelu" | "gelu_tanh":
                return self._gelu(name, t, args[0], width)
        if name in _LIBM:
            return self._library(_LIBM[name], t, args, width)
        raise CompileError(f"no native code for the operator {name!r} on {t}")

    def _extremum(self, name: str, t: DType, width: int, a: str, b: str) -> str:
        """Emit `name`, "min" or "max", of a and b, which propagates NaN; of two zeros it gives either. `select(a > b,
        a, b)` is one x86 instruction, which gives `b` if a or b is NaN, so with a literal `a` nothing more is needed;
        else all bits are set where `a` is NaN. Some machines have an instruction that does all of this and
        distinguishes zeros; on x86 that would take another four."""
        ty = register_type(t, width)
        if is_literal(b):
            a, b = b, a
        if self.isa.extrema_keep_nan and not is_literal(a):
            intrinsic = f"llvm.{'minimum' if name == 'min' else 'maximum'}.{suffix(t, width)}"
            return self.out.intrinsic(intrinsic, ty, [(ty, a), (ty, b)])
        better = self.out.inst(f"fcmp {'olt' if name == 'min' else 'ogt'} {ty} {a}, {b}")
        result = self._select_float(better, a, b, t, width)
        if is_literal(a):
            return result
        word = register_type(i32 if t is f32 else i64, width)
        undefined = self.out.inst(f"fcmp uno {ty} {a}, {a}")
        mask = self.out.inst(f"sext {self._i1(ty)} {undefined} to {word}")
        marked = self.out.inst(f"or {word} {self.out.inst(f'bitcast {ty} {result} to {word}')}, {mask}")
        return self.out.inst(f"bitcast {word} {marked} to {ty}")

    def _scaleb(self, t: DType, x: str, n: str) -> str:
        """Emit x 2^floor(n) by the C library, for finite `n`."""
        out, ty = self.out, register_type(t)
        bounded = n
        for name, limit in (("max", -5000.0), ("min", 5000.0)):
            bounded = self._extremum(name, t, 0, number(limit, t, 0), bounded)
        floor = out.intrinsic(f"llvm.floor.{suffix(t, 0)}", ty, [(ty, bounded)])
        whole = cast(out, floor, t, i32, 0)
        scaled = out.intrinsic(f"llvm.ldexp.{suffix(t, 0)}.i32", ty, [(ty, x), ("i32", whole)])
        zero = number(0.0, t, 0)
        great = out.inst(f"select i1 {out.inst(f'fcmp olt {ty} {n}, {zero}')}, {ty} {zero}, {ty} {n}")
        size = out.intrinsic(f"llvm.fabs.{suffix(t, 0)}", ty, [(ty, n)])
        finite = out.inst(f"fcmp olt {ty} {size}, {number(math.inf, t, 0)}")
        return out.inst(f"select i1 {finite}, {ty} {scaled}, {ty} {out.inst(f'fmul {ty} {x}, {great}')}")

    def _gelu(self, name: str, t: DType, x: str, width: int) -> str:
        """Emit x * (1 + f) / 2 for floats of type `t`, where f is the error function if `name` is "gelu", else the
        hyperbolic tangent of a cubic polynomial of x. Returns the result's name."""

        def apply(op: str, a: str, b: str | float) -> str:
            return self._on_float(op, t, [a, b if isinstance(b, str) else number(b, t, width)], width)

        if name == "gelu":
            f = self._library("erf", t, [apply("mul", x, math.sqrt(0.5))], width)
        else:
            cubic = apply("mul", apply("mul", apply("mul", x, x), x), 0.044715)
            f = self._library("tanh", t, [apply("mul", apply("add", x, cubic), math.sqrt(2 / math.pi))], width)
        return apply("mul", apply("mul", x, 0.5), apply("add", f, 1.0))

    @staticmethod
    def _i1(ty: str) -> str:
        return f"{ty.split(' x ')[0]} x i1>" if ty.startswith("<") else "i1"

    def _library(self, name: str, t: DType, args: Sequence[str], width: int) -> str:
        """Emit a call of the C library's function `name` (with the suffix `f` for f32) for each of `width` lanes of
        `args`, and return the results' name."""
        scalar = register_type(t)
        symbol = self.out.declare(
            name + ("f" if t is f32 else ""), scalar, [scalar] * len(args), "nounwind willreturn memory(none)"
        )
        return self.per_lane(
            lambda lane: self.out.inst(f"call {scalar} {symbol}({', '.join(f'{scalar} {a}' for a in lane)})"),
            t, args, width, t,
        )  # fmt: skip

    def extern(self, name: str, types: Sequence[DType], args: Sequence[str], width: int, result: DType) -> str:
        """Emit, for each lane, a call with `args` of the C function of operator `name`; returns the vector of results
        of type `result`."""
        ty = f"{_EXTENSION.get(result, '')} {register_type(result)}".lstrip()
        passed = [f"{register_type(t)} {_EXTENSION.get(t, '')}".rstrip() for t in types]
        symbol = self.out.declare(name, ty, passed, "nounwind willreturn memory(none)")

        def call(lane: list[str]) -> str:
            operands = ", ".join(f"{kind} {a}" for kind, a in zip(passed, lane, strict=True))
            return self.out.inst(f"call {ty} {symbol}({operands})")

        return self.per_lane(call, types, args, width, result)

    def per_lane(
        self,
        f: Callable[[list[str]], str],
        t: DType | Sequence[DType],
        args: Sequence[str],
        width: int,
        result: DType,
    ) -> str:
        """Emit the scalar function `f` for each of `width` lanes of `args` (0: for scalars), and return the name of the
        results, of type `result`. The operands have one type `t`, or one each."""
        if not width:
            return f(list(args))
        types = [t] * len(args) if isinstance(t, DType) else t
        kinds, result_ty = [register_type(t, width) for t in types], register_type(result, width)
        vector = "poison"
        for i in range(width):
            lane = [self.out.inst(f"extractelement {kind} {a}, i64 {i}") for kind, a in zip(kinds, args, strict=True)]
            value = f(lane)
            vector = self.out.inst(f"insertelement {result_ty} {vector}, {register_type(result)} {value}, i64 {i}")
        return vector

    # integers

    def _on_int(self, name: str, t: DType, args: Sequence[str], width: int) -> str:
        ty = register_type(t, width)
        out = self.out
        signed = t.kind == "int"
        if name in _INT_BINARY:
            return out.inst(f"{_INT_BINARY[name]} {ty} {args[0]}, {args[1]}")
        if name in _INT_COMPARE:
            prefix = "" if name in ("eq", "ne") else "s" if signed else "u"
            return out.inst(f"icmp {prefix}{_INT_COMPARE[name]} {ty} {args[0]}, {args[1]}")
        match name:
            case "min" | "max":
                intrinsic = f"llvm.{'s' if signed else 'u'}{name}.{suffix(t, width)}"
                return out.intrinsic(intrinsic, ty, [(ty, a) for a in args])
            case "neg":
                return out.inst(f"sub {ty} {number(0, t, width)}, {args[0]}")
            case "abs":
                if not signed:
                    return args[0]
                return out.intrinsic(f"llvm.abs.{suffix(t, width)}", ty, [(ty, args[0]), ("i1", "false")])
            case "bitnot":
                return out.inst(f"xor {ty} {args[0]}, {number(-1, t, width)}")
            case "shl" | "shr":
                return self._shift(name, t, args[0], args[1], width)
            case "floordiv" | "truncdiv" | "mod" | "truncmod":
                return self.divide(name, t, args[0], args[1], width)
        raise CompileError(f"no native code for the operator {name!r} on {t}")

    def _shift(self, name: str, t: DType, a: str, n: str, width: int) -> str:
        """Emit the shift `name` of `a` by `n` bits, and return the result's name. Shifts by at least the type's width,
        or by a negative number, give 0, or the sign for a signed shift to the right."""
        ty, i1 = register_type(t, width), register_type(boolean, width)
        opcode = "shl" if name == "shl" else "ashr" if t.kind == "int" else "lshr"
        if not width and is_literal(n) and 0 <= int(n) < t.bits:
            return self.out.inst(f"{opcode} {ty} {a}, {n}")
        if width and n.startswith("splat") and 0 <= int(n[:-1].split()[-1]) < t.bits:
            return self.out.inst(f"{opcode} {ty} {a}, {n}")
        fits = self.out.inst(f"icmp ult {ty} {n}, {number(t.bits, t, width)}")
        last = number(t.bits - 1, t, width)
        safe = self.out.inst(f"select {i1} {fits}, {ty} {n}, {ty} {last}")
        shifted = self.out.inst(f"{opcode} {ty} {a}, {safe}")
        if opcode == "ashr":
            return shifted
        return self.out.inst(f"select {i1} {fits}, {ty} {shifted}, {ty} {number(0, t, width)}")

    def divide(self, name: str, t: DType, a: str, b: str, width: int, *, natural: bool = False) -> str:
        """Emit the integer division or remainder `name` of a by b, and return the result's name. By zero both give 0,
        and min / -1 wraps. `natural` promises that a >= 0 and b > 0."""
        ty, i1 = register_type(t, width), register_type(boolean, width)
        out = self.out
        quotient = name in ("floordiv", "truncdiv")
        known = self._literal_divisor(b, width)
        by_floats = width > 0 and t.bits <= 32 and known is None
        if natural or t.kind == "uint":
            if not natural:
                zero = out.inst(f"icmp eq {ty} {b}, {number(0, t, width)}")
                b = out.inst(f"select {i1} {zero}, {ty} {number(1, t, width)}, {ty} {b}")
            ordinary = self._whole(quotient, False, t, a, b, width, by_floats)
            return ordinary if natural else out.inst(f"select {i1} {zero}, {ty} {number(0, t, width)}, {ty} {ordinary}")
        guarded = known is None or known in (0, -1)
        if guarded:
            zero = out.inst(f"icmp eq {ty} {b}, {number(0, t, width)}")
            minus = out.inst(f"icmp eq {ty} {b}, {number(-1, t, width)}")
            either = out.inst(f"or {i1} {zero}, {minus}")
            b = out.inst(f"select {i1} {either}, {ty} {number(1, t, width)}, {ty} {b}")
        if known is not None and known > 0 and known & (known - 1) == 0 and name in ("floordiv", "mod"):
            if quotient:
                return out.inst(f"ashr {ty} {a}, {number(known.bit_length() - 1, t, width)}")
            return out.inst(f"and {ty} {a}, {number(known - 1, t, width)}")
        rest = self._whole(False, True, t, a, b, width, by_floats)
        result = self._whole(True, True, t, a, b, width, by_floats) if quotient else rest
        if name in ("floordiv", "mod"):
            opposite = out.inst(f"icmp slt {ty} {out.inst(f'xor {ty} {rest}, {b}')}, {number(0, t, width)}")
            inexact = out.inst(f"icmp ne {ty} {rest}, {number(0, t, width)}")
            adjust = out.inst(f"and {i1} {opposite}, {inexact}")
            if quotient:
                result = out.inst(f"add {ty} {result}, {out.inst(f'sext {i1} {adjust} to {ty}')}")
            else:
                fixed = out.inst(f"add {ty} {rest}, {b}")
                result = out.inst(f"select {i1} {adjust}, {ty} {fixed}, {ty} {rest}")
        if guarded:
            if quotient:
                negated = out.inst(f"sub {ty} {number(0, t, width)}, {a}")
                result = out.inst(f"select {i1} {minus}, {ty} {negated}, {ty} {result}")
                result = out.inst(f"select {i1} {zero}, {ty} {number(0, t, width)}, {ty} {result}")
            # The remainder by the 1 that stands for 0 and -1 is 0, as it should be.
        return result

    def _whole(self, quotient: bool, signed: bool, t: DType, a: str, b: str, width: int, by_floats: bool) -> str:
        """Emit a / b rounded toward zero (`quotient`), or its remainder, of integers that are `signed` or not, and
        return the result's name. CPUs only divide vectors of floats, so with `by_floats` integers of 16 bits are
        divided in f32 and integers of 32 bits in f64, whose quotients truncate to the right integer."""
        ty, out = register_type(t, width), self.out
        sign = "s" if signed else "u"
        if not by_floats:
            return out.inst(f"{sign}{'div' if quotient else 'rem'} {ty} {a}, {b}")
        wide = register_type(f32 if t.bits <= 16 else f64, width)
        x, y = (out.inst(f"{sign}itofp {ty} {v} to {wide}") for v in (a, b))
        whole = out.inst(f"fpto{sign}i {wide} {out.inst(f'fdiv {wide} {x}, {y}')} to {ty}")
        return whole if quotient else out.inst(f"sub {ty} {a}, {out.inst(f'mul {ty} {whole}, {b}')}")

    @staticmethod
    def _literal_divisor(b: str, width: int) -> int | None:
        if b == "zeroinitializer":
            return 0
        text = b[:-1].split()[-1] if width and b.startswith("splat") else b
        return int(text) if text.lstrip("-").isdigit() else None

    # bool

    def _on_bool(self, name: str, args: Sequence[str], width: int) -> str:
        ty = register_type(boolean, width)
        out = self.out
        match name:
            case "and" | "min":
                return out.inst(f"and {ty} {args[0]}, {args[1]}")
            case "or" | "max":
                return out.inst(f"or {ty} {args[0]}, {args[1]}")
            case "not":
                return out.inst(f"xor {ty} {args[0]}, {number(True, boolean, width)}")
            case "bitxor" | "ne":
                return out.inst(f"xor {ty} {args[0]}, {args[1]}")
            case "eq" | "lt" | "le" | "gt" | "ge":
                prefix = "" if name == "eq" else "u"
                return out.inst(f"icmp {prefix}{_INT_COMPARE[name]} {ty} {args[0]}, {args[1]}")
        raise CompileError(f"no native code for the operator {name!r} on bool")

    def _bitcast(self, a: str, t: DType, to: DType, width: int) -> str:
        if t.itemsize != to.itemsize or (t.bits != to.bits):
            raise CompileError(f"bitcast between {t} and {to}, which differ in size")
        source, result = register_type(t, width), register_type(to, width)
        if source == result:
            return a
        if t is boolean:
            return self.out.inst(f"zext {source} {a} to {result}")
        if to is boolean:
            return self.out.inst(f"icmp ne {source} {a}, {number(0, t, width)}")
        return self.out.inst(f"bitcast {source} {a} to {result}")


__all__ = ["Ops", "number", "suffix", "f64"]
