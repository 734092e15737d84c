"""Patterns of inputs: the types that a compiled form of a part accepts, and the values that it was specialised for.

A dimension is a number until a call changes it; then it becomes a symbol. Dimensions that have always been equal share
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.frontend.onnx.section import Dim, TensorInfo, Types, info_of
from tilewright.support.classes import dataclass

Values = Mapping[str, Any]

MAX_VALUE = 4096
"""The largest number of elements of an array that a form may be compiled for by value."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The conditions on inputs under which a form applies.

    Args:
        types: the inputs' types; None: no tensor.
        fixed: the bytes of those that are known by value.
        least: the least size of a symbol.
    """

    types: Types
    fixed: Mapping[str, bytes]
    least: Mapping[str, int]

    def takes(self, values: Values) -> bool:
        """Whether inputs match this pattern."""
        bound: dict[str, int] = {}
        for name, info in self.types.items():
            result = info_of(values[name])
            if result is None or info is None:
                if result is not info:
                    return False
                continue
            if result.code != info.code or not _binds(info.dims, result.dims, bound):
                return False
        if any(value < self.least.get(name, 0) for name, value in bound.items()):
            return False
        return all(np.asarray(values[name]).tobytes() == data for name, data in self.fixed.items())

    @property
    def has_symbols(self) -> bool:
        return any(isinstance(d, str) for info in self.types.values() if info is not None for d in info.dims)


def _binds(dims: Sequence[Dim], result: Sequence[Dim], bound: dict[str, int]) -> bool:
    if len(dims) != len(result):
        return False
    for want, have in zip(dims, result, strict=True):
        assert isinstance(have, int)
        if isinstance(want, str):
            want = bound.setdefault(want, have)
        if want != have:
            return False
    return True


class History:
    """The sizes that each dimension of each input has had in calls."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, int, int], list[int]] = {}
        self._calls = 0

    def observe(self, infos: Types) -> Types:
        """Note the types of a call's inputs; returns these types with a symbol for each dimension that has changed
        between calls."""
        self._calls += 1
        columns: dict[tuple[str, int, int, int], tuple[int, ...]] = {}
        for name, info in infos.items():
            for k, d in enumerate(info.dims if info is not None else ()):
                assert info is not None and isinstance(d, int)
                key = (name, info.code, len(info.dims), k)
                self._seen.setdefault(key, []).append(d)
                columns[key] = tuple(self._seen[key][-MAX_HISTORY:])
        symbols: dict[tuple[int, ...], str] = {}
        result: dict[str, TensorInfo | None] = {}
        for name, info in infos.items():
            if info is None:
                result[name] = None
                continue
            dims: list[Dim] = []
            for k, d in enumerate(info.dims):
                column = columns[name, info.code, len(info.dims), k]
                if len(set(column)) == 1 or d == 0:
                    dims.append(d)
                else:
                    dims.append(symbols.setdefault(column, f"n{len(symbols)}"))
            result[name] = TensorInfo(info.code, tuple(dims))
        return result


MAX_HISTORY = 64
"""The number of past sizes of a dimension that are remembered."""


def observed(values: Values, names: Sequence[str]) -> dict[str, TensorInfo | None]:
    """The types of the arrays called `names` in `values`."""
    return {name: info_of(values[name]) for name in names}
