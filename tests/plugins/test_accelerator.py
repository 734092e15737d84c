"""The example of an accelerator, installed as a package: a process that never imports it compiles models for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.plugins.install import ROOT, answer, install_package

SOURCE = ROOT / "examples" / "accelerator"
PAGE = ROOT / "docs" / "tutorial" / "accelerator.md"

USE = """
import json, numpy as np, tilewright as tw
x = np.linspace(-2, 2, 16 * 24, dtype=np.float32).reshape(16, 24)
model = tw.compile("m.onnx", target="outer-8x8")
model.save("m.tw")
host = tw.compile("m.onnx")
print(json.dumps({
    "y": np.asarray(model(x)).tolist(), "again": np.asarray(tw.load("m.tw")(x)).tolist(),
    "graph": model.show("graph"), "host": host.show("graph"),
}))
"""


def test_the_package_brings_a_target(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    installed = install_package(SOURCE, tmp_path / "installed", tmp_path)
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=s).astype(np.float32) for s in ((24, 40), (40, 3)))
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "second"], ["y"]),  # 3 columns: the host's
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [16, 24]), ("y", [16, 3]))
    ]
    weights = [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), cache / "m.onnx")
    results = answer(USE, installed, cache=cache)
    x = np.linspace(-2, 2, 16 * 24).reshape(16, 24)
    wanted = np.maximum(x @ first, 0) @ second
    assert np.allclose(results["y"], wanted, rtol=1e-4, atol=1e-4) and results["again"] == results["y"]
    assert results["graph"].count("outer8.matmul(") == 1 and "outer8" not in results["host"]


def test_the_package_is_small_and_the_page_shows_it() -> None:
    files = sorted((SOURCE / "src" / "outer8").glob("*.py"))
    assert sum(len(f.read_text().splitlines()) for f in files) < 600
    everything = "\n".join(f.read_text() for f in files)
    blocks = PAGE.read_text().split("<!-- no-test: part of examples/accelerator -->\n```python\n")[1:]
    assert len(blocks) == 7
    for block in blocks:
        assert block.partition("```")[0] in everything
