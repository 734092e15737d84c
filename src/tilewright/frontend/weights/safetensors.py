"""Read tensors of safetensors files, of the element types that programs support."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.weights.coded import Array
from tilewright.ir.dtype import BY_NAME
from tilewright.support.errors import WeightError

TYPES = {
    "F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16", "BOOL": "bool",
    **{f"{sign}{bits}": f"{sign.lower()}{bits}" for sign in "IU" for bits in (8, 16, 32, 64)},
}  # fmt: skip


def read_safetensors(path: str | Path) -> dict[str, Array]:
    """All tensors of a file by name. Raises WeightError if it is damaged."""
    import safetensors

    try:
        result = safetensors.deserialize(Path(path).read_bytes())  # type: ignore[no-untyped-call]
    except Exception as error:  # the library's own kinds of error are many
        raise WeightError(f"is no safetensors file: {error}", where=str(path)) from None
    return {name: _tensor(name, entry) for name, entry in result}


def _tensor(name: str, entry: Mapping[str, Any]) -> Array:
    if entry["dtype"] not in TYPES:
        raise WeightError("of a type that no program reads", where=f"weight {name!r}", got=entry["dtype"])
    dtype = BY_NAME[TYPES[entry["dtype"]]].numpy
    array: Array = np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
    return array
