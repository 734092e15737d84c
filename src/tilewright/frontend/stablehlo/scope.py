"""The importer's knowledge of each StableHLO value while it walks the operations.

StableHLO broadcasts every operand to its full shape explicitly; Tilewright's operators broadcast implicitly. So an
`Item` has a full shape, and a value or known array that may be smaller and broadcasts to it: the broadcast is written
into the graph only where an operator needs all elements.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.frontend.common.known import canonical
from tilewright.frontend.stablehlo.quantised import quantised_type
from tilewright.frontend.stablehlo.read import FLOATS_OF_8_BITS
from tilewright.ir.dtype import BY_NAME, DType, boolean
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import TensorType, Value
from tilewright.ops.dims import dims
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError


@dataclass(slots=True)
class Item:
    """A tensor that an operation reads or computes: a value of the graph (`value`), or an array that is known when
    compiling (`known`), or both. Either may be smaller than `type`, and then is broadcast to it.

    `iota`: the elements count along this axis. `beyond`: an item that is not known and expressions, whose sums are this
    item's elements.
    """

    type: TensorType
    value: Value | None = None
    known: Any = None
    iota: int | None = None
    beyond: tuple[Item, Any] | None = None

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.type.shape

    @property
    def is_symbolic(self) -> bool:
        """Whether the item is known when compiling, with expressions of symbols among its elements."""
        return self.known is not None and self.known.dtype == object

    @property
    def number(self) -> Any:
        """The number that all elements equal, if one number is stored for all of them; else None."""
        if self.known is None or self.known.dtype == object or self.known.size != 1:
            return None
        return self.known.reshape(-1)[0]


def known_item(array: Any, t: DType, shape: Any = None) -> Item:
    """An item for `array`, known when compiling, that stands for a tensor of `shape` (None: the array's own)."""
    array = canonical(array, t)
    return Item(TensorType(t, dims(array.shape if shape is None else shape)), None, array)


MAX_WHOLE = 4096
"""The most elements of a known array, counted after broadcasting, that the importer examines one by one."""


def full_array(item: Item) -> Any:
    """All elements of a small known item whose shape is known; None of any other."""
    shape = [as_int(d) for d in item.shape]
    if item.known is None or any(d is None for d in shape) or math.prod(d or 0 for d in shape) > MAX_WHOLE:
        return None
    return np.broadcast_to(item.known, [d or 0 for d in shape])


_NAMES = {
    "i1": boolean,
    **{f"ui{b}": BY_NAME[f"u{b}"] for b in (4, 8, 16, 32, 64)},
    **{name: BY_NAME[name.lower()] for name in FLOATS_OF_8_BITS},
}


def element_type(element: str) -> DType:
    """Tilewright's type for an MLIR element type; for a quantised one that of its numbers. Raises UnsupportedError."""
    quantised = quantised_type(element)
    if quantised is not None:
        return quantised.expressed
    is_there = _NAMES.get(element) or (BY_NAME.get(element) if element[:1] != "u" else None)
    if is_there is None:
        raise UnsupportedError(f"the element type {element[:40]} is not supported")
    return is_there
