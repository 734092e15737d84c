"""The server's answers at each path: the protocol, its extensions, and pages for operators."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import tilewright
from tilewright.serve.core import Core
from tilewright.serve.dashboard import page
from tilewright.serve.errors import ServeError, Status
from tilewright.serve.models import Served
from tilewright.serve.protocol import rest
from tilewright.serve.protocol.regions import Regions
from tilewright.serve.requests import Answer
from tilewright.serve.tokens import Scope, Tokens

if TYPE_CHECKING:
    from tilewright.serve.repository import Repository

JSON, BINARY, TEXT, HTML = (
    "application/json", "application/octet-stream", "text/plain; version=0.0.4", "text/html; charset=utf-8"
)  # fmt: skip
EXTENSIONS = ("binary_tensor_data", "statistics", "model_configuration", "weights_version")


@dataclass(slots=True)  # not frozen: one is made for each request
class Reply:
    """An answer to HTTP.

    Args:
        json_length: where the JSON ends, if raw bytes follow.
        etag: the version of what was asked for, by which a client asks whether there is a new one.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    json_length: int | None = None
    etag: str = ""


Send = Callable[[Reply], None]


@dataclass(frozen=True, slots=True)
class Site:
    """The objects that one server answers requests from.

    Args:
        regions, repository: None where they are not served.
        metrics, dashboard: functions that return the page; None for none.
    """

    core: Core
    tokens: Tokens
    regions: Regions | None = None
    repository: Repository | None = None
    metrics: Callable[[], bytes] | None = None
    dashboard: Callable[[], dict[str, Any]] | None = None


@dataclass(slots=True)  # not frozen: one is made for each request
class Asked:
    """A request of HTTP: `headers` by their names in small letters; `arrival`: its time on the monotonic clock, in
    seconds."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | memoryview
    arrival: float


def answer(site: Site, asked: Asked, send: Send) -> None:
    """Answer the request `asked`, now or later; always calls `send` once."""
    try:
        _route(site, asked, send)
    except ServeError as error:
        send(refusal(error))
    except Exception as error:  # a defect of ours: one request must not end the connection of others
        logging.getLogger("tilewright.serve").exception("a request failed")
        send(refusal(ServeError(f"the server failed: {type(error).__name__}", Status.INTERNAL)))


def refusal(error: ServeError) -> Reply:
    """The answer to a request that is refused because of `error`: its HTTP status, and its text as JSON."""
    return Reply(error.status.http, rest.error_body(error))


def _route(site: Site, asked: Asked, send: Send) -> None:
    parts = path_parts(asked.path)
    if parts[-1:] == ["infer"] and len(parts) in (4, 6) and parts[:2] == ["v2", "models"]:
        need(asked, "POST")
        site.tokens.check(asked.headers.get("authorization"), Scope.INFER)
        _infer(site, asked, parts[2], _version(parts, 4), send)
        return
    if parts[:3] == ["v2", "repository", "models"] and parts[4:] == ["load"]:
        need(asked, "POST")
        site.tokens.check(asked.headers.get("authorization"), Scope.REPOSITORY)
        _load(repository_of(site), parts[3], asked, send)
        return
    send(_other(site, asked, parts))


def _load(repository: Repository, name: str, asked: Asked, send: Send) -> None:
    """Load the model `name` of the repository, which may compile it, and answer when that is done."""
    if _body(asked).get("parameters"):
        raise ServeError("models are loaded as they are in the folder: parameters are refused")

    def loaded(task: asyncio.Task[None]) -> None:
        error = task.exception()
        send(Reply() if error is None else refusal(_known(error)))

    asyncio.ensure_future(repository.load(name)).add_done_callback(loaded)


def _known(error: BaseException) -> ServeError:
    if isinstance(error, ServeError):
        return error
    return ServeError(f"loading failed: {type(error).__name__}", Status.INTERNAL, got=str(error)[:200])


def _body(asked: Asked) -> dict[str, Any]:
    body = rest.parse_json(asked.body) if asked.body else {}
    if not isinstance(body, dict):
        raise ServeError("the body is no object")
    return body


def repository_of(site: Site) -> Repository:
    """The site's model repository. Raises ServeError if there is none."""
    if site.repository is None:
        raise ServeError("the model repository is not served here", Status.FORBIDDEN, hint="--repository")
    return site.repository


def regions_of(site: Site) -> Regions:
    """The regions of shared memory that clients have registered. Raises ServeError if the server does not offer shared
    memory."""
    if site.regions is None:
        raise ServeError("shared memory is not served here", Status.FORBIDDEN, hint="--shared-memory")
    return site.regions


def _other(site: Site, asked: Asked, parts: list[str]) -> Reply:
    tokens, authorization = site.tokens, asked.headers.get("authorization")
    match parts:
        case ["v2", "health", "live"]:
            need(asked, "GET")
            return json_reply({"live": True})
        case ["v2", "health", "ready"]:
            need(asked, "GET")
            ready = site.core.accepting
            return json_reply({"ready": ready, "live": True}, 200 if ready else 503)
        case ["metrics"] if site.metrics is not None:
            need(asked, "GET")
            tokens.check(authorization, Scope.METRICS)
            return Reply(200, site.metrics(), TEXT)
        case ["dashboard"] if site.dashboard is not None:
            need(asked, "GET")
            return Reply(200, page(), HTML)
        case ["dashboard", "data"] if site.dashboard is not None:
            need(asked, "GET")
            tokens.check(authorization, Scope.METRICS)
            return json_reply(site.dashboard())
        case ["v2"]:
            need(asked, "GET")
            return json_reply(server_metadata(site))
        case ["v2", "models", *rest_of]:
            need(asked, "GET")
            tokens.check(authorization, Scope.INFER)
            return _model(site, rest_of)
        case ["v2", "repository", *rest_of]:
            need(asked, "POST")
            tokens.check(authorization, Scope.REPOSITORY)
            return _repository(repository_of(site), rest_of, asked)
        case ["v2", "systemsharedmemory", *rest_of]:
            tokens.check(authorization, Scope.SHARED_MEMORY)
            return _shared_memory(site, rest_of, asked)
    raise ServeError(f"there is nothing at {asked.path[:200]!r}", Status.NOT_FOUND)


def _infer(site: Site, asked: Asked, model: str, version: str, send: Send) -> None:
    parsed = rest.parse_infer(model, version, asked.headers, asked.body, asked.arrival, site.regions)

    def done(result: Answer | ServeError) -> None:
        try:
            if isinstance(result, ServeError):
                raise result
            body, json_length = rest.answer_body(result, parsed, site.regions)
        except ServeError as error:
            send(refusal(error))
            return
        send(Reply(200, body, JSON if json_length is None else BINARY, json_length))

    site.core.infer(parsed.request, done)


def server_metadata(site: Site) -> dict[str, Any]:
    """The server's name, version and protocol extensions, in the form of the protocol."""
    extensions = [*EXTENSIONS]
    if site.repository is not None:
        extensions.append("model_repository")
    if site.regions is not None:
        extensions.append("system_shared_memory")
    return {"name": "tilewright", "version": tilewright.__version__, "extensions": extensions}


def _model(site: Site, parts: list[str]) -> Reply:
    catalogue = site.core.catalogue
    if parts == ["stats"]:
        return json_reply({"model_stats": [statistics(site, s) for s in catalogue]})
    version = ""
    if parts[1:2] == ["versions"] and len(parts) > 2:
        version = parts[2]
        parts = [parts[0], *parts[3:]]
    match parts:
        case [name]:
            return json_reply(model_metadata(site, catalogue.get(name, version)))
        case [name, "ready"]:
            served = catalogue.get(name, version)
            return json_reply({"name": served.name, "ready": site.core.accepting}, 200 if site.core.accepting else 503)
        case [name, "config"]:
            return json_reply(configuration(catalogue.get(name, version)))
        case [name, "stats"]:
            versions = (
                [catalogue.get(name, version)]
                if version
                else [catalogue.get(name, v) for v in catalogue.versions(name)]
            )
            return json_reply({"model_stats": [statistics(site, s) for s in versions]})
    raise ServeError("there is nothing at this path", Status.NOT_FOUND)


def model_metadata(site: Site, served: Served) -> dict[str, Any]:
    """The metadata of the model `served`, in the form of the protocol."""
    return {
        "name": served.name,
        "versions": site.core.catalogue.versions(served.name),
        "platform": "tilewright",
        "inputs": [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in served.inputs],
        "outputs": [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in served.outputs],
    }


def configuration(served: Served) -> dict[str, Any]:
    """A model's configuration in the form that Triton's clients read."""

    def kind(datatype: str) -> str:
        return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"

    return {
        "name": served.name,
        "platform": "tilewright",
        "backend": "tilewright",
        "max_batch_size": 0,  # shapes are stated with their batch
        "input": [{"name": t.name, "data_type": kind(t.datatype), "dims": list(t.shape)} for t in served.inputs],
        "output": [{"name": t.name, "data_type": kind(t.datatype), "dims": list(t.shape)} for t in served.outputs],
    }


def statistics(site: Site, served: Served) -> dict[str, Any]:
    """Counts and times of the requests to `served`, in the form that Triton's clients read."""
    s, _ = site.core.totals(served)
    nothing = {"count": 0, "ns": 0}

    def pair(duration: Any) -> dict[str, int]:
        return {"count": duration.count, "ns": duration.ns}

    return {
        "name": served.name,
        "version": served.version,
        "last_inference": int(s.last * 1000),
        "inference_count": s.rows,
        "execution_count": s.executions,
        "inference_stats": {
            "success": pair(s.success), "fail": pair(s.fail), "queue": pair(s.queue),
            "compute_input": nothing, "compute_infer": pair(s.compute), "compute_output": nothing,
        },
        "batch_stats": [
            {"batch_size": rows, "compute_input": nothing, "compute_infer": pair(d), "compute_output": nothing}
            for rows, d in sorted(s.batches.items())
        ],
    }  # fmt: skip


def _repository(repository: Repository, parts: list[str], asked: Asked) -> Reply:
    match parts:
        case ["index"]:
            return json_reply(repository.index(ready=_body(asked).get("ready") is True))
        case ["models", name, "unload"]:
            repository.unload(name)
            return Reply()
    raise ServeError("there is nothing at this path", Status.NOT_FOUND)


def _shared_memory(site: Site, parts: list[str], asked: Asked) -> Reply:
    regions = regions_of(site)
    name = ""
    if parts[:1] == ["region"] and len(parts) > 1:
        name, parts = parts[1], parts[2:]
    match parts:
        case ["status"]:
            need(asked, "GET")
            return json_reply([
                {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.size}
                for r in regions.status(name)
            ])  # fmt: skip
        case ["register"] if name:
            need(asked, "POST")
            body = _body(asked)
            key, offset, size = body.get("key"), body.get("offset", 0), body.get("byte_size")
            if not isinstance(key, str) or type(offset) is not int or type(size) is not int:
                raise ServeError("a region wants key, offset and byte_size")
            regions.register(name, key, offset, size)
            return Reply()
        case ["unregister"]:
            need(asked, "POST")
            regions.unregister(name)
            return Reply()
    raise ServeError("there is nothing at this path", Status.NOT_FOUND)


def json_reply(value: object, status: int = 200) -> Reply:
    """An answer with the JSON of `value` and the HTTP status `status`."""
    return Reply(status, json.dumps(value, separators=(",", ":")).encode())


def need(asked: Asked, method: str) -> None:
    """Raise ServeError unless the request `asked` has the HTTP method `method`; HEAD counts as GET."""
    if asked.method != method and not (method == "GET" and asked.method == "HEAD"):
        raise ServeError(f"wants {method}", Status.WRONG_METHOD, where=asked.path[:200], got=asked.method[:20])


def _version(parts: list[str], at: int) -> str:
    if len(parts) == at:
        return ""
    if parts[at - 1] != "versions":
        raise ServeError("there is nothing at this path", Status.NOT_FOUND)
    return parts[at]


@lru_cache(1024)
def path_parts(path: str) -> list[str]:
    """The decoded parts of a URL's path between its slashes, without the query; ["v2"] for the path "/"."""
    path = path.partition("?")[0].rstrip("/") or "/v2"
    return [_decoded(part) for part in path.split("/")[1:]]


def _decoded(part: str) -> str:
    try:
        return unquote(part, errors="strict") if "%" in part else part
    except UnicodeDecodeError:
        raise ServeError("the path is no UTF-8") from None


__all__ = ["Asked", "Reply", "Site", "answer", "refusal"]
