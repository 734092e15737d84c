"""Graph clean-up: one of each computation, nothing unused, scales moved into weights.

    y = conv(x, w) * a + b        ->      y = conv(x, w * a) + b          (a, b depend on weights alone)
    y = conv(x / 255, w)          ->      y = conv(x, w / 255)

The new weight-only nodes move to `prepare` later, so batch normalisation costs nothing in `run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright import ops
from tilewright.ir.attributes import Attrs, AttrValue, ConstantArray
from tilewright.ir.expr import const, is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.shape import ConstantAttrs, TransposeAttrs
from tilewright.transform.graph.fixed import depends_on_weights
from tilewright.transform.graph.memory import places


def eliminate_dead(graph: Graph) -> Graph:
    """Drop nodes that no output needs. Parameters and inputs stay: they are the model's interface."""
    kept = graph.needed()
    return graph if len(kept) == len(graph.nodes) else _with_nodes(graph, kept, graph.outputs)


def eliminate_common(graph: Graph) -> Graph:
    """Compute equal nodes once. A graph's outputs keep their own names."""
    seen: dict[tuple[object, ...], Node] = {}
    renamed: dict[Value, Value] = {}
    nodes: list[Node] = []
    protected = set(graph.outputs)
    for node in graph.nodes:
        node = _renamed(node, renamed)
        identity = (node.op, node.inputs, node.attrs, tuple(v.type for v in node.outputs))
        first = seen.setdefault(identity, node)
        if first is node or any(v in protected for v in node.outputs):
            nodes.append(node)
        else:
            renamed.update(zip(node.outputs, first.outputs, strict=True))
    return graph if len(nodes) == len(graph.nodes) else _with_nodes(graph, tuple(nodes), graph.outputs)


def fold_constants(graph: Graph) -> Graph:
    """Constants of other types and shapes become constants themselves: a number stands in the code that uses it."""
    constants: dict[Value, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        source = constants.get(node.inputs[0]) if node.op in FOLDED and node.inputs[0] is not None else None
        if source is not None and all(is_const(d) for d in node.output.shape):
            (array,) = ops.get(node.op).reference([source.of(ConstantAttrs).value.array], node.attrs)
            node = Node("constant", (), node.outputs, ConstantAttrs(ConstantArray(array)))
        if node.op == "constant":
            constants[node.output] = node
        nodes.append(node)
    return graph if nodes == list(graph.nodes) else _with_nodes(graph, tuple(nodes), graph.outputs)


FOLDED = ("cast", "reshape")
"""What is done to constants beforehand."""


def remove_identities(graph: Graph) -> Graph:
    """Drop reshapes to the same shape, and to the shape before another reshape, transposes that permute nothing, and
    the like."""
    renamed: dict[Value, Value] = {}
    reshaped: dict[Value, Value] = {}
    nodes: list[Node] = []
    protected = set(graph.outputs)
    for node in graph.nodes:
        node = _renamed(node, renamed)
        source = node.inputs[0] if node.inputs else None
        if node.op == "reshape" and source is not None:
            before = reshaped[node.output] = reshaped.get(source, source)
            source = before if before.type == node.output.type else source
        if _is_identity(node, source) and node.output not in protected:
            assert source is not None
            renamed[node.output] = source
        else:
            nodes.append(node)
    return graph if len(nodes) == len(graph.nodes) else _with_nodes(graph, tuple(nodes), graph.outputs)


def _is_identity(node: Node, source: Value | None) -> bool:
    """Whether a node gives what `source` is."""
    if len(node.outputs) != 1 or source is None or source.type != node.output.type:
        return False
    if node.op in ("reshape", "identity", "stop_gradient", "surrogate", "broadcast", "cast"):
        return True
    return node.op == "transpose" and node.of(TransposeAttrs).perm == tuple(range(node.output.type.rank))


def fold_scales(graph: Graph) -> Graph:
    """Move a per-channel factor after a convolution into its weights (see the module's text)."""
    return _ScaleFolder(graph).run()


class _ScaleFolder:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = graph.consumers()
        self.outputs = set(graph.outputs)
        self.builder = GraphBuilder(graph.name)
        self.builder.taken = {v.name for n in graph.nodes for v in n.outputs}
        self.builder.taken |= {v.name for v in (*graph.inputs, *graph.params)}
        self.fixed: set[Value] = set(graph.params)
        self.made: dict[Value, Node] = {}
        self.renamed: dict[Value, Value] = {}
        self.changed = False

    def run(self) -> Graph:
        for original in self.graph.nodes:
            node = _renamed(original, self.renamed)
            if depends_on_weights(node.inputs, self.fixed):
                self.fixed.update(node.outputs)
            replacement = self.fold(node, original)
            if replacement is not None:
                self.renamed[original.output] = replacement
                self.changed = True
            else:
                self.append(node)
        if not self.changed:
            return self.graph
        outputs = tuple(self.renamed.get(v, v) for v in self.graph.outputs)
        return eliminate_dead(_with_nodes(self.graph, tuple(self.builder.nodes), outputs))

    def append(self, node: Node) -> None:
        self.builder.nodes.append(node)
        self.made.update((v, node) for v in node.outputs)

    def emit(self, op: str, *inputs: Value | None, like: str, attrs: Attrs | None = None, **values: AttrValue) -> Value:
        value = ops.emit1(self.builder, op, *inputs, name=like, attrs=attrs, **values)
        if depends_on_weights(inputs, self.fixed):
            self.fixed.add(value)
        self.made[value] = self.builder.nodes[-1]
        return value

    def fold(self, node: Node, original: Node) -> Value | None:
        if node.op == "conv":
            return self.scale_weights(node, original)
        if node.op not in ("mul", "add", "sub") or original.output in self.outputs:
            return None
        if node.op == "sub":
            return self.add_negated(node, original)
        split = self.operands(node)
        if split is None:
            return None
        data, factor = split
        producer = self.made.get(data)
        if producer is None or not self.single_use(original, data):
            return None
        if node.op == "add":
            return self.add_to_sum(node, producer, factor)
        if producer.op == "conv":
            return self.scale_conv(node, producer, factor)
        if producer.op == "add":
            return self.scale_sum(node, producer, factor)
        return None

    def add_negated(self, node: Node, original: Node) -> Value | None:
        """(conv - m) * a to (conv + -m) * a, as a hand-written normalisation begins."""
        data, taken = node.inputs
        assert data is not None and taken is not None
        producer = self.made.get(data)
        if producer is None or producer.op != "conv" or self.operands(node) != (data, taken):
            return None
        if [user.op for user in self.users.get(original.output, [])] != ["mul"]:
            return None
        return self.emit("add", data, self.emit("neg", taken, like=taken.name), like=node.output.name)

    def scale_weights(self, node: Node, original: Node) -> Value | None:
        """`conv(x / 255, w)` to `conv(x, w / 255)`: one factor for all of the data is the weights' as well."""
        x, w, *rest = node.inputs
        assert x is not None and w is not None
        producer = self.made.get(x)
        if producer is None or producer.op not in ("mul", "div") or w not in self.fixed or not w.dtype.is_float:
            return None
        data, factor = producer.inputs
        assert data is not None and factor is not None
        if producer.op == "mul" and data in self.fixed:
            data, factor = factor, data
        if factor not in self.fixed or data in self.fixed or factor.type.rank > w.type.rank:
            return None
        uniform = all(is_const(d, 1) for d in factor.shape)
        if not uniform or data.shape != x.shape or x.dtype is not w.dtype or not self.single_use(original, x):
            return None
        scaled = self.emit(producer.op, w, factor, like=f"{w.name}_scaled")
        return self.emit("conv", data, scaled, *rest, like=node.output.name, attrs=node.attrs)

    def operands(self, node: Node) -> tuple[Value, Value] | None:
        """(full-size operand, per-channel operand that depends on weights alone)."""
        a, b = node.inputs
        assert a is not None and b is not None
        for data, factor in ((a, b), (b, a)):
            if factor in self.fixed and data not in self.fixed and _per_channel(factor, data):
                return data, factor
        return None

    def single_use(self, original: Node, data: Value) -> bool:
        sources = [v for v in original.inputs if v is not None and self.renamed.get(v, v) == data]
        return all(len(self.users.get(v, [])) == 1 and v not in self.outputs for v in sources)

    def scale_conv(self, node: Node, conv: Node, factor: Value) -> Value | None:
        weights = conv.inputs[1]
        if weights not in self.fixed or weights is None:
            return None
        shape = (weights.shape[0], *(const(1) for _ in weights.shape[1:]))
        column = self.emit("reshape", self.spread(factor, conv), like="scale", shape=shape)
        scaled = self.emit("mul", weights, column, like=f"{weights.name}_scaled")
        return self.emit("conv", conv.inputs[0], scaled, like=node.output.name, attrs=conv.attrs)

    def spread(self, factor: Value, conv: Node) -> Value:
        """A scalar factor as one value a channel."""
        if all(is_const(d, 1) for d in factor.shape):
            channels = conv.output.shape[1]
            return self.emit(
                "broadcast",
                self.emit("reshape", factor, like="scale", shape=(const(1),)),
                like="scale",
                shape=(channels,),
            )
        return factor

    def scale_sum(self, node: Node, total: Node, factor: Value) -> Value | None:
        """(conv + c) * a -> conv * a + c * a."""
        parts = self.operands(total)
        if parts is None:
            return None
        data, offset = parts
        producer = self.made.get(data)
        if producer is None or producer.op != "conv" or len(self.users.get(data, [])) > 1:
            return None
        scaled = self.scale_conv(node, producer, factor)
        if scaled is None:
            return None
        return self.emit("add", scaled, self.emit("mul", offset, factor, like="offset"), like=node.output.name)

    def add_to_sum(self, node: Node, total: Node, offset: Value) -> Value | None:
        """(y + b) + c -> y + (b + c)."""
        if total.op != "add":
            return None
        parts = self.operands(total)
        if parts is None:
            return None
        return self.emit("add", parts[0], self.emit("add", parts[1], offset, like="offset"), like=node.output.name)


def _per_channel(factor: Value, data: Value) -> bool:
    """Shape [1, C, 1, ...] or [C, 1, ...] aligned right, or all ones, against [N, C, ...]."""
    rank = data.type.rank
    if rank < 3 or factor.type.rank > rank or factor.dtype is not data.dtype:
        return False
    lead = rank - factor.type.rank
    for i, dim in enumerate(factor.shape):
        if lead + i == 1 and dim is data.shape[1]:
            continue
        if not is_const(dim, 1):
            return False
    return True


def materialize_outputs(graph: Graph, *, share_params: bool = False) -> Graph:
    """Give every output memory of its own: outputs that are inputs, parameters, aliases or twice the same are copied.
    So are numbers that loop programs read, which take them from memory (`_in_memory`).

    With `share_params` an output may be a parameter seen with another shape.
    """
    graph = _in_memory(graph)
    sources = {v: place.base for v, place in places(graph.nodes).items()}
    taken: set[Value] = {*graph.inputs, *(() if share_params else graph.params)}
    shared = set(graph.params) if share_params else set()
    constants = {v for n in graph.nodes if n.op == "constant" for v in n.outputs}
    builder = GraphBuilder(graph.name)
    builder.taken = {v.name for n in graph.nodes for v in n.outputs} | {v.name for v in taken}
    builder.nodes = list(graph.nodes)
    outputs = []
    for value in graph.outputs:
        root = value
        while root in sources:
            root = sources[root]
        if root in taken or root in constants:
            value = root = ops.emit1(builder, "identity", value, name=f"{value.name}_copy")
        if root not in shared:
            taken.add(root)
        outputs.append(value)
    return _with_nodes(graph, tuple(builder.nodes), tuple(outputs)) if outputs != list(graph.outputs) else graph


def _in_memory(graph: Graph) -> Graph:
    """Numbers that loop programs and checks read, copied: constants are a part of their readers' code, which those have
    no place for. Others were made parameters (`numbers.py: hoist_constants`); these came of passes after it."""
    constants = {v for n in graph.nodes if n.op == "constant" for v in n.outputs}
    sources = {v: place.base for v, place in places(graph.nodes).items()}
    builder = GraphBuilder(graph.name)
    builder.taken = {v.name for n in graph.nodes for v in n.outputs} | {v.name for v in (*graph.inputs, *graph.params)}
    copies: dict[Value, Value] = {}
    for node in graph.nodes:
        in_memory = ops.get(node.op).loops is not None or node.op == "require"
        for value in node.inputs if in_memory else ():
            root = value
            while root in sources:
                root = sources[root]
            if value is not None and root in constants and value not in copies:
                copies[value] = ops.emit1(builder, "identity", value, name=f"{value.name}_copy")
        builder.nodes.append(_renamed(node, copies if in_memory else {}))
    return replace(graph, nodes=tuple(builder.nodes)) if copies else graph


def _renamed(node: Node, renamed: Mapping[Value, Value]) -> Node:
    if not any(v in renamed for v in node.inputs):
        return node
    return replace(node, inputs=tuple(None if v is None else renamed.get(v, v) for v in node.inputs))


def _with_nodes(graph: Graph, nodes: tuple[Node, ...], outputs: tuple[Value, ...]) -> Graph:
    return replace(graph, nodes=nodes, outputs=outputs)
