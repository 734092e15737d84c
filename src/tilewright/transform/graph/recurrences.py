"""Recognise recurrent cells: a loop over sequences whose body is a cell that the user wrote becomes `recurrence`.

    h, ys = loop(h0, xs) {body: a = x @ w + b; c = h @ u; h = any pointwise function of parts of a, of c and of h}
    ->
    gates = xs @ w for all steps at once; ys, h = recurrence(gates, u, h0) {cell = "steps", steps = ...}

A body qualifies if each of its products multiplies a captured matrix by an element of a sequence or by one carried
value, the state, and if all other nodes are pointwise on parts as wide as the state. A second carried value, as in an
LSTM, may not be a factor. The state and values that depend on it alone then stay in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from itertools import groupby
from math import prod
from typing import Any

from tilewright import ops
from tilewright.ir.attributes import Number
from tilewright.ir.dtype import f32, f64
from tilewright.ir.expr import Expr, as_int, const, is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.control import LoopAttrs
from tilewright.ops.dims import dim, dims
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.pointwise import BODIES
from tilewright.ops.shape import ConcatAttrs, ConstantAttrs, SliceAttrs
from tilewright.ops.steps import Step
from tilewright.support.classes import dataclass
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite


def recognise_recurrences(graph: Graph) -> Graph:
    """The graph with `recurrence` in place of each loop whose body is a recurrent cell."""
    return rewrite(graph, [Rule(op("loop"), _recurrence)])


class _NoCell(Exception):
    """Raised if the body of a loop is not a recurrent cell."""


Place = tuple[str, int, int]
"""Where the step of a recurrent cell finds an operand: (kind, number among operands of this kind, part of it), for the
kinds "sum", "x", "state", "vector" and "step"."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """A value of the loop's body as a list of operands (`Place`), each as wide as the state, or of one number for all
    elements (`single`)."""

    places: tuple[Place, ...]
    single: bool = False


@dataclass(frozen=True, slots=True)
class _Element:
    """A value of a loop's body that is the present iteration's element of the sequence number `sequence`, reshaped or
    not."""

    sequence: int


@dataclass(slots=True)
class Cell:
    """A recurrent cell: `state` is the carried value that is multiplied.

    sums        values [H, n H] by which the state is multiplied
    x           sequences, with the matrix [F, n H] that multiplies their elements (None: elements are n H long), and n
    vectors     the other captured values, each n H long
    invariant   nodes that read only captured values
    steps       the pointwise steps, and the places of the new carried values
    """

    hidden: int
    batch: Expr
    state: int = -1
    sums: list[Value] = field(default_factory=list)
    x: list[tuple[int, Value | None, int]] = field(default_factory=list)
    vectors: list[Value] = field(default_factory=list)
    invariant: list[Node] = field(default_factory=list)
    steps: list[tuple[str, tuple[Place, ...], tuple[tuple[str, Number], ...]]] = field(default_factory=list)
    results: list[Place] = field(default_factory=list)


def recurrent_cell(node: Node) -> Cell | None:
    """The body of a loop as a recurrent cell; None if it is not one."""
    attrs = node.of(LoopAttrs)
    if node.inputs[0] is not None or node.inputs[1] is not None or attrs.conditional or attrs.counted:
        return None
    if not attrs.scanned or not 1 <= attrs.carried <= 2:
        return None
    try:
        return _Reader(attrs.body, attrs.carried, attrs.scanned).read()
    except _NoCell:
        return None


class _Reader:
    """Reads the nodes of a loop's body in order. Raises _NoCell if the body is not a recurrent cell."""

    def __init__(self, body: Graph, carried: int, scanned: int) -> None:
        self.body, self.carried = body, carried
        states, elements = body.inputs[1 : 1 + carried], body.inputs[1 + carried :][:scanned]
        first = states[0].type
        hidden = as_int(first.shape[-1]) if first.shape else None
        if not hidden or hidden < 2 or first.dtype not in (f32, f64) or any(v.type != first for v in states):
            raise _NoCell
        self.dtype = first.dtype
        self.cell = Cell(hidden, dim(prod(first.shape[:-1], start=const(1))))
        self.known: dict[Value, _Parts | _Element] = {v: _Parts((("state", k, 0),)) for k, v in enumerate(states)}
        self.known |= {v: _Element(k) for k, v in enumerate(elements)}
        self.invariant = {*body.inputs[1 + carried + scanned :], *body.params}
        self.constants: dict[Value, Node] = {}

    def read(self) -> Cell:
        for node in self.body.nodes:
            if all(v in self.invariant for v in node.inputs if v is not None) and not node.bodies:
                self.cell.invariant.append(node)
                self.invariant.update(node.outputs)
                if node.op == "constant":
                    self.constants[node.output] = node
            else:
                self.known[node.output] = self.parts_of(node)
        results = [self.parts(v) for v in self.body.outputs]
        if any(len(r.places) != 1 or r.single for r in results) or self.cell.state < 0:
            raise _NoCell
        self.cell.results = [r.places[0] for r in results[: self.carried]]
        if any(r.places[0] != self.cell.results[self.cell.state] for r in results[self.carried :]):
            raise _NoCell
        if not self.cell.x:
            raise _NoCell
        return self.cell

    def parts_of(self, node: Node) -> _Parts | _Element:
        """The result of a node, in parts."""
        match node.op:
            case "matmul":
                return self.product(node)
            case "reshape" | "broadcast" | "identity":
                return self.same(node)
            case "slice":
                return self.sliced(node)
            case "concat":
                return self.joined(node)
        return self.pointwise(node)

    def product(self, node: Node) -> _Parts:
        left, right = node.inputs
        attrs = node.of(MatmulAttrs)
        if left not in self.known or right not in self.invariant or attrs.transpose_a or right.type.rank != 2:
            raise _NoCell
        if attrs.dtype is not None:
            raise _NoCell
        weights = right
        if attrs.transpose_b:
            weights = self.outside("transpose", right, perm=(1, 0))
        self.check_rows(left)
        count, source = self.count(weights.shape[1]), self.known[left]
        if isinstance(source, _Element):
            self.cell.x.append((source.sequence, weights, count))
            return _Parts(tuple(("x", len(self.cell.x) - 1, k) for k in range(count)))
        (kind, number, _), *more = source.places
        if more or kind != "state" or self.cell.state not in (-1, number):
            raise _NoCell
        self.cell.state = number
        self.cell.sums.append(weights)
        return _Parts(tuple(("sum", len(self.cell.sums) - 1, k) for k in range(count)))

    def same(self, node: Node) -> _Parts | _Element:
        """The parts of the result of a reshape or broadcast, which are those of its input. Raises _NoCell if elements
        would move."""
        (x,) = (v for v in node.inputs if v is not None)
        source = self.known[x]
        if dim(x.type.size) != dim(node.output.type.size):
            raise _NoCell
        if isinstance(source, _Parts) and not source.single and x.shape[-1:] != node.output.shape[-1:]:
            raise _NoCell
        return source

    def sliced(self, node: Node) -> _Parts:
        (x,) = (v for v in node.inputs if v is not None)
        source, attrs = self.parts(x), node.of(SliceAttrs)
        begin, size = as_int(dim(attrs.begin[-1])), as_int(dim(attrs.size[-1]))
        whole = dims(attrs.size[:-1]) == x.shape[:-1] and set(attrs.step) == {1}
        if source.single or begin is None or not whole or begin % self.cell.hidden:
            raise _NoCell
        first = begin // self.cell.hidden
        return _Parts(source.places[first : first + self.count(const(size or 0))])

    def joined(self, node: Node) -> _Parts:
        parts = [self.parts(v) for v in node.inputs if v is not None]
        if node.of(ConcatAttrs).axis != node.output.type.rank - 1 or any(p.single for p in parts):
            raise _NoCell
        return _Parts(tuple(place for p in parts for place in p.places))

    def pointwise(self, node: Node) -> _Parts:
        """Add a step to the cell for each part of a pointwise node's result."""
        attrs = node.attrs.items()
        if node.op not in BODIES or len(node.outputs) != 1 or node.output.dtype is not self.dtype:
            raise _NoCell
        if not all(isinstance(value, bool | int | float) for _, value in attrs):
            raise _NoCell
        operands = [self.parts(v) for v in node.inputs if v is not None]
        if all(p.single for p in operands):
            raise _NoCell
        count = self.count(node.output.shape[-1])
        if any(not p.single and len(p.places) != count for p in operands):
            raise _NoCell
        selected = (tuple(p.places[0 if p.single else k] for p in operands) for k in range(count))
        return _Parts(tuple(self.step(node.op, places, attrs) for places in selected))

    def step(self, op: str, places: tuple[Place, ...], attrs: tuple[tuple[str, Number], ...]) -> Place:
        self.cell.steps.append((op, places, attrs))
        return "step", len(self.cell.steps) - 1, 0

    def parts(self, value: Value) -> _Parts:
        """The parts of a value: a captured value becomes a vector, an element of a sequence becomes parts of that
        sequence."""
        entry = self.known.get(value)
        if entry is None:
            entry = self.known[value] = self.captured(value)
        if isinstance(entry, _Element):
            self.check_rows(value)
            count = self.count(value.shape[-1])
            if (entry.sequence, None, count) not in self.cell.x:
                self.cell.x.append((entry.sequence, None, count))
            place = self.cell.x.index((entry.sequence, None, count))
            entry = self.known[value] = _Parts(tuple(("x", place, k) for k in range(count)))
        if value.dtype is not self.dtype:
            raise _NoCell
        return entry

    def captured(self, value: Value) -> _Parts:
        number = self.number(value)
        if number is not None:
            return _Parts((self.step("constant", (), (("value", number),)),), single=True)
        if is_const(value.type.size, 1):
            flat = self.outside("reshape", value, shape=(1,))
            self.cell.vectors.append(self.outside("broadcast", flat, shape=(self.cell.hidden,)))
            return _Parts((("vector", len(self.cell.vectors) - 1, 0),), single=True)
        if not value.shape or value.type.size != value.shape[-1]:
            raise _NoCell
        count = self.count(value.shape[-1])
        self.cell.vectors.append(value)
        return _Parts(tuple(("vector", len(self.cell.vectors) - 1, k) for k in range(count)))

    def outside(self, op: str, value: Value, **attrs: Any) -> Value:
        """Emit a node before the loop, for a value that does not change inside."""
        builder = GraphBuilder()
        created = ops.emit1(builder, op, value, **attrs)
        self.cell.invariant += builder.nodes
        return created

    def number(self, value: Value) -> float | None:
        """The number that all elements of a constant are; None for other values."""
        node = self.constants.get(value)
        array = None if node is None else node.of(ConstantAttrs).value.array
        if array is None or not array.size or (array != array.reshape(-1)[0]).any():
            return None
        return float(array.reshape(-1)[0])

    def check_rows(self, value: Value) -> None:
        """Raise _NoCell unless a value has one row for each row of the batch."""
        if not value.shape or dim(prod(value.shape[:-1], start=const(1))) != self.cell.batch:
            raise _NoCell

    def count(self, width: Expr) -> int:
        """How many parts, as wide as the state, a row of this width has. Raises _NoCell if it is not a whole number."""
        known = as_int(width)
        if not known or known % self.cell.hidden:
            raise _NoCell
        return known // self.cell.hidden


def _recurrence(m: Match) -> list[Value] | None:
    """Emit `recurrence` and its operands in place of the matched loop and return its results; None if the loop does not
    fit."""
    node, builder, cell = m.node, m.rewriter.builder, recurrent_cell(m.node)
    if cell is None:
        return None
    attrs = node.of(LoopAttrs)
    body, carried, scanned = attrs.body, attrs.carried, attrs.scanned
    own = 2 + carried + scanned
    outer = dict(zip((*body.inputs[own - 1 :], *body.params), node.inputs[own:], strict=True))
    for element in cell.invariant:
        inputs = tuple(None if v is None else outer[v] for v in element.inputs)
        outputs = tuple(Value(builder.fresh(v.name), v.type) for v in element.outputs)
        builder.nodes.append(replace(element, inputs=inputs, outputs=outputs))
        outer.update(zip(element.outputs, outputs, strict=True))

    def known(value: Value) -> Value:
        match = outer[value]
        assert match is not None
        return match

    def joined(values: Sequence[Value], axis: int) -> Value:
        return values[0] if len(values) == 1 else ops.emit1(builder, "concat", *values, axis=axis)

    def rows(value: Value | None) -> Value:
        assert value is not None
        return ops.emit1(builder, "reshape", value, shape=(cell.batch, const(cell.hidden)))

    sequences = [v for v in node.inputs[2 + carried : own] if v is not None]
    time = sequences[0].shape[0]
    # Products of one sequence are one product, so that its parts stand side by side.
    order = sorted(range(len(cell.x)), key=lambda k: (cell.x[k][0], cell.x[k][1] is None))
    x: list[Value] = []
    for (sequence, ordinary), group in groupby(order, key=lambda k: (cell.x[k][0], cell.x[k][1] is None)):
        members = [cell.x[k] for k in group]
        width = sum(count for _, _, count in members) * cell.hidden
        arguments = sequences[sequence]
        if not ordinary:
            weights = [known(w) for _, w, _ in members if w is not None]
            flat = (dim(time * cell.batch), weights[0].shape[0])
            arguments = ops.emit1(builder, "reshape", arguments, shape=flat)
            arguments = ops.emit1(builder, "matmul", arguments, joined(weights, 1))
        x.append(ops.emit1(builder, "reshape", arguments, shape=(time, cell.batch, const(width))))
    vectors = [ops.emit1(builder, "reshape", v, shape=(v.shape[-1],)) for v in map(known, cell.vectors)]
    states = [cell.state, *(k for k in range(carried) if k != cell.state)]
    results = ops.emit(
        builder,
        "recurrence",
        joined(x, 2),
        joined([known(w) for w in cell.sums], 1),
        *(rows(node.inputs[2 + k]) for k in states),
        *[None] * (4 - len(states)),
        joined(vectors, 0) if vectors else None,
        cell="steps",
        steps=_numbered(cell, order, states),
    )
    every, *last = results
    matches = [*(last[states.index(k)] for k in range(carried)), *[every] * (len(node.outputs) - carried)]
    return [m.emit("reshape", r, shape=v.shape) for v, r in zip(node.outputs, matches, strict=True)]


def _numbered(cell: Cell, order: Sequence[int], states: Sequence[int]) -> tuple[Step, ...]:
    """The steps of the cell, with operands numbered as in `recurrence`: `order` is the order of its inputs, `states`
    the numbers of its states. The steps that compute the new states come last."""
    groups: list[tuple[str, int, int]] = [("sum", k, as_int(w.shape[1]) or 0) for k, w in enumerate(cell.sums)]
    groups = [(kind, k, width // cell.hidden) for kind, k, width in groups]
    groups += [("x", k, cell.x[k][2]) for k in order]
    groups += [("state", k, 1) for k in states]
    groups += [("vector", k, (as_int(v.shape[-1]) or 0) // cell.hidden) for k, v in enumerate(cell.vectors)]
    numbers: dict[Place, int] = {}
    for kind, k, count in groups:
        for part in range(count):
            numbers[kind, k, part] = len(numbers)
    numbers |= {("step", k, 0): len(numbers) + k for k in range(len(cell.steps))}
    last = [("identity", (cell.results[k],), ()) for k in states]
    return tuple((op, tuple(numbers[p] for p in places), attrs) for op, places, attrs in (*cell.steps, *last))
