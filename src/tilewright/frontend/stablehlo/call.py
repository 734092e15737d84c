"""`Call`: one StableHLO operation as its import rule sees it."""

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
"""Imports the operations of a region for these arguments, and returns its results. The last argument says whether the
region is of scalars and is applied to tensors element by element."""


class ComputedSizeError(UnsupportedError):
    """Raised for an operand that must be known, but is computed by each call."""


Attempt = Callable[[Callable[[], list[Item] | None]], list[Item] | None]
"""Run a rule tentatively: its result; None, with the graph unchanged, if it returns None or raises UnsupportedError."""

MakeBody = Callable[[str, Sequence[Item], Callable[[list[Item]], list[Item]]], tuple[Graph, list[Value]]]
"""Builds the graph of a loop's body from its name, items with the types of its inputs, and a function that emits its
nodes; returns the graph, whose last inputs are the captured values, and these values."""


@dataclass(slots=True)
class Call(Emitter):
    """The StableHLO operation that is being imported, its operands, and what a rule needs to emit operators."""

    op: Operation
    items: list[Item]
    walk: Walk
    expand: Callable[[Operation, Sequence[Item]], list[Item]]
    """Decomposes a CHLO operation into StableHLO, by StableHLO's own pass."""
    body: MakeBody
    renewed: Callable[[], Call]
    """Imports the operation again, into the body that is being built at that time."""
    attempt: Attempt
    dimensions: Sizes
    constants: dict[Value, Any]
    """The constants of the graph, with their arrays."""
    lifted: bool = False
    """Whether the region's operations are applied to tensors element by element, so that their stated shapes lack the
    tensors' dimensions."""

    def emit(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        """Emit the operator `op` with one output, and return that; it is folded to a constant if all inputs are small
        constants."""
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
        """The attribute `name`, a list of integers; `default` if it is absent."""
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
        """The attribute `name`, which has named fields, as a dict."""
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
        """Operand `k` (a number, or an item) as a value that may have extent 1, or lack leading dimensions, where the
        operand's shape is larger; operators broadcast it."""
        item = self.item(k) if isinstance(k, int) else k
        if item.value is not None:
            return item.value
        if item.is_symbolic:
            return self.symbols(item.known.reshape(-1).tolist(), item.dtype, item.known.shape)
        return self.constant(item.known, item.dtype)

    def value(self, k: int | Item) -> Value:
        """Operand `k` (a number, or an item) as a value of its full shape."""
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
        """Operand `k`, a vector of sizes, as numbers and expressions of symbols. Raises ComputedSizeError if each call
        computes them."""
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
        """The shape of result `k` as the module states it, with None for unknown extents. Raises UnsupportedError for
        results that are no tensors."""
        shape = self.op.types[k].shape
        if shape is None:
            raise UnsupportedError(f"a result of type {self.op.types[k].element} is not supported")
        return shape

    def lazy(self, unbroadcast: Value, shape: Sequence[Any]) -> Item:
        """A result of `shape` that is stored as the smaller value `unbroadcast`, and broadcast only for operators that
        need all elements."""
        return Item(TensorType(unbroadcast.dtype, dims(shape)), unbroadcast)

    def known(self, array: Any, t: DType, shape: Any = None) -> Item:
        return known_item(array, t, shape)

    # --- small things that many rules want ----------------------------------------------------------------------------

    def full_rank(self, item: Item) -> Value:
        """The stored value of `item`, with leading dimensions of extent 1 added up to the item's rank."""
        unbroadcast = self.unbroadcast(item)
        missing = len(item.shape) - unbroadcast.type.rank
        return self.reshape(unbroadcast, (*[1] * missing, *unbroadcast.shape)) if missing else unbroadcast

    def unbroadcast_as(self, x: Value, shape: Sequence[Any]) -> Value:
        """`x` reshaped to `shape`, where a vector loses leading dimensions of extent 1, which broadcasting restores.
        Values with rows retain all dimensions, since the patterns of softmax and attention match on full ranks."""
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
        """The node that computes `x`, if it has operator `op` and is among the last nodes emitted; else None."""
        nodes = self.builder.nodes[-16:]
        return next((n for n in nodes if n.op == op and x in n.outputs), None)

    def reshape(self, x: Value, shape: Sequence[Any]) -> Value:
        """`x` with shape `shape`. A reshape of a reshape becomes one, and an equal reshape among the last nodes is
        reused."""
        before, target = self.producer(x, "reshape"), dims(shape)
        source = x if before is None or before.inputs[0] is None else before.inputs[0]
        created = (n.output for n in self.builder.nodes[-16:] if n.op == "reshape" and n.inputs[0] is source)
        return next((v for v in created if v.shape == target), None) or Emitter.reshape(self, source, target)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """`x` with its dimensions in the order `perm`. A transpose of a transpose becomes one."""
        before = self.producer(x, "transpose")
        if before is not None and before.inputs[0] is not None:
            x, perm = before.inputs[0], [before.of(TransposeAttrs).perm[p] for p in perm]
        return Emitter.transpose(self, x, perm)

    def iota(self, size: Any, t: DType, rank: int = 1, axis: int = 0) -> Value:
        """0, 1, 2 ... along `axis` of a tensor of `rank` dimensions, whose other dimensions have size 1."""
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
        """`size`, a number or an expression of symbols, as a scalar of `x`'s element type."""
        known = as_int(dim(size))
        return self.like(known, x) if known is not None else self.symbols([size], x.dtype, ())

    def unsupported(self, what: str, **details: Any) -> UnsupportedError:
        return UnsupportedError(f"{self.op.name} {what} is not supported", **details)
