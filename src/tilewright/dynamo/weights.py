"""A part's program with the weights of one set of tensors: packed when they are met, packed again when they change."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.native.link import Library
from tilewright.runtime.engine import Engine
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import Memory, aligned_copy
from tilewright.runtime.manifest import ALIGNMENT, Manifest, ParamSpec
from tilewright.runtime.native import native
from tilewright.runtime.program import Program
from tilewright.runtime.runner import Runner
from tilewright.runtime.watch import WATCHED
from tilewright.runtime.weights.local import LocalWeights


@dataclass(frozen=True, slots=True)
class Packing:
    """What of a program's weights is packed. `positions`: of each parameter that is not fixed, which of the part's
    weights it is. `digested`: the parameters that `prepare` reads, whose copies grow old."""

    positions: dict[str, int]
    digested: frozenset[str]


def packing(manifest: Manifest) -> Packing:
    """How a program made by `PartImporter` reads its weights: they are named w0, w1, ..."""
    free = [p.name for p in manifest.params if not p.fixed]
    slots = [p.name for p in manifest.params] + [p.alias or "" for p in manifest.packed]
    read = {slots[s] for step in manifest.prepare_steps for s in step.slots if s < len(slots)}
    return Packing({name: int(name[1:]) for name in free}, frozenset(read & set(free)))


class Packed(Runner):
    """A program with packed weights. `unchanged(*tensors)` says whether these tensors still are those that it has.

    What `prepare` does not read, the program reads where the tensors have it, so that only addresses matter there.

    Args:
        frozen: weights are copied and never looked at again, only where they are.
    """

    def __init__(self, program: Program, library: Library, pack: Packing, threads: int, frozen: bool) -> None:
        self._program, self._packing, self._frozen = program, pack, frozen
        self._params = program.manifest.params
        self._packed = LocalWeights(Engine(program.manifest, library, threads))
        self._fixed = {name: aligned_copy(np.asarray(array)) for name, array in program.weights.items()}
        self._version = 0
        self.unchanged: Callable[..., bool] = lambda *tensors: not tensors
        self._start(self._packed._engine)

    @property
    def call(self) -> Callable[..., Any]:
        """The call, as `Runner` has it, without a look-up."""
        return self._face.call

    def _weight_addresses(self) -> list[int]:
        return self._packed.current.packed_addresses

    def take(self, tensors: Sequence[Any]) -> None:
        """Pack these tensors, and watch them from now on. They are read while somebody else holds them only."""
        for tensor in tensors:
            native().learn(type(tensor))
        digests = self._watch(tensors)
        arrays = [self._fixed[p.name] if p.fixed else self._raw(p, tensors) for p in self._params]
        self._version += 1
        self._packed.adopt(arrays, self._version)
        self.unchanged = digests

    def _raw(self, p: ParamSpec, tensors: Sequence[Any]) -> Array:
        """A tensor's memory as an array, without holding it; a copy where it is not aligned."""
        address = tensors[self._packing.positions[p.name]].data_ptr()
        kind = BY_NAME[p.dtype].numpy
        if not p.nbytes:
            return np.empty(p.shape, kind)
        memory: Any = (ctypes.c_uint8 * p.nbytes).from_address(address)
        array: Array = np.frombuffer(memory, np.uint8).view(kind).reshape(p.shape)
        return aligned_copy(array) if self._frozen or address % ALIGNMENT else array

    def _watch(self, tensors: Sequence[Any]) -> Callable[..., bool]:
        """A builtin that compares tensors with these."""
        names = {position: name for name, position in self._packing.positions.items()}
        nbytes = {p.name: p.nbytes for p in self._params}
        total = 0
        table = Memory(WATCHED.size * max(len(tensors), 1))
        keep: list[object] = [table]
        for k, tensor in enumerate(tensors):
            address, name = tensor.data_ptr(), names.get(k, "")
            copied = name in self._packing.digested or (name != "" and address % ALIGNMENT != 0)
            read = nbytes[name] if copied and not self._frozen else 0
            digest = native().digest(address, read) if read else 0
            total += read
            sizes = Memory(16 * max(tensor.ndim, 1))
            sizes.write(0, [*tensor.shape, *tensor.stride()])
            keep.append(sizes)
            table.write(k * WATCHED.size, [address, read, digest, tensor.ndim, sizes.address])
        return native().unchanged(table.address, total, keep)


__all__ = ["Packed", "Packing", "packing"]
