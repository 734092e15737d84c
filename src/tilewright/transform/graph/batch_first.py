"""Attention on batch-first sequences, instead of transposing them to positions first and the result back.

    attention(project(transpose(x)), ...)              ->   attention(project(x), ...)          x [B, S, E]
    transpose(project(attention(...)))                 ->   project(attention(...))

PyTorch's `nn.MultiheadAttention` transposes batch-first inputs, and transposes its result back. The projections and
biases between treat every row alike, and attention reads and writes either order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright import ops
from tilewright.arith import prove_equal
from tilewright.ir.expr import Expr
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.axes import parallel
from tilewright.ops.dims import dims
from tilewright.ops.lowered.attention import AttentionAttrs
from tilewright.ops.shape import TransposeAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.rewrite import eliminate_dead
from tilewright.transform.regions.captures import builder_for

ATTENTION = "lowered.attention"
POSITIONS_FIRST, STRAIGHT = "t", "s"
"""Letters of attention's orders: 't' is positions first, 's' is batch first."""
SWAP = (1, 0, 2)


@dataclass(frozen=True, slots=True)
class _Link:
    """One node of a chain, in which each node reads the result of the node before: `place` is the position of that
    operand among the node's inputs."""

    node: Node
    place: int


@dataclass(frozen=True, slots=True)
class _Chain:
    """A chain of nodes that treat all rows alike, each reading the previous one; the first reads `source`. A
    transposition that becomes unnecessary stands before the chain, or after it, with the result `last`."""

    source: Value
    links: tuple[_Link, ...]
    last: Value


def batch_first(graph: Graph) -> Graph:
    """The graph in which attention reads and writes batch-first sequences wherever this removes transpositions of its
    inputs or its result."""
    walker = _Walker(graph)
    attentions = [n for n in graph.nodes if n.op == ATTENTION and POSITIONS_FIRST in n.of(AttentionAttrs).order]
    before = {n.output: walker.operands(n) for n in attentions}
    following = {n.output: chain for n in attentions if (chain := walker.result(n)) is not None}
    if not following and not any(before.values()):
        return graph
    builder = builder_for(graph)
    ends = {chain.last: y for y, chain in following.items()}
    straight: dict[Value, Value] = {}
    for node in graph.nodes:
        y = node.outputs[0]
        if before.get(y) or y in following:
            producers = {v: _straight(builder, chain, chain.source) for v, chain in before[y].items()}
            operands = [v if v is None else producers.get(v, v) for v in node.inputs]
            attrs = node.of(AttentionAttrs)
            letters = [STRAIGHT if v in producers else c for v, c in zip(node.inputs, attrs.order[:3], strict=False)]
            letters.append(STRAIGHT if y in following else attrs.order[3])
            straight[y] = ops.emit1(builder, ATTENTION, *operands, attrs=replace(attrs, order="".join(letters)))
            if y not in following:
                builder.nodes[-1] = replace(builder.nodes[-1], outputs=node.outputs)
        elif y in ends:
            _straight(builder, following[ends[y]], straight[ends[y]])
            builder.nodes[-1] = replace(builder.nodes[-1], outputs=node.outputs)
        else:
            builder.nodes.append(node)
    return eliminate_dead(replace(graph, nodes=tuple(builder.nodes)))


def _straight(builder: GraphBuilder, chain: _Chain, source: Value) -> Value:
    """Emit the nodes of `chain`, which lie between a transposition and attention, once more for `source`, the rows
    before the transposition, batch first; returns the last value."""
    value = source
    for link in chain.links:
        node = link.node
        if node.op == "reshape":
            shape = node.output.shape
            transposed = shape if len(shape) == 2 else (shape[1], shape[0], *shape[2:])
            value = ops.emit1(builder, "reshape", value, shape=dims(transposed))
        else:
            inputs = [value if k == link.place else v for k, v in enumerate(node.inputs)]
            value = ops.emit1(builder, node.op, *inputs, attrs=node.attrs)
    return value


class _Walker:
    """Finds chains of nodes that treat rows alike, between a transposition and an input or the result of attention."""

    def __init__(self, graph: Graph) -> None:
        self.producers = {v: n for n in graph.nodes for v in n.outputs}
        self.users = graph.consumers()
        self.outputs = set(graph.outputs)

    def operands(self, node: Node) -> dict[Value, _Chain]:
        """For each operand of an attention node the chain from a transposition to it, if there is one."""
        order = node.of(AttentionAttrs).order
        letters = {v: {c for w, c in zip(node.inputs, order[:3], strict=False) if w == v} for v in node.inputs[:3]}
        result = {}
        for value, used in letters.items():
            chain = self.back(value, node) if value is not None and used == {POSITIONS_FIRST} else None
            if value is not None and chain is not None and value not in node.inputs[3:]:
                result[value] = chain
        return result

    def back(self, value: Value, reader: Node) -> _Chain | None:
        """The chain that ends with `value` [S, B, ...], if `reader` is its only reader; None if there is none."""
        rows, last, links = value.shape[:2], value, list[_Link]()
        while self.is_private(value, reader):
            node = self.producers.get(value)
            if node is None:
                return None
            if node.op == "transpose" and node.of(TransposeAttrs).perm == SWAP and node.inputs[0] is not None:
                return _Chain(node.inputs[0], tuple(reversed(links)), last)
            place = _place(node, rows)
            if place is None:
                return None
            links.append(_Link(node, place))
            source = node.inputs[place]
            assert source is not None
            value, reader = source, node
        return None

    def result(self, node: Node) -> _Chain | None:
        """The chain from attention's result to a transposition; None if there is none."""
        if node.of(AttentionAttrs).order[3] != POSITIONS_FIRST:
            return None
        value, rows, links = node.output, node.output.shape[:2], list[_Link]()
        while (users := self.users.get(value, [])) and len(users) == 1 and value not in self.outputs:
            (user,) = users
            if user.op == "transpose" and user.of(TransposeAttrs).perm == SWAP and _leads(value.shape, rows):
                return _Chain(node.output, tuple(links), user.output)
            place = _place(user, rows)
            if place is None or user.inputs[place] != value or user.inputs.count(value) > 1:
                return None
            links.append(_Link(user, place))
            value = user.outputs[0]
        return None

    def is_private(self, value: Value, reader: Node) -> bool:
        return value not in self.outputs and all(user is reader for user in self.users.get(value, []))


def _place(node: Node, rows: Sequence[Expr]) -> int | None:
    """The number of the input through which rows pass the node, if it treats all rows alike; None if it mixes rows.
    Rows are the two first dimensions, or one dimension that is their product."""
    if len(node.outputs) != 1 or not node.inputs or any(v is None for v in node.inputs):
        return None
    shapes = [v.shape for v in node.inputs if v is not None]
    if node.op == "reshape":
        return 0 if _is_rows(shapes[0], rows) and _is_rows(node.output.shape, rows) else None
    if ops.get(node.op).kind not in ("pointwise", "contraction") or not _is_rows(node.output.shape, rows):
        return None
    links = parallel(node)[: 1 if node.output.type.rank == 2 else 2]
    places = {k for own in links if own is not None for k, link in enumerate(own) if link is not None}
    if None in links or len(places) != 1:
        return None
    (place,) = places
    straight = [own[place] for own in links if own is not None] == list(range(len(links)))
    return place if straight and _is_rows(shapes[place], rows) else None


def _is_rows(shape: Sequence[Expr], rows: Sequence[Expr]) -> bool:
    """Whether the leading dimensions of a shape are `rows`: as two dimensions, or as one product in a matrix."""
    return _leads(shape, rows) or (len(shape) == 2 and prove_equal(shape[0], rows[0] * rows[1]))


def _leads(shape: Sequence[Expr], rows: Sequence[Expr]) -> bool:
    return len(shape) > 2 and all(a is b or prove_equal(a, b) for a, b in zip(shape[:2], rows, strict=True))
