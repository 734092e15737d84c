"""Inputs for a model: random ones by their specification, or from files (.npy, .npz, ONNX .pb)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.support.errors import CallError, Problems

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
    """Random arrays: floats normal, integers 0 or 1 (they may index something), u8 0 to 255 (they are images).

    A symbol that `dims` does not name is 1.
    """
    source = np.random.default_rng(seed)
    made = {}
    for spec in specs:
        shape = tuple(d if isinstance(d, int) else dims.get(d, 1) for d in spec.shape)
        dtype = BY_NAME[spec.dtype].numpy
        if BY_NAME[spec.dtype].is_float:
            array = source.standard_normal(shape, dtype=np.float32).astype(dtype)
        else:
            array = source.integers(0, 256 if spec.dtype == "u8" else 2, shape).astype(dtype)
        made[spec.name] = array
    return made


def read_inputs(texts: Sequence[str], specs: Sequence[Spec]) -> dict[str, Array]:
    """Arrays from `NAME=FILE`, or `FILE` alone: an .npz holds several by name, another one belongs to the next input
    in the model's order that has none."""
    arrays: dict[str, Array] = {}
    problems = Problems()
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals:
            name, file = "", text
        try:
            found = _read(Path(file))
        except (OSError, ValueError, KeyError) as e:
            problems.add(CallError(f"cannot be read: {e}", where=f"input file {file}"))
            continue
        if isinstance(found, dict):
            arrays.update(found)
        else:
            free = [spec.name for spec in specs if spec.name not in arrays]
            arrays[name or (free[0] if free else file)] = found
    known = [spec.name for spec in specs]
    for name in arrays:
        if name not in known:
            problems.add(CallError("the model has no such input", where=f"input {name!r}", expected=" ".join(known)))
    problems.raise_if_any("inputs do not fit")
    return arrays


def _read(path: Path) -> Array | dict[str, Array]:
    match path.suffix:
        case ".npz":
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        case ".npy":
            array: Array = np.load(path, allow_pickle=False)
            return array
        case ".pb":
            import onnx
            from onnx import numpy_helper

            tensor = onnx.TensorProto()
            tensor.ParseFromString(path.read_bytes())
            return np.asarray(numpy_helper.to_array(tensor))
    raise ValueError("expected .npy, .npz or .pb")
