"""Rules for losses whose PyTorch decompositions differ from the operators themselves."""

from __future__ import annotations

from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import i64
from tilewright.ir.graph import Value

MIN_LOG = -100.0
"""PyTorch's lower bound for logarithms in a binary cross entropy."""
MIN_VARIANCE = 1e-12
"""The lower bound for x (1 - x), by which the gradient of binary cross entropy divides."""


def _over_batch(n: Call, x: Value, reduction: int) -> Value:
    """`x`, a loss of each element, as it is (`reduction` 0), its mean (1), or its sum (2)."""
    if reduction == 0:
        return x
    axes = tuple(range(x.type.rank))
    return n.emit("reduce_mean" if reduction == 1 else "reduce_sum", x, axes=axes, keepdims=False)


@rule("binary_cross_entropy", single=True)
def binary_cross_entropy(n: Call, x: Value, target: Value, weight: Value | None = None, reduction: int = 1) -> Value:
    """Binary cross entropy of probabilities `x`, with logarithms of -100 or more, times `weight`, reduced as
    `reduction` says; the gradient is (x - target) / max(x (1 - x), 1e-12), as in PyTorch."""
    one = n.like(1, x)
    least = n.like(MIN_LOG, x)
    rest = n.emit("sub", one, x)
    log, other = n.emit("max", n.emit("log", x), least), n.emit("max", n.emit("log1p", n.emit("neg", x)), least)
    loss = n.emit("sub", n.emit("mul", n.emit("sub", target, one), other), n.emit("mul", target, log))

    def linear() -> Value:
        spread = n.emit("max", n.emit("mul", rest, x), n.like(MIN_VARIANCE, x))
        slope = n.emit("div", n.emit("sub", x, target), spread)
        by_x = n.emit("mul", x, n.emit("stop_gradient", slope))
        return n.emit("add", by_x, n.emit("mul", target, n.emit("stop_gradient", n.emit("sub", other, log))))

    loss = n.surrogate(loss, linear)
    if weight is not None:
        loss = n.emit("mul", loss, weight)
    return _over_batch(n, loss, reduction)


@rule("multi_margin_loss", single=True)
def multi_margin_loss(
    n: Call,
    x: Value,
    target: Value,
    p: int = 1,
    margin: float = 1,
    weight: Value | None = None,
    reduction: int = 1,
) -> Value:
    """The sum over classes j other than the target t of weight[t] max(0, margin - x[t] + x[j])^p, divided by the number
    of classes, and reduced over samples as `reduction` says. Where the maximum is 0 the gradient is 0, unlike in
    PyTorch's decomposition, which clamps."""
    shape = x.shape
    classes = shape[-1]
    x = n.reshape(x, (1, classes)) if x.type.rank == 1 else x
    target = n.reshape(target, (x.shape[0], 1))
    scores = n.emit("gather_elements", x, target, axis=1)
    gap = n.emit("add", n.emit("sub", n.like(margin, x), scores), x)
    number = n.emit("range", start=0, step=1, size=classes, dtype=target.dtype)
    zero = n.like(0, gap)
    counted = n.emit("and", n.emit("not", n.emit("eq", target, number)), n.emit("gt", gap, zero))
    gap = n.emit("select", counted, gap, zero)
    gap = n.emit("mul", gap, gap) if p == 2 else gap
    if weight is not None:
        gap = n.emit("mul", gap, n.emit("gather", weight, target, axis=0))
    total = n.emit("reduce_sum", gap, axes=(1,), keepdims=False)
    loss = n.emit("div", total, n.number(classes, x.dtype))
    return _over_batch(n, n.reshape(loss, ()) if len(shape) == 1 else loss, reduction)


@rule("multilabel_margin_loss", single=True)
def multilabel_margin_loss(n: Call, x: Value, target: Value, reduction: int = 1) -> Value:
    """The sum over classes j that are no target and targets t of max(0, 1 - x[t] + x[j]), divided by the number of
    classes; a row's targets are those before its first -1."""
    shape = x.shape
    if x.type.rank == 1:
        x, target = n.reshape(x, (1, *shape)), n.reshape(target, (1, *shape))
    rows, classes = x.shape
    ended = n.emit(
        "cumsum", n.cast(n.emit("lt", target, n.like(0, target)), i64), axis=1, exclusive=False, reverse=False
    )
    counts = n.emit("eq", ended, n.like(0, ended))
    place = n.emit("select", counts, target, n.like(0, target))
    wide = n.reshape(n.emit("select", counts, target, n.like(-1, target)), (rows, classes, 1))
    number = n.emit("range", start=0, step=1, size=classes, dtype=target.dtype)
    among = n.emit("reduce_max", n.cast(n.emit("eq", wide, number), i64), axes=(1,), keepdims=True)
    scores = n.reshape(n.emit("gather_elements", x, place, axis=1), (rows, classes, 1))
    gap = n.emit("add", n.emit("sub", n.like(1, x), scores), n.reshape(x, (rows, 1, classes)))
    counted = n.emit("and", n.reshape(counts, (rows, classes, 1)), n.emit("eq", among, n.like(0, among)))
    counted = n.emit("and", counted, n.emit("gt", gap, n.like(0, gap)))
    total = n.emit("reduce_sum", n.emit("select", counted, gap, n.like(0, gap)), axes=(1, 2), keepdims=False)
    loss = n.emit("div", total, n.number(classes, x.dtype))
    return _over_batch(n, n.reshape(loss, ()) if len(shape) == 1 else loss, reduction)
