"""Rows of a suite as text: a line for the terminal, a summary, and the whole report in Markdown."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from benchmarks import bars, stale
from benchmarks.harness import Comparison, markdown_table
from benchmarks.peers import EXACT, EXCLUDED, PEERS, describe

SLOW = 0.9
"""A case below this speed against the best peer is counted."""


COARSE = 5e-5
"""Errors above it are listed."""


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else float("nan")


def vs_best(c: Comparison) -> float | None:
    return c.speedups[c.best].median if c.best else None


def exact_vs_best(c: Comparison) -> float | None:
    """The best peer's time over that of Tilewright without the algorithms that lose digits; None if it was not
    measured."""
    return bars.value(c, "best", exact=True) if c.best and EXACT in c.speedups else None


def line(c: Comparison) -> str:
    """One case for the terminal."""
    if c.own_seconds is None:
        return f"{c.label}: [red]{c.own} failed[/red]"
    text = f"{c.label}: {_time(c.own_seconds)}"
    if c.of_limit is not None:
        text += f", {c.of_limit:.0%} of {c.bound}"
    others = sorted(c.speedups.items(), key=lambda item: item[1].median)
    return text + "".join(f"; {name} {s.median:.2f}x" for name, s in others)


def summary(rows: Sequence[Comparison]) -> str:
    """A line for each group: geometric means against each peer and against the best, also of the exact variant of
    ours, and how many cases are slow."""
    peers = _peers(rows)
    header = ["group", "cases", "against the best", "exact", "least", f"below {SLOW}x", *peers]
    cells = []
    groups = _groups(rows)
    for name, group in [*groups.items(), *([("all", list(rows))] if len(groups) > 1 else [])]:
        best = [v for v in map(vs_best, group) if v is not None]
        if not best:
            continue
        each = [[c.speedups[p].median for c in group if p in c.speedups] for p in peers]
        cells.append(
            [
                name,
                len(group),
                f"**{geometric_mean(best):.2f}**",
                _mean([v for v in map(exact_vs_best, group) if v is not None], len(group)),
                f"{min(best):.2f}",
                sum(v < SLOW for v in best),
                *[_mean(v, len(group)) for v in each],
            ]
        )
    return markdown_table(header, cells)


def _mean(values: Sequence[float], cases: int) -> str:
    """A geometric mean, and of how many cases it is if not of all."""
    return f"{geometric_mean(values):.2f}" + (f" ({len(values)})" if len(values) < cases else "") if values else ""


def report(rows: Sequence[Comparison]) -> str:
    """The Markdown below the head of a report."""
    parts = [
        "## Bars\n\n" + bars.markdown(rows),
        "## Geometric means\n\nTimes faster than each peer; in parentheses the cases that it ran, if not all.\n\n"
        + summary(rows),
    ]
    newest = stale.newest(rows)
    parts += [f"## {name}\n\n{_table(group, newest)}" for name, group in _groups(rows).items()]
    parts.append(_notes(rows))
    return "\n".join(parts)


def _table(rows: Sequence[Comparison], newest: str) -> str:
    peers = [peer for peer in _peers(rows) if peer != EXACT]
    header = ["case", "time", "exact", "of the limit", "best peer", "times faster than it [95 %]", *peers]
    return markdown_table([*header, "error", "exact's error"], [_cells(c, peers, newest) for c in rows])


def _cells(c: Comparison, peers: Sequence[str], newest: str) -> list[str]:
    name = c.label + (f" (chain of {c.repeat})" if c.repeat > 1 else "") + stale.mark(c, newest)
    if c.own_seconds is None:
        return [name, "failed", *[""] * (len(peers) + 6)]
    spread = f" ±{c.spread[c.own]:.0%}"
    limit = f"{c.of_limit:.2f} {c.bound}" if c.of_limit is not None else ""
    best = [c.best, str(c.speedups[c.best])] if c.best else ["-", "-"]
    cells = [name, _time(c.own_seconds) + spread, _versus(c, EXACT), limit, *best]
    cells += [_versus(c, peer) for peer in peers]
    errors = (c.error, c.errors.get(EXACT))
    return [*cells, *["-" if error is None else f"{error:.0e}" for error in errors]]


def _versus(c: Comparison, peer: str) -> str:
    """How many times as long as ours another takes, and how long."""
    if peer in c.speedups:
        return f"{c.speedups[peer].median:.2f} ({_time(c.seconds[peer])})"
    return "failed" if peer in c.failures else ""


def _time(seconds: float) -> str:
    microseconds = seconds * 1e6
    if microseconds >= 1e5:
        return f"{microseconds / 1e3:.0f} ms"
    return f"{microseconds:.0f} µs" if microseconds >= 100 else f"{microseconds:.3g} µs"


def _groups(rows: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    groups: dict[str, list[Comparison]] = defaultdict(list)
    for c in rows:
        groups[c.group].append(c)
    return dict(groups)


def _peers(rows: Sequence[Comparison]) -> list[str]:
    """The peers of all rows, in the order of the table of peers; ours last."""
    met = {name for c in rows for name in (*c.speedups, *c.failures)} - {c.own for c in rows}
    return sorted(met, key=lambda name: (name in EXCLUDED, list(PEERS).index(name)))


def _notes(rows: Sequence[Comparison]) -> str:
    text = """## How to read this

Medians over rounds in which the frameworks take turns, each in its own process; ± is half the distance between the
quartiles. Times faster: the median of the paired ratios peer / ours, with its bootstrap interval; the best peer is the
one with the least. A chain of equal layers counts by the layer, for everybody. "Of the limit": two more processes
take turns beside ours, one does as many multiply-adds as direct algorithms need and nothing else, the other moves as
many bytes as all weights, inputs and outputs have, read and written in their proportions, the fastest way of several;
the slower of the two is the limit, and the figure the median of the paired ratios limit / ours. Above 1 an algorithm
saves work. Functions (exp, erf) count no operations. Error: the largest difference from ONNX Runtime's outputs,
relative to their scale. Exact: ours without the algorithms that save multiplications and lose digits, which the time
beside it may owe its speed to: times as long, and how long. No figure: it was not measured.

"""
    peers = [*dict.fromkeys(c.own for c in rows), *_peers(rows)]
    text += describe(peers)
    versions = {f"{p} {v}" for c in rows for p, v in c.versions.items() if v}
    text += f"\nVersions met: {', '.join(sorted(versions))}.\n"
    by_commit = {commit: sum(c.commit == commit for c in rows) for commit in dict.fromkeys(c.commit for c in rows)}
    text += "Cases by commit: " + ", ".join(f"{commit} {count}" for commit, count in by_commit.items()) + ".\n"
    text += stale.footnote(rows)
    inexact = [f"{p} on {c.label} {e:.0e}" for c in rows for p, e in c.errors.items() if e > COARSE and p in c.seconds]
    if inexact:
        text += f"\nOff by more than {COARSE:.0e} of the scale, yet counted: {', '.join(inexact)}.\n"
    failures = [(c.label, peer, why) for c in rows for peer, why in c.failures.items()]
    if failures:
        text += "\n### Who could not\n\n"
        text += "".join(f"- {label}, {peer}: `{reason(why)}`\n" for label, peer, why in failures)
    return text


def reason(failure: str) -> str:
    """The line of a failure that says what it was."""
    lines = [part.strip() for part in failure.splitlines() if part.strip()]
    return (lines[0] if lines else "")[:200].replace("`", "'")
