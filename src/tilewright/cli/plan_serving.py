"""`tilewright plan-serving`: how many cores models need to keep their latency promises, and what each core computes."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.common import Exit, JsonOption, err, is_quiet, out, print_json, table, time_text
from tilewright.support.errors import Error, Problems
from tilewright.support.progress import progress

if TYPE_CHECKING:
    from tilewright.serve.packing.plan import Core, Demand


def plan_serving(
    models: Annotated[Path, typer.Argument(metavar="TOML", help="Models with their rates and promises.")],
    cores: Annotated[
        int | None, typer.Option("--cores", min=1, help="How many there are; exit code 3 if they do not suffice.")
    ] = None,
    headroom: Annotated[
        float, typer.Option(min=1.0, help="By what factor rates are planned larger: requests do not come evenly.")
    ] = 1.25,
    json: JsonOption = False,
) -> None:
    """Assign models to cores so that each keeps its promise, on a small number of cores (Nexus's squishy bin packing).

    The file names each model's rate (requests a second) and promise, and a file that is compiled and timed here, or the
    times of its batches:

    ```
    [models.policy]
    rate = 400
    promise_ms = 20
    path = "policy.onnx"
    [models.critic]
    rate = 50
    promise_ms = 100
    profile_ms = [[1, 2.5], [32, 40.0]]
    ```
    """
    from tilewright.serve.packing.plan import plan

    demands = read(models, headroom, quiet=is_quiet(json))
    created = plan(demands)
    if json:
        print_json({"cores": [_as_data(core) for core in created]})
    else:
        _show(created)
    if cores is not None and len(created) > cores:
        err.print(f"{len(created)} cores are needed, {cores} are there")
        raise typer.Exit(Exit.MISMATCH)


def read(path: Path, headroom: float, *, quiet: bool) -> list[Demand]:
    """The demands of all models in the TOML file `path`, with rates times `headroom`. Raises one error that lists all
    problems of the file."""
    from tilewright.serve.packing.plan import Demand

    try:
        arguments = tomllib.loads(path.read_text()).get("models")
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Error(f"cannot be read: {error}", where=str(path)) from None
    if not isinstance(arguments, dict) or not arguments:
        raise Error("names no models", where=str(path), expected="[models.NAME]")
    problems = Problems()
    demands = []
    for name, said in arguments.items():
        try:
            rate, promise = _positive(said, "rate"), _positive(said, "promise_ms") / 1000
            time, most = _times(name, said, path.parent, quiet)
            demands.append(Demand(name, rate * headroom, promise, time, most))
        except Error as error:
            error.where = error.where or f"models.{name}"
            problems.add(error)
    problems.raise_if_any("the models cannot be planned", where=str(path))
    return demands


def _positive(said: Any, name: str) -> float:
    value: Any = said.get(name) if isinstance(said, dict) else None
    if type(value) not in (int, float) or not 0 < value < 1e12:
        raise Error("cannot be planned", expected=f"{name} above 0 and below 1e12", got=repr(value))
    return float(value)


def _is_point(rows: Any, ms: Any) -> bool:
    return type(rows) is int and rows > 0 and type(ms) in (int, float) and 0 < ms < 1e9


def _times(name: str, said: Mapping[str, Any], folder: Path, quiet: bool) -> tuple[Callable[[int], float], int]:
    """(a function from rows to seconds of a batch, the most rows) for the model `name`, whose table in the file is
    `said`: either it is timed here, or the table has points."""
    from tilewright.serve.batching.estimates import Estimates
    from tilewright.serve.opening import Source, open_source

    if "path" in said:
        with progress(f"time {name}", enabled=not quiet):
            served = open_source(Source(name, path=folder / str(said["path"])))
        return _rising(served.estimates), served.max_batch
    points = said.get("profile_ms")
    pairs = isinstance(points, list) and all(isinstance(p, list) and len(p) == 2 for p in points)
    if not points or not pairs or not all(_is_point(*p) for p in points):
        raise Error("cannot be planned", expected="path, or profile_ms = [[rows, ms], ...]", got=repr(points)[:100])
    known = dict(sorted((n, ms / 1000) for n, ms in points))
    most = max(known)
    estimates = Estimates(most, lambda rows: _between(known, rows))
    return _rising(estimates), most


def _between(points: Mapping[int, float], rows: int) -> float:
    """Linear interpolation between the neighbouring points; in proportion to rows outside of them."""
    below = [n for n in points if n <= rows]
    above = [n for n in points if n >= rows]
    if not below or not above:
        closest = min(points) if above else max(points)
        return points[closest] if above else points[closest] * rows / closest
    low, high = below[-1], above[0]
    share = (rows - low) / (high - low) if high > low else 0.0
    return points[low] * (1 - share) + points[high] * share


def _rising(estimates: Any) -> Callable[[int], float]:
    """The estimates made monotonic, as times must not fall with rows, which noise may cause."""
    times: list[float] = [0.0]

    def time(rows: int) -> float:
        while len(times) <= rows:
            times.append(max(times[-1], estimates.seconds(len(times))))
        return times[rows]

    return time


def _as_data(core: Core) -> dict[str, Any]:
    slots = [{"model": s.name, "batch": s.batch, "seconds": s.seconds, "rate": s.rate} for s in core.slots]
    return {"cycle": core.cycle, "occupied": core.occupied, "slots": slots}


def _show(cores: list[Core]) -> None:
    from tilewright.serve.packing.plan import drawn

    rows = [
        (str(k), time_text(core.cycle), f"{core.occupied:.0%}", f"{slot.name}: {slot.batch} rows, {slot.rate:.0f}/s")
        for k, core in enumerate(cores)
        for slot in core.slots
    ]
    table("", ("core", "cycle", "busy", "batches"), rows, left=4)
    for k, core in enumerate(cores):
        out.print(f"{k:3} {drawn(core)}", markup=False)


__all__ = ["plan_serving"]
