"""The meaning of a nest, in NumPy: every loop is an axis of one grid, reductions are over the last ones. It shares
nothing with the compiler but the syntax, and takes the memory of the whole grid."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.formulas.functions import BINARY, UNARY, conversion
from tilewright.formulas.nests import Nest
from tilewright.formulas.syntax import Apply, Name, Node, Number, Read, Reduction, Size, walk
from tilewright.ir.dtype import i64
from tilewright.ir.scalar_ops import OPS
from tilewright.support.classes import dataclass

Array = np.ndarray[Any, Any]

_SIGNS: dict[str, str] = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floordiv", "%": "mod", "**": "pow", "and": "and", "or": "or",
    "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne",
} | BINARY  # fmt: skip


def evaluate(
    nest: Nest, arrays: Mapping[str, Any], ranges: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]
) -> Array:
    """The result of a nest for `arrays`; `ranges` has for each index its first value and the number of its values."""
    with np.errstate(all="ignore"):
        return _Grid(nest, {n: np.asarray(a) for n, a in arrays.items()}, ranges, sizes).run()


@dataclass(frozen=True, slots=True)
class _Grid:
    nest: Nest
    arrays: Mapping[str, Array]
    ranges: Mapping[str, tuple[int, int]]
    sizes: Mapping[str, int]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.ranges[i][1] for i in self.nest.indices)

    def run(self) -> Array:
        nest = self.nest
        value = self.typed(self.value(nest.body))
        if nest.reducer is None:
            return np.array(np.broadcast_to(value, self.shape))
        kind = value.dtype
        value = value.astype(np.float32) if kind.itemsize == 2 and kind.kind not in "iu" else value
        value = np.broadcast_to(value, self.shape)
        retained = np.ones(self.shape, bool)
        if nest.condition is not None:
            retained = np.broadcast_to(self.value(nest.condition), self.shape)
        if nest.reducer in ("argmax", "argmin"):
            return self.position(value, retained)
        axes = tuple(range(len(nest.left), len(self.shape)))
        function, start = self.reducer(value.dtype)
        reduced = function.reduce(np.where(retained, value, start), axis=axes, initial=start, dtype=value.dtype)
        return np.asarray(reduced).astype(kind)

    def reducer(self, kind: np.dtype[Any]) -> tuple[Any, Any]:
        """NumPy's reduction function for the nest's reducer, and its initial value, for elements of type `kind`."""
        match self.nest.reducer:
            case "any":
                return np.logical_or, np.False_
            case "all":
                return np.logical_and, np.True_
            case "max" | "min" as name:
                limits = np.iinfo(kind) if kind.kind in "iu" else None
                low, high = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
                return (np.maximum, kind.type(low)) if name == "max" else (np.minimum, kind.type(high))
            case "prod":
                return np.multiply, kind.type(1)
        return np.add, kind.type(0)

    def position(self, value: Array, retained: Array) -> Array:
        """The rule of argmax and argmin: the first position of the extremum in `value`, or of a NaN, among the elements
        for which `retained` is true; -1 if there are none."""
        (index,) = self.nest.reduced
        start = self.ranges[index][0]
        _, worst = self.reducer_of_position(value.dtype)
        masked = np.where(retained, value, worst)
        hits = retained & (masked == self.extreme(masked))
        if value.dtype.kind not in "iu":
            hits = retained & ((masked == self.extreme(masked)) | np.isnan(masked))
        return np.where(hits.any(-1), hits.argmax(-1) + start, -1).astype(np.int64)

    def extreme(self, values: Array) -> Array:
        function = np.max if self.nest.reducer == "argmax" else np.min
        result: Array = function(values, axis=-1, keepdims=True)
        return result

    def reducer_of_position(self, kind: np.dtype[Any]) -> tuple[Any, Any]:
        limits = np.iinfo(kind) if kind.kind in "iu" else None
        low, high = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
        return None, kind.type(low if self.nest.reducer == "argmax" else high)

    # -- elements ------------------------------------------------------------------------------------------------------

    def typed(self, value: Any) -> Array:
        """`value` as an array; a Python number, from a literal, becomes an f32, i64 or bool."""
        if isinstance(value, np.ndarray | np.generic):
            return np.asarray(value)
        return np.asarray(value, np.float32 if isinstance(value, float) else None)

    def value(self, node: Node) -> Any:
        """The value of an expression: an array that broadcasts to the grid, or a Python number if it is a literal."""
        match node:
            case Number(value=value):
                return value
            case Name(name=name):
                return self.index(name) if name in self.ranges else np.int64(self.sizes[name])
            case Size(tensor=tensor, dim=dim):
                return np.int64(self.arrays[tensor].shape[dim])
            case Read():
                return self.read(node)
            case Reduction():
                raise AssertionError("nests have no reductions inside")
        args = [self.value(a) for a in node.args]
        return self.apply(node, args)

    def apply(self, node: Apply, args: list[Any]) -> Any:
        name = node.name
        kind = conversion(name)
        if kind is not None:
            if isinstance(args[0], float) and kind.is_float:
                return kind.numpy.type(args[0])  # a literal has no type to be rounded to before
            return _converted(self.typed(args[0]), kind.numpy)
        if name == "if":
            then, condition, orelse = args[0], args[1], args[2]
            then, orelse = _joined(then, orelse)
            return np.where(condition, self.typed(then), self.typed(orelse))
        if name == "not":
            return np.logical_not(args[0])
        if name == "neg":
            return -args[0]
        if name in ("abs", "relu") and not isinstance(args[0], np.ndarray | np.generic | bool):
            return abs(args[0]) if name == "abs" else max(args[0], 0)
        if name == "relu":
            return np.maximum(args[0], self.typed(args[0]).dtype.type(0))
        if name == "isfinite":
            return np.isfinite(self.typed(args[0]))
        if name in UNARY:
            value = self.typed(args[0])
            return OPS[UNARY[name]].numpy(value)
        a, b = _joined(*args)
        if not isinstance(a, np.ndarray | np.generic) and not isinstance(b, np.ndarray | np.generic):
            return _of_literals(name, a, b)
        return OPS[_SIGNS[name]].numpy(a, b)

    def index(self, name: str) -> Array:
        """The values of the index `name`, as an array along its axis of the grid."""
        start, count = self.ranges[name]
        shape = [1] * len(self.nest.indices)
        shape[self.nest.indices.index(name)] = count
        return np.arange(start, start + count, dtype=np.int64).reshape(shape)

    def read(self, node: Read) -> Array:
        array = self.arrays[node.tensor]
        place: list[Array] = []
        inside: Any = np.True_
        empty = False
        for index, extent in zip(node.indices, array.shape, strict=True):
            value = np.asarray(_converted(self.typed(self.value(index)), i64.numpy))
            gathers = any(isinstance(n, Read) for n in walk(index))
            if node.outside == "wrap":
                value = value % max(extent, 1)
            elif node.outside == "pad" and not gathers:
                inside = inside & (value >= 0) & (value < extent)
            elif not gathers and node.outside != "clamp":
                value = self.guarded(value, extent)
            place.append(np.clip(value, 0, max(extent - 1, 0)))
            empty = empty or extent == 0
        if empty:
            elements = np.zeros(np.broadcast_shapes(*(p.shape for p in place)), array.dtype)
        else:
            elements = np.asarray(array[tuple(place)])
        if node.outside == "pad":
            fill = 0 if node.fill is None else self.value(node.fill)
            return np.where(inside, elements, np.asarray(fill).astype(array.dtype))
        return elements

    def guarded(self, value: Array, extent: int) -> Array:
        """The indices `value` clamped to 0..extent, since the branch of a selection that is not taken may read out of
        bounds."""
        return np.clip(value, 0, max(extent - 1, 0))


def _joined(a: Any, b: Any) -> tuple[Any, Any]:
    """The operands `a` and `b` in one type: a literal takes the type of the other operand."""
    if isinstance(a, np.ndarray | np.generic) and not isinstance(b, np.ndarray | np.generic):
        return a, a.dtype.type(b)
    if isinstance(b, np.ndarray | np.generic) and not isinstance(a, np.ndarray | np.generic):
        return b.dtype.type(a), b
    return a, b


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "min": min, "max": max,
}  # fmt: skip


def _of_literals(name: str, a: Any, b: Any) -> Any:
    """The result of the operator `name` on two literals: a Python number, or an element of their common type."""
    if name in _OPERATORS and not isinstance(a, bool) and not isinstance(b, bool):
        return _OPERATORS[name](a, b)
    kind = np.float32 if isinstance(a, float) or isinstance(b, float) else None
    return OPS[_SIGNS[name]].numpy(np.asarray(a, kind), np.asarray(b, kind))


def _converted(value: Array, kind: np.dtype[Any]) -> Array:
    """`value` converted to the type `kind` as the compiler does: floats to integers truncate, saturate, and make 0 of
    NaN."""
    if kind.kind in "iu" and value.dtype.kind not in "iub":
        limits = np.iinfo(kind)
        wide = np.nan_to_num(np.trunc(value.astype(np.float64)), nan=0.0)
        inside = np.where((wide > limits.min) & (wide < limits.max), wide, 0).astype(kind)
        created = np.where(wide >= limits.max, limits.max, np.where(wide <= limits.min, limits.min, inside))
        return created.astype(kind)
    return value.astype(kind)
