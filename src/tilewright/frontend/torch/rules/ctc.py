"""The rule for the loss of connectionist temporal classification (Graves et al. 2006, section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.frontend.common.loops import cut, loop
from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr
from tilewright.ir.graph import TensorType, Value
from tilewright.ops.dims import dim

Lengths = Value | Sequence[int]


@rule("ctc_loss", single=True)
def ctc_loss(
    n: Call,
    scores: Value,
    targets: Value,
    steps: Lengths,
    lengths: Lengths,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Value:
    """The negative log likelihood of the targets, reduced as `reduction` says (0: one for each sequence; 1: the mean,
    each divided by its target's length; 2: the sum). Scores are [T, N, C] for all classes, of which number `blank` is
    the blank; targets are [N, S], or concatenated to a vector. `steps` and `lengths` are data, which calls check.
    Infinite losses are 0 with `zero_infinity`. Raises UnsupportedError in training."""
    if n.random is not None:
        raise n.unsupported("in training", hint="compute this loss in PyTorch from the compiled model's outputs")
    if scores.type.rank == 2:
        scores = n.reshape(scores, (scores.shape[0], 1, scores.shape[1]))
    t, batch, _ = scores.shape
    steps, lengths = (_lengths(n, v, batch) for v in (steps, lengths))
    targets = _rows(n, n.cast(targets, i64), lengths, batch)
    most = targets.shape[1]
    steps = n.all_within(steps, 0, t, "the lengths of the inputs of ctc_loss")
    lengths = n.all_within(lengths, 0, most, "the lengths of the targets of ctc_loss")
    losses = _losses(n, scores, _extended(n, targets, blank), steps, lengths, blank)
    if zero_infinity:
        losses = n.emit("select", n.emit("eq", losses, n.like(math.inf, losses)), n.like(0, losses), losses)
    if reduction == 1:
        losses = n.emit("div", losses, n.cast(n.emit("max", lengths, n.constant(1, i64)), losses.dtype))
        return n.emit("reduce_mean", losses, axes=(0,), keepdims=False)
    if reduction == 2:
        return n.emit("reduce_sum", losses, axes=(0,), keepdims=False)
    return n.reshape(losses, n.shape)


def _lengths(n: Call, lengths: Lengths, batch: Expr) -> Value:
    value = lengths if isinstance(lengths, Value) else n.constant(list(lengths), i64)
    return n.reshape(n.cast(value, i64), (batch,))


def _rows(n: Call, targets: Value, lengths: Value, batch: Expr) -> Value:
    """`targets` as rows [N, S]: if they are concatenated to a vector, each row begins where the lengths before it
    end."""
    if targets.type.rank == 2:
        return targets
    most = targets.shape[0]
    if batch == dim(1):
        return n.reshape(targets, (1, most))
    ends = n.emit("cumsum", lengths, axis=0, exclusive=True, reverse=False)
    places = n.emit("range", start=0, step=1, size=most, dtype=i64)
    places = n.emit("add", n.reshape(ends, (batch, 1)), n.reshape(places, (1, most)))
    return n.emit("gather", targets, n.emit("min", places, n.operand(dim(most - 1), i64)), axis=0)


def _extended(n: Call, targets: Value, blank: int) -> Value:
    """The labels of CTC's trellis, [N, 2 S + 1]: `targets` with a blank before, between and after them."""
    batch, most = targets.shape
    column = n.reshape(targets, (batch, most, 1))
    blanks = n.filled(blank, i64, column.shape)
    pairs = n.reshape(n.emit("concat", blanks, column, axis=2), (batch, dim(2 * most)))
    return n.emit("concat", pairs, n.filled(blank, i64, (batch, 1)), axis=1)


def _losses(n: Call, scores: Value, labels: Value, steps: Value, lengths: Value, blank: int) -> Value:
    t, batch, _ = scores.shape
    width = labels.shape[1]
    zero, never = n.like(0, scores), n.like(-math.inf, scores)
    index = n.broadcast(n.reshape(labels, (1, batch, width)), (t, batch, width))
    emitted = n.emit("gather_elements", scores, index, axis=2)
    place = n.reshape(n.emit("range", start=0, step=1, size=width, dtype=i64), (1, width))
    changed = n.emit("ne", labels, _moved(n, labels, 2, n.constant(blank, i64)))
    skips = n.emit("and", changed, n.emit("ge", place, n.constant(2, i64)))
    # Before the first step nothing has been seen, with certainty: the first step is then one like the others.
    first = n.broadcast(n.emit("select", n.emit("eq", place, n.constant(0, i64)), zero, never), (batch, width))
    times = n.emit("range", start=0, step=1, size=t, dtype=i64)
    alpha, row = (
        Value(n.builder.fresh(f"{n.name}.{v}"), TensorType(scores.dtype, first.shape)) for v in ("alpha", "row")
    )
    time = Value(n.builder.fresh(f"{n.name}.time"), TensorType(i64, ()))
    with cut(n.builder) as nodes:
        one = _moved(n, alpha, 1, never)
        two = n.emit("select", skips, _moved(n, alpha, 2, never), never)
        total = n.emit("add", _sum(n, [alpha, one, two]), row)
        goes = n.emit("lt", time, n.reshape(steps, (batch, 1)))
        results = [n.emit("select", goes, total, alpha)]
    last = loop(n.builder, n.name, None, [first], [alpha], [emitted, times], [row, time], nodes, results)[0]
    return _ended(n, last, lengths)


def _ended(n: Call, alpha: Value, lengths: Value) -> Value:
    """The negative log likelihood [N]: the sum over paths in `alpha` (log probabilities) that end at the last label of
    a sequence, which has `lengths` labels, or at the blank after it."""
    batch = alpha.shape[0]
    never = n.like(-math.inf, alpha)
    after = n.reshape(n.emit("mul", lengths, n.constant(2, i64)), (batch, 1))
    label = n.emit("max", n.emit("sub", after, n.constant(1, i64)), n.constant(0, i64))
    ends = [n.emit("gather_elements", alpha, places, axis=1) for places in (after, label)]
    empty = n.emit("eq", after, n.constant(0, i64))
    total = _sum(n, [ends[0], n.emit("select", empty, never, ends[1])])
    return n.reshape(n.emit("neg", total), (batch,))


def _moved(n: Call, x: Value, by: int, fill: Value) -> Value:
    """Rows of `x` shifted to the right by `by`, with `fill` at the left."""
    batch, width = x.shape
    wide = n.emit("concat", n.broadcast(fill, (batch, by)), x, axis=1)
    return n.slice(wide, 1, 0, width)


def _sum(n: Call, terms: Sequence[Value]) -> Value:
    """log(sum(exp(terms))) of several tensors, element by element; minus infinity where all terms are."""
    most = terms[0]
    for term in terms[1:]:
        most = n.emit("max", most, term)
    base = n.emit("select", n.emit("eq", most, n.like(-math.inf, most)), n.like(0, most), most)
    powers = [n.emit("exp", n.emit("sub", term, base)) for term in terms]
    total = powers[0]
    for power in powers[1:]:
        total = n.emit("add", total, power)
    return n.emit("add", n.emit("log", total), base)
