"""`tilewright serve`: serves models to clients of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.common import JsonOption, err, facts, is_quiet, print_line
from tilewright.support.errors import MissingPackageError
from tilewright.support.progress import progress

if TYPE_CHECKING:
    from tilewright.serve.config import Config

_OLD: dict[str, Any] = {"hidden": True, "help": "Of `tilewright offer`, whose old name is `serve`."}


def serve(
    models: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[MODEL]...", help="Files, .onnx or .tw. A model's name is its file's stem."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="All models of a folder, NAME.onnx or NAME/VERSION/model.onnx; it is watched."
        ),
    ] = None,
    stores: Annotated[
        list[str] | None,
        typer.Option("--store", metavar="NAME", help="The policy of a weight store of this node, always its newest."),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 is on all networks.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    grpc_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0 takes a free one. [default: 8001 where gRPC is installed]")
    ] = None,
    unix: Annotated[
        Path | None, typer.Option("--local", metavar="PATH", help="A Unix socket for `tw.client.local`.")
    ] = None,
    promise: Annotated[
        float | None,
        typer.Option(
            "--promise",
            min=0.001,
            metavar="MS",
            help="In how many milliseconds requests must be answered. [default: no limit]",
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Most rows of a batch.")] = 64,
    lanes: Annotated[int, typer.Option("--lanes", min=1, help="Batches computed at once in a process.")] = 1,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes, on one copy of the weights.")] = 1,
    threads: Annotated[int, typer.Option("--threads", "-t", min=1, help="Threads of a batch.")] = 1,
    spin: Annotated[
        float,
        typer.Option(
            "--spin",
            min=0,
            metavar="US",
            help="After a request, ask so many microseconds for the next one before sleeping.",
        ),
    ] = 0.0,
    policy: Annotated[
        str, typer.Option("--policy", metavar="NAME", help="How batches are made: deadline, or aimd to compare with.")
    ] = "deadline",
    repository: Annotated[bool, typer.Option(help="Let clients load and unload models of --dir.")] = False,
    shared_memory: Annotated[bool, typer.Option(help="Let clients register shared memory.")] = False,
    access_log: Annotated[
        Path | None, typer.Option("--access-log", metavar="FILE", help="A line of JSON for each request.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="TOML", help="All of this and more from a file.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the configuration, and end.")] = False,
    json: JsonOption = False,
    watch: Annotated[Path | None, typer.Option("--watch", "-w", **_OLD)] = None,
    port: Annotated[int | None, typer.Option("--port", **_OLD)] = None,
    secret_file: Annotated[Path | None, typer.Option("--secret-file", **_OLD)] = None,
    trust: Annotated[bool, typer.Option("--trust", **_OLD)] = False,
) -> None:
    """Serve models over HTTP and gRPC until SIGTERM, each request within its deadline or refused at once.

    Clients of Triton, KServe and MLServer speak the protocol, the Open Inference Protocol version 2. Requests are
    computed in batches whose time is estimated beforehand; none waits while a core is free.

    ```
    tilewright serve policy.onnx --promise 20
    curl localhost:8000/v2/models/policy
    ```
    """
    arguments = [*(models or [])]
    if _is_offer(arguments, {"--watch": watch, "--port": port, "--secret-file": secret_file, "--trust": trust}):
        _offer(arguments, watch, host, port, secret_file, trust, json)
        return
    try:
        import httptools  # noqa: F401
    except ImportError:
        raise MissingPackageError("serving needs httptools", hint="pip install 'tilewright[serve]'") from None
    from tilewright.serve import config as configuration
    from tilewright.serve.core import Options, check_policy
    from tilewright.serve.opening import Source, in_folder, of_file
    from tilewright.serve.server import Settings

    if config is not None:
        read = configuration.read(config)
    else:
        options: dict[str, Any] = {"max_batch": max_batch, "threads": threads}
        options["promise"] = None if promise is None else promise / 1000
        sources = [of_file(path, **options) for path in arguments]
        sources += in_folder(folder, **options) if folder is not None else []
        sources += [Source(name, store=name, **options) for name in stores or []]
        if not sources and folder is None:
            raise typer.BadParameter("name a model, --dir, --store or --config", param_hint="MODEL")
        if repository and folder is None:
            raise typer.BadParameter("wants --dir, whose models clients load", param_hint="--repository")
        settings = Settings(
            host=host, http_port=http_port, grpc_port=_grpc_port(grpc_port), local=None if unix is None else str(unix),
            core=Options(lanes=lanes, policy=check_policy(policy)),
            repository=folder if repository else None, shared_memory=shared_memory,
            spin=spin / 1e6,
        )  # fmt: skip
        log = None if access_log is None else str(access_log)
        read = configuration.Config(settings, tuple(sources), workers, log, folder)
    if check:
        _report("", read, json)
        return
    _run(read, json)


def _grpc_port(count: int | None) -> int | None:
    """The port of gRPC; None if it is not installed, unless the user stated a port."""
    try:
        import grpc  # noqa: F401
    except ImportError:
        if count is not None:
            raise MissingPackageError("gRPC is not installed", hint="pip install 'tilewright[serve]'") from None
        return None
    return 8001 if count is None else count


def _run(read: Config, json: bool) -> None:
    from tilewright.serve.opening import open_source
    from tilewright.serve.server import Server, run
    from tilewright.serve.watch import Watcher
    from tilewright.serve.workers import Supervisor

    settings = read.settings
    if read.access_log is not None:
        settings = replace(settings, access_log=open(read.access_log, "a"))  # noqa: SIM115  as long as the process
    watcher = None
    if read.folder is not None:
        watcher = Watcher(read.folder)
        watcher.accept()
    if read.workers > 1:
        supervisor = Supervisor(settings, read.sources, read.workers, watcher)
        supervisor.on_start = lambda: _report(f"http://{settings.host}:{supervisor.http_port}", read, json)
        supervisor.run()
        return
    served = []
    for source in read.sources:
        with progress(f"open {source.name}", enabled=not is_quiet(json)):
            served.append((open_source(source), source.share))
    server = Server(settings, [model for model, share in served if share >= 1])
    for model, share in served:
        if share < 1:
            server.canaries.append((model, share))
    server.watcher = watcher
    server.on_start = lambda: _report(server.url, read, json, server.grpc_port)
    run(server)


def _report(url: str, read: Config, json: bool, grpc_port: int | None = None) -> None:
    rows: dict[str, Any] = {"serving": url, "grpc": grpc_port, "workers": read.workers}
    rows["models"] = [f"{s.name}/{s.version}" for s in read.sources]
    if json:
        print_line(rows)
    else:
        facts({name: value for name, value in rows.items() if value} | {"models": ", ".join(rows["models"])})


def _is_offer(models: list[Path], old: Mapping[str, object]) -> bool:
    """Whether the arguments are those of `tilewright offer`, this command's old meaning: a name and a model. `old`:
    options that only that command has; raises typer.BadParameter if one of these has a value without them."""
    used = next((name for name, value in old.items() if value), None)
    if used is not None and len(models) != 2:
        ports = ": the ports of serve are --http-port and --grpc-port" if used == "--port" else ""
        raise typer.BadParameter(f"this is an option of `tilewright offer NAME MODEL`{ports}", param_hint=used)
    first = models[0] if len(models) == 2 else None
    return used is not None or (first is not None and not first.suffix and not first.exists() and models[1].exists())


def _offer(
    arguments: list[Path], watch: Path | None, host: str, port: int | None, secret: Path | None, trust: bool, json: bool
) -> None:
    from tilewright.cli.offer import offer

    err.print("warning: `tilewright serve NAME MODEL` is called `tilewright offer` now", soft_wrap=True)
    name, model = str(arguments[0]), arguments[1]
    offer(name, model, watch, host, 7070 if port is None else port, secret, trust=trust, json=json)


__all__ = ["serve"]
