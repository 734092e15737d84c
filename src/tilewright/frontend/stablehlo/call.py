"""`Call`: one operation as a rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.frontend.common.emitter import Emitter
from tilewright.frontend.common.known import MAX_FOLDED, evaluated
from tilewright.frontend.stablehlo.module import Block, Operation
from tilewright.frontend.stablehlo.scope import Item, element_type, full_array, known_item
from tilewright.frontend.stablehlo.unify import Sizes
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, as_int, is_const
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ops.dims import dim, dims
from tilewright.ops.shape import ConstantAttrs, TransposeAttrs
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, UnsupportedError

Walk = Callable[[Block, Sequence[Item], bool], list[Item]]
"""Walks a region with these items as its arguments; gives what it returns. The last argument says whether the region is
of scalars and is applied to tensors element by element."""


class ComputedSizeError(UnsupportedError):
    """A size is computed from values that the importer does not know."""


Attempt = Callable[[Callable[[], list[Item] | None]], list[Item] | None]
"""Run a rule tentatively: its result, or None with the graph unchanged if it declines or raises UnsupportedError."""

MakeBody = Callable[[str, Sequence[Item], Callable[[list[Item]], list[Item]]], tuple[Graph, list[Value]]]
"""Makes the graph of a loop's body: from its name, items like its inputs, and what to do with them; gives the graph,
whose inputs are followed by what it captures, and the captured values."""


@dataclass(slots=True)
class Call(Emitter):
    """An operation being imported, with its operands."""

    op: Operation
    items: list[Item]
    walk: Walk
    expand: Callable[[Operation, Sequence[Item]], list[Item]]
    """Decomposes an operation of CHLO as StableHLO's own pass does."""
    body: MakeBody
    renewed: Callable[[], Call]
    """The operation once more, which puts its operators into the body that is being made now."""
    attempt: Attempt
    dimensions: Sizes
    constants: dict[Value, Any]
    """The arrays of the constants of the graph."""
    lifted: bool = False
    """Whether stated shapes are those of the elements only."""

    def emit(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        """Put an operator with one output into the graph: a constant where all its inputs are small ones."""
        value = Emitter.emit(self, op, *inputs, **attrs)
        if op == "constant":
            self.constants[value] = self.builder.nodes[-1].of(ConstantAttrs).value.array
            return value
        size = as_int(value.type.size)
        if size is None or size > MAX_FOLDED or any(v not in self.constants for v in inputs) or not inputs:
            return value
        node = self.builder.nodes.pop()
        arrays = evaluated([node], {v: self.constants[v] for v in inputs if v is not None})
        assert arrays is not None
        self.builder.reserved.discard(value.name)
        return self.constant(arrays[value], value.dtype)

    # --- attributes ---------------------------------------------------------------------------------------------------

    def ints(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """A list of numbers."""
        entry = self.op.attributes.get(name)
        if entry is None:
            if default is None:
                raise ModelError(f"attribute {name} is missing")
            return list(default)
        array = self.as_array(entry)
        return [int(v) for v in array.reshape(-1)]

    def integer(self, name: str, default: int | None = None) -> int:
        entry = self.op.attributes.get(name, default)
        if not isinstance(entry, int):
            raise ModelError(f"attribute {name} must be a number", got=str(entry)[:80])
        return int(entry)

    @staticmethod
    def as_array(result: Any) -> Any:
        from tilewright.frontend.stablehlo.module import Splat

        if isinstance(result, Splat):
            return np.broadcast_to(result.value, result.shape)
        return np.asarray(result)

    def fields(self, name: str) -> dict[str, Any]:
        """A structured attribute."""
        entry = self.op.attributes.get(name)
        if not isinstance(entry, dict):
            raise ModelError(f"attribute {name} is missing")
        return entry

    # --- operands -----------------------------------------------------------------------------------------------------

    def item(self, k: int) -> Item:
        if k >= len(self.items):
            raise ModelError("the operation has too few operands", expected=f"more than {k}", got=len(self.items))
        return self.items[k]

    def unbroadcast(self, k: int | Item) -> Value:
        """An operand as a value that broadcasts to its shape."""
        item = self.item(k) if isinstance(k, int) else k
        if item.value is not None:
            return item.value
        if item.is_symbolic:
            return self.symbols(item.known.reshape(-1).tolist(), item.dtype, item.known.shape)
        return self.constant(item.known, item.dtype)

    def value(self, k: int | Item) -> Value:
        """An operand as a value with all its elements."""
        item = self.item(k) if isinstance(k, int) else k
        return self.broadcast(self.unbroadcast(item), item.shape)

    def values(self) -> list[Value]:
        return [self.value(k) for k in range(len(self.items))]

    def broadcast(self, x: Value, shape: Sequence[Any]) -> Value:
        target = dims(shape)
        if target == x.shape:
            return x
        repeats = TensorType(x.dtype, target).size != x.type.size
        return self.emit("broadcast", x, shape=target) if repeats else Emitter.reshape(self, x, target)

    def array(self, k: int) -> Any:
        """All elements of an operand, where they are known numbers; else None."""
        item = self.item(k)
        return None if item.is_symbolic else full_array(item)

    def sizes(self, k: int) -> list[Expr | int]:
        """An operand that holds sizes, which must be known or follow from symbolic dimensions."""
        result = full_array(self.item(k))
        if result is None:
            raise ComputedSizeError("sizes that are computed from the data are not supported")
        return [v if isinstance(v, Expr) else int(v) for v in result.reshape(-1).tolist()]

    # --- results ------------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> DType:
        """The element type of the (first) result."""
        return element_type(self.op.types[0].element)

    def stated(self, k: int = 0) -> tuple[int | None, ...]:
        """The shape that a result must have; None where it is not said."""
        shape = self.op.types[k].shape
        if shape is None:
            raise UnsupportedError(f"a result of type {self.op.types[k].element} is not supported")
        return shape

    def lazy(self, unbroadcast: Value, shape: Sequence[Any]) -> Item:
        """A result of this shape, held as the smaller value that is broadcast to it where an operator needs all
        elements."""
        return Item(TensorType(unbroadcast.dtype, dims(shape)), unbroadcast)

    def known(self, array: Any, t: DType, shape: Any = None) -> Item:
        return known_item(array, t, shape)

    # --- small things that many rules want ----------------------------------------------------------------------------

    def full_rank(self, item: Item) -> Value:
        """The value of an item with as many dimensions as the item has, those that are broadcast being 1."""
        unbroadcast = self.unbroadcast(item)
        missing = len(item.shape) - unbroadcast.type.rank
        return self.reshape(unbroadcast, (*[1] * missing, *unbroadcast.shape)) if missing else unbroadcast

    def unbroadcast_as(self, x: Value, shape: Sequence[Any]) -> Value:
        """The elements of a value in a shape of which a vector leaves leading dimensions of one element out, as
        broadcasting adds them again. What has rows keeps them: softmax and attention are looked for by whole ranks."""
        target = dims(shape)
        if x.type.rank == 1 and target[-1:] == x.shape and all(is_const(d, 1) for d in target[:-1]):
            return x
        lead = 0
        while lead < len(target) and is_const(target[lead], 1):
            lead += 1
        # A vector of channels keeps them, as layouts look for it by its rank.
        is_vector = len(target) - lead < 2 and not any(is_const(d, 1) for d in target[lead:])
        return self.reshape(x, target[lead:] if is_vector else target)

    def producer(self, x: Value, op: str) -> Node | None:
        """The node among the last ones that made a value, if it is of this operator."""
        nodes = self.builder.nodes[-16:]
        return next((n for n in nodes if n.op == op and x in n.outputs), None)

    def reshape(self, x: Value, shape: Sequence[Any]) -> Value:
        """A value reshaped. A reshape of a reshape becomes one, and an equal one that exists is reused."""
        before, target = self.producer(x, "reshape"), dims(shape)
        source = x if before is None or before.inputs[0] is None else before.inputs[0]
        created = (n.output for n in self.builder.nodes[-16:] if n.op == "reshape" and n.inputs[0] is source)
        return next((v for v in created if v.shape == target), None) or Emitter.reshape(self, source, target)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """A value with its dimensions permuted. A transpose of a transpose becomes one."""
        before = self.producer(x, "transpose")
        if before is not None and before.inputs[0] is not None:
            x, perm = before.inputs[0], [before.of(TransposeAttrs).perm[p] for p in perm]
        return Emitter.transpose(self, x, perm)

    def iota(self, size: Any, t: DType, rank: int = 1, axis: int = 0) -> Value:
        """0, 1, 2 ... along one of `rank` dimensions, the others being 1."""
        line = self.emit("range", start=0, step=1, size=dim(size), dtype=t)
        return self.reshape(line, [dim(size) if k == axis else 1 for k in range(rank)])

    def clamped(self, x: Value, low: Any, high: Any) -> Value:
        """Integers moved into low..high, which are numbers or expressions."""
        if not is_const(dim(low), 0):
            x = self.emit("max", x, self.size_like(low, x))
        elif x.dtype.kind == "int":
            x = self.emit("relu", x)
        return self.emit("min", x, self.size_like(high, x))

    def size_like(self, size: Any, x: Value) -> Value:
        """A number or an expression of symbolic dimensions as a scalar of `x`'s type."""
        known = as_int(dim(size))
        return self.like(known, x) if known is not None else self.symbols([size], x.dtype, ())

    def unsupported(self, what: str, **details: Any) -> UnsupportedError:
        return UnsupportedError(f"{self.op.name} {what} is not supported", **details)
