"""Loops and branches as ONNX nodes, whose bodies see what stands around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from tilewright.codegen.onnx.layers import several
from tilewright.codegen.onnx.nodes import write_nodes
from tilewright.codegen.onnx.writer import Writer, info
from tilewright.ir.dtype import boolean, i64
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ops.control import CondAttrs, LoopAttrs


@several("cond")
def cond(w: Writer, node: Node, x: Sequence[str | None]) -> Sequence[str]:
    """The rule of `cond`: both branches read their operands from the enclosing graph."""
    attrs = node.of(CondAttrs)
    branches = {"then_branch": _branch(w, attrs.then, x[1:]), "else_branch": _branch(w, attrs.orelse, x[1:])}
    names = [w.shared.fresh(v.name) for v in node.outputs]
    return w.several("If", x[:1], names, **branches)


def _branch(w: Writer, body: Graph, operands: Sequence[str | None]) -> onnx.GraphProto:
    inner = w.inner()
    _enter(inner, [*body.inputs, *body.params], operands)
    write_nodes(inner, body)
    results = [info(_result(inner, v), v.type) for v in body.outputs]
    return helper.make_graph(inner.nodes, body.name, [], results)


@several("loop")
def loop(w: Writer, node: Node, x: Sequence[str | None]) -> Sequence[str]:
    """The rule of `loop`. Elements of sequences are gathered by the number of the iteration; a count is carried if the
    loop returns one. In a backward loop numbers count from the end, and collected results are reversed after it."""
    attrs = node.of(LoopAttrs)
    body, carried, scanned = attrs.body, attrs.carried, attrs.scanned
    number, *rest = [*body.inputs, *body.params]
    operands = x[2:]
    sequences, captured = operands[carried : carried + scanned], operands[carried + scanned :]
    inner = w.inner()
    alive = inner.shared.fresh("alive")
    inputs = [info(inner.name(v), v.type) for v in (number, *rest[:carried])]
    inputs.insert(1, info(alive, _TRUTH))
    for value, sequence in zip(rest[carried : carried + scanned], sequences, strict=True):
        at = inner.names[number]
        at = inner.op("Sub", [inner.scalar(-1, i64), at]) if attrs.backward else at
        inner.names[value] = inner.op("Gather", [sequence, at], axis=0)
    _enter(inner, rest[carried + scanned :], captured)
    results = _body(inner, body, attrs, alive, number, inputs)
    outer = [*operands[:carried], *([w.scalar(0, i64)] if attrs.counted else [])]
    names = [w.shared.fresh(v.name) for v in node.outputs]
    if attrs.counted:  # which ONNX has after what else is carried
        names = [*names[:carried], names[-1], *names[carried:-1]]
    w.several("Loop", [_trips(w, attrs, x[0], sequences), x[1], *outer], names, body=results)
    if attrs.backward:
        ends = [w.ints([-1]), w.ints([np.iinfo(np.int64).min]), w.ints([0]), w.ints([-1])]
        names[carried:] = [w.op("Slice", [name, *ends]) for name in names[carried:]]
    return [*names[:carried], *names[carried + 1 :], names[carried]] if attrs.counted else names


_TRUTH = TensorType(boolean, ())


def _body(
    inner: Writer, body: Graph, attrs: LoopAttrs, alive: str, number: Value, inputs: list[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    """Write the nodes of a loop's body with the writer `inner`; returns the ONNX graph of one iteration. `inputs` are
    the declarations of its inputs: the iteration's `number`, the condition named `alive`, and the carried values."""
    write_nodes(inner, body)
    results = [_result(inner, v) for v in body.outputs]
    outputs = list(body.outputs)
    if attrs.conditional:
        condition, results, outputs = results[0], results[1:], outputs[1:]
    else:
        condition = inner.op("Identity", [alive])
    kinds = [info(name, v.type) for name, v in zip(results, outputs, strict=True)]
    if attrs.counted:
        count = inner.shared.fresh("count")
        inputs.append(info(count, number.type))
        following = inner.op("Add", [inner.names[number], inner.scalar(1, i64)])
        kinds.insert(attrs.carried, info(following, number.type))
    return helper.make_graph(inner.nodes, body.name, inputs, [info(condition, _TRUTH), *kinds])


def _trips(w: Writer, attrs: LoopAttrs, count: str | None, sequences: Sequence[str | None]) -> str | None:
    """Emit the number of iterations of a loop, the least of its bounds (`count`, `attrs.trip`, the lengths of
    `sequences`); returns its name, None if there is no bound."""
    result = [] if count is None else [count]
    if attrs.trip is not None:
        result.append(w.op("Reshape", [w.size(attrs.trip), w.ints([])]))
    if sequences:
        extent = w.op("Shape", [sequences[0]], start=0, end=1)
        result.append(w.op("Reshape", [extent, w.ints([])]))
    return result[0] if len(result) == 1 else w.op("Min", result) if result else None


def _enter(inner: Writer, values: Sequence[Value], names: Sequence[str | None]) -> None:
    """Bind the inputs `values` of a body to the values `names` of the enclosing graph."""
    for value, name in zip(values, names, strict=True):
        assert name is not None
        inner.names[value] = name


def _result(inner: Writer, v: Value) -> str:
    """Emit a copy of the result `v` of a body and return its name: ONNX allows no result that is an input, comes from
    outside or occurs twice."""
    return inner.op("Identity", [inner.names[v]])
