"""The constants of a file that its exporter computed from weights that are in the file too.

PyTorch's exporters fold what depends on weights alone: `exp(log_std)` becomes a constant, and the file does not say
from which weight, so that an update of the weights would not change it. The origin is inferred by comparing numbers: a
constant is derived if it is a permutation of a weight's elements, an affine function of a function of a weight, or the
sum, difference, product or quotient of two weights. Weights that only occur in other computations cannot be recovered
from the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.onnx.exported import Exported
from tilewright.frontend.onnx.external import Folder
from tilewright.frontend.onnx.tensors import DTYPES, to_array

Array = np.ndarray[Any, np.dtype[Any]]

MAX_ELEMENTS = 1 << 16
"""The most elements of tensors that are examined: exporters fold small ones."""
MIN_EVIDENCE = 4
"""The least number of distinct elements from which it is concluded that a constant was computed from a weight: fewer
may be equal by accident."""
MAX_PAIRS = 1 << 9
"""Pairs of weights that are tried for one constant."""
TOLERANCE = 3e-6
"""The tolerance by a constant's largest magnitude: a function in another library differs by some roundings."""

FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "identity": lambda w: w,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda w: 1 / np.sqrt(w),
    "reciprocal": lambda w: 1 / w,
    "pow": np.square,
    "abs": np.abs,
    "neg": np.negative,
    "relu": lambda w: np.maximum(w, 0),
    "sigmoid": lambda w: 1 / (1 + np.exp(-w)),
    "tanh": np.tanh,
    "softplus": lambda w: np.log1p(np.exp(w)),
    "softmax": lambda w: _softmax(w),
    "sin": np.sin,
    "cos": np.cos,
}
"""Functions of one weight, by the names that PyTorch gives their results."""


ABSENT = "it is not in the file: its exporter folded it into constants, or nothing reads it"


def folded_weights(model: onnx.ModelProto, module: Exported, folder: Folder | None) -> dict[str, str]:
    """The weights of `module` that the file `model` lacks, or from which its exporter computed other constants: each
    name with an explanation."""
    constants: dict[str, Array] = {}
    weights: dict[str, Array] = {}
    result = dict.fromkeys(module.missing(model), ABSENT)
    for tensor in model.graph.initializer:
        t = DTYPES.get(tensor.data_type)
        if t is None or not t.is_float or tensor.name in module.transposed or not 0 < size(tensor) <= MAX_ELEMENTS:
            continue
        group = weights if module.is_weight(tensor.name) else constants
        group[tensor.name] = to_array(tensor, f"initializer {tensor.name!r}", folder)
    for weight, constant in sources(constants, weights).items():
        result[weight] = f"its exporter computed the constant {constant!r} of the file from it"
    return result


def size(tensor: onnx.TensorProto) -> int:
    """The number of elements of a tensor, by its stated shape."""
    return math.prod(tensor.dims)


def sources(constants: Mapping[str, Array], weights: Mapping[str, Array]) -> dict[str, str]:
    """Weight name -> the name of a constant that the exporter computed from that weight."""
    wide = {name: w.astype(np.float64) for name, w in weights.items()}
    ordered = {name: np.sort(w, axis=None) for name, w in wide.items()} if constants else {}
    result: dict[str, str] = {}
    for name, constant in constants.items():
        if not np.isfinite(constant).all():
            continue
        with np.errstate(all="ignore"):
            names = _sources(name, constant.astype(np.float64), wide, ordered)
        for weight in names:
            result.setdefault(weight, name)
    return result


def _sources(name: str, constant: Array, weights: Mapping[str, Array], ordered: Mapping[str, Array]) -> list[str]:
    """The names of the weights from which the exporter computed `constant`: a function of one weight, a rearrangement
    of several, or a combination of two. `ordered` has each weight's elements in ascending order."""
    function = FUNCTIONS.get(re.sub(r"_\d+$", "", name))
    for weight, w in weights.items():
        if function is not None and w.size == constant.size and _equal(constant.ravel(), function(w).ravel()):
            return [weight]
        if _is_function(constant, w):
            return [weight]
    return _moved(constant, ordered) or _of_two(constant, weights)


def _is_function(constant: Array, weight: Array) -> bool:
    """Whether a constant is `a * f(weight) + b` with one of the functions, element by element."""
    values = constant.ravel()
    if weight.size != values.size or len(_distinct(values)) < MIN_EVIDENCE:
        return False
    orders = [weight.ravel()] if weight.ndim < 2 else [weight.ravel(), weight.T.ravel()]
    return any(_is_affine(values, f(order)) for order in orders for f in FUNCTIONS.values())


def _is_affine(values: Array, x: Array) -> bool:
    if not np.isfinite(x).all() or np.ptp(x) == 0:
        return False
    low, high = int(x.argmin()), int(x.argmax())
    factor = (values[high] - values[low]) / (x[high] - x[low])
    return factor != 0 and _equal(values, values[low] + factor * (x - x[low]))


def _moved(constant: Array, ordered: Mapping[str, Array]) -> list[str]:
    """The names of the weights, in `ordered`, from which the elements of `constant` were collected: the ones that
    contain at least `MIN_EVIDENCE` of its distinct values, not counting 0, 1 and -1. [] unless together they contain
    all values."""
    values = _distinct(constant)
    values = values[(np.abs(values) != 1) & (values != 0)]
    if len(values) < MIN_EVIDENCE or not any(_among(values[:1], elements)[0] for elements in ordered.values()):
        return []
    left, names = values, []
    for name, elements in ordered.items():
        if _among(values, elements).sum() >= MIN_EVIDENCE:
            names.append(name)
            left = left[~_among(left, elements)]
    return [] if len(left) else names


def _distinct(values: Array) -> Array:
    """The different values of an array that has no NaN, ascending. NumPy's `unique` loads its masked arrays, which take
    a process longer than all that is done here."""
    ordered = np.sort(values, axis=None)
    distinct: Array = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return distinct


def _among(values: Array, ordered: Array) -> Array:
    """For each of `values`, whether it occurs in the sorted array `ordered`, which is not empty."""
    places = np.searchsorted(ordered, values).clip(max=len(ordered) - 1)
    is_there: Array = ordered[places] == values
    return is_there


def _of_two(constant: Array, weights: Mapping[str, Array]) -> list[str]:
    """The names of two weights whose sum, difference, product or quotient is `constant`; [] if there are none."""
    if len(_distinct(constant)) < MIN_EVIDENCE:
        return []
    fitting = [(name, w) for name, w in weights.items() if _fits(w.shape, constant.shape)]
    for k, ((one, a), (other, b)) in enumerate(combinations(fitting, 2)):
        if k >= MAX_PAIRS:
            break
        if math.prod(np.broadcast_shapes(a.shape, b.shape)) != constant.size:
            continue
        if any(_equal(constant.ravel(), result.ravel()) for result in (a * b, a + b, a - b, b - a, a / b, b / a)):
            return [one, other]
    return []


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to the shape `whole`."""
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(d in (1, n) for d, n in pairs)


def _equal(a: Array, b: Array) -> bool:
    return bool(np.abs(a - b).max() <= TOLERANCE * np.abs(a).max())


def _softmax(w: Array) -> Array:
    raised = np.exp(w - w.max(-1, keepdims=True)) if w.ndim else np.exp(w - w)
    result: Array = raised / raised.sum(-1, keepdims=True)
    return result


__all__ = ["folded_weights"]
