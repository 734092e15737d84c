"""A store of weights shared by all actor processes of a node, any of which may publish new weights.

The first process to open the store compiles, the first one to receive a version publishes it, all read. Locks decide
which process is first and are held only meanwhile: a busy or dead process does not block others.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tilewright.live.store import Actor, Publisher, attach, files, info, sweep
from tilewright.runtime.model import Model
from tilewright.support.errors import StoreError

Weights = Callable[[], Mapping[str, Any]]

_TIMEOUT_SECONDS = 120.0
"""The longest time in seconds that a process waits while another one packs weights."""
_FORGOTTEN_SECONDS = 60.0
"""The age in seconds from which on a store without a publisher and readers is removed."""


def publisher_of(
    name: str, model: Model, *, directory: str | os.PathLike[str] | None = None, wait: float = 0.0
) -> Publisher:
    """Return a publisher of the store `name` after making the weights of `model` the store's newest version, also where
    an earlier run has left versions in the store. Waits up to `wait` seconds for another publisher to end."""
    publisher = Publisher(name, model, directory=directory, wait=wait)
    if not publisher.stats()["published"]:
        publisher.publish(model.weights, finite=False)
    return publisher


class NodeStore:
    """A store that is made, fed and read by processes that share nothing but its name.

        store = NodeStore("policy-of-run-17")
        store.open(compile, weights, version)         # compiles if no other process has
        outputs, version = store.call(obs)
        store.publish(weights, version)               # packs if no other process has

    Args:
        name: of the store, the same in all processes, and in no other run: versions begin anew in each.
        threads: of a call.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self.name = name
        self._threads = threads
        self._actor: Actor | None = None
        self.published = 0
        """The number of versions that this process has packed."""

    @property
    def is_open(self) -> bool:
        """Whether this process has opened the store and not closed it, so that `call` and `publish` may be used."""
        return self._actor is not None

    def open(self, compile: Callable[[], Model], weights: Weights | None = None, version: int | None = None) -> None:
        """Attach to the store, and make sure that it has these weights or newer ones. The first process creates it.

        Args:
            compile: gives the program, and the weights that stand in the store until others are published; called if
                this process is the first.
            weights, version: as for `publish`; but 0 says nothing to a store that is there: a process that comes late
                must not take the others back. None if there are none yet.
        """
        with self._first():
            try:
                actor = attach(self.name, self._threads)
            except StoreError:
                model = compile()
                with Publisher(self.name, model) as publisher:
                    # Attached before the lock goes, so that the new store has an owner at all times.
                    if weights is not None:
                        self._put(publisher, weights(), version or 0)
                    actor = attach(self.name, self._threads)
        self._actor = actor
        if weights is not None and version != 0:
            self.publish(weights, version)

    def publish(self, weights: Weights, version: int | None) -> None:
        """Make sure that the store has this version of the weights, or a newer one.

        Args:
            weights: gives all of them by name, and perhaps others; called if this process is the first.
            version: 0 is the first of a run and takes the store back to the beginning if it is further. None puts the
                weights in the place of the newest version, whose number stays.
        """
        actor = self._actor
        assert actor is not None, "an open store is published to"
        if not _is_new(version, actor.version):
            return
        with Publisher(self.name, actor.program, wait=_TIMEOUT_SECONDS) as publisher:
            if _is_new(version, publisher.version):
                number = publisher.version if version is None else version
                self._put(publisher, weights(), number)

    def _put(self, publisher: Publisher, weights: Mapping[str, Any], version: int) -> None:
        # A learner may send more than actors read: critics, targets.
        known = {p.name: weights[p.name] for p in publisher.params if p.name in weights}
        publisher.publish(known, version, force=True)
        self.published += 1

    def call(self, *inputs: Any) -> tuple[Any, int]:
        """Call the policy. Returns the outputs, and the version of the weights that gave them."""
        assert self._actor is not None, "an open store is called"
        result: tuple[Any, int] = self._actor.versioned(*inputs)
        return result

    def close(self) -> None:
        """Detach this process from the store, which can be called no more; the last process to do so removes the
        store's files. Does nothing if the store is not open."""
        if self._actor is None:
            return
        # Under the lock, so that of two that leave together the second finds no reader and no other sweep.
        with self._first():
            self._actor.close()
            self._actor = None
            with contextlib.suppress(StoreError):
                sweep(name=self.name)

    @contextlib.contextmanager
    def _first(self) -> Iterator[None]:
        """Hold a lock on the store's folder, which is created if needed, so that one process at a time runs the
        block."""
        folder = files.store_folder(self.name)
        file = -1
        while file < 0:
            files.make_folder(folder, 0o600)
            with contextlib.suppress(FileNotFoundError):
                file = _locked(folder)
        try:
            yield
        finally:
            os.close(file)


def _locked(folder: Path) -> int:
    """A descriptor of the folder, opened and locked; -1 if the name meanwhile belongs to another folder."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.samestat(os.fstat(file), os.stat(folder)):
            return file
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return -1


def _is_new(version: int | None, present: int) -> bool:
    if not version:
        return version is None or present != 0
    return version > present


def sweep_forgotten(prefix: str) -> None:
    """Remove the stores with this name prefix that killed processes left: those without readers and publisher."""
    root = files.store_root()
    for folder in root.glob(f"{prefix}*/") if root.is_dir() else ():
        with contextlib.suppress(StoreError):  # of others, or going already
            store = info(folder.name)
            if store.publisher is None and not store.readers and store.age > _FORGOTTEN_SECONDS:
                sweep(name=store.name)
