"""The service's HTTP interface: it serves the service's state and accepts what production sends; nothing else can be
changed through it.

    GET  /dashboard                          the page, without data
    GET  /v1/status                read      what the page draws: queue, workers, gains, coverage, costs
    GET  /v1/channels/NAME         read      the signed records of a class of machines, ?target=CLASS
    POST /v1/lookup                read      the records of a channel about some decisions
    GET  /v1/history               read      who changed what
    GET  /v1/key                   read      the public key
    POST /v1/collected             submit    what a process collected
    POST /v1/measurements          submit    what a canary has measured
    POST /v1/rollout               release   release a record, or take it back

The last column but one is the role that a token must have. Without tokens the service listens on loopback alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tilewright.farm import overview, rollout
from tilewright.farm.intake import parse, take_request
from tilewright.farm.state import State
from tilewright.records.signed import Signed
from tilewright.records.subscription import CHANNELS, packed
from tilewright.serve.errors import ServeError, Status
from tilewright.serve.protocol.http import Connections, Limits
from tilewright.serve.protocol.routes import HTML, Asked, Reply, Send, json_reply, need, path_parts, refusal
from tilewright.serve.tokens import Tokens
from tilewright.support.errors import Error

MAX_DECISIONS = 10_000
"""The most decisions of one look-up."""
THREADS = 4
"""The number of requests that may wait for the database at once."""
GZIP = "application/gzip"


class Role(Enum):
    """The rights that a token can have."""

    READ = "read"
    SUBMIT = "submit"
    RELEASE = "release"


def tokens_of(table: dict[str, list[str]] | None = None) -> Tokens:
    """Parse tokens with their roles. Raises ServeError for a token that is too short, or an unknown role."""
    return Tokens(table, Role)


class Site:
    """Answers the HTTP requests about one service's state."""

    def __init__(self, state: State, tokens: Tokens, key: str) -> None:
        self.state, self.tokens, self.key = state, tokens, key
        self._pool = ThreadPoolExecutor(THREADS, "farm-http")

    def close(self) -> None:
        """Wait for the replies that are being computed, drop requests that wait, and end the threads that compute
        replies."""
        self._pool.shutdown(cancel_futures=True)

    def answer(self, asked: Asked, send: Send) -> None:
        """Compute the reply to the request `asked` on another thread, which may wait for the database, and pass it to
        `send`."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, self.reply, asked)
        future.add_done_callback(lambda done: send(done.result()))

    def reply(self, asked: Asked) -> Reply:
        """The answer to a request, including malformed ones."""
        try:
            return self._route(asked)
        except ServeError as error:
            return refusal(error)
        except Error as error:
            return refusal(ServeError(error.headline()[:500]))
        except Exception as error:  # a defect of ours: one request must not end the service
            logging.getLogger("tilewright.farm").exception("a request failed")
            return refusal(ServeError(f"the service failed: {type(error).__name__}", Status.INTERNAL))

    def _route(self, asked: Asked) -> Reply:
        body = bytes(asked.body)
        match path_parts(asked.path):
            case ["dashboard"] | ["v2"]:  # an empty path
                need(asked, "GET")
                return Reply(200, page(), HTML)
            case ["v1", "status"]:
                self._may(asked, "GET", Role.READ)
                return json_reply(overview.status(self.state))
            case ["v1", "key"]:
                self._may(asked, "GET", Role.READ)
                return json_reply({"key": self.key})
            case ["v1", "history"]:
                self._may(asked, "GET", Role.READ)
                return json_reply(overview.history(self.state))
            case ["v1", "channels", name]:
                self._may(asked, "GET", Role.READ)
                return self._channel(name, asked)
            case ["v1", "lookup"]:
                self._may(asked, "POST", Role.READ)
                return self._lookup(parse(body))
            case ["v1", "collected"]:
                self._may(asked, "POST", Role.SUBMIT)
                done = take_request(self.state, body)
                return json_reply({"workloads": done.workloads, "compiles": done.compiles, "calls": done.calls})
            case ["v1", "measurements"]:
                self._may(asked, "POST", Role.SUBMIT)
                return json_reply({"new": rollout.take_measurement(self.state, body)})
            case ["v1", "rollout"]:
                self._may(asked, "POST", Role.RELEASE)
                return self._rollout(parse(body))
        raise ServeError(f"there is nothing at {asked.path[:200]!r}", Status.NOT_FOUND)

    def _may(self, asked: Asked, method: str, role: Role) -> None:
        need(asked, method)
        self.tokens.check(asked.headers.get("authorization"), role)

    def _channel(self, name: str, asked: Asked) -> Reply:
        target = (parse_qs(asked.path.partition("?")[2]).get("target") or [""])[0]
        if name not in CHANNELS or not target or "\0" in target:
            raise ServeError("no such channel", Status.NOT_FOUND, expected=", ".join(CHANNELS) + " and ?target=CLASS")
        with self.state.database.reading() as t:
            row = t.row("SELECT number FROM stamp WHERE channel = ? AND target = ?", (name, target))
            etag = str(row[0]) if row else "0"
            if asked.headers.get("if-none-match", "").strip() == f'"{etag}"':
                return Reply(304, etag=etag)
            rows = t.rows(
                "SELECT r.content, r.signature FROM channel c JOIN record r ON r.digest = c.digest"
                " WHERE c.channel = ? AND c.target = ? ORDER BY c.decision",
                (name, target),
            )
        return Reply(200, packed(Signed(bytes(c), str(s)) for c, s in rows), GZIP, etag=etag)

    def _lookup(self, said: Any) -> Reply:
        match said:
            case {"channel": str(channel), "target": str(target), "decisions": list(decisions)}:
                if channel in CHANNELS and len(decisions) <= MAX_DECISIONS and all(map(_is_text, [target, *decisions])):
                    return Reply(200, packed(iter(overview.lookup(self.state, channel, target, decisions))), GZIP)
        raise ServeError("no look-up", expected='{"channel": NAME, "target": CLASS, "decisions": [...]}')

    def _rollout(self, said: Any) -> Reply:
        match said:
            case {"action": "release" | "back" as action, "record": str(digest), "who": str(who), "why": str(why)}:
                if all(map(_is_text, (digest, who, why))):
                    if action == "release":
                        rollout.release(self.state, digest, who[:200], why[:500])
                        return json_reply({"channels": 1})
                    return json_reply({"channels": rollout.roll_back(self.state, digest, who[:200], why[:500])})
        raise ServeError("no change", expected='{"action": "release" or "back", "record": ..., "who": ..., "why": ...}')


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 1000 and value.isprintable()


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Http:
    """An HTTP server of a `Site` on a thread of its own.

    Args:
        port: the port to listen on; 0 takes a free one.
        certificate: the files of a certificate and its key, for TLS.

    Raises ServeError where it would listen beyond loopback without a token, OSError where the address is taken.
    """

    def __init__(
        self, site: Site, host: str = "127.0.0.1", port: int = 0, certificate: tuple[Path, Path | None] | None = None
    ) -> None:
        if not is_loopback(host) and not site.tokens:
            raise ServeError(
                "refuses to listen beyond this machine without a token", where=host, hint="--tokens FILE, or 127.0.0.1"
            )
        if not is_loopback(host) and certificate is None:
            logging.getLogger("tilewright.farm").warning("tokens go over the network unencrypted: --certificate")
        self.site, self.host = site, host
        self._certificate = certificate
        self._socket = socket.create_server((host, port), backlog=128)
        self.port = int(self._socket.getsockname()[1])
        self._connections = Connections(site.answer, Limits(body=16 << 20, connections=1000))
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="farm-http", daemon=True)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"{'http' if self._certificate is None else 'https'}://{self.host}:{self.port}"

    def start(self) -> Http:
        """Start to accept requests."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop listening, end the server's thread, and close the site that it serves."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.is_alive():
            self._thread.join()
        self.site.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        tls = None
        if self._certificate is not None:
            from tilewright.serve.server import tls_context

            tls = tls_context(*self._certificate)
        server = await self._loop.create_server(self._connections.make, sock=self._socket, ssl=tls)
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 0.5)
            self._connections.sweep()
        server.close()
        self._connections.close_idle()
        await asyncio.sleep(0)


@cache
def page() -> bytes:
    """The HTML of the dashboard, which loads no other files."""
    return (Path(__file__).parent / "dashboard.html").read_bytes()


def read_tokens(path: Path) -> Tokens:
    """Read tokens from a TOML file: `[tokens]` and a line "a-token" = ["read", ...] for each. Raises ServeError."""
    import tomllib

    try:
        table = tomllib.loads(path.read_text()).get("tokens")
    except (OSError, ValueError) as error:
        raise ServeError(f"no file of tokens: {error}", where=str(path)) from None
    fits = isinstance(table, dict) and all(
        isinstance(roles, list) and all(isinstance(r, str) for r in roles) for roles in table.values()
    )
    if not fits or not table:
        raise ServeError("no file of tokens", where=str(path), expected='[tokens] "token" = ["read"]')
    return tokens_of(table)


__all__ = ["Http", "Role", "Site", "is_loopback", "page", "read_tokens", "tokens_of"]
