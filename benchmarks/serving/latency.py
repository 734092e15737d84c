"""How long one small request takes: HTTP with binary tensors, shared memory, gRPC, each beside a bare server.

Requests leave at the times of a Poisson process, and latency counts from these. The client is one blocking connection
that waits for its time by asking the clock, so it adds as little as a client in Python can.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving.hosts import Host, host
from tilewright.serve.batching.simulation import Load, arrivals
from tilewright.serve.load import request_bytes
from tilewright.serve.local_client import LocalModel

RATE = 2000.0
FEATURES = 17
"""Elements of an observation of M64."""

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one turn: quantiles from the intended time to the answer; `service` is the median from sending."""

    p50: float
    p99: float
    service: float


def paced(call: Call, rate: float, seconds: float, seed: int) -> Times:
    """Call at the times of a Poisson process."""
    moments = list(arrivals(Load("", rate, 1.0), seconds, random.Random(seed)))
    clock = time.perf_counter
    latencies, services = [], []
    begin = clock() + 0.01
    for moment in moments:
        due = begin + moment
        while (now := clock()) < due:
            pass
        call()
        end = clock()
        latencies.append(end - due)
        services.append(end - now)
    p50, p99 = np.quantile(latencies, [0.5, 0.99])
    return Times(float(p50), float(p99), float(np.median(services)))


# --- clients ----------------------------------------------------------------------------------------------------------


@contextmanager
def http(server: Host, request: bytes) -> Iterator[Call]:
    """A blocking connection; an answer is whole when its length says so."""
    with socket.create_connection(("127.0.0.1", server.ports["http"])) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def call() -> bytes:
            sock.sendall(request)
            answer = sock.recv(1 << 16)
            head, _, body = answer.partition(b"\r\n\r\n")
            length = int(head[head.index(b"Content-Length: ") + 16 :].partition(b"\r")[0])
            while len(body) < length:
                body += sock.recv(1 << 16)
            return answer

        assert call().startswith(b"HTTP/1.1 200"), call()
        yield call


@contextmanager
def local(server: Host, observation: Any) -> Iterator[Call]:
    """Our client with shared memory."""
    with LocalModel(server.ports["local"], "m64") as policy:
        yield lambda: policy(observation)


@contextmanager
def bare_local(server: Host) -> Iterator[Call]:
    """A round trip through a Unix socket of as many bytes as our client sends."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(server.ports["local"])
        message = bytes(80)

        def call() -> None:
            sock.sendall(message)
            sock.recv(1 << 16)

        yield call


@contextmanager
def grpc(server: Host, message: bytes) -> Iterator[Call]:
    """gRPC's blocking client; messages stay bytes, so that only servers differ."""
    import grpc as library

    with library.insecure_channel(f"127.0.0.1:{server.ports['grpc']}") as channel:
        method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        yield lambda: method(message)


def grpc_message(observation: Any) -> bytes:
    """A request for M64, as gRPC carries it."""
    from tilewright.serve.protocol.generated import inference_pb2

    pb: Any = inference_pb2
    message = pb.ModelInferRequest(model_name="m64", raw_input_contents=[observation.tobytes()])
    message.inputs.add(name="obs", datatype="FP32", shape=observation.shape)
    return bytes(message.SerializeToString())


# --- measurement ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One way in, and the bare server: medians over the turns; `ratio` of service times, turn by turn."""

    way: str
    ours: Times
    bare: Times
    ratio: float


def measure(folder: Path, turns: int, seconds: float, rate: float = RATE, spin: float = 0.0) -> list[Row]:
    """All three ways in turns, each beside its bare server. Servers have core 0, the client has core 1."""
    observation = np.random.default_rng(0).standard_normal((1, FEATURES), np.float32)
    with ExitStack() as stack:
        options = ("--model", "m64", "--local", folder / "ours.sock", "--spin", spin)
        ours = stack.enter_context(host("tilewright", *options, core=0))
        request = request_bytes(ours.url, "m64", {"obs": observation}, None)
        message = grpc_message(observation)
        sizes = _sizes(ours, request, message)
        bares = {
            way: stack.enter_context(host("bare", "--answer", n, "--local", folder / f"{way}.sock", core=0))
            for way, n in sizes.items()
        }
        calls: dict[str, tuple[Call, Call, float]] = {
            "HTTP": (
                stack.enter_context(http(ours, request)), stack.enter_context(http(bares["http"], request)), rate
            ),
            "Unix socket, shared memory": (
                stack.enter_context(local(ours, observation)), stack.enter_context(bare_local(bares["http"])), rate
            ),
            "gRPC": (
                stack.enter_context(grpc(ours, message)), stack.enter_context(grpc(bares["grpc"], message)), rate / 10
            ),
        }  # fmt: skip
        for mine, bare, _ in calls.values():  # which warms both
            paced(mine, 500.0, 0.5, 0)
            paced(bare, 500.0, 0.5, 0)
        return [_row(way, *pair, turns, seconds) for way, pair in calls.items()]


def _sizes(server: Host, request: bytes, message: bytes) -> dict[str, int]:
    """Bytes of our answers, which the bare servers give too."""
    with http(server, request) as call:
        answer = call()
        assert isinstance(answer, bytes)
        http_size = len(answer.partition(b"\r\n\r\n")[2])
    with grpc(server, message) as call:
        answer = call()
        assert isinstance(answer, bytes)
        return {"http": http_size, "grpc": len(answer)}


def _row(way: str, mine: Call, bare: Call, rate: float, turns: int, seconds: float) -> Row:
    pairs = [(paced(mine, rate, seconds, k), paced(bare, rate, seconds, k)) for k in range(turns)]
    return Row(
        way,
        _median([a for a, _ in pairs]),
        _median([b for _, b in pairs]),
        float(np.median([a.service / b.service for a, b in pairs])),
    )


def _median(times: Sequence[Times]) -> Times:
    return Times(*(float(np.median([getattr(t, name) for t in times])) for name in ("p50", "p99", "service")))


__all__ = ["Row", "Times", "measure", "paced"]
