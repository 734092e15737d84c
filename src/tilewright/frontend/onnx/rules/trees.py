"""Rules for ensembles of decision trees: TreeEnsembleRegressor, TreeEnsembleClassifier, TreeEnsemble (ai.onnx.ml)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.frontend.common.forest import MEMBER, MODES, Questions, Trees, comparisons, tables
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.functions import Tensor
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.rules.scores import above, class_of, pair_of, post_transform
from tilewright.ir.dtype import DType, f32, f64
from tilewright.ir.expr import as_int, product
from tilewright.ir.graph import Value
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, UnsupportedError

Array = np.ndarray[Any, Any]

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Decision trees as a file states them, with all nodes in one set of arrays. `yes` and `no` are the positions of a
    node's children, -1 for leaves; weight k adds to target `weight_target[k]` in leaf `weight_leaf[k]`."""

    questions: Questions
    yes: Array
    no: Array
    root: Array
    weight_leaf: Array  # int64[weights]
    weight_target: Array
    weight: Array
    targets: int


# --- the three forms of files -----------------------------------------------------------------------------------------


@rule("ai.onnx.ml.TreeEnsembleRegressor")
def regressor(n: Call) -> Value:
    ensemble = _by_pairs(n, "target", n.integer("n_targets", 1))
    base = numbers(n, "base_values")
    y = run(n, ensemble, n.text("aggregate_function", "SUM"), base, f32)
    return post_transform(n, y, n.text("post_transform", "NONE"))


@rule("ai.onnx.ml.TreeEnsembleClassifier")
def classifier(n: Call) -> list[Value]:
    if n.attr("classlabels_strings"):
        raise UnsupportedError("classes that are called by strings are not supported")
    labels = n.ints("classlabels_int64s", [])
    assert labels is not None
    ensemble = _by_pairs(n, "class", len(labels))
    base = numbers(n, "base_values")
    ids = set(ensemble.weight_target.tolist())
    post = n.text("post_transform", "NONE")
    if len(ids) > 1 or len(labels) > 2:
        return class_of(n, run(n, ensemble, "SUM", base, f32), labels, post)
    # One class alone has weights: the other one's score follows from its own.
    second = ids == {1} and len(labels) == 2
    if base is not None and (len(base) > 1 or second):
        raise UnsupportedError("base values of two classes with weights for one are not supported", got=base.tolist())
    inside(ensemble.weight_target, len(labels), "class_ids")
    own = run(n, replace(ensemble, weight_target=np.zeros_like(ensemble.weight_target), targets=1), "SUM", base, f32)
    if len(labels) == 1:
        return [above(n, own, 0.0, (0, 1)), own]
    positive = not (ensemble.weight < 0).any()
    threshold = 0.5 if positive else 0.0
    if second:
        pair = n.emit("concat", n.emit("broadcast", n.like(0, own), shape=own.shape), own, axis=1)
        return [above(n, own, threshold, labels), post_transform(n, pair, post)]
    return [above(n, own, threshold, labels), pair_of(n, own, post, complement=positive)]


@rule("ai.onnx.ml.TreeEnsemble")
def ensemble_5(n: Call) -> Value:
    feature = indices(n, "nodes_featureids")
    inner = len(feature)
    mode = _tensor(n, "nodes_modes").astype(np.int64).reshape(-1)
    value = _tensor(n, "nodes_splits").reshape(-1)
    yes, yes_leaf = indices(n, "nodes_truenodeids"), indices(n, "nodes_trueleafs") != 0
    no, no_leaf = indices(n, "nodes_falsenodeids"), indices(n, "nodes_falseleafs") != 0
    tracks = indices(n, "nodes_missing_value_tracks_true", np.zeros(inner, np.int64)) != 0
    same_length(inner, nodes_modes=mode, nodes_splits=value, nodes_truenodeids=yes, nodes_trueleafs=yes_leaf)
    same_length(inner, nodes_falsenodeids=no, nodes_falseleafs=no_leaf, nodes_missing_value_tracks_true=tracks)
    weights, targets = _tensor(n, "leaf_weights").reshape(-1), indices(n, "leaf_targetids")
    same_length(len(weights), leaf_targetids=targets)
    root = inside(indices(n, "tree_roots"), inner, "tree_roots")
    for ids, leaf, what in ((yes, yes_leaf, "nodes_truenodeids"), (no, no_leaf, "nodes_falsenodeids")):
        inside(ids[leaf], len(weights), what)
        inside(ids[~leaf], inner, what)
    # Each way into a leaf becomes a node of its own, as a leaf may be reached by several.
    ways = np.concatenate([yes[yes_leaf], no[no_leaf]])
    yes, no = yes.copy(), no.copy()
    yes[yes_leaf] = inner + np.arange(yes_leaf.sum())
    no[no_leaf] = inner + yes_leaf.sum() + np.arange(no_leaf.sum())
    members = _members(n, mode, inner)
    leaves = len(ways)
    questions = Questions(
        _padded(feature, leaves, 0),
        _padded(mode, leaves, 0),
        _padded(value, leaves, 0),
        _padded(tracks, leaves, False),
        members,
    )
    created = Ensemble(
        questions,
        _padded(yes, leaves, -1),
        _padded(no, leaves, -1),
        root,
        inner + np.arange(leaves),
        targets[ways],
        weights[ways],
        n.integer("n_targets", 1),
    )
    aggregate, post = n.integer("aggregate_function", 1), n.integer("post_transform", 0)
    n.attr("nodes_hitrates")
    if not 0 <= aggregate < len(AGGREGATES):
        raise ModelError("no such aggregate_function", expected=f"0 to {len(AGGREGATES) - 1}", got=aggregate)
    y = run(n, created, AGGREGATES[aggregate], None, n.dtype(0))
    posts = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    if not 0 <= post < len(posts):
        raise ModelError("no such post_transform", expected=f"0 to {len(posts) - 1}", got=post)
    return post_transform(n, y, posts[post])


def _by_pairs(n: Call, what: str, targets: int) -> Ensemble:
    """The trees of a TreeEnsembleRegressor or TreeEnsembleClassifier with `targets` targets, in which a node is named
    by (tree, number in the tree); `what` is the prefix of the attributes with leaf weights. Raises ModelError for
    references to missing nodes."""
    tree, node = indices(n, "nodes_treeids"), indices(n, "nodes_nodeids")
    count = len(tree)
    names = _Pairs(tree, node)
    modes = n.attr("nodes_modes", [])
    feature = indices(n, "nodes_featureids")
    value = numbers(n, "nodes_values")
    tracks = indices(n, "nodes_missing_value_tracks_true", np.zeros(count, np.int64)) != 0
    yes, no = indices(n, "nodes_truenodeids"), indices(n, "nodes_falsenodeids")
    n.attr("nodes_hitrates"), n.attr("nodes_hitrates_as_tensor")
    value = np.zeros(0, np.float32) if value is None else value
    same_length(count, nodes_nodeids=node, nodes_modes=modes, nodes_featureids=feature, nodes_values=value)
    same_length(count, nodes_missing_value_tracks_true=tracks, nodes_truenodeids=yes, nodes_falsenodeids=no)
    mode = _modes(modes)
    inner = mode >= 0
    yes = np.where(inner, names.find(tree, np.where(inner, yes, node), "nodes_truenodeids"), -1)
    no = np.where(inner, names.find(tree, np.where(inner, no, node), "nodes_falsenodeids"), -1)
    child = np.zeros(count, bool)
    child[yes[inner]] = child[no[inner]] = True
    root = np.flatnonzero(~child)
    if len(np.unique(tree[root])) != len(root) or len(root) != len(np.unique(tree)):
        raise ModelError("a tree has no root, or several")
    leaf = names.find(indices(n, f"{what}_treeids"), indices(n, f"{what}_nodeids"), f"{what}_nodeids")
    target, weight = indices(n, f"{what}_ids"), numbers(n, f"{what}_weights")
    weight = np.zeros(0, np.float32) if weight is None else weight
    same_length(len(leaf), **{f"{what}_ids": target, f"{what}_weights": weight})
    if inner[leaf].any():
        raise ModelError("an inner node has a weight")
    questions = Questions(feature, np.maximum(mode, 0), value, tracks, {})
    return Ensemble(questions, yes, no, root, leaf, target, weight, targets)


class _Pairs:
    """A map from (tree, number in the tree) to the position of the node in the arrays."""

    def __init__(self, tree: Array, node: Array) -> None:
        same_length(len(tree), nodes_nodeids=node)
        if len(tree) and (min(tree.min(), node.min()) < 0 or max(tree.max(), node.max()) >= 1 << 31):
            raise ModelError("numbers of trees and nodes must be below 2^31")
        keys = tree << 31 | node
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        if (self.keys[1:] == self.keys[:-1]).any():
            raise ModelError("two nodes of a tree have the same number")

    def find(self, tree: Array, node: Array, what: str) -> Array:
        same_length(len(tree), **{what: node})
        keys = tree << 31 | node
        at = np.minimum(np.searchsorted(self.keys, keys), max(len(self.keys) - 1, 0))
        if len(keys) and (not len(self.keys) or (self.keys[at] != keys).any()):
            raise ModelError(f"{what} names a node that is not there")
        return self.order[at] if len(keys) else np.zeros(0, np.int64)


# --- from files to the operator ---------------------------------------------------------------------------------------


def run(n: Call, ensemble: Ensemble, aggregate: str, base: Array | None, to: DType) -> Value:
    """The scores [rows, targets] of an ensemble for the node's input, with the weights of leaves combined as
    `aggregate` says, plus `base`, in type `to`."""
    if aggregate not in AGGREGATES:
        raise ModelError("no such aggregate_function", expected=", ".join(AGGREGATES), got=aggregate)
    x = n.value(0)
    x = x if x.dtype is f64 else n.cast(x, f32)
    x = n.reshape(x, (x.shape[0], product(x.shape[1:]))) if x.type.rank != 1 else n.reshape(x, (1, x.shape[0]))
    features = as_int(x.shape[1])
    if features is None:
        raise UnsupportedError("the number of features must be known when compiling", got=x.type)
    asked = ensemble.questions
    inner = ensemble.yes >= 0
    inside(asked.feature[inner], features, "nodes_featureids")
    inside(ensemble.weight_target, ensemble.targets, "the target of a weight")
    result = comparisons(asked, features)
    left = np.where(result.swapped & inner, ensemble.no, ensemble.yes)
    right = np.where(result.swapped & inner, ensemble.yes, ensemble.no)
    work = x.dtype
    combine = {"MIN": "min", "MAX": "max"}.get(aggregate, "sum")
    leaf, values, group, groups = _leaves(ensemble, combine, work)
    trees = Trees(result.feature, result.threshold.astype(work.numpy), left, right, leaf, ensemble.root, group, values)
    x = _columns(n, x, result.low, result.columns)
    y = n.emit("forest", x, *(n.constant(table) for table in tables(trees, groups)), combine=combine)
    if aggregate == "AVERAGE":
        y = n.emit("div", y, n.like(max(len(ensemble.root), 1), y))
    if base is not None:
        if len(base) not in (1, ensemble.targets):
            raise ModelError("base_values must be one for each target", expected=ensemble.targets, got=len(base))
        y = n.emit("add", y, n.constant(base, y.dtype))
    return n.cast(y, to)


def _leaves(ensemble: Ensemble, combine: str, work: DType) -> tuple[Array, Array, Array, int]:
    """(row of the values for each leaf, -1 for inner nodes; the values, of type `work`; group of each tree; number of
    groups). If each leaf has one weight, and a tree's leaves have one target, trees are grouped by target; else there
    is one group, with a column of the values for each target. Several weights of a leaf for one target are combined by
    `combine`: "sum", "min" or "max"."""
    nodes, targets = len(ensemble.yes), ensemble.targets
    is_leaf = ensemble.yes < 0
    leaf = np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)
    owner = _trees_of(ensemble)
    tree = owner[ensemble.weight_leaf]
    group = np.full(len(ensemble.root), -1, np.int64)
    group[tree] = ensemble.weight_target
    once = np.bincount(ensemble.weight_leaf, minlength=nodes)[is_leaf & (owner >= 0)]
    single = bool((group[tree] == ensemble.weight_target).all() and (once == 1).all())
    default = {"sum": 0.0, "min": np.finfo(work.numpy).max, "max": np.finfo(work.numpy).min}[combine]
    values = np.full((int(is_leaf.sum()), 1 if single or targets == 1 else targets), default, work.numpy)
    at = ensemble.weight_target if values.shape[1] > 1 else np.zeros_like(ensemble.weight_target)
    ufunc: Any = {"sum": np.add, "min": np.minimum, "max": np.maximum}[combine]
    ufunc.at(values, (leaf[ensemble.weight_leaf], at), ensemble.weight.astype(work.numpy))
    if single and targets > 1:
        return leaf, values, group, targets
    return leaf, values, np.zeros(len(ensemble.root), np.int64), 1


def _trees_of(ensemble: Ensemble) -> Array:
    """For each node the number of the tree that contains it, -1 if no root reaches it. It terminates for cycles as
    well, which `tables` refuses."""
    owner = np.full(len(ensemble.yes), -1, np.int64)
    front, tree = ensemble.root, np.arange(len(ensemble.root))
    while len(front):
        new = owner[front] < 0
        front, tree = front[new], tree[new]
        owner[front] = tree
        inner = ensemble.yes[front] >= 0
        tree = np.concatenate([tree[inner]] * 2)
        front = np.concatenate([ensemble.yes[front[inner]], ensemble.no[front[inner]]])
    return owner


def _columns(n: Call, x: Value, low: bool, columns: Sequence[Any]) -> Value:
    """The features `x` (if `low`, with minus infinity for NaN), followed by a 0/1 column for each condition in
    `columns`."""
    parts = [x]
    if low:
        parts.append(n.emit("select", n.emit("isnan", x), n.like(-np.inf, x), x))
    for column in columns:
        feature = n.slice(x, 1, column.feature, 1)
        yes = n.emit("isnan", feature) if column.nan_true else None
        for member in column.members:
            same = n.emit("eq", feature, n.like(member, feature))
            yes = same if yes is None else n.emit("or", yes, same)
        parts.append(n.emit("mul", n.like(0, feature), n.like(0, feature)) if yes is None else n.cast(yes, x.dtype))
    return parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=1)


# --- attributes -------------------------------------------------------------------------------------------------------


def indices(n: Call, name: str, default: Array | None = None) -> Array:
    """The node's attribute `name`, a list of integers, as an array; `default` if it is absent."""
    result = n.ints(name)
    if not result:
        return np.zeros(0, np.int64) if default is None else default
    return np.array(result, np.int64)


def numbers(n: Call, name: str) -> Array | None:
    """An attribute of floats: a list (f32), or a tensor in the attribute of the same name with "_as_tensor"."""
    tensor, result = n.attr(f"{name}_as_tensor"), n.attr(name)
    if isinstance(tensor, Tensor) and tensor.array.size:
        return np.asarray(tensor.array).reshape(-1)
    if not result:
        return None
    if not isinstance(result, list) or not all(isinstance(v, int | float) for v in result):
        raise ModelError(f"attribute {name} must be a list of numbers")
    return np.array(result, np.float32)


def _tensor(n: Call, name: str) -> Array:
    tensor = n.attr(name)
    if not isinstance(tensor, Tensor):
        raise ModelError(f"attribute {name} must be a tensor")
    return np.asarray(tensor.array)


def _modes(modes: Any) -> Array:
    """Each node's mode as a number, -1 for leaves. Raises ModelError for unknown modes."""
    known = {name.encode(): k for k, name in enumerate(MODES[:MEMBER])} | {b"LEAF": -1}
    if not isinstance(modes, list) or any(m not in known for m in set(modes)):
        raise ModelError("no such mode of a node", expected=", ".join(k.decode() for k in known))
    return np.array([known[m] for m in modes], np.int64)


def _members(n: Call, mode: Array, inner: int) -> dict[int, Array]:
    """For each node of mode MEMBER (`mode` has every node's): its number and the set of values that it tests for. The
    attribute `membership_values` lists these sets in the order of the nodes, each ended by a NaN. Raises ModelError for
    another number of sets."""
    if (mode < 0).any() or (mode >= len(MODES)).any():
        raise ModelError("no such mode of a node", expected=f"0 to {len(MODES) - 1}")
    nodes = np.flatnonzero(mode == MEMBER)
    values = _tensor(n, "membership_values").reshape(-1) if n.attr("membership_values") is not None else np.zeros(0)
    ends = np.flatnonzero(np.isnan(values))
    if len(ends) != len(nodes):
        raise ModelError(
            "membership_values must have a list for each node of that mode", expected=len(nodes), got=len(ends)
        )
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64) if len(ends) else ends
    return {int(k): values[a:b] for k, a, b in zip(nodes, starts, ends, strict=True)}


def _padded(values: Array, count: int, value: Any) -> Array:
    return np.concatenate([values, np.full(count, value, values.dtype)])


def same_length(count: int, **attributes: Any) -> None:
    for name, value in attributes.items():
        if len(value) != count:
            raise ModelError(f"attribute {name} has another length than its fellows", expected=count, got=len(value))


def inside(values: Array, count: int, what: str) -> Array:
    if len(values) and (values.min() < 0 or values.max() >= count):
        raise ModelError(f"{what} is outside", expected=f"0 to {count - 1}", got=f"{values.min()} to {values.max()}")
    return values
