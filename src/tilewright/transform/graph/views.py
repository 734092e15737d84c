"""Concatenations and slices without copies: values that stand in a part of another value's memory.

    a = conv(...); b = conv(...)                          a, b = conv(...) straight into their parts of y
    y = concat(a, b, input) {axis = 1}            ->      c = identity(input), likewise
                                                          y = concat(a, b, c) {axis = 1, view = true}
    z = slice(y) {begin = (0, 8, 0), ...}         ->      z = slice(y) {begin = (0, 8, 0), ..., view = true}

If all dimensions before the axis are 1, a part is contiguous. Then the kernel that computes it gets an address in the
middle of the whole, and the concatenation needs no kernel. The attribute `view` says so; the meaning of nodes, for
interpreters and later passes, does not change. `memory.py` computes the addresses.

A part is copied by a separate `identity` if its memory is fixed otherwise: an input, a weight, an output of the graph,
a part of two concatenations or twice of one. The last concatenation is placed first, so that a chain of concatenations
(DenseNet) lies in the memory of the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright import ops
from tilewright.arith import prove_equal, simplify
from tilewright.ir.expr import Expr, as_expr, as_int, const, is_const
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ops.shape import ConcatAttrs, SliceAttrs
from tilewright.support.errors import Problems, VerifyError
from tilewright.transform.graph.fuse import MAX_INPUTS
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rule
from tilewright.transform.regions.captures import builder_for
from tilewright.transform.work import polynomial


def place_views(graph: Graph) -> Graph:
    """Mark concatenations and slices that need no kernel as views: the kernels that compute the parts of a
    concatenation write into its memory. Parts whose memory is fixed otherwise, such as inputs, are copied there."""
    return _Placer(graph).run()


class _Placer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = graph.producers()
        self.users = graph.consumers()
        self.outputs = {self.root(v) for v in graph.outputs}
        self.reserved: set[Value] = set()
        self.copied: dict[Value, set[int]] = {}
        """For the results of concatenations that become views: which of their parts are copied."""

    def run(self) -> Graph:
        for node in reversed(self.graph.nodes):
            if node.op == "concat":
                self.place(node)
            elif node.op == "lowered.append":
                self.place_after(node)
        builder = builder_for(self.graph)
        for node in self.graph.nodes:
            if node.op == "concat" and node.output in self.copied:
                copied = self.copied[node.output]
                parts = [_copy(builder, v) if k in copied else v for k, v in enumerate(node.inputs)]
                node = replace(node, inputs=tuple(parts), attrs=replace(node.of(ConcatAttrs), view=True))
            elif node.op == "lowered.append" and node.output in self.copied:
                node = replace(node, inputs=(node.inputs[0], _copy(builder, node.inputs[1])))
            elif node.op == "slice" and self.is_view(node):
                node = replace(node, attrs=replace(node.of(SliceAttrs), view=True))
            builder.nodes.append(node)
        nodes = tuple(builder.nodes)
        graph = self.graph
        return graph if nodes == graph.nodes else replace(graph, nodes=nodes)

    def root(self, value: Value) -> Value:
        """The value in whose memory `value` lies: the operand of the reshapes that compute it, or `value` itself."""
        while (node := self.makers.get(value)) is not None and ops.get(node.op).alias:
            source = node.inputs[0]
            assert source is not None
            value = source
        return value

    def place(self, node: Node) -> None:
        """Let the kernels that compute a concatenation's operands write into its result, if that moves fewer bytes than
        a copy of all."""
        axis = node.of(ConcatAttrs).axis % node.output.type.rank
        if not all(is_const(d, 1) for d in node.output.shape[:axis]):
            return
        parts = [v for v in node.inputs if v is not None]
        if any(polynomial(v.type.size) is None for v in parts):
            return
        roots = [self.root(v) for v in parts]
        copied = {k for k, root in enumerate(roots) if root in roots[:k] or not self.is_free(root)}
        moves = COPIES if len(parts) <= MAX_INPUTS else UNMADE
        moved = copied | {k for k, root in enumerate(roots) if k not in copied and self.makers[root].op in moves}
        if self.pays(node, parts, moved):
            self.reserved.update(root for k, root in enumerate(roots) if k not in copied)
            self.copied[node.output] = copied

    def place_after(self, node: Node) -> None:
        """Let the new rows of a cache be computed in their place after the old ones; if they cannot be, mark them to be
        copied there."""
        new = node.inputs[1]
        assert new is not None
        root = self.root(new)
        if self.is_free(root):
            self.reserved.add(root)
        else:
            self.copied[node.output] = {1}

    def is_free(self, root: Value) -> bool:
        """Whether the memory of a value may still be chosen."""
        producer = self.makers.get(root)
        return (
            producer is not None
            and producer.op != "constant"
            and root not in self.outputs
            and root not in self.reserved
        )

    def pays(self, node: Node, parts: list[Value], moved: set[int]) -> bool:
        """Whether copying only the `moved` parts, each in a separate kernel, beats one kernel that copies all parts.
        The latter could include the pointwise work that follows."""
        if len(moved) == len(parts):
            return False
        users = self.users.get(node.output, ())
        fused = bool(users) and all(ops.get(n.op).kind == "pointwise" for n in users) and len(parts) <= MAX_INPUTS
        if not moved or (len(moved) == 1 and not fused):
            return True
        sizes = [as_int(v.type.size) for v in parts]
        known = [1 if None in sizes or n is None else n for n in sizes]  # symbolic: parts are taken to be alike
        here = sum(known[k] for k in moved)
        return here * (4 if fused else 2) <= sum(known)

    def is_view(self, node: Node) -> bool:
        """Whether a slice can be a view: it is contiguous in its source, and its result need not lie elsewhere."""
        (source,) = node.inputs
        assert source is not None
        producer = self.makers.get(self.root(source))
        if (
            node.output in self.outputs
            or node.output in self.reserved
            or (producer is not None and producer.op == "constant")
        ):
            return False
        sizes = (*node.of(SliceAttrs).begin, node.output.type.size)  # where the piece begins, in rows and in elements
        return _is_contiguous(node, source) and all(polynomial(as_expr(d)) is not None for d in sizes)


COPIES = ("slice", "identity", "transpose")
"""Operators whose kernels only move elements: if one computes a part of a concatenation, that part is copied in any
case."""
UNMADE = ("slice", "identity")
"""Operators whose own kernels a kernel that copies all parts replaces. A transposition needs its own kernel if there
are so many parts that this kernel includes no other work: then it writes its part directly, or for a copy."""


def _copy(builder: GraphBuilder, value: Value | None) -> Value:
    assert value is not None
    return ops.emit1(builder, "identity", value, name=f"{value.name}_part")


def _is_contiguous(node: Node, source: Value) -> bool:
    """Whether the elements of a slice are contiguous: it takes one element along each dimension before some dimension,
    and all elements along the dimensions after it."""
    if any(step != 1 for step in node.of(SliceAttrs).step):
        return False
    sizes = node.output.shape
    first = next((k for k, size in enumerate(sizes) if not is_const(size, 1)), len(sizes))
    inner = zip(sizes[first + 1 :], source.shape[first + 1 :], strict=True)
    return all(size is d or prove_equal(size, d) for size, d in inner)


def verify_views(graph: Graph) -> None:
    """Check views: slices without steps, and concatenations along the first dimension that is not 1 whose parts nodes
    of the graph compute, each for this place alone. Raises VerifyError."""
    problems = Problems()
    for where, problem in _view_problems(graph):
        problems.add(VerifyError(problem, where=where))
    problems.raise_if_any(where=f"graph {graph.name!r}", kind=VerifyError)
    for body in (body for node in graph.nodes for body in node.bodies):
        verify_views(body)


def _view_problems(graph: Graph) -> Iterator[tuple[str, str]]:
    makers = graph.producers()

    def root(value: Value | None) -> Value | None:
        while value is not None and value in makers and ops.get(makers[value].op).alias:
            value = makers[value].inputs[0]
        return value

    parts = {root(v) for v in graph.outputs}
    for i, node in enumerate(graph.nodes):
        where = f"node {i} ({node.op})"
        match node.attrs:
            case SliceAttrs(view=True, step=steps) if any(step != 1 for step in steps):
                yield where, "is a view with steps"
            case ConcatAttrs(view=True, axis=axis):
                if not all(is_const(d, 1) for d in node.output.shape[: axis % node.output.type.rank]):
                    yield where, "is a view whose parts are no single pieces of memory"
                for value in map(root, node.inputs):
                    if value is None or not _has_memory(makers.get(value)):
                        yield where, f"has a part without memory of its own: {value.name if value else None!r}"
                    elif value in parts:
                        yield where, f"has a part that stands elsewhere: {value.name!r}"
                    parts.add(value)


def _has_memory(created: Node | None) -> bool:
    """Whether the memory of the result of `created` may be chosen: it is neither a constant nor a view."""
    if created is None or created.op == "constant":
        return False
    return not (isinstance(created.attrs, SliceAttrs) and created.attrs.view)


def _joined(m: Match) -> Value | None:
    """Emit a concatenation in which neighbouring slices of one value are joined into one slice, or the value itself if
    they cover it."""
    axis = m.node.of(ConcatAttrs).axis % m.node.output.type.rank
    runs: list[list[Node | Value]] = []
    for value in m.node.inputs:
        assert value is not None
        producer = m.rewriter.producer(value, "slice")
        last = runs[-1][-1] if runs else None
        if producer is not None and isinstance(last, Node) and _follows(producer, last, axis):
            runs[-1].append(producer)
        else:
            runs.append([producer if producer is not None and _cuts(producer, axis) else value])
    if len(runs) == len(m.node.inputs):
        return None
    parts = [_merged(m, run, axis) for run in runs]
    return parts[0] if len(parts) == 1 else m.emit("concat", *parts, attrs=m.node.attrs)


JOIN_SLICES = Rule(op("concat"), _joined)
"""Join slices that are concatenated in their old order: concat(x[0:8], x[8:16], y) becomes concat(x, y)."""


def _cuts(node: Node, axis: int) -> bool:
    """Whether a slice takes all of every dimension but `axis`."""
    if any(step != 1 for step in node.of(SliceAttrs).step):
        return False
    source = node.inputs[0]
    assert source is not None
    shapes = zip(node.output.shape, source.shape, strict=True)
    return all(k == axis or size is d or prove_equal(size, d) for k, (size, d) in enumerate(shapes))


def _follows(node: Node, before: Node, axis: int) -> bool:
    if not _cuts(node, axis) or node.inputs != before.inputs:
        return False
    return prove_equal(as_expr(node.of(SliceAttrs).begin[axis]), _end(before, axis))


def _end(node: Node, axis: int) -> Expr:
    return as_expr(node.of(SliceAttrs).begin[axis]) + node.output.shape[axis]


def _merged(m: Match, run: list[Node | Value], axis: int) -> Value:
    first, last = run[0], run[-1]
    if isinstance(first, Value):
        return first
    assert isinstance(last, Node)
    source, begin = first.inputs[0], first.of(SliceAttrs).begin
    assert source is not None
    if len(run) == 1:
        return first.output
    if prove_equal(as_expr(begin[axis]), const(0)) and prove_equal(_end(last, axis), source.shape[axis]):
        return source
    size = list(source.shape)
    size[axis] = simplify(_end(last, axis) - as_expr(begin[axis]))
    return m.emit("slice", source, begin=begin, size=tuple(size), step=(1,) * len(size))
