"""`relay`: keeps a store of this node up to date with a source of weights, so that its actors only need `attach`."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import ssl
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from tilewright.live.store import files
from tilewright.live.store.publisher import Publisher
from tilewright.live.transport.address import parse_address
from tilewright.live.transport.client import CODE_LIMIT, TcpSource
from tilewright.live.transport.messages import Mark
from tilewright.live.transport.source import Source, Update
from tilewright.live.transport.structure import Structure, decode
from tilewright.live.transport.wire import CHUNK, LostError
from tilewright.support.errors import Error, StoreError, TransportError

log = logging.getLogger("tilewright.transport")

_WAIT = 20.0
"""Seconds that one request waits for a newer version."""
_MAX_LOST = 2.0
"""Longest pause, in seconds, before a lost connection is tried again."""
_MAX_REFUSED = 15.0
"""Longest pause, in seconds, before a server that refused is tried again."""
_STANDBY = 0.2
"""Seconds between two attempts to replace another relay of the node."""

_live: weakref.WeakSet[Relay] = weakref.WeakSet()


class Relay:
    """Fetches updates from a source and publishes them into a store of this node, in a thread of its own.

    Weights are sent to the node once and packed once, whatever the number of actors. Of several relays for one store,
    one works and the others stand by. Failures are logged, stored in `error`, and retried; the store keeps its last
    version meanwhile. A source may go back to an older version.

    Args:
        source: where updates come from.
        name: of the store.
        directory: of all stores; TILEWRIGHT_STORE_DIR or /dev/shm/tilewright-<user number> if None.
        threads: that pack the weights.
        mode: access to the store's files.
    """

    def __init__(
        self,
        source: Source,
        name: str,
        *,
        directory: str | os.PathLike[str] | None = None,
        threads: int = 1,
        mode: int = 0o600,
    ) -> None:
        self.name = name
        self.error: Error | None = None
        self._source = source
        self._directory = directory
        self._threads = threads
        self._mode = mode
        self._folder = files.store_folder(name, directory)
        self._lock_file = -1
        self._publisher: Publisher | None = None
        self._structure: Structure | None = None
        self._mark: Mark | None = None
        self._pending: Update | None = None
        self._version = -1
        self._published = 0
        self._structures = 0
        self._errors = 0
        self._stop = threading.Event()
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self.run, name=f"relay:{name}", daemon=True)
        _live.add(self)

    # -- the user's side ---------------------------------------------------------------------------------------------

    def start(self) -> Relay:
        """Start relaying in a thread of its own; returns this relay."""
        self._thread.start()
        return self

    @property
    def version(self) -> int:
        """The version that this relay published last; -1 if none."""
        return self._version

    def wait(self, version: int | None = None, timeout: float | None = None) -> bool:
        """Wait, at most `timeout` seconds (None: without a limit), until at least this version (any if None) is in the
        store; returns whether it came in time."""
        wanted = 0 if version is None else version
        with self._news:
            self._news.wait_for(lambda: self._version >= wanted or self._stop.is_set(), timeout)
            return self._version >= wanted

    def wait_mark(self, number: int, timeout: float | None = None) -> bool:
        """Wait, at most `timeout` seconds (None: without a limit), until the source's publication of this number, or a
        later one, is in the store; returns whether it is."""
        with self._news:
            self._news.wait_for(lambda: self._number() >= number or self._stop.is_set(), timeout)
            return self._number() >= number

    def _number(self) -> int:
        return self._mark.number if self._mark is not None else 0

    @property
    def folder(self) -> Path:
        """The folder of the store."""
        return self._folder

    def stats(self) -> dict[str, Any]:
        """The version, the number of publications, the source's counts, and the last error as text."""
        return {
            "name": self.name,
            "version": self._version,
            "published": self._published,
            "structures": self._structures,
            "standby": self._lock_file < 0,
            "errors": self._errors,
            "error": str(self.error) if self.error else None,
            **self._source.stats(),
        }

    def close(self) -> None:
        """Stop relaying: closes the source, waits up to 15 seconds for the relay's thread, and wakes threads that wait
        for a version. The store keeps the version published last. May be called on any thread."""
        self._stop.set()
        self._source.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(15.0)
        with self._news:
            self._news.notify_all()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Relay of {self.name!r}, version {self._version}>"

    # -- the work ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Relay in this thread until `close` is called from another one."""
        failures = received = 0
        try:
            while not self._stop.is_set():
                try:
                    if self._elected():
                        self._step()
                        failures, self.error = 0, None
                except Error as error:
                    before, received = received, self._source.stats()["bytes_received"]
                    if received - before >= CHUNK:
                        failures = 0  # it breaks, but it gets on
                    self._note(error, failures)
                    most = _MAX_LOST if isinstance(error, (LostError, StoreError)) else _MAX_REFUSED
                    self._stop.wait(backoff(failures, most))
                    failures += 1
                except Exception as error:
                    log.exception("relay of %r: a defect of this side", self.name)
                    self.error = TransportError(f"{type(error).__name__}: {error}", where=f"relay of {self.name!r}")
                    self._stop.wait(_MAX_LOST)
        finally:
            self._end()

    def _step(self) -> None:
        """Fetch the next update and publish it in the store. An update whose publishing failed is tried again without
        being fetched."""
        if self._pending is None:
            if self._structure is None:
                self._structure = self._stored_structure()
            self._pending = self._source.newer(self._mark, self._structure, _WAIT)
        if self._pending is not None:
            self._apply(self._pending)
            self._pending = None

    def _apply(self, update: Update) -> None:
        result = update.structure
        weights = result.weights(update.image, f"relay of {self.name!r}")
        if self._publisher is None or self._structure is None or self._structure.id != result.id:
            if self._publisher is not None:
                self._publisher.close()
                self._publisher = None
            self._structure = result
            self._publisher = Publisher(
                self.name, result.program, directory=self._directory, threads=self._threads, mode=self._mode
            )
            self._structures += 1
        publisher = self._publisher
        if update.version < publisher.version:
            log.warning("%r goes back from version %d to %d", self.name, publisher.version, update.version)
        force = update.version <= publisher.version
        publisher.publish(weights, update.version, force=force, finite=update.finite)
        with self._news:
            self._version, self._mark = update.version, update.mark
            self._published += 1
            self._news.notify_all()
        log.debug("%r: version %d", self.name, update.version)

    def _stored_structure(self) -> Structure | None:
        """The program in the store from an earlier relay, which then need not be fetched; None if there is none that is
        sound."""
        path = files.current_epoch(self._folder)
        if path is None:
            return None
        try:
            files.check_owner(self._folder)
            return decode(memoryview(files.read_file(path / "program.tw")), str(path))
        except (Error, OSError):
            return None

    def _note(self, error: Error, failures: int) -> None:
        same = self.error is not None and str(self.error) == str(error)
        self.error = error
        self._errors += 1
        # What repeats is said once, and seldom after that.
        if not self._stop.is_set() and (not same or failures & (failures - 1) == 0):
            level = logging.INFO if isinstance(error, LostError) else logging.ERROR
            log.log(level, "relay of %r: %s", self.name, str(error).replace("\n", "; "))

    # -- of several relays, one works --------------------------------------------------------------------------------

    def _elected(self) -> bool:
        """Whether this relay holds the lock of the store's active relay, trying to get it; if another one does, it
        waits for a while first."""
        if self._lock_file >= 0:
            return True
        try:
            file = _lock(self._folder, self._mode)
        except OSError as error:
            raise StoreError(f"cannot be made: {error.strerror}", where=str(self._folder.parent)) from None
        if file is None:
            self._stop.wait(_STANDBY)
            return False
        self._lock_file = file
        return True

    def _end(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def forget(self) -> None:
        """In the child of a fork: do nothing, as the parent's thread goes on relaying."""
        self._stop.set()
        self._news = threading.Condition()
        if self._lock_file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._lock_file)
            self._lock_file = -1
        if isinstance(self._source, TcpSource):
            self._source.forget()


def _lock(folder: Path, mode: int) -> int | None:
    """Lock the file, of the permissions `mode`, that marks the active relay of the store `folder`; returns the
    descriptor of the open file, or None if another relay holds the lock."""
    files.make_folder(folder, mode)
    file = os.open(folder.parent / f".{folder.name}.relay", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def backoff(tries: int, most: float) -> float:
    """Seconds to wait after `tries` failures in a row: 0.05 and doubling up to `most`, with some random spread."""
    spread = 0.75 + 0.5 * (time.monotonic_ns() % 1000) / 1000
    return min(most, 0.05 * float(2 ** min(tries, 20))) * spread


def relay(
    address: str,
    *,
    name: str | None = None,
    secret: str | bytes | None = None,
    tls: ssl.SSLContext | None = None,
    trust: bool = False,
    directory: str | os.PathLike[str] | None = None,
    threads: int = 1,
    mode: int = 0o600,
    code_limit: int = CODE_LIMIT,
    timeout: float = 10.0,
) -> Relay:
    """Keep a store of this node up to date with the weights that a learner serves.

        relay = tw.relay("tcp://learner:7070/policy", secret=secret)      # once on each node, or in each process
        actor = tw.attach("policy", timeout=60)

    It works in a thread of this process until it is closed. If several processes of the node call this, one does the
    work, and another takes over when that one ends.

    Args:
        address: tcp://host:port/name.
        name: of the store; that of the address if None.
        secret: the learner's argument of `serve_weights`.
        tls: a context that verifies the learner's certificate.
        trust: run code from a learner that is not authenticated by a secret, by TLS, or by being on this machine.
        directory: of all stores; TILEWRIGHT_STORE_DIR or /dev/shm/tilewright-<user number> if None.
        threads: that pack the weights.
        mode: access to the store's files: 0o600, or 0o660 for the actors of a group.
        code_limit: the most bytes of a program.
        timeout: seconds for connecting, and for each frame.

    Raises TransportError for an invalid address or secret. Later failures are logged to `tilewright.transport` and
    stored in `relay.error`.
    """
    where = parse_address(address)
    source = TcpSource(
        where, secret=secret, tls=tls, trust=trust, code_limit=code_limit, timeout=timeout
    )  # fmt: skip
    return Relay(source, name or where.name, directory=directory, threads=threads, mode=mode).start()


def _after_fork() -> None:
    for candidate in list(_live):
        candidate.forget()


os.register_at_fork(after_in_child=_after_fork)
