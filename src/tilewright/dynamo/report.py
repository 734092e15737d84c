"""The coverage of a graph: operators that are compiled, parts, and why the rest runs in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import GraphModule, Node

from tilewright.dynamo.partition import Cut, Schedule, is_operator
from tilewright.frontend.torch.walk import operator_name, source_line
from tilewright.support.classes import dataclass
from tilewright.support.coverage import NATIVE, Coverage, PartCoverage, Uncompiled, counted, totals
from tilewright.support.errors import Error

PYTORCH = "PyTorch"
CHEAP = "a part of its own would cost more than it saves"


@dataclass(frozen=True, slots=True)
class GraphReport:
    """A graph of AOTAutograd: its name, its operators each with whether it is compiled, its parts, and what is not
    compiled."""

    name: str
    operators: tuple[tuple[str, bool], ...]
    parts: tuple[PartCoverage, ...]
    uncompiled: tuple[Uncompiled, ...]

    def coverage(self) -> Coverage:
        return Coverage(self.name, totals(self.operators), self.parts, self.uncompiled)

    @property
    def refused(self) -> bool:
        """Whether an operator is left out for another reason than its cost."""
        return any(item.reason != CHEAP for item in self.uncompiled)

    def left(self) -> str:
        """Operators that PyTorch runs, how many of each, and why; empty where there are none."""
        reasons: dict[str, list[str]] = {}
        for item in self.uncompiled:
            reasons.setdefault(item.reason, []).append(item.operator)
        return "; ".join(
            ", ".join(f"{count} {name}" for name, count in counted(names)) + f" ({reason})"
            for reason, names in reasons.items()
        )


def reported(label: str, gm: GraphModule, schedule: Schedule, refused: Mapping[Node, Error]) -> GraphReport:
    """The report, with the name `label`, on the graph `gm`: which operators `schedule` compiles, and why others, among
    them the ones in `refused`, stay in PyTorch."""
    compiled = {n for part in schedule.parts for n in part.nodes}
    counts = [n for n in gm.graph.nodes if is_operator(n)]
    operators = tuple((operator_name(n.target), n in compiled) for n in counts)
    lacking = tuple(_uncompiled(n, refused[n]) for n in counts if n in refused)
    small = tuple(_left(n, CHEAP) for n in schedule.small)
    borders = tuple(_left(n, "complex tensors neither enter nor leave a part") for n in schedule.borders)
    return GraphReport(label, operators, tuple(_parts(label, schedule)), (*lacking, *small, *borders))


def _parts(label: str, schedule: Schedule) -> list[PartCoverage]:
    results: list[PartCoverage] = []
    waiting: list[str] = []

    def close() -> None:
        if waiting:
            results.append(PartCoverage(f"{label}_torch{len(results)}", PYTORCH, counted(waiting)))
            waiting.clear()

    for step in schedule.steps:
        if isinstance(step, Cut):
            close()
            names = counted(operator_name(n.target) for n in step.nodes if is_operator(n))
            results.append(PartCoverage(f"{label}_part{len(results)}", NATIVE, names, "compiled"))
        elif is_operator(step):
            waiting.append(operator_name(step.target))
    close()
    return results


def _uncompiled(node: Node, error: Error) -> Uncompiled:
    help = error.hint or ""
    return Uncompiled(node.name, operator_name(node.target), error.what, PYTORCH, help, source_line(node))


def _left(node: Node, why: str) -> Uncompiled:
    return Uncompiled(node.name, operator_name(node.target), why, PYTORCH, "", source_line(node))
