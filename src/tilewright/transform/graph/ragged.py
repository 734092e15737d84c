"""Ragged batches: sequences of different lengths, packed row after row instead of padded to the longest.

    x: f32[batch, seq, 64]                      x: f32[1, rows, 64], starts: i64[batch]
    p = softmax(q k')              ->           p = softmax(select(same sequence, q k', -inf))
    y = p v; first = y[:, 0]                    y = p v; first = y[starts]

Operators on single rows (products with weights, norms, pointwise functions) work unchanged on packed rows, which are
one long sequence. Only operators that relate rows must know which sequence each row belongs to: the softmax of
attention, places of rows in their sequence, the first row of each. An input says where each sequence begins. This is
the idea of ByteTransformer's padding-free execution (Zhai et al. 2023), for graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ir.rewrite import fresh_name, substitute, variables
from tilewright.ops.dims import same_dim
from tilewright.runtime.specs import RaggedSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, Problems
from tilewright.support.options import described
from tilewright.transform.regions.captures import builder_for

STARTS = "starts"
"""The name of the input that says at which row each sequence begins."""
ROWS = "rows"
"""The name of the symbol that counts the rows of all sequences."""


@dataclass(frozen=True, slots=True)
class RaggedGraph:
    """A graph on packed rows (those of all sequences one after another), the names of its inputs, and the `spec` by
    which a call packs its arrays."""

    graph: Graph
    inputs: tuple[str, ...]
    spec: RaggedSpec


def check_ragged(ragged: Any) -> None:
    """Raise ModelError unless `ragged` names two symbols."""
    if not isinstance(ragged, tuple) or len(ragged) != 2 or not all(isinstance(name, str) for name in ragged):
        expected = 'two symbols, ("batch", "seq")'
        raise ModelError("the argument makes no sense", where="ragged", expected=expected, got=described(ragged))


def with_ragged(graph: Graph, inputs: Sequence[str], batch: str, length: str) -> RaggedGraph:
    """The graph on packed rows instead of [batch, length, ...].

    Args:
        inputs: the names of the inputs for the user.
        batch, length: the symbols that count sequences, and rows of each.

    Raises ModelError that lists the operators which relate rows in ways that this pass does not know.
    """
    named = {s.name: s for s in graph.used_symbols}
    missing = [n for n in (batch, length) if n not in named]
    if missing:
        known = ", ".join(named) or "none"
        raise ModelError("the model has no such dimension", where=", ".join(missing), expected=f"some of {known}")
    return _Packer(graph, inputs, named[batch], named[length]).run()


class _Packer:
    """Emits the nodes for packed rows. A value is *packed* if the length is in its shape; a value with only the batch
    in its shape has a row for each sequence, as before."""

    def __init__(self, graph: Graph, inputs: Sequence[str], batch: Var, length: Var) -> None:
        self.graph, self.names, self.batch, self.length = graph, inputs, batch, length
        most = None if batch.hi is None or length.hi is None else batch.hi * length.hi
        self.rows = Var(fresh_name(ROWS, {s.name for s in graph.used_symbols}), lo=1, hi=most)
        self.table: dict[Var, Expr] = {batch: const(1), length: self.rows}
        self.builder = builder_for(graph)
        self.starts = Value(self.builder.fresh(STARTS), TensorType(i64, (batch,)))
        self.rewritten: dict[Value, Value] = {}
        self.masked: set[Value] = set()
        """Left operands of products that are zero for each pair of rows of different sequences."""
        self.problems = Problems()

    def run(self) -> RaggedGraph:
        for a in self.graph.assumptions:
            if self.counts(a.condition):
                what = "a condition on the rows of each sequence is more than a range"
                self.problems.add(ModelError(what, where="assumption", got=a))
        for v in self.graph.inputs:
            if self.packed(v) and not self.leads(v):
                expected = f"[{self.batch}, {self.length}, ...] or [{self.length}, ...]"
                self.problems.add(
                    ModelError("rows are not packed", where=f"input {v.name!r}", expected=expected, got=v)
                )
            self.rewritten[v] = self.sized(v)
        for node in self.graph.nodes:
            self.node(node)
        for v in self.graph.outputs:
            if self.packed(v) and not self.leads(v):
                self.problems.add(ModelError("rows of an output are not in order", where=f"output {v.name!r}", got=v))
        self.problems.raise_if_any("the model does not take ragged batches", where=self.graph.name, kind=ModelError)
        inputs = (*(self.rewritten[v] for v in self.graph.inputs), self.starts)
        outputs = tuple(self.value(v) for v in self.graph.outputs)
        graph = replace(self.graph, inputs=inputs, nodes=tuple(self.builder.nodes), outputs=outputs)
        spec = RaggedSpec(self.starts.name, self.rows.name, self.length.lo or 0, self.length.hi)
        return RaggedGraph(graph, (*self.names, self.starts.name), spec)

    # what stands for a value

    def packed(self, v: Value) -> bool:
        return any(self.counts(d) for d in v.shape)

    def counts(self, d: Expr) -> bool:
        """Whether a dimension, or a condition, contains the symbols of batch or length."""
        return self.length in variables(d)

    def leads(self, v: Value) -> bool:
        """Whether rows are the first dimension after the batch, and no other dimension of `v` counts rows or
        sequences."""
        first = [k for k, d in enumerate(v.shape) if self.counts(d)]
        before, after = v.shape[: first[0]], v.shape[first[0] + 1 :]
        alone = len(first) == 1 and not any(self.batch in variables(d) for d in after)
        return alone and same_dim(v.shape[first[0]], self.length) and before in ((), (self.batch,))

    def sized(self, v: Value) -> Value:
        if not self.packed(v):
            return v
        return Value(v.name, replace(v.type, shape=tuple(substitute(d, self.table) for d in v.shape)))

    def value(self, v: Value) -> Value:
        return self.rewritten.get(v, v)

    def emit(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        return ops.emit1(self.builder, op, *inputs, **attrs)

    def number(self, value: Any) -> Value:
        return self.emit("constant", value=ConstantArray(np.asarray(value)))

    # what is known of rows

    @cached_property
    def row(self) -> Value:
        return self.emit("range", start=0, step=1, size=self.rows, dtype=i64)

    @cached_property
    def begun(self) -> Value:
        """Emit a mask [rows, batch]: whether each sequence begins at or before each row."""
        starts = self.emit("reshape", self.starts, shape=(const(1), self.batch))
        return self.emit("le", starts, self.emit("reshape", self.row, shape=(self.rows, const(1))))

    @cached_property
    def position(self) -> Value:
        """Emit the index of each row in its sequence, [rows]."""
        starts = self.emit("select", self.begun, self.starts, self.number(np.int64(0)))
        return self.emit("sub", self.row, self.emit("reduce_max", starts, axes=(1,), keepdims=False))

    @cached_property
    def same(self) -> Value:
        """Emit a mask [rows, rows]: whether two rows belong to one sequence."""
        return self.emit("same_sequence", self.starts, rows=self.rows)

    # operators

    def node(self, node: Node) -> None:
        inputs = [v for v in node.inputs if v is not None]
        if not any(map(self.packed, (*inputs, *node.outputs))):
            arguments = tuple(None if v is None else self.value(v) for v in node.inputs)
            self.builder.nodes.append(replace(node, inputs=arguments))
            return
        rule = _RULES.get(node.op, _by_row)
        result = rule(self, node)
        if result is not None:
            self.rewritten[node.output] = result

    def keep(self, node: Node) -> None:
        """Emit a node's operator on packed rows."""

        def attribute(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(attribute, value))
            return substitute(value, self.table) if isinstance(value, Expr) else value

        inputs = tuple(None if v is None else self.value(v) for v in node.inputs)
        outputs = tuple(map(self.sized, node.outputs))
        self.rewritten.update(zip(node.outputs, outputs, strict=True))
        self.builder.nodes.append(replace(node, inputs=inputs, outputs=outputs, attrs=node.attrs.mapped(attribute)))

    def refuse(self, node: Node, why: str) -> None:
        self.problems.add(ModelError(f"{node.op} {why}", where=f"value {node.outputs[0].name!r}", got=node.outputs[0]))


def _by_row(p: _Packer, node: Node) -> Value | None:
    """The rule of operators that treat rows separately; raises for nodes that mix rows."""
    inputs = [v for v in node.inputs if v is not None]
    axes = _MIXED.get(node.op)
    if ops.get(node.op).kind == "pointwise" or node.op in ("transpose", "reshape", "broadcast"):
        spread = [v for v in inputs if not p.packed(v) and p.batch in {*map(_symbol, v.shape)}]
        if spread:
            p.refuse(node, f"joins rows with one value a sequence, {spread[0].name!r}")
        if node.op in _KEEP_ZEROS and p.value(node.inputs[0] or node.output) in p.masked:
            p.masked.add(p.sized(node.output))
        p.keep(node)
    elif axes is None:
        p.refuse(node, "is not known to treat each row alone")
    elif any(p.counts(d) or p.batch in variables(d) for d in axes(node)):
        p.refuse(node, "goes along rows or sequences")
    else:
        p.keep(node)
    return None


def _symbol(d: Expr) -> Expr | None:
    return d if isinstance(d, Var) else None


_KEEP_ZEROS = ("mul", "div", "cast", "identity")
"""Functions that return zero where their first argument is zero."""


def _along(*, rest: bool = False) -> Callable[[Node], Sequence[Expr]]:
    """A function that returns the dimensions which an operator mixes: its axis, and with `rest` those after it."""

    def result(node: Node) -> Sequence[Expr]:
        shape, attrs = (node.inputs[0] or node.output).shape, node.attrs
        axes = [a % len(shape) for a in (getattr(attrs, "axes", None) or (attrs.axis,))]  # type: ignore[attr-defined]
        return shape[axes[0] :] if rest else [shape[a] for a in axes]

    return result


_MIXED: dict[str, Callable[[Node], Sequence[Expr]]] = {
    **dict.fromkeys(("layer_norm", "rms_norm"), _along(rest=True)),
    **dict.fromkeys([f"reduce_{k}" for k in ("sum", "mean", "max", "min", "prod")], _along()),
    **dict.fromkeys(("argmax", "argmin", "log_softmax", "concat"), _along()),
}
"""For each operator a function that returns the dimensions whose elements it combines."""


def _matmul(p: _Packer, node: Node) -> Value | None:
    """The rule of matmul: it may sum over rows only where the elements of other sequences are zero."""
    a = node.inputs[0]
    assert a is not None
    if p.counts(a.shape[-1]) and p.value(a) not in p.masked:
        p.refuse(node, "sums over rows of all sequences")
    p.keep(node)
    return None


def _softmax(p: _Packer, node: Node) -> Value | None:
    """The rule of softmax: scores of rows of different sequences are masked."""
    x = node.inputs[0]
    assert x is not None
    axis = node.attrs.axis % x.type.rank  # type: ignore[attr-defined]
    if not p.counts(x.shape[axis]):
        if p.batch in variables(x.shape[axis]):
            p.refuse(node, "goes along sequences")
        p.keep(node)
        return None
    pairs = axis == x.type.rank - 1 and x.type.rank > 1 and all(same_dim(d, p.length) for d in x.shape[-2:])
    if not pairs:
        p.refuse(node, "goes along rows, of other things than pairs of rows")
        return None
    low = p.number(np.array(-np.inf, x.dtype.numpy))
    probabilities = p.emit("softmax", p.emit("select", p.same, p.value(x), low), axis=axis)
    p.masked.add(probabilities)
    return probabilities


def _range(p: _Packer, node: Node) -> Value | None:
    """The rule of range: a range over a sequence's length becomes the index of each row in its sequence."""
    attrs: Any = node.attrs
    if not same_dim(attrs.size, p.length) or as_int(attrs.start) != 0 or as_int(attrs.step) != 1:
        p.refuse(node, "is no numbering of rows")
        return None
    place = p.position
    return place if node.output.dtype is i64 else p.emit("cast", place, dtype=node.output.dtype)


def _slice(p: _Packer, node: Node) -> Value | None:
    """The rule of slice: rows of a table by the rows' indices in their sequences, one row of each sequence, or a part
    with all rows."""
    x, attrs = node.inputs[0], node.attrs
    assert x is not None
    begin, size, step = attrs.begin, attrs.size, attrs.step  # type: ignore[attr-defined]
    changed = [
        k
        for k, d in enumerate(x.shape)
        if not (as_int(begin[k]) == 0 and step[k] == 1 and same_dim(size[k], d))
        and (p.counts(d) or p.counts(node.output.shape[k]))
    ]
    if not changed:
        p.keep(node)
        return None
    axis, *others = changed
    rest = all(
        as_int(begin[k]) == 0 and step[k] == 1 and same_dim(size[k], d) for k, d in enumerate(x.shape) if k != axis
    )
    first = as_int(begin[axis]) == 0 and step[axis] == 1
    if not p.packed(x) and rest and first and same_dim(size[axis], p.length):
        return p.emit("gather", p.value(x), p.position, axis=axis)
    if p.leads(x) and rest and not others and first and as_int(size[axis]) == 1 and axis == 1:
        rows = p.emit("gather", p.value(x), p.starts, axis=axis)
        return p.emit("reshape", rows, shape=node.output.shape)
    p.refuse(node, "takes rows by their number, other than the first")
    return None


def _gather(p: _Packer, node: Node) -> Value | None:
    """The rule of gather: rows of a table, or the first row of each sequence."""
    x, indices = node.inputs[:2]
    assert x is not None and indices is not None
    axis = node.attrs.axis % x.type.rank  # type: ignore[attr-defined]
    if not p.packed(x):
        p.keep(node)
        return None
    if not p.counts(x.shape[axis]):
        p.keep(node)
        return None
    new_node = next((n for n in p.graph.nodes if indices in n.outputs), None)
    number = new_node.attrs.value.array if new_node is not None and new_node.op == "constant" else None  # type: ignore[attr-defined]
    if not (p.leads(x) and axis == 1 and number is not None and number.size == 1 and number.item() == 0):
        p.refuse(node, "takes rows by their number, other than the first")
        return None
    return p.emit("reshape", p.emit("gather", p.value(x), p.starts, axis=axis), shape=node.output.shape)


_RULES: dict[str, Callable[[_Packer, Node], Value | None]] = {
    "matmul": _matmul,
    "softmax": _softmax,
    "range": _range,
    "slice": _slice,
    "gather": _gather,
}
"""The rules of operators that relate rows to each other, or create them."""
