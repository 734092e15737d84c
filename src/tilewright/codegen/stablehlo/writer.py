"""`Writer`: lines of StableHLO, in MLIR's generic form, and the few shapes of operation that all rules are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType, boolean, i32
from tilewright.ir.expr import Const, Expr, Op, Var, as_expr, as_int
from tilewright.ir.graph import Value
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError

Shape = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of the text: its name there, element type and shape."""

    name: str
    dtype: DType
    shape: Shape

    @property
    def type(self) -> str:
        return tensor_type(self.dtype, self.shape)


def element(t: DType) -> str:
    """The MLIR name of an element type."""
    return "i1" if t is boolean else f"ui{t.bits}" if t.kind == "uint" else t.name


def tensor_type(t: DType, shape: Sequence[Expr]) -> str:
    sizes = [as_int(d) for d in shape]
    return f"tensor<{''.join('?x' if s is None else f'{s}x' for s in sizes)}{element(t)}>"


def ints(values: Sequence[int]) -> str:
    """The MLIR text of an attribute that is a list of integers."""
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def literal(array: Any, t: DType) -> str:
    """The elements of an array as a `dense` attribute: one number, or all bytes."""
    array = np.asarray(array)
    if array.size == 0:
        return "dense<>"
    if t is boolean:
        flat = ["true" if v else "false" for v in array.reshape(-1).tolist()]
        return f"dense<{flat[0]}>" if len(set(flat)) == 1 else f"dense<{_nested(flat, array.shape)}>"
    raw = np.ascontiguousarray(array)
    if t.bits >= 8 and raw.size > 1:
        return f'dense<"0x{raw.tobytes().hex().upper()}">'
    values = [_number(v, t) for v in raw.reshape(-1)]
    return f"dense<{values[0]}>" if len(set(values)) == 1 else f"dense<{_nested(values, array.shape)}>"


def _number(value: Any, t: DType) -> str:
    if t.is_float:
        bits = int.from_bytes(np.asarray(value).tobytes(), "little")
        return f"0x{bits:0{t.bits // 4}X}"
    return str(int(value))


def _nested(flat: Sequence[str], shape: Sequence[int]) -> str:
    if len(shape) <= 1:
        return f"[{', '.join(flat)}]"
    step = math.prod(shape[1:])
    return f"[{', '.join(_nested(flat[k * step : (k + 1) * step], shape[1:]) for k in range(shape[0]))}]"


@dataclass(slots=True)
class Writer:
    """Collects the lines of a function. `values` maps values of the graph to the tensors written for them, `symbols`
    the symbols of dimensions to their sizes as scalars."""

    lines: list[str] = field(default_factory=list)
    values: dict[Value, Ref] = field(default_factory=dict)
    symbols: dict[Var, Ref] = field(default_factory=dict)
    count: int = 0

    def fresh(self) -> str:
        self.count += 1
        return f"%{self.count - 1}"

    def op(self, name: str, operands: Sequence[Ref], t: DType, shape: Sequence[Expr], attrs: str = "") -> Ref:
        """Write the operation `name` on `operands`, with attributes `attrs` and one result of type `t` and shape
        `shape`, and return the result. A name without a dialect is an operation of StableHLO."""
        result = Ref(self.fresh(), t, tuple(shape))
        whole = name if "." in name else f"stablehlo.{name}"
        parameters = ", ".join(r.name for r in operands)
        kinds = ", ".join(r.type for r in operands)
        self.lines.append(
            f'{result.name} = "{whole}"({parameters}){attrs and f" {attrs}"} : ({kinds}) -> {result.type}'
        )
        return result

    # --- numbers and sizes --------------------------------------------------------------------------------------------

    def constant(self, array: Any, t: DType) -> Ref:
        array = np.asarray(array).astype(t.numpy)
        shape = tuple(as_expr(int(d)) for d in array.shape)
        result = Ref(self.fresh(), t, shape)
        text = literal(array, t)
        self.lines.append(
            f'{result.name} = "stablehlo.constant"() {{value = {text} : {result.type}}} : () -> {result.type}'
        )
        return result

    def full(self, number: Any, t: DType, shape: Sequence[Expr]) -> Ref:
        """A tensor of this type and shape that repeats one number."""
        return self.broadcast(self.constant(number, t), shape, ())

    def size(self, e: Expr) -> Ref:
        """A size as a scalar of i32. Raises UnsupportedError for operators that StableHLO's sizes lack."""
        match e:
            case Const(value):
                return self.constant(value, i32)
            case Var() if e in self.symbols:
                return self.symbols[e]
            case Op(name, args) if name in _SIZES:
                return self.op(_SIZES[name], [self.size(a) for a in args], i32, ())
        raise UnsupportedError("this size cannot be said in StableHLO", got=e)

    def sizes(self, shape: Sequence[Expr]) -> Ref:
        """A shape as a vector of i32, computed where sizes are symbolic."""
        if all(as_int(d) is not None for d in shape):
            return self.constant([as_int(d) for d in shape], i32)
        one = (as_expr(1),)
        parts = [self.op("reshape", [self.size(d)], i32, one) for d in shape]
        if len(parts) == 1:
            return parts[0]
        return self.op("concatenate", parts, i32, (as_expr(len(parts)),), "{dimension = 0 : i64}")

    # --- shapes -------------------------------------------------------------------------------------------------------

    def broadcast(self, x: Ref, shape: Sequence[Expr], places: Sequence[int]) -> Ref:
        """Write the broadcast of `x` to `shape`, in which `places` are the dimensions of `x`."""
        if tuple(shape) == x.shape:
            return x
        attrs = f"{{broadcast_dimensions = {ints(places)}}}"
        if all(as_int(d) is not None for d in shape):
            return self.op("broadcast_in_dim", [x], x.dtype, shape, attrs)
        return self.op("dynamic_broadcast_in_dim", [x, self.sizes(shape)], x.dtype, shape, attrs)

    def spread(self, x: Ref, shape: Sequence[Expr]) -> Ref:
        """Write the broadcast of `x` to `shape` by NumPy's rules."""
        offset = len(shape) - len(x.shape)
        return self.broadcast(x, shape, range(offset, len(shape)))

    def reshape(self, x: Ref, shape: Sequence[Expr]) -> Ref:
        if tuple(shape) == x.shape:
            return x
        if all(as_int(d) is not None for d in shape):
            return self.op("reshape", [x], x.dtype, shape)
        return self.op("dynamic_reshape", [x, self.sizes(shape)], x.dtype, shape)

    def transpose(self, x: Ref, perm: Sequence[int]) -> Ref:
        if list(perm) == list(range(len(x.shape))):
            return x
        return self.op("transpose", [x], x.dtype, [x.shape[p] for p in perm], f"{{permutation = {ints(perm)}}}")

    def iota(self, t: DType, shape: Sequence[Expr], axis: int) -> Ref:
        attrs = f"{{iota_dimension = {axis} : i64}}"
        if all(as_int(d) is not None for d in shape):
            return self.op("iota", [], t, shape, attrs)
        return self.op("dynamic_iota", [self.sizes(shape)], t, shape, attrs)

    def cast(self, x: Ref, t: DType) -> Ref:
        return x if x.dtype is t else self.op("convert", [x], t, x.shape)

    def binary(self, name: str, a: Ref, b: Ref) -> Ref:
        """Write the operation `name` on two tensors of equal type and shape."""
        return self.op(name, [a, b], a.dtype, a.shape)

    def compare(self, direction: str, a: Ref, b: Ref) -> Ref:
        kind = "FLOAT" if a.dtype.is_float else "UNSIGNED" if a.dtype.kind in ("uint", "bool") else "SIGNED"
        attrs = (
            f"{{comparison_direction = #stablehlo<comparison_direction {direction}>, "
            f"compare_type = #stablehlo<comparison_type {kind}>}}"
        )
        return self.op("compare", [a, b], boolean, a.shape, attrs)

    # --- regions ------------------------------------------------------------------------------------------------------

    def reduced(self, x: Ref, kind: str, start: Any, shape: Sequence[Expr], attrs: str, op: str = "reduce") -> Ref:
        """Write a reduction of `x`, whose body is the one operation `kind` and which begins with the number `start`,
        and return the result, of shape `shape`. `op` is "reduce" or "reduce_window"; `attrs` is the text of the
        operation's attributes."""
        scalar = tensor_type(x.dtype, ())
        begin = self.constant(start, x.dtype)
        result = Ref(self.fresh(), x.dtype, tuple(shape))
        self.lines += [
            f'{result.name} = "stablehlo.{op}"({x.name}, {begin.name}) ({{',
            f"^bb0(%a: {scalar}, %b: {scalar}):",
            f'  %c = "stablehlo.{kind}"(%a, %b) : ({scalar}, {scalar}) -> {scalar}',
            f'  "stablehlo.return"(%c) : ({scalar}) -> ()',
            f"}}) {attrs} : ({x.type}, {scalar}) -> {result.type}",
        ]
        return result


_SIZES = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "floordiv": "divide",
    "truncdiv": "divide",
    "mod": "remainder",
    "max": "maximum",
    "min": "minimum",
}
"""Arithmetic of sizes, which are not negative."""
