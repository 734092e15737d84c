"""Several processes that serve the same models from one copy of their weights, and report common statistics.

The supervisor opens each model once and publishes it in a weight store; workers are forks that attach. Each worker has
a listening socket of its own on the same port (SO_REUSEPORT), which the supervisor keeps open: when a worker dies, the
backlog of its socket waits for its successor, and only the requests that it had read are lost.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tilewright
from tilewright.live.store.publisher import Publisher
from tilewright.runtime.model import Model
from tilewright.serve.board import Board
from tilewright.serve.colleagues import Colleagues, added, told
from tilewright.serve.errors import ServeError
from tilewright.serve.opening import Source, load, served
from tilewright.serve.server import Server, Settings, run
from tilewright.serve.watch import Watcher
from tilewright.support.errors import Error

_POLL_SECONDS = 0.02
_WATCH_SECONDS = 1.0
_MAX_EARLY = 5
"""The number of workers in a row that may die before serving; then the server ends."""
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class _Place:
    """A worker's page on the board and its sockets; its process at present, and how many in a row ended before they
    wrote the page (`early`)."""

    page: int
    sockets: Sequence[socket.socket]
    process: int = 0
    early: int = 0


class Supervisor:
    """Starts workers, and restarts those that die.

    Args:
        settings: of each worker. Its HTTP port is shared by all.
        watcher: of a folder whose models come and go.
    """

    def __init__(
        self, settings: Settings, sources: Sequence[Source], workers: int, watcher: Watcher | None = None
    ) -> None:
        self._settings, self._sources, self._watcher = settings, list(sources), watcher
        self._publishers: dict[tuple[str, str], Publisher] = {}
        self._places = [_Place(k + 1, []) for k in range(workers)]
        self._board = Board(workers + 1)
        self._past: dict[str, Any] | None = None
        self._stopping = False
        self.http_port: int | None = None
        self.on_start: Callable[[], None] | None = None
        self.on_trouble: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)

    @property
    def processes(self) -> list[int]:
        """The process numbers of the running workers."""
        return [place.process for place in self._places if place.process]

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; then let the workers answer pending requests, and end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            self._sources = [self._publish(source) for source in self._sources]
            self._listen()
            self._tell()
            for place in self._places:
                self._start(place)
            if self.on_start is not None:
                self.on_start()
            self._watch()
        finally:
            self._end()

    def _stop(self, *_: object) -> None:
        self._stopping = True

    # -- models --------------------------------------------------------------------------------------------------------

    def _publish(self, source: Source) -> Source:
        """Load a model's file and publish it in a store, so that workers share its weights; returns the source by which
        they attach to it."""
        if source.path is None:
            return source
        key = (source.name, source.version)
        runner = load(source)
        if not isinstance(runner, Model):
            raise ServeError("cannot be shared by several processes", where=source.name)
        before = self._publishers.pop(key, None)
        if before is not None:
            before.close()
        name = f"serve.{os.getpid()}.{source.name}.{source.version}"
        publisher = self._publishers[key] = Publisher(name, runner)
        if before is not None:  # a store that holds the same program goes on with its own weights
            publisher.publish(runner.weights, finite=False)
        return replace(source, path=None, store=name)

    def _changes(self) -> None:
        """Publish new models of the watched folder, and drop removed ones; workers then follow between two calls."""
        if self._watcher is None:
            return
        changes = self._watcher.changes()
        for source in changes.opened:
            try:
                shared = self._publish(source)
            except Error as error:
                self.on_trouble(f"{source.name}: {error.headline()}")
            else:
                self._sources = [s for s in self._sources if (s.name, s.version) != (shared.name, shared.version)]
                self._sources.append(shared)
        if changes:
            self._sources = [s for s in self._sources if (s.name, s.version) not in changes.gone]
            self._tell()

    def _tell(self) -> None:
        """Write the models to serve, and the statistics of workers that have ended, to the supervisor's page."""
        self._board.write(0, {"sources": told(self._sources), "past": self._past})

    # -- processes -----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        port = self._settings.http_port
        if port is None:
            return
        for place in self._places:
            sock = socket.socket(socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                sock.bind((self._settings.host, port))
            except OSError as error:
                raise ServeError(f"cannot listen: {error.strerror}", where=f"{self._settings.host}:{port}") from None
            sock.listen(1024)
            port = sock.getsockname()[1]
            place.sockets = [sock]
        self.http_port = port

    def _start(self, place: _Place) -> None:
        self._board.clear(place.page)
        sys.stdout.flush()
        parent = os.getpid()
        place.process = os.fork()
        if place.process == 0:
            self._work(place, parent)

    def _work(self, place: _Place, parent: int) -> None:
        """Serve in a forked worker process until it ends; never returns. The worker ends when its parent does."""
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() == parent:
                self._serve(place)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _serve(self, place: _Place) -> None:
        models = [served(source, tilewright.attach(source.store, source.threads)) for source in self._sources]
        server = Server(
            replace(self._settings, sockets=place.sockets),
            [m for m, s in zip(models, self._sources, strict=True) if s.share >= 1],
        )
        server.canaries = [(m, s.share) for m, s in zip(models, self._sources, strict=True) if s.share < 1]
        colleagues = Colleagues(self._board, len(self._places), place.page, self._sources)
        colleagues.on_trouble = self.on_trouble
        server.core.colleagues, server.on_sweep = colleagues, colleagues.sweep
        server.on_start = partial(colleagues.tell, server.core)
        run(server)

    def _watch(self) -> None:
        looked = time.monotonic()
        while not self._stopping:
            time.sleep(_POLL_SECONDS)
            for place in self._places:
                self._renew(place)
            if time.monotonic() - looked > _WATCH_SECONDS:
                self._changes()
                looked = time.monotonic()

    def _renew(self, place: _Place) -> None:
        """Start another process for a worker that has ended. Raises ServeError if several in a row ended at once."""
        process, status = os.waitpid(place.process, os.WNOHANG)
        if not process or self._stopping:
            return
        page = self._board.read(place.page)
        place.early = place.early + 1 if page is None else 0
        self._past = added(self._past, page)
        self._tell()
        self.on_trouble(f"worker {process} has ended with status {os.waitstatus_to_exitcode(status)}: starting another")
        if place.early >= _MAX_EARLY:
            place.process = 0
            raise ServeError("workers die as soon as they start", got=f"{place.early} in a row")
        self._start(place)

    def _end(self) -> None:
        for process in self.processes:
            os.kill(process, signal.SIGTERM)
        deadline = time.monotonic() + self._settings.drain + 5
        for place in self._places:
            while place.process and time.monotonic() < deadline:
                if os.waitpid(place.process, os.WNOHANG)[0]:
                    place.process = 0
                else:
                    time.sleep(_POLL_SECONDS)
            if place.process:
                os.kill(place.process, signal.SIGKILL)
                os.waitpid(place.process, 0)
            for sock in place.sockets:
                sock.close()
        for publisher in self._publishers.values():
            publisher.close(remove=True)


__all__ = ["Supervisor"]
