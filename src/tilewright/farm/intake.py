"""Takes collected workloads into the state: every file and every request is checked, and repeated ones do not count
twice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TypeVar

from tilewright.farm.state import State
from tilewright.records.collecting import VERSION, Count, Site, Workload, workload_name
from tilewright.runtime.schema import SchemaError, decode
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error
from tilewright.support.sql import Transaction

T = TypeVar("T")
MAX_BYTES = 16 << 20
"""Files and requests longer than this many bytes are refused."""
MAX_SITES, MAX_WORKLOADS, MAX_COUNTS = 10_000, 1_000, 10_000
MAX_TEXT = 1 << 20
MAX_LABEL = 200
MAX_CALLS = 1 << 50
_DIGEST = re.compile(r"[0-9a-f]{32}")
_DECISION = re.compile(r"[a-z][a-z0-9_]{0,39} [0-9a-f]{32}")
_CLASS = re.compile(r"[A-Za-z0-9_.+=-]+(?: [A-Za-z0-9_.+=-]+){1,11} threads=[1-9]\d{0,3}")


class IntakeError(Error):
    """Raised for collected data that a collector would not write."""


@dataclass(frozen=True, slots=True)
class Intake:
    """The numbers of new workloads, compiles and calls."""

    workloads: int = 0
    compiles: int = 0
    calls: int = 0


def parse_workload(data: Any) -> Workload:
    """Parse a workload from JSON. Raises IntakeError for anything that a collector does not write."""
    workload = decoded(Workload, data, "workload")
    for wrong, where in (
        (workload.version != VERSION, "version"),
        (not _DIGEST.fullmatch(workload.structure), "structure"),
        (not _DIGEST.fullmatch(workload.compiler), "compiler"),
        (len(workload.target) > 300 or not _CLASS.fullmatch(workload.target), "target"),
        (not 0.0 <= workload.seconds < 1e6, "seconds"),
        (len(workload.sites) > MAX_SITES, "sites"),
    ):
        if wrong:
            raise IntakeError("not possible", where=f"workload: {where}")
    for site in workload.sites:
        _check_site(site)
    if len({s.decision for s in workload.sites}) != len(workload.sites):
        raise IntakeError("a decision stands twice", where="workload: sites")
    return workload


def _check_site(s: Site) -> None:
    texts = (s.about, s.setting, s.why)
    lines = s.workload.split("\n")
    for wrong, where in (
        (len(s.decision) > 80 or not _DECISION.fullmatch(s.decision), "decision"),
        (max(map(len, texts)) > MAX_TEXT or not "".join(texts).isprintable(), "about, setting or why"),
        (len(s.workload) > MAX_TEXT or not all(line.isprintable() for line in lines), "workload"),
        (not 2 <= s.space <= 1 << 20, "space"),
        (not (0.0 <= s.share <= 1.0 and 0.0 <= s.headroom <= 100.0), "share or headroom"),
    ):
        if wrong:
            raise IntakeError("not possible", where=f"workload: site: {where}")


def parse_counts(data: Any) -> tuple[str, dict[str, Count]]:
    """The counts of one process: its name, and by workload how often it was compiled and called. Raises IntakeError."""
    match data:
        case {"version": int(version), "source": str(source), "counts": dict(counts)} if version == VERSION:
            if not _DIGEST.fullmatch(source) or len(counts) > MAX_COUNTS:
                raise IntakeError("not possible", where="counts")
            return source, {_digest(name): _count(value) for name, value in counts.items()}
    raise IntakeError("no counts of a collector", where="counts")


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise IntakeError("no digest", where="counts", got=repr(text[:60]))
    return text


def _count(data: Any) -> Count:
    count = decoded(Count, data, "count")
    if not (0 <= count.compiles < MAX_CALLS and 0 <= count.calls < MAX_CALLS):
        raise IntakeError("not possible", where="count")
    if len(count.label) > MAX_LABEL or not count.label.isprintable():
        raise IntakeError("no label", where="count: label")
    return count


def decoded(kind: type[T], data: Any, what: str) -> T:
    """The JSON value `data`, which came from outside, as a dataclass of type `kind`. Raises IntakeError if it does not
    fit; `what` names it there."""
    try:
        return decode(kind, data, what)
    except SchemaError as error:
        raise IntakeError(error.what, where=error.path) from None


def parse(content: bytes | str, most: int = MAX_BYTES) -> Any:
    """The value of the JSON text `content`. Raises IntakeError for invalid JSON, and for more than `most` bytes."""
    if len(content) > most:
        raise IntakeError("too long", expected=f"at most {most} bytes", got=len(content))
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise IntakeError(f"not JSON: {str(error)[:100]}") from None


def take(state: State, workloads: list[Workload], source: str, counts: dict[str, Count]) -> Intake:
    """Store the workloads and total counts that the process `source` reported, and return how much was new: (workloads,
    compiles, calls). Of counts, only the growth since the process's last report is added."""
    new = compiles = calls = 0
    with state.database.transaction() as t:
        now = state.clock()
        for w in workloads:
            new += _take_workload(t, w, now)
        for name, count in counts.items():
            more = _take_count(t, source, name, count, now)
            compiles, calls = compiles + more[0], calls + more[1]
    return Intake(new, compiles, calls)


def _take_workload(t: Transaction, w: Workload, now: float) -> int:
    name = _name(w)
    new = t.run(
        "INSERT INTO workload VALUES (?, ?, ?, ?, '', ?, 0, 0, ?) ON CONFLICT (name) DO NOTHING",
        (name, w.structure, w.target, w.compiler, w.seconds, now),
    )
    if new:
        rows = [
            (name, s.decision, w.target, s.about, s.workload, s.setting, s.why, s.space, s.share, s.headroom)
            for s in w.sites
        ]
        t.run_all("INSERT INTO site VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", rows)
    return new


def _name(w: Workload) -> str:
    return workload_name(w.structure, w.target, w.compiler)


def _take_count(t: Transaction, source: str, name: str, count: Count, now: float) -> tuple[int, int]:
    """Add to the workload `name` what the totals `count` of the process `source` have grown by since its last report;
    `now` is the time in seconds. Returns (new compiles, new calls); (0, 0) for an unknown workload."""
    if t.row("SELECT 1 FROM workload WHERE name = ?", (name,)) is None:
        return 0, 0
    row = t.row("SELECT compiles, calls FROM counted WHERE source = ? AND workload = ?", (source, name)) or (0, 0)
    compiles, calls = max(0, count.compiles - row[0]), max(0, count.calls - row[1])
    t.run(
        "INSERT INTO counted VALUES (?, ?, ?, ?) ON CONFLICT (source, workload)"
        " DO UPDATE SET compiles = excluded.compiles, calls = excluded.calls",
        (source, name, max(count.compiles, row[0]), max(count.calls, row[1])),
    )
    t.run(
        "UPDATE workload SET compiles = compiles + ?, calls = calls + ?, seen = ?,"
        " label = CASE WHEN label = '' THEN ? ELSE label END WHERE name = ?",
        (compiles, calls, now, count.label, name),
    )
    return compiles, calls


def take_request(state: State, content: bytes) -> Intake:
    """Store what a collector's request with the body `content` reports, and return how much of it was new. Raises
    IntakeError for other content."""
    data = parse(content)
    source, counts = parse_counts(data)
    workloads = data.get("workloads", [])
    if not isinstance(workloads, list) or len(workloads) > MAX_WORKLOADS:
        raise IntakeError("not possible", where="workloads")
    return take(state, [parse_workload(w) for w in workloads], source, counts)


def take_folder(state: State, folder: Path) -> tuple[Intake, list[str]]:
    """Take what processes collected in a folder into the state. Returns the numbers, and the errors of faulty files."""
    total, damaged = Intake(), list[str]()
    for path in sorted((folder / "workloads").glob("*.json")):
        try:
            workload = parse_workload(parse(_read(path)))
            with state.database.transaction() as t:
                total = Intake(
                    total.workloads + _take_workload(t, workload, state.clock()), total.compiles, total.calls
                )
        except (IntakeError, OSError) as error:
            damaged.append(f"{path.name}: {str(error).splitlines()[0]}")
    for path in sorted((folder / "counts").glob("*.json")):
        try:
            done = take(state, [], *parse_counts(parse(_read(path))))
            total = Intake(total.workloads, total.compiles + done.compiles, total.calls + done.calls)
        except (IntakeError, OSError) as error:
            damaged.append(f"{path.name}: {str(error).splitlines()[0]}")
    return total, damaged


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(MAX_BYTES + 1)


__all__ = ["IntakeError", "Intake", "parse", "parse_counts", "parse_workload", "take", "take_folder", "take_request"]
