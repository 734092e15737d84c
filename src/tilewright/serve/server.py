"""A server in one process: an event loop, its sockets, and the core that computes requests."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from tilewright.serve import dashboard
from tilewright.serve.core import Core
from tilewright.serve.core import Options as CoreOptions
from tilewright.serve.errors import ServeError
from tilewright.serve.log import AccessLog
from tilewright.serve.metrics import Metrics
from tilewright.serve.models import Served
from tilewright.serve.opening import Source, open_source
from tilewright.serve.protocol.http import Connections, Limits
from tilewright.serve.protocol.local import LocalServer
from tilewright.serve.protocol.regions import Regions
from tilewright.serve.protocol.routes import Site, answer
from tilewright.serve.repository import Repository
from tilewright.serve.tokens import Tokens
from tilewright.serve.watch import Watcher
from tilewright.support.errors import Error

_SWEEP_SECONDS = 0.5
_BACKLOG = 1024
_SWITCH_SECONDS = 100e-6
"""The interpreter's switch interval in seconds, for which a lane may wait while the loop reads requests: Python's
default, 5 ms, is longer than most batches."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server listens and what it allows.

    Args:
        http_port, grpc_port: 0 takes a free one; None: the protocol is not served.
        unix: path of a Unix socket for HTTP.
        local: path of a Unix socket for callers with shared memory.
        certificate: and its key, for TLS; `clients`: certificates that clients must show.
        repository: a folder whose models clients with the scope may load and unload.
        shared_memory: whether clients may register shared memory of this machine.
        metrics: whether there are /metrics and /dashboard.
        access_log: a file that gets a line of JSON for each request of HTTP and of gRPC.
        sockets: listening sockets to use in place of `http_port`.
        drain: seconds that requests have to finish once the server is stopped.
        spin: seconds after a request in which the process asks for the next one again and again, in place of sleeping.
            It saves the time of waking up, and costs the core.
    """

    host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_port: int | None = None
    unix: str | None = None
    local: str | None = None
    sockets: Sequence[socket.socket] = ()
    limits: Limits = field(default_factory=Limits)
    tokens: Tokens = field(default_factory=Tokens)
    certificate: tuple[Path, Path | None] | None = None
    clients: Path | None = None
    repository: Path | None = None
    shared_memory: bool = False
    metrics: bool = True
    access_log: IO[str] | None = None
    drain: float = 30.0
    spin: float = 0.0
    core: CoreOptions = field(default_factory=CoreOptions)


class Server:
    """A server on a loop of its own thread, or of the caller's.

    with Server(Settings(http_port=0), [served]) as server:     on a thread
        print(server.url)
    asyncio.run(Server(settings, models).run())                  here, until SIGTERM
    """

    def __init__(self, settings: Settings = Settings(), models: Iterable[Served | Source] = ()) -> None:
        self.settings = settings
        self.core = Core(settings.core)
        self.site = Site(
            self.core,
            settings.tokens,
            Regions() if settings.shared_memory else None,
            None if settings.repository is None else Repository(self.core, settings.repository),
            Metrics(self.core).page if settings.metrics else None,
            partial(dashboard.data, self.core) if settings.metrics else None,
        )
        self._log = None if settings.access_log is None else AccessLog(settings.access_log)
        self._models = list(models)
        self._connections = Connections(partial(answer, self.site), settings.limits, self._log)
        self._servers: list[asyncio.Server] = []
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self.http_port: int | None = None
        self.grpc_port: int | None = None
        self._grpc: Any = None
        self._local: LocalServer | None = None
        self.on_start: Callable[[], None] | None = None
        self.on_trouble: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)
        self.watcher: Watcher | None = None
        self.on_sweep: Callable[[Core], Awaitable[None]] | None = None
        self.canaries: list[tuple[Served, float]] = []

    @property
    def url(self) -> str:
        """The URL of HTTP."""
        kind = "http" if self.settings.certificate is None else "https"
        return f"{kind}://{self.settings.host}:{self.http_port}"

    # -- life ----------------------------------------------------------------------------------------------------------

    async def run(self, signals: bool = True) -> None:
        """Serve until `stop`, or SIGTERM or SIGINT if `signals`; then answer pending requests, and return."""
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        if self.settings.spin:
            self.core.on_request = _Spinner(self._loop, self.settings.spin).request
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._stop.set)
        try:
            for model in self._models:
                self.core.add(model) if isinstance(model, Served) else self.core.add(open_source(model), model.share)
            for canary, share in self.canaries:
                self.core.add(canary, share)
            await self._listen()
            self._started.set()
            if signals:
                _own_process()
            if self.on_start is not None:
                self.on_start()
            await self._until_stopped()
        finally:
            await self._end()

    async def _listen(self) -> None:
        assert self._loop is not None
        settings, make = self.settings, self._connections.make
        tls = None if settings.certificate is None else tls_context(*settings.certificate, settings.clients)
        for sock in settings.sockets:
            self._servers.append(await self._loop.create_server(make, sock=sock, ssl=tls))
        if settings.http_port is not None and not settings.sockets:
            host, port = settings.host, settings.http_port
            try:
                server = await self._loop.create_server(make, host, port, ssl=tls, backlog=_BACKLOG)
            except OSError as error:
                raise ServeError(f"HTTP cannot listen: {error.strerror or error}", where=f"{host}:{port}") from None
            self._servers.append(server)
        if self._servers:
            self.http_port = self._servers[0].sockets[0].getsockname()[1]
        if settings.unix is not None:
            self._servers.append(await self._loop.create_unix_server(make, settings.unix, backlog=_BACKLOG))
        if settings.local is not None:
            self._local = LocalServer(self.site, settings.local)
            self._local.start()
        if settings.grpc_port is not None:
            await self._listen_grpc(settings.grpc_port)

    async def _listen_grpc(self, port: int) -> None:
        from tilewright.serve.protocol import grpc_server  # which loads gRPC

        settings = self.settings
        self._grpc, self.grpc_port = grpc_server.make(
            self.site, settings.host, port, message=settings.limits.body, in_flight=settings.core.in_flight,
            certificate=settings.certificate, clients=settings.clients,
            log=None if self._log is None else self._log.write,
        )  # fmt: skip
        await self._grpc.start()

    async def _until_stopped(self) -> None:
        assert self._stop is not None
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _SWEEP_SECONDS)
            self._connections.sweep()
            await self._look()
            if self.on_sweep is not None:
                await self.on_sweep(self.core)
            if self._log is not None:
                self._log.flush()

    async def _look(self) -> None:
        """Open models that were added to the watched folder, on a thread, and remove those that are gone. Old versions
        are served until new ones are ready."""
        if self.watcher is None:
            return
        assert self._loop is not None
        changes = self.watcher.changes()
        for source in changes.opened:
            try:
                self.core.add(await self._loop.run_in_executor(None, open_source, source), source.share)
            except Error as error:  # the file is damaged, or not written to its end: it may become better
                self.on_trouble(f"{source.name}: {error.headline()}")
        for name, version in changes.gone:
            with contextlib.suppress(ServeError):
                self.core.remove(name, version)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        await self.core.drain(self.settings.drain)
        if self._grpc is not None:
            await self._grpc.stop(1.0)
        self._connections.close_idle()
        if self._local is not None:
            self._local.close()
        await asyncio.sleep(0)
        self.core.close()

    def stop(self) -> None:
        """Ask a running server to stop, and return at once: it refuses new connections, completes requests for a
        limited time, and ends. May be called on any thread; does nothing if the server does not run."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)

    # -- on a thread ---------------------------------------------------------------------------------------------------

    def start(self) -> Server:
        """Serve on a thread of its own; returns once requests are accepted. Raises the errors of starting."""
        self._thread = threading.Thread(target=self._run_thread, name="serve", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def _run_thread(self) -> None:
        try:
            run(self, signals=False)
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a function on the server's loop from another thread, and return its result."""
        assert self._loop is not None

        async def there() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result()

    def close(self) -> None:
        """Stop the server, and wait until the thread that `start` began has ended."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _own_process() -> None:
    """Settings of Python for a process that only serves: existing objects are exempt from garbage collection, and
    threads switch more often."""
    gc.collect()
    gc.freeze()  # else each full collection looks through all of the compiler again
    sys.setswitchinterval(_SWITCH_SECONDS)


class _Spinner:
    """Keeps an event loop from sleeping for `seconds` seconds after each request, so that the next request is noticed
    at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop, self._seconds = loop, seconds
        self._until = 0.0
        self._spins = False

    def request(self) -> None:
        """Let the loop stay awake for the full time from now on, as a request has arrived."""
        self._until = time.monotonic() + self._seconds
        if not self._spins:
            self._spins = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._spins = time.monotonic() < self._until
        if self._spins:
            self._loop.call_soon(self._turn)


def run(server: Server, signals: bool = True) -> None:
    """Run a server, until it ends or, if `signals`, a signal ends it, on a new event loop, which is uvloop's if that is
    installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(server.run(signals))
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.run(signals))


def tls_context(certificate: Path, key: Path | None = None, clients: Path | None = None) -> ssl.SSLContext:
    """A TLS context with a certificate and its `key` (None: in the certificate's file); `clients`: certificates that
    clients must present (mTLS). Raises ServeError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ServeError(f"cannot be used for TLS: {error}", where=str(certificate)) from None
    return context


__all__ = ["Server", "Settings", "run", "tls_context"]
