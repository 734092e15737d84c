"""Rules for arithmetic, comparison, logic and elementwise functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.frontend.common.arithmetic import floored_remainder, small_power
from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.registry import RULES, rule
from tilewright.ir.attributes import same
from tilewright.ir.dtype import boolean, f32
from tilewright.ir.functions import by_name_in
from tilewright.ir.graph import Value
from tilewright.ops.pointwise import ACTIVATIONS

# Functions of real numbers: integers become floating-point numbers first.
_REAL = by_name_in("aten") | {known.aten: ours for ours, known in ACTIVATIONS.items() if known.aten}

# Functions that keep the type.
_SAME = {"abs": "abs", "neg": "neg", "negative": "neg", "relu": "relu"}
_ROUNDING = {"ceil": "ceil", "floor": "floor", "round.default": "round"}
_COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_LONG = {"not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"}
_LOGIC = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
_BITS = {"bitwise_and": ("bitand", "and"), "bitwise_or": ("bitor", "or"), "bitwise_xor": ("bitxor", "xor")}


def _real(op: str) -> Callable[[Call, Value], Value]:
    return lambda n, x: n.emit(op, n.floats(x))


def _same(op: str) -> Callable[[Call, Value], Value]:
    return lambda n, x: n.emit(op, x)


def _rounding(op: str) -> Callable[[Call, Value], Value]:
    return lambda n, x: n.emit(op, x) if x.dtype.is_float else x


def _compare(op: str) -> Callable[[Call, Operand, Operand], Value]:
    def run(n: Call, a: Operand, b: Operand) -> Value:
        x, y = n.together(a, b)
        if x.dtype is boolean:
            if op == "ne":
                return n.emit("xor", x, y)
            if op == "eq":
                return n.emit("not", n.emit("xor", x, y))
            x, y = (n.cast(v, f32) for v in (x, y))
        return n.emit(op, x, y)

    return run


def _logic(op: str) -> Callable[[Call, Value, Value], Value]:
    return lambda n, a, b: n.emit(op, n.cast(a, boolean), n.cast(b, boolean))


def _bits(op: str, logical: str) -> Callable[[Call, Operand, Operand], Value]:
    def run(n: Call, a: Operand, b: Operand) -> Value:
        x, y = n.together(a, b)
        return n.emit(logical if x.dtype is boolean else op, x, y)

    return run


for _names, _make in ((_REAL, _real), (_SAME, _same), (_ROUNDING, _rounding), (_COMPARE, _compare), (_LOGIC, _logic)):
    for _aten, _ours in _names.items():
        RULES[_aten] = _make(_ours)
for _aten, _ours in _LONG.items():
    RULES[_aten] = _compare(_ours)
for _aten, _pair in _BITS.items():
    RULES[_aten] = _bits(*_pair)


# --- arithmetic -----------------------------------------------------------------------------------------------------


def _binary(n: Call, op: str, a: Operand, b: Operand) -> Value:
    return n.emit(op, n.operand(a, n.dtype), n.operand(b, n.dtype))


def _scaled(n: Call, b: Operand, alpha: Any) -> Operand:
    """alpha * b, for the second operand of `add` and `sub`."""
    if not isinstance(b, Value):
        scaled: Operand = b * alpha
        return scaled
    b = n.cast(b, n.dtype)
    return n.emit("mul", b, n.like(alpha, b))


def _with_scaled(n: Call, op: str, a: Operand, b: Operand, alpha: Any) -> Value:
    if same(alpha, 1):
        return _binary(n, op, a, b)
    return n.single(lambda n, a, b: _binary(n, op, a, _scaled(n, b, alpha)), a, b)  # type: ignore[no-any-return]


@rule("add")
def add(n: Call, a: Operand, b: Operand, alpha: Any = 1) -> Value:
    if n.dtype is boolean:
        x, y = n.operand(a, boolean), n.operand(b, boolean)
        return n.emit("or", x, y if alpha else n.emit("and", y, n.like(False, y)))
    return _with_scaled(n, "add", a, b, alpha)


@rule("sub", "subtract")
def sub(n: Call, a: Operand, b: Operand, alpha: Any = 1) -> Value:
    return _with_scaled(n, "sub", a, b, alpha)


@rule("rsub")
def rsub(n: Call, a: Operand, b: Operand, alpha: Any = 1) -> Value:
    return _with_scaled(n, "sub", b, a, alpha)


@rule("mul", "multiply")
def mul(n: Call, a: Operand, b: Operand) -> Value:
    if n.dtype is boolean:
        return n.emit("and", n.operand(a, boolean), n.operand(b, boolean))
    return _binary(n, "mul", a, b)


@rule("div", "divide", "true_divide")
def div(n: Call, a: Operand, b: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return floor_divide(n, a, b)
    if rounding_mode is None:
        return _binary(n, "div", a, b)
    if n.dtype.is_int:
        return _binary(n, "truncdiv", a, b)
    return n.single(lambda n, a, b: _truncated(n, _binary(n, "div", a, b)), a, b)  # type: ignore[no-any-return]


@rule("floor_divide", single=True)
def floor_divide(n: Call, a: Operand, b: Operand) -> Value:
    """Python's `//` of floats: (a - remainder) / b, which is more exact than rounding the quotient (1 // 0.1 is 9);
    where `b` is zero, a / b."""
    if n.dtype.is_int:
        return _binary(n, "floordiv", a, b)
    x, y = n.operand(a, n.dtype), n.operand(b, n.dtype)
    zero, one = n.like(0.0, x), n.like(1.0, x)
    rest, quotient = n.emit("fmod", x, y), n.emit("div", x, y)
    whole = n.emit("div", n.emit("sub", x, rest), y)
    crossed = n.emit("xor", n.emit("lt", rest, zero), n.emit("lt", y, zero))
    whole = n.emit("select", n.emit("and", crossed, n.emit("ne", rest, zero)), n.emit("sub", whole, one), whole)
    low = n.emit("floor", whole)
    low = n.emit("select", n.emit("gt", n.emit("sub", whole, low), n.like(0.5, x)), n.emit("add", low, one), low)
    none = n.emit("mul", quotient, zero)  # with the sign of the quotient
    low = n.emit("select", n.emit("eq", whole, zero), none, low)
    return n.emit("select", n.emit("eq", y, zero), quotient, low)


@rule("round.decimals", single=True)
def round_decimals(n: Call, x: Value, decimals: int = 0) -> Value:
    """`x` rounded to `decimals` decimal places, by scaling as PyTorch does."""
    if decimals == 0 or not x.dtype.is_float:
        return n.emit("round", x) if x.dtype.is_float else x
    factor = n.like(10.0 ** abs(decimals), x)
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    return n.emit(back, n.emit("round", n.emit(there, x, factor)), factor)


@rule("trunc", "fix")
def trunc(n: Call, x: Value) -> Value:
    return _truncated(n, x) if x.dtype.is_float else x


def _truncated(n: Call, x: Value) -> Value:
    """`x` rounded towards zero."""
    return n.emit("select", n.emit("lt", x, n.like(0.0, x)), n.emit("ceil", x), n.emit("floor", x))


@rule("frac")
def frac(n: Call, x: Value) -> Value:
    return n.emit("sub", x, _truncated(n, x))


@rule("fmod")
def fmod(n: Call, a: Operand, b: Operand) -> Value:
    return _binary(n, "fmod" if n.dtype.is_float else "truncmod", a, b)


@rule("remainder", single=True)
def remainder(n: Call, a: Operand, b: Operand) -> Value:
    """The remainder of `a` by `b` with the sign of the divisor, as Python's `%`."""
    if n.dtype.is_int:
        return _binary(n, "mod", a, b)
    x, y = n.operand(a, n.dtype), n.operand(b, n.dtype)
    return floored_remainder(n, x, y)


@rule("pow")
def power(n: Call, a: Operand, b: Operand) -> Value:
    """`a` to the power `b`; small exponents that are known become products and roots."""
    t = n.dtype
    if isinstance(a, Value) and isinstance(b, int | float):
        simple = n.single(_simple_power, n.cast(a, t), float(b))
        if simple is not None:
            return simple  # type: ignore[no-any-return]
    if t.is_int:
        base = n.operand(a, t)
        return _known_power(n, base, b) if isinstance(b, int) else _integer_power(n, base, n.operand(b, t))
    return _binary(n, "pow", a, b)


def _known_power(n: Call, x: Value, exponent: int) -> Value:
    """`x`, integers, to the power `exponent`, which is not negative, by repeated squaring."""
    if exponent < 0:
        raise n.unsupported("of integers to a power below 0", got=exponent)
    result, square = None, x
    while exponent:
        if exponent & 1:
            result = square if result is None else n.emit("mul", result, square)
        exponent >>= 1
        square = n.emit("mul", square, square) if exponent else square
    return n.filled(1, x.dtype, x.shape) if result is None else result


def _integer_power(n: Call, a: Value, b: Value) -> Value:
    """An integer power by repeated squaring, selected by the bits of the exponent; overflow wraps around. For negative
    exponents, 1 and -1 have their powers and all else gives 0 (`powi` of ATen's Pow.h)."""
    one, zero, minus = n.like(1, a), n.like(0, a), n.like(-1 if a.dtype.kind == "int" else 1, a)
    bits = b.dtype.bits - (b.dtype.kind == "int")
    result, square = n.broadcast(one, n.shape), a
    for k in range(bits):
        chosen = n.emit("ne", n.emit("bitand", b, n.like(1 << k, b)), zero)
        result = n.emit("mul", result, n.emit("select", chosen, square, one))
        square = n.emit("mul", square, square) if k < bits - 1 else square
    odd = n.emit("ne", n.emit("bitand", b, one), zero)
    unit = n.emit("or", n.emit("eq", a, one), n.emit("and", n.emit("eq", a, minus), odd))
    even = n.emit("select", n.emit("eq", a, minus), one, zero)
    return n.emit("select", n.emit("lt", b, zero), n.emit("select", unit, a, even), result)


def _simple_power(n: Call, x: Value, exponent: float) -> Value | None:
    if exponent == 0:
        return n.filled(1, x.dtype, x.shape)
    if x.dtype.is_float and exponent in (-0.5, -2):
        return n.emit("reciprocal", small_power(n, x, -exponent))
    return small_power(n, x, exponent)


@rule("square")
def square(n: Call, x: Value) -> Value:
    return n.emit("mul", x, x)


@rule("rsqrt", single=True)
def rsqrt(n: Call, x: Value) -> Value:
    return n.emit("reciprocal", n.emit("sqrt", n.floats(x)))


@rule("addcmul", single=True)
def addcmul(n: Call, x: Value, a: Value, b: Value, value: Any = 1) -> Value:
    product = n.emit("mul", n.cast(a, n.dtype), n.cast(b, n.dtype))
    scaled = product if same(value, 1) else n.emit("mul", product, n.like(value, product))
    return n.emit("add", n.cast(x, n.dtype), scaled)


@rule("addcdiv", single=True)
def addcdiv(n: Call, x: Value, a: Value, b: Value, value: Any = 1) -> Value:
    quotient = n.emit("div", n.cast(a, n.dtype), n.cast(b, n.dtype))
    scaled = quotient if same(value, 1) else n.emit("mul", quotient, n.like(value, quotient))
    return n.emit("add", n.cast(x, n.dtype), scaled)


@rule("lerp", single=True)
def lerp(n: Call, start: Value, end: Value, weight: Operand) -> Value:
    distance = n.emit("sub", end, start)
    return n.emit("add", start, n.emit("mul", distance, n.operand(weight, start.dtype)))


@rule("maximum", "max.other")
def maximum(n: Call, a: Value, b: Value) -> Value:
    return _extreme(n, "max", a, b)


@rule("minimum", "min.other")
def minimum(n: Call, a: Value, b: Value) -> Value:
    return _extreme(n, "min", a, b)


def _extreme(n: Call, op: str, a: Operand, b: Operand) -> Value:
    if n.dtype is boolean:
        op = "or" if op == "max" else "and"
    return _binary(n, op, a, b)


# --- exponentials, logarithms ---------------------------------------------------------------------------------------


@rule("exp2", "special_exp2")
def exp2(n: Call, x: Value) -> Value:
    return n.emit("exp2", n.floats(x))


@rule("expm1", "special_expm1")
def expm1(n: Call, x: Value) -> Value:
    return n.emit("expm1", n.floats(x))


@rule("log2")
def log2(n: Call, x: Value) -> Value:
    return n.emit("log2", n.floats(x))


@rule("log10", single=True)
def log10(n: Call, x: Value) -> Value:
    x = n.floats(x)
    return n.emit("mul", n.emit("log", x), n.like(1 / math.log(10), x))


@rule("log_sigmoid", single=True)
def log_sigmoid(n: Call, x: Value) -> Value:
    """-softplus(-x)"""
    return n.emit("neg", n.emit("softplus", n.emit("neg", x)))


@rule("softplus", single=True)
def softplus(n: Call, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    """log(1 + exp(beta x)) / beta; above the threshold, where PyTorch gives x, the two agree to the last digit."""
    if threshold < 16 and threshold < (36 if x.dtype.bits == 64 else 16):
        raise n.unsupported("with a low threshold", got=threshold)
    if same(beta, 1):
        return n.emit("softplus", x)
    return n.emit("mul", n.emit("softplus", n.emit("mul", x, n.like(beta, x))), n.like(1 / beta, x))


@rule("sinc", "special_sinc", single=True)
def sinc(n: Call, x: Value) -> Value:
    """sin(pi x) / (pi x), and 1 at 0, where the gradient is 0."""
    x = n.floats(x)
    origin, one = n.emit("eq", x, n.like(0, x)), n.like(1, x)
    angle = n.emit("mul", n.emit("select", origin, one, x), n.like(math.pi, x))
    return n.emit("select", origin, one, n.emit("div", n.emit("sin", angle), angle))


@rule("atan2", "arctan2")
def atan2(n: Call, y: Value, x: Value) -> Value:
    return n.emit("atan2", n.operand(y, n.dtype), n.operand(x, n.dtype))


# --- signs, logic, bits ----------------------------------------------------------------------------------------------


@rule("sign", "sgn")
def sign(n: Call, x: Value) -> Value:
    """The sign; 0 for NaN as in PyTorch, while NumPy and ONNX return NaN."""
    if x.dtype is boolean:
        return x
    result = n.emit("sign", x)
    return n.emit("select", n.emit("isnan", x), n.like(0, x), result) if x.dtype.is_float else result


@rule("logical_not")
def logical_not(n: Call, x: Value) -> Value:
    return n.emit("not", n.cast(x, boolean))


@rule("bitwise_not")
def bitwise_not(n: Call, x: Value) -> Value:
    return n.emit("not" if x.dtype is boolean else "bitnot", x)


@rule("__lshift__", "bitwise_left_shift")
def shift_left(n: Call, a: Value, b: Operand) -> Value:
    return _binary(n, "shl", a, b)


@rule("__rshift__", "bitwise_right_shift")
def shift_right(n: Call, a: Value, b: Operand) -> Value:
    return _binary(n, "shr", a, b)
