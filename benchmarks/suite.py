"""Runs a suite: cases one after another, each a race of peers; rows are kept as they come, reports follow.

Rows live in `results/NAME.json` and are replaced one by one, so that a run of a few cases brings these up to date and
an interrupted run loses nothing; every row says of which commit it is, and reports mark those that are not of the
newest (`stale.py`). `--resume` leaves out the cases whose row is of
this commit and has all its peers.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness, plots, tables
from benchmarks.harness import Comparison
from benchmarks.peers import OWN, PEERS
from benchmarks.work import Work
from tilewright.measure import paired


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to compare: what `models.load` calls it, how it is labelled, and with whom."""

    model: str
    label: str
    group: str
    peers: tuple[str, ...]
    batch: int = 1
    repeat: int = 1
    work: Callable[[], Work] | None = None


def add_options(parser: argparse.ArgumentParser, rounds: int, turn: float, own: str) -> None:
    parser.add_argument("--only", default="*", help="names, comma-separated, * and ? allowed")
    parser.add_argument("--groups", default="*", help="groups, comma-separated, * and ? allowed")
    parser.add_argument("--peers", help=f"instead of each group's own; of {', '.join(PEERS)}")
    parser.add_argument("--add", help="peers beside each group's own")
    parser.add_argument("--own", default=own, help=f"what is judged (default {own}); of {', '.join(OWN)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each peer (default {rounds})")
    parser.add_argument(
        "--turn", type=float, default=turn, help=f"seconds of a turn, at least one call (default {turn:g})"
    )
    parser.add_argument("--enough", type=float, default=5.0, help="seconds after which a case ends (default 5)")
    parser.add_argument("--budget", type=float, help="minutes after which no further case begins")
    parser.add_argument("--resume", action="store_true", help="leave out what this commit has measured")
    parser.add_argument("--prepare", action="store_true", help="only convert and compile for all peers, time nothing")
    parser.add_argument("--report", action="store_true", help="only write the reports of the rows there are")
    parser.add_argument("--name", help="name of the report")
    parser.add_argument("--no-report", action="store_true", help="print only")


def chosen(cases: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    """The cases that the options name, with the peers that they name."""

    def matches(text: str, patterns: str) -> bool:
        return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns.split(","))

    results = [c for c in cases if matches(c.label, options.only) and matches(c.group, options.groups)]
    if not results:
        raise SystemExit("no case has such a name and group")
    peers = options.peers.split(",") if options.peers else None
    more = options.add.split(",") if options.add else []
    unknown = {*(peers or []), *more} - set(PEERS)
    if unknown:
        raise SystemExit(f"unknown peers {', '.join(sorted(unknown))}; known: {', '.join(PEERS)}")

    def racing(case: Case) -> tuple[str, ...]:
        return tuple(dict.fromkeys((options.own, *(peers or case.peers), *more)))

    return [dataclasses.replace(c, peers=racing(c)) for c in results]


def run(cases: Sequence[Case], options: argparse.Namespace, name: str, title: str) -> int:
    """Runs the cases that `options` chooses; 1 if ours failed on one of them."""
    console = harness.console()
    name = options.name or f"{name}-{options.threads}t"
    store = Store(name, title, [case.label for case in cases])
    if options.report:
        store.write_reports()
        return 0
    if not options.no_report and not options.prepare:
        store.check_machine()
    todo = chosen(cases, options)
    done: list[Comparison] = []
    failed, start = 0, time.monotonic()
    with paired.Team() as team, console.status(name) as status:
        for number, case in enumerate(todo, 1):
            if options.budget and time.monotonic() - start > 60 * options.budget:
                console.print(f"out of time: {len(todo) - number + 1} cases left; go on with --resume")
                break
            if options.resume and store.has(case):
                continue
            head = f"{number}/{len(todo)} {case.label}"
            announce = lambda text, head=head: status.update(f"{head}: {text}")  # noqa: E731
            comparison = _race(case, options, team, announce)
            failed += options.own in comparison.failures
            seconds = time.monotonic() - start
            text = f"{case.label}: prepared" if options.prepare else tables.line(comparison)
            console.print(f"{seconds:4.0f} s {number}/{len(todo)} {text}", highlight=False)
            for peer, failure in comparison.failures.items():
                console.print(f"  {peer}: {tables.reason(failure)}", highlight=False, markup=False, style="red")
            done.append(comparison)
            if not options.no_report and not options.prepare:
                store.put(comparison)
    if options.prepare:
        return 1 if failed else 0
    if options.no_report:
        console.print(tables.summary(done), markup=False)
    else:
        for path in store.write_reports():
            console.print(f"wrote {path}", highlight=False)
    return 1 if failed else 0


def _race(
    case: Case,
    options: argparse.Namespace,
    team: paired.Team,
    announce: Callable[[str], None],
) -> Comparison:
    timing = harness.Timing(options.rounds, options.turn, min(0.05, 2 * options.turn), options.enough)
    if options.prepare:
        timing = harness.Timing(0, 0.001, 0.0)
    result = harness.compare(
        case.model,
        case.peers,
        threads=options.threads,
        batch=case.batch,
        timing=timing,
        repeat=case.repeat,
        group=case.group,
        work=case.work() if case.work else None,
        team=team,
        announce=announce,
    )
    return dataclasses.replace(result, model=case.label.partition("@")[0])


class Store:
    """The rows of one report on disk, by label; `order` is theirs in the report."""

    def __init__(self, name: str, title: str, order: Sequence[str] = ()) -> None:
        self.name, self.title, self.order = name, title, list(order)
        self.rows: dict[str, Comparison] = {}
        self.environment: dict[str, Any] | None = None
        if self.path.exists():
            stored = json.loads(self.path.read_text())
            self.environment = stored["environment"]
            self.rows = {c.label: c for c in map(Comparison.from_json, stored["rows"])}

    @property
    def path(self) -> Path:
        return harness.RESULTS / f"{self.name}.json"

    def has(self, case: Case) -> bool:
        """Whether the row of a case is of this commit and knows of each of its peers."""
        row = self.rows.get(case.label)
        return row is not None and row.commit == harness.commit() and {*case.peers} <= {*row.seconds, *row.failures}

    def check_machine(self) -> None:
        """Raises SystemExit if the rows that there are were measured on another machine: a table is of one."""
        here, there = harness.environment()["cpu"], (self.environment or {}).get("cpu")
        if self.rows and there != here:
            raise SystemExit(f"the rows of {self.path.name} are of {there}, this is {here}: give a --name of its own")

    def put(self, comparison: Comparison) -> None:
        self.rows[comparison.label] = comparison
        places = {label: place for place, label in enumerate(self.order)}
        self.rows = dict(sorted(self.rows.items(), key=lambda item: places.get(item[0], len(places))))
        self._save()

    def _save(self) -> None:
        harness.RESULTS.mkdir(exist_ok=True)
        rows = [dataclasses.asdict(c) for c in self.rows.values()]
        self.environment = harness.environment()
        content = {"environment": self.environment, "rows": rows}
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(self.path)

    def write_reports(self) -> list[Path]:
        """Markdown and plots from the rows; the raw figures are already there."""
        rows = list(self.rows.values())
        pictures = plots.write(self.name, self.title, rows)
        links = "".join(f"![times faster than the peers]({path.name})\n\n" for path in pictures)
        text = tables.report(rows) + (f"\n## Plots\n\n{links}" if links else "")
        return [harness.write_markdown(self.name, self.title, text, self.environment), *pictures]
