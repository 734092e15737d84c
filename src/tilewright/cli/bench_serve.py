"""`tilewright bench-serve`: measure a server under load, with an open-loop generator."""

from __future__ import annotations

import asyncio
import itertools
import json as json_module
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import picture
from tilewright.cli.common import JsonOption, SeedOption, err, is_quiet, parse_dims, print_json, table, time_text
from tilewright.support.errors import Error, MissingPackageError

if TYPE_CHECKING:
    from tilewright.serve.load import Point

LOCAL = "local:"
"""The prefix of a Unix socket's path, for callers with shared memory."""


def bench_serve(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="Of the server: http://HOST:PORT, or local:PATH as its --local says; or a file, served for this.",
        ),
    ],
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="The model's name. [default: the file's stem]")
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="Of the server of a file: deadline, or aimd. May be repeated."),
    ] = None,
    rates: Annotated[
        list[float] | None,
        typer.Option("--rate", "-r", min=0.1, help="Requests a second. May be repeated. [default: 100 200 500 1000]"),
    ] = None,
    promise: Annotated[
        float, typer.Option("--promise", min=0.001, metavar="MS", help="What counts as in time.")
    ] = 20.0,
    tell: Annotated[bool, typer.Option(help="Send the promise along as each request's deadline.")] = True,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="For each rate.")] = 5.0,
    burst: Annotated[float, typer.Option("--burst", min=1.0, help="Requests that leave together, on average.")] = 1.0,
    connections: Annotated[int, typer.Option("--connections", min=1, help="Requests under way at most.")] = 64,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", "-d", metavar="NAME=N", help="Size of an open axis, by its number: 0=8. [default: 1]"),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="Draw goodput and latency over load.")
    ] = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Send a model random inputs at given rates, whether or not answers have come, and count those in time.

    Requests leave at times of a Poisson process. Latency counts from the time at which a request was to leave, so that
    a server that stalls is seen to stall. Works with any server of the Open Inference Protocol.

    ```
    tilewright bench-serve http://localhost:8000 policy -r 500 -r 1000
    tilewright bench-serve local:/run/serve.sock policy -r 500 --dim 0=8
    tilewright bench-serve policy.onnx --policy deadline --policy aimd -r 500
    ```
    """
    if find_spec("httptools") is None:
        raise MissingPackageError("this needs httptools", hint="pip install 'tilewright[serve]'")
    picture.check(png)
    path = Path(url)
    loads = Loads(
        tuple(rates or (100.0, 200.0, 500.0, 1000.0)), promise / 1000, tell, seconds, burst, connections, seed
    )
    sizes, quiet = parse_dims(dim), is_quiet(json)
    if path.suffix in (".onnx", ".tw"):
        points_by_policy = {}
        for policy in policies or ["deadline"]:
            with served(path, policy, promise) as address:
                points_by_policy[policy] = points_of(address, model or path.stem, sizes, loads, quiet)
    elif policies:
        raise typer.BadParameter("--policy is of a file's server", param_hint="--policy")
    elif model is None:
        raise typer.BadParameter("name the model", param_hint="MODEL")
    else:
        points_by_policy = {"": points_of(url, model, sizes, loads, quiet)}
    if png is not None:
        draw(points_by_policy, promise, png)
    report(points_by_policy, json)


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads that a server gets one after another.

    Args:
        rates: requests a second, one for each load.
        promise: seconds within which an answer counts as in time.
        tell: whether requests carry the promise as their deadline.
        seconds: of each load.
        burst: how many requests leave together, on average.
        connections: requests under way at most.
        seed: of the inputs and of the times.
    """

    rates: Sequence[float]
    promise: float
    tell: bool
    seconds: float
    burst: float
    connections: int
    seed: int


def points_of(url: str, model: str, sizes: dict[str, int], loads: Loads, quiet: bool) -> list[Point]:
    """Send requests to `model` on the server at `url` at each rate of `loads`; return the measurements at each rate.
    Inputs are random, with the dimensions `sizes`."""
    from tilewright.serve.load import Http, Local, Target, offer, request_bytes

    inputs = random_of(url, model, sizes, loads.seed)
    timeout = loads.promise if loads.tell else None
    target: Target
    if url.startswith(LOCAL):
        target = Local(url.removeprefix(LOCAL), model, inputs, timeout)
    else:
        target = Http(url, request_bytes(url, model, inputs, timeout))
    points = []
    for rate in loads.rates:
        if not quiet:
            err.print(f"{rate:g} requests a second for {loads.seconds:g} s")
        run = offer(
            target, rate, loads.promise, seconds=loads.seconds, burst=loads.burst, connections=loads.connections,
            seed=loads.seed,
        )  # fmt: skip
        points.append(asyncio.run(run))
    return points


@contextmanager
def served(path: Path, policy: str, promise: float) -> Iterator[str]:
    """Start a server for the model file `path`, which forms batches by `policy`, in a process of its own, on a free
    port, which ends with the `with` block; yields its address. `promise`: the latency promised, as for `tilewright
    serve`."""
    command = [
        sys.executable, "-m", "tilewright.cli", "serve", str(path), "--http-port", "0", "--policy", policy,
        "--promise", str(promise), "--json",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise Error("the server did not start", where=str(path), got=f"status {process.wait()}")
            yield str(json_module.loads(line)["serving"])
        finally:
            process.terminate()


def random_of(url: str, model: str, dims: dict[str, int], seed: int) -> dict[str, Any]:
    """Random inputs that fit the description of `model` by the server at `url`; open dimensions have their sizes in
    `dims`, or 1."""
    from tilewright.runtime.examples import random_inputs
    from tilewright.runtime.specs import InputSpec
    from tilewright.serve.client import Client
    from tilewright.serve.local_client import LocalModel
    from tilewright.serve.tensors import NAMES

    if url.startswith(LOCAL):
        with LocalModel(url.removeprefix(LOCAL), model) as session:
            declared = session.inputs
    else:
        with Client(url) as client:
            declared = client.metadata(model)["inputs"]
    specs = [
        InputSpec(t["name"], NAMES[t["datatype"]], tuple(n if n >= 0 else f"{k}" for k, n in enumerate(t["shape"])))
        for t in declared
    ]
    return random_inputs(specs, dims, seed)


def report(points_by_policy: Mapping[str, Sequence[Point]], json: bool) -> None:
    """Print a line for each load and policy."""
    shares = (0.5, 0.99, 0.999)
    lines = [(policy, point) for policy, points in points_by_policy.items() for point in points]
    if json:
        print_json([
            {"offered": p.offered, "goodput": p.goodput, "violations": p.violations, "statuses": p.statuses,
             "generator_lag": p.lag, **{f"p{100 * s:g}": p.quantile(s) for s in shares},
             **({"policy": policy} if policy else {})}
            for policy, p in lines
        ])  # fmt: skip
        return
    rows = [
        (
            *([policy] if policy else []), f"{p.offered:.0f}", f"{p.goodput:.0f}", f"{p.violations:.2%}",
            *(time_text(p.quantile(s)) for s in shares),
            " ".join(f"{status}:{n}" for status, n in p.statuses.items()), time_text(p.lag),
        )
        for policy, p in lines
    ]  # fmt: skip
    columns = ("offered/s", "in time/s", "too late", "p50", "p99", "p99.9", "statuses", "generator's lag")
    table("", ("policy", *columns) if all(points_by_policy) else columns, rows, left=1 if all(points_by_policy) else 0)


def draw(points_by_policy: Mapping[str, Sequence[Point]], promise: float, path: Path) -> None:
    """Draw goodput and latencies over load, a line for each policy, to the image file `path`. `promise` is in
    milliseconds."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for (policy, points), style in zip(points_by_policy.items(), itertools.cycle(("-", "--")), strict=False):
        offered = [p.offered for p in points]
        name = f" ({policy})" if policy else ""
        left.plot(offered, [p.goodput for p in points], f"o{style}", label=f"answered in time{name}")
        for share in (0.5, 0.99, 0.999):
            latencies = [1000 * p.quantile(share) for p in points]
            right.plot(offered, latencies, f"o{style}", label=f"p{100 * share:g}{name}")
    left.plot(offered, offered, ":", color="grey", label="offered")
    left.set(xlabel="requests a second", ylabel="answers in time a second")
    right.axhline(promise, color="grey", linestyle=":", label="promise")
    right.set(xlabel="requests a second", ylabel="milliseconds", yscale="log")
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    picture.write(figure, path)


__all__ = ["bench_serve"]
