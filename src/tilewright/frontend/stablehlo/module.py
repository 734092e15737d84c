"""A StableHLO module as dataclasses, which the importer walks; read from MLIR's objects, or from the other process.

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
    """A type as MLIR spells it: the element type ("f32", "ui8", "i1"), and the shape of a tensor, with None for an
    unknown extent.

    Other types (a token, a tuple) have MLIR's text as element type, and no shape.
    """

    element: str
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return self.element
        return f"tensor<{''.join('?x' if d is None else f'{d}x' for d in self.shape)}{self.element}>"


@dataclass(frozen=True, slots=True)
class Splat:
    """An array of `shape` whose elements all equal `value`, a zero-dimensional array."""

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
        """The operations without the final `return`."""
        return self.operations[:-1]

    @property
    def returned(self) -> tuple[int, ...]:
        return self.operations[-1].operands

    def walk(self) -> Iterator[Operation]:
        """All operations, including those of nested regions."""
        for op in self.operations:
            yield op
            for region in op.regions:
                yield from region.walk()


@dataclass(frozen=True, slots=True)
class Function:
    """A function. `names`: of its arguments, if stated; `results`: names of its results; `symbols`: for each argument
    that is the size of a symbolic dimension, that dimension's name ("" for others)."""

    name: str
    body: Block
    names: tuple[str, ...]
    results: tuple[str, ...]
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """A module: functions by name. `main` is the entry point."""

    name: str
    functions: dict[str, Function]
    main: str
