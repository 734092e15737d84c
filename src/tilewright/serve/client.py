"""`tw.client`: a client of the Open Inference Protocol over HTTP, which only needs the standard library and NumPy.

client = tw.client.Client("http://localhost:8000")
outputs = client.infer("policy", {"obs": obs}, timeout=0.02)
outputs["action"], outputs.weights_version
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

from tilewright.serve.errors import ServeError, Status
from tilewright.serve.local_client import LocalModel as local
from tilewright.serve.tensors import Array, binary_request, from_json, from_raw

_STATUS = {status.http: status for status in Status}


@dataclass(frozen=True, slots=True)
class Outputs(Mapping[str, Array]):
    """The output arrays of a model, by name, with the model's version and that of its weights."""

    arrays: dict[str, Array]
    model_version: str = ""
    weights_version: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


class Client:
    """A client of one server for any number of threads, each of which has its own connection.

    Args:
        url: "http://host:port", "https://host:port", or "unix:/path" for HTTP over a Unix socket.
        token: a bearer token.
        timeout: seconds that an answer may take before ServeError is raised.
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 60.0, tls: ssl.SSLContext | None = None
    ) -> None:
        self._url, self._timeout, self._tls = url, timeout, tls
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._local = threading.local()
        self._open: list[http.client.HTTPConnection] = []

    # -- questions -----------------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether the server can be reached and accepts requests."""
        try:
            return self._ask("GET", "/v2/health/ready")[0] == 200
        except ServeError:
            return False

    def server(self) -> dict[str, Any]:
        """The server's name, version and extensions, as the protocol's JSON data. Raises ServeError if it does not
        answer."""
        return self._json("GET", "/v2")

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """The versions, inputs and outputs of a model, or of one version of it ("": the one that the server chooses),
        as the protocol's JSON data. Raises ServeError if there is none, or the server does not answer."""
        return self._json("GET", _path(model, version))

    def statistics(self, model: str = "", version: str = "") -> list[dict[str, Any]]:
        """Counts and times of requests, as JSON data: of all models if `model` is empty, else of that one, or of one
        `version` of it. Raises ServeError if there is none, or the server does not answer."""
        where = f"{_path(model, version)}/stats" if model else "/v2/models/stats"
        known: list[dict[str, Any]] = self._json("GET", where)["model_stats"]
        return known

    def dashboard(self) -> dict[str, Any]:
        """The data of the server's dashboard: counts, times and versions of all models."""
        return self._json("GET", "/dashboard/data")

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: str = "",
        outputs: tuple[str, ...] | None = None,
        timeout: float | None = None,
        priority: int = 0,
        id: str = "",
    ) -> Outputs:
        """Request an inference.

        Args:
            inputs: arrays by name.
            outputs: the names of the outputs to return; None for all.
            timeout: seconds in which the answer is needed; None: the model's promise.
            priority: 1 comes first; 0 is the server's default.

        Raises ServeError with the server's message; its `status` is DROPPED if the deadline could not be met.
        """
        head, tail = binary_request(inputs, outputs=outputs, timeout=timeout, priority=priority, id=id)
        headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
        status, body, length = self._ask("POST", f"{_path(model, version)}/infer", head + tail, headers)
        if status != 200:
            raise _error(status, body)
        return _outputs(body, length)

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    def _json(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        status, answer, _ = self._ask(method, path, body)
        if status != 200:
            raise _error(status, answer)
        value: dict[str, Any] = json.loads(answer) if answer else {}
        return value

    def _ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, int | None]:
        """Send an HTTP request for `path` by `method`. Returns the status, the body, and the length of the JSON at its
        beginning (None if the response has no such header, as all of it is JSON). If the server has closed the
        connection, a new one is opened. Raises ServeError."""
        for attempt in (0, 1):
            connection, fresh = self._connection()
            try:
                connection.request(method, path, body, {**self._headers, **(headers or {})})
                answer = connection.getresponse()
                length = answer.getheader("Inference-Header-Content-Length")
                return answer.status, answer.read(), None if length is None else int(length)
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                self._local.connection = None
                stale = isinstance(error, (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError))
                if attempt or fresh or not stale:
                    raise ServeError(
                        f"the server does not answer: {error}", Status.UNAVAILABLE, where=self._url
                    ) from None
        raise AssertionError

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            return connection, False
        connection = self._local.connection = _connect(self._url, self._timeout, self._tls)
        self._open.append(connection)
        return connection, True

    def close(self) -> None:
        """Close the connections that all threads have opened; no thread may have a request in progress."""
        for connection in self._open:
            connection.close()
        self._open.clear()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _UnixConnection(http.client.HTTPConnection):
    """A connection for HTTP over the Unix socket at a path."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Connection(http.client.HTTPConnection):
    """A connection for HTTP over TCP that sends small packets without delay (TCP_NODELAY)."""

    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _connect(url: str, timeout: float, tls: ssl.SSLContext | None) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return _UnixConnection(parts.path, timeout)
    if parts.scheme == "https" and parts.hostname:
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=tls)
    if parts.scheme == "http" and parts.hostname:
        return _Connection(parts.hostname, parts.port, timeout=timeout)
    raise ServeError("is no address of a server", expected="http://host:port, https://host:port or unix:/path", got=url)


def _path(model: str, version: str) -> str:
    base = f"/v2/models/{quote(model, safe='')}"
    return f"{base}/versions/{quote(version, safe='')}" if version else base


def _error(status: int, body: bytes) -> ServeError:
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = f"status {status}"
    return ServeError(text, _STATUS.get(status, Status.INTERNAL))


def _outputs(body: bytes, length: int | None) -> Outputs:
    message = json.loads(body[:length])
    at = length or 0
    arrays = {}
    for entry in message["outputs"]:
        name = entry["name"]
        size = entry.get("parameters", {}).get("binary_data_size")
        if size is None:
            arrays[name] = from_json(entry["data"], entry["datatype"], entry["shape"], f"output {name!r}")
        else:
            data = memoryview(body)[at : at + size]
            arrays[name] = from_raw(data, entry["datatype"], entry["shape"], f"output {name!r}")
            at += size
    parameters = message.get("parameters", {})
    return Outputs(arrays, message.get("model_version", ""), parameters.get("weights_version", 0), parameters)


__all__ = ["Client", "Outputs", "local"]
