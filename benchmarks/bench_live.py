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


def run_publish(options: Options, say: Callable[[str], None]) -> tuple[list[Any], str]:
    rows = []
    for policy in options.of("m64", "hok1", "az6", "resnet50"):
        say(f"publish {policy}")
        rows.append(publish.measure(policy, 1.0 if options.quick else 4.0))
    return rows, publish.as_text(rows)


def run_latency(options: Options, say: Callable[[str], None]) -> tuple[list[Any], str]:
    rows = []
    fast = 100_000 if options.quick else 1_000_000
    for policy in options.of("m64", "az6"):
        rate = 20.0 if policy in ("az6", "az20", "resnet50") else 1000.0
        for pause in (0.0, 0.002 if rate > 100 else 0.1):
            calls = fast if rate > 100 else 1_000
            if pause:
                calls = min(calls, 10_000 if rate > 100 else 500)
            say(f"latency {policy}, pause {pause * 1e3:g} ms")
            rows.append(latency.measure(policy, rate, calls=calls, spells=2 if options.quick else 5, pause=pause))
    return rows, latency.as_text(rows)


def run_shared(options: Options, say: Callable[[str], None]) -> tuple[list[Any], str]:
    rows = []
    for policy in options.of("hok1", "nat", "w16"):
        for agents in (16, 32):
            say(f"shared {policy}, {agents} agents")
            rows.append(shared.measure(policy, agents, 5 if options.quick else 15, 0.15))
    return rows, shared.as_text(rows)


def run_memory(options: Options, say: Callable[[str], None]) -> tuple[list[Any], str]:
    rows = []
    for policy in options.of("m64", "hok1", "nat", "az6", "w16"):
        say(f"memory {policy}")
        rows.append(shared.memory(policy, 4 if options.quick else 8))
    return rows, shared.memory_text(rows)


def run_churn(options: Options, say: Callable[[str], None]) -> tuple[list[Any], str]:
    rows: list[Any] = []
    for policy in options.of("m64"):
        say(f"churn {policy}")
        rows += churn.measure(policy, 10_000 if options.quick else 100_000)
    verdict = "flat" if churn.is_flat(rows) else "it grows"
    return rows, churn.as_text(rows) + f"\nPublisher and actor in one process; judged: {verdict}.\n"


def run_attach(options: Options, say: Callable[[str], None]) -> tuple[list[Any], str]:
    rows = []
    for policy in options.of("m64", "az6"):
        for cold in (False, True):
            say(f"attach {policy}{', no object cache' if cold else ''}")
            rows.append(attach.measure(policy, 4 if options.quick else 15, cold_cache=cold))
    return rows, attach.as_text(rows)


def run_across(options: Options, say: Callable[[str], None]) -> tuple[list[Any], str]:
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


GROUPS: dict[str, tuple[str, Callable[[Options, Callable[[str], None]], tuple[list[Any], str]]]] = {
    "publish": ("Publishing", run_publish),
    "latency": ("Calls while versions change", run_latency),
    "shared": ("Agents in turns: one copy against one each", run_shared),
    "memory": ("Memory of attached processes", run_memory),
    "churn": ("Many publishes", run_churn),
    "attach": ("A fresh process", run_attach),
    "across": ("Across nodes", run_across),
}


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
    sections = {}
    for name in options.groups or GROUPS:
        title, run = GROUPS[name]
        with console.status(title) as status:
            rows, text = run(chosen, status.update)
        command = " ".join(["python -m benchmarks.bench_live", name, *(["--quick"] if options.quick else [])])
        sections[name] = {
            "title": title,
            "command": command + (f" --policies {options.policies}" if options.policies else ""),
            "commit": harness.commit(),
            "date": harness.now(),
            "text": text,
            "rows": [dataclasses.asdict(row) for row in rows],
        }
        console.print(f"{title}\n\n{text}", markup=False, highlight=False)
    if not options.no_report:
        console.print(f"wrote {write(sections)}")
    return 0


def write(sections: dict[str, Any]) -> str:
    """Merge into the report's JSON and write the Markdown of all of it."""
    path = harness.RESULTS / f"{REPORT}.json"
    kept = json.loads(path.read_text())["groups"] if path.exists() else {}
    merged = {name: sections.get(name) or kept[name] for name in GROUPS if name in sections or name in kept}
    harness.RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps({"environment": harness.environment(), "groups": merged}, indent=1) + "\n")
    markdown = ""
    for found in merged.values():
        markdown += f"## {found['title']}\n\n`{found['command']}` (commit {found['commit']}, {found['date']})\n\n"
        markdown += found["text"] + "\n"
    return str(harness.write_markdown(REPORT, "Live weights", markdown))


if __name__ == "__main__":
    raise SystemExit(main())
