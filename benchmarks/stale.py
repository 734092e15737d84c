"""Rows of another commit: which rows of a table were not measured with the newest one's code, and how tables say so."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import Comparison

MARK = "†"


def newest(rows: Sequence[Comparison]) -> str:
    """The commit of the row that was measured last; empty if there are none."""
    return max(rows, key=lambda c: c.date).commit if rows else ""


def is_stale(row: Comparison, commit: str) -> bool:
    """Whether a row is not of `commit`. One that was measured with changed sources ("+") is of no commit."""
    return row.commit != commit or row.commit.endswith("+")


def mark(row: Comparison, commit: str) -> str:
    """The mark after the name of a row, and after a verdict that rests on it."""
    return f" {MARK}" if is_stale(row, commit) else ""


def footnote(rows: Sequence[Comparison]) -> str:
    """The rows that are marked and the commit of each; empty if all are of one."""
    commit = newest(rows)
    others: dict[str, list[str]] = {}
    for row in rows:
        if is_stale(row, commit):
            others.setdefault(row.commit or "unknown", []).append(row.label)
    if not others:
        return ""
    named = "; ".join(f"{of}: {', '.join(labels)}" for of, labels in others.items())
    return f"{MARK} not measured at {commit.removesuffix('+')} like the others, but at {named}.\n"
