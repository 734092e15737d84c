"""`Call`: one ONNX node as an import rule sees it: its inputs, its attributes, and methods that emit operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import onnx

from tilewright.frontend.common.elements import elements
from tilewright.frontend.common.emitter import Emitter
from tilewright.frontend.onnx.scope import Item
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import TensorType, Value
from tilewright.ops.dims import at_least
from tilewright.ops.registry import emit1
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError, ValueNeededError

MAX_CONSTANT = 64
"""Arrays of more elements become parameters rather than constants of the graph."""


MAX_LISTED = 4096
"""The largest number of elements of an input that decides the structure, such as the sizes of Split."""


@dataclass(slots=True)
class Call(Emitter):
    """A node being imported. Rules read inputs and attributes here and emit operators; attributes that a rule never
    asks for are reported as unsupported."""

    node: onnx.NodeProto
    opset: int
    items: list[Item | None]
    attributes: dict[str, Any]
    outputs: int
    asked: set[str] = field(default_factory=set)
    fixed: set[str] = field(default_factory=set)
    """Names of parameters that are constants of the file, not weights."""
    folded: dict[str, str] = field(default_factory=dict)
    """Weights whose numbers have been folded into the program, each with the operator that did so."""
    open_sizes: bool = False
    """Whether sizes may be computed from the data."""
    decided: set[str] = field(default_factory=set)
    """Operators whose sizes are computed from the data."""

    # --- inputs -------------------------------------------------------------------------------------------------------

    def has(self, i: int) -> bool:
        return i < len(self.items) and self.items[i] is not None

    def item(self, i: int) -> Item:
        result = self.items[i] if i < len(self.items) else None
        if result is None:
            raise ModelError(f"input {i} is missing")
        return result

    def value(self, i: int) -> Value:
        """Input `i` as a value of the graph."""
        return self.materialize(self.item(i))

    def optional(self, i: int) -> Value | None:
        return self.value(i) if self.has(i) else None

    def values(self) -> list[Value]:
        """All inputs of the node as values of the graph."""
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
        """The known array of input `i`, on whose elements the graph's structure depends; None if the input is absent.
        Raises ValueNeededError if the array is not known when compiling; `what` names it in the message."""
        if not self.has(i):
            return None
        array = self.folded_number(i)
        if array is None:
            raise ValueNeededError(f"{what} must be known when compiling, not computed from the data", self.item(i))
        return array

    def folded_number(self, i: int) -> Any:
        """The known array of input `i`, to be compiled into the program. If the input is a weight, this is recorded,
        since updates cannot change it any more."""
        if self.has(i) and self.item(i).weight:
            self.folded[self.item(i).name] = self.node.op_type
        return self.known(i)

    def integers(self, i: int, what: str) -> list[int] | None:
        """Input `i`, which must be known and of integers, as a flat list; None when absent. `what` names it in
        errors."""
        array = self.structure(i, what)
        if array is None:
            return None
        if array.dtype == object:
            raise UnsupportedError(f"{what} must be numbers, not symbols", got=array.tolist())
        if array.size > MAX_LISTED:
            raise UnsupportedError(f"more than {MAX_LISTED} elements are not supported: {what}", got=array.size)
        return [int(v) for v in array.reshape(-1)]

    def dimensions(self, i: int, what: str) -> list[Any] | None:
        """Input `i`, which must be known, as a flat list of integers and expressions; None when absent. `what` names it
        in errors."""
        array = self.structure(i, what)
        if array is None:
            return None
        if array.size > MAX_LISTED:
            raise UnsupportedError(f"more than {MAX_LISTED} elements are not supported: {what}", got=array.size)
        return [v if isinstance(v, Expr) else int(v) for v in array.reshape(-1).tolist()]

    def is_data(self, i: int) -> bool:
        """Whether input `i` is computed by each call and may decide sizes of the graph."""
        if not self.open_sizes or not self.has(i) or self.item(i).known is not None:
            return False
        self.decided.add(self.node.op_type)
        return True

    def elements(self, i: int, what: str) -> list[Any] | None:
        """The integers of input `i` as a flat list: numbers and expressions, and i64 scalars of the graph for those
        that are computed from data, where this is allowed. None when absent."""
        size = as_int(self.type(i).size) if self.is_data(i) else None
        if size is None or size > MAX_CONSTANT or not self.dtype(i).is_int:
            return self.dimensions(i, what)
        return elements(self, self.value(i))

    def sizes(self, i: int, what: str) -> list[Any] | None:
        """`dimensions(i)` for sizes, which are not negative. Sizes that are computed from data become new symbols,
        where this is allowed."""
        result = self.elements(i, what)
        return None if result is None else [self.extent(v) if isinstance(v, Value) else v for v in result]

    def number(self, i: int, what: str) -> Any:
        """Input `i`, which must be known and a single number; None when absent. `what` names it in errors."""
        array = self.structure(i, what)
        if array is None:
            return None
        if array.size != 1 or array.dtype == object:
            raise ModelError(f"{what} must be one number", got=f"{list(array.shape)}")
        return array.reshape(-1)[0].item() if array.dtype.kind in "fiub" else float(array.reshape(-1)[0])

    # --- numbers that must make sense ---------------------------------------------------------------------------------

    def says(self, what: str) -> str:
        return f"{self.node.op_type}: {what}"

    def limited(self, i: int, low: Any, high: Any, what: str) -> Value:
        """Input `i`, integers that must be from `low` to `high` (numbers or sizes): each call checks them or, if they
        are known, this function does. Raises ShapeError, which calls them `what`."""
        known = self.known(i)
        low_number, high_number = as_int(low), as_int(high)
        if known is None or known.dtype == object or low_number is None or high_number is None:
            return self.all_within(self.value(i), low, high, what)
        wrong = [int(v) for v in known.reshape(-1) if not low_number <= v <= high_number]
        if wrong:
            raise ShapeError(what, expected=f"{low} to {high}", got=wrong[0])
        return self.value(i)

    def check_indices(self, i: int, extent: Expr, last: int | None = None) -> None:
        """Check that the indices in input `i`, where they are known, lie in a dimension of `extent` elements.

        Indices that data decides are not checked: gathers and scatters stay inside of their tensors by themselves.

        Args:
            last: the place along the last dimension of input `i` at which these indices stand; None: all places.

        Raises ShapeError where an index is outside, TooSmallError where a symbolic extent may be too small.
        """
        known = self.known(i)
        if known is None or known.dtype == object or not self.dtype(i).is_int:
            return
        known = known if last is None else known[..., last]
        if not known.size:
            return
        low, high, number = int(known.min()), int(known.max()), as_int(extent)
        if number is not None and not -number <= low <= high < number:
            wrong = low if low < -number else high
            raise ShapeError("an index is outside the dimension", expected=f"from {-number} to {number - 1}", got=wrong)
        if number is None:
            at_least(extent, const(max(high + 1, -low)), "an index may be outside the dimension")

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

    def materialize(self, item: Item) -> Value:
        """The item as a value of the graph: a parameter, a constant, or numbers computed from symbols."""
        if item.value is None:
            item.value = self._make(item)
        return item.value

    def _make(self, item: Item) -> Value:
        array = item.known
        if item.is_symbolic:
            return self.symbols(array.reshape(-1).tolist(), item.dtype, item.type.shape)
        if (item.weight and item.dtype.is_float) or array.size > MAX_CONSTANT:
            self.builder.reserved.discard(item.name)
            value = self.builder.param(item.name or f"{self.hint}.table", item.type)
            self.weights[value.name] = array
            if not item.weight or not item.dtype.is_float:
                self.fixed.add(value.name)
            return value
        self.builder.reserved.discard(item.name)
        return emit1(self.builder, "constant", name=item.name or f"{self.hint}.constant", value=array)
