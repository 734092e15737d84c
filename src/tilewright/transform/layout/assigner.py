"""The facts that layout assignment knows of every value: its row-major form, its channel-blocked form, whether it is a
weight.

The rules that rewrite nodes are in the other files of this folder, one file per kind of operator; `assign.py` applies
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import Any

from tilewright import ops
from tilewright.ir.attributes import Attrs, Dim
from tilewright.ir.expr import as_int, const, is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.transform.graph.fixed import depends_on_weights

SHORT_PIXELS = 8
"""The number of pixels of a result below which packing weights costs as much as it saves."""


@dataclass(slots=True)
class Assigner:
    graph: Graph
    target: Target
    builder: GraphBuilder = field(init=False)
    row_major: dict[Value, Value] = field(default_factory=dict)
    blocked: dict[Value, Value] = field(default_factory=dict)
    columns: dict[Value, Value] = field(default_factory=dict)
    joined: dict[Value, Value] = field(default_factory=dict)
    inside: frozenset[Value] = frozenset()
    readers: Mapping[Value, Sequence[Node]] = field(default_factory=dict)
    fixed: set[Value] = field(default_factory=set)
    producers: dict[Value, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.builder = GraphBuilder(self.graph.name)
        used_names = {v.name for n in self.graph.nodes for v in n.outputs}
        self.builder.reserved = used_names | {v.name for v in (*self.graph.inputs, *self.graph.params)}
        self.row_major.update((v, v) for v in (*self.graph.inputs, *self.graph.params))
        self.fixed.update(self.graph.params)
        self.producers.update((v, n) for n in self.graph.nodes for v in n.outputs)

    @property
    def block(self) -> int:
        return self.target.vector_bits // 32

    def block_of(self, value: Value) -> int:
        """The channels of a block for a value: on a GPU all of them, else a vector's."""
        return self.block if self.target.gpu is None else as_int(value.shape[1]) or 0

    def producer(self, value: Value) -> Node | None:
        """The node of the graph that makes a value; None for inputs and weights."""
        return self.producers.get(value)

    def visit(self, node: Node) -> None:
        """Note whether the node depends on weights alone."""
        if depends_on_weights(node.inputs, self.fixed):
            self.fixed.update(node.outputs)

    def follow(self, source: Value, *created: Value) -> None:
        """Note that the values `created` depend on weights alone if `source`, from which they were made, does."""
        if source in self.fixed:
            self.fixed.update(created)

    def packs(self, w: Value, y: Value) -> bool:
        """Whether a convolution's weights are packed: always if `prepare` does it; weights that come with each call (in
        training, or gradients of weights) if the result `y` has enough pixels."""
        pixels = [as_int(d) for d in (y.shape[0], *y.shape[2:])]
        return w in self.fixed or None in pixels or prod(d or 0 for d in pixels) >= SHORT_PIXELS

    def finish(self) -> Graph:
        graph = self.graph
        outputs = tuple(self.as_row_major(v) for v in graph.outputs)
        return replace(graph, nodes=tuple(self.builder.nodes), outputs=outputs)

    # -- the two forms of a value --------------------------------------------------------------------------------

    def as_row_major(self, value: Value) -> Value:
        if value not in self.row_major and value in self.columns:
            self.row_major[value] = self.as_rows(value)
        if value not in self.row_major and value in self.joined:
            (self.row_major[value],) = self.emit("reshape", (self.joined[value],), {"shape": value.shape}, value.name)
        if value not in self.row_major:
            self.row_major[value] = self.unblocked(self.blocked[value], value)
        return self.row_major[value]

    def unblocked(self, form: Value, value: Value) -> Value:
        """Emit the row-major form of `value` from its blocked form."""
        if self.is_one_block(value):
            return self.emit("reshape", (form,), {"shape": value.shape}, value.name)[0]
        return self.emit("lowered.unblock_channels", (form,), {"channels": as_int(value.shape[1])}, value.name)[0]

    def is_one_block(self, value: Value) -> bool:
        """Whether a value's channels as one block lie in the same memory as unblocked: on a GPU, with one channel or
        one pixel."""
        single = is_const(value.shape[1], 1) or all(is_const(d, 1) for d in value.shape[2:])
        return self.target.gpu is not None and single

    def as_rows(self, value: Value) -> Value:
        """Emit the row-major form of a value that lies in blocks of columns, `[n, C/b, R/n, 1, b]`."""
        form = self.columns[value]
        parts, count, rows, _, block = form.shape
        (split,) = self.emit("reshape", (form,), {"shape": (parts, count, rows, block)}, f"{value.name}_blocks")
        (transposed,) = self.emit("transpose", (split,), {"perm": (0, 2, 1, 3)}, f"{value.name}_rows")
        return self.emit("reshape", (transposed,), {"shape": value.shape}, value.name)[0]

    def as_blocked(self, value: Value) -> Value:
        if value not in self.blocked and (spread := self.spread(value)) is not None:
            self.blocked[value] = spread
        if value not in self.blocked and self.is_one_block(value):
            images, channels, *space = value.shape
            shape = (images, const(1), *space, channels)
            source = self.as_row_major(value)
            (self.blocked[value],) = self.emit("reshape", (source,), {"shape": shape}, f"{value.name}_blocked")
            self.follow(value, self.blocked[value])
        if value not in self.blocked:
            (self.blocked[value],) = self.emit(
                "lowered.block_channels",
                (self.as_row_major(value),),
                {"block": self.block_of(value)},
                f"{value.name}_blocked",
            )
        return self.blocked[value]

    def spread(self, value: Value) -> Value | None:
        """The blocked form of a broadcast of one element per channel: the few elements are blocked before they are
        broadcast. None for other values."""
        producer = self.producer(value)
        if producer is None or producer.op != "broadcast" or value.type.rank != 4:
            return None
        source, (images, channels, *sides) = producer.inputs[0], value.shape
        assert source is not None
        if source.type.rank != 4 or source.shape[1] is not channels or as_int(channels) in (None, 1):
            return None
        if not all(is_const(source.shape[k], 1) for k in (0, 2, 3)):
            return None
        fewer = self.as_blocked(source)
        shape = (images, fewer.shape[1], *sides, fewer.shape[4])
        return self.emit("broadcast", (fewer,), {"shape": shape}, f"{value.name}_blocked")[0]

    def emit(
        self, op: str, inputs: tuple[Value | None, ...], attrs: Attrs | dict[str, Any], name: str
    ) -> tuple[Value, ...]:
        created = attrs if isinstance(attrs, Attrs) else ops.attributes(op, attrs)
        return ops.emit(self.builder, op, *inputs, names=(name,), attrs=created)

    def derive(self, op: str, *inputs: Value, name: str = "", **attrs: object) -> Value:
        """Emit an operator and return its value, named after the operator by default. The value counts as depending on
        weights alone if all inputs do."""
        (value,) = self.emit(op, inputs, attrs, name or op)
        if depends_on_weights(inputs, self.fixed):
            self.fixed.add(value)
        return value

    def longer(self, x: Value, axis: int, more: Dim) -> Value:
        """Emit `x` with `more` zeros at the end of an axis."""
        rank = x.type.rank
        after = tuple(more if k == axis else 0 for k in range(rank))
        return self.derive("pad", x, before=(0,) * rank, after=after, mode="constant", value=0)

    def keep(self, node: Node) -> None:
        inputs = tuple(None if v is None else self.as_row_major(v) for v in node.inputs)
        self.builder.nodes.append(replace(node, inputs=inputs, selected=None))
        self.row_major.update((v, v) for v in node.outputs)

    def is_blocked(self, value: Value) -> bool:
        return value in self.blocked and value not in self.row_major
