"""Random inputs for a model, from their specifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.specs import SymbolSpec

Array = np.ndarray[Any, Any]


class Spec(Protocol):
    """Name, element type and shape of an input; a dimension that is text is a symbol."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int | str, ...]: ...


def random_inputs(specs: Sequence[Spec], dims: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Random arrays, equal for equal seeds: floats normal, integers 0 or 1 (they may index something), u8 0 to 255
    (they are images). A symbol that `dims` does not name is 1. Inputs that are not arrays of numbers are omitted."""
    source = np.random.default_rng(seed)
    created = {}
    for spec in specs:
        if spec.dtype not in BY_NAME:
            continue
        shape = tuple(d if isinstance(d, int) else dims.get(d, 1) for d in spec.shape)
        dtype = BY_NAME[spec.dtype].numpy
        if BY_NAME[spec.dtype].is_float:
            array = source.standard_normal(shape, dtype=np.float32).astype(dtype)
        else:
            array = source.integers(0, 256 if spec.dtype == "u8" else 2, shape).astype(dtype)
        created[spec.name] = array
    return created


def usual_sizes(symbols: Sequence[SymbolSpec]) -> dict[str, int]:
    """A size for each symbol if the caller states none: the first likely one, or the smallest above 0."""
    return {s.name: s.likely[0] if s.likely else -(-max(s.lo, 1) // s.multiple) * s.multiple for s in symbols}
