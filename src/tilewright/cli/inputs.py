"""Inputs for a model from files (.npy, .npz, ONNX .pb); weights from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.weights.safetensors import read_safetensors
from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.examples import Spec
from tilewright.support.errors import CallError, Problems, WeightError

Array = np.ndarray[Any, Any]


def read_inputs(texts: Sequence[str], specs: Sequence[Spec]) -> dict[str, Array]:
    """Arrays by name from `texts` such as `NAME=FILE`, or `FILE` alone: an .npz contains several by name; any other
    file is for the next of the inputs `specs`, in the model's order, that has none yet."""
    arrays: dict[str, Array] = {}
    problems = Problems()
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals:
            name, file = "", text
        try:
            result = read_arrays(Path(file))
        except CallError as error:
            problems.add(error)
            continue
        if isinstance(result, dict) and equals:
            what = "holds arrays with names of their own, and no input is named for it"
            problems.add(CallError(what, where=f"file {file}", expected=file, got=text))
        elif isinstance(result, dict):
            arrays.update(result)
        else:
            free = [spec.name for spec in specs if spec.name not in arrays]
            arrays[name or (free[0] if free else file)] = result
    known = [spec.name for spec in specs]
    for name in arrays:
        if name not in known:
            problems.add(CallError("the model has no such input", where=f"input {name!r}", expected=" ".join(known)))
    problems.raise_if_any("inputs do not fit")
    return arrays


def read_arrays(path: Path) -> Array | dict[str, Array]:
    """The arrays of an .npy or .pb file, or by name of an .npz. Raises CallError if it is damaged or none of these."""
    try:
        result = _read(path)
        for array in result.values() if isinstance(result, dict) else [result]:
            if array.dtype.kind in "OSUV" and array.dtype not in _NUMBERS:
                raise ValueError(f"holds {array.dtype} and not numbers")
        return result
    except Exception as error:  # the libraries' own kinds of error are many
        raise CallError(f"cannot be read: {error}", where=f"file {path}") from None


_NUMBERS = {t.numpy for t in BY_NAME.values()}


_STARTS = {".npz": (b"PK",), ".npy": (b"\x93NUMPY",)}
"""The first bytes of array files; NumPy would read files that begin otherwise as pickles, which are refused."""


def _read(path: Path) -> Array | dict[str, Array]:
    if path.suffix in _STARTS:
        with path.open("rb") as opened:
            if not opened.read(8).startswith(_STARTS[path.suffix]):
                raise ValueError(f"is no {path.suffix} file of NumPy")
    match path.suffix:
        case ".npz":
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        case ".npy":
            array: Array = np.load(path, allow_pickle=False)
            return array
        case ".pb":
            import onnx

            from tilewright.frontend.onnx.external import Folder
            from tilewright.frontend.onnx.tensors import to_array

            tensor = onnx.TensorProto()
            tensor.ParseFromString(path.read_bytes())
            return np.asarray(to_array(tensor, f"tensor {tensor.name!r}", Folder.of(path)))
    raise ValueError("expected .npy, .npz or .pb")


def read_weights(path: Path) -> dict[str, Array]:
    """All tensors of a .safetensors or .npz file by name. Raises WeightError if it is damaged or none of these."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        if path.suffix == ".safetensors":
            return read_safetensors(path)
    except WeightError:
        raise
    except Exception as error:  # the libraries' own kinds of error are many
        raise WeightError(f"cannot be read: {error}", where=str(path)) from None
    raise WeightError(
        "cannot be read", where=str(path), expected=".safetensors or .npz", got=path.suffix or "no suffix"
    )
