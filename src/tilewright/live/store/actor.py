"""`Actor`: a policy whose weights another process publishes; created by `attach`, without the compiler."""

from __future__ import annotations

import os
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from tilewright.live.store import files
from tilewright.live.store.epoch import Epoch
from tilewright.runtime.engine import Engine
from tilewright.runtime.program import Program, link
from tilewright.runtime.runner import Runner
from tilewright.runtime.target import check_target
from tilewright.runtime.threads import check_threads
from tilewright.runtime.weights.control import NONE, SLOTS, SUPERSEDED, SlotState
from tilewright.support.errors import ArtifactError, CompileError, StoreError

_live: weakref.WeakSet[Actor] = weakref.WeakSet()
_POLL_SECONDS = 0.0005
"""Seconds between two checks for a newer version while one is awaited."""


class Actor(Runner):
    """The newest version of a store's weights, called like a `Model` by any number of threads.

        actor = tw.attach("policy")
        action, value = actor(obs)
        (action, value), version = actor.versioned(obs)

    Each call uses one version as a whole: the one that is newest when it begins. Weights are read where the publisher
    packed them, without a copy, and no call waits for a publisher. When a new structure is published, the next call
    uses it; `inputs` and `outputs` describe its arguments.
    """

    def __init__(
        self,
        name: str,
        *,
        directory: str | os.PathLike[str] | None = None,
        threads: int = 1,
        timeout: float = 0.0,
    ) -> None:
        self._store = name
        self._folder = files.store_folder(name, directory)
        self._threads = check_threads(threads)
        self._moving = threading.RLock()
        self._open = True
        self._use(self._find(timeout))
        _live.add(self)

    # -- where the weights are ---------------------------------------------------------------------------------------

    def _find(self, timeout: float) -> Epoch:
        """Open the current epoch of the store, waiting up to `timeout` seconds for one to appear. Raises StoreError if
        none does, or if it is damaged, cannot be opened or belongs to another user."""
        deadline = time.monotonic() + timeout
        while True:
            path = files.current_epoch(self._folder)
            if path is not None:
                files.check_owner(self._folder)
                try:
                    return Epoch.open(path)
                except FileNotFoundError as error:
                    # Superseded while we looked, then the link has changed; else files are missing.
                    if files.current_epoch(self._folder) == path and time.monotonic() >= deadline:
                        what = f"is damaged: {error.filename} is missing"
                        raise StoreError(what, where=f"store {self._store!r}") from None
                except PermissionError:
                    raise StoreError("belongs to another user", where=f"store {self._store!r}", got=str(path)) from None
                except OSError as error:
                    what = f"cannot be opened: {error.strerror}"
                    raise StoreError(what, where=f"store {self._store!r}", got=error.filename) from None
            elif time.monotonic() >= deadline:
                raise self._missing(timeout)
            time.sleep(0.001)

    def _missing(self, timeout: float) -> StoreError:
        root = self._folder.parent
        known = sorted(p.name for p in root.iterdir() if (p / "current").is_symlink()) if root.is_dir() else []
        hint = "publish first: tw.Publisher(name, model); or pass timeout=seconds to wait for it"
        result = f"the stores {known[:8]}" if known else "no stores at all"
        what = "there is no such store" + (f", after waiting {timeout:g} s" if timeout else "")
        return StoreError(what, where=f"store {self._store!r}", got=f"{result} in {root}", hint=hint)

    def _use(self, epoch: Epoch) -> None:
        where = f"store {self._store!r}"
        try:
            check_target(epoch.manifest.target, where)
            library = link(epoch.program)
            engine = Engine(epoch.manifest, library, self._threads, epoch.control, epoch.enter())
        except (ArtifactError, CompileError) as error:
            epoch.close()
            raise StoreError(f"its program cannot run here: {error}", where=where) from None
        except BaseException:
            epoch.close()
            raise
        for slot in range(SLOTS):
            engine.set_slot(slot, epoch.addresses(slot))
        # A call in flight keeps its engine: until it ends, its memory stays mapped and its pin counts.
        weakref.finalize(engine, epoch.close).atexit = False
        self._epoch = epoch
        self._start(engine)

    def _follow(self) -> None:
        """Open the epoch that the store's link points to, after the control page named no slot, or the epoch was
        deleted. Raises StoreError if there is no other epoch."""
        with self._moving:
            self._check_open()
            now = self._epoch.control.current
            gone = self._epoch.deleted and files.current_epoch(self._folder) is not None
            if 0 <= now < SLOTS and not gone:
                return  # another thread has gone there already
            if now != SUPERSEDED and not gone:
                what = "has no version yet" if now == NONE else "its control page is damaged"
                raise StoreError(what, where=f"store {self._store!r}", got=now)
            self._use(self._find(0.0))

    def _weight_addresses(self) -> list[int]:
        return self._epoch.addresses(self._epoch.control.current)

    # -- versions ----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version that a call would use now."""
        return self._newest().version

    @property
    def age(self) -> float:
        """Seconds since the current version was published."""
        return time.monotonic() - self._newest().published

    def wait(self, version: int | None = None, timeout: float | None = None) -> bool:
        """Wait for a version of at least this number; if None, for one newer than the current one.

        Returns whether it came within `timeout` seconds.
        """
        wanted = self.version + 1 if version is None else version
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.version < wanted:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _newest(self) -> SlotState:
        while True:
            newest = self._epoch.control.newest()
            # Files that were deleted while they are open still are in memory; another process may have made new
            # ones.
            if newest is not None and not (self._epoch.deleted and files.current_epoch(self._folder)):
                return newest
            self._follow()

    # -- life --------------------------------------------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """The store's program without weights, from which a new `Publisher` can continue the store."""
        return self._epoch.program

    @property
    def store(self) -> Path:
        """The folder of the store."""
        return self._folder

    def close(self) -> None:
        """Detach from the store. Later calls raise errors."""
        with self._moving:
            if not self._open:
                return
            self._open = False
            self._go_slow()
            del self._binding

    def _checked_call(self, inputs: tuple[Any, ...], out: Any) -> tuple[Any, int]:
        self._check_open()
        return super()._checked_call(inputs, out)

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError("this actor is detached", where=f"store {self._store!r}")

    def __getattr__(self, name: str) -> Any:
        if name == "_binding":
            self._check_open()
        raise AttributeError(f"an actor has no attribute {name!r}")

    def __reduce__(self) -> Any:
        # Sent to another process, an actor attaches there.
        return _attach_anew, (self._store, self._threads, self._folder.parent)

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self.__dict__.get("_open") or "_epoch" not in self.__dict__:
            return f"<Actor {self._store!r}, detached>"
        newest = self._epoch.control.newest()
        version = newest.version if newest is not None else "moved"
        return f"<Actor {self._store!r} of {self._described()}, version {version}>"

    def _after_fork(self) -> None:
        self._moving = threading.RLock()
        if self._open:
            try:
                self._engine.set_reader(self._epoch.reenter())
            except (StoreError, OSError):
                self.close()  # its calls would pin in the parent's name, whose death would make them unsafe


def attach(
    name: str, threads: int = 1, *, timeout: float = 0.0, directory: str | os.PathLike[str] | None = None
) -> Actor:
    """Attach to a store that a `Publisher` of this node has created.

    Args:
        threads: of a call, the caller's included.
        timeout: seconds to wait for the store to appear.
        directory: of all stores; TILEWRIGHT_STORE_DIR or /dev/shm/tilewright-<user number> if None.

    Raises StoreError if there is no such store, or it cannot be used here.
    """
    return Actor(name, threads=threads, timeout=timeout, directory=directory)


def _attach_anew(name: str, threads: int, directory: Path) -> Actor:
    return attach(name, threads, directory=directory)


def _after_fork() -> None:
    for actor in list(_live):
        actor._after_fork()


os.register_at_fork(after_in_child=_after_fork)
