"""The cut: which nodes of a section are compiled together, which run elsewhere, and in which order.

Nodes get levels: even ones are compiled, odd ones run elsewhere, and a node's level is the least of its kind that no
value of which it depends exceeds. Two nodes of one kind and level never wait for each other through another kind, so
that a level is one part; and as each level has a node that waits for one of the level before, no cut has fewer.

    custom   reads x           1      Relu(x)   0     part 0: Relu
    Relu     reads x           0      custom    1     elsewhere: custom
    Add      reads both        2      Add       2     part 2: Add
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import onnx

from tilewright.frontend.onnx.order import reads
from tilewright.frontend.onnx.section import Section, Types
from tilewright.frontend.onnx.survey import Survey
from tilewright.parts.values import is_on_values
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, ModelError

Kind = Literal["compiled", "elsewhere", "values", "control"]

CONTROLLED = ("If", "Loop", "SequenceMap")
"""Operators whose bodies are compiled when the operator itself is not."""


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a cut: its section, which of its inputs must be known when it is compiled, and the types of inputs
    that are known in advance. `reasons`: why nodes are not compiled, by their position in `section.nodes`."""

    kind: Kind
    section: Section
    needs: frozenset[str]
    types: Types
    reasons: Mapping[int, Error | None]
    assumed: bool = False


def cut(section: Section, result: Survey) -> list[Step]:
    """The steps that compute a section's outputs, in an order in which they can run.

    Raises ModelError if the outputs, or the inputs of a step, include a value that nothing computes.
    """
    members = members_of(section, result)
    wanted = set(section.outputs)
    steps: list[Step] = []
    for position, nodes in reversed(list(enumerate(members))):  # backwards, so that what later parts read is known
        kind = kind_of(section, result, nodes[0])
        chosen = with_known(section, result, nodes) if kind in ("compiled", "elsewhere") else nodes
        outputs = [n for k in nodes for n in section.nodes[k].output if n in wanted]
        if not outputs:
            continue
        part = section.cut(chosen, outputs, f"{section.name}.{position}")
        wanted.update(part.inputs)
        steps.append(_step(section, result, nodes, chosen, part))
    produced = {*section.inputs, *(name for step in steps for name in step.section.outputs)}
    for step in reversed(steps):
        if missing := [name for name in step.section.inputs if name not in produced]:
            reader = next(k for k, node in enumerate(step.section.nodes) if missing[0] in reads(node))
            where = f"node {step.section.label(reader)}"
            raise ModelError("the node reads a value that nothing computes", where=where, got=repr(missing[0]))
    for name in section.outputs:
        if name not in produced and name not in section.initializers:
            raise ModelError("nothing computes the output", where=f"output {name!r}")
    return steps[::-1]


def members_of(section: Section, result: Survey) -> list[list[int]]:
    """The nodes of each part, in an order in which the parts can run. A part is a run of neighbouring nodes of one
    level and one kind (`kind_of`); each control node is a part of its own."""
    levels: dict[int, list[list[int]]] = {}
    for k, level in enumerate(_levels(section, result)):
        runs = levels.setdefault(level, [])
        kind = kind_of(section, result, k)
        if runs and kind != "control" and kind_of(section, result, runs[-1][0]) == kind:
            runs[-1].append(k)
        else:
            runs.append([k])
    return [run for level in sorted(levels) for run in levels[level]]


def _step(section: Section, result: Survey, members: list[int], nodes: list[int], part: Section) -> Step:
    kind = kind_of(section, result, members[0])
    retained = {name: k for k in nodes for name in section.nodes[k].output if name}
    index = [retained[next(filter(None, node.output))] for node in part.nodes]
    needs = frozenset(n for k in index for n in result.nodes[k].needs)
    assumed = any(result.nodes[k].how == "assumed" for k in index)
    types = {n: result.types[n] for n in part.inputs if n in result.types}
    reasons = {j: result.nodes[k].error for j, k in enumerate(index)} if kind != "compiled" else {}
    return Step(kind, part, needs & set(part.inputs), types, reasons, assumed)


def kind_of(section: Section, result: Survey, k: int) -> Kind:
    if result.nodes[k].how != "lacking":
        return "compiled"
    if is_control(section.nodes[k]):
        return "control"
    return "values" if is_on_values(section.nodes[k]) else "elsewhere"


def is_control(node: onnx.NodeProto) -> bool:
    """Whether a node is control flow, which Python evaluates between parts if it is not compiled."""
    return node.op_type in CONTROLLED and node.domain in ("", "ai.onnx")


def _levels(section: Section, result: Survey) -> list[int]:
    producers: dict[str, int] = {}
    levels: list[int] = []
    for k, node in enumerate(section.nodes):
        kind = kind_of(section, result, k)
        level = 0 if kind == "compiled" else 1
        for name in reads(node):
            if name in producers:
                created = kind_of(section, result, producers[name])
                level = max(level, levels[producers[name]] + ((created == "compiled") != (kind == "compiled")))
        for name in result.nodes[k].needs:
            # The value must be there when the part is compiled. What does not depend on it is kept separate, so that it
            # is not compiled anew for every value.
            level = max(level, levels[producers[name]] + 2 if name in producers else 2)
        levels.append(level + (level + (kind != "compiled")) % 2)
        producers.update((name, k) for name in node.output if name)
    return levels


def with_known(section: Section, result: Survey, members: Iterable[int]) -> list[int]:
    """The nodes `members` of a part, and the nodes with known results that they depend on. Each part repeats the
    latter, so that its import can evaluate them: shapes that they compute stay known."""
    producers = {name: k for k, node in enumerate(section.nodes) for name in node.output if name}
    chosen: set[int] = set(members)
    stack = list(chosen)
    while stack:
        for name in reads(section.nodes[stack.pop()]):
            k = producers.get(name)
            if k is not None and k not in chosen and result.nodes[k].how == "known":
                chosen.add(k)
                stack.append(k)
    return sorted(chosen)


__all__ = ["CONTROLLED", "Kind", "Step", "cut", "is_control", "kind_of", "members_of", "with_known"]
