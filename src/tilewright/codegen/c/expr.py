"""Expressions as C text with the parentheses that C and -Wparentheses ask for, and no others.

Index arithmetic (i64 without loads) is ordinary C, since it cannot overflow; data wraps through unsigned types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tilewright.arith import bounds
from tilewright.arith.interval import EVERYTHING
from tilewright.codegen.c.helpers import VALUE_TYPES
from tilewright.ir.c_functions import LIBRARY, PREFIX, linked_name, signature_of
from tilewright.ir.dtype import DType, bf16, boolean, f16, f32, f64, i64, u32, u64
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, as_int, const
from tilewright.ir.functions import names_in
from tilewright.ir.rewrite import walk_expr
from tilewright.ir.scalar_ops import OPS
from tilewright.support.errors import CompileError

# C's binding strengths.
TERNARY, OR, AND, EQUAL, COMPARE, SUM, PRODUCT, UNARY, ATOM = 3, 4, 5, 9, 10, 12, 13, 14, 15

Text = tuple[str, int]

_C_NAMES = names_in("c") | {"abs": "fabs"}
MATH_NAMES = frozenset(
    _C_NAMES.get(name, name) + suffix for name, info in OPS.items() if info.kinds == ("float",) for suffix in ("", "f")
)
"""Functions of math.h that emitted text may call."""

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_REFLEXIVE = {"eq": True, "le": True, "ge": True, "ne": False, "lt": False, "gt": False}
_ARITHMETIC = {"add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT)}


class ExprEmitter:
    """Texts of expressions. Collects the identifiers, helpers, headers and external functions that the texts use."""

    def __init__(self, names: Mapping[Var | Buffer, str], extents: dict[Var, Expr]) -> None:
        self.names = names
        self.extents = extents
        self.data_variables: set[Var] = set()
        self.computed: dict[Expr, str] = {}
        self.used: set[str] = set()
        self.helpers: dict[str, None] = {}
        self.headers: set[str] = {"stdint.h"}
        self.externs: dict[str, str] = {}
        self._index: dict[Expr, bool] = {}

    def text(self, e: Expr, least: int = 0) -> str:
        """`e`, in parentheses if it binds weaker than `least`."""
        text, strength = self._emit(e)
        return text if strength >= least else f"({text})"

    def stored(self, e: Expr) -> str:
        """The text of `e` as memory holds it: f16 and bf16 values as their bits."""
        if e.dtype not in (f16, bf16):
            return self.text(e)
        unrounded = self._half(e)[1] if isinstance(e, Op) else None
        return self.call(f"to_{e.dtype}", unrounded or self.text(e))[0]

    def element(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        """The C text of the element of a buffer at `indices`, in row-major order: `A[i * 4 + j]`."""
        at: Expr = const(0)
        stride: Expr = const(1)
        terms = []
        for index, extent in zip(reversed(indices), reversed(buffer.shape), strict=True):
            terms.append(index * stride)
            stride = extent * stride
        for term in reversed(terms):
            at = at + term
        return f"{self.name(buffer)}[{self.text(at)}]"

    def name(self, x: Var | Buffer) -> str:
        entry = self.names.get(x)
        if entry is None:
            raise CompileError(f"{x.name!r} is not defined")
        self.used.add(entry)
        return entry

    def call(self, helper: str, *args: str) -> Text:
        """A call of the helper function named `helper` (`helpers.py`), which is then emitted too."""
        self.helpers[helper] = None
        return f"{helper}({', '.join(args)})", ATOM

    def _emit(self, e: Expr) -> Text:
        if e in self.computed:
            return self.computed[e], ATOM
        match e:
            case Const():
                return self._const(e)
            case Var():
                return self.name(e), ATOM
            case Load():
                element = self.element(e.buffer, e.indices)
                if e.dtype in (f16, bf16):
                    return self.call(f"{e.dtype}_to_f32", element)
                return self.call(f"wrap_{e.dtype}", element) if e.dtype.bits < 8 and e.dtype.is_int else (element, ATOM)
            case Op("select", (condition, then, orelse)):
                c, a, b = self.text(condition, OR), self.text(then, OR), self.text(orelse, TERNARY)
                return f"{c} ? {a} : {b}", TERNARY
            case Op("lookup", (index, *table)):
                return self._lookup(index, table), ATOM
            case Op("cast", (value,)):
                return self._cast(value, e.dtype)
            case Op("bitcast", (value,)):
                return self.call(f"bits_{value.dtype}_to_{e.dtype}", self.text(value))
            case Op(name) if name in _COMPARISONS:
                return self._compare(e)
            case Op("and" | "or" as name, (a, b)):
                # -Wparentheses wants them around `&&` inside `||`.
                level, sign = (AND, "&&") if name == "and" else (OR, "||")
                other = "or" if name == "and" else "and"
                parts = [self.text(x, ATOM if isinstance(x, Op) and x.name == other else level) for x in (a, b)]
                return f"{parts[0]} {sign} {parts[1]}", level
            case Op("not", (a,)):
                return f"!{self.text(a, UNARY)}", UNARY
            case Op(name, (a,)) if name in ("isnan", "isinf"):
                self.headers.add("math.h")
                return f"{name}({self.text(a)})", ATOM
            case Op(name) if name.startswith(PREFIX):
                return self._extern(e), ATOM
            case Op() if e.dtype in (f16, bf16):
                return self._half(e)[0]
            case Op() if e.dtype.is_float:
                return self._float(e)
            case Op() if e.dtype is boolean:
                return self._bool(e)
            case Op():
                return self._int(e)
        raise CompileError(f"{type(e).__name__} has no C form; lower the function first", where=str(e))

    def _extern(self, e: Op) -> str:
        """The text of a call of a C function. The function is declared before the text unless a header does so."""
        name = e.name.removeprefix(PREFIX)
        symbol = linked_name(e.name)
        if name in LIBRARY:
            self.headers.add("math.h")
        else:
            self.externs[symbol] = f"{signature_of(e.dtype, e.args).in_c(symbol)};"
        return f"{symbol}({', '.join([self.text(a) for a in e.args])})"

    def _lookup(self, index: Expr, table: list[Expr]) -> str:
        """The text that reads the element `index` of an array literal of `table`; an index that may be out of bounds is
        clamped."""
        if table[0].dtype is boolean:
            self.headers.add("stdbool.h")
        last = len(table) - 1
        limits = bounds(index, self.extents) if self.is_index(index) else EVERYTHING
        if limits.hi is None or limits.hi > last:
            index = Op("min", (index, const(last)))
        if limits.lo is None or limits.lo < 0:
            index = Op("max", (index, const(0)))
        entries = ", ".join(self.text(entry) for entry in table)
        return f"((const {VALUE_TYPES[table[0].dtype.name]}[]){{{entries}}})[{self.text(index)}]"

    # Literals

    def _const(self, e: Const) -> Text:
        if e.dtype is boolean:
            self.headers.add("stdbool.h")
            return ("true" if e.value else "false"), ATOM
        if e.dtype.is_float:
            text = self._float_literal(e.value, e.dtype)
        else:
            text = _int_literal(e.value, e.dtype)
        return text, UNARY if text.startswith("-") else ATOM

    def _float_literal(self, value: float, dtype: DType) -> str:
        rounded = float(dtype.numpy.type(value))
        if rounded != rounded or math.isinf(rounded):
            self.headers.add("math.h")
            text = "NAN" if rounded != rounded else "INFINITY" if rounded > 0 else "-INFINITY"
            return f"(double){text}" if dtype is f64 else text
        if dtype is f64:
            return repr(rounded)
        text = str(np.float32(rounded))
        return (text if any(c in text for c in ".e") else text + ".0") + "f"

    # Operators

    def _compare(self, e: Op) -> Text:
        a, b = e.args
        if a is b and not a.dtype.is_float:
            return self._const(const(_REFLEXIVE[e.name]))
        for x, y, always, never in ((a, b, "ge", "lt"), (b, a, "le", "gt")):
            # An unsigned value against 0: gcc warns of comparisons that say nothing.
            if x.dtype.kind == "uint" and as_int(y) == 0 and e.name in (always, never):
                return self._const(const(e.name == always))
        level = EQUAL if e.name in ("eq", "ne") else COMPARE
        return f"{self._operand(a)} {_COMPARISONS[e.name]} {self._operand(b)}", level

    def _operand(self, e: Expr) -> str:
        """The text of a comparison's operand. C counts every nonzero number as true, so flags are converted to bool."""
        text = self.text(e, COMPARE + 1)
        return f"(bool){text}" if isinstance(e, Op) and e.name in ("isnan", "isinf") else text

    def _bool(self, e: Op) -> Text:
        a, b = e.args
        if e.name == "bitxor":
            return f"{self._operand(a)} != {self._operand(b)}", EQUAL
        return self._emit(Op("and" if e.name == "min" else "or", (a, b)))

    def _half(self, e: Op) -> tuple[Text, str | None]:
        """The text of an f16 or bf16 operation, which is computed in float and rounded; and the text before rounding,
        None if nothing is rounded."""
        if e.name in ("select", "lookup", "cast", "bitcast"):
            if e.name == "cast" and e.args[0].dtype is not e.dtype:
                unrounded = self._cast(e.args[0], f64 if e.args[0].dtype is f64 else f32)[0]
                return self._emit(e), unrounded
            return self._emit(e), None
        text, level = self._float(e)
        if e.name in ("neg", "abs", "min", "max", "larger", "floor", "ceil", "trunc", "round"):
            return (text, level), None
        return self.call(f"round_{e.dtype}", text), text

    def _float(self, e: Op) -> Text:
        name, args = e.name, e.args
        suffix = "" if e.dtype is f64 else "f"
        match name:
            case "add" | "sub" | "mul":
                sign, level = _ARITHMETIC[name]
                return self._infix(sign, level, args)
            case "div":
                return self._infix("/", PRODUCT, args)
            case "neg":
                return self._negated(args[0])
            case "min" | "max" | "larger" | "sigmoid" | "gelu" | "gelu_tanh" | "scaleb":
                return self.call(f"{name}_{'f64' if e.dtype is f64 else 'f32'}", *map(self.text, args))
            case "rsqrt":
                self.headers.add("math.h")
                return f"1.0{suffix} / sqrt{suffix}({self.text(args[0])})", PRODUCT
        self.headers.add("math.h")
        return f"{_C_NAMES.get(name, name)}{suffix}({', '.join([self.text(a) for a in args])})", ATOM

    def _infix(self, sign: str, level: int, args: tuple[Expr, ...]) -> Text:
        left, right = args
        return f"{self.text(left, level)} {sign} {self.text(right, level + 1)}", level

    def _negated(self, e: Expr) -> Text:
        text = self.text(e, UNARY)
        return f"-({text})" if text.startswith("-") else f"-{text}", UNARY

    # Integers

    def is_index(self, e: Expr) -> bool:
        """Whether an expression is arithmetic on loop variables and symbols alone, which never overflows."""
        known = self._index.get(e)
        if known is None:
            known = self._index[e] = e.dtype is i64 and not any(
                isinstance(x, Load) or x in self.data_variables for x in walk_expr(e)
            )
        return known

    def _int(self, e: Op) -> Text:
        name, dtype = e.name, e.dtype
        ordinary = self.is_index(e)
        match name:
            case "add" | "sub" | "mul":
                sign, level = _ARITHMETIC[name]
                if ordinary and all(isinstance(a, Const) for a in e.args):
                    return f"INT64_C({e.args[0]}) {sign} {self.text(e.args[1], level + 1)}", level
                return self._infix(sign, level, e.args) if ordinary else self._wrapped(sign, level, e)
            case "neg":
                if ordinary:
                    return self._negated(e.args[0])
                return self._wrapped("-", SUM, Op("sub", (const(0, dtype), e.args[0])))
            case "floordiv" | "mod" | "truncdiv" | "truncmod":
                return self._division(e)
            case "min" | "max":
                return self.call(f"{name}_{_standard(dtype)}", *map(self.text, e.args))
            case "abs":
                if dtype.kind == "uint":
                    return self._emit(e.args[0])
                return self._narrowed(dtype, *self.call(f"abs_{_standard(dtype)}", self.text(e.args[0])))
            case "bitand" | "bitor" | "bitxor":
                sign = {"bitand": "&", "bitor": "|", "bitxor": "^"}[name]
                # Always with parentheses: their precedence is easily mistaken.
                return f"({self.text(e.args[0], UNARY)} {sign} {self.text(e.args[1], UNARY)})", ATOM
            case "bitnot":
                return self._narrowed(dtype, f"~{self.text(e.args[0], UNARY)}", UNARY)
            case "shl" | "shr":
                return self._shift(e)
        raise CompileError(f"{name} of {dtype} has no C form", where=str(e))

    def _wrapped(self, sign: str, level: int, e: Op) -> Text:
        """The text of an integer operation modulo 2^bits with the infix operator `sign`: computed unsigned for 32 and
        64 bits (where signed overflow is undefined), else in int."""
        dtype = e.dtype
        if dtype.kind == "uint" and dtype.bits >= 32:
            return self._infix(sign, level, e.args)
        if dtype.bits < 32 and not (sign == "*" and dtype.bits == 16):
            return self._narrowed(dtype, *self._infix(sign, level, e.args))
        return f"({VALUE_TYPES[dtype.name]})({self._modular(e)[0]})", UNARY

    def _modular(self, e: Expr) -> Text:
        """The text of a 32 or 64 bit integer (or a product of 16 bit ones) as an unsigned number; nested sums and
        products have no casts between."""
        if isinstance(e, Op) and e.name in _ARITHMETIC and not self.is_index(e):
            sign, level = _ARITHMETIC[e.name]
            parts = [self._modular(a) for a in e.args]
            left, right = (
                text if own >= least else f"({text})"
                for (text, own), least in zip(parts, (level, level + 1), strict=True)
            )
            return f"{left} {sign} {right}", level
        bits = max(32, e.dtype.bits)
        if isinstance(e, Const):
            return _int_literal(int(e.value) & ((1 << bits) - 1), u64 if bits == 64 else u32), ATOM
        return f"(uint{bits}_t){self.text(e, UNARY)}", UNARY

    def _narrowed(self, dtype: DType, text: str, level: int) -> Text:
        """The text that converts the int expression `text` to `dtype`, if that has fewer than 32 bits."""
        if dtype.bits >= 32:
            return text, level
        if dtype.bits < 8:
            return self.call(f"wrap_{dtype}", text)
        return f"({VALUE_TYPES[dtype.name]}){text if level >= UNARY else f'({text})'}", UNARY

    def _division(self, e: Op) -> Text:
        a, b = e.args
        dtype = e.dtype
        remainder = e.name in ("mod", "truncmod")
        divisor = bounds(b, self.extents)
        natural = dtype.kind == "uint" or self._at_least(a, 0)
        if natural and (as_int(b) or (divisor.lo is not None and divisor.lo > 0)):
            return self._infix("%" if remainder else "/", PRODUCT, e.args)
        family = ("umod" if remainder else "udiv") if dtype.kind == "uint" else e.name
        return self._narrowed_call(dtype, f"{family}_{_standard(dtype)}", a, b)

    def _narrowed_call(self, dtype: DType, helper: str, *args: Expr) -> Text:
        text, level = self.call(helper, *map(self.text, args))
        return self.call(f"wrap_{dtype}", text) if dtype.bits < 8 else (text, level)

    def _at_least(self, e: Expr, limit: int) -> bool:
        low = bounds(e, self.extents).lo if self.is_index(e) else None
        return low is not None and low >= limit

    def _shift(self, e: Op) -> Text:
        a, b = e.args
        dtype = e.dtype
        amount = as_int(b)
        if amount is None or not 0 <= amount < dtype.bits:
            if dtype.bits < 8:
                raise CompileError(f"{e.name} of {dtype} by a variable has no C form", where=str(e))
            return self.call(f"{e.name}_{dtype}", self.text(a), self.text(b))
        if e.name == "shr":
            return f"({self.text(a, UNARY)} >> {amount})", ATOM
        kind = f"uint{max(32, dtype.bits)}_t"
        shifted = f"(({kind}){self.text(a, UNARY)} << {amount})"
        if dtype.bits < 8:
            return self.call(f"wrap_{dtype}", f"(int){shifted}")
        return f"({VALUE_TYPES[dtype.name]}){shifted}", UNARY

    # Conversions

    def _cast(self, value: Expr, target: DType) -> Text:
        source = value.dtype
        if target is source:
            return self._emit(value)
        if target is boolean:
            zero = "0" if not source.is_float else "0.0" if source is f64 else "0.0f"
            return f"{self.text(value, COMPARE + 1)} != {zero}", EQUAL
        if target in (f16, bf16):
            wide = self._cast(value, f64 if source is f64 else f32)[0]
            return self.call(f"round_{target}", wide)
        if target.is_float:
            if VALUE_TYPES[source.name] == VALUE_TYPES[target.name]:
                return self._emit(value)
            return f"({VALUE_TYPES[target.name]}){self.text(value, UNARY)}", UNARY
        if source.is_float:
            return self.call(f"{'f64' if source is f64 else 'f32'}_to_{target}", self.text(value))
        if target.bits < 8:
            return self.call(f"wrap_{target}", f"(int){self.text(value, UNARY)}")
        return f"({VALUE_TYPES[target.name]}){self.text(value, UNARY)}", UNARY


def _standard(dtype: DType) -> str:
    """The name of the type whose C functions serve `dtype`: its own, but 8-bit integers for 4-bit ones."""
    return f"{dtype.name[0]}8" if dtype.bits < 8 else dtype.name


def _int_literal(value: int, dtype: DType) -> str:
    if dtype.kind == "uint":
        return f"UINT64_C({value})" if dtype.bits == 64 else f"{value}u" if dtype.bits == 32 else str(value)
    if value == -(1 << 63):
        return "INT64_MIN"
    return "INT32_MIN" if value == -(1 << 31) else str(value)
