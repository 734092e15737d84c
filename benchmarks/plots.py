"""Plots of a suite's rows: how many times faster than each peer, one picture a group of groups. Needs matplotlib."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import RESULTS, Comparison
from benchmarks.peers import EXCLUDED, PEERS

_PALETTE = "#1f77b4 #aec7e8 #2ca02c #ff7f0e #d62728 #9467bd #8c564b #e377c2 #7f7f7f".split()
_COLOURS = dict(zip((name for name in PEERS if name not in EXCLUDED), _PALETTE, strict=False))
_TICKS = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
_ROWS = 40
"""Cases in one picture at most."""


def write(name: str, title: str, rows: Sequence[Comparison]) -> list[Path]:
    """results/NAME-N.png with bars and intervals; nothing where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    for old in RESULTS.glob(f"{name}-[0-9]*.png"):
        old.unlink()
    rows = [c for c in rows if c.best is not None]
    pages = _pages(rows)
    return [
        _draw(RESULTS / f"{name}-{number}.png", f"{title} ({number} of {len(pages)})", page)
        for number, page in enumerate(pages, 1)
    ]


def _pages(rows: Sequence[Comparison]) -> list[list[Comparison]]:
    """Whole groups, as many as fit."""
    groups: dict[str, list[Comparison]] = defaultdict(list)
    for c in rows:
        groups[c.group].append(c)
    pages: list[list[Comparison]] = []
    for group in groups.values():
        if pages and len(pages[-1]) + len(group) <= _ROWS:
            pages[-1] += group
        else:
            pages.append(list(group))
    return pages


def _draw(path: Path, title: str, rows: Sequence[Comparison]) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 1.6 + 0.27 * len(rows)))
    shown: set[str] = set()
    for position, c in enumerate(rows):
        peers = {name: s for name, s in c.speedups.items() if name not in EXCLUDED}
        values = [s.median for s in peers.values()]
        axes.plot([min(values), max(values)], [position] * 2, color="#dddddd", zorder=1)
        for name, s in peers.items():
            error = [[max(s.median - s.low, 0.0)], [max(s.high - s.median, 0.0)]]
            label = name if name not in shown else None
            shown.add(name)
            colour = _COLOURS.get(name, "black")
            axes.errorbar(s.median, position, xerr=error, fmt="o", ms=5, lw=1, color=colour, label=label, zorder=2)
    axes.axvline(1.0, color="black", lw=1)
    axes.set_xscale("log", base=2)
    axes.set_yticks(range(len(rows)), [f"{c.label}  [{c.group}]" for c in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    peers = [s for c in rows for name, s in c.speedups.items() if name not in EXCLUDED]
    left, right = 0.95 * min([0.8, *(s.low for s in peers)]), 1.05 * max([2.0, *(s.high for s in peers)])
    axes.set_xlim(left, right)
    ticks = [t for t in _TICKS if left <= t <= right]
    axes.set_xticks(ticks, [f"{t:g}x" for t in ticks], fontsize=7)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("times faster than the peer (right of 1: Tilewright is faster), 95 % intervals")
    axes.set_title(title, fontsize=10)
    axes.grid(axis="x", color="#eeeeee")
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return path
