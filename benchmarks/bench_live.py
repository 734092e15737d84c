"""Live weights: `python -m benchmarks.bench_live [GROUP ...]` (or `make bench-live`).

Groups: publish (time of a publish), latency (calls while versions change), shared (one copy for all agents against one
each), memory (what a further process costs), churn (10^5 publishes), attach (a fresh process), across (from a learner
to a node over TCP). Rows are kept in results/live.json by group, so a run of some groups replaces these and leaves the
others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from benchmarks import harness
from benchmarks.live import across, attach, churn, latency, publish, shared

REPORT = "live"


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How much is measured."""

    quick: bool
    policies: tuple[str, ...]

    def of(self, *default: str) -> tuple[str, ...]:
        """The policies that were asked for, or the group's own."""
        return self.policies or default


def run_publish(options: Options, say: Callable[[str], None]) -> list[Any]:
    rows = []
    for policy in options.of("m64", "hok1", "az6", "resnet50"):
        say(f"publish {policy}")
        rows.append(publish.measure(policy, 1.0 if options.quick else 4.0))
    return rows


def run_latency(options: Options, say: Callable[[str], None]) -> list[Any]:
    rows = []
    fast = 100_000 if options.quick else 1_000_000
    for policy in options.of("m64", "az6"):
        rate = 20.0 if policy in ("az6", "az20", "resnet50") else 1000.0
        for pause in (0.0, 0.002 if rate > 100 else 0.1):
            calls = fast if rate > 100 else 3_000
            if pause:
                calls = min(calls, 60_000 if rate > 100 else 1_500)
            say(f"latency {policy}, pause {pause * 1e3:g} ms")
            rows.append(latency.measure(policy, rate, calls=calls, spells=2 if options.quick else 5, pause=pause))
    return rows


def run_shared(options: Options, say: Callable[[str], None]) -> list[Any]:
    rows = []
    for policy in options.of("hok1", "nat", "w16"):
        for agents in (16, 32):
            say(f"shared {policy}, {agents} agents")
            rows.append(shared.measure(policy, agents, 5 if options.quick else 15, 0.15))
    return rows


def run_memory(options: Options, say: Callable[[str], None]) -> list[Any]:
    rows = []
    for policy in options.of("m64", "hok1", "nat", "az6", "w16"):
        say(f"memory {policy}")
        rows.append(shared.memory(policy, 4 if options.quick else 8))
    return rows


def run_churn(options: Options, say: Callable[[str], None]) -> list[Any]:
    rows: list[Any] = []
    for policy in options.of("m64"):
        say(f"churn {policy}")
        rows += churn.measure(policy, 10_000 if options.quick else 100_000)
    return rows


def run_attach(options: Options, say: Callable[[str], None]) -> list[Any]:
    rows = []
    for policy in options.of("m64", "az6"):
        for uncached in (False, True):
            say(f"attach {policy}{', no object cache' if uncached else ''}")
            rows.append(attach.measure(policy, 4 if options.quick else 15, uncached_cache=uncached))
    return rows


def run_across(options: Options, say: Callable[[str], None]) -> list[Any]:
    rows: list[Any] = []
    for policy in options.of("m64", "az6", "resnet50"):
        say(f"fetch {policy}")
        rows.append(across.fetching(policy, 5 if options.quick else 30))
    text = across.fetch_text(rows)
    arrivals = []
    for policy in options.of("m64", "az6", "resnet50"):
        say(f"publish to node {policy}")
        arrivals.append(across.arriving(policy, 10 if options.quick else 50))
    return rows + arrivals, text + "\n" + across.arrival_text(arrivals)


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A question: how its rows are made, what they are, and how they are shown."""

    title: str
    run: Callable[[Options, Callable[[str], None]], list[Any]]
    row: Callable[..., Any]
    text: Callable[[list[Any]], str]


GROUPS = {
    "publish": Group("Publishing", run_publish, publish.PublishRow, publish.as_text),
    "latency": Group("Calls while versions change", run_latency, latency.LatencyRow, latency.as_text),
    "shared": Group("Agents in turns: one copy against one each", run_shared, shared.SharedRow, shared.as_text),
    "memory": Group("Memory of attached processes", run_memory, shared.MemoryRow, shared.memory_text),
    "churn": Group("Many publishes", run_churn, churn.ChurnRow, churn.as_text),
    "attach": Group("A fresh process", run_attach, attach.AttachRow, attach.as_text),
}
_KEYS = ("policy", "agents", "pause", "cache", "publishes")
"""The fields by which rows of a group differ."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--policies", default="", help="names of benchmarks.models, or w16; default: each group's own")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a look")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.groups if name not in GROUPS]
    if unknown:
        parser.error(f"unknown group {unknown[0]!r}: one of {', '.join(GROUPS)}")
    console = harness.console()
    chosen = Options(options.quick, tuple(name for name in options.policies.split(",") if name))
    result: dict[str, list[dict[str, Any]]] = {}
    for name in options.groups or GROUPS:
        group = GROUPS[name]
        with console.status(group.title) as status:
            rows = group.run(chosen, status.update)
        known = {"commit": harness.commit(), "date": harness.now()}
        result[name] = [{**dataclasses.asdict(row), "measured": known} for row in rows]
        console.print(f"{group.title}\n\n{group.text(rows)}", markup=False, highlight=False)
    if not options.no_report:
        console.print(f"wrote {write(result)}")
    return 0


def write(result: dict[str, list[dict[str, Any]]]) -> str:
    """Merge rows into the report's JSON and write the Markdown of all of it."""
    path = harness.RESULTS / f"{REPORT}.json"
    stored = json.loads(path.read_text())["groups"] if path.exists() else {}
    markdown, merged = "", {}
    for name, group in GROUPS.items():
        new = result.get(name, [])
        keys = [_key(row) for row in new]
        rows = [row for row in stored.get(name, []) if _key(row) not in keys and _is_whole(group, row)] + new
        if rows:
            merged[name] = rows
            commits = ", ".join(sorted({row["measured"]["commit"] for row in rows}))
            markdown += f"## {group.title}\n\n`python -m benchmarks.bench_live {name}` (commits {commits})\n\n"
            markdown += group.text([_row(group, row) for row in rows]) + "\n"
    harness.RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps({"environment": harness.environment(), "groups": merged}, indent=1) + "\n")
    return str(harness.write_markdown(REPORT, "Live weights", markdown))


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in _KEYS)


def _is_whole(group: Group, row: dict[str, Any]) -> bool:
    """Whether a row has all that the table shows now; one of an earlier version of the benchmark may not."""
    return {f.name for f in dataclasses.fields(group.row)} <= row.keys()


def _row(group: Group, row: dict[str, Any]) -> Any:
    values = {name: value for name, value in row.items() if name != "measured"}
    intervals = {k: harness.Interval(**v) for k, v in values.items() if isinstance(v, dict) and "median" in v}
    return group.row(**{**values, **intervals})


if __name__ == "__main__":
    raise SystemExit(main())
