"""`tilewright db list|show|diff|merge|export|import|verify|prune|stats`: the tuning records of this user or a team."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.common import Exit, JsonOption, bytes_text, facts, is_quiet, out, print_json, table, time_text
from tilewright.support.errors import RecordError
from tilewright.support.progress import progress

if TYPE_CHECKING:
    from tilewright.records.database import Named
    from tilewright.records.record import Record
    from tilewright.records.store import Store

db = typer.Typer(
    name="db",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

StoreOption = Annotated[
    Path | None,
    typer.Option("--store", "-s", metavar="FOLDER", help="The folder of records. [default: this user's]"),
]
ABOUT = 60
"""The most characters of a decision's text in a table."""


@db.callback()
def about() -> None:
    """Look at tuning records, share them and tidy them.

    A record holds the findings about one decision on one class of machines; `tilewright tune` makes them, and every
    compile uses those that fit. Each is a file of its own that never changes, so records are merged by copying them.

    ```
    tilewright db list
    tilewright db export team.twr && tilewright db import team.twr --store /shared/records
    TILEWRIGHT_RECORDS=/shared/records tilewright compile policy.onnx
    ```
    """


def _store(folder: Path | None) -> Store:
    from tilewright.records.places import user_store
    from tilewright.records.store import Store

    if folder is None:
        return user_store()
    if folder.exists() and not folder.is_dir():
        raise RecordError(
            "is no folder of tuning records", where=str(folder), hint="`tilewright db import` reads files"
        )
    return Store(folder)


@db.command("list")
def list_command(
    store: StoreOption = None,
    everywhere: Annotated[bool, typer.Option("--all", "-a", help="Of all places that a compile looks in.")] = False,
    kind: Annotated[str | None, typer.Option("--kind", help="Only decisions of this kind, such as plan.")] = None,
    json: JsonOption = False,
) -> None:
    """List records: what was decided, the setting that was found, how much faster it is, on which machines.

    ```
    tilewright db list
    tilewright db list --all --kind algorithm
    tilewright db list --store /shared/records --json
    ```
    """
    from tilewright.records.database import everything
    from tilewright.records.places import stores

    places = stores() if everywhere else (_store(store),)
    results = [(place, n, r) for place in places for n, r in everything(place) if kind in (None, r.kind)]
    if json:
        print_json([{"store": str(place.folder), **_fields(n, r)} for place, n, r in results])
        return
    if not results:
        out.print(f"no records in {', '.join(str(place.folder) for place in places)}")
        return
    columns = ["record", "decision", "setting", "gain", "machines", "compiler", "made"]
    table("", columns, [_row(n, r) for _, n, r in results], left=3)
    out.print(f"{len(results)} records; `tilewright db show RECORD` shows one")


def _row(digest: str, r: Record) -> list[object]:
    gain = f"{100 * (r.gain.median - 1):+.1f} %" if r.setting != r.untuned else "as estimated"
    when = datetime.datetime.fromtimestamp(r.provenance.time, datetime.UTC).strftime("%Y-%m-%d")
    text = r.about if len(r.about) <= ABOUT else f"{r.about[: ABOUT - 3]}..."
    return [digest[:12], f"{r.kind} {text}", r.setting, gain, _machines(r), _compiler(r), when]


def _machines(r: Record) -> str:
    words = r.target.split(" ")
    return f"{words[1]} x{r.threads}"


def _compiler(r: Record) -> str:
    from tilewright.identity import code_version

    return "this" if r.provenance.compiler == code_version() else "another"


def _fields(digest: str, r: Record) -> dict[str, Any]:
    from tilewright.runtime.schema import encode

    return {"record": digest, "compiler": _compiler(r), **encode(r)}


@db.command("show")
def show_command(
    name: Annotated[str, typer.Argument(metavar="RECORD", help="The beginning of its digest, or a decision's key.")],
    store: StoreOption = None,
    workload: Annotated[
        bool, typer.Option("--workload", help="Also print the program that was decided about.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show records: the verified gain with its interval, every candidate with its times, where it comes from.

    ```
    tilewright db show 5f2a
    tilewright db show "algorithm 9cedd6588141f375a62f4f91057e3ed1" --workload
    ```
    """
    result = _named(_store(store), name)
    if json:
        print_json([_fields(n, r) for n, r in result])
        return
    for digest, r in result:
        _show(digest, r, workload)


def _named(store: Store, name: str) -> list[Named]:
    """The records that `name` refers to. Raises RecordError if there are none."""
    from tilewright.records.database import find

    result = find(store, name)
    if not result:
        raise RecordError("no such record", where=name, hint="`tilewright db list` lists them")
    return result


def _show(digest: str, r: Record, workload: bool) -> None:
    g, created = r.gain, r.provenance
    when = datetime.datetime.fromtimestamp(created.time, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    gain = f"{g.median:.3f} times, {g.low:.3f} to {g.high:.3f} with {g.confidence:.0%} (over {g.rounds} rounds)"
    error = "as exact as the untuned one" if r.difference is None else f"{r.difference.setting:.2g}"
    untuned = "" if r.difference is None else f" (untuned {r.difference.untuned:.2g})"
    rows: dict[str, object] = {
        "record": digest,
        "decision": f"{r.decision}, {r.about}",
        "machines": r.target,
        "setting": r.setting if r.setting != r.untuned else f"{r.setting}, the estimate's",
    }
    if r.setting != r.untuned:
        rows |= {"untuned": r.untuned, "faster": gain}
    rows |= {
        "error": f"{error}{untuned}",
        "measured": f"{r.policy.name}, {r.policy.regime}, raced as a {r.policy.level}",
        "compiler": f"{_compiler(r)} ({created.compiler}), {created.llvm}",
        "made": f"{when} on {created.host}{f' by {created.author}' if created.author else ''}",
    }
    facts(rows)
    candidates = sorted(r.candidates, key=lambda c: (not c.turns, min(c.turns, default=0.0)))
    columns = ["setting", "outcome", "best", "median", "turns", "cycles estimated"]
    table("candidates", columns, [_candidate(c) for c in candidates], left=2)
    if workload:
        print(r.workload)


def _candidate(c: Any) -> list[object]:
    import statistics

    times = [time_text(f(c.turns)) for f in (min, statistics.median)] if c.turns else ["-", "-"]
    return [
        c.setting,
        f"{c.outcome} {c.why}".strip(),
        *times,
        len(c.turns),
        f"{c.estimate:,.0f}" if c.estimate else "-",
    ]


@db.command("diff")
def diff_command(
    left: Annotated[Path, typer.Argument(help="A folder of records.")],
    right: Annotated[Path, typer.Argument(help="Another one.")],
    json: JsonOption = False,
) -> None:
    """Compare two folders: which records only one has, and about which decisions they disagree.

    Exit code 3 if they differ.

    ```
    tilewright db diff ~/.cache/tilewright/records /shared/records
    ```
    """
    from tilewright.records.database import difference

    for folder in (left, right):
        if not folder.is_dir():
            raise RecordError("no such folder of tuning records", where=str(folder))
    d = difference(_store(left), _store(right))
    if json:
        changed = [{"decision": a.decision, "left": a.setting, "right": b.setting} for a, b in d.changed]
        print_json({"left": [n for n, _ in d.left], "right": [n for n, _ in d.right], "changed": changed})
    else:
        out.print(f"{len(d.left)} records only in {left}, {len(d.right)} only in {right}")
        if d.changed:
            rows = [[f"{a.kind} {a.about[:ABOUT]}", a.setting, b.setting] for a, b in d.changed]
            table("they disagree about", ["decision", str(left), str(right)], rows, left=3)
    if d.left or d.right:
        raise typer.Exit(Exit.MISMATCH)


@db.command("merge")
def merge_command(
    sources: Annotated[list[Path], typer.Argument(help="Folders, archives or single records.")],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Bring records of other folders and archives into this user's, or into that of --store.

    The result is the union of the records, whatever the order and the number of merges.

    ```
    tilewright db merge /mnt/node1/records /mnt/node2/records --store /shared/records
    ```
    """
    _take_in(sources, store, json)


@db.command("import")
def import_command(
    sources: Annotated[list[str], typer.Argument(help="Archives, folders, or https addresses of archives.")],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Bring the records of archives into this user's folder, or into that of --store.

    Each record is checked; damaged ones are left out and counted. To follow the records at an address, set
    TILEWRIGHT_RECORDS instead.

    ```
    tilewright db import team.twr
    tilewright db import https://example.org/records.twr
    ```
    """
    import tempfile

    from tilewright.records.remote import check, download, is_address

    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        paths = []
        for number, source in enumerate(sources):
            paths.append(Path(source))
            if is_address(source):
                check(source)
                paths[-1] = Path(folder) / f"{number}.twr"
                with open(paths[-1], "wb") as file, progress(f"fetch {source}", enabled=not is_quiet(json)):
                    try:
                        download(source, file)
                    except OSError as error:
                        raise RecordError(f"cannot be fetched: {error}", where=source) from None
        _take_in(paths, store, json)


def _take_in(sources: Iterable[Path], folder: Path | None, json: bool) -> None:
    from tilewright.records.database import merge

    store = _store(folder)
    with progress("records", enabled=not is_quiet(json)) as step:
        done = merge(sources, store, step)
    if json:
        print_json({"store": str(store.folder), "new": done.new, "known": done.known, "damaged": done.damaged})
        return
    out.print(f"{done} in {store.folder}")
    for what in done.damaged[:5]:
        out.print(f"  damaged: {what}", markup=False)


@db.command("export")
def export_command(
    output: Annotated[Path, typer.Argument(help="The archive to write, such as team.twr.")],
    store: StoreOption = None,
    machines: Annotated[
        str | None, typer.Option("--machines", metavar="TEXT", help="Only classes of machines with this in their name.")
    ] = None,
    current: Annotated[bool, typer.Option("--current", help="Only what this compiler measured.")] = False,
    json: JsonOption = False,
) -> None:
    """Write records to one file, to be sent or put on a web server. Equal records make equal files.

    ```
    tilewright db export team.twr
    tilewright db export znver4.twr --machines znver4 --current
    ```
    """
    from tilewright.records.archive import export
    from tilewright.records.database import everything

    chosen = (
        (n, r)
        for n, r in everything(_store(store))
        if (machines or "") in r.target and not (current and _compiler(r) != "this")
    )
    count = export(chosen, output)
    if json:
        print_json({"output": str(output), "records": count, "bytes": output.stat().st_size})
        return
    out.print(f"{count} records in {output} ({bytes_text(output.stat().st_size)})")


@db.command("verify")
def verify_command(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RECORD]...", help="Only these; all if none.")] = None,
    store: StoreOption = None,
    race: Annotated[
        bool, typer.Option("--race", help="Also time what is unverified, and keep what still wins.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check records against this compiler: is the workload the decision's, does the setting still exist, is its
    estimate still close to the best? Records of other classes of machines are checked as far as possible.

    With `--race` the settings of records that another compiler measured are timed against those that this one prefers,
    in separate processes: kernels alone, with results compared with the interpreter's; operators with their algorithms
    and packings as a small model. If the record's setting wins, it becomes a record of this compiler; if it loses, the
    record is removed; operators without a clear result are left to `tilewright tune MODEL --verify`. Nothing else
    should run meanwhile. Ctrl-C keeps what was decided, and the next run goes on from there.

    Exit code 3 if a record would not be used. `tilewright tune` measures settings again within the model.

    ```
    tilewright db verify
    tilewright db verify 5f2a --race --json
    ```
    """
    from tilewright.records.database import everything

    place = _store(store)
    result = [pair for name in names for pair in _named(place, name)] if names else list(everything(place))
    rows: list[dict[str, Any]] = []
    interrupted = False
    with progress("race" if race else "verify", enabled=not is_quiet(json)) as step:
        try:
            for k, (digest, record) in enumerate(result):
                step(f"{k + 1} of {len(result)} {digest[:12]}")
                rows.append({"record": digest, "decision": record.decision, **_verdict(place, digest, record, race)})
        except KeyboardInterrupt:
            interrupted = True
    if json:
        print_json(rows)
    else:
        texts = {digest: f"{r.kind} {r.about[:ABOUT]}" for digest, r in result}
        cells = [[row["record"][:12], texts[row["record"]], row["state"], row["why"]] for row in rows]
        table("", ["record", "decision", "state", ""], cells, left=4)
        counts = Counter(row["state"] for row in rows)
        out.print(", ".join(f"{count} {state}" for state, count in counts.items()) or "no records")
    if interrupted:
        raise typer.Exit(Exit.INTERRUPTED)
    if any(row["state"] == "unusable" for row in rows):
        raise typer.Exit(Exit.MISMATCH)


def _verdict(place: Store, digest: str, record: Record, race: bool) -> dict[str, Any]:
    """The check of the record `digest` in the store `place`, as JSON data; with `race` the record is also timed, and
    stored or removed by the outcome."""
    if not race:
        from tilewright.records.check import checked

        verdict = checked(record)
        return {"state": verdict.state, "why": verdict.why}
    from tilewright.tuning.rerace import apply_result, rerace

    result = rerace(record)
    apply_result(place, digest, record, result)
    gain = {} if result.gain is None else {"gain": result.gain.to_dict()}
    return {"state": result.state, "why": result.why, **gain}


@db.command("prune")
def prune_command(
    store: StoreOption = None,
    others: Annotated[
        bool, typer.Option("--other-compilers", help="Also what other compilers measured; asks before it goes.")
    ] = False,
    dry: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove records that later ones replace, damaged files, and unfinished files of writers that died.

    Records that a compile might use are only removed if an option asks for it and you confirm it.

    ```
    tilewright db prune --dry-run
    tilewright db prune --other-compilers
    ```
    """
    from tilewright.records.database import remove, superfluous

    files = superfluous(_store(store), others)
    asked = [f for f in files if f.asks]
    if asked and not dry and not yes and (json or not typer.confirm(f"remove {len(asked)} records that may be used?")):
        files = [f for f in files if not f.asks]
    count = len(files) if dry else remove(files)
    if json:
        print_json({"dry": dry, "removed": count, "files": [{"path": str(f.path), "why": f.why} for f in files]})
        return
    if not files:
        out.print("nothing to prune")
        return
    table("", ["would go" if dry else "removed", "why"], [[f.path.name, f.why] for f in files], left=2)


@db.command("stats")
def stats_command(store: StoreOption = None, json: JsonOption = False) -> None:
    """Sum up a folder: how many records, decisions and machines, and what was gained.

    ```
    tilewright db stats
    tilewright db stats --store /shared/records --json
    ```
    """
    from tilewright.records.database import statistics

    place = _store(store)
    s = statistics(place)
    if json:
        values = {f.name: getattr(s, f.name) for f in fields(s)}
        print_json({"store": str(place.folder), **values})
        return
    rows: dict[str, object] = {
        "records": f"{s.records} in {place.folder} ({bytes_text(s.bytes)})",
        "by this compiler": s.current,
        "decisions": s.decisions,
        "faster": f"{s.faster}, {s.gain:.3f} times in the geometric mean, {s.most:.3f} at most",
        "candidates": f"{s.candidates} timed, {s.failed} failed",
    }
    for name, counter in (("machines", s.classes), ("kinds", s.kinds), ("regimes", s.regimes), ("levels", s.levels)):
        rows[name] = "\n".join(f"{count} {value}" for value, count in counter.most_common()) or "-"
    facts(rows)
