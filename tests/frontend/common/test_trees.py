"""Ensembles of decision trees from ONNX files against ONNX's own reference, both forms of files."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.frontend.common.forest import MODES

Array = np.ndarray[Any, Any]

FEATURES = 4
VALUES = np.array([-1.5, -0.5, -0.0, 0.25, 1.0, 2.0], np.float32)
"""Thresholds and inputs are drawn from the same few numbers, so that equality happens."""
EXAMPLES = int(os.environ.get("TREE_EXAMPLES", "8"))
"""Ensembles of each kind; `make trees` takes two hundred."""
TOLERANCE = 1e-6
"""The tolerance relative to the sum of the weights' sizes: sums of at most a dozen floats in another order."""


class Drawn:
    """Random trees in the form of ai.onnx.ml 5: inner nodes and leaves in separate lists."""

    def __init__(self, rng: np.random.Generator, trees: int, leaves: int, modes: int, targets: int) -> None:
        self.rng, self.targets = rng, targets
        self.feature: list[int] = []
        self.mode: list[int] = []
        self.split: list[float] = []
        self.tracks: list[int] = []
        self.children: list[list[int]] = []
        self.is_leaf: list[list[int]] = []
        self.leaf_target: list[int] = []
        self.leaf_weight: list[float] = []
        self.roots = [self.node(int(rng.integers(2, leaves + 1)), modes) for _ in range(trees)]
        members = [m for m in self.mode if m == 6]
        # The reference takes a zero for the end of a list.
        self.members = [
            np.append(rng.choice(VALUES[VALUES != 0], int(rng.integers(1, 4)), replace=False), np.nan) for _ in members
        ]

    def node(self, leaves: int, modes: int) -> int:
        rng, me = self.rng, len(self.feature)
        self.feature.append(int(rng.integers(FEATURES)))
        self.mode.append(int(rng.integers(modes)))
        self.split.append(float(rng.choice(VALUES)))
        self.tracks.append(int(rng.integers(2)))
        self.children.append([0, 0])
        self.is_leaf.append([0, 0])
        first = int(rng.integers(1, leaves))
        for side, below in enumerate((first, leaves - first)):
            self.is_leaf[me][side] = int(below == 1)
            self.children[me][side] = self.leaf() if below == 1 else self.node(below, modes)
        return me

    def leaf(self) -> int:
        self.leaf_target.append(int(self.rng.integers(self.targets)))
        self.leaf_weight.append(float(np.float32(self.rng.normal())))
        return len(self.leaf_weight) - 1

    def rows(self, count: int, nan: bool = True) -> Array:
        x = self.rng.choice(VALUES, (count, FEATURES)).astype(np.float32)
        x[self.rng.random(x.shape) < (0.15 if nan else 0)] = np.nan
        x[self.rng.random(x.shape) < 0.05] = np.inf
        x[self.rng.random(x.shape) < 0.05] = -np.inf
        return x


def proto(node: onnx.NodeProto, version: int, outputs: list[Any], dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", dtype, ["rows", FEATURES])
    graph = helper.make_graph([node], "trees", [x], outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def result(name: str = "y", dtype: int = TensorProto.FLOAT, rank: int = 2) -> Any:
    return helper.make_tensor_value_info(name, dtype, [None] * rank)


def new_form(drawn: Drawn, aggregate: int, dtype: Any = np.float32) -> onnx.ModelProto:
    def tensor(values: Any, kind: Any = dtype) -> onnx.TensorProto:
        return numpy_helper.from_array(np.asarray(values, kind), "t")

    more = {"membership_values": tensor(np.concatenate(drawn.members))} if drawn.members else {}
    node = helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=drawn.targets,
        aggregate_function=aggregate,
        tree_roots=drawn.roots,
        nodes_featureids=drawn.feature,
        nodes_modes=tensor(drawn.mode, np.uint8),
        nodes_splits=tensor(drawn.split),
        nodes_missing_value_tracks_true=drawn.tracks,
        nodes_truenodeids=[c[0] for c in drawn.children],
        nodes_falsenodeids=[c[1] for c in drawn.children],
        nodes_trueleafs=[c[0] for c in drawn.is_leaf],
        nodes_falseleafs=[c[1] for c in drawn.is_leaf],
        leaf_targetids=drawn.leaf_target,
        leaf_weights=tensor(drawn.leaf_weight),
        **more,
    )
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return proto(node, 5, [result(dtype=kind)], kind)


def old_attributes(drawn: Drawn, what: str) -> dict[str, Any]:
    """Attributes of these trees in the older form: every leaf is a node, called by a number within its tree."""
    rows: list[tuple[int, ...]] = []
    modes: list[str] = []
    values: list[float] = []
    weights: list[tuple[int, int, int, float]] = []

    def place(tree: int, index: int, leaf: bool, numbers: list[int]) -> int:
        me = numbers[0]
        numbers[0] += 1
        at = len(rows)
        rows.append((tree, me, 0, 0, 0, 0))
        modes.append("LEAF")
        values.append(0.0)
        if leaf:
            weights.append((tree, me, drawn.leaf_target[index], drawn.leaf_weight[index]))
            return me
        yes, no = (place(tree, drawn.children[index][s], bool(drawn.is_leaf[index][s]), numbers) for s in (0, 1))
        rows[at] = (tree, me, drawn.feature[index], drawn.tracks[index], yes, no)
        modes[at], values[at] = MODES[drawn.mode[index]], drawn.split[index]
        return me

    for tree, root in enumerate(drawn.roots):
        place(tree, root, False, [0])
    columns = np.array(rows).T.tolist()
    names = "treeids nodeids featureids missing_value_tracks_true truenodeids falsenodeids".split()
    result: dict[str, Any] = {f"nodes_{name}": column for name, column in zip(names, columns, strict=True)}
    result |= {"nodes_modes": modes, "nodes_values": values}
    for k, name in enumerate(("treeids", "nodeids", "ids", "weights")):
        result[f"{what}_{name}"] = [w[k] for w in weights]
    return result


def check(model: onnx.ModelProto, x: Array, size: float) -> None:
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    compiled = tw.compile(model)
    for rows in (len(x), 1):
        result = compiled(x[:rows])
        for a, b in zip(expected, result if isinstance(result, tuple) else (result,), strict=True):
            assert b.dtype == a.dtype
            np.testing.assert_allclose(b, a[:rows], rtol=0, atol=TOLERANCE * size)


def nan_agrees(drawn: Drawn) -> bool:
    """Whether trees may see NaN: that it differs from every number is told by the reference of the new form and by ONNX
    Runtime, denied by the reference of the old one."""
    return MODES.index("BRANCH_NEQ") not in drawn.mode


def probit(p: Array) -> Array:
    """By Winitzki's approximation, as ONNX prescribes."""
    y = 2 * p - 1
    rest = (1 - y) * (1 + y)
    log = np.log(np.where(rest == 0, 1, rest))
    half = 2 / (np.pi * 0.147) + log / 2
    size = np.sqrt(np.sqrt(half * half - log / 0.147) - half)
    return np.where(rest == 0, 0, np.sign(y) * size * np.sqrt(2.0))


numbers = st.integers(0, 2**32 - 1)


@settings(max_examples=EXAMPLES, deadline=None)
@given(numbers, st.integers(1, 9), st.integers(2, 12), st.integers(1, 7), st.integers(1, 3), st.integers(0, 3))
def test_ensembles(seed: int, trees: int, leaves: int, modes: int, targets: int, aggregate: int) -> None:
    drawn = Drawn(np.random.default_rng(seed), trees, leaves, modes, targets)
    check(new_form(drawn, aggregate), drawn.rows(9), sum(map(abs, drawn.leaf_weight)) + 1)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    numbers,
    st.integers(1, 9),
    st.integers(2, 12),
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from(["SUM", "MIN"]),
)
def test_regressors(seed: int, trees: int, leaves: int, modes: int, targets: int, aggregate: str) -> None:
    drawn = Drawn(np.random.default_rng(seed), trees, leaves, modes, targets)
    more = {"n_targets": targets, "aggregate_function": aggregate, "post_transform": "NONE"}
    more["base_values"] = [0.5 * k for k in range(targets)]
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **old_attributes(drawn, "target"), **more
    )
    check(proto(node, 3, [result()]), drawn.rows(9, nan_agrees(drawn)), sum(map(abs, drawn.leaf_weight)) + 1)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    numbers,
    st.integers(1, 9),
    st.integers(2, 12),
    st.integers(2, 4),
    st.sampled_from(["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]),
)
def test_classifiers(seed: int, trees: int, leaves: int, classes: int, post: str) -> None:
    drawn = Drawn(np.random.default_rng(seed), trees, leaves, 6, classes)
    drawn.leaf_target[:2] = 0, 1  # the reference has two classes where one alone has weights
    labels = [7 - 2 * k for k in range(classes)]
    if post == "PROBIT":  # takes probabilities, and is steep near zero and one
        drawn.leaf_weight = [(0.1 + 0.8 * min(abs(w), 1)) / trees for w in drawn.leaf_weight]
    node = helper.make_node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        classlabels_int64s=labels,
        post_transform=post,
        **old_attributes(drawn, "class"),
    )
    model = proto(node, 3, [result("label", TensorProto.INT64, 1), result("scores")])
    x = drawn.rows(9, nan_agrees(drawn))
    untransformed = onnx.ModelProto.FromString(model.SerializeToString())
    change(untransformed, "post_transform", "NONE")
    label, before = ReferenceEvaluator(untransformed).run(None, {"x": x})
    scores = before if post == "PROBIT" else ReferenceEvaluator(model).run(None, {"x": x})[1]
    if post == "PROBIT":  # its own is in f32, and wrong by 1e-5 near a half
        scores = probit(scores.astype(np.float64))
    matched_label, got = tw.compile(model)(x)
    size = sum(map(abs, drawn.leaf_weight)) + 1 if post == "NONE" else 20 if post == "PROBIT" else 4
    np.testing.assert_allclose(got, scores, rtol=0, atol=TOLERANCE * size)
    of = dict(zip(labels, range(classes), strict=True))
    # The label is that of the scores before the transform, as in ONNX Runtime; the reference takes it after.
    chosen = [row[of[k]] for row, k in zip(before, matched_label.tolist(), strict=True)]
    rounding = 2 * TOLERANCE * (sum(map(abs, drawn.leaf_weight)) + 1)
    assert (np.array(chosen) >= before.max(axis=1) - rounding).all()  # else rounding decides
    assert label.dtype == matched_label.dtype


@pytest.mark.daily(3)
@pytest.mark.parametrize("leaves", [2, 32, 33, 64, 65, 300])
def test_sizes(leaves: int) -> None:
    """Masks of 32 and 64 bits, and walks where no mask has room; all kinds of tails."""
    rng = np.random.default_rng(leaves)
    drawn = Drawn(rng, 5, leaves, 1, 1)
    drawn.split = rng.normal(size=len(drawn.split)).astype(np.float32).tolist()
    x = rng.normal(size=(70, FEATURES)).astype(np.float32)
    model = new_form(drawn, 1)
    compiled, expected = tw.compile(model), ReferenceEvaluator(model).run(None, {"x": x})[0]
    for rows in (1, 3, 5, 8, 31, 33, 64, 70):
        np.testing.assert_allclose(compiled(x[:rows]), expected[:rows], rtol=0, atol=TOLERANCE * 5)


def test_double_thresholds() -> None:
    """A threshold that no f32 is: the comparison is made in f64."""
    drawn = Drawn(np.random.default_rng(3), 3, 6, 4, 1)
    drawn.split = [0.1 + 1e-12 * k for k in range(len(drawn.split))]
    x = np.array([[0.1 + 1e-12 * ((k + j) % 8) for j in range(FEATURES)] for k in range(40)])
    model = new_form(drawn, 1, np.float64)
    np.testing.assert_allclose(
        tw.compile(model)(x), ReferenceEvaluator(model).run(None, {"x": x})[0], rtol=0, atol=1e-14
    )


def test_two_threads() -> None:
    drawn = Drawn(np.random.default_rng(5), 20, 40, 1, 3)
    x = drawn.rows(200)
    model = new_form(drawn, 1)
    np.testing.assert_array_equal(tw.compile(model, threads=2)(x), tw.compile(model)(x))


def change(model: onnx.ModelProto, name: str, values: Any) -> onnx.ModelProto:
    for attribute in model.graph.node[0].attribute:
        if attribute.name == name:
            attribute.CopyFrom(helper.make_attribute(name, values))
    return model


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nodes_featureids", FEATURES, "nodes_featureids is outside"),
        ("nodes_truenodeids", 10**9, "nodes_truenodeids is outside"),
        ("nodes_falsenodeids", 0, "several parents"),
        ("leaf_targetids", -1, "target of a weight is outside"),
        ("tree_roots", 99, "tree_roots is outside"),
    ],
)
def test_hostile_trees(name: str, value: int, message: str) -> None:
    drawn = Drawn(np.random.default_rng(11), 1, 12, 1, 2)
    passed_ = {a.name: list(a.ints) for a in new_form(drawn, 1).graph.node[0].attribute}[name]
    model = change(new_form(drawn, 1), name, [value] * len(passed_))
    if value == 0:  # back to the root, whatever was a leaf
        model = change(model, "nodes_falseleafs", [0] * len(passed_))
    with pytest.raises(tw.Error, match=message):
        tw.compile(model)


def test_lengths_are_checked() -> None:
    drawn = Drawn(np.random.default_rng(11), 2, 6, 1, 2)
    with pytest.raises(tw.Error, match="nodes_trueleafs has another length"):
        tw.compile(change(new_form(drawn, 1), "nodes_trueleafs", [1]))
