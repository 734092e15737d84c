"""Assign layouts: pack weights for the register tiles that will read them, block channels where convolutions want it.

    y = conv(x, w)        ->   xb = block_channels(x);  p = pack_conv(w);  yb = conv_blocked(xb, p);  y = unblock(yb)
    y = matmul(x, w)      ->   p = pack_matmul(w);  y = matmul_packed(x, p)

Conversions are made on demand and once; pointwise operators, pooling, global reductions and concatenation work on the
blocked form directly, so between convolutions none remain. Packing depends on weights alone, hence moves to `prepare`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilewright import ops
from tilewright.ir.expr import as_int, const, is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.ir.target import Target
from tilewright.plans.tiles import conv_tile, matmul_tile


def assign_layouts(graph: Graph, target: Target) -> Graph:
    """The graph with packed weights and blocked channels; dead conversions are left to dead code elimination."""
    return _Assigner(graph, target).run()


@dataclass(slots=True)
class _Assigner:
    graph: Graph
    target: Target
    builder: GraphBuilder = field(init=False)
    plain: dict[Value, Value] = field(default_factory=dict)
    blocked: dict[Value, Value] = field(default_factory=dict)
    fixed: set[Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.builder = GraphBuilder(self.graph.name)
        taken = {v.name for n in self.graph.nodes for v in n.outputs}
        self.builder.taken = taken | {v.name for v in (*self.graph.inputs, *self.graph.params)}

    @property
    def block(self) -> int:
        return self.target.vector_bits // 32

    def run(self) -> Graph:
        graph = self.graph
        for value in (*graph.inputs, *graph.params):
            self.plain[value] = value
        self.fixed.update(graph.params)
        rules: dict[str, Callable[[Node], bool]] = {
            "conv": self.conv,
            "matmul": self.matmul,
            "concat": self.concat,
            "max_pool": self.pool,
            "avg_pool": self.pool,
            "reduce_mean": self.reduce,
        }
        for node in graph.nodes:
            present = [v for v in node.inputs if v is not None]
            if all(v in self.fixed for v in present):
                self.fixed.update(node.outputs)
            rule = rules.get(node.op)
            if rule is None and ops.get(node.op).kind == "pointwise":
                rule = self.pointwise
            if rule is None or not rule(node):
                self.keep(node)
        outputs = tuple(self.as_plain(v) for v in graph.outputs)
        return Graph(graph.name, graph.inputs, graph.params, tuple(self.builder.nodes), outputs)

    # -- the two forms of a value --------------------------------------------------------------------------------

    def as_plain(self, value: Value) -> Value:
        if value not in self.plain:
            channels = as_int(value.shape[1])
            (self.plain[value],) = self.emit(
                "unblock_channels", (self.blocked[value],), {"channels": channels}, value.name
            )
        return self.plain[value]

    def as_blocked(self, value: Value) -> Value:
        if value not in self.blocked:
            (self.blocked[value],) = self.emit(
                "block_channels", (self.as_plain(value),), {"block": self.block}, f"{value.name}_blocked"
            )
        return self.blocked[value]

    def emit(self, op: str, inputs: tuple[Value | None, ...], attrs: dict[str, Any], name: str) -> tuple[Value, ...]:
        types = ops.infer(op, [None if v is None else v.type for v in inputs], attrs)
        return self.builder.node(op, inputs, types, attrs, (name,))

    def keep(self, node: Node) -> None:
        inputs = tuple(None if v is None else self.as_plain(v) for v in node.inputs)
        self.builder.nodes.append(Node(node.op, inputs, node.outputs, node.attrs))
        self.plain.update((v, v) for v in node.outputs)

    def is_blocked(self, value: Value) -> bool:
        return value in self.blocked and value not in self.plain

    # -- rules: True when the node was rewritten ----------------------------------------------------------------------

    def matmul(self, node: Node) -> bool:
        """The right operand is packed into panels: once in `prepare` if it is a weight, else by a small kernel."""
        x, w = node.inputs[:2]
        assert x is not None and w is not None
        if w.type.rank < 2 or x.type.rank < max(2, w.type.rank) or node.attr("transpose_a", False):
            return False
        if not w.dtype.is_float or x.dtype is not node.output.dtype or x.dtype is not w.dtype:
            return False
        transpose = bool(node.attr("transpose_b", False))
        k, n = (w.shape[-1], w.shape[-2]) if transpose else (w.shape[-2], w.shape[-1])
        lead = x.type.rank - w.type.rank
        batch = zip(x.shape[lead:-2], w.shape[:-2], strict=True)
        if any(is_const(d, 0) for d in (k, n)) or not all(is_const(b, 1) or a is b for a, b in batch):
            return False
        tile = matmul_tile(x.shape[-2], as_int(n) or 64, as_int(k) or 64, w.dtype, self.target)
        (packed,) = self.emit(
            "pack_matmul", (self.as_plain(w),), {"width": tile.width, "transpose": transpose}, f"{w.name}_packed"
        )
        if w in self.fixed:
            self.fixed.add(packed)
        columns = as_int(n)
        (out,) = self.emit(
            "matmul_packed",
            (self.as_plain(x), packed),
            {"columns": n if columns is None else columns},
            node.output.name,
        )
        self.plain[node.output] = out
        return True

    def conv(self, node: Node) -> bool:
        """2-D convolution, one group: blocked output; blocked input when the channels fill their blocks."""
        x, w = node.inputs[:2]
        assert x is not None and w is not None
        channels = [as_int(d) for d in w.shape]
        if x.type.rank != 4 or node.attr("groups", 1) != 1 or w not in self.fixed or None in channels:
            return False
        if x.dtype.name != "f32" or 0 in channels:
            return False
        k, c = channels[0], channels[1]
        assert k is not None and c is not None
        block = self.block if c % self.block == 0 else 1
        tile = conv_tile(node.output.shape, k, self.target)
        attrs = {"block": block, "width": tile.width}
        (packed,) = self.emit("pack_conv", (self.as_plain(w),), attrs, f"{w.name}_packed")
        self.fixed.add(packed)
        source = self.as_blocked(x) if block > 1 else self.as_plain(x)
        attributes = {
            "pads": node.attr("pads"),
            "strides": node.attr("strides"),
            "dilations": node.attr("dilations"),
            "channels": k,
            "out_block": self.block,
        }
        (self.blocked[node.output],) = self.emit("conv_blocked", (source, packed), attributes, node.output.name)
        return True

    def pointwise(self, node: Node) -> bool:
        """Stay blocked if a full-size operand is blocked and the others can follow."""
        if len(node.outputs) != 1 or node.output.type.rank != 4 or as_int(node.output.shape[1]) is None:
            return False
        present = [v for v in node.inputs if v is not None]
        if not any(self.is_blocked(v) for v in present):
            return False
        forms: dict[Value, Value] = {}
        for v in present:
            form = self.follow(v)
            if form is None:
                return False
            forms[v] = form
        inputs = tuple(None if v is None else forms[v] for v in node.inputs)
        attrs = node.attributes
        types = ops.infer(node.op, [None if v is None else v.type for v in inputs], attrs)
        shape = types[0].shape
        block = self.block if as_int(node.output.shape[1]) != 1 else 1
        if not is_const(shape[-1], block):
            return False
        typed = tuple(TensorType(t.dtype, t.shape, f"NCHW{block}c") for t in types)
        (self.blocked[node.output],) = self.builder.node(node.op, inputs, typed, attrs, (node.output.name,))
        return True

    def follow(self, value: Value) -> Value | None:
        """The form of an operand that broadcasts against blocked ones; None if there is none."""
        if value.type.rank == 0 or all(is_const(d, 1) for d in value.shape):
            return self.as_plain(value)
        if value.type.rank > 4 or value.type.rank < 3:
            return None
        if value.type.rank == 3:
            shape = (const(1), *value.shape)
            if as_int(shape[1]) is None:
                return None
            lifted = self.emit("reshape", (self.as_plain(value),), {"shape": shape}, f"{value.name}_4d")[0]
            if value in self.fixed:
                self.fixed.add(lifted)
            return self.emit("block_channels", (lifted,), {"block": self.block}, f"{value.name}_blocked")[0]
        if as_int(value.shape[1]) is None:
            return None
        return self.as_blocked(value)

    def concat(self, node: Node) -> bool:
        """Along channels, when every part fills its blocks."""
        present = [v for v in node.inputs if v is not None]
        if node.attr("axis") != 1 or node.output.type.rank != 4 or not any(self.is_blocked(v) for v in present):
            return False
        counts = [as_int(v.shape[1]) for v in present]
        if any(c is None or c % self.block for c in counts):
            return False
        inputs = tuple(self.as_blocked(v) for v in present)
        (self.blocked[node.output],) = self.emit("concat", inputs, {"axis": 1}, node.output.name)
        return True

    def pool(self, node: Node) -> bool:
        """Windows over the spatial dimensions keep the blocks: the lanes are a third dimension with windows of one."""
        x = node.inputs[0]
        assert x is not None
        if len(node.outputs) != 1 or x.type.rank != 4 or not self.is_blocked(x):
            return False
        (top, left, bottom, right), attrs = node.attr("pads"), node.attributes
        attrs |= {name: (*attrs[name], 1) for name in ("kernel", "strides", "dilations")}
        attrs["pads"] = (top, left, 0, bottom, right, 0)
        (self.blocked[node.output],) = self.emit(node.op, (self.as_blocked(x),), attrs, node.output.name)
        return True

    def reduce(self, node: Node) -> bool:
        """Mean over both spatial dimensions (global average pooling), dimensions kept."""
        x = node.inputs[0]
        assert x is not None
        axes = node.attr("axes")
        if x.type.rank != 4 or not self.is_blocked(x) or axes is None or not node.attr("keepdims", True):
            return False
        if tuple(sorted(a % 4 for a in axes)) != (2, 3):
            return False
        attrs = node.attributes | {"axes": (2, 3)}
        (self.blocked[node.output],) = self.emit(node.op, (self.as_blocked(x),), attrs, node.output.name)
        return True
