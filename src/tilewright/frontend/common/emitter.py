"""`Emitter`: how a rule of any frontend puts operators into the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilewright.arith.overflow import at_smallest
from tilewright.ir.dtype import DType, f64, i32, i64, u32
from tilewright.ir.expr import Expr, Var, as_expr, as_int, is_const
from tilewright.ir.graph import GraphBuilder, TensorType, Value
from tilewright.ir.rewrite import variables
from tilewright.ops.dims import dims, has_facts, known, with_facts
from tilewright.ops.registry import emit, emit1, infer
from tilewright.ops.rooms import add_room
from tilewright.runtime.specs import IMPOSSIBLE
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, ShapeError

MAX_BYTES = 1 << 33
"""The largest tensor, in bytes, that a model may have."""


@dataclass(slots=True)
class Emitter:
    """Appends operators to `builder`; what they compute is named after `hint`, the node that is being imported.

    `weights` holds the arrays of the builder's parameters by name.
    """

    builder: GraphBuilder
    weights: dict[str, Any]
    hint: str

    def emit(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        """Put an operator with one output into the graph."""
        value = self._cut((emit1(self.builder, op, *inputs, name=f"{self.hint}.{op}", **attrs),))[0]
        check_size(value.type)
        return value

    def emit_all(self, op: str, *inputs: Value | None, **attrs: Any) -> tuple[Value, ...]:
        values = self._cut(emit(self.builder, op, *inputs, names=[f"{self.hint}.{op}"] * 8, **attrs))
        for value in values:
            check_size(value.type)
        return values

    def _cut(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """The outputs `values` of the last node, whose sizes were simplified by assumed facts about symbols
        (`dims.with_facts`). Since passes do not know these facts, the node is given the sizes inferred without them,
        and slices cut its outputs to `values`' sizes."""
        if not has_facts():
            return values
        node = self.builder.nodes[-1]
        with with_facts(()):
            try:
                types = infer(node.op, [None if v is None else v.type for v in node.inputs], node.attrs)
            except ShapeError:
                return values
        if types == tuple(v.type for v in values):
            return values
        whole = tuple(Value(self.builder.fresh(v.name), t) for v, t in zip(values, types, strict=True))
        self.builder.nodes[-1] = replace(node, outputs=whole)
        return tuple(self._part(w, v) for w, v in zip(whole, values, strict=True))

    def _part(self, whole: Value, part: Value) -> Value:
        if whole.type == part.type:
            return whole
        begin, step = dims([0] * part.type.rank), (1,) * part.type.rank
        return emit1(self.builder, "slice", whole, name=part.name, begin=begin, size=part.shape, step=step)

    def constant(self, array: Any, t: DType | None = None) -> Value:
        """Add `array` to the graph as a constant, converted to the type `t` if that is given."""
        return self.emit("constant", value=np.asarray(array, None if t is None else t.numpy))

    def like(self, number: Any, value: Value) -> Value:
        """A scalar constant of `value`'s type."""
        return self.constant(number, value.dtype)

    def reshape(self, x: Value, shape: Sequence[Any]) -> Value:
        target = dims(shape)
        return x if target == x.shape else self.emit("reshape", x, shape=target)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        return x if list(perm) == list(range(len(perm))) else self.emit("transpose", x, perm=tuple(perm))

    def tile(self, x: Value, repeats: Sequence[Any]) -> Value:
        """`x` repeated along each dimension. Where sizes and repeats are numbers, a broadcast between two reshapes does
        it, which copies whole rows."""
        counts = dims(repeats)
        repeated = [not is_const(r, 1) for r in counts]
        if any(
            as_int(d) is None or as_int(r) is None for d, r, is_ in zip(x.shape, counts, repeated, strict=True) if is_
        ):
            return self.emit("tile", x, repeats=tuple(repeats))
        separate, wide, whole = list[Any](), list[Any](), list[Any]()
        for d, r in zip(x.shape, counts, strict=True):
            is_one = is_const(d, 1) or is_const(r, 1)
            separate += [d] if is_one else [1, d]
            wide += [d * r] if is_one else [r, d]
            whole.append(d * r)
        y = self.reshape(x, separate)
        return self.reshape(self.emit("broadcast", y, shape=dims(wide)), whole)

    def cast(self, x: Value, to: DType) -> Value:
        return x if x.dtype is to else self.emit("cast", x, dtype=to)

    def truncated(self, x: Value, to: DType) -> Value:
        """The floats `x` as integers of the type `to`. Beyond a type of fewer than 32 bits, or u32, they wrap, as in
        ONNX Runtime, NumPy and PyTorch on x86, which convert to a wider type first (docs/disagreements.md)."""
        wider = i32 if to.bits < 32 else i64 if to is u32 else to
        return self.cast(self.cast(x, wider), to)

    def slice(self, x: Value, axis: int, begin: Any, size: Any, step: int = 1) -> Value:
        """`size` elements of dimension `axis` from `begin` on, each `step`-th. Raises ShapeError without such a
        dimension."""
        if axis >= x.type.rank:
            raise ShapeError("the rank is too small", expected=f"more than {axis}", got=x.type)
        begins: list[Any] = [0] * x.type.rank
        sizes: list[Any] = list(x.shape)
        steps = [1] * x.type.rank
        begins[axis], sizes[axis], steps[axis] = begin, size, step
        if tuple(dims(sizes)) == x.shape and step == 1:
            return x
        return self.emit("slice", x, begin=dims(begins), size=dims(sizes), step=tuple(steps))

    def head(self, rows: Value, count: Value, *, reason: str = "") -> Value:
        """The first `count` of `rows`, where each call computes `count`. The result's size is a new symbol. `reason`:
        as in `HeadAttrs`."""
        return self.emit("head", rows, count, defines=Var(self.builder.fresh("_rows"), lo=0), reason=reason)

    def extent(self, count: Value) -> Expr:
        """A new symbol that stands for the scalar `count`, which each call computes (`ops/extent.py`). As nothing
        bounds it, memory for it grows by a room (`ops/rooms.py`). A call with a negative number raises CallError."""
        what = self.says(IMPOSSIBLE)
        reason = "" if what == IMPOSSIBLE else what
        return self.head(add_room(self.builder), self.reshape(count, ()), reason=reason).shape[0]

    def bounded(self, count: Value, bound: Any) -> Expr:
        """A new symbol whose value is the scalar `count` that each call computes, at most `bound`."""
        rows = self.emit("range", start=0, step=1, size=bound, dtype=i64)
        return self.head(rows, self.reshape(count, ())).shape[0]

    def require(self, x: Value, holds: Value, got: Value, what: str, expected: str = "") -> Value:
        """`x`, for which a call computes only if the condition `holds` (bool[]) is true; otherwise it ends with a
        CallError that says `what` and shows `got` (i64[] or f64[]), the number that the condition is about."""
        holds, got = self.reshape(holds, ()), self.reshape(got, ())
        return self.emit("require", x, holds, got, what=self.says(what), expected=expected)

    def says(self, what: str) -> str:
        """`what`, the message of a check; importers add the name of the operator that they import."""
        return what

    def within(self, number: Value, low: Any, high: Any, what: str, of: Value | None = None) -> Value:
        """`number`, a scalar that each call checks to be from `low` to `high` (numbers or sizes; one may be None). If a
        tensor is passed as `of`, that is returned instead: passes drop a check whose result is unused."""
        t = f64 if number.dtype.is_float else i64
        number = self.reshape(self.cast(number, t), ())
        both = self._inside(number, low, high)
        return self.require(number if of is None else of, both, number, what, _span(low, high))

    def all_within(self, numbers: Value, low: Any, high: Any, what: str, of: Value | None = None) -> Value:
        """`numbers`, a tensor of integers (perhaps empty) that each call checks to be from `low` to `high`; `what`
        names them in the error. `of`: as in `within`."""
        every = self.cast(numbers, i64)
        axes = tuple(range(every.type.rank))
        least, most = (self.emit(op, every, axes=axes, keepdims=False) for op in ("reduce_min", "reduce_max"))
        above, below = self._inside(least, low, None), self._inside(most, None, high)
        wrong = self.emit("select", above, most, least)
        both = self.emit("and", above, below)
        return self.require(numbers if of is None else of, both, wrong, what, _span(low, high))

    def nonempty(self, x: Value, axes: Sequence[int]) -> Value:
        """`x`, which has elements along each of `axes`, as is required to choose one of them. Raises ShapeError if it
        has none; sizes that may be 0 are checked by each call."""
        for axis in axes:
            what = "no element can be chosen along an empty dimension"
            if is_const(x.shape[axis], 0):
                raise ShapeError(what, got=f"dimension {axis} of {x.type}")
            if not known(x.shape[axis] >= 1):
                x = self.within(self.symbols([x.shape[axis]], i64, ()), 1, None, what, of=x)
        return x

    def _inside(self, number: Value, low: Any, high: Any) -> Value:
        """Whether `number`, a scalar, is from `low` to `high`; false for NaN."""
        holds = []
        for end, op in ((low, "ge"), (high, "le")):
            if end is not None:
                bound = self.symbols([end], i64, ()) if isinstance(end, Expr) else self.constant(end, number.dtype)
                holds.append(self.emit(op, number, self.cast(bound, number.dtype)))
        return holds[0] if len(holds) == 1 else self.emit("and", *holds)

    def symbols(self, values: Sequence[Any], t: DType, shape: Sequence[Any]) -> Value:
        """`values`, numbers and expressions of symbols, as a tensor of `shape` with element type `t`."""
        parts = [self.emit("range", start=as_expr(v), step=0, size=1, dtype=i64) for v in values]
        joined = parts[0] if len(parts) == 1 else self.emit("concat", *parts, axis=0)
        return self.reshape(self.cast(joined, t), shape)


def _span(low: Any, high: Any) -> str:
    """The range of allowed numbers from `low` to `high` in words, for a message; None stands for no limit."""
    if high is None:
        return f"at least {low}"
    return f"at most {high}" if low is None else f"{low} to {high}"


def check_size(t: TensorType) -> None:
    """Raise ModelError for a tensor of more than `MAX_BYTES`."""
    least = [at_smallest(d) for d in t.shape]
    if any(n is not None and n < 0 and not variables(d) for d, n in zip(t.shape, least, strict=True)):
        raise ModelError("a dimension is negative", got=t)
    total = prod(1 if n is None else n for n in least)
    if total * t.dtype.itemsize > MAX_BYTES:
        raise ModelError("the tensor is too large", expected=f"at most {MAX_BYTES} bytes", got=t)
