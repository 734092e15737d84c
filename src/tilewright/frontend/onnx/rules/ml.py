"""Rules for the preprocessing operators and linear models of ai.onnx.ml; trees are in `trees.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.rules.scores import above, class_of, pair_of, post_transform
from tilewright.frontend.onnx.rules.trees import indices, numbers
from tilewright.ir.dtype import f32, f64, i64
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Value
from tilewright.support.errors import ModelError, UnsupportedError

MIN_NORM = 1e-30
"""The least norm by which a row is divided."""
MAX_KEYS = 4096
"""Keys of a LabelEncoder that are compared with every element."""


def _float(n: Call) -> Value:
    """The first input as a float: f64 stays, all other types become f32."""
    x = n.value(0)
    return x if x.dtype is f64 else n.cast(x, f32)


def _vector(n: Call, name: str, like: Value) -> Value:
    """Attribute `name`, one number or one for each column of `like`, as constant of `like`'s type. Raises ModelError
    for other lengths."""
    result, columns = numbers(n, name), as_int(like.shape[-1])
    if result is None:
        raise ModelError(f"attribute {name} is missing")
    if len(result) not in (1, columns):
        raise ModelError(f"{name} must be one number, or one for each column", expected=columns, got=len(result))
    return n.constant(result, like.dtype)


@rule("ai.onnx.ml.Scaler")
def scaler(n: Call) -> Value:
    x = _float(n)
    moved = n.emit("sub", x, _vector(n, "offset", x))
    return n.cast(n.emit("mul", moved, _vector(n, "scale", x)), f32)


@rule("ai.onnx.ml.Normalizer")
def normalizer(n: Call) -> Value:
    x, kind = _float(n), n.text("norm", "MAX")
    axes = (x.type.rank - 1,)
    if kind == "L2":
        size = n.emit("sqrt", n.emit("reduce_sum", n.emit("mul", x, x), axes=axes, keepdims=True))
    elif kind == "L1":
        size = n.emit("reduce_sum", n.emit("abs", x), axes=axes, keepdims=True)
    elif kind == "MAX":
        # The largest number of the row, with its sign, as the text and ONNX Runtime have it.
        most = n.emit("reduce_max", x, axes=axes, keepdims=True)
        none = n.emit("eq", most, n.like(0, most))
        return n.cast(n.emit("div", x, n.emit("select", none, n.like(1, most), most)), f32)
    else:
        raise ModelError("no such norm", expected="MAX, L1, L2", got=kind)
    return n.cast(n.emit("div", x, n.emit("max", size, n.like(MIN_NORM, x))), f32)


@rule("ai.onnx.ml.Binarizer")
def binarizer(n: Call) -> Value:
    x = n.value(0)
    above = n.emit("gt", x, n.like(n.real("threshold", 0.0), x))
    return n.cast(above, x.dtype)


@rule("ai.onnx.ml.Imputer")
def imputer(n: Call) -> Value:
    x = n.value(0)
    if x.dtype.is_float:
        fill, what = _vector(n, "imputed_value_floats", x), n.real("replaced_value_float", 0.0)
    else:
        values, what = indices(n, "imputed_value_int64s"), n.integer("replaced_value_int64", 0)
        fill = n.constant(values, x.dtype)
    nan = isinstance(what, float) and math.isnan(what)
    missing = n.emit("isnan", x) if nan else n.emit("eq", x, n.like(what, x))
    return n.emit("select", missing, fill, x)


@rule("ai.onnx.ml.ArrayFeatureExtractor")
def array_feature_extractor(n: Call) -> Value:
    x, chosen = n.value(0), n.value(1)
    x = n.reshape(x, (1, *x.shape)) if x.type.rank == 1 else x
    return n.emit("gather", x, n.reshape(chosen, (chosen.type.size,)), axis=x.type.rank - 1)


@rule("ai.onnx.ml.FeatureVectorizer")
def feature_vectorizer(n: Call) -> Value:
    widths = n.ints("inputdimensions", [])
    assert widths is not None
    parts = []
    for value, width in zip(n.values(), widths, strict=True):
        x = as_rows(n, value)
        columns = as_int(x.shape[1])
        if columns is None or columns < width:
            raise UnsupportedError("an input is narrower than inputdimensions says", expected=width, got=x.type)
        parts.append(n.cast(n.slice(x, 1, 0, width), f32))
    return parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=1)


def as_rows(n: Call, x: Value) -> Value:
    """`x` as rows of features; a vector becomes one row."""
    if x.type.rank not in (1, 2):
        raise UnsupportedError("features that are no rows are not supported", got=x.type)
    return n.reshape(x, (1, x.shape[0])) if x.type.rank == 1 else x


def _linear(n: Call, x: Value, rows: int) -> Value:
    """x times the transpose of the attribute `coefficients` [rows, features], plus the attribute `intercepts`."""
    coefficients, features = numbers(n, "coefficients"), as_int(x.shape[1])
    if coefficients is None or not features or len(coefficients) != rows * features:
        count = 0 if coefficients is None else len(coefficients)
        raise ModelError("there must be a coefficient for each feature", expected=f"{rows} x {features}", got=count)
    weights = n.constant(coefficients.reshape(rows, features), x.dtype)
    scores = n.emit("matmul", x, weights, transpose_b=True)
    intercepts = numbers(n, "intercepts")
    if intercepts is None:
        return scores
    if len(intercepts) != rows:
        raise ModelError("there must be an intercept for each result", expected=rows, got=len(intercepts))
    return n.emit("add", scores, n.constant(intercepts, x.dtype))


@rule("ai.onnx.ml.LinearRegressor")
def linear_regressor(n: Call) -> Value:
    y = _linear(n, as_rows(n, n.cast(n.value(0), f32)), n.integer("targets", 1))
    return post_transform(n, y, n.text("post_transform", "NONE"))


@rule("ai.onnx.ml.LinearClassifier")
def linear_classifier(n: Call) -> list[Value]:
    if n.attr("classlabels_strings"):
        raise UnsupportedError("classes that are called by strings are not supported")
    x, labels, post = as_rows(n, _float(n)), n.ints("classlabels_ints", []), n.text("post_transform", "NONE")
    assert labels is not None
    n.integer("multi_class", 0)
    count, features = numbers(n, "coefficients"), as_int(x.shape[1])
    rows = (0 if count is None else len(count)) // max(features or 1, 1)
    scores = n.cast(_linear(n, x, rows), f32)
    if rows == 1 and len(labels) == 2:
        return [above(n, scores, 0.0, labels), pair_of(n, scores, post, complement=True)]
    if rows == 1:
        scores = post_transform(n, scores, post)
        reached = n.emit("ge", scores, n.like(0.0 if post == "NONE" else 0.5, scores))
        label = n.constant(labels[0] if labels else 1, i64)
        return [n.reshape(n.emit("select", reached, label, n.like(0, label)), (x.shape[0],)), scores]
    return class_of(n, scores, labels, post)


@rule("ai.onnx.ml.LabelEncoder")
def label_encoder(n: Call) -> Value:
    """LabelEncoder on numbers: each element that equals a key is replaced by that key's value, all others by the
    default."""
    keys, values, default = _table(n)
    x = n.value(0)
    if not len(keys) or len(keys) != len(values) or len(keys) > MAX_KEYS:
        raise UnsupportedError("the table of a LabelEncoder is empty or too large", expected=f"1 to {MAX_KEYS} keys")
    points = n.reshape(x, (*x.shape, 1))
    same = n.emit("eq", points, n.constant(keys, x.dtype))
    if np.isnan(keys.astype(np.float64)).any():
        nan = n.constant(np.isnan(keys.astype(np.float64)))
        same = n.emit("or", same, n.emit("and", n.emit("isnan", points), nan))
    # Of keys that stand twice in the table the last counts: the search is from the end.
    place = n.emit("argmax", n.cast(same, f32), axis=x.type.rank, keepdims=False, select_last_index=True)
    result = n.emit("gather", n.constant(values), place, axis=0)
    known = n.emit("reduce_max", n.cast(same, f32), axes=(x.type.rank,), keepdims=False)
    return n.emit("select", n.emit("gt", known, n.like(0, known)), result, n.like(default, result))


def _table(n: Call) -> tuple[Any, Any, Any]:
    if any(n.attr(name) for name in ("keys_strings", "values_strings", "classes_strings")):
        raise UnsupportedError("a LabelEncoder of strings is not supported")
    results = []
    for side in ("keys", "values"):
        floats, tensor = numbers(n, f"{side}_floats"), n.attr(f"{side}_tensor")
        ints = indices(n, f"{side}_int64s")
        results.append(
            np.asarray(tensor.array).reshape(-1) if tensor is not None else ints if floats is None else floats
        )
    keys, values = results
    defaults = n.attr("default_tensor"), n.attr("default_float", -0.0), n.attr("default_int64", -1)
    n.attr("default_string")
    if defaults[0] is not None:
        return keys, values, np.asarray(defaults[0].array).reshape(-1)[0]
    return keys, values, defaults[1] if values.dtype.kind == "f" else defaults[2]
