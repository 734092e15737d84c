"""Decision trees of any format to the tables that the operator `forest` takes.

Formats differ in the conditions of nodes and in how they store trees. Here every condition has become
`x <= threshold`, and the nodes of all trees are in one set of arrays. Trees from files are checked: no node has two
parents, and there is no cycle.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError

Array = np.ndarray[Any, Any]

MASK_BITS = 64
"""Leaves of the largest tree whose inner nodes have bit masks of the leaves that a false condition excludes."""


@dataclass(frozen=True, slots=True)
class Trees:
    """All nodes of an ensemble of decision trees. An inner node goes left where `x[feature] <= threshold`; a leaf has
    -1 for children and `leaf` names its row of `values`."""

    feature: Array  # int64[nodes]
    threshold: Array  # float[nodes]
    left: Array  # int64[nodes]
    right: Array  # int64[nodes]
    leaf: Array  # int64[nodes]
    root: Array  # int64[trees]
    group: Array  # int64[trees]: whose result a tree is part of
    values: Array  # float[leaves, width]


@dataclass(frozen=True, slots=True)
class _Placed:
    """The position of each node: `tree` and `level`, and the leaves below it, `count` of them from number `first` of
    its tree on. `order` lists the nodes level by level."""

    order: Array  # nodes, level by level, neighbours side by side
    tree: Array  # by node
    level: Array
    first: Array  # the first leaf below, counted from the left within the tree
    count: Array  # how many leaves


def tables(trees: Trees, groups: int) -> list[Array]:
    """The tables of the operator `forest` for trees in `groups` groups, in the order of its inputs after x; without the
    masks if a tree is too large for them. Raises ModelError if the nodes are no trees."""
    placed = _place(trees)
    depth = np.zeros(len(trees.root), np.int64)
    np.maximum.at(depth, placed.tree[placed.order], placed.level[placed.order])
    ranked = np.lexsort((depth, trees.group))  # the trees of a group by their depth
    rank = np.empty_like(ranked)
    rank[ranked] = np.arange(len(ranked))
    order = placed.order[np.argsort(rank[placed.tree[placed.order]], kind="stable")]
    number = np.full(len(trees.feature), -1, np.int64)
    number[order] = np.arange(len(order))

    leaves_of = placed.count[trees.root[ranked]]
    first_leaf = np.concatenate([[0], np.cumsum(leaves_of)[:-1]]).astype(np.int64)
    inner = trees.left[order] >= 0
    row = np.where(inner, 0, first_leaf[rank[placed.tree[order]]] + placed.first[order])
    values = np.empty((int(leaves_of.sum()), trees.values.shape[1]), trees.values.dtype)
    values[row[~inner]] = trees.values[trees.leaf[order[~inner]]]

    child = np.where(inner, number[trees.left[order]], np.arange(len(order)) - 1)
    threshold = np.where(inner, trees.threshold[order], np.nan).astype(trees.threshold.dtype)
    feature = np.where(inner, trees.feature[order], 0)
    starts = np.searchsorted(trees.group[ranked], np.arange(groups + 1))
    results = [_i32(feature), threshold, _i32(child), _i32(row), _i32(number[trees.root[ranked]]), _i32(depth[ranked])]
    results += [values, _i32(starts)]
    if inner.any() and leaves_of.max() <= MASK_BITS:
        results += _masks(trees, placed, order[inner], rank, first_leaf, int(leaves_of.max()))
    return results


def _masks(trees: Trees, placed: _Placed, inner: Array, rank: Array, first_leaf: Array, leaves: int) -> list[Array]:
    """The tables for the evaluation of trees by bit masks. Each node of `inner`, the inner nodes, has a mask with a bit
    for each of at most `leaves` leaves of its tree, without the leaves below its left child; the mask applies where the
    node's condition is false. `rank` is the position of each tree, and `first_leaf` the number of the first leaf of the
    tree at each position."""
    columns, column = np.unique(trees.feature[inner], return_inverse=True)
    below = trees.left[inner]
    count, first = placed.count[below].astype(np.uint64), placed.first[below].astype(np.uint64)
    gone = ((np.uint64(1) << count) - np.uint64(1)) << first
    kind = np.uint32 if leaves <= 32 else np.uint64
    begins = np.searchsorted(rank[placed.tree[inner]], np.arange(len(rank) + 1))
    threshold = trees.threshold[inner]
    return [_i32(columns), _i32(column), threshold, (~gone).astype(kind), _i32(begins), _i32(first_leaf)]


def _place(trees: Trees) -> _Placed:
    """The positions of all nodes that can be reached from the roots. Raises ModelError if a node has several
    parents."""
    nodes = len(trees.feature)
    tree, level = np.full(nodes, -1, np.int64), np.zeros(nodes, np.int64)
    first, count = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    front, levels = trees.root, []
    tree[front] = np.arange(len(front))
    seen = len(front)
    if len(np.unique(front)) != seen:
        raise ModelError("two trees have the same root")
    while len(front):
        levels.append(front)
        level[front] = len(levels) - 1
        parents = front[trees.left[front] >= 0]
        front = np.stack([trees.left[parents], trees.right[parents]], axis=1).reshape(-1)
        seen += len(front)
        if seen > nodes or (tree[front] >= 0).any() or len(np.unique(front)) != len(front):
            raise ModelError("the nodes are no trees: one has several parents")
        tree[front] = np.repeat(tree[parents], 2)
    for front in reversed(levels):
        inner = front[trees.left[front] >= 0]
        count[front] = 1
        count[inner] = count[trees.left[inner]] + count[trees.right[inner]]
    for front in levels:
        inner = front[trees.left[front] >= 0]
        first[trees.left[inner]] = first[inner]
        first[trees.right[inner]] = first[inner] + count[trees.left[inner]]
    return _Placed(np.concatenate(levels) if levels else np.zeros(0, np.int64), tree, level, first, count)


def _i32(values: Array) -> Array:
    if values.size and max(abs(int(values.min())), abs(int(values.max()))) >= 1 << 31:
        raise ModelError("the trees are too large", expected="less than 2^31 nodes and features")
    return values.astype(np.int32)


MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
"""The questions that a node may ask of a feature, in ONNX's order: <=, <, >=, >, ==, !=, and whether it is one of some
values."""
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)


@dataclass(frozen=True, slots=True)
class Questions:
    """The conditions of inner nodes as a file states them, by `mode` (a comparison or membership of a set). NaN makes a
    condition false, except for `NEQ` and where `nan_true`."""

    feature: Array  # int64[nodes]
    mode: Array  # int64[nodes]
    value: Array  # float[nodes]
    nan_true: Array  # bool[nodes]
    members: dict[int, Array]  # by node


@dataclass(frozen=True, slots=True)
class Column:
    """A computed column of the input: 1 where `feature` equals one of `members` (or is NaN, if `nan_true`), else 0."""

    feature: int
    members: tuple[float, ...]
    nan_true: bool


@dataclass(frozen=True, slots=True)
class Comparisons:
    """The conditions of inner nodes as `x[feature] <= threshold`, where x is the features (NaN as minus infinity if
    `low`) followed by the computed `columns`. The children of nodes in `swapped` are exchanged."""

    feature: Array
    threshold: Array
    swapped: Array
    low: bool
    columns: tuple[Column, ...]


def comparisons(asked: Questions, features: int) -> Comparisons:
    """The conditions of all inner nodes in the form `x[feature] <= threshold`. `x < v` compares with the number below
    v; `x > v` is `x <= v` with the two branches exchanged; equality and membership are columns that are computed, 0 or
    1, and compared with a half."""
    mode, value = asked.mode, asked.value
    below = np.isin(mode, (LT, GTE))
    threshold = np.where(below, np.nextafter(value, -np.inf, dtype=value.dtype), value)
    swapped = np.isin(mode, (GTE, GT, EQ, MEMBER))
    nan_left = np.where(np.isin(mode, (GTE, GT)), ~asked.nan_true, asked.nan_true) & (mode < EQ)
    low = bool(nan_left.any())
    feature = np.where(nan_left, asked.feature + features, asked.feature)
    columns: dict[Column, int] = {}
    after = features * (2 if low else 1)
    for node in np.flatnonzero(mode >= EQ).tolist():
        members = asked.members[node] if mode[node] == MEMBER else value[node : node + 1]
        # NEQ is the negation of EQ, so that NaN is another thing than every number without being asked for.
        column = Column(
            int(asked.feature[node]),
            tuple(sorted(members.tolist())),
            bool(asked.nan_true[node]) and bool(mode[node] != NEQ),
        )
        feature[node] = after + columns.setdefault(column, len(columns))
        threshold[node] = 0.5
    return Comparisons(feature, threshold, swapped, low, tuple(columns))
