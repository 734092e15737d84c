"""Graph passes that state their own place in the list of passes: those of `transform/passes/`, one per file, those that
a program registers, and those of plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from tilewright.ir.graph import Graph
from tilewright.support import plugins
from tilewright.support.classes import dataclass
from tilewright.support.discover import members
from tilewright.support.errors import PluginError
from tilewright.targets.target import Target

Named = tuple[str, Callable[[Graph], Graph]]


@dataclass(frozen=True, slots=True)
class GraphPass:
    """A pass over the whole graph.

    Args:
        name: the name in logs, in TILEWRIGHT_DUMP and in the places of other passes.
        run: maps a graph and the target to an equivalent graph.
        place: before or after the first pass of a name: `("after", "fold scales")`.
        where: tells whether the pass runs for a target; None: for all targets.
    """

    name: str
    run: Callable[[Graph, Target], Graph]
    place: tuple[Literal["before", "after"], str]
    where: Callable[[Target], bool] | None = None


_extra: list[GraphPass] = []


def register(extra: GraphPass) -> GraphPass:
    """Register a pass for all later compiles. Raises PluginError if a registered pass has the same name."""
    plugins.check_new("pass", [extra.name], [p.name for p in _extra])
    plugins.count(extra.run)
    _extra.append(extra)
    return extra


def unregister(name: str) -> None:
    """Remove a registered pass."""
    (extra,) = (p for p in _extra if p.name == name)
    _extra.remove(extra)
    plugins.discount(extra.run)


def placed(passes: Sequence[Named], target: Target) -> list[Named]:
    """The list of passes with those of `transform/passes/` (each module's `PASS`) inserted at their places."""
    return _inserted(passes, [m.PASS for m in members("tilewright.transform.passes")], target)


def extended(passes: Sequence[Named], target: Target) -> list[Named]:
    """The list of passes with registered passes and those of plug-ins inserted at their places. Raises PluginError if a
    place names a pass that does not exist."""
    known = [name for name, _ in passes]

    def accept(plugin: plugins.Plugin, loaded: object) -> tuple[str, ...]:
        items = plugins.several(loaded, GraphPass)
        plugins.check_new("pass", [p.name for p in items], [*known, *(p.name for p in _extra)])
        _inserted(passes, [*_extra, *items], target)
        for each in items:
            register(each)
        return tuple(f"pass {p.name}" for p in items)

    plugins.load_group("passes", accept)
    return _inserted(passes, _extra, target)


def _inserted(passes: Sequence[Named], extra: Sequence[GraphPass], target: Target) -> list[Named]:
    result, waiting = list(passes), list(extra)
    while waiting:
        names = [name for name, _ in result]
        each = next((p for p in waiting if p.place[0] in ("before", "after") and p.place[1] in names), None)
        if each is None:
            expected, got = f'"before" or "after" one of {", ".join(dict.fromkeys(names))}', waiting[0].place
            where = f"pass {waiting[0].name!r}"
            raise PluginError("there is no such place", where=where, expected=expected, got=got)
        waiting.remove(each)
        side, beside = each.place
        result.insert(names.index(beside) + (side == "after"), (each.name, partial(_run, each.run, target)))
    absent = {p.name for p in extra if p.where is not None and not p.where(target)}
    return [(name, run) for name, run in result if name not in absent]


def _run(run: Callable[[Graph, Target], Graph], target: Target, graph: Graph) -> Graph:
    return run(graph, target)


__all__ = ["GraphPass", "extended", "placed", "register", "unregister"]
