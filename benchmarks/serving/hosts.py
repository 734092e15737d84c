"""Servers in processes of their own: ours, and bare ones that answer with bytes they keep.

    with host("tilewright", model="m64", core=0) as server:
        server.ports["http"]

A process prints a line of JSON with its ports once it answers. Bare servers do what any server on the same library has
to do, so their times are the floor of ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.live.common import program


@dataclass(frozen=True, slots=True)
class Host:
    """A server that runs.

    Args:
        ports: "http" and "grpc" are numbers, "local" is the path of a Unix socket.
    """

    process: subprocess.Popen[str]
    ports: Mapping[str, Any]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http']}"


@contextmanager
def host(kind: str, *arguments: object, core: int | None = None, python: str = sys.executable) -> Iterator[Host]:
    """A server of this kind: "tilewright", "bare", or a module under `benchmarks.serving.peers`.

    Args:
        core: that it may use; None: all.
        python: of the environment that has what it needs.
    """
    module = "benchmarks.serving.hosts" if kind in KINDS else f"benchmarks.serving.peers.{kind}"
    command = [python, "-m", module, *([kind] if kind in KINDS else []), *map(str, arguments)]
    with started(command, core) as process:
        yield process


@contextmanager
def started(command: Sequence[str], core: int | None = None, seconds: float = 60.0) -> Iterator[Host]:
    """A process that prints its ports as a line of JSON; it gets SIGTERM, and is killed where that is not enough."""
    if core is not None:
        command = ["taskset", "-c", str(core), *command]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, text=True, cwd=models.ROOT, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:  # frameworks write other lines there, too
                if line.startswith('{"ports"'):
                    break
            else:
                raise RuntimeError(f"{' '.join(command)}: ended with {process.wait()}")
            yield Host(process, json.loads(line)["ports"])
        finally:
            _end(process, seconds)


def _end(process: subprocess.Popen[str], seconds: float) -> None:
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def announce(**ports: object) -> None:
    """In a server's process: say where it answers."""
    print(json.dumps({"ports": ports}), flush=True)


# --- ours -------------------------------------------------------------------------------------------------------------


def tilewright(options: argparse.Namespace) -> None:
    """A model of the suite, on one lane."""
    import tilewright as tw
    from tilewright.serve.core import Options
    from tilewright.serve.models import Served
    from tilewright.serve.server import Server, Settings, run

    served = Served(options.model, "1", tw.load(program(options.model)), promise=options.promise)
    served.warm()
    settings = Settings(
        http_port=0, grpc_port=0, local=options.local, spin=options.spin,
        core=Options(policy=options.policy, in_flight=100_000),
    )  # fmt: skip
    server = Server(settings, [served])
    server.on_start = lambda: announce(http=server.http_port, grpc=server.grpc_port, local=options.local)
    run(server)


def store(options: argparse.Namespace) -> None:
    """The weight store "policy", always its newest."""
    from tilewright.serve.opening import Source
    from tilewright.serve.server import Server, Settings, run

    server = Server(Settings(http_port=0, local=options.local), [Source("policy", store="policy")])
    server.on_start = lambda: announce(http=server.http_port, local=options.local)
    run(server)


def workers(options: argparse.Namespace) -> None:
    """A file, by several processes."""
    from tilewright.serve.opening import of_file
    from tilewright.serve.server import Settings
    from tilewright.serve.workers import Supervisor

    supervisor = Supervisor(Settings(http_port=0, drain=2.0), [of_file(options.file)], options.workers)
    supervisor.on_start = lambda: announce(http=supervisor.http_port)
    supervisor.on_trouble = lambda text: None  # the benchmark makes it
    supervisor.run()


# --- bare -------------------------------------------------------------------------------------------------------------


def bare(options: argparse.Namespace) -> None:
    """HTTP by httptools, gRPC and a Unix socket, each answering with as many bytes as it is told."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_bare(options.answer, options.local))


async def _bare(size: int, local: str) -> None:
    import grpc
    import httptools

    body = bytes(size)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {size}\r\n\r\n".encode()

    class Http(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            self.parser = httptools.HttpRequestParser(self)

        def data_received(self, data: bytes) -> None:
            self.parser.feed_data(data)

        def on_message_complete(self) -> None:
            self.transport.write(head + body)

    class Local(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(b"\0" * 64)

    async def echo(request: bytes, context: Any) -> bytes:
        return body

    loop = asyncio.get_running_loop()
    http = await loop.create_server(Http, "127.0.0.1", 0)
    unix = await loop.create_unix_server(Local, local)
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(echo)
    handler = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": method})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce(http=http.sockets[0].getsockname()[1], grpc=port, local=local)
    await asyncio.gather(http.serve_forever(), unix.serve_forever())


KINDS = {"tilewright": tilewright, "store": store, "workers": workers, "bare": bare}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--model", default="m64")
    parser.add_argument("--promise", type=float)
    parser.add_argument("--policy", default="deadline")
    parser.add_argument("--spin", type=float, default=0.0)
    parser.add_argument("--local", default=None)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--answer", type=int, default=96)
    options = parser.parse_args()
    if options.local is not None:
        Path(options.local).unlink(missing_ok=True)
    KINDS[options.kind](options)


if __name__ == "__main__":
    main()
