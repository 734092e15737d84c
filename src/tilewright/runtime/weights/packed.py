"""One version of weights in memory: raw as passed in, and packed as the program reads them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import aligned_bytes
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.specs import ALIGNMENT, ParamSpec


def packed_nbytes(manifest: Manifest) -> int:
    """Bytes of the packed parameters that are not aliases of raw ones, each rounded to the alignment."""
    return sum(_round(p.nbytes) for p in manifest.packed if p.alias is None)


def slot_nbytes(manifest: Manifest) -> int:
    """Bytes of all packed parameters, aliases included, for a slot that holds no raw weights."""
    return sum(_round(p.nbytes) for p in manifest.packed)


def slot_offsets(manifest: Manifest) -> list[int]:
    """The offset of each packed parameter in a slot of `slot_nbytes` bytes."""
    return [0, *accumulate(_round(p.nbytes) for p in manifest.packed)][: len(manifest.packed)]


class WeightSet:
    """A version of the weights: the packed ones, of which some are raw arrays, used as they are.

    Args:
        raw: arrays in the order of the manifest's parameters, dense and 64-byte aligned; they are kept, not copied.
        packed: memory for the packed parameters that are not aliases, of `packed_nbytes(manifest)` bytes.
    """

    def __init__(self, manifest: Manifest, raw: Sequence[Array], packed: Array, version: int) -> None:
        self.raw: tuple[Array | None, ...] = tuple(raw)
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

    def drop(self, retained: Collection[int]) -> None:
        """Drop the raw arrays, except those of the parameters numbered in `retained`, when packing has read them."""
        self.raw = tuple(a if k in retained else None for k, a in enumerate(self.raw))
        self.raw_addresses = []


def needed_raw(manifest: Manifest) -> frozenset[int]:
    """The numbers of the parameters whose raw arrays must stay in memory: those that calls read directly, and the fixed
    ones, with which later versions are packed."""
    aliases = {p.alias for p in manifest.packed}
    return frozenset(k for k, p in enumerate(manifest.params) if p.fixed or p.name in aliases)


def free_numbers(manifest: Manifest) -> dict[int, int]:
    """For each parameter that is not fixed: its number among all parameters -> its number among the ones that are not
    fixed."""
    free = [k for k, p in enumerate(manifest.params) if not p.fixed]
    return {k: n for n, k in enumerate(free)}


def raw_nbytes(params: Sequence[ParamSpec]) -> int:
    """The bytes of memory that the raw arrays of `params` take, each at a multiple of 64 bytes."""
    return sum(_round(p.nbytes) for p in params)


def copy_aligned(params: Sequence[ParamSpec], arrays: Sequence[Array]) -> list[Array]:
    """Dense read-only copies in one block of memory, each 64-byte aligned, so that the caller may modify its own
    arrays."""
    copies = aligned_views(params, aligned_bytes(raw_nbytes(params)))
    for copy, array in zip(copies, arrays, strict=True):
        np.copyto(copy, array)
        copy.flags.writeable = False
    return copies


def aligned_views(params: Sequence[ParamSpec], block: Array) -> list[Array]:
    """Dense 64-byte aligned arrays for parameters, in aligned memory of `raw_nbytes(params)` bytes."""
    views, at = [], 0
    for p in params:
        views.append(block[at : at + p.nbytes].view(BY_NAME[p.dtype].numpy).reshape(p.shape))
        at += _round(p.nbytes)
    return views


def adopted(params: Sequence[ParamSpec], arrays: Sequence[Array]) -> list[Array]:
    """`arrays` of the parameters `params`, which no other code modifies: arrays that are dense and aligned to 64 bytes
    as they are, copies of the others."""
    fit = [a.flags.c_contiguous and a.ctypes.data % ALIGNMENT == 0 for a in arrays]
    others = [k for k, retained in enumerate(fit) if not retained]
    copies = iter(copy_aligned([params[k] for k in others], [arrays[k] for k in others]))
    return [a if retained else next(copies) for a, retained in zip(arrays, fit, strict=True)]


def readable(manifest: Manifest, arrays: Sequence[Array], private: bool) -> list[Array]:
    """`arrays` in a form that packing can read: copies of arrays that are not dense, and of arrays that stay in memory
    (`needed_raw`) unless they are `private`."""
    stay = sorted(needed_raw(manifest))
    own = adopted if private else copy_aligned
    copies = dict(zip(stay, own([manifest.params[k] for k in stay], [arrays[k] for k in stay]), strict=True))
    return [copies[k] if k in copies else np.require(a, requirements=["C", "A"]) for k, a in enumerate(arrays)]


def is_readable(array: Array) -> bool:
    """Whether `tw_prepare` can read this array without a copy."""
    return array.flags.c_contiguous and array.flags.aligned


def _round(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
