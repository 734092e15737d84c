"""The example of another compiler, installed as a package: ONNX Runtime runs parts of a model that never imports it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.plugins.install import ROOT, answer, doctor, install_package, run

pytest.importorskip("onnxruntime", reason="the example stands on it")

USE = """
import json, os, numpy as np, tilewright as tw
from tilewright.cli.main import main
own = tw.compile("m.onnx")
model = tw.compile("m.onnx", compilers=["onnxruntime"])
model.save("m.tw")
halved = {name: w / 2 for name, w in own.weights.items()}
errors = []

def compare(model):
    for n in (1, 3):
        x = np.random.default_rng(n).normal(size=(n, 3, 8, 8)).astype(np.float32)
        errors.append(float(np.abs(np.asarray(model(x)) - np.asarray(own(x))).max()))

compare(model)
compare(tw.load("m.tw"))
model.update(halved)
own.update(halved)
compare(model)
os.environ["TILEWRIGHT_STORE_DIR"] = os.getcwd()
with tw.Publisher("parts", tw.compile_program("m.onnx", compilers=["onnxruntime"])) as publisher:
    with tw.attach("parts") as actor:
        publisher.publish(halved)
        compare(actor)
print(json.dumps({
    "errors": errors, "graph": model.show("graph"),
    "coverage": tw.coverage("m.onnx", compilers=["onnxruntime"]).to_dict(),
}))
"""


def test_onnx_runtime_runs_parts(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    package = install_package(ROOT / "examples" / "compiler", tmp_path / "installed", tmp_path)
    rng = np.random.default_rng(0)
    shapes = {"w": (8, 3, 3, 3), "b": (8,), "v": (16, 8, 3, 3), "u": (16, 5)}
    weights = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["1"], pads=[1] * 4),
        helper.make_node("Relu", ["1"], ["2"]),
        helper.make_node("Conv", ["2", "v"], ["3"], pads=[1] * 4),
        helper.make_node("Sigmoid", ["3"], ["4"]),  # Tilewright's
        helper.make_node("GlobalAveragePool", ["4"], ["5"]),
        helper.make_node("Flatten", ["5"], ["6"]),
        helper.make_node("MatMul", ["6", "u"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 3, 8, 8]), ("y", ["n", 5]))
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), cache / "m.onnx")

    result = answer(USE, package, cache=cache)
    assert len(result["errors"]) == 8 and max(result["errors"]) < 1e-5
    assert result["graph"].count("lowered.external_call(") == 2
    parts = [(p["runs_by"], {name for name, _ in p["operators"]}) for p in result["coverage"]["parts"]]
    assert [names for by, names in parts if by == "onnxruntime"] == [{"conv", "add", "relu"}, {"matmul"}]
    assert {"sigmoid", "reduce_mean"} <= set().union(*(names for by, names in parts if by == "Tilewright"))
    code = "import sys; from tilewright.cli.main import main; sys.argv[1:] = {}; main()"
    options = ["m.onnx", "--compilers", "onnxruntime,tilewright"]
    report = answer(code.format(["coverage", *options, "--json"]), package, cache=cache)
    assert report["parts"] == result["coverage"]["parts"]
    assert answer(code.format(["compile", *options, "-o", "c.tw", "--json"]), package, cache=cache)["output"] == "c.tw"
    done = run(code.format(["coverage", "m.onnx", "--compilers", "tea"]), package, cache=cache)
    assert done.returncode == 1 and "no such compiler is installed" in done.stderr
    (listed,) = doctor(package, cache=cache)["plugins"]
    assert listed["brings"] == ["compiler onnxruntime"] and listed["error"] is None
