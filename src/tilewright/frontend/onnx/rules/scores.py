"""The last step of ai.onnx.ml's classifiers and regressors: transforms of scores, and the choice of labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.onnx.call import Call
from tilewright.ir.dtype import f64, i64
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Value
from tilewright.support.errors import ModelError, UnsupportedError

CLOSE_TO_ZERO = 1e-7
"""Scores nearer to zero than this stay (almost) zero in SOFTMAX_ZERO."""
WINITZKI = 0.147
"""The constant of S. Winitzki's approximation of the inverse error function, which ONNX prescribes for PROBIT."""


def class_of(n: Call, scores: Value, labels: Sequence[int], post: str) -> list[Value]:
    """[the label of each row's highest score, the scores after the transform `post`] of a classifier; of equal scores
    the first wins. The label is that of the scores before the transform: a logistic function makes large ones equal."""
    classes = as_int(scores.shape[1])
    if classes != len(labels):
        raise ModelError("there must be a label for each class", expected=classes, got=len(labels))
    best = n.emit("argmax", scores, axis=1, keepdims=False)
    scores = post_transform(n, scores, post)
    if list(labels) == list(range(len(labels))):
        return [best, scores]
    return [n.emit("gather", n.constant(np.array(labels, np.int64)), best, axis=0), scores]


def above(n: Call, score: Value, threshold: float, labels: Sequence[int]) -> Value:
    """The label of each row of `score` [rows, 1]: the second of two where the score exceeds `threshold`."""
    chosen = n.emit("gt", score, n.like(threshold, score))
    first, second = (n.constant(label, i64) for label in labels)
    return n.reshape(n.emit("select", chosen, second, first), (score.shape[0],))


def pair_of(n: Call, score: Value, post: str, *, complement: bool) -> Value:
    """The scores [rows, 2] of two classes of which the second one alone has weights, whose sum is `score` [rows, 1]:
    the first one's is 1 - score if `complement`, else -score. The only transforms are LOGISTIC, of both signs, and
    PROBIT, as in ONNX Runtime."""
    complement = post == "PROBIT" or (complement and post != "LOGISTIC")
    other = n.emit("sub", n.like(1, score), score) if complement else n.emit("neg", score)
    pair = n.emit("concat", other, score, axis=1)
    return post_transform(n, pair, post) if post in ("LOGISTIC", "PROBIT") else pair


def post_transform(n: Call, x: Value, name: str) -> Value:
    """The scores [rows, classes] after the transform that the attribute `post_transform` names."""
    match name:
        case "NONE":
            return x
        case "LOGISTIC":
            return n.emit("sigmoid", x)
        case "SOFTMAX":
            return n.emit("softmax", x, axis=1)
        case "SOFTMAX_ZERO":
            return _softmax_zero(n, x)
        case "PROBIT":
            return _probit(n, x)
    raise UnsupportedError("no such post_transform", got=name)


def _softmax_zero(n: Call, x: Value) -> Value:
    """A softmax in which zeros are multiplied by e^-max rather than raised, so that they stay zero."""
    most = n.emit("reduce_max", x, axes=(1,), keepdims=True)
    raised = n.emit("exp", n.emit("sub", x, most))
    retained = n.emit("mul", x, n.emit("exp", n.emit("neg", most)))
    outer = n.emit("gt", n.emit("abs", x), n.like(CLOSE_TO_ZERO, x))
    values = n.emit("select", outer, raised, retained)
    total = n.emit("reduce_sum", values, axes=(1,), keepdims=True)
    none = n.emit("eq", total, n.like(0, total))
    return n.emit("select", none, n.like(0.5, x), n.emit("div", values, total))


def _probit(n: Call, x: Value) -> Value:
    """The inverse of the normal distribution, by Winitzki's approximation of the inverse error function. It is computed
    in f64, as large terms cancel for x of about 1/2."""
    scores, x = x, n.cast(x, f64)

    def number(value: float) -> Value:
        return n.like(value, x)

    y = n.emit("sub", n.emit("mul", x, number(2)), number(1))
    rest = n.emit("mul", n.emit("sub", number(1), y), n.emit("add", number(1), y))
    log = n.emit("log", rest)
    half = n.emit("add", n.emit("mul", log, number(0.5)), number(2 / (math.pi * WINITZKI)))
    inner = n.emit("sub", n.emit("mul", half, half), n.emit("mul", log, number(1 / WINITZKI)))
    size = n.emit("sqrt", n.emit("sub", n.emit("sqrt", inner), half))
    signed = n.emit("select", n.emit("lt", y, number(0)), n.emit("neg", size), size)
    ends = n.emit("eq", rest, number(0))
    result = n.emit("select", ends, number(0), n.emit("mul", signed, number(1.41421356)))
    return n.cast(result, scores.dtype)
