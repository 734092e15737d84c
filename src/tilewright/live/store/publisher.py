"""`Publisher`: writes new weights of a model to the shared store from which all actors of a node read them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.live.store import files
from tilewright.live.store.epoch import Epoch, digest_of
from tilewright.live.store.segment import open_control
from tilewright.live.store.sums import Sums
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import aligned_bytes
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.model import Model
from tilewright.runtime.native import native
from tilewright.runtime.program import Program, link
from tilewright.runtime.specs import ParamSpec
from tilewright.runtime.target import check_target
from tilewright.runtime.threads import check_threads
from tilewright.runtime.weights.check import check_finite, check_version, check_weights
from tilewright.runtime.weights.control import SUPERSEDED
from tilewright.runtime.weights.packed import aligned_views, free_numbers, is_readable, raw_nbytes
from tilewright.runtime.weights.prepare import Prepare
from tilewright.support.classes import dataclass
from tilewright.support.errors import StoreError

_TIMEOUT_SECONDS = 30.0
"""Seconds that a publication waits for a slot that no call uses."""
_live: weakref.WeakSet[Publisher] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class _New:
    """A publication in progress: arrays in the order of the parameters that are not fixed, names and shapes checked."""

    arrays: Sequence[Array]
    version: int
    finite: bool
    started: float


class Publisher:
    """Publishes versions of a model's weights to a store, from which actors of this node read them.

        pub = tw.Publisher("policy", model)
        pub.publish(module.state_dict(), version=17)

    A store has one publisher at a time; its successor continues with the versions. If the store is new, or has another
    structure, the model's current weights become its first version, and actors switch to the new structure between
    calls; else the newest version stays until `publish` is called. When the publisher ends, nothing is removed: actors
    go on with the last version. Any number of threads may publish.

    Args:
        name: of the store.
        model: a `Model`, or a `Program`; for one without weights, the first `publish` creates the store.
        directory: of all stores; TILEWRIGHT_STORE_DIR or /dev/shm/tilewright-<user number> if None.
        wait: seconds to wait while another process is the publisher.
        mode: access to the files: 0o600, or 0o660 for the actors of a group.
        threads: that pack the weights.

    Raises StoreError if another process is the publisher, or there is no memory.
    """

    def __init__(
        self,
        name: str,
        model: Model | Program,
        *,
        directory: str | os.PathLike[str] | None = None,
        wait: float = 0.0,
        mode: int = 0o600,
        threads: int = 1,
    ) -> None:
        program, supplied, version = _parts(model)
        check_target(program.manifest.target, f"program {program.manifest.name!r}")
        self.name = name
        self.folder = files.store_folder(name, directory)
        self._manifest = program.manifest
        self._mode = mode
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._fixed = {p.name: program.weights[p.name] for p in program.manifest.params if p.fixed}
        self._params = [p for p in program.manifest.params if not p.fixed]
        self._numbers = free_numbers(program.manifest)
        self._aliases = _aliases(program.manifest)
        self._staging: Array | None = None
        self._sums = Sums(self._lock)
        self._prepare = Prepare(program.manifest, link(program), check_threads(threads))
        self._program = program
        self._epoch: Epoch | None = None
        self._floor = -1
        self._published = 0
        files.make_folder(self.folder, mode)
        self._file = files.lock_publisher(self.folder, mode, wait)
        try:
            self._continue()
            if self._epoch is None and supplied is not None:
                self.publish(supplied, max(version, self._floor + 1), finite=False)
        except BaseException:
            self.close()
            raise
        _live.add(self)

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(
        self, weights: Mapping[str, Any], version: int | None = None, *, force: bool = False, finite: bool = True
    ) -> int:
        """Make weights current for every later call of every actor; returns their version.

        They are checked, packed into an unused slot, and then become current at once: a call uses a single version.
        After an error nothing has changed. Tensors on a GPU are copied to the CPU first.

        Args:
            weights: all of them by name, as `state_dict()` gives them; NumPy or PyTorch arrays.
            version: a number larger than the newest; that plus 1 if None.
            force: accept any version, so that self-play may go back to an older one.
            finite: refuse NaN and infinity.

        Raises WeightError listing all that is wrong with the weights, StoreError if they cannot be stored.
        """
        started = time.perf_counter()
        arrays = check_weights(
            self._params,
            weights,
            finite=finite,
            ignored=self._manifest.ignored,
            tied=self._manifest.tied,
            folded=self._manifest.folded,
            patterns=self._manifest.patterns,
            fixed=self._fixed,
        )
        with self._lock:
            self._check_usable()
            chosen = check_version(version, self.version, force=force)
            new = _New(arrays, chosen, finite, started)
            if self._epoch is None:
                self._begin(new)
            else:
                self._write(self._epoch, new)
            self._published += 1
            return chosen

    def _begin(self, new: _New) -> None:
        """Create an epoch with `new` as its first version, make it current, and let the readers of older ones move to
        it."""
        older = files.leftovers(self.folder) + [p for p in [files.current_epoch(self.folder)] if p]
        built = files.new_epoch(self.folder, self._mode)
        epoch = None
        try:
            epoch = Epoch.create(built, self._program, self._mode)
            self._write(epoch, new)
            epoch.moved(files.install_epoch(self.folder, built))
        except BaseException as error:
            if epoch is not None:
                epoch.close()
            files.remove(built)
            if isinstance(error, OSError):
                raise StoreError(f"cannot be made: {error.strerror}", where=f"store {self.name!r}") from None
            raise
        self._epoch = epoch
        for path in older:
            retire(path)

    def _write(self, epoch: Epoch, new: _New) -> None:
        control, segments = epoch.control, epoch.segments
        slot = control.take(segments.order, epoch.is_alive, _TIMEOUT_SECONDS)
        try:
            with segments.writing(slot):
                self._fill(epoch, slot, new)
        except BaseException:
            control.release(slot)
            raise
        checksum = self._sums.at_once(epoch, slot)
        control.seal(slot, new.version, time.perf_counter() - new.started, checksum)
        control.flip(slot)
        if not checksum:
            self._sums.add(epoch, slot)
        with contextlib.suppress(OSError):  # the version is published
            for idle in segments.used(slot):
                if control.seize(idle, epoch.is_alive):
                    segments.give_back(idle)
                    control.release(idle)

    def _fill(self, epoch: Epoch, slot: int, new: _New) -> None:
        """Pack the weights `new` into a slot of an epoch. Raw arrays are read in place if their layout permits, else
        copied first."""
        staged = self._staged([k for k, array in enumerate(new.arrays) if not is_readable(array)])
        arguments = iter([staged.get(k, array) for k, array in enumerate(new.arrays)] if staged else new.arrays)
        raw = native().addresses([self._fixed[p.name] if p.fixed else next(arguments) for p in self._manifest.params])
        packed = epoch.addresses(slot)

        def bring(some: Sequence[int]) -> None:
            free = [self._numbers[k] for k in some if k in self._numbers]
            if new.finite:
                check_finite(self._params, new.arrays, free)
            for k in staged.keys() & free:
                np.copyto(staged[k], new.arrays[k])
            for k in some:
                for number, nbytes in self._aliases.get(k, ()):
                    ctypes.memmove(packed[number], raw[k], nbytes)

        self._prepare(raw, packed, keep=True, bring=bring)

    def _staged(self, moved: Sequence[int]) -> dict[int, Array]:
        """Parameter number -> memory for a copy that packing can read, for the parameters in `moved`."""
        if not moved:
            return {}
        if self._staging is None:
            self._staging = aligned_bytes(raw_nbytes(self._params))
        return dict(zip(moved, aligned_views([self._params[k] for k in moved], self._staging), strict=True))

    # -- taking over -------------------------------------------------------------------------------------------------

    def _continue(self) -> None:
        """Open the current epoch for further versions if it has this program, and remove the remains of dead
        publishers."""
        current = files.current_epoch(self.folder)
        for path in files.leftovers(self.folder):
            retire(path)
        if current is None:
            return
        try:
            epoch = Epoch.open(current, writable=True)
        except (StoreError, OSError):
            return  # damaged: a new epoch takes its place
        newest = epoch.control.newest()
        self._floor = newest.version if newest else -1
        if newest is not None and epoch.digest == digest_of(self._program):
            self._epoch = epoch
        else:
            epoch.close()

    def _check_usable(self) -> None:
        where = f"store {self.name!r}"
        if os.getpid() != self._process:
            hint = "a store has one publisher; close the parent's before the child makes one"
            raise StoreError("this publisher belongs to the parent process", where=where, hint=hint)
        if self._file < 0:
            raise StoreError("its publisher is closed", where=where)

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of the newest version in the store. Without one, that from which numbers continue: -1 in a new
        store."""
        newest = self._epoch.control.version if self._epoch is not None else None
        return self._floor if newest is None else newest

    @property
    def params(self) -> tuple[ParamSpec, ...]:
        """Names, dtypes and shapes of the weights that `publish` takes."""
        return tuple(self._params)

    @property
    def manifest(self) -> Manifest:
        """The description of the published program: its inputs, outputs, parameters, memory and steps."""
        return self._manifest

    @property
    def program(self) -> Program:
        """The published program: manifest, code and constants, without weights."""
        return Program(self._manifest, self._program.objects, self._fixed)

    def stats(self) -> dict[str, Any]:
        """The current state of the store as JSON data: versions, times of publishing, readers and the versions that
        they use.

        `readers` lists process, calls, the version of the last call, and how many versions old that is.
        """
        from tilewright.live.store.inventory import describe_epoch

        self._check_usable()
        known = {"name": self.name, "version": self.version, "published": self._published}
        return known | (describe_epoch(self._epoch) if self._epoch is not None else {"readers": []})

    def close(self, *, remove: bool = False) -> None:
        """Stop being the publisher. The newest version stays for actors, unless `remove` is set."""
        if os.getpid() == self._process:
            self._sums.wait()
        with self._lock:
            if self._file < 0:
                return
            if remove and os.getpid() == self._process:
                remove_store(self.folder)
            if self._epoch is not None:
                self._epoch.close()
            os.close(self._file)
            self._file = -1

    def __reduce__(self) -> Any:
        hint = "send the store's name, and attach there: tw.attach(name)"
        raise StoreError("a publisher cannot be sent to another process", where=f"store {self.name!r}", hint=hint)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._file < 0 else f"version {self.version}"
        return f"<Publisher {self.name!r} of {self._manifest.name}, {state}>"

    def _after_fork(self) -> None:
        # The child must not keep the parent's lock alive.
        self._lock = threading.RLock()
        self._sums = Sums(self._lock)
        self._prepare.forget()
        with contextlib.suppress(OSError):
            os.close(self._file)
        self._file = -1
        if self._epoch is not None:
            self._epoch.close()


def _parts(model: Model | Program) -> tuple[Program, Mapping[str, Any] | None, int]:
    """(program, its weights by name or None, their version) of the model that a caller passes. Raises StoreError for
    other objects."""
    if isinstance(model, Model):
        return model.program, model.weights, model.version
    if not isinstance(model, Program):
        hint = "compile it first: tw.Publisher(name, tw.compile(module, example))"
        raise StoreError("cannot be published", expected="a Model", got=type(model).__qualname__, hint=hint)
    names = [p.name for p in model.manifest.params if not p.fixed]
    weights = {name: model.weights[name] for name in names if name in model.weights}
    return model, weights if len(weights) == len(names) else None, 0


def _aliases(manifest: Manifest) -> dict[int, list[tuple[int, int]]]:
    """Raw parameter number -> (number, bytes) of the packed parameters that are aliases of it."""
    number = {p.name: k for k, p in enumerate(manifest.params)}
    result: dict[int, list[tuple[int, int]]] = {}
    for k, packed in enumerate(manifest.packed):
        if packed.alias is not None:
            result.setdefault(number[packed.alias], []).append((k, packed.nbytes))
    return result


def retire(path: Path) -> None:
    """Tell the readers of an epoch that it has ended, and remove its files. The memory that readers have mapped
    stays."""
    with contextlib.suppress(StoreError, OSError):
        open_control(path / "control").flip(SUPERSEDED)
    files.remove(path)


def remove_store(folder: Path) -> None:
    """Delete the store in `folder`, so that no process can attach any more, and tell its readers that it has ended. The
    caller holds the store's lock."""
    files.remove(folder / "current")  # first, so that no process attaches any more
    for path in files.epochs(folder):
        retire(path)
    files.remove(folder)


def _after_fork() -> None:
    for publisher in list(_live):
        publisher._after_fork()


os.register_at_fork(after_in_child=_after_fork)
