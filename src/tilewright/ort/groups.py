"""The choice of nodes that become programs: the fewest groups that the order of the nodes allows, each compiled as one
program.

The rules are those of `tw.compile` for models in parts (`parts/plan.py`), except that nothing waits for a call: nodes
that need a value or a type which only a call shows are left to ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.frontend.common.finish import reason
from tilewright.frontend.onnx import import_onnx
from tilewright.frontend.onnx.load import load
from tilewright.frontend.onnx.order import reads
from tilewright.frontend.onnx.section import Section, Types, check_tensors
from tilewright.frontend.onnx.survey import Survey, survey
from tilewright.ir.dtype import BY_NAME
from tilewright.ir.interface import Imported
from tilewright.ort.graph import Read
from tilewright.parts.onnx_model import stated_types
from tilewright.parts.plan import kind_of, members_of, with_known
from tilewright.runtime.model import Model
from tilewright.runtime.specs import InputSpec, OutputSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError, Error, UnsupportedError

Build = Callable[[Imported, str], Model]
"""Compiles a graph with its weights to a loaded program."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes, by index, that one program computes.

    Args:
        inputs, outputs: names of values, in the program's order.
        section: the nodes, where sizes may come that the program was not made for; None where all sizes are known.
    """

    nodes: tuple[int, ...]
    model: Model
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    section: Section | None


@dataclass(frozen=True, slots=True)
class Grouped:
    """The groups, and for each other node, by index, the reason why it is in none."""

    groups: tuple[Group, ...]
    left: dict[int, Error]


def group(read: Read, build: Build) -> Grouped:
    """Divide the graph of `read` into groups of nodes, and compile each by `build`. Nodes that are not compiled are
    returned with the reason. Raises ModelError for an invalid model."""
    section = _section(read)
    types = stated_types(section, {})
    result, left = _survey(section, types, read)
    groups: list[Group] = []
    for nodes in members_of(section, result):
        if kind_of(section, result, nodes[0]) != "compiled":
            continue
        if all(result.nodes[k].how == "known" for k in nodes):  # numbers that ONNX Runtime knows as well
            left |= dict.fromkeys(nodes, UnsupportedError("nothing is left to compute"))
            continue
        try:
            groups.append(_compiled(section, result, nodes, build))
        except Error as error:
            left |= dict.fromkeys(nodes, error)
        except Exception as error:  # a defect of ours is no reason to give no answer
            defect = CompileError("a defect of Tilewright, please report it", got=reason(error))
            left |= dict.fromkeys(nodes, defect)
    return Grouped(tuple(groups), left)


def _section(read: Read) -> Section:
    """The graph that ONNX Runtime passes, as one section with all of its nodes."""
    loaded = load(read.model)
    graph = loaded.model.graph
    check_tensors(graph)
    initializers = {t.name: t for t in graph.initializer}
    inputs, outputs = tuple(i.name for i in graph.input), tuple(o.name for o in graph.output)
    return Section(loaded, graph.name, tuple(graph.node), initializers, inputs, outputs, frozenset(initializers))


def _survey(section: Section, types: Types, read: Read) -> tuple[Survey, dict[int, Error]]:
    """(the survey of all nodes with no assumptions on inputs, node -> error for those that are not compiled)."""
    what = "ONNX Runtime's interface does not tell all attributes of the node"
    lacking: dict[int, Error] = {k: UnsupportedError(what) for k in read.opaque}
    while True:
        result = survey(section, types, None, lacking)
        assumed = {k: s for k, s in enumerate(result.nodes) if s.how == "assumed"}
        if not assumed:
            unknown = UnsupportedError("the operator is not supported")
            return result, {k: s.error or unknown for k, s in enumerate(result.nodes) if s.how == "lacking"}
        unstated = UnsupportedError("types of what the node reads are not stated")
        lacking |= {k: s.error or unstated for k, s in assumed.items()}


def _compiled(section: Section, result: Survey, nodes: list[int], build: Build) -> Group:
    outputs = list(_read_outside(section, nodes))
    name = f"{section.name}.{nodes[0]}"
    if not outputs:
        raise UnsupportedError("the nodes compute nothing that is read", where=name)
    part = section.cut(nodes, outputs, name)  # without nodes whose results are not read
    # What is known ahead can be computed once more here, where that needs no other inputs.
    wider = section.cut(with_known(section, result, nodes), outputs, name)
    if set(wider.inputs) <= set(part.inputs):
        part = wider
    types = {n: result.types[n] for n in part.inputs if n in result.types}
    model = build(import_onnx(part.model(types)), name)
    specs: list[InputSpec | OutputSpec] = [*model.manifest.inputs, *model.manifest.outputs]
    for spec in specs:
        kind = BY_NAME[spec.dtype]
        if kind.is_minifloat or (kind.is_int and kind.bits < 8):
            raise UnsupportedError("values of this type do not pass between programs", where=spec.name, got=spec.dtype)
    inputs, outputs = [i.name for i in model.inputs], [o.name for o in model.outputs]
    return Group(tuple(nodes), model, tuple(inputs), tuple(outputs), part if model.manifest.symbols else None)


def _read_outside(section: Section, nodes: list[int]) -> Iterator[str]:
    """The names of results of these nodes that other nodes read or that the graph returns."""
    mine = set(nodes)
    others = {n for k, node in enumerate(section.nodes) if k not in mine for n in reads(node)} | set(section.outputs)
    for k in nodes:
        yield from (name for name in section.nodes[k].output if name in others)


__all__ = ["Build", "Group", "Grouped", "group"]
