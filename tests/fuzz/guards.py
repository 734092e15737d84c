"""Memory of programs between pages that may not be touched: all that a call reads or writes, each thing by itself.

`install()` puts it into this process for good: from then on each call of each program that is loaded runs on copies of
its inputs, weights and caches, and on outputs and temporaries, each of which ends, or begins, at a page that cannot be
read or written. What a call touches outside ends the process by SIGSEGV. Memory that no call has written yet holds a
pattern, so that results that depend on it differ from call to call.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.arena import roots
from tilewright.runtime.call import EXECUTOR, LAYOUT, WEIGHTS
from tilewright.runtime.engine import Engine
from tilewright.runtime.specs import ALIGNMENT, TempSpec
from tilewright.runtime.weights.prepare import Prepare

PAGE = mmap.PAGESIZE
MAX_BYTES = 1 << 28
"""Bytes of one guarded thing: calls that need more are not what is tried."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class TooLarge(Exception):
    """More memory than is tried."""


class Enough(Exception):
    """No further sizes are tried: each is a program of its own, which is compiled anew."""


class Pages:
    """Readable pages with a guard on each side, used again once `free` gives them all back."""

    def __init__(self) -> None:
        self._idle: dict[int, list[tuple[mmap.mmap, int]]] = {}
        self._used: dict[int, list[tuple[mmap.mmap, int]]] = {}

    def take(self, nbytes: int) -> tuple[int, int]:
        """Where readable memory of at least so many bytes begins and ends."""
        pages = max(1, -(-nbytes // PAGE))
        if nbytes > MAX_BYTES:
            raise TooLarge(nbytes)
        pages = 1 << (pages - 1).bit_length()
        idle = self._idle.setdefault(pages, [])
        memory, base = idle.pop() if idle else self._mapped(pages)
        self._used.setdefault(pages, []).append((memory, base))
        return base + PAGE, base + PAGE * (pages + 1)

    def _mapped(self, pages: int) -> tuple[mmap.mmap, int]:
        memory = mmap.mmap(-1, (pages + 2) * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for page in (0, pages + 1):
            assert _libc.mprotect(base + page * PAGE, PAGE, 0) == 0
        return memory, base

    def free(self) -> None:
        """Nothing reads any of it any more."""
        for pages, used in self._used.items():
            if pages <= 64:
                self._idle.setdefault(pages, []).extend(used)
        self._used.clear()


class Guard:
    """How calls are guarded: `at_end` of the readable memory or at its beginning, unwritten bytes are `fill`."""

    def __init__(self) -> None:
        self.at_end = True
        self.fill = 0xFF
        self.pages = Pages()
        self.calls = 0
        """Calls of programs that were guarded."""

    def place(self, nbytes: int, alignment: int = 1) -> int:
        """The address of `nbytes` of unwritten memory. With an alignment, up to as many bytes less one can lie between
        its end and the page."""
        begin, end = self.pages.take(nbytes)
        at = (end - nbytes) & -alignment if self.at_end else begin
        ctypes.memset(at, self.fill, nbytes)
        return at

    def empty(self, like: Any) -> Any:
        """An array like another one, unwritten."""
        return self._view(self.place(like.nbytes), like)

    def copy(self, array: Any, alignment: int = 1) -> Any:
        """A copy of an array."""
        result = self._view(self.place(array.nbytes, alignment), array)
        result[...] = array
        return result

    def copy_bytes(self, address: int, nbytes: int) -> int:
        """Where a copy of aligned memory is."""
        at = self.place(nbytes, ALIGNMENT)
        ctypes.memmove(at, address, nbytes)
        return at

    def _view(self, address: int, like: Any) -> Any:
        memory = (ctypes.c_char * max(like.nbytes, 1)).from_address(address)
        return np.frombuffer(memory, like.dtype, like.size).reshape(like.shape)

    def temporaries(self, temps: Sequence[TempSpec], sizes: Sequence[int]) -> list[int]:
        """Addresses of temporaries: those in one place have the same, all others memory of their own."""
        whose, most = roots(temps), dict[int, int]()
        for root, size in zip(whose, sizes, strict=True):
            most[root] = max(most.get(root, 0), size)
        at = {root: self.place(size, ALIGNMENT) for root, size in most.items()}
        return [at[root] for root in whose]


GUARD = Guard()


def guarded_call(self: Engine, arrays: Sequence[Any], dims: tuple[int, ...]) -> int:
    """`Engine.call` on guarded memory. What it writes is copied back."""
    GUARD.calls += 1
    manifest, slot = self.manifest, self.control.current
    inputs = manifest.inputs
    operands = [GUARD.copy(a) for a in arrays[: len(inputs)]]
    wanted = [GUARD.empty(a) for a in arrays[len(inputs) :]]
    temps = GUARD.temporaries(manifest.run_temps, [i.nbytes for i in self.intervals(dims)])
    self.ensure(dims)
    executors, layouts = self._executors, self._layouts
    layout = self._layout(dims)
    executors[EXECUTOR.tag] = layouts[layout + LAYOUT.tag]
    self._native.add(layouts.address + layout + LAYOUT.users, -1)
    arguments = len(arrays) + len(manifest.packed)
    executors.write(EXECUTOR.slots + 8 * arguments, temps)
    base = slot * self._weights_size + WEIGHTS.addresses
    packed = [self._weights[base + 8 * k] for k in range(len(manifest.packed))]
    executors[EXECUTOR.generation] = 0
    nbytes = {p.name: p.nbytes for p in manifest.params}
    copies = [
        GUARD.copy_bytes(at, nbytes[p.alias] if p.alias is not None else p.nbytes)
        for p, at in zip(manifest.packed, packed, strict=True)
    ]
    self.set_slot(slot, copies)
    try:
        version = _call(self, [*operands, *wanted], dims)
    finally:
        self.set_slot(slot, packed)
        executors[EXECUTOR.tag] = 0
    for spec, mine, theirs in zip(inputs, operands, arrays, strict=False):
        if spec.written:
            np.copyto(theirs, mine)
    for mine, theirs in zip(wanted, arrays[len(inputs) :], strict=True):
        np.copyto(theirs, mine)
    return version


def guarded_prepare(
    self: Prepare, raw: Sequence[int], packed: Sequence[int], *, keep: bool = False, bring: Any = None
) -> None:
    """`Prepare.__call__` on guarded memory."""
    if bring is not None:
        return _prepare(self, raw, packed, keep=keep, bring=bring)
    manifest = self.manifest
    sources = [GUARD.place(p.nbytes, BY_NAME[p.dtype].itemsize) for p in manifest.params]
    for p, mine, theirs in zip(manifest.params, sources, raw, strict=True):
        ctypes.memmove(mine, theirs, p.nbytes)
    number = {p.name: k for k, p in enumerate(manifest.params)}
    created = [
        sources[number[p.alias]] if p.alias is not None else GUARD.place(p.nbytes, ALIGNMENT) for p in manifest.packed
    ]
    _prepare(self, sources, created)
    for p, mine, theirs in zip(manifest.packed, created, packed, strict=True):
        if p.alias is None:
            ctypes.memmove(theirs, mine, p.nbytes)
    return None


def guarded_slots(self: Prepare, raw: Sequence[int], packed: Sequence[int]) -> Any:
    """`Prepare.slots` with guarded temporaries."""
    arena, slots = _slots(self, raw, packed)
    temps = self.manifest.prepare_temps
    sizes = [(t.nbytes or 0) * (self.threads if t.per_thread else 1) for t in temps]
    for k, at in enumerate(GUARD.temporaries(temps, sizes)):
        slots[len(raw) + len(packed) + k] = at
    return arena, slots


_call, _prepare, _slots = Engine.call, Prepare.__call__, Prepare.slots


def install() -> Guard:
    """Guard every program of this process from now on."""
    Engine.call = guarded_call  # type: ignore[method-assign]
    # Calls pass through Python, where they can be guarded.
    Engine.builtin = lambda self, slow, *, versioned=False: slow  # type: ignore[method-assign]
    Prepare.__call__ = guarded_prepare  # type: ignore[method-assign]
    Prepare.slots = guarded_slots  # type: ignore[method-assign]
    return GUARD
