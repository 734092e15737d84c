"""Weights in memory: checking what the user hands in, and one set of raw and packed parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.interop import Array, as_numpy, describe
from tilewright.runtime.manifest import ALIGNMENT, Manifest, ParamSpec
from tilewright.support.errors import CallError, Problems, WeightError

_MOST_NAMED = 8


class WeightSet:
    """One version of a program's weights, 64-byte aligned: raw as given, packed as `tw_run` reads them.

    Args:
        raw: arrays in the order of the manifest's parameters, dense and aligned; they are kept, not copied.
        packed: memory for the packed parameters that are not aliases, of `packed_nbytes(manifest)` bytes.
    """

    def __init__(self, manifest: Manifest, raw: Sequence[Array], packed: Array, version: int) -> None:
        self.raw = tuple(raw)
        self.packed = packed
        self.version = version
        self.raw_addresses = [a.ctypes.data for a in raw]
        by_name = dict(zip((p.name for p in manifest.params), self.raw_addresses, strict=True))
        self.packed_addresses: list[int] = []
        at = packed.ctypes.data
        for p in manifest.packed:
            if p.alias is not None:
                self.packed_addresses.append(by_name[p.alias])
            else:
                self.packed_addresses.append(at)
                at += _round(p.nbytes)


def packed_nbytes(manifest: Manifest) -> int:
    """Bytes of the packed parameters that are not aliases, each rounded to the alignment."""
    return sum(_round(p.nbytes) for p in manifest.packed if p.alias is None)


def check_weights(params: Sequence[ParamSpec], weights: Mapping[str, Any], *, finite: bool) -> list[Array]:
    """The arrays in the parameters' order, each checked; WeightError listing all that is wrong.

    Args:
        finite: refuse NaN and infinity.
    """
    problems = Problems()
    if not isinstance(weights, Mapping):
        raise WeightError("not a mapping of names to arrays", got=type(weights).__qualname__)
    known = {p.name for p in params}
    extra = [str(name) for name in weights if name not in known]
    for name in extra:
        problems.add(WeightError("there is no such weight", where=f"weight {name!r}"))
    arrays: list[Array] = []
    for p in params:
        where = f"weight {p.name!r}"
        if p.name not in weights:
            problems.add(WeightError("is missing", where=where, expected=f"{p.dtype}{list(p.shape)}"))
            continue
        try:
            array = as_numpy(weights[p.name], where)
        except CallError as error:
            problems.add(WeightError(error.what, where=where, expected=error.expected, got=error.got))
            continue
        if array.dtype != BY_NAME[p.dtype].numpy or not array.dtype.isnative or array.shape != p.shape:
            expected = f"{p.dtype}[{', '.join(map(str, p.shape))}]"
            problems.add(WeightError("wrong shape or type", where=where, expected=expected, got=describe(array)))
        elif finite and not _all_finite(array):
            hint = "pass finite=False to accept them"
            problems.add(WeightError("holds NaN or infinity", where=where, hint=hint))
        else:
            arrays.append(array)
    problems.raise_if_any("the weights do not fit", kind=WeightError)
    return arrays


def copy_aligned(params: Sequence[ParamSpec], arrays: Sequence[Array]) -> list[Array]:
    """Dense copies in one block of memory, each 64-byte aligned, so that the caller may change theirs at once."""
    total = sum(_round(p.nbytes) for p in params)
    block = np.empty(total + ALIGNMENT, np.uint8)
    at = -block.ctypes.data % ALIGNMENT
    copies = []
    for p, array in zip(params, arrays, strict=True):
        copy = block[at : at + p.nbytes].view(array.dtype).reshape(p.shape)
        np.copyto(copy, array)
        copy.flags.writeable = False
        copies.append(copy)
        at += _round(p.nbytes)
    return copies


def _all_finite(array: Array) -> bool:
    """A finite sum has finite terms; only where the sum is not finite, which overflow may cause, look at each."""
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        return True
    if array.dtype.itemsize < 4:
        return bool(np.isfinite(array).all())
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())


def _round(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
