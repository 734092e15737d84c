"""Print the loops that a comprehension stands for."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.formulas.binding import Bound, Program
from tilewright.formulas.printer import text_of
from tilewright.formulas.syntax import Read, Reducer, walk
from tilewright.ir.dtype import i64
from tilewright.ir.expr import is_const
from tilewright.ir.graph import TensorType

_STEPS: Mapping[Reducer, tuple[str, str]] = {
    "sum": ("0", "{y} + {x}"),
    "prod": ("1", "{y} * {x}"),
    "max": ("-inf", "max({y}, {x})"),
    "min": ("inf", "min({y}, {x})"),
    "any": ("False", "{y} or {x}"),
    "all": ("True", "{y} and {x}"),
}
"""For each reducer its initial value, and the formula of one step from the result so far, y, and an element, x."""


def explain(program: Program, typed: bool = True) -> str:
    """The loops of a program with the range of every index and where it comes from; element types if they are known."""
    nests = program.nests

    def shown_as(name: str) -> str:
        declared = nests.declared.get(name)
        known = typed or (declared is not None and declared.dtype is not None)
        text = str(program.types[name])
        return f"{name}: {text if known else text[text.index('[') :]}"

    shown, results = (", ".join(map(shown_as, names)) for names in (nests.inputs, nests.results))
    lines = [f"({shown}) -> ({results})"]
    for bound in program.bounds:
        lines += _nest(bound, program.types)
    return "\n".join(lines)


def _loop(bound: Bound, index: str, depth: int) -> str:
    extent = bound.extents[index]
    end = extent.size if is_const(extent.start, 0) else extent.start + extent.size
    return f"{'  ' * depth}for {index} in {extent.start}:{end}    # {extent.why}"


def _nest(bound: Bound, types: Mapping[str, TensorType]) -> list[str]:
    nest = bound.nest
    lines = [_loop(bound, i, k) for k, i in enumerate(nest.left)]
    depth = len(nest.left)
    element = f"{nest.target}[{', '.join(_place(bound, i) for i in nest.left)}]" if nest.left else nest.target
    body = text_of(nest.body)
    if nest.reducer is None:
        return [*lines, f"{'  ' * depth}{element} = {body}", *_notes(bound, types)]
    start, step = _STEPS.get(nest.reducer, ("-1", f"{nest.reducer}({{y}}, {', '.join(nest.reduced)} of {{x}})"))
    if bound.type.dtype.is_int and bound.type.dtype is not i64 and nest.reducer in ("max", "min"):
        start = str(bound.type.dtype.min if nest.reducer == "max" else bound.type.dtype.max)
    lines.append(f"{'  ' * depth}{element} = {start}")
    lines += [_loop(bound, i, depth + k) for k, i in enumerate(nest.reduced)]
    depth += len(nest.reduced)
    if nest.condition is not None:
        lines.append(f"{'  ' * depth}if {text_of(nest.condition)}")
        depth += 1
    lines.append(f"{'  ' * depth}{element} = {step.format(y=element, x=body)}")
    return [*lines, *_notes(bound, types)]


def _place(bound: Bound, index: str) -> str:
    start = bound.extents[index].start
    return index if is_const(start, 0) else f"{index} - {start}"


def _notes(bound: Bound, types: Mapping[str, TensorType]) -> list[str]:
    """Remarks on indices that are clamped, that is, moved to the nearest element."""
    result: dict[str, None] = {}
    for e in bound.nest.nodes:
        for n in walk(e):
            if not isinstance(n, Read):
                continue
            for k, index in enumerate(n.indices):
                if any(isinstance(m, Read) for m in walk(index)):
                    limit = types[n.tensor].shape[k]
                    text = f"# {text_of(index)} comes from data: as an index of {n.tensor} it is moved into 0:{limit}"
                    result[text] = None
    return list(result)
