"""The Open Inference Protocol over gRPC, with the extensions that Triton's clients use, on the server's own loop."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial, wraps
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tilewright.serve.errors import ServeError, Status
from tilewright.serve.protocol import routes
from tilewright.serve.protocol.generated import inference_pb2
from tilewright.serve.protocol.grpc_repeated import Forms, Repeated, answer_bytes
from tilewright.serve.protocol.regions import Regions
from tilewright.serve.protocol.rest import MAX_TENSORS, priority_of, timeout_of
from tilewright.serve.protocol.routes import Site
from tilewright.serve.requests import Answer, Request
from tilewright.serve.tensors import NAMES, Array, Raw, from_json, from_raw, numpy_dtype, to_raw
from tilewright.serve.tokens import Scope

pb: Any = inference_pb2
SERVICE = "inference.GRPCInferenceService"
_CODES = {status: getattr(grpc.StatusCode, status.grpc) for status in Status}
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
_KINDS = {f"TYPE_{name}": k for k, name in enumerate(
    "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16".split()
)}  # fmt: skip

_KNOWN, _KNOWN_BYTES = 256, 512
"""The most input declarations and answer frames that are stored; the most bytes of a stored declaration."""

Context = Any


class Service:
    """The methods of the gRPC service, by their names in the protocol."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._core = site.core

    # -- the protocol --------------------------------------------------------------------------------------------------

    async def ServerLive(self, request: Any, context: Context) -> Any:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Context) -> Any:
        return pb.ServerReadyResponse(ready=self._core.accepting)

    async def ModelReady(self, request: Any, context: Context) -> Any:
        self._check(context, Scope.INFER)
        try:
            self._core.catalogue.get(request.name, request.version)
        except ServeError:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._core.accepting)

    async def ServerMetadata(self, request: Any, context: Context) -> Any:
        return pb.ServerMetadataResponse(**routes.server_metadata(self._site))

    async def ModelMetadata(self, request: Any, context: Context) -> Any:
        self._check(context, Scope.INFER)
        served = self._core.catalogue.get(request.name, request.version)
        return pb.ModelMetadataResponse(**routes.model_metadata(self._site, served))

    async def ModelInfer(self, request: Any, context: Context) -> Any:
        self._check(context, Scope.INFER)
        if isinstance(request, Repeated):
            parsed, wanted = request.read(context.time_remaining()), _NOTHING
        else:
            parsed, wanted = request_of(request, context, self._site.regions)
        answer = self._begin(parsed)
        if not isinstance(answer, Answer):
            answer = await answer
        return response_of(answer, wanted, self._site.regions) if wanted else answer_bytes(answer)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        self._check(context, Scope.INFER)
        async for request in requests:
            if isinstance(request, ServeError):
                raise request
            try:
                answer = await self.ModelInfer(request, context)
                if isinstance(answer, bytes):
                    answer = pb.ModelInferResponse.FromString(answer)
                yield pb.ModelStreamInferResponse(infer_response=answer)
            except ServeError as error:
                response = pb.ModelInferResponse(id=request.id[:1000])
                yield pb.ModelStreamInferResponse(error_message=_text(error), infer_response=response)

    # -- extensions ----------------------------------------------------------------------------------------------------

    async def ModelConfig(self, request: Any, context: Context) -> Any:
        self._check(context, Scope.INFER)
        config = routes.configuration(self._core.catalogue.get(request.name, request.version))
        for tensor in (*config["input"], *config["output"]):
            tensor["data_type"] = _KINDS[tensor["data_type"]]
        return pb.ModelConfigResponse(config=pb.ModelConfig(**config))

    async def ModelStatistics(self, request: Any, context: Context) -> Any:
        self._check(context, Scope.INFER)
        catalogue = self._core.catalogue
        if not request.name:
            models = list(catalogue)
        elif request.version:
            models = [catalogue.get(request.name, request.version)]
        else:
            models = [catalogue.get(request.name, v) for v in catalogue.versions(request.name)]
        return pb.ModelStatisticsResponse(
            model_stats=[pb.ModelStatistics(**routes.statistics(self._site, m)) for m in models]
        )

    async def RepositoryIndex(self, request: Any, context: Context) -> Any:
        self._check(context, Scope.REPOSITORY)
        rows = routes.repository_of(self._site).index(request.ready)
        return pb.RepositoryIndexResponse(models=[pb.RepositoryIndexResponse.ModelIndex(**row) for row in rows])

    async def RepositoryModelLoad(self, request: Any, context: Context) -> Any:
        self._check(context, Scope.REPOSITORY)
        repository = routes.repository_of(self._site)
        if request.parameters:
            raise ServeError("models are loaded as they are in the folder: parameters are refused")
        await repository.load(request.model_name)
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Context) -> Any:
        self._check(context, Scope.REPOSITORY)
        routes.repository_of(self._site).unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    async def SystemSharedMemoryStatus(self, request: Any, context: Context) -> Any:
        self._check(context, Scope.SHARED_MEMORY)
        answer = pb.SystemSharedMemoryStatusResponse()
        for region in self._regions().status(request.name):
            status = answer.regions[region.name]
            status.name, status.key = region.name, region.key
            status.offset, status.byte_size = region.offset, region.size
        return answer

    async def SystemSharedMemoryRegister(self, request: Any, context: Context) -> Any:
        self._check(context, Scope.SHARED_MEMORY)
        self._regions().register(request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(self, request: Any, context: Context) -> Any:
        self._check(context, Scope.SHARED_MEMORY)
        self._regions().unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    # -- how -----------------------------------------------------------------------------------------------------------

    def _regions(self) -> Regions:
        return routes.regions_of(self._site)

    def _check(self, context: Context, scope: Scope) -> None:
        if self._site.tokens:
            self._site.tokens.check(_metadata(context).get("authorization"), scope)

    def _begin(self, request: Request) -> Answer | Awaitable[Answer]:
        """The answer if it is computed at once, or an awaitable for it. Raises ServeError."""
        results: list[Answer | ServeError] = []
        waiting: asyncio.Future[Answer] | None = None

        def done(result: Answer | ServeError) -> None:
            if waiting is None:
                results.append(result)
            elif waiting.done():  # the client has gone
                return
            elif isinstance(result, ServeError):
                waiting.set_exception(result)
            else:
                waiting.set_result(result)

        self._core.infer(request, done)
        if not results:
            waiting = asyncio.get_running_loop().create_future()
            return waiting
        if isinstance(results[0], ServeError):
            raise results[0]
        return results[0]


def _metadata(context: Context) -> Mapping[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


def _text(error: ServeError) -> str:
    return str(error).replace("\n", " ")[:2000]


# --- messages ---------------------------------------------------------------------------------------------------------

_Wanted = dict[str, tuple[str, int, int]]
"""Outputs that are written to shared memory: region, offset, size."""
_NOTHING: _Wanted = {}


def request_of(message: Any, context: Context | None, regions: Regions | None) -> tuple[Request, _Wanted]:
    """The request in a gRPC `message`, and for each output that is to be written to shared memory its place there.
    Raises ServeError."""
    arrival = time.monotonic()
    if len(message.inputs) > MAX_TENSORS or len(message.outputs) > MAX_TENSORS:
        raise ServeError("too many tensors", expected=f"at most {MAX_TENSORS}")
    contents = message.raw_input_contents
    raw = iter(contents)
    inputs: dict[str, Array] = {}
    for entry in message.inputs:
        name, array = _input(entry, raw if contents else None, regions)
        if name in inputs:
            raise ServeError("is there twice", where=f"input {name[:60]!r}")
        inputs[name] = array
    if next(raw, None) is not None:
        raise ServeError("there are more raw contents than inputs")
    parameters = _parameters(message.parameters) if message.parameters else {}
    timeout = timeout_of(parameters)
    remaining = None if context is None else context.time_remaining()
    if remaining is not None:
        timeout = max(remaining, 0.0) if timeout is None else min(timeout, max(remaining, 0.0))
    wanted: _Wanted = {}
    outputs = message.outputs
    for output in outputs:
        arguments = _parameters(output.parameters) if output.parameters else {}
        if arguments.get("classification"):
            raise ServeError("classification is not served", where=f"output {output.name[:60]!r}")
        if "shared_memory_region" in arguments:
            wanted[output.name] = _region(arguments)
    request = Request(
        message.model_name,
        inputs,
        arrival,
        message.model_version,
        tuple([o.name for o in outputs]) if outputs else None,
        message.id[:1000],
        timeout,
        priority_of(parameters) if parameters else -100,
        "",
    )
    return request, wanted


def _parameters(entries: Any) -> dict[str, Any]:
    return {name: getattr(p, kind) for name, p in entries.items() if (kind := p.WhichOneof("parameter_choice"))}


def _region(parameters: Mapping[str, Any]) -> tuple[str, int, int]:
    name, size = parameters["shared_memory_region"], parameters.get("shared_memory_byte_size")
    offset = parameters.get("shared_memory_offset", 0)
    if not isinstance(name, str) or type(offset) is not int or type(size) is not int:
        raise ServeError("shared memory wants a name, an offset and a size")
    return name, offset, size


def _input(entry: Any, raw: Any, regions: Regions | None) -> tuple[str, Array]:
    """(name, array) of an input from its description `entry`, whose bytes are the next of `raw` if there are raw
    contents."""
    if raw is not None:
        name, how = _declared(entry.SerializeToString()) if entry.ByteSize() <= _KNOWN_BYTES else (entry.name, None)
        if how is not None:
            data = _next(raw, name)
            if len(data) != how.nbytes:
                where = f"input {name[:60]!r}"
                raise ServeError("wrong number of bytes", where=where, expected=how.nbytes, got=len(data))
            return name, how.read(data)
    return entry.name, _unusual_input(entry, raw, regions)


def _next(raw: Iterator[bytes], name: str) -> bytes:
    """The raw contents of the next input, called `name`. Raises ServeError if there are no more."""
    data = next(raw, None)
    if data is None:
        raise ServeError("there are more inputs than raw contents", where=f"input {name[:60]!r}")
    return data


@lru_cache(_KNOWN)
def _declared(text: bytes) -> tuple[str, Raw | None]:
    """(name of the input whose description `text` is, how its raw contents are read). None for the latter if more than
    its type and shape decides. Cached, since clients repeat descriptions, and parsing is slower."""
    entry = pb.ModelInferRequest.InferInputTensor.FromString(text)
    if entry.parameters or entry.datatype == "BYTES" or entry.datatype not in NAMES:
        return entry.name, None
    return entry.name, Raw.of(entry.datatype, list(entry.shape), f"input {entry.name[:60]!r}")


def _unusual_input(entry: Any, raw: Any, regions: Regions | None) -> Array:
    """The array of the input `entry` of a request that is in shared memory (`regions`), consists of texts, or has typed
    contents instead of `raw` ones."""
    where = f"input {entry.name[:60]!r}"
    shape = list(entry.shape)
    parameters = _parameters(entry.parameters) if entry.parameters else {}
    if "shared_memory_region" in parameters:
        if regions is None:
            raise ServeError("shared memory is not served here", Status.FORBIDDEN, hint="--shared-memory")
        return from_raw(regions.read(*_region(parameters)), entry.datatype, shape, where)
    if raw is not None:
        return from_raw(_next(raw, entry.name), entry.datatype, shape, where)
    numpy_dtype(entry.datatype)
    field = _CONTENTS.get(entry.datatype)
    if field is None:
        raise ServeError(f"{entry.datatype} has no form but raw contents", where=where)
    return _typed(list(getattr(entry.contents, field)), entry.datatype, shape, where)


def _typed(values: list[Any], datatype: str, shape: list[int], where: str) -> Array:
    if datatype == "BYTES":
        data = b"".join(len(v).to_bytes(4, "little") + v for v in values)
        return from_raw(data, datatype, shape, where)
    return from_json(values, datatype, shape, where)


def response_of(answer: Answer, wanted: _Wanted, regions: Regions | None) -> Any:
    """`answer` as a gRPC message, with the outputs in `wanted` written to shared memory."""
    message = pb.ModelInferResponse.FromString(answer_bytes(answer))
    del message.raw_output_contents[:]
    for entry, array in zip(message.outputs, answer.outputs.values(), strict=True):
        data = to_raw(array)
        if entry.name in wanted:
            assert regions is not None
            region, offset, size = wanted[entry.name]
            written = regions.write(region, offset, size, data, f"output {entry.name!r}")
            entry.parameters["shared_memory_region"].string_param = region
            entry.parameters["shared_memory_offset"].int64_param = offset
            entry.parameters["shared_memory_byte_size"].int64_param = written
            data = b""
        message.raw_output_contents.append(data)
    return message


# --- the server -------------------------------------------------------------------------------------------------------

Method = Callable[[Any, Any], Awaitable[Any]]
Log = Callable[[Mapping[str, str], str, str, str, float, tuple[int, int]], None]
"""A function with the signature of `AccessLog.write`."""


def _answering(method: Method, log: Log | None) -> Method:
    """`method` as a gRPC handler: a ServeError ends the call with its status code, and calls are logged if there is a
    `log`."""

    @wraps(method)
    async def call(request: Any, context: Context) -> Any:
        try:
            if isinstance(request, ServeError):
                raise request
            return await method(request, context)
        except ServeError as error:
            await context.abort(_CODES[error.status], _text(error))

    return call if log is None else _logged(method.__name__, call, log)


def _logged(name: str, call: Method, log: Log) -> Method:
    """A gRPC method that calls `call` and writes a line about each request, as the method `name`, to `log`."""

    async def logged(request: Any, context: Context) -> Any:
        arrival, status, out = time.monotonic(), "OK", 0
        try:
            answer = await call(request, context)
            out = len(answer) if isinstance(answer, bytes) else answer.ByteSize()
            return answer
        except BaseException as error:
            status = _code(context, error)
            raise
        finally:
            size = 0 if isinstance(request, ServeError) else request.ByteSize()
            log(_metadata(context), "gRPC", f"/{SERVICE}/{name}", status, arrival, (size, out))

    return logged


def _code(context: Context, error: BaseException) -> str:
    """The name of the status code with which an error ends a call."""
    code = context.code()
    if code:
        return str(getattr(code, "name", code))
    return "CANCELLED" if isinstance(error, asyncio.CancelledError) else "UNKNOWN"


def _streaming(
    method: Callable[[Any, Any], AsyncIterator[Any]], log: Log | None
) -> Callable[[Any, Any], AsyncIterator[Any]]:
    """Wrap the streaming method so that each stream is logged when it ends."""

    @wraps(method)
    async def call(requests: Any, context: Context) -> AsyncIterator[Any]:
        arrival, status, out = time.monotonic(), "OK", 0
        try:
            async for answer in method(requests, context):
                out += answer.ByteSize()
                yield answer
        except ServeError as error:
            status = error.status.grpc
            await context.abort(_CODES[error.status], _text(error))
        except BaseException as error:
            status = _code(context, error)
            raise
        finally:
            if log is not None:
                log(_metadata(context), "gRPC", f"/{SERVICE}/{method.__name__}", status, arrival, (0, out))

    return call


def _parsed(kind: Any, data: bytes) -> Any:
    """The message of type `kind` in the bytes `data`; a ServeError (returned, not raised) if they are invalid, as gRPC
    itself would report a failure of the server."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return ServeError(f"the bytes are no {kind.__name__}")


def _inference(forms: Forms, data: bytes) -> Any:
    """Read an inference request: as a `Repeated` if an earlier request was equal but for its raw contents, else as a
    parsed message, whose form may then be stored in `forms`. Returns a ServeError if it is invalid."""
    known = forms.find(data)
    if known is not None:
        return known
    message = _parsed(pb.ModelInferRequest, data)
    if not isinstance(message, ServeError) and message.raw_input_contents and not message.id:  # which differ
        _learn(forms, data, message)
    return message


def _learn(forms: Forms, data: bytes, message: Any) -> None:
    """Store the form of a message in `forms`, if all its inputs are raw contents of fixed size, so that later ones are
    read without parsing."""
    try:
        inputs = [
            _declared(e.SerializeToString()) if e.ByteSize() <= _KNOWN_BYTES else ("", None) for e in message.inputs
        ]
        raw = [(name, how) for name, how in inputs if how is not None]
        sizes = [how.nbytes for _, how in raw]
        usual = len(raw) == len(inputs) == len(dict(raw)) and not any(o.parameters for o in message.outputs)
        if usual and sizes == [len(content) for content in message.raw_input_contents]:
            forms.learn(data, message, replace(request_of(message, None, None)[0], inputs={}), raw)
    except ServeError:
        return  # which the method says


def _serialized(answer: Any) -> bytes:
    """The gRPC message `answer` as bytes; an answer that is bytes already is returned unchanged."""
    return answer if isinstance(answer, bytes) else bytes(answer.SerializeToString())


def handlers(service: Service, log: Log | None = None) -> Any:
    """A handler that offers all methods of `service` to gRPC, and logs their requests to `log`."""
    methods: dict[str, Any] = {}
    for name in [n for n in vars(Service) if n[0].isupper()]:
        method = getattr(service, name)
        if name == "ModelStreamInfer":
            kind = grpc.stream_stream_rpc_method_handler
            behaviour: Any = _streaming(method, log)
            request: Any = pb.ModelInferRequest
        else:
            request = getattr(pb, f"{name}Request")
            behaviour, kind = _answering(method, log), grpc.unary_unary_rpc_method_handler
        reader = partial(_inference, Forms()) if request is pb.ModelInferRequest else partial(_parsed, request)
        methods[name] = kind(behaviour, reader, _serialized)
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def make(
    site: Site,
    address: str,
    port: int,
    *,
    message: int,
    in_flight: int,
    certificate: tuple[Path, Path | None] | None,
    clients: Path | None = None,
    log: Log | None = None,
) -> tuple[Any, int]:
    """A server that has not started, and its port. Called on the loop.

    Args:
        message: the most bytes of a request.
        in_flight: the most requests at once.
        clients: certificates that clients must show.
        log: the access log; None for none.
    """
    options = [
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", message),
        ("grpc.max_send_message_length", -1),
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=in_flight)
    server.add_generic_rpc_handlers((handlers(Service(site), log),))
    host = f"[{address}]" if ":" in address else address
    try:
        if certificate is None:
            bound = server.add_insecure_port(f"{host}:{port}")
        else:
            bound = server.add_secure_port(f"{host}:{port}", _credentials(*certificate, clients))
    except (RuntimeError, OSError, ssl.SSLError) as error:
        raise ServeError(f"gRPC cannot listen: {error}", where=f"{host}:{port}") from None
    if not bound:
        raise ServeError("gRPC cannot listen", where=f"{host}:{port}")
    return server, bound


def _credentials(certificate: Path, key: Path | None, clients: Path | None) -> Any:
    try:
        pair = (key or certificate).read_bytes(), certificate.read_bytes()
        known = None if clients is None else clients.read_bytes()
        return grpc.ssl_server_credentials([pair], known, require_client_auth=known is not None)
    except OSError as error:
        raise ServeError(f"cannot be used for TLS: {error.strerror}", where=str(certificate)) from None


__all__ = ["SERVICE", "Service", "make"]
