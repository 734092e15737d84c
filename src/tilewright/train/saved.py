"""Files of learning steps: safetensors, with the count, the learning rates and the seed as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError
from tilewright.support.files import replacing

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of a file of a learning step."""

    arrays: dict[str, Array]
    count: int
    rates: list[float]
    seed: int


def write_step(path: str | Path, arrays: Mapping[str, Array], count: int, rates: list[float], seed: int) -> None:
    """Write the state of a training step to the file `path`: arrays, the `count` of steps, learning rates and the seed.
    It is atomic: if the process is killed, the old file remains."""
    from safetensors.numpy import save

    facts = {"count": str(count), "rates": json.dumps(rates), "seed": str(seed)}
    data = save({name: np.asarray(array, order="C") for name, array in arrays.items()}, facts)
    with replacing(path) as file:
        file.write(data)


def read_step(path: str | Path, shapes: Mapping[str, tuple[int, ...]], rates: int) -> Saved:
    """Read the file `path` of `write_step`, which must have the names and shapes of `shapes`, and `rates` learning
    rates. Raises ModelError for any other file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no dictionary
            facts = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ModelError("the file of a step cannot be read", where=str(path), got=str(error)) from None
    result = {name: array.shape for name, array in arrays.items()}
    if result != dict(shapes):
        wrong = sorted(name for name in result.keys() | shapes.keys() if result.get(name) != shapes.get(name))
        raise ModelError("the file is of another step", where=str(path), got=", ".join(wrong))
    try:
        numbers = [float(rate) for rate in json.loads(facts["rates"])]
        saved = Saved(arrays, int(facts["count"]), numbers, int(facts["seed"]))
    except (KeyError, TypeError, ValueError):
        raise ModelError("the file is of another step", where=str(path), got="no count, rates and seed") from None
    if len(numbers) != rates or saved.count < 0:
        raise ModelError("the file is of another step", where=str(path), expected=f"{rates} rates", got=len(numbers))
    return saved
