#!/usr/bin/env bash
# skl2onnx 1.20.0: three classifiers and an imputer convert without a word to models with other results.
#
#   LinearDiscriminantAnalysis of two classes: the log-odds of the model are twice those of scikit-learn 1.7.2 (0.972 where
#     the estimator has 0.856). Of three classes it is right.
#   CalibratedClassifierCV(method="isotonic"): the model has steps where the estimator has straight lines between the points
#     that it was fitted to.
#   SGDClassifier(loss="modified_huber") of three classes: the label is the first of the greatest probabilities, which this
#     loss clips to 0 and 1, where the estimator takes the greatest score: of scores of 1 and 1.5 the first wins.
#   SimpleImputer(add_indicator=True): the model lacks the indicators' columns. A column that was empty when the estimator
#     was fitted, which it drops, stays in the model as NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet scikit-learn==1.7.2 skl2onnx==1.20.0 onnx==1.23.2 onnxruntime==1.32.0 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import importlib.metadata
import sys
import warnings

import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier

warnings.simplefilter("ignore")
X = np.float32([[-2], [-1], [0], [1], [2], [3], [4], [5]])
TWO, THREE = np.array([0, 0, 1, 0, 1, 0, 1, 1]), np.array([0, 0, 1, 0, 1, 2, 2, 2])
ASKED = np.linspace(-2, 5, 15, dtype=np.float32)[:, None]


def results(estimator, x):
    options = {} if isinstance(estimator, SimpleImputer) else {id(estimator): {"zipmap": False}}
    model = to_onnx(estimator, x[:1], options=options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"X": x})


def log_odds(p):
    return np.log(p[:, 1] / p[:, 0])


print({name: importlib.metadata.version(name) for name in ("skl2onnx", "scikit-learn", "onnxruntime")})
same = True
for classes, factor in ((TWO, 2), (THREE, 1)):
    estimator = LinearDiscriminantAnalysis().fit(X, classes)
    right, model = estimator.predict_proba(X), results(estimator, X)[1]
    print("LDA", right[0].tolist(), "model", model[0].tolist())
    same &= np.allclose(log_odds(model), factor * log_odds(right), atol=1e-3)

estimator = CalibratedClassifierCV(LogisticRegression(), method="isotonic", cv=2).fit(X, TWO)
right, model = estimator.predict_proba(ASKED)[:, 1], results(estimator, ASKED)[1][:, 1]
print("isotonic", right.tolist(), "model", model.tolist())
same &= np.allclose(right[3:12:8], [0.25, 0.75], atol=0.05) and set(model.round(3).tolist()) == {0.0, 0.5, 1.0}

points = np.float32([[0], [1], [2], [3], [4], [5]])
estimator = SGDClassifier(loss="modified_huber", random_state=0).fit(points, [0, 0, 1, 1, 2, 2])
estimator.coef_, estimator.intercept_ = np.array([[-1.0], [0.0], [1.0]]), np.array([2.0, 1.5, -2.5])
model = results(estimator, points)
print("SGD", estimator.predict(points).tolist(), "model", model[0].tolist())
same &= estimator.predict(points).tolist() == [0, 1, 1, 1, 1, 2] and model[0].tolist() == [0, 0, 1, 1, 1, 1]
same &= np.allclose(estimator.predict_proba(points), model[1], atol=1e-5)

for estimator, x, wide in (
    (SimpleImputer(add_indicator=True), [[1, np.nan], [3, 4]], (3, 2)),
    (SimpleImputer(), [[1, np.nan], [3, np.nan]], (1, 2)),
):
    x = np.float32(x)
    right, model = estimator.fit(x).transform(x), results(estimator, x)[0]
    print(estimator, right.tolist(), "model", model.tolist())
    same &= (right.shape[1], model.shape[1]) == wide
sys.exit(not same)
PYTHON
