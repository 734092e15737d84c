"""A part's program with one set of weight tensors: packed at their first use, and again when they change."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.native.link import Library
from tilewright.runtime.engine import Engine
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import Memory, aligned_copy
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.native import native
from tilewright.runtime.program import Program
from tilewright.runtime.runner import Runner
from tilewright.runtime.specs import ALIGNMENT, ParamSpec
from tilewright.runtime.watch import WATCH, WATCHED
from tilewright.runtime.weights.local import LocalWeights
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError


@dataclass(frozen=True, slots=True)
class Packing:
    """How a program reads its weights: `positions` has, for each parameter that is not fixed, the index of the part's
    weight; `digested` are parameters with packed copies, which become stale when a tensor changes."""

    positions: dict[str, int]
    digested: frozenset[str]


def packing(manifest: Manifest) -> Packing:
    """How a program made by `PartImporter` reads its weights: they are named w0, w1, ..."""
    free = [p.name for p in manifest.params if not p.fixed]
    slots = [p.name for p in manifest.params] + [p.alias or "" for p in manifest.packed]
    read = {slots[s] for step in manifest.prepare_steps for s in step.slots if s < len(slots)}
    return Packing({name: int(name[1:]) for name in free}, frozenset(read & set(free)))


class Packed(Runner):
    """A program with packed weights.

    Weights that `prepare` does not pack are read in place from the tensors, so that of those only the addresses are
    checked.

    Args:
        repeated: called with all arguments of a call if a tensor has changed since it was packed, or if the fast path
            cannot handle them.
        frozen: weights are copied once, and changes of their contents are not looked for; only their addresses are
            checked.
    """

    def __init__(
        self,
        program: Program,
        library: Library,
        pack: Packing,
        threads: int,
        frozen: bool,
        repeated: Callable[..., Any],
    ) -> None:
        self._packing, self._frozen, self._repeat = pack, frozen, repeated
        self._params = program.manifest.params
        self._fixed = {name: aligned_copy(np.asarray(array)) for name, array in program.weights.items()}
        self._local = LocalWeights(Engine(program.manifest, library, threads))
        self._watched: tuple[_Watched, ...] | None = None
        self._version = 0
        self._start(self._local._engine)

    @property
    def call(self) -> Callable[..., Any]:
        """The call with inputs alone: it uses the weights that were packed last."""
        return self._binding.call

    def _weight_addresses(self) -> list[int]:
        return self._local.current.packed_addresses

    def holds(self, tensors: Sequence[Any]) -> bool:
        """Whether these are the tensors that were packed last, with unchanged values."""
        watched = self._watched
        return watched is not None and all(w.fits(t) for w, t in zip(watched, tensors, strict=True))

    def take(self, tensors: Sequence[Any]) -> Callable[..., Any]:
        """Pack these tensors; returns the function that is called with inputs and weights, and that checks whether the
        weights are unchanged. The tensors are read by their addresses, without references to them. Raises
        CallError for a tensor without memory."""
        for tensor in tensors:
            if tensor.numel() and not tensor.data_ptr():
                raise CallError("a weight has no memory", got="a lazy zero of PyTorch", hint="x.clone()")
            native().learn(type(tensor))
        watched = self._watch(tensors)
        arrays = [self._fixed[p.name] if p.fixed else self._raw(p, tensors) for p in self._params]
        self._version += 1
        self._local.adopt(arrays, self._version)
        self._watched = watched
        return self._watching(watched)

    def _raw(self, p: ParamSpec, tensors: Sequence[Any]) -> Array:
        """The memory of the weight for parameter `p` as an array, without a reference to the tensor; a copy if it is
        not aligned."""
        address = tensors[self._packing.positions[p.name]].data_ptr()
        kind = BY_NAME[p.dtype].numpy
        if not p.nbytes:
            return np.empty(p.shape, kind)
        memory: Any = (ctypes.c_uint8 * p.nbytes).from_address(address)
        array: Array = np.frombuffer(memory, np.uint8).view(kind).reshape(p.shape)
        return aligned_copy(array) if self._frozen or address % ALIGNMENT else array

    def _watch(self, tensors: Sequence[Any]) -> tuple[_Watched, ...]:
        """Address, digest and layout of each tensor at present, to detect changes later."""
        names = {position: name for name, position in self._packing.positions.items()}
        nbytes = {p.name: p.nbytes for p in self._params}
        results = []
        for k, tensor in enumerate(tensors):
            address, name = tensor.data_ptr(), names.get(k, "")
            copied = name in self._packing.digested or (name != "" and address % ALIGNMENT != 0)
            read = nbytes[name] if copied and not self._frozen else 0
            digest = native().digest(address, read) if read else 0
            results.append(_Watched(address, read, digest, (*tensor.shape, *tensor.stride())))
        return tuple(results)

    def _watching(self, watched: Sequence[_Watched]) -> Callable[..., Any]:
        """The builtin that runs the program if the tensors are as recorded in `watched`, and else calls Python."""
        table = Memory(WATCH.size + WATCHED.size * len(watched))
        keep: list[object] = [table, self._local._engine]
        table.write(0, [len(watched), sum(w.nbytes for w in watched), native().digest_address])
        for k, w in enumerate(watched):
            layout = Memory(8 * len(w.layout))
            layout.write(0, w.layout)
            keep.append(layout)
            row = [w.address, w.nbytes, w.digest, len(w.layout) // 2, layout.address]
            table.write(WATCH.size + k * WATCHED.size, row)
        return native().watching(self._local._engine.address, self._repeat, table.address, keep)


@dataclass(frozen=True, slots=True)
class _Watched:
    """The recorded state of a tensor: its address, a digest of its bytes, its sizes and strides."""

    address: int
    nbytes: int
    digest: int
    layout: tuple[int, ...]

    def fits(self, tensor: Any) -> bool:
        same = tensor.data_ptr() == self.address and (*tensor.shape, *tensor.stride()) == self.layout
        return same and (not self.nbytes or native().digest(self.address, self.nbytes) == self.digest)


__all__ = ["Packed", "Packing", "packing"]
