"""`tilewright farm`: the tuning service, which turns data from production into tuning records."""

from __future__ import annotations

import datetime
import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.common import JsonOption, facts, out, print_json, print_line, table
from tilewright.support.errors import Error, MissingPackageError

if TYPE_CHECKING:
    from tilewright.farm.state import State

farm = typer.Typer(
    name="farm",
    no_args_is_help=True,
    help="The tuning service: collects what production runs, tunes it, and releases records that are measured to help.",
)

StateOption = Annotated[
    str,
    typer.Option(
        "--state", metavar="FILE|URL", envvar="TILEWRIGHT_FARM", help="The database: a SQLite file, or postgresql://..."
    ),
]
ABOUT = 60
"""The most characters of a decision in a table."""


def _state(address: str) -> State:
    from tilewright.farm.state import State

    return State(address)


@farm.command("start")
def start_command(
    state: StateOption = "farm.sqlite",
    collected: Annotated[
        list[Path] | None, typer.Option("--collected", metavar="DIR", help="A folder that processes collect into.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=0, help="Worker processes on this machine.")] = 1,
    threads: Annotated[int, typer.Option("--threads", "-t", min=1, help="Threads of the calls that are timed.")] = 1,
    ray: Annotated[
        str | None, typer.Option("--ray", metavar="ADDRESS", help="Also work on the nodes of a Ray cluster; or auto.")
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine only with --tokens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8700,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", metavar="TOML", help="[tokens] with a line 'token = [roles]' for each.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option("--certificate", metavar="PEM", help="For TLS.")] = None,
    private: Annotated[
        Path | None, typer.Option("--private", metavar="PEM", help="Its key, if in another file.")
    ] = None,
    key: Annotated[
        Path, typer.Option("--key", metavar="FILE", help="The key that signs records; made if there is none.")
    ] = Path("farm.key"),
    core_hours: Annotated[float, typer.Option("--core-hours", min=0.0, help="Budget of what waits and runs.")] = 1.0,
    pay_back: Annotated[
        float, typer.Option("--pay-back", min=0.0, metavar="DAYS", help="In which a job must save its cost; 0: any.")
    ] = 30.0,
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, help="Of the search of one decision.")] = 120.0,
    grace: Annotated[
        float, typer.Option("--grace", min=0.0, help="Seconds that a record waits for a second host.")
    ] = 600.0,
    noise: Annotated[float, typer.Option("--noise", min=0.0, help="Largest noise of a worker, as a share.")] = 0.03,
    neighbours: Annotated[
        float, typer.Option("--neighbours", min=0.0, help="Largest share of a core that others may take.")
    ] = 0.3,
) -> None:
    """Run the service until SIGTERM: plan, tune, confirm, sign, roll out, and answer over HTTP.

    It may be killed at any time: everything is in its database, and a job of a worker that died is done by another one.

    ```
    tilewright farm start --collected /shared/collected --workers 2
    tilewright farm start --state postgresql://farm@db/farm --ray auto --host 0.0.0.0 --tokens tokens.toml
    ```
    """
    _need_http()
    from tilewright.farm.http import read_tokens, tokens_of
    from tilewright.farm.planner import Budget
    from tilewright.farm.selftest import Limits
    from tilewright.farm.service import Service, Settings

    settings = Settings(
        state=state,
        key=key,
        collected=tuple(collected or ()),
        workers=workers,
        threads=threads,
        ray=ray,
        limits=Limits(noise, neighbours),
        budget=Budget(core_hours, pay_back),
        grace=grace,
        host=host,
        port=port,
        tokens=tokens_of() if tokens is None else read_tokens(tokens),
        certificate=None if certificate is None else (certificate, private),
        search_seconds=seconds,
    )
    Service(settings, print_line).run()


def _need_http() -> None:
    try:
        import cryptography  # noqa: F401
        import httptools  # noqa: F401
    except ImportError:
        hint = "pip install 'tilewright[farm]'"
        raise MissingPackageError("the service needs httptools and cryptography", hint=hint) from None


@farm.command("status")
def status_command(state: StateOption = "farm.sqlite", json: JsonOption = False) -> None:
    """Sum up: the queue, records, what tuning has cost, and what it saves.

    ```
    tilewright farm status --state farm.sqlite
    ```
    """
    from tilewright.farm.overview import status

    now = status(_state(state))
    if json:
        print_json(now)
        return
    cost = now["cost"]
    facts(
        {
            "jobs": _counted(now["queue"]),
            "records": _counted(now["records"]),
            "of other compilers": now["stale"],
            "workers": f"{sum(w['alive'] for w in now['workers'])} alive",
            "models": f"{len(now['models'])}, {sum(m['calls'] for m in now['models'])} calls",
            "core-seconds": f"{cost['spent']:.0f} spent, {cost['saved_a_day']:.2f} saved a day",
        }
    )
    if now["gains"]:
        rows = [
            [g["channel"], (g["about"] or g["decision"])[:ABOUT], g["setting"], _interval(g), g["state"]]
            for g in now["gains"]
        ]
        table("channels", ["channel", "decision", "setting", "gain", "measured"], rows, left=3)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "none"


def _interval(row: dict[str, Any]) -> str:
    return f"{row['median']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


@farm.command("workers")
def workers_command(state: StateOption = "farm.sqlite", json: JsonOption = False) -> None:
    """List workers: their noise, the share of their cores that other processes use, the jobs that they did.

    ```
    tilewright farm workers
    ```
    """
    from tilewright.farm.overview import workers

    rows = workers(_state(state))
    if json:
        print_json(rows)
        return
    columns = ["worker", "class", "noise", "others take", "GHz", "jobs", "core-seconds", "state"]
    cells = [
        [
            *(w["name"], w["target"], f"{w['noise']:.1%}", f"{w['neighbours']:.0%}", f"{w['ghz']:.2f}"),
            *(w["done"], f"{w['spent']:.0f}", (w["why"] or w["state"]) if w["alive"] else "gone"),
        ]
        for w in rows
    ]
    table("", columns, cells, left=2)


@farm.command("jobs")
def jobs_command(
    state: StateOption = "farm.sqlite",
    most: Annotated[int, typer.Option("--most", min=1, help="Lines.")] = 50,
    json: JsonOption = False,
) -> None:
    """List jobs: which run, which wait and what they promise, what came out.

    ```
    tilewright farm jobs --most 20
    ```
    """
    from tilewright.farm.overview import jobs

    rows = jobs(_state(state), most)
    if json:
        print_json(rows)
        return
    columns = ["job", "kind", "decision", "state", "saves a day", "tries", "core-seconds", "result"]
    cells = [
        [
            *(j["name"][:12], j["kind"], j["decision"], j["state"]),
            *(f"{j['priority']:.3g}" if j["kind"] == "tune" else "-", j["tries"], f"{j['spent']:.0f}", j["why"][:80]),
        ]
        for j in rows
    ]
    table("", columns, cells, left=4)


@farm.command("rollout")
def rollout_command(
    record: Annotated[str | None, typer.Argument(metavar="[RECORD]", help="A record's digest.")] = None,
    back: Annotated[bool, typer.Option("--back", help="Take it out of all channels.")] = False,
    release: Annotated[bool, typer.Option("--release", help="Release it from the canary now.")] = False,
    why: Annotated[str, typer.Option("--why", help="The reason, for the history.")] = "by hand",
    state: StateOption = "farm.sqlite",
    json: JsonOption = False,
) -> None:
    """Show what is in the channels and who changed what; or release a record, or take it back.

    ```
    tilewright farm rollout
    tilewright farm rollout 5f2ab3 --back --why "slower in the arena"
    ```
    """
    from tilewright.farm import rollout
    from tilewright.farm.overview import channels, history

    place = _state(state)
    if record is not None:
        if back == release:
            raise typer.BadParameter("say --back or --release", param_hint="RECORD")
        digest = _one([g["record"] for g in channels(place)], record)
        who = getpass.getuser()
        if back:
            rollout.roll_back(place, digest, who, why)
        else:
            rollout.release(place, digest, who, why)
    now = {"channels": channels(place), "history": history(place)}
    if json:
        print_json(now)
        return
    rows = [
        [g["channel"], g["record"][:12], (g["about"] or g["decision"])[:ABOUT], g["setting"], _interval(g), g["state"]]
        for g in now["channels"]
    ]
    table("channels", ["channel", "record", "decision", "setting", "gain", "measured"], rows, left=4)
    lines = [
        [_when(h["time"]), h["who"], h["channel"], h["action"], h["record"][:12], h["decision"], h["why"][:80]]
        for h in now["history"]
    ]
    table("history", ["when", "who", "channel", "what", "record", "decision", "why"], lines, left=7)


def _one(digests: list[str], beginning: str) -> str:
    matches = sorted({d for d in digests if d.startswith(beginning)})
    if len(matches) != 1:
        raise Error("no such record in a channel" if not matches else "several records begin so", where=beginning)
    return matches[0]


def _when(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%m-%d %H:%M")


@farm.command("take")
def take_command(
    folders: Annotated[list[Path], typer.Argument(help="Folders that processes collected into.")],
    state: StateOption = "farm.sqlite",
    json: JsonOption = False,
) -> None:
    """Bring what processes collected into the database, which a running service does by itself.

    ```
    tilewright farm take /shared/collected
    ```
    """
    from tilewright.farm.intake import take_folder

    place = _state(state)
    rows: list[dict[str, Any]] = []
    for folder in folders:
        done, damaged = take_folder(place, folder)
        rows.append({"folder": str(folder), "workloads": done.workloads, "calls": done.calls, "damaged": damaged})
    if json:
        print_json(rows)
        return
    for row in rows:
        out.print(f"{row['folder']}: {row['workloads']} new workloads, {row['calls']} calls", markup=False)
        for text in row["damaged"]:
            out.print(f"  damaged: {text}", markup=False)


@farm.command("import")
def import_command(
    sources: Annotated[list[Path], typer.Argument(help="Archives (`tilewright db export`), folders or records.")],
    state: StateOption = "farm.sqlite",
    json: JsonOption = False,
) -> None:
    """Take in records that were measured elsewhere. Those that promise a gain are signed and enter the canary.

    ```
    tilewright farm import team.twr
    ```
    """
    from tilewright.farm.importing import import_records

    place = _state(state)
    rows = [(source, import_records(place, source)) for source in sources]
    if json:
        print_json([{"source": str(s), "new": d.new, "known": d.known, "damaged": d.damaged} for s, d in rows])
        return
    for source, done in rows:
        out.print(f"{source}: {done.new} new, {done.known} known, {done.damaged} damaged", markup=False)


@farm.command("resources")
def resources_command(
    threads: Annotated[int, typer.Option("--threads", "-t", min=1, help="Threads of the calls that are timed.")] = 1,
    units: Annotated[int, typer.Option("--units", min=1, help="Jobs at once on this node.")] = 1,
) -> None:
    """Print this machine's class as a resource of Ray, for `ray start --resources`.

    ```
    ray start --address HEAD --resources "$(tilewright farm resources)"
    ```
    """
    import json
    from dataclasses import replace

    from tilewright.farm.ray_workers import resource
    from tilewright.plans.framework.decision_key import target_class
    from tilewright.targets.target import Target

    print(json.dumps({resource(target_class(replace(Target.host(), threads=threads))): units}))


__all__ = ["farm"]
