"""`tilewright serve`: models to any client of the Open Inference Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.common import JsonOption, err, facts, is_quiet, print_line
from tilewright.cli.offer import SecretOption, TrustOption
from tilewright.support.errors import MissingPackageError
from tilewright.support.progress import progress

if TYPE_CHECKING:
    from tilewright.serve.opening import Source

_OLD = {"hidden": True, "help": "Of `tilewright offer`, whose old name is `serve`."}


def serve(
    context: typer.Context,
    models: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[MODEL]...", help="Files, .onnx or .tw. A model's name is its file's stem."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="All models of a folder, NAME.onnx or NAME/VERSION/model.onnx."),
    ] = None,
    stores: Annotated[
        list[str] | None,
        typer.Option("--store", metavar="NAME", help="The policy of a weight store of this node, always its newest."),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 is on all networks.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    promise: Annotated[
        float | None,
        typer.Option("--promise", min=0.001, metavar="MS", help="In how many milliseconds requests must be answered."),
    ] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Most rows of a batch.")] = 64,
    lanes: Annotated[int, typer.Option("--lanes", min=1, help="Batches computed at once in a process.")] = 1,
    threads: Annotated[int, typer.Option("--threads", "-t", min=1, help="Threads of a batch.")] = 1,
    json: JsonOption = False,
    watch: Annotated[Path | None, typer.Option("--watch", "-w", **_OLD)] = None,
    port: Annotated[int | None, typer.Option("--port", **_OLD)] = None,
    secret_file: SecretOption = None,
    trust: TrustOption = False,
) -> None:
    """Serve models over HTTP until SIGTERM, each request within its deadline or refused at once.

    Clients of Triton, KServe and MLServer speak the protocol, the Open Inference Protocol version 2. Requests meet in
    batches whose time is known beforehand; none waits while a core is free.

    ```
    tilewright serve policy.onnx --promise 20
    curl localhost:8000/v2/models/policy
    ```
    """
    given = [*(models or [])]
    if _is_offer(given, watch, port, secret_file, trust):
        _offer(given, watch, host, port, secret_file, trust, json)
        return
    try:
        import httptools  # noqa: F401
    except ImportError:
        raise MissingPackageError("serving needs httptools", hint="pip install 'tilewright[serve]'") from None
    from tilewright.serve.core import Options
    from tilewright.serve.opening import Source, in_folder, of_file, open_source
    from tilewright.serve.server import Server, Settings, run

    options = {"promise": None if promise is None else promise / 1000, "max_batch": max_batch, "threads": threads}
    sources: list[Source] = [of_file(path, **options) for path in given]
    sources += in_folder(folder, **options) if folder is not None else []
    sources += [Source(name, store=name, **options) for name in stores or []]  # type: ignore[arg-type]
    if not sources:
        raise typer.BadParameter("name a model, --dir or --store", param_hint="MODEL")
    served = []
    for source in sources:
        with progress(f"open {source.name}", enabled=not is_quiet(json)):
            served.append(open_source(source))
    server = Server(Settings(host=host, http_port=http_port, core=Options(lanes=lanes)), served)
    server.on_start = lambda: _report(server.url, sources, json)
    run(server)


def _report(url: str, sources: list[Source], json: bool) -> None:
    names = [f"{s.name}/{s.version}" for s in sources]
    print_line({"serving": url, "models": names}) if json else facts({"serving": url, "models": ", ".join(names)})


def _is_offer(models: list[Path], *old: object) -> bool:
    """Whether the command line is that of `tilewright offer`: a name and a model, or an option that only it has."""
    return any(old) or (len(models) == 2 and not models[0].suffix and not models[0].exists() and models[1].exists())


def _offer(
    given: list[Path], watch: Path | None, host: str, port: int | None, secret: Path | None, trust: bool, json: bool
) -> None:
    from tilewright.cli.offer import offer

    err.print("warning: `tilewright serve NAME MODEL` is called `tilewright offer` now", soft_wrap=True)
    if len(given) != 2:
        raise typer.BadParameter("`tilewright offer` wants a name and a model", param_hint="MODEL")
    name, model = str(given[0]), given[1]
    offer(name, model, watch, host, 7070 if port is None else port, secret, trust=trust, json=json)


__all__ = ["serve"]
