"""Graphs: a flat SSA list of operators on tensor values.

    graph @name(inputs) params(...) { %out = op(%in, ...) {attr = ...} ... return outputs }

Values are named; each is defined once. Shapes are tuples of `Expr`, so a dimension may be symbolic. Weights are
`params`: the graph knows their types, never their numbers. Small structural constants are nodes of the operator
"constant" with an array attribute.

A graph may state assumptions on its sizes: `assume s <= 512 "why"`. Its results for other sizes are not defined; each
call checks the assumptions (docs/shapes.md, "Assumptions").

Attributes may hold graphs: the bodies of loops and branches (`ops/control.py`). A body sees nothing of the graph around
it but its own inputs and params, for which the node has operands, and the symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import TypeVar

from tilewright.ir.attributes import NO_ATTRS, Attrs, AttrValue
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, Var, as_expr, as_int, is_const, product
from tilewright.ir.rewrite import variables
from tilewright.ir.sameness import Sameness
from tilewright.ir.selection import Algorithm, Precision, Selection
from tilewright.support.classes import dataclass

A = TypeVar("A", bound=Attrs)


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a tensor: its element type and *physical* shape. `layout` names how the logical shape is laid out (""
    for as written, "NCHW16c" for channels in blocks of 16 as the last dimension)."""

    dtype: DType
    shape: tuple[Expr, ...]
    layout: str = ""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Expr:
        """The number of elements."""
        return product(self.shape)

    def __str__(self) -> str:
        dims = ", ".join(str(d) for d in self.shape)
        return f"{self.dtype}[{dims}]" + (f":{self.layout}" if self.layout else "")


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor with a name, unique in its graph."""

    name: str
    type: TensorType

    def __hash__(self) -> int:
        """The hash of the name alone, which distinguishes the values of a graph; a string caches its hash, a type does
        not."""
        return hash(self.name)

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def known_bytes(self) -> int:
        """The size in bytes of all elements; 0 where a dimension is a symbol."""
        return (as_int(self.type.size) or 0) * self.dtype.itemsize


def base_name(op: str) -> str:
    """An operator's name without its dialect: "conv_winograd" of "lowered.conv_winograd"."""
    return op.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Node:
    """`outputs = op(inputs) {attrs}`; an input is None where an optional one is absent. `attrs` is an instance of the
    dataclass that the operator declares. `selected` is the algorithm and precision that `transform/select/` chose;
    `transform/layout/` removes it."""

    op: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    attrs: Attrs = NO_ATTRS
    selected: Selection | None = None

    def of(self, kind: type[A]) -> A:
        """The attributes as an instance of `kind`, the class that the operator declares."""
        assert isinstance(self.attrs, kind), f"{self.op} has {type(self.attrs).__name__}, not {kind.__name__}"
        return self.attrs

    @property
    def algorithm(self) -> Algorithm | None:
        """The algorithm that was selected, if there was a choice."""
        return None if self.selected is None else self.selected.algorithm

    @property
    def precision(self) -> Precision:
        """The precision that was selected; "fp32", that of the types, if there was no choice."""
        return "fp32" if self.selected is None else self.selected.precision

    @property
    def symbols(self) -> tuple[Var, ...]:
        """The symbolic dimensions that the attributes mention."""
        result: dict[Var, None] = {}
        stack: list[AttrValue] = [value for _, value in self.attrs.items()]
        while stack:
            value = stack.pop()
            if isinstance(value, tuple):
                stack.extend(value)
            elif isinstance(value, Expr):
                result.update(dict.fromkeys(variables(value)))
            elif isinstance(value, Graph):
                result.update(dict.fromkeys(value.used_symbols))
        return tuple(result)

    @property
    def defines(self) -> Var | None:
        """The symbol whose value is an input of this node (`ops/extent.py`); None for nodes that define no symbol."""
        result = getattr(self.attrs, "defines", None)
        return result if isinstance(result, Var) else None

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """The graphs among the attributes, in the order of their names."""
        return tuple(value for value in self.attrs.values().values() if isinstance(value, Graph))

    def with_bodies(self, change: Callable[[Graph], Graph]) -> Node:
        """The node with `change` applied to each of its bodies; the same node if that changes none."""
        bodies = self.bodies
        changed = {id(body): change(body) for body in bodies}
        if all(changed[id(body)] is body for body in bodies):
            return self
        attrs = self.attrs.mapped(lambda v: changed[id(v)] if isinstance(v, Graph) else v)
        return replace(self, attrs=attrs)

    @property
    def output(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value

    def operands(self, count: int) -> tuple[Value, ...]:
        """The inputs of a node that has `count` of them, none of which may be absent."""
        values = tuple(v for v in self.inputs if v is not None)
        assert len(values) == len(self.inputs) == count, (self.op, count)
        return values

    @property
    def label(self) -> str:
        """The operator's name without its dialect, and its algorithm where that name does not say it, as kernels and
        tables show it."""
        return f"{base_name(self.op)} {self.attrs.algorithm}".rstrip()


@dataclass(frozen=True, slots=True)
class Assumption:
    """A condition (bool, over the symbols of a graph's inputs) that holds at every call, and the reason for it in a few
    words."""

    condition: Expr
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.condition} ({self.reason})" if self.reason else str(self.condition)


@dataclass(frozen=True, slots=True, repr=False)
class Graph:
    """A function from inputs and weights to outputs. `nodes` are in execution order; outputs may be inputs or params
    themselves. Bodies assume nothing: what they rely on, the graph around them assumes."""

    name: str
    inputs: tuple[Value, ...]
    params: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    assumptions: tuple[Assumption, ...] = ()

    def __str__(self) -> str:
        from tilewright.ir.printer import graph_text

        return graph_text(self)

    __repr__ = __str__

    @property
    def symbols(self) -> tuple[Var, ...]:
        """Symbolic dimensions of the inputs, by first appearance."""
        result: dict[Var, None] = {}
        for value in self.inputs:
            for dim in value.shape:
                result.update(dict.fromkeys(variables(dim)))
        return tuple(result)

    @property
    def used_symbols(self) -> tuple[Var, ...]:
        """The symbolic dimensions of all values, and those that attributes mention, also in bodies; without those that
        nodes of the graph define."""
        result: dict[Var, None] = {}
        for value in (*self.inputs, *self.params, *(v for node in self.nodes for v in node.outputs)):
            for dim in value.shape:
                result.update(dict.fromkeys(variables(dim)))
        for node in self.nodes:
            result.update(dict.fromkeys(node.symbols))
        own = {node.defines for node in self.nodes}
        return tuple(symbol for symbol in result if symbol not in own)

    def needed(self) -> tuple[Node, ...]:
        """The nodes that the outputs depend on, in order; including those that define symbols which others use."""
        wanted: set[Value | None] = set(self.outputs)
        defined = any(node.defines is not None for node in self.nodes)
        symbols = {s for v in self.outputs for d in v.shape for s in variables(d)} if defined else set()
        retained: list[Node] = []
        for node in reversed(self.nodes):
            if not wanted.isdisjoint(node.outputs) or (symbols and node.defines in symbols):
                retained.append(node)
                wanted.update(node.inputs)
                if defined:
                    symbols.update(node.symbols, (s for v in node.outputs for d in v.shape for s in variables(d)))
        return tuple(reversed(retained))

    def producers(self) -> dict[Value, Node]:
        return {out: node for node in self.nodes for out in node.outputs}

    def consumers(self) -> dict[Value, list[Node]]:
        """For each value the nodes that read it, in order; a node that reads it several times is listed once."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                if value is not None:
                    users.setdefault(value, []).append(node)
        return users


@dataclass(slots=True)
class GraphBuilder:
    """Appends nodes; `ops.emit` (which infers types) is the usual way to call it."""

    name: str = "main"
    inputs: list[Value] = field(default_factory=list)
    params: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    reserved: set[str] = field(default_factory=set)
    last_numbers: dict[str, int] = field(default_factory=dict, repr=False)
    """For each base the number at the end of the last fresh name."""
    assumptions: list[Assumption] = field(default_factory=list)
    """The assumptions so far, one list for the builders of a graph and of its bodies."""

    def fresh(self, base: str) -> str:
        """A name that no value has yet: `base`, else the first of `base_1`, `base_2`, ... that is free."""
        # Where the last number that was given is still taken, and the name without one, so are those between.
        n = self.last_numbers.get(base, 0)
        name = f"{base}_{n}" if n else base
        if n and not {base, name} <= self.reserved:
            n, name = 0, base
        while name in self.reserved:
            n += 1
            name = f"{base}_{n}"
        self.last_numbers[base] = n
        self.reserved.add(name)
        return name

    def assume(self, condition: Expr | Sameness, reason: str) -> None:
        """Add an assumption on symbols: each call checks the condition, and raises a CallError with the condition and
        the reason if it does not hold."""
        created = Assumption(as_expr(condition), reason)
        if not is_const(created.condition, True) and created not in self.assumptions:
            self.assumptions.append(created)

    def input(self, name: str, type: TensorType) -> Value:
        value = Value(self.fresh(name), type)
        self.inputs.append(value)
        return value

    def param(self, name: str, type: TensorType) -> Value:
        value = Value(self.fresh(name), type)
        self.params.append(value)
        return value

    def node(
        self,
        op: str,
        inputs: tuple[Value | None, ...],
        types: tuple[TensorType, ...],
        attrs: Attrs = NO_ATTRS,
        names: tuple[str, ...] = (),
    ) -> tuple[Value, ...]:
        outputs = tuple(
            Value(self.fresh(names[i] if i < len(names) else base_name(op)), type) for i, type in enumerate(types)
        )
        self.nodes.append(Node(op, inputs, outputs, attrs))
        return outputs

    def finish(self, outputs: tuple[Value, ...]) -> Graph:
        inputs, params, nodes = tuple(self.inputs), tuple(self.params), tuple(self.nodes)
        return Graph(self.name, inputs, params, nodes, outputs, tuple(self.assumptions))
