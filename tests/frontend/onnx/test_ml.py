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
    ("Normalizer", FINITE, {"norm": "MAX"}, 1),
    ("Normalizer", FINITE, {"norm": "L1"}, 1),
    ("Normalizer", FINITE, {"norm": "L2"}, 1),
    ("Binarizer", X, {"threshold": 0.25}, 1),
    ("Imputer", X, {"imputed_value_floats": [9.0], "replaced_value_float": float("nan")}, 1),
    ("Imputer", X, {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0, 5.0], "replaced_value_float": 0.0}, 1),
    ("LinearRegressor", FINITE, {"coefficients": COEFFICIENTS, "intercepts": [1.0, 2.0, 3.0], "targets": 3}, 1),
    ("LinearClassifier", FINITE, {"coefficients": COEFFICIENTS, "intercepts": [0.1, 0.2, 0.3], **labels(4, 2, 9)}, 2),
    ("LinearClassifier", FINITE, {"coefficients": COEFFICIENTS[:5], "intercepts": [0.1], **labels(4, 2)}, 2),
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
