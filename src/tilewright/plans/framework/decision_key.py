"""Keys of decisions: what is decided, by content alone.

A key is made of the kind of decision, the operators with their types and attributes, and the class of the target. It
does not depend on names, on the rest of the model or on its options, so that an equal layer in another model has the
same key, and measurements for one model serve others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace

from tilewright.ir.attributes import ConstantArray
from tilewright.ir.expr import Expr, Var, as_int
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ir.key import digest, key
from tilewright.ir.loops import Block, PrimFunc
from tilewright.ir.notes import MayAlias, NonresidentWeights, Origin, PastCaches, find
from tilewright.ir.rewrite import substitute, variables, walk
from tilewright.plans.framework.space import Setting
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

SURROUNDINGS = (NonresidentWeights, MayAlias, PastCaches)
"""Notes on a function that depend on the surrounding model, and are no part of the function's identity."""


@dataclass(frozen=True, slots=True)
class Key:
    """The identity of a decision: the kind of decision, a digest of the content, and the content itself: a function, or
    operators as a graph whose inputs are all values that they read."""

    kind: str
    digest: str
    program: PrimFunc | Graph | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The text by which a decision is forced."""
        return f"{self.kind} {self.digest}"

    @property
    def text(self) -> str:
        """The function or operators to decide about, as text for people."""
        match self.program:
            case PrimFunc():
                return _function_text(self.program)
            case Graph():
                words = _Words()
                return "; ".join(words.node(node) for node in self.program.nodes)
        return ""


def target_class(target: Target) -> str:
    """A text for the machines and calls that share decisions: the class of the machine and the number of threads."""
    return f"{target.kind} threads={target.threads}"


def key_of_nodes(kind: str, nodes: Sequence[Node], target: Target) -> Key:
    """The key of a decision of kind `kind` about `nodes`: one operator, or several in their order in the graph."""
    produced = {v for node in nodes for v in node.outputs}
    inputs = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None and v not in produced)
    graph = Graph("", tuple(inputs), (), tuple(nodes), nodes[-1].outputs)
    return key_of_program(kind, graph, target_class(target))


def key_of_function(func: PrimFunc, target: Target, kind: str = "plan") -> Key:
    """The key of a decision about a function: its schedule, or another decision of this kind."""
    notes = tuple(note for note in func.notes if not isinstance(note, SURROUNDINGS))
    return key_of_program(kind, replace(func, notes=notes), target_class(target))


def key_of_program(kind: str, program: PrimFunc | Graph, machines: str) -> Key:
    """The key of a decision of this kind about a whole program, on `machines`, a class of machines as `target_class`
    names it."""
    return Key(kind, digest([kind, key(program), machines]), program)


def _function_text(func: PrimFunc) -> str:
    words = _Words()
    types = ", ".join(words.type(TensorType(b.dtype, b.shape)) for b in func.params)
    return f"{'+'.join(_operators(func))}({types})"


def _operators(func: PrimFunc) -> Iterator[str]:
    """A description of the function for people: the operators of its blocks in order, or the names of blocks without
    one."""
    before: Origin | None = None
    for block in walk(func.body):
        if isinstance(block, Block):
            origin = find(block.notes, Origin)
            if origin is None or before is None or (origin.op, origin.attrs) != (before.op, before.attrs):
                yield block.name if origin is None else origin.op
            before = origin


class _Words:
    """Writes operators as text, with symbols named by their order of appearance."""

    def __init__(self) -> None:
        self.symbols: dict[Var, Expr] = {}

    def node(self, node: Node) -> str:
        parts = ["-" if v is None else self.type(v.type) for v in node.inputs]
        parts += [f"{name}={self.attribute(value)}" for name, value in node.attrs.items()]
        chosen = "" if node.algorithm is None else f" by {Setting.of(node.algorithm).label}"
        return f"{node.op}({', '.join(parts)}){chosen}"

    def type(self, type: TensorType) -> str:
        return f"{type.dtype.name}[{', '.join(map(self.size, type.shape))}]"

    def size(self, e: Expr) -> str:
        if as_int(e) is not None:
            return str(as_int(e))
        for v in variables(e):
            self.symbols.setdefault(v, v.renamed(f"n{len(self.symbols)}"))
        return str(substitute(e, self.symbols))

    def attribute(self, value: object) -> str:
        match value:
            case Expr():
                return self.size(value)
            case tuple():
                return f"({', '.join(map(self.attribute, value))})"
            case ConstantArray() | Value():
                return "array"
        return str(value)
