"""The coverage report of a model of parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tilewright.frontend.onnx.section import Section, Types, operator
from tilewright.frontend.onnx.survey import survey
from tilewright.parts.context import Context
from tilewright.parts.hosts import NO_HOST, ORT, REFERENCE, Hosts
from tilewright.parts.plan import Step, cut
from tilewright.support.coverage import NATIVE, Coverage, PartCoverage, Uncompiled, counted, totals
from tilewright.support.errors import Error

if TYPE_CHECKING:
    from tilewright.parts.part import CutForm, Part

_Piece = tuple[Section, str, str, list[Uncompiled]]

PYTHON = "Python"
"""The name of the host that evaluates control flow and holds sequences: Python."""


def coverage_of(part: Part, context: Context) -> Coverage:
    """The coverage report of a part and of the parts inside it."""
    return _report(part.section.name, _pieces(part, context.hosts))


def coverage_in_advance(name: str, section: Section, types: Types, hosts: Hosts) -> Coverage:
    """The coverage report of a section that has not run, as far as the types of its inputs tell."""
    return _report(name, _pieces_prefetched(section, types, hosts))


def _report(name: str, pieces: Iterable[_Piece]) -> Coverage:
    parts: list[PartCoverage] = []
    missing: list[Uncompiled] = []
    nodes: list[tuple[str, bool]] = []
    for section, runs_by, state, reasons in pieces:
        operators = [operator(n) for n in section.nodes]
        parts.append(PartCoverage(section.name, runs_by, counted(operators), state))
        nodes += [(name, runs_by == NATIVE) for name in operators]
        missing += reasons
    return Coverage(name, totals(nodes), tuple(parts), tuple(missing))


def _pieces(part: Part, hosts: Hosts) -> Iterator[_Piece]:
    from tilewright.parts.part import NativeForm

    if not part.forms:
        yield part.section, NATIVE, _waiting(part.section, part.types, part.needs), []
        return
    form = part.forms[0][1]
    if isinstance(form, NativeForm):
        count = len(part.forms)
        yield part.section, NATIVE, "compiled" if count == 1 else f"compiled for {count} kinds of inputs", []
        return
    yield from _cut_pieces(form, hosts)


def _cut_pieces(form: CutForm, hosts: Hosts) -> Iterator[_Piece]:
    from tilewright.parts.control import ControlPart
    from tilewright.parts.part import Part

    for step, part in form.steps:
        if isinstance(part, Part):
            yield from _pieces(part, hosts)
            continue
        yield step.section, *_elsewhere(step, hosts)
        if isinstance(part, ControlPart):
            for body in part.bodies.values():
                yield from _pieces(body, hosts)


def _pieces_prefetched(section: Section, types: Types, hosts: Hosts) -> Iterator[_Piece]:
    from tilewright.parts.control import bodies

    for step in cut(section, survey(section, types)):
        if step.kind == "compiled":
            yield step.section, NATIVE, _waiting(step.section, step.types, step.needs), []
            continue
        yield step.section, *_elsewhere(step, hosts)
        if step.kind == "control":
            for body in bodies(step.section).values():
                yield from _pieces_prefetched(body, {}, hosts)


def _elsewhere(step: Step, hosts: Hosts) -> tuple[str, str, list[Uncompiled]]:
    section = step.section
    in_python = step.kind in ("control", "values")
    by = set() if in_python else {hosts.known_by(node, section) for node in section.nodes}
    runs_by = PYTHON if in_python else next((w for w in (NO_HOST, REFERENCE) if w in by), ORT)
    missing = []
    for k, error in step.reasons.items():
        if error is not None:
            node = section.nodes[k]
            missing.append(Uncompiled(section.label(k), operator(node), reason_of(error), runs_by, help_for(error)))
    return runs_by, "", missing


def reason_of(error: Error) -> str:
    """The message of an error, without the place that it is about."""
    results = [e.what + (f", got {e.got}" if e.got else "") for e in error.each()]
    return "; ".join(dict.fromkeys(results))


def help_for(error: Error) -> str:
    """A hint how to get a node compiled that failed with `error`; "" if none is known."""
    if any("operator" in e.what and "not supported" in e.what for e in error.each()):
        return "a plug-in may bring a rule for the operator (docs/plugins.md)"
    return next((e.hint for e in error.each() if e.hint), "")


def _waiting(section: Section, types: Types, needs: frozenset[str]) -> str:
    if needs:
        return f"compiled at the first call, for the values of {', '.join(sorted(needs))}"
    unknown = [n for n in section.inputs if types.get(n) is None]
    return f"compiled at the first call, when the types of {', '.join(unknown)} are known" if unknown else ""


__all__ = ["coverage_of", "help_for", "reason_of"]
