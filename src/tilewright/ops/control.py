"""Control flow: `loop`, whose body graph runs several times, and `cond`, which runs one of two graphs.

    %sum, %rows = loop(none, none, %start, %xs, %w) {carried = 1, scanned = 1, body =
      graph @body(%i: i64[], %s: f32[4], %x: f32[4], %w: f32[4]) { ...  return %next, %row }}

A body's inputs are the iteration's number, the carried values, an element of each sequence, and captured values; its
params are captured, too. The captured values are operands of the node, in the same order, so that a body reads no other
values of the graph around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.attributes import Attrs, Dim
from tilewright.ir.dtype import boolean, i64
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import Graph, TensorType
from tilewright.ops.dims import dim, present
from tilewright.ops.interpret import run_graph
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, ShapeError

Out = tuple[TensorType, ...]

MAX_INTERPRETED = 1_000_000
"""The largest number of iterations of one loop that the interpreter evaluates."""

NUMBER = TensorType(i64, ())
TRUTH = TensorType(boolean, ())


@dataclass(frozen=True, slots=True)
class LoopAttrs(Attrs):
    """body         the graph of an iteration: (number, carried..., elements..., captured...) to (go on?, carried...,
                 collected...)
    carried      how many values go from one iteration to the next
    scanned      how many operands are sequences, of which each iteration gets one element of the first dimension; there
                 are as many iterations as elements
    trip         the number of iterations if known, or a bound of it; collected values have this extent
    conditional  the body's first output says whether there is another iteration
    counted      the last output is how many iterations there were
    backward     sequences and collected values are indexed from their last element to the first; there are as
                 many iterations as shapes say
    """

    body: Graph
    carried: int = 0
    scanned: int = 0
    trip: Dim | None = None
    conditional: bool = False
    counted: bool = False
    backward: bool = False


@dataclass(frozen=True, slots=True)
class CondAttrs(Attrs):
    """Attributes of `cond`: the graph `then` is evaluated where the predicate is true, else `orelse`. Both have the
    same inputs, parameters and outputs."""

    orelse: Graph
    then: Graph


def _loop_infer(types: Types, attrs: LoopAttrs) -> Out:
    """The type rule of `loop`. Inputs: a bound on iterations and a condition (None: unlimited), initial values of the
    carried variables, sequences, captured values."""
    body, carried, scanned = attrs.body, attrs.carried, attrs.scanned
    for name, case, expected in (("count", types[:1], NUMBER), ("condition", types[1:2], TRUTH)):
        if case and case[0] not in (None, expected):
            raise ShapeError(f"the {name} of a loop has another type", expected=expected, got=case[0])
    rest = [present(t) for t in types[2:]]
    arguments = (*body.inputs, *body.params)
    if min(carried, scanned) < 0 or len(rest) != len(arguments) - 1 or len(rest) < carried + scanned:
        raise ShapeError("the body of a loop does not fit its operands", expected=len(arguments) - 1, got=len(rest))
    elements = rest[carried : carried + scanned]
    _check("the body's number", [arguments[0].type], [NUMBER])
    _check("what is carried", [v.type for v in arguments[1 : 1 + carried]], rest[:carried])
    _check("an element", [v.type for v in arguments[1 + carried :][:scanned]], [_element(t) for t in elements])
    _check("what is captured", [v.type for v in arguments[1 + carried + scanned :]], rest[carried + scanned :])
    if attrs.backward and (attrs.conditional or any(t is not None for t in types[:2])):
        raise ShapeError("a loop that walks backward cannot end early", expected="no count and no condition")
    results = [v.type for v in body.outputs]
    if attrs.conditional:
        _check("the body's condition", results[:1], [TRUTH])
        results = results[1:]
    _check("what is carried on", results[:carried], rest[:carried])
    extent = _extent(attrs, elements)
    collected = results[carried:]
    if collected and extent is None:
        raise ShapeError("a loop that collects values needs a bound of its iterations", expected="trip")
    stacks = [TensorType(t.dtype, (extent, *t.shape)) for t in collected if extent is not None]
    return (*rest[:carried], *stacks, *((NUMBER,) if attrs.counted else ()))


def _extent(attrs: LoopAttrs, sequences: Sequence[TensorType]) -> Expr | None:
    """The largest number of iterations of a loop, by its `trip` and the length of its sequences; None if these do not
    bound it."""
    extents = [t.shape[0] for t in sequences]
    if attrs.trip is not None:
        extents.append(dim(attrs.trip))
    if any(e != extents[0] for e in extents):
        raise ShapeError("the sequences of a loop differ in length", got=", ".join(map(str, extents)))
    return extents[0] if extents else None


def _element(t: TensorType) -> TensorType:
    if not t.shape:
        raise ShapeError("a sequence needs a dimension", got=t)
    return TensorType(t.dtype, t.shape[1:])


def _check(what: str, result: Sequence[TensorType], expected: Sequence[TensorType]) -> None:
    for k, (t, want) in enumerate(zip(result, expected, strict=False)):
        if t != want:
            raise ShapeError(f"{what} (number {k}) has another type", expected=want, got=t)
    if len(result) != len(expected):
        raise ShapeError(f"{what}: the number of values is wrong", expected=len(expected), got=len(result))


def _loop_reference(arrays: Sequence[Any], attrs: LoopAttrs) -> tuple[Any, ...]:
    body, carried, scanned = attrs.body, list(arrays[2 : 2 + attrs.carried]), attrs.scanned
    sequences = arrays[2 + len(carried) :][:scanned]
    captured = arrays[2 + len(carried) + scanned :]
    alive = True if arrays[1] is None else bool(arrays[1])
    limits = [len(s) for s in sequences[:1]] + ([] if arrays[0] is None else [int(arrays[0])])
    limit = min([*limits, *([] if attrs.trip is None else [_known(attrs.trip)])], default=MAX_INTERPRETED + 1)
    rows: list[list[Any]] = []
    count = 0
    while alive and count < limit:
        if count >= MAX_INTERPRETED:
            raise CallError("a loop does not end", expected=f"at most {MAX_INTERPRETED} iterations")
        at = limit - 1 - count if attrs.backward else count
        arguments = [np.asarray(count, np.int64), *carried, *(s[at] for s in sequences), *captured]
        results = _run(body, arguments)
        if attrs.conditional:
            alive, results = bool(results[0]), results[1:]
        carried, row = results[: attrs.carried], results[attrs.carried :]
        rows.append(row)
        count += 1
    counted = [np.asarray(count, np.int64)] if attrs.counted else []
    return (*carried, *_stacks(attrs, rows, len(sequences[0]) if sequences else attrs.trip), *counted)


def _known(size: Any) -> int:
    """The size `size` as a number. Graphs are interpreted only where all sizes are known."""
    result = as_int(dim(size))
    assert result is not None, f"{size} is not known"
    return result


def _stacks(attrs: LoopAttrs, rows: Sequence[Sequence[Any]], extent: Any) -> list[Any]:
    """The arrays of collected values, `rows` by iteration, stacked along a first dimension of `extent`; zeros for
    iterations that did not run."""
    types = [v.type for v in attrs.body.outputs[attrs.conditional + attrs.carried :]]
    stacks = []
    for k, t in enumerate(types):
        shape = rows[0][k].shape if rows else tuple(map(_known, t.shape))
        stack = np.zeros((_known(extent), *shape), t.dtype.numpy)
        for i, row in enumerate(reversed(rows) if attrs.backward else rows):
            stack[i] = row[k]
        stacks.append(stack)
    return stacks


def _run(body: Graph, arrays: Sequence[Any]) -> list[Any]:
    """The outputs of the graph `body`, in order, evaluated by NumPy on `arrays`: its inputs, then its parameters."""
    named = dict(zip((v.name for v in (*body.inputs, *body.params)), arrays, strict=True))
    results = run_graph(body, named, named)
    return [results[v.name] for v in body.outputs]


def _cond_infer(types: Types, attrs: CondAttrs) -> Out:
    """The type rule of `cond`. Inputs: the predicate, then the inputs of both bodies."""
    _check("the predicate", [present(t) for t in types[:1]], [TRUTH])
    rest = [present(t) for t in types[1:]]
    for body in (attrs.then, attrs.orelse):
        _check("what a branch takes", [v.type for v in (*body.inputs, *body.params)], rest)
    if len(attrs.then.inputs) != len(attrs.orelse.inputs):
        raise ShapeError("the branches take other operands as params")
    results = tuple(v.type for v in attrs.then.outputs)
    _check("what the other branch gives", [v.type for v in attrs.orelse.outputs], results)
    return results


def _cond_reference(arrays: Sequence[Any], attrs: CondAttrs) -> tuple[Any, ...]:
    return tuple(_run(attrs.then if bool(arrays[0]) else attrs.orelse, arrays[1:]))


LOOP = register(OpDef("loop", "opaque", LoopAttrs, _loop_infer, _loop_reference))
COND = register(OpDef("cond", "opaque", CondAttrs, _cond_infer, _cond_reference))
