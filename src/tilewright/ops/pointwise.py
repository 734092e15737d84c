"""Pointwise operators with broadcasting: those of `ir.scalar_ops.OPS`, and activations composed of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np

from tilewright.ir.attributes import Attrs, Number
from tilewright.ir.dtype import DType, boolean, f32
from tilewright.ir.expr import Expr, call, cast, const, maximum, minimum, select
from tilewright.ir.graph import TensorType
from tilewright.ir.scalar_ops import OPS
from tilewright.ops.dims import broadcast_index, broadcast_shapes, check_kind, need, present, same_dtype, scalar, wide
from tilewright.ops.minifloat import Rounding, decoded, encoded, encoded_numpy
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import DTypeError
from tilewright.te import Tensor, compute

Scalars = Sequence[Expr]
Body = Callable[[Scalars, Any], Expr]
TypeRule = Callable[[Sequence[TensorType], Attrs], DType]

Functions = tuple[tuple[str, tuple[tuple[str, Number], ...]], ...]
"""(operator, its attributes) of several pointwise operators, as an attribute of another operator: a cell's
activations."""

BODIES: dict[str, Body] = {}
"""For each pointwise operator, the function that builds its scalar expression."""


def _arity(types: Types, arity: int) -> list[TensorType]:
    if len(types) != arity:
        raise DTypeError("wrong number of operands", expected=arity, got=len(types))
    return [present(t) for t in types]


def _wide(e: Expr) -> Expr:
    return cast(e, f32) if e.dtype.is_float and e.dtype.bits == 16 else e


def pointwise(
    name: str,
    arity: int,
    body: Body,
    reference: Callable[..., Any],
    result: TypeRule,
    kind: type[Attrs] = Attrs,
) -> OpDef[Any]:
    """Register the pointwise operator `name` with `arity` operands and attributes of the class `kind`, and return it:
    `body` computes an element of the result from elements of the operands, `reference` does so in NumPy, and `result`
    is its type rule."""

    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        input_types = _arity(types, arity)
        layout = next((t.layout for t in input_types if t.layout), "")
        return (TensorType(result(input_types, attrs), broadcast_shapes(*(t.shape for t in input_types)), layout),)

    def tensor_expression(inputs: Sequence[Tensor | None], attrs: Attrs, out: tuple[TensorType, ...]) -> Any:
        tensors = [need(t) for t in inputs]
        (type,) = out

        def element(*point: Expr) -> Expr:
            args = [_wide(t[broadcast_index(t, point, type.shape)]) for t in tensors]
            return cast(body(args, attrs), type.dtype)

        return (compute(type.shape, element, name=name),)

    def numpy(arrays: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
        types = [TensorType(_dtype_of(a), ()) for a in arrays]
        value = reference(*(wide(a) for a in arrays), **attrs.values())
        return (np.asarray(value).astype(result(types, attrs).numpy),)

    numpy.__module__ = body.__module__  # the room that the operator is of
    BODIES[name] = body
    return register(OpDef(name, "pointwise", kind, infer, numpy, compute=tensor_expression))


def _dtype_of(array: Any) -> DType:
    from tilewright.ir.dtype import dtype

    return dtype(np.asarray(array).dtype)


def same(*kinds: str) -> TypeRule:
    """A type rule: all operands have one type, which is of one of these kinds and also the type of the result."""

    def rule(types: Sequence[TensorType], attrs: Attrs) -> DType:
        t = same_dtype(types)
        check_kind(t, kinds)
        return t

    return rule


def to_bool(*kinds: str) -> TypeRule:
    """A type rule: all operands have one type of one of these kinds; the result is bool."""
    operands = same(*kinds)

    def rule(types: Sequence[TensorType], attrs: Attrs) -> DType:
        operands(types, attrs)
        return boolean

    return rule


_real = same("float")


def _quiet(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **attrs: Any) -> Any:
        with np.errstate(all="ignore"):
            return f(*args, **attrs)

    return run


def _scalar_operator(name: str) -> None:
    info = OPS[name]
    rule = to_bool(*info.kinds) if info.rule == "bool" else same(*info.kinds)
    pointwise(name, info.arity, lambda x, _: call(name, *x), _quiet(info.numpy), rule)


_INNER = ("fma", "scaleb", "larger", "exp_nonpositive", "gelu", "gelu_tanh")
"""Scalar operators without a graph operator of the same name."""

for _name, _info in OPS.items():
    if _info.rule in ("same", "bool", "logic") and _name not in _INNER:
        _scalar_operator(_name)


pointwise("identity", 1, lambda x, _: x[0], lambda x: x, same("float", "int", "uint", "bool", "minifloat"))
pointwise("stop_gradient", 1, lambda x, _: x[0], lambda x: x, same("float"))
pointwise(
    "surrogate",  # the value of the first, through which gradients flow as if it were the second
    2,
    lambda x, _: x[0],
    lambda x, like: np.broadcast_to(x, np.broadcast_shapes(np.shape(x), np.shape(like))),
    same("float"),
)


# --- selection and conversion ---------------------------------------------------------------------------------------


def _select_type(types: Sequence[TensorType], attrs: Attrs) -> DType:
    if types[0].dtype is not boolean:
        raise DTypeError("the condition must be bool", got=types[0].dtype)
    return same_dtype(types[1:])


def _cast_numpy(x: Any, dtype: DType) -> Any:
    """A cast in NumPy: floats become integers by truncation and saturation, NaN becomes 0; integers wrap around."""
    array = np.asarray(x)
    if dtype.is_int and not np.issubdtype(array.dtype, np.integer) and array.dtype != np.bool_:
        wide_values = array.astype(np.float64)
        inside = np.where(np.isnan(wide_values), 0.0, np.trunc(wide_values))
        low, high = int(dtype.min), int(dtype.max)
        exact = np.where((inside > low) & (inside < high), inside, 0.0).astype(np.int64 if low < 0 else np.uint64)
        limits = np.where(inside >= high, high, low).astype(exact.dtype)
        return np.where((inside > low) & (inside < high), exact, limits).astype(dtype.numpy)
    if dtype is boolean:
        return array.astype(np.float64) != 0 if dtype is not _dtype_of(array) else array
    if dtype.is_int and dtype.bits < 8:
        return array.astype(np.int64).astype(np.uint8).astype(dtype.numpy)
    return array.astype(dtype.numpy)


@dataclass(frozen=True, slots=True)
class CastAttrs(Attrs):
    """Attributes of `cast`. `dtype`: the result's element type. `bits`: the bits are reinterpreted instead of
    converting the value. For small floats: `saturate` says whether a number out of range becomes the nearest one in it,
    instead of infinity or NaN where the type has these; `rounding` how f8e8m0 rounds (others round to nearest even)."""

    dtype: DType
    bits: bool = False
    saturate: bool = True
    rounding: Rounding = "up"


def _bitcast_type(types: Sequence[TensorType], attrs: CastAttrs) -> DType:
    to = attrs.dtype
    if to.bits != types[0].dtype.bits:
        raise DTypeError("a bit cast keeps the width", expected=f"{types[0].dtype.bits} bits", got=to)
    return to


pointwise("select", 3, lambda x, _: select(x[0], x[1], x[2]), np.where, _select_type)
pointwise("xor", 2, lambda x, _: call("ne", x[0], x[1]), np.logical_xor, same("bool"))


def _register_casts() -> None:
    def infer(types: Types, attrs: CastAttrs) -> tuple[TensorType, ...]:
        (t,) = _arity(types, 1)
        to = _bitcast_type([t], attrs) if attrs.bits else attrs.dtype
        return (TensorType(to, t.shape, t.layout),)

    def element(x: Expr, attrs: CastAttrs) -> Expr:
        from tilewright.ir.expr import Op

        if attrs.bits:
            return Op("bitcast", (x,), attrs.dtype)
        if x.dtype is attrs.dtype:
            return x
        if x.dtype.is_minifloat:
            x = decoded(x)
        if attrs.dtype.is_minifloat:
            return encoded(cast(x, f32), attrs.dtype, attrs.saturate, attrs.rounding)
        return cast(x, attrs.dtype)

    def tensor_expression(inputs: Sequence[Tensor | None], attrs: CastAttrs, out: tuple[TensorType, ...]) -> Any:
        x = need(inputs[0])
        return (compute(x.shape, lambda *i: element(x[i], attrs), name="cast"),)

    def numpy(arrays: Sequence[Any], attrs: CastAttrs) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):
            if attrs.bits:
                return (np.asarray(arrays[0]).view(attrs.dtype.numpy),)
            x = np.asarray(arrays[0])
            if _dtype_of(x).is_minifloat and attrs.dtype is not _dtype_of(x):
                x = x.astype(np.float32)
            if attrs.dtype.is_minifloat and attrs.dtype is not _dtype_of(x):
                return (encoded_numpy(x, attrs.dtype, attrs.saturate, attrs.rounding),)
            return (_cast_numpy(x, attrs.dtype),)

    register(OpDef("cast", "pointwise", CastAttrs, infer, numpy, compute=tensor_expression))


_register_casts()


# --- activations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClipAttrs(Attrs):
    """Attributes of `clip`: the bounds `min` and `max`; None means no bound on that side."""

    min: int | float | None = None
    max: int | float | None = None


@dataclass(frozen=True, slots=True)
class AlphaAttrs(Attrs):
    """Attributes of activations with one parameter `alpha`: the slope or scale of `leaky_relu`, `elu`, `celu` and
    `swish`, the threshold of `thresholded_relu`."""

    alpha: float


@dataclass(frozen=True, slots=True)
class SeluAttrs(AlphaAttrs):
    """Attributes of `selu`: `gamma` times (x where x is positive, else `alpha` * (e^x - 1))."""

    gamma: float


@dataclass(frozen=True, slots=True)
class AlphaBetaAttrs(AlphaAttrs):
    """Attributes of activations with two parameters: `hard_sigmoid` is alpha * x + beta limited to [0, 1], `affine`
    alpha * x + beta, `scaled_tanh` alpha * tanh(beta * x)."""

    beta: float


@dataclass(frozen=True, slots=True)
class GeluAttrs(Attrs):
    """Attributes of `gelu`: "none" computes it by the error function, "tanh" by an approximation with tanh."""

    approximate: Literal["none", "tanh"] = "none"


@dataclass(frozen=True, slots=True)
class ShrinkAttrs(Attrs):
    """Attributes of `shrink`: x + bias where x < -lambd, x - bias where x > lambd, else 0."""

    lambd: float
    bias: float


@dataclass(frozen=True, slots=True)
class DetectInfAttrs(Attrs):
    """Attributes of `detect_inf`: whether positive infinities and whether negative ones are detected."""

    positive: bool = True
    negative: bool = True


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation in model formats. `onnx` and `aten`: the names of its operator in ONNX and in PyTorch's ATen, "" if
    there is none or a separate rule imports it; `defaults`: its attributes with their default values; `costly`: whether
    it is expensive to compute."""

    onnx: str = ""
    aten: str = ""
    defaults: Mapping[str, float] = field(default_factory=dict)
    costly: bool = False


UNNAMED = Activation()

ACTIVATIONS: dict[str, Activation] = {}
"""Activations by name, as importers, exporters and fusion read them: a new one is a new declaration below."""


def activation(
    name: str,
    body: Body,
    reference: Callable[..., Any],
    rule: TypeRule = _real,
    arity: int = 1,
    kind: type[Attrs] = Attrs,
    known: Activation = UNNAMED,
) -> None:
    pointwise(name, arity, body, _quiet(reference), rule, kind)
    ACTIVATIONS[name] = known


def _c(value: float, like: Expr) -> Expr:
    return scalar(value, like.dtype)


def _clip(x: Scalars, attrs: ClipAttrs) -> Expr:
    e = x[0]
    if attrs.min is not None:
        e = maximum(e, _c(attrs.min, e))
    if attrs.max is not None:
        e = minimum(e, _c(attrs.max, e))
    return e


def _clip_numpy(x: Any, min: Any = None, max: Any = None) -> Any:
    if min is not None:
        x = np.maximum(x, np.asarray(min, x.dtype))
    return x if max is None else np.minimum(x, np.asarray(max, x.dtype))


def _sign(e: Expr) -> Expr:
    zero = select(call("isnan", e), e, _c(0, e)) if e.dtype.is_float else _c(0, e)
    negative = zero if e.dtype.kind == "uint" else select(e < 0, _c(-1, e), zero)
    return select(e > 0, _c(1, e), negative)


def _softplus(e: Expr) -> Expr:
    return maximum(e, _c(0, e)) + call("log1p", call("exp", -call("abs", e)))


def _mish(e: Expr) -> Expr:
    """x tanh(log(1 + e^x)), as the quotient of ((1 + e^x)^2 - 1) and ((1 + e^x)^2 + 1), both times e^-2x for x > 0. No
    square of e^-|x| stands alone, as it would be subnormal from |x| = 44 on."""
    t, below = call("exp", -call("abs", e)), e < 0
    twice = t * 2.0
    above = select(below, t * (t + 2.0), twice + 1.0)
    return e * (above / select(below, above + 2.0, t * (twice + 2.0) + 1.0))


def _softplus_numpy(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


_GELU = {"none": "gelu", "tanh": "gelu_tanh"}
"""The scalar operator that computes GELU, by the attribute `approximate`."""


def _hard_sigmoid(e: Expr, alpha: float, beta: float) -> Expr:
    return minimum(maximum(_c(alpha, e) * e + _c(beta, e), _c(0, e)), _c(1, e))


def _isinf(e: Expr, attrs: DetectInfAttrs) -> Expr:
    positive = call("eq", e, _c(math.inf, e)) if attrs.positive else const(False)
    negative = call("eq", e, _c(-math.inf, e)) if attrs.negative else const(False)
    return positive | negative


activation(
    "relu",
    lambda x, _: maximum(x[0], _c(0, x[0])),
    lambda x: np.maximum(x, 0),
    same("float", "int"),
    known=Activation("Relu"),
)
activation("clip", _clip, _clip_numpy, same("float", "int", "uint"), kind=ClipAttrs)
activation("sign", lambda x, _: _sign(x[0]), np.sign, same("float", "int", "uint"), known=Activation("Sign"))
activation(
    "reciprocal", lambda x, _: _c(1, x[0]) / x[0], lambda x: 1 / x, known=Activation("Reciprocal", aten="reciprocal")
)
activation(
    "leaky_relu",
    lambda x, a: select(x[0] < 0, _c(a.alpha, x[0]) * x[0], x[0]),
    lambda x, alpha: np.where(x < 0, alpha * x, x),
    kind=AlphaAttrs,
    known=Activation("LeakyRelu", defaults={"alpha": 0.01}),
)
activation(
    "prelu",
    lambda x, _: select(x[0] < 0, x[1] * x[0], x[0]),
    lambda x, slope: np.where(x < 0, slope * x, x),
    same("float", "int", "uint"),
    arity=2,
)
activation(
    "elu",
    lambda x, a: select(x[0] > 0, x[0], _c(a.alpha, x[0]) * call("expm1", x[0])),
    lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x)),
    kind=AlphaAttrs,
    known=Activation("Elu", defaults={"alpha": 1.0}),
)
activation(
    "selu",
    lambda x, a: _c(a.gamma, x[0]) * select(x[0] > 0, x[0], _c(a.alpha, x[0]) * call("expm1", x[0])),
    lambda x, alpha, gamma: gamma * np.where(x > 0, x, alpha * np.expm1(x)),
    kind=SeluAttrs,
    known=Activation("Selu", defaults={"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}),
)
activation(
    "celu",
    lambda x, a: (
        maximum(x[0], _c(0, x[0])) + minimum(_c(a.alpha, x[0]) * call("expm1", x[0] / _c(a.alpha, x[0])), _c(0, x[0]))
    ),
    lambda x, alpha: np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha)),
    kind=AlphaAttrs,
    known=Activation("Celu", defaults={"alpha": 1.0}),
)
activation("softplus", lambda x, _: _softplus(x[0]), _softplus_numpy, known=Activation("Softplus", costly=True))
activation(
    "softsign",
    lambda x, _: x[0] / (_c(1, x[0]) + call("abs", x[0])),
    lambda x: x / (1 + np.abs(x)),
    known=Activation("Softsign"),
)
activation(
    "mish",
    lambda x, _: _mish(x[0]),
    lambda x: x * np.tanh(_softplus_numpy(x)),
    known=Activation("Mish", aten="mish", costly=True),
)
activation(
    "gelu",
    lambda x, a: call(_GELU[a.approximate], x[0]),
    lambda x, approximate="none": OPS[_GELU[approximate]].numpy(x),
    kind=GeluAttrs,
)
activation(
    "swish",
    lambda x, a: x[0] * call("sigmoid", _c(a.alpha, x[0]) * x[0]),
    lambda x, alpha: x * OPS["sigmoid"].numpy(alpha * x),
    kind=AlphaAttrs,
)
activation(
    "hard_sigmoid",
    lambda x, a: _hard_sigmoid(x[0], a.alpha, a.beta),
    lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    kind=AlphaBetaAttrs,
    known=Activation("HardSigmoid", defaults={"alpha": 0.2, "beta": 0.5}),
)
activation(
    "affine",
    lambda x, a: _c(a.alpha, x[0]) * x[0] + _c(a.beta, x[0]),
    lambda x, alpha, beta: alpha * x + beta,
    kind=AlphaBetaAttrs,
)
activation(
    "scaled_tanh",
    lambda x, a: _c(a.alpha, x[0]) * call("tanh", _c(a.beta, x[0]) * x[0]),
    lambda x, alpha, beta: alpha * np.tanh(beta * x),
    kind=AlphaBetaAttrs,
)
activation(
    "hard_swish",
    lambda x, _: x[0] * _hard_sigmoid(x[0], 1 / 6, 0.5),
    lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    known=Activation("HardSwish", aten="hardswish"),
)
activation(
    "thresholded_relu",
    lambda x, a: select(x[0] > _c(a.alpha, x[0]), x[0], _c(0, x[0])),
    lambda x, alpha: np.where(x > alpha, x, 0),
    kind=AlphaAttrs,
    known=Activation("ThresholdedRelu", defaults={"alpha": 1.0}),
)
activation(
    "shrink",
    lambda x, a: select(
        x[0] < _c(-a.lambd, x[0]),
        x[0] + _c(a.bias, x[0]),
        select(x[0] > _c(a.lambd, x[0]), x[0] - _c(a.bias, x[0]), _c(0, x[0])),
    ),
    lambda x, lambd, bias: np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)),
    same("float", "int"),
    kind=ShrinkAttrs,
)
activation(
    "detect_inf",
    lambda x, a: _isinf(x[0], a),
    lambda x, positive=True, negative=True: (positive & np.isposinf(x)) | (negative & np.isneginf(x)),
    to_bool("float"),
    kind=DetectInfAttrs,
)
