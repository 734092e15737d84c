"""Ensembles of decision trees.

Each inner node tests `x[feature] <= threshold`: true goes left, false (NaN too) right. A tree returns the values of the
leaf that is reached, and the trees of a group are summed, or their minimum or maximum is used. The trees are operands
(tables), so that the compiled code serves any forest of the same size; frontends rewrite all other conditions to this
one (`frontend/common/forest.py`).

A kernel has two algorithms, and chooses by the number of rows.

walk   From the root down, several trees of one row (or one tree of several rows) side by side, without branches:
       children are neighbours, so the next node is `child + (not left)`. A leaf leads to itself.
masks  For trees of at most 64 leaves and several rows, which stand in the lanes of vectors. Each inner node knows the
       leaves that are out of reach when its answer is no; all nodes are asked in any order, and the first leaf that is
       left is where the tree ends (QuickScorer: Lucchese et al., SIGIR 2015). No loads depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import DType, dtype, f32, f64, i32, i64, u32, u64
from tilewright.ir.expr import Buffer, Expr, Op, as_int, call, cast, const, maximum, minimum, select
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import check_kind, present, scalar
from tilewright.ops.loopnest import Nest, buffers
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import DTypeError, ShapeError

Out = tuple[TensorType, ...]
Combine = Literal["sum", "min", "max"]

SIDE_BY_SIDE = 8
"""The number of walks that run interleaved: enough to hide the latency of the two loads of each step."""
STEPS = 4
"""The number of levels between two checks whether all walks have ended."""
LANES = 32
"""The number of rows of a block in the algorithm by masks: each node's feature, threshold and leaves are loaded once
for all of them."""
TOGETHER = 64
"""The number of rows that pass through a tree before the next tree is processed, in the algorithm by walks."""


@dataclass(frozen=True, slots=True)
class ForestAttrs(Attrs):
    """Attributes of `forest`. `combine`, "sum", "min" or "max", says how the values of the leaves that a row reaches in
    the trees of one group become the score of this group."""

    combine: str = "sum"


@dataclass(frozen=True, slots=True)
class Walk:
    """The nodes of all trees, inner ones and leaves, as a walk from the roots reads them. `child` is a node's left
    child; the right one follows it. A leaf leads to itself: its threshold is NaN, which sends every walk to the right,
    and its child is the node before the leaf. `leaf` is the row of a leaf in the values."""

    feature: Buffer  # i32[nodes]
    threshold: Buffer  # [nodes]
    child: Buffer  # i32[nodes]
    leaf: Buffer  # i32[nodes]
    root: Buffer  # i32[trees]
    depth: Buffer  # i32[trees]: inner nodes on the longest way down


@dataclass(frozen=True, slots=True)
class Masks:
    """The inner nodes of all trees, tree by tree, for the algorithm by masks. `leaves` is a mask of the leaves that can
    still be reached if a node's condition is false."""

    column: Buffer  # i32[columns]: the features that are asked for
    feature: Buffer  # i32[inner]: which of the columns
    threshold: Buffer  # [inner]
    leaves: Buffer  # u32 or u64[inner]
    first_node: Buffer  # i32[trees + 1]
    first_leaf: Buffer  # i32[trees]: a row of the values


NAMES = (
    "x feature threshold child leaf root depth values starts "
    "column mask_feature mask_threshold mask_leaves first_node first_leaf"
).split()
"""The names of the inputs: x [rows, features]; the tables of `Walk`; values [leaves, width]; starts i32[groups + 1],
the trees of each group; the tables of `Masks`, which may be absent."""

_RANKS = {"x": 2, "values": 2}
_TYPES = {"values": (f32, f64), "mask_leaves": (u32, u64)}


def _infer(types: Types, attrs: ForestAttrs) -> Out:
    """The type rule of `forest`: inputs as in `NAMES` to scores [rows, groups * width], of the values' type."""
    if attrs.combine not in get_args(Combine):
        raise ShapeError("no such way to combine trees", expected=", ".join(get_args(Combine)), got=attrs.combine)
    named = dict(zip(NAMES, types, strict=False))
    for name in NAMES[: 9 if named.get("column") is None else None]:
        t = present(named.get(name), name)
        if t.rank != _RANKS.get(name, 1):
            raise ShapeError(f"{name} has another rank", expected=_RANKS.get(name, 1), got=t)
    x, values, starts = present(types[0]), present(types[7]), present(types[8])
    check_kind(x.dtype, ("float",))
    for name, case in named.items():
        expected = (x.dtype,) if name in ("x", "threshold", "mask_threshold") else _TYPES.get(name, (i32,))
        if case is not None and case.dtype not in expected:
            raise DTypeError(f"{name} has another type", expected=" or ".join(map(str, expected)), got=case)
    return (TensorType(values.dtype, (x.shape[0], (starts.shape[0] - 1) * values.shape[1])),)


class _Forest:
    """Builds the loop program that evaluates a forest of decision trees."""

    def __init__(self, arguments: Sequence[Buffer | None], y: Buffer, attrs: ForestAttrs) -> None:
        named = {name: buffer for name, buffer in zip(NAMES, arguments, strict=False) if buffer is not None}
        self.x, self.y = named["x"], y
        self.values, self.starts = named["values"], named["starts"]
        self.walk = Walk(*(named[name] for name in NAMES[1:7]))
        self.masks = Masks(*(named[name] for name in NAMES[9:])) if "column" in named else None
        self.rows = self.x.shape[0]
        self.groups = as_int(self.starts.shape[0] - 1) or 0
        self.width = as_int(self.values.shape[1]) or 0
        self.combine = COMBINE[attrs.combine]
        self.start = scalar(start(attrs.combine, y.dtype), y.dtype)
        self.nest = Nest("forest", [b for b in (*arguments, y) if b is not None])

    def build(self) -> PrimFunc:
        """Build the loop program: each block of rows is evaluated with masks of leaves or by walks from the roots, but
        row by row if the block has few rows."""
        nest, masks = self.nest, self.masks
        size = LANES if masks is not None else max(SIDE_BY_SIDE, TOGETHER // max(self.width, 1) // 8 * 8)
        is_short = SIDE_BY_SIDE // 2 if masks is None else self.row_limit(masks)
        with nest.loop("block", (self.rows + (size - 1)) // size, parallel=True) as block:
            first = block * size
            with nest.let("count", minimum(self.rows - first, const(size))) as count:
                with nest.when(count <= is_short), nest.loop("r", count) as r:
                    self.one_row(first + r)
                with nest.when(count > is_short):
                    if masks is None:
                        self.several_rows(first, count, size)
                    else:
                        self.block(masks, first)
        return nest.finish()

    def row_limit(self, masks: Masks) -> int:
        """The largest number of rows of a block for which walks are faster than masks. As measured, a block by masks
        takes as long as one walk for every eight nodes of a tree, or every five with masks of 64 bits."""
        nodes = (as_int(masks.feature.shape[0]) or 0) / max(as_int(self.walk.root.shape[0]) or 1, 1)
        return min(max(1, round(nodes * masks.leaves.dtype.bits / 64 / 4)), LANES - 1)

    # --- walks --------------------------------------------------------------------------------------------------------

    def one_row(self, row: Expr) -> None:
        """Emit the scores of row number `row` by walks from the roots, through eight trees at a time."""
        nest, t = self.nest, self.y.dtype
        with nest.loop("g", self.groups) as g, nest.allocate("total", t, (self.width,)) as total:
            self.clear(total)
            begin, end = (cast(self.starts[g + k], i64) for k in (0, 1))
            with nest.let("begin", begin) as begin, nest.let("end", end) as end:
                with nest.loop("batch", (end - begin + (SIDE_BY_SIDE - 1)) // SIDE_BY_SIDE) as batch:
                    first = begin + batch * SIDE_BY_SIDE

                    def tree(u: Expr) -> Expr:
                        return minimum(first + u, end - 1)

                    with nest.allocate("at", i32, (SIDE_BY_SIDE,)) as at:
                        self.descend(at, lambda u: row, tree, tree(const(SIDE_BY_SIDE - 1)))
                        with nest.loop("u", minimum(end - first, const(SIDE_BY_SIDE))) as u:
                            self.add(total, (), at[u])
            with nest.loop("w", self.width) as w:
                nest.store(self.y, (row, g * self.width + w), total[w])

    def several_rows(self, first: Expr, count: Expr, size: int) -> None:
        """Emit the scores of `count` rows (at most `size`) from row `first` on by walks: eight rows at once through one
        tree after the other, so that its nodes stay in the cache."""
        nest, rows = self.nest, self.rows
        subs = (count + (SIDE_BY_SIDE - 1)) // SIDE_BY_SIDE
        with nest.loop("g", self.groups) as g, nest.allocate("total", self.y.dtype, (size, self.width)) as total:
            with nest.loop("u", size) as u, nest.loop("w", self.width) as w:
                nest.store(total, (u, w), self.start)
            with nest.let("begin", cast(self.starts[g], i64)) as begin:
                with nest.loop("tree", cast(self.starts[g + 1], i64) - begin) as k, nest.loop("sub", subs) as sub:
                    tree, lead = begin + k, sub * SIDE_BY_SIDE
                    with nest.allocate("at", i32, (SIDE_BY_SIDE,)) as at:
                        self.descend(at, lambda u: minimum(first + lead + u, rows - 1), lambda u: tree, tree)
                        with nest.loop("u", SIDE_BY_SIDE, kind="unrolled") as u:
                            self.add(total, (lead + u,), at[u])
            with nest.loop("u", count) as u, nest.loop("w", self.width) as w:
                nest.store(self.y, (first + u, g * self.width + w), total[u, w])

    def descend(self, at: Buffer, row: Callable[[Expr], Expr], tree: Callable[[Expr], Expr], deepest: Expr) -> None:
        """Emit walks from roots to leaves, of row `row(u)` through tree `tree(u)` for each u; at the end `at` holds the
        leaves. The trees of a group are sorted by depth, so that `deepest` is the last of them."""
        nest, walk = self.nest, self.walk
        with nest.loop("u", SIDE_BY_SIDE, kind="unrolled") as u:
            nest.store(at, (u,), walk.root[tree(u)])
        with nest.local("moved", i32) as moved:
            moved.set(1)
            levels = cast(walk.depth[deepest], i64)
            with nest.loop("some", (levels + (STEPS - 1)) // STEPS), nest.when(moved.value > 0):
                for step in range(STEPS):
                    if step == STEPS - 1:
                        moved.set(0)
                    with nest.loop("u", SIDE_BY_SIDE, kind="unrolled") as u:
                        with nest.let("node", cast(at[u], i64)) as node:
                            left = self.x[row(u), cast(walk.feature[node], i64)] <= walk.threshold[node]
                            child = walk.child[node] + select(left, const(0, i32), const(1, i32))
                            if step == STEPS - 1:
                                moved.set(call("bitor", moved.value, call("bitxor", child, at[u])))
                            nest.store(at, (u,), child)

    def clear(self, total: Buffer) -> None:
        with self.nest.loop("w", self.width) as w:
            self.nest.store(total, (w,), self.start)

    def add(self, total: Buffer, lead: tuple[Expr, ...], node: Expr) -> None:
        with (
            self.nest.let("leaf", cast(self.walk.leaf[cast(node, i64)], i64)) as leaf,
            self.nest.loop("w", self.width) as w,
        ):
            at = (*lead, w)
            self.nest.store(total, at, self.combine(total[at], self.values[leaf, w]))

    # --- masks --------------------------------------------------------------------------------------------------------

    def block(self, masks: Masks, first: Expr) -> None:
        """Emit the scores of the rows from `first` on by masks, the rows side by side in vectors; lanes after the last
        row take that row once more."""
        nest, t, bits = self.nest, self.y.dtype, masks.leaves.dtype
        rows = self.rows
        with (
            nest.allocate("columns", self.x.dtype, (masks.column.shape[0], LANES)) as columns,
            nest.allocate("total", t, (self.width, LANES)) as total,
            nest.allocate("left", bits, (LANES,)) as left,
        ):
            with nest.loop("c", masks.column.shape[0]) as c, nest.loop("lane", LANES, kind="vectorized") as lane:
                at = minimum(first + lane, rows - 1)
                nest.store(columns, (c, lane), self.x[at, cast(masks.column[c], i64)])
            with nest.loop("g", self.groups) as g:
                with nest.loop("w", self.width) as w, nest.loop("lane", LANES, kind="vectorized") as lane:
                    nest.store(total, (w, lane), self.start)
                with nest.let("begin", cast(self.starts[g], i64)) as begin:
                    with nest.loop("tree", cast(self.starts[g + 1], i64) - begin) as k:
                        with nest.let("t", begin + k) as tree:
                            self.tree(masks, tree, columns, left)
                            self.leaves(masks, tree, left, total)
                with nest.loop("w", self.width) as w, nest.loop("lane", LANES) as lane:
                    with nest.when(first + lane < rows):
                        nest.store(self.y, (first + lane, g * self.width + w), total[w, lane])

    def tree(self, masks: Masks, tree: Expr, columns: Buffer, left: Buffer) -> None:
        """Emit the computation of a mask for each lane, in `left`: the leaves of a tree that no false condition
        excludes."""
        nest, bits = self.nest, masks.leaves.dtype
        every = const(bits.max, bits)
        with nest.loop("lane", LANES, kind="vectorized") as lane:
            nest.store(left, (lane,), every)
        with nest.let("node", cast(masks.first_node[tree], i64)) as begin:
            with nest.loop("n", cast(masks.first_node[tree + 1], i64) - begin) as n:
                with nest.let("c", cast(masks.feature[begin + n], i64)) as c:
                    with nest.loop("lane", LANES, kind="vectorized") as lane:
                        yes = columns[c, lane] <= masks.threshold[begin + n]
                        retained = select(yes, every, masks.leaves[begin + n])
                        nest.store(left, (lane,), call("bitand", left[lane], retained))

    def leaves(self, masks: Masks, tree: Expr, left: Buffer, total: Buffer) -> None:
        """Emit the addition, to `total`, of the values of each lane's first leaf of the tree `tree` in the mask
        `left`."""
        nest = self.nest
        with nest.let("leaf", masks.first_leaf[tree]) as begin, nest.allocate("leaves", i32, (LANES,)) as leaves:
            with nest.loop("lane", LANES, kind="vectorized") as lane:
                nest.store(leaves, (lane,), begin + lowest_bit(left[lane]))
            with nest.loop("w", self.width) as w, nest.loop("lane", LANES, kind="vectorized") as lane:
                value = self.values[cast(leaves[lane], i64), w]
                nest.store(total, (w, lane), self.combine(total[w, lane], value))


def lowest_bit(word: Expr) -> Expr:
    """The position of the lowest set bit of a nonzero word. That bit alone is a power of two, whose exponent is read
    from its float."""
    alone = call("bitand", word, const(0, word.dtype) - word)
    return (Op("bitcast", (cast(alone, f32),), i32) >> const(23, i32)) - const(127, i32)


COMBINE: dict[str, Callable[[Expr, Expr], Expr]] = {"sum": lambda a, b: a + b, "min": minimum, "max": maximum}


def start(combine: str, t: DType) -> float:
    """The number with which combining the values of a group of trees begins: 0 for "sum", the largest finite number of
    type `t` for "min", the least one for "max"."""
    limits = np.finfo(t.numpy)
    return {"sum": 0.0, "min": float(limits.max), "max": float(limits.min)}[combine]


def _loops(types: Types, attrs: ForestAttrs, out: Out) -> PrimFunc:
    inputs, (y,) = buffers(types, out)
    return _Forest(inputs, y, attrs).build()


def _numpy(arrays: Sequence[Any], attrs: ForestAttrs) -> tuple[Any, ...]:
    """The NumPy reference of `forest`: the walk through every tree."""
    x, feature, threshold, child, leaf, root, depth, values, starts = (np.asarray(a) for a in arrays[:9])
    combine: Any = {"sum": np.add, "min": np.minimum, "max": np.maximum}[attrs.combine]
    rows, groups = x.shape[0], len(starts) - 1
    y = np.full((rows, groups, values.shape[1]), start(attrs.combine, dtype(values.dtype)), values.dtype)
    for g in range(groups):
        for tree in range(int(starts[g]), int(starts[g + 1])):
            at = np.full(rows, root[tree])
            for _ in range(int(depth[tree])):
                at = child[at] + np.where(x[np.arange(rows), feature[at]] <= threshold[at], 0, 1)
            y[:, g] = combine(y[:, g], values[leaf[at]])
    return (y.reshape(rows, -1),)


register(OpDef("forest", "opaque", ForestAttrs, _infer, _numpy, loops=_loops))
