"""Ensembles trained by scikit-learn, LightGBM and XGBoost: their own predictions against ours (`make trees`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

NEEDS = "comes with the extra `trees`, which make test does without"
lightgbm = pytest.importorskip("lightgbm", reason=NEEDS)
xgboost = pytest.importorskip("xgboost", reason=NEEDS)
skl2onnx = pytest.importorskip("skl2onnx", reason=NEEDS)
onnxmltools = pytest.importorskip("onnxmltools", reason=NEEDS)
sklearn = pytest.importorskip("sklearn", reason=NEEDS)

from sklearn import datasets, ensemble, tree  # noqa: E402  after what may skip

FEATURES = 12
TOLERANCE = 1e-6
"""The tolerance relative to the largest prediction: the libraries sum in f64, files and we in f32."""


def data(classes: int) -> tuple[Any, Any]:
    if classes:
        x, y = datasets.make_classification(400, FEATURES, n_informative=8, n_classes=classes, random_state=1)
    else:
        x, y = datasets.make_regression(400, FEATURES, random_state=1)
    return x.astype(np.float32), y


def to_onnx(model: Any, x: Any) -> Any:
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("x", FloatTensorType([None, FEATURES]))]
    if isinstance(model, lightgbm.LGBMModel):
        more = {"zipmap": False} if isinstance(model, lightgbm.LGBMClassifier) else {}
        return onnxmltools.convert_lightgbm(model, initial_types=types, **more)
    if isinstance(model, xgboost.XGBModel):
        return onnxmltools.convert_xgboost(model, initial_types=types)
    options = {id(model): {"zipmap": False}} if hasattr(model, "predict_proba") else None
    return skl2onnx.to_onnx(model, x[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})


CLASSIFIERS = [
    lambda: tree.DecisionTreeClassifier(max_depth=5, random_state=0),
    lambda: ensemble.RandomForestClassifier(20, max_depth=6, random_state=0),
    lambda: ensemble.ExtraTreesClassifier(10, random_state=0),
    lambda: ensemble.GradientBoostingClassifier(n_estimators=20, random_state=0),
    lambda: lightgbm.LGBMClassifier(n_estimators=20, verbose=-1, num_threads=1),
    lambda: xgboost.XGBClassifier(n_estimators=20, n_jobs=1),
]
REGRESSORS = [
    lambda: tree.DecisionTreeRegressor(random_state=0),
    lambda: ensemble.RandomForestRegressor(20, random_state=0),
    lambda: ensemble.GradientBoostingRegressor(random_state=0),
    lambda: lightgbm.LGBMRegressor(n_estimators=20, num_leaves=80, verbose=-1, num_threads=1),
    lambda: xgboost.XGBRegressor(n_estimators=20, n_jobs=1),
]


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("make", CLASSIFIERS)
def test_classifiers(make: Any, classes: int) -> None:
    x, y = data(classes)
    model = make().fit(x, y)
    compiled = tw.compile(to_onnx(model, x))
    for rows in (len(x), 1, 5):
        label, scores = compiled(x[:rows])
        np.testing.assert_allclose(scores, model.predict_proba(x[:rows]), rtol=0, atol=TOLERANCE)
        np.testing.assert_array_equal(label, model.predict(x[:rows]))


@pytest.mark.parametrize("make", REGRESSORS)
def test_regressors(make: Any) -> None:
    x, y = data(0)
    model = make().fit(x, y)
    compiled, expected = tw.compile(to_onnx(model, x)), model.predict(x)
    for rows in (len(x), 1, 5):
        result = compiled(x[:rows])
        np.testing.assert_allclose(result[:, 0], expected[:rows], rtol=0, atol=TOLERANCE * np.abs(expected).max())


def test_several_targets() -> None:
    x, y = data(0)
    model = ensemble.RandomForestRegressor(10, random_state=0).fit(x, np.stack([y, 2 * y, -y], axis=1))
    expected = model.predict(x)
    np.testing.assert_allclose(
        tw.compile(to_onnx(model, x))(x), expected, rtol=0, atol=TOLERANCE * np.abs(expected).max()
    )
