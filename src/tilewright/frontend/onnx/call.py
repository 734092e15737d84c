"""`Call`: one ONNX node as a rule sees it - its inputs, attributes, and how to put operators into the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.onnx.scope import Item
from tilewright.ir.dtype import DType, i64
from tilewright.ir.expr import Expr, as_expr, as_int
from tilewright.ir.graph import GraphBuilder, TensorType, Value
from tilewright.ops.dims import dims
from tilewright.ops.registry import emit, emit1
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError

MAX_CONSTANT = 64
"""Arrays of more elements become parameters rather than constants of the graph."""

MAX_BYTES = 1 << 33
"""No single tensor may be larger."""


@dataclass(slots=True)
class Call:
    """A node being imported. Rules read inputs and attributes here and emit operators; attributes that a rule never
    asks for are reported as unsupported."""

    node: onnx.NodeProto
    opset: int
    items: list[Item | None]
    attributes: dict[str, Any]
    builder: GraphBuilder
    weights: dict[str, Any]
    outputs: int
    hint: str
    asked: set[str] = field(default_factory=set)

    # --- inputs -------------------------------------------------------------------------------------------------------

    def has(self, i: int) -> bool:
        return i < len(self.items) and self.items[i] is not None

    def item(self, i: int) -> Item:
        found = self.items[i] if i < len(self.items) else None
        if found is None:
            raise ModelError(f"input {i} is missing")
        return found

    def value(self, i: int) -> Value:
        """Input `i` as a value of the graph."""
        return self.materialize(self.item(i))

    def optional(self, i: int) -> Value | None:
        return self.value(i) if self.has(i) else None

    def values(self) -> list[Value]:
        """All inputs."""
        return [self.value(i) for i in range(len(self.items))]

    def type(self, i: int) -> TensorType:
        return self.item(i).type

    def shape(self, i: int) -> tuple[Expr, ...]:
        return self.item(i).type.shape

    def rank(self, i: int) -> int:
        return self.item(i).type.rank

    def dtype(self, i: int) -> DType:
        return self.item(i).type.dtype

    def known(self, i: int) -> Any:
        """The array of input `i` when it is known: numeric, or objects with expressions. None: absent or not known."""
        return self.item(i).known if self.has(i) else None

    def structure(self, i: int, what: str) -> Any:
        """A known input that decides the structure; None when absent. Raises UnsupportedError when not known."""
        if not self.has(i):
            return None
        array = self.known(i)
        if array is None:
            raise UnsupportedError(f"{what} must be known when compiling, not computed from the data")
        return array

    def integers(self, i: int, what: str) -> list[int] | None:
        """A known input of plain numbers as a flat list."""
        array = self.structure(i, what)
        if array is None:
            return None
        if array.dtype == object:
            raise UnsupportedError(f"{what} must be numbers, not symbols", got=array.tolist())
        if array.size > MAX_CONSTANT:
            raise ModelError(f"{what} has too many elements", got=array.size)
        return [int(v) for v in array.reshape(-1)]

    def dimensions(self, i: int, what: str) -> list[Any] | None:
        """A known input of numbers and expressions as a flat list."""
        array = self.structure(i, what)
        if array is None:
            return None
        if array.size > MAX_CONSTANT:
            raise ModelError(f"{what} has too many elements", got=array.size)
        return [v if isinstance(v, Expr) else int(v) for v in array.reshape(-1).tolist()]

    def number(self, i: int, what: str) -> Any:
        """A known input of one number; None when absent."""
        array = self.structure(i, what)
        if array is None:
            return None
        if array.size != 1 or array.dtype == object:
            raise ModelError(f"{what} must be one number", got=f"{list(array.shape)}")
        return array.reshape(-1)[0].item() if array.dtype.kind in "fiub" else float(array.reshape(-1)[0])

    # --- attributes ---------------------------------------------------------------------------------------------------

    def attr(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return self.attributes.get(name, default)

    def ints(self, name: str, default: Sequence[int] | None = None) -> list[int] | None:
        value = self.attr(name)
        if value is None:
            return None if default is None else list(default)
        if not isinstance(value, list) or not all(isinstance(v, int) for v in value):
            raise ModelError(f"attribute {name} must be a list of integers", got=value)
        return value

    def integer(self, name: str, default: Any) -> Any:
        value = self.attr(name, default)
        if value is not None and not isinstance(value, int):
            raise ModelError(f"attribute {name} must be an integer", got=value)
        return value

    def real(self, name: str, default: Any) -> Any:
        value = self.attr(name, default)
        if value is not None and not isinstance(value, int | float):
            raise ModelError(f"attribute {name} must be a number", got=value)
        # Attributes are f32 in the file: 0.1 there is 0.10000000149.
        return value if value is None else float(value)

    def text(self, name: str, default: str) -> str:
        value = self.attr(name, default)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if not isinstance(value, str):
            raise ModelError(f"attribute {name} must be text", got=value)
        return value

    # --- emitting -----------------------------------------------------------------------------------------------------

    def emit(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        """Put an operator with one output into the graph."""
        value = emit1(self.builder, op, *inputs, name=f"{self.hint}.{op}", **attrs)
        check_size(value.type)
        return value

    def emit_all(self, op: str, *inputs: Value | None, **attrs: Any) -> tuple[Value, ...]:
        return emit(self.builder, op, *inputs, names=[f"{self.hint}.{op}"] * 8, **attrs)

    def constant(self, array: Any, t: DType | None = None) -> Value:
        """A constant of the graph."""
        return self.emit("constant", value=np.asarray(array, None if t is None else t.numpy))

    def like(self, number: Any, value: Value) -> Value:
        """A scalar constant of `value`'s type."""
        return self.constant(number, value.dtype)

    def reshape(self, x: Value, shape: Sequence[Any]) -> Value:
        target = dims(shape)
        return x if target == x.shape else self.emit("reshape", x, shape=target)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        return x if list(perm) == list(range(len(perm))) else self.emit("transpose", x, perm=tuple(perm))

    def cast(self, x: Value, to: DType) -> Value:
        return x if x.dtype is to else self.emit("cast", x, dtype=to)

    def slice(self, x: Value, axis: int, begin: Any, size: Any, step: int = 1) -> Value:
        """Part of one dimension."""
        if axis >= x.type.rank:
            raise ShapeError("the rank is too small", expected=f"more than {axis}", got=x.type)
        begins: list[Any] = [0] * x.type.rank
        sizes: list[Any] = list(x.shape)
        steps = [1] * x.type.rank
        begins[axis], sizes[axis], steps[axis] = begin, size, step
        if tuple(dims(sizes)) == x.shape and step == 1:
            return x
        return self.emit("slice", x, begin=dims(begins), size=dims(sizes), step=tuple(steps))

    def materialize(self, item: Item) -> Value:
        """The item as a value of the graph: a parameter, a constant, or numbers computed from symbols."""
        if item.value is None:
            item.value = self._make(item)
        return item.value

    def _make(self, item: Item) -> Value:
        array = item.known
        if item.is_symbolic:
            return self._from_symbols(item)
        if (item.weight and item.dtype.is_float) or array.size > MAX_CONSTANT:
            self.builder.taken.discard(item.name)
            value = self.builder.param(item.name or f"{self.hint}.table", item.type)
            self.weights[value.name] = array
            return value
        self.builder.taken.discard(item.name)
        return emit1(self.builder, "constant", name=item.name or f"{self.hint}.constant", value=array)

    def _from_symbols(self, item: Item) -> Value:
        parts = [
            self.emit("range", start=as_expr(v), step=0, size=1, dtype=i64) for v in item.known.reshape(-1).tolist()
        ]
        joined = parts[0] if len(parts) == 1 else self.emit("concat", *parts, axis=0)
        return self.reshape(self.cast(joined, item.dtype), item.type.shape)


def check_size(t: TensorType) -> None:
    """Raise ModelError for a tensor that no machine should be asked for."""
    total = 1
    for d in t.shape:
        number = as_int(d)
        if number is not None and number < 0:
            raise ModelError("a dimension is negative", got=t)
        total *= 1 if number is None else number
    if total * t.dtype.itemsize > MAX_BYTES:
        raise ModelError("the tensor is too large", expected=f"at most {MAX_BYTES} bytes", got=t)
