"""Preprocessing and linear models of ai.onnx.ml against ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw

RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 5)).astype(np.float32)
X[1, 2], X[3] = np.nan, 0
FINITE = np.nan_to_num(X)
INTS = np.array([1, 5, 2, 7])
FLOATS = np.array([[1.0, np.nan], [2.0, -1.0]], np.float32)
COEFFICIENTS = RNG.normal(size=15).astype(np.float32).tolist()


def labels(*ints: int) -> dict[str, Any]:
    return {"classlabels_ints": list(ints)}


CASES: list[tuple[str, Any, dict[str, Any], int]] = [
    ("Scaler", X, {"offset": [1.0, 2.0, 0.5, -1.0, 0.0], "scale": [0.5, 1.0, 2.0, 3.0, -1.0]}, 1),
    ("Scaler", X, {"offset": [1.5], "scale": [0.25]}, 1),
    ("Normalizer", np.abs(FINITE), {"norm": "MAX"}, 1),
    ("Normalizer", FINITE, {"norm": "L1"}, 1),
    ("Normalizer", FINITE, {"norm": "L2"}, 1),
    ("Binarizer", X, {"threshold": 0.25}, 1),
    ("Imputer", X, {"imputed_value_floats": [9.0], "replaced_value_float": float("nan")}, 1),
    ("Imputer", X, {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0, 5.0], "replaced_value_float": 0.0}, 1),
    ("LinearRegressor", FINITE, {"coefficients": COEFFICIENTS, "intercepts": [1.0, 2.0, 3.0], "targets": 3}, 1),
    ("LinearClassifier", FINITE, {"coefficients": COEFFICIENTS, "intercepts": [0.1, 0.2, 0.3], **labels(4, 2, 9)}, 2),
    ("LinearClassifier", FINITE, {"coefficients": COEFFICIENTS[:5], "intercepts": [0.1], **labels(4)}, 2),
    ("LabelEncoder", INTS, {"keys_int64s": [5, 1, 2], "values_floats": [0.5, 1.5, 2.5], "default_float": 8.0}, 1),
    ("LabelEncoder", FLOATS, {"keys_floats": [-1.0, 2.0], "values_int64s": [3, 4], "default_int64": 7}, 1),
]


CASES += [  # the reference of no other operator knows these
    (name, x, {**attributes, "post_transform": post}, outputs)
    for name, x, attributes, outputs in CASES
    if name == "LinearClassifier"
    for post in ("SOFTMAX", "LOGISTIC")
]


@pytest.mark.daily(5)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_operators(case: tuple[str, Any, dict[str, Any], int]) -> None:
    name, x, attributes, outputs = case
    more = {"post_transform": "NONE"} if name.startswith("Linear") and "post_transform" not in attributes else {}
    node = helper.make_node(name, ["x"], ["y", "z"][:outputs], domain="ai.onnx.ml", **attributes, **more)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    results = [helper.make_empty_tensor_value_info(n) for n in ("y", "z")[:outputs]]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", kind, list(x.shape))], results)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 4 if name == "LabelEncoder" else 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    result = tw.compile(model)(x)
    for a, b in zip(expected, result if outputs > 1 else (result,), strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-6, atol=2e-6)


def test_array_feature_extractor() -> None:
    node = helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain="ai.onnx.ml")
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [7, 5]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [3]),
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    chosen = np.array([4, 0, 4])
    np.testing.assert_array_equal(tw.compile(model)(FINITE, chosen), FINITE[:, chosen])


VECTOR = np.array([1.0, -2.0, 3.0], np.float32)
ONE_ROW: list[tuple[str, dict[str, Any], int]] = [
    ("LinearRegressor", {"coefficients": [1.0, 2.0, 3.0], "intercepts": [0.5], "targets": 1}, 1),
    ("LinearRegressor", {"coefficients": COEFFICIENTS[:6], "intercepts": [0.5, 1.0], "targets": 2}, 1),
    ("LinearClassifier", {"coefficients": COEFFICIENTS[:9], "intercepts": [0.1, 0.2, 0.3], **labels(4, 2, 9)}, 2),
    ("FeatureVectorizer", {"inputdimensions": [3]}, 1),
    ("FeatureVectorizer", {"inputdimensions": [1]}, 1),
]


def by_onnxruntime(m: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    result = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, inputs)
    return list(result)


@pytest.mark.parametrize("case", ONE_ROW, ids=lambda c: c[0])
def test_a_vector_is_one_row(case: tuple[str, dict[str, Any], int]) -> None:
    """A vector is taken as one row, as in ONNX Runtime; the reference gives it back without the dimension."""
    name, attributes, outputs = case
    node = helper.make_node(name, ["x"], ["y", "z"][:outputs], domain="ai.onnx.ml", **attributes)
    codes = [TensorProto.INT64, TensorProto.FLOAT][2 - outputs :]
    results = [helper.make_tensor_value_info(n, c, None) for n, c in zip(node.output, codes, strict=True)]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])], results)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    m = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    got = tw.compile(m, fallback="never").run({"x": VECTOR}).values()
    for a, b in zip(got, by_onnxruntime(m, {"x": VECTOR}), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5)


SCORES = np.array([[20, 30, 25], [0, -1, -2], [-1, 0, -0.5], [-200, -150, -120], [0.25, 2, 0.5]], np.float32)
BRANCHES: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0, 1, 1, 1, 2, 2, 2],
    "nodes_nodeids": [0, 1, 2] * 3,
    "nodes_featureids": [0, 0, 0, 1, 0, 0, 2, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 3,
    "nodes_values": [0.0] * 9,
    "nodes_truenodeids": [1, 0, 0] * 3,
    "nodes_falsenodeids": [2, 0, 0] * 3,
    "class_treeids": [0, 0, 1, 1, 2, 2],
    "class_nodeids": [1, 2] * 3,
    "class_ids": [0, 0, 1, 1, 2, 2],
    "class_weights": [0.0, 20.0, -1.0, 30.0, -2.0, 25.0],
    "classlabels_int64s": [4, 2, 9],
}
LINEAR: dict[str, Any] = {"coefficients": np.eye(3).ravel().tolist(), "intercepts": [0.0] * 3, **labels(4, 2, 9)}


def rows(name: str, x: np.ndarray, outputs: int, **attributes: Any) -> onnx.ModelProto:
    """The model of one node `name` of ai.onnx.ml on the rows `x`."""
    node = helper.make_node(name, ["x"], ["y", "z"][:outputs], domain="ai.onnx.ml", **attributes)
    results = [helper.make_empty_tensor_value_info(n) for n in node.output]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)], results)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("name", ["LinearClassifier", "TreeEnsembleClassifier"])
def test_a_label_is_that_of_the_scores_before_the_transform(name: str, post: str) -> None:
    """A logistic function rounds 20 and 30 to the same 1, and SOFTMAX_ZERO puts -1 before 0."""
    m = rows(name, SCORES, 2, post_transform=post, **(LINEAR if name == "LinearClassifier" else BRANCHES))
    chosen = np.asarray(tw.compile(m, fallback="never")(SCORES)[0])
    np.testing.assert_array_equal(chosen, by_onnxruntime(m, {"x": SCORES})[0])


QUADRANTS = np.array([[-3, -3], [-3, 3], [3, -3], [3, 3]], np.float32)
WEIGHTS = {
    "positive": [0.1, 0.4, 0.3, 0.9],
    "large": [0.5, 2.0, 0.0, 3.0],
    "mixed": [-0.3, 0.4, -0.2, 0.7],
    "negative": [-1.0, -0.25, -2.0, -0.125],
    "halves": [0.5, 0.25, 0.0, 0.5],
}
POSTS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]  # ONNX Runtime does not write the scores of PROBIT


def two_trees(ids: list[int], weights: list[float], **attributes: Any) -> onnx.ModelProto:
    """Two trees of two leaves, each of which has a weight of the class in `ids`."""
    trees = {k: v for k, v in BRANCHES.items() if k.startswith("nodes_")}
    two = {k: v[:6] for k, v in trees.items()}
    leaves = {"class_treeids": [0, 0, 1, 1], "class_nodeids": [1, 2] * 2, "class_ids": ids, "class_weights": weights}
    return rows("TreeEnsembleClassifier", QUADRANTS, 2, **two, **leaves, **attributes)


def as_onnxruntime(m: onnx.ModelProto, x: np.ndarray, fallback: Any) -> None:
    got = tw.compile(m, fallback=fallback).run({"x": x}).values()
    for a, b in zip(got, by_onnxruntime(m, {"x": x}), strict=True):
        assert a.dtype == b.dtype
        if b.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.daily(2)
@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_trees_with_weights_of_one_of_two_classes(weights: str, post: str) -> None:
    """The converters of XGBoost, LightGBM and scikit-learn write such trees."""
    own = WEIGHTS[weights]
    for base in ([], [0.25], [-0.25]):
        more = {"base_values": base} if base else {}
        for labels in ([4, 9], [0, 1], [9]):
            as_onnxruntime(
                two_trees([0] * 4, own, classlabels_int64s=labels, post_transform=post, **more), QUADRANTS, "never"
            )
    m = two_trees([1] * 4, own, classlabels_int64s=[4, 9], post_transform=post)
    as_onnxruntime(m, QUADRANTS, "never")


@pytest.mark.filterwarnings("ignore::tilewright.parts.context.FallbackWarning")
@pytest.mark.parametrize("ids", [[0] * 4, [1] * 4])
def test_what_is_said_of_no_two_classes_is_left_to_onnxruntime(ids: list[int]) -> None:
    mixed = WEIGHTS["mixed"]
    as_onnxruntime(two_trees(ids, mixed, classlabels_int64s=[4, 9], base_values=[0.25, -0.5]), QUADRANTS, "auto")
    as_onnxruntime(two_trees(ids, mixed, classlabels_strings=["a", "b"]), QUADRANTS, "auto")


@pytest.mark.parametrize("post", POSTS)
def test_a_linear_model_of_one_of_two_classes(post: str) -> None:
    for coefficients in ([1.0, 0.0], [-0.1, 0.2], [0.0, 0.0]):
        for intercept in (0.5, -1.0, 0.0):
            for labels_ in ([4, 9], [0, 1]):
                attributes = {"coefficients": coefficients, "intercepts": [intercept], **labels(*labels_)}
                m = rows("LinearClassifier", QUADRANTS, 2, post_transform=post, **attributes)
                as_onnxruntime(m, QUADRANTS, "never")


def test_the_largest_number_of_a_row_has_its_sign() -> None:
    x = np.array([[-1, -2, -4], [0, -1, -2], [1, -5, 2], [0, 0, 0]], np.float32)
    m = rows("Normalizer", x, 1, norm="MAX")
    y = np.asarray(tw.compile(m, fallback="never")(x))
    np.testing.assert_array_equal(y, by_onnxruntime(m, {"x": x})[0])
    np.testing.assert_array_equal(y[:3], [[1, 2, 4], [0, -1, -2], [0.5, -2.5, 1]])


@pytest.mark.filterwarnings("ignore::tilewright.parts.context.FallbackWarning")
def test_a_dictionary_is_one_row() -> None:
    kind = onnx.TypeProto()
    kind.map_type.key_type = TensorProto.STRING
    kind.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    x = onnx.ValueInfoProto(name="x", type=kind)
    nodes = [
        helper.make_node("DictVectorizer", ["x"], ["v"], domain="ai.onnx.ml", string_vocabulary=["a", "b", "c"]),
        helper.make_node(
            "LinearRegressor", ["v"], ["y"], domain="ai.onnx.ml", coefficients=[1.0, 2, 3], intercepts=[0.5], targets=1
        ),
    ]
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    m = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    features = {"a": 1.0, "c": 2.0}
    y = np.asarray(tw.compile(m)(features))
    (want,) = by_onnxruntime(m, {"x": features})
    assert y.shape == want.shape == (1, 1)
    np.testing.assert_array_equal(y, want)
