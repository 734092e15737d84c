"""A StableHLO module as dataclasses: what the importer walks, by either parser.

Attributes are numbers, strings, lists, dicts and NumPy arrays; the structured ones of StableHLO (`dimension_numbers` of
products, gathers and scatters) are dicts of their fields. An array that repeats one number is a `Splat`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Type:
    """A tensor's element type, spelled as MLIR does ("f32", "ui8", "i1"), and shape; None is an unknown dimension.

    What is no tensor (a token, a tuple) has its text as element type and no shape.
    """

    element: str
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return self.element
        return f"tensor<{''.join('?x' if d is None else f'{d}x' for d in self.shape)}{self.element}>"


@dataclass(frozen=True, slots=True)
class Splat:
    """An array whose elements are all `value`, an array without dimensions."""

    value: np.ndarray[Any, Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """`results = name(operands) {attributes} (regions)`; values are numbers, unique in the module."""

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[Type, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    regions: tuple[Block, ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """The only block of a region: its arguments, and operations that end in a `return`."""

    arguments: tuple[int, ...]
    types: tuple[Type, ...]
    operations: tuple[Operation, ...]

    @property
    def body(self) -> tuple[Operation, ...]:
        """The operations without the last one, which returns."""
        return self.operations[:-1]

    @property
    def returned(self) -> tuple[int, ...]:
        return self.operations[-1].operands

    def walk(self) -> Iterator[Operation]:
        """All operations, those of inner regions too."""
        for op in self.operations:
            yield op
            for region in op.regions:
                yield from region.walk()


@dataclass(frozen=True, slots=True)
class Function:
    """A function. `names` are those of its arguments where they were given, `results` those of its results,
    `symbols` the symbolic dimensions for whose sizes arguments stand ("" for other arguments)."""

    name: str
    body: Block
    names: tuple[str, ...]
    results: tuple[str, ...]
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """Functions by name; the one that is called from outside is `main`."""

    name: str
    functions: dict[str, Function]
    main: str
