"""`Coverage`: how much of a model is compiled, in which parts the rest runs, and why.

All frontends use this report, each with its own names of operators and nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Uncompiled:
    """A node that is not compiled: its name and operator, the reason, the host that runs it instead, and a hint.

    `where` is the line of the user's source, where that is known.
    """

    node: str
    operator: str
    reason: str
    runs_by: str
    help: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class PartCoverage:
    """A part of a model: the host that runs it, and its operators with their numbers. Parts are listed in the order in
    which they run.

    `state`: "compiled", or why it is not compiled yet ("at the first call, when types are known").
    """

    name: str
    runs_by: str
    operators: tuple[tuple[str, int], ...]
    state: str = ""

    @property
    def nodes(self) -> int:
        return sum(count for _, count in self.operators)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of a whole model. `operators`: name, how many there are, how many of them are compiled."""

    name: str
    operators: tuple[tuple[str, int, int], ...]
    parts: tuple[PartCoverage, ...]
    uncompiled: tuple[Uncompiled, ...]

    @property
    def nodes(self) -> int:
        return sum(total for _, total, _ in self.operators)

    @property
    def compiled(self) -> int:
        return sum(selected for _, _, selected in self.operators)

    @property
    def share(self) -> float:
        """The share of nodes that are compiled; 1 for a model without nodes."""
        return self.compiled / self.nodes if self.nodes else 1.0

    @property
    def compiled_parts(self) -> int:
        return sum(p.runs_by == NATIVE for p in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """The report as data for JSON."""
        totals = {"nodes": self.nodes, "compiled": self.compiled, "share": self.share}
        return {"name": self.name, **totals, **{k: v for k, v in asdict(self).items() if k != "name"}}

    def __str__(self) -> str:
        head = f"{self.name}: {self.compiled} of {self.nodes} operators are compiled ({self.share:.1%})"
        lines = [f"{head}, in {_count(self.compiled_parts, 'part')} of {len(self.parts)}"]
        for k, part in enumerate(self.parts, 1):
            what = ", ".join(f"{name} x {n}" if n > 1 else name for name, n in _shortened(part.operators))
            state = f", {part.state}" if part.state else ""
            lines.append(f"  {k}. {part.name}: {_count(part.nodes, 'operator')} by {part.runs_by}{state}: {what}")
        if self.uncompiled:
            lines.append("not compiled:")
        for item in self.uncompiled:
            where = f" at {item.where}" if item.where else ""
            lines.append(f"  {item.node}{where}: {item.reason}; runs by {item.runs_by}")
            if item.help:
                lines.append(f"    {item.help}")
        return "\n".join(lines)


NATIVE = "Tilewright"
"""The host of a part that is compiled."""


def counted(operators: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Each operator with the number of its nodes, the most frequent first."""
    return tuple(sorted(Counter(operators).items(), key=lambda item: (-item[1], item[0])))


def totals(operators: Iterable[tuple[str, bool]]) -> tuple[tuple[str, int, int], ...]:
    """For each operator its name, how many nodes it has, and how many of these are compiled, as `Coverage.operators`
    lists them. `operators` has a pair for each node: its operator and whether it is compiled."""
    pairs = list(operators)
    counts = Counter(name for name, compiled in pairs if compiled)
    return tuple((name, count, counts[name]) for name, count in counted(name for name, _ in pairs))


def _shortened(operators: tuple[tuple[str, int], ...], most: int = 8) -> list[tuple[str, int]]:
    rest = [("other", sum(n for _, n in operators[most:]))] if len(operators) > most else []
    return [*operators[:most], *rest]


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


__all__ = ["NATIVE", "Coverage", "PartCoverage", "Uncompiled", "counted", "totals"]
