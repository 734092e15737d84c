#!/usr/bin/env bash
# skl2onnx 1.20.0: neighbours weighted by their distance are weighted alike, and trees forget where missing values go.
#
# KNeighborsRegressor(weights="distance") and KNeighborsClassifier of it convert without a word to a model that gives the plain
# mean: the points 0, 1 and 3 with the values 0, 10 and 30 give 2.5 at 0.25 and 25 at 2.5; the model gives 5 and 20, as with
# weights="uniform". It takes reciprocals of the distances after they were negated and bounded below by 1e-6.
#
# A tree that was fitted with NaNs knows for each question to which side they go; the converted one sends them to the other
# side wherever that is "yes" (nodes_missing_value_tracks_true stays 0).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet scikit-learn==1.7.2 skl2onnx==1.20.0 onnx==1.23.2 onnxruntime==1.32.0 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor


def results(estimator, x):
    model = to_onnx(estimator, x[:1])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"X": x})[0].ravel().tolist()


print({name: importlib.metadata.version(name) for name in ("skl2onnx", "scikit-learn", "onnxruntime")})
same = True
points, values, asked = np.float32([[0], [1], [3]]), np.float32([0, 10, 30]), np.float32([[0.25], [2.5]])
for weights, right in (("uniform", [5, 20]), ("distance", [2.5, 25])):
    neighbours = KNeighborsRegressor(2, weights=weights).fit(points, values)
    model = results(neighbours, asked)
    print(weights, "scikit-learn", neighbours.predict(asked).tolist(), "model", model)
    same &= np.allclose(neighbours.predict(asked), right) and np.allclose(model, [5, 20])
x = np.float32([[np.nan], [np.nan], [np.nan], [1], [2], [3]])
for wanted in ([0, 0, 0, 0, 0, 1], [1, 1, 1, 0, 0, 1]):
    tree = DecisionTreeRegressor(random_state=0).fit(x, wanted)
    model = results(tree, x)
    print("tree", "scikit-learn", tree.predict(x).tolist(), "model", model)
    same &= tree.predict(x).tolist() == wanted and model == [1, 1, 1, 0, 0, 1]
sys.exit(not same)
PYTHON
