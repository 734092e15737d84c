"""Operators on sequences and optionals, in Python: a sequence is a list of arrays, an empty optional is None, and any
other optional is its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.onnx.section import Section, operator
from tilewright.runtime.interop import Array
from tilewright.support.errors import CallError

Values = Mapping[str, Any]
Attributes = Mapping[str, Any]


class ValuePart:
    """A section whose operators are all among `OPERATORS`, run in Python.

    Args:
        initializer: gives an initializer's present value.
    """

    def __init__(self, section: Section, initializer: Callable[[Section, str], Any]) -> None:
        self.section = section
        self._initializer = initializer
        self._attributes = [{a.name: onnx.helper.get_attribute_value(a) for a in n.attribute} for n in section.nodes]

    def run(self, values: Values) -> dict[str, Any]:
        """Run the section; returns its outputs by name."""
        entries = dict(values)
        for k, (node, attributes) in enumerate(zip(self.section.nodes, self._attributes, strict=True)):
            arguments = [self._read(entries, name) if name else None for name in node.input]
            try:
                result = OPERATORS[node.op_type](attributes, *arguments)
            except (ValueError, IndexError, TypeError, AttributeError) as error:
                where = f"{self.section.loaded.label}: node {self.section.label(k)}"
                raise CallError(f"{operator(node)} does not take these inputs", where=where, got=str(error)) from None
            entries[node.output[0]] = result
        return {name: entries[name] for name in self.section.outputs}

    def _read(self, result: Values, name: str) -> Any:
        return result[name] if name in result else self._initializer(self.section, name)


def is_on_values(node: onnx.NodeProto) -> bool:
    """Whether `OPERATORS` has a node's operator, on sequences or optionals."""
    return node.op_type in OPERATORS and node.domain in ("", "ai.onnx") and len(node.output) == 1


def _number(position: Any) -> int:
    return int(np.asarray(position).reshape(-1)[0])


def _place(sequence: Sequence[Any], position: Any, most: int) -> int:
    """The index in a sequence, at most `most`, for a position that may count from the end. Raises IndexError."""
    k = _number(position)
    if not -len(sequence) <= k <= most:
        raise IndexError(f"position {k} of a sequence of {len(sequence)}")
    return k + len(sequence) if k < 0 else k


def _at(_: Attributes, sequence: list[Any], position: Any) -> Any:
    return sequence[_place(sequence, position, len(sequence) - 1)]


def _insert(_: Attributes, sequence: list[Any], tensor: Any, position: Any = None) -> list[Any]:
    k = len(sequence) if position is None else _place(sequence, position, len(sequence))
    return [*sequence[:k], tensor, *sequence[k:]]


def _erase(_: Attributes, sequence: list[Any], position: Any = None) -> list[Any]:
    k = _place(sequence, -1 if position is None else position, len(sequence) - 1)
    return [*sequence[:k], *sequence[k + 1 :]]


def _split(attributes: Attributes, tensor: Array, split: Any = None) -> list[Any]:
    axis = attributes.get("axis", 0)
    size = tensor.shape[axis]
    if split is None:
        parts = np.split(tensor, size, axis) if size else []
        return [np.squeeze(p, axis) if not attributes.get("keepdims", 1) else p.copy() for p in parts]
    if np.asarray(split).ndim == 0:
        each = _number(split)
        if each < 1:
            raise ValueError(f"parts of {each}")
        ends = list(range(each, size, each))
    else:
        sizes = [int(n) for n in split]
        if sum(sizes) != size or min(sizes, default=0) < 0:
            raise ValueError(f"parts of {sizes} of a dimension of {size}")
        ends = np.cumsum(sizes)[:-1].tolist()
    return [p.copy() for p in np.split(tensor, ends, axis)]


def _concatenate(attributes: Attributes, sequence: list[Any]) -> Array:
    join = np.stack if attributes.get("new_axis", 0) else np.concatenate
    return join(sequence, axis=attributes["axis"])


def _inside(_: Attributes, optional: Any) -> Any:
    if optional is None:
        raise ValueError("the optional is empty")
    return optional


OPERATORS: dict[str, Callable[..., Any]] = {
    "SequenceEmpty": lambda _: [],
    "SequenceConstruct": lambda _, *tensors: list(tensors),
    "SequenceAt": _at,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceLength": lambda _, sequence: np.asarray(len(sequence), np.int64),
    "SplitToSequence": _split,
    "ConcatFromSequence": _concatenate,
    "Optional": lambda _, value=None: value,
    "OptionalGetElement": _inside,
    "OptionalHasElement": lambda _, optional=None: np.asarray(optional is not None),
}
"""For each operator, the function from its attributes and inputs to its one output."""

__all__ = ["OPERATORS", "ValuePart", "is_on_values"]
