"""Programs with parts by other compilers: calls, new weights, files, and what goes wrong in them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, TensorType
from tilewright.ops import parse_graph
from tilewright.runtime import compilers
from tilewright.runtime.compilers import Compiled, Compiler, Loaded
from tilewright.support.errors import ArtifactError, CallError, PluginError
from tilewright.transform.graph.patterns import ANY, Pattern, op

Run = Callable[[Sequence[Any], Sequence[Any]], Any]

MODEL = parse_graph("""
    graph @g(%x: f32[n, 4]) params(%w: f32[4, 3], %b: f32[3]) where n in 1.. {
      %a = matmul(%x, %w) : f32[n, 3]
      %c = add(%a, %b) : f32[n, 3]
      %y = tanh(%c) : f32[n, 3]
      return %y
    }""")
WEIGHTS = {"w": np.arange(12, dtype=np.float32).reshape(4, 3) / 12, "b": np.array([0.5, -0.5, 0.25], np.float32)}
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def expected(x: Any = X, w: Any = WEIGHTS) -> Any:
    return np.tanh(x @ w["w"] + w["b"])


def by(run: Run, prepare: Any = None, packed: Any = None) -> Compiler:
    def compile(region: Graph) -> Compiled:
        assert len(region.params) == 2
        return Compiled(b"layer", packed)

    pattern = Pattern("layer", op("add", op("matmul"), ANY))
    return Compiler("vendor", (pattern,), compile, lambda _: Loaded(run, prepare), version=str(packed))


def layer(inputs: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
    return [inputs[0] @ weights[0] + weights[1]]


@pytest.fixture
def compiled() -> Iterator[Callable[..., tw.Model]]:
    """Models with a part by the compiler that is given."""

    def make(compiler: Compiler, **options: Any) -> tw.Model:
        compilers.register(compiler)
        model = tw.compile((MODEL, WEIGHTS), compilers=["vendor"], **options)
        assert isinstance(model, tw.Model)
        assert model.manifest.compilers == ("vendor",)
        return model

    yield make
    if "vendor" in compilers.names():
        compilers.unregister("vendor")


@pytest.mark.parametrize("threads", [1, 2])
def test_new_weights_reach_a_part(compiled: Any, threads: int) -> None:
    model = compiled(by(layer), threads=threads)
    for x in (X, X[:1], np.repeat(X, 50, 0)):
        np.testing.assert_allclose(model(x), expected(x), rtol=1e-5, atol=1e-6)
    weights = {name: 2 * w for name, w in WEIGHTS.items()}
    model.update(weights)
    np.testing.assert_allclose(model(X), expected(w=weights), rtol=1e-5, atol=1e-6)


def test_weights_are_packed_once_a_version(compiled: Any) -> None:
    counts = {"prepare": 0}

    def prepare(weights: Sequence[Any]) -> list[Any]:
        counts["prepare"] += 1
        return [np.concatenate([weights[0], weights[1][None]])]

    def run(inputs: Sequence[Any], packed: Sequence[Any]) -> list[Any]:
        return [inputs[0] @ packed[0][:4] + packed[0][4]]

    model = compiled(by(run, prepare, (TensorType(f32, (as_expr(5), as_expr(3))),)))
    assert counts["prepare"] == 1
    for _ in range(3):
        np.testing.assert_allclose(model(X), expected(), rtol=1e-5, atol=1e-6)
    weights = {name: -w for name, w in WEIGHTS.items()}
    model.update(weights)
    np.testing.assert_allclose(model(X), expected(w=weights), rtol=1e-5, atol=1e-6)
    assert counts["prepare"] == 2


def test_a_part_that_packs_weights_may_fail(compiled: Any) -> None:
    def prepare(weights: Sequence[Any]) -> list[Any]:
        if weights[1][0] > 1:
            raise ValueError("too large")
        return [weights[1].copy()]

    def run(inputs: Sequence[Any], packed: Sequence[Any]) -> list[Any]:
        return [inputs[0][:, :3] + packed[0]]

    model = compiled(by(run, prepare, (TensorType(f32, (as_expr(3),)),)))
    before = model(X)
    with pytest.raises(CallError, match=r"part 'g_vendor_0.prepare' by the compiler 'vendor': failed.*too large"):
        model.update({name: w + 1 for name, w in WEIGHTS.items()})
    np.testing.assert_array_equal(model(X), before)
    assert model.version == 0


def raising(inputs: Sequence[Any], weights: Sequence[Any]) -> Any:
    raise RuntimeError("out of order")


WRONG: dict[str, tuple[Run, str]] = {
    "raises": (raising, "got RuntimeError: out of order"),
    "too many": (lambda x, w: [*layer(x, w)] * 2, "another number of results"),
    "no list": (lambda x, w: layer(x, w)[0], "another number of results"),
    "no array": (lambda x, w: [[1.0]], "a wrong result 0: expected float32[2, 3], got a list"),
    "another type": (lambda x, w: [layer(x, w)[0].astype(np.float64)], "expected float32[2, 3], got float64[2, 3]"),
    "another shape": (lambda x, w: [layer(x, w)[0][:, :1]], "expected float32[2, 3], got float32[2, 1]"),
    "writes its inputs": (lambda x, w: [np.add(x[0], 1, out=x[0])], "read-only"),
    "writes weights": (lambda x, w: [w[0].fill(0)], "read-only"),
    "interrupted": (lambda x, w: [().index(1)], "got ValueError"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_failing_part_is_an_error_of_the_call(compiled: Any, name: str) -> None:
    run, message = WRONG[name]
    behaviour = [run]
    model = compiled(by(lambda x, w: behaviour[0](x, w)))
    with pytest.raises(CallError) as caught:
        model(X)
    assert "part 'g_vendor_0' by the compiler 'vendor': failed" in str(caught.value) and message in str(caught.value)
    behaviour[0] = layer  # nothing is broken for later calls
    np.testing.assert_allclose(model(X), expected(), rtol=1e-5, atol=1e-6)


def test_threads_call_parts_at_once(compiled: Any) -> None:
    model = compiled(by(layer))
    failed: list[int] = []

    def call_repeatedly(seed: int) -> None:
        x = np.random.default_rng(seed).normal(size=(seed + 1, 4)).astype(np.float32)
        for _ in range(50):
            if not np.allclose(model(x), expected(x), rtol=1e-5, atol=1e-6):
                failed.append(seed)

    threads = [threading.Thread(target=call_repeatedly, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_files_have_parts(compiled: Any, tmp_path: Path) -> None:
    compiled(by(layer)).save(tmp_path / "m.tw")
    np.testing.assert_allclose(tw.load(tmp_path / "m.tw")(X), expected(), rtol=1e-5, atol=1e-6)
    compilers.unregister("vendor")
    with pytest.raises(ArtifactError, match="needs a compiler that is not installed: got vendor"):
        tw.load(tmp_path / "m.tw")
    with pytest.raises(PluginError, match="no such compiler"):
        tw.compile((MODEL, WEIGHTS), compilers=["vendor"])


def test_a_version_makes_programs_anew(compiled: Any) -> None:
    compiled(by(layer))
    compilers.unregister("vendor")
    other = replace(by(lambda x, w: [0 * layer(x, w)[0]]), version="2", compile=lambda g: Compiled(b"other"))
    np.testing.assert_array_equal(compiled(other)(X), np.zeros((2, 3), np.float32))


def test_bodies_of_loops_have_parts(compiled: Any) -> None:
    compilers.register(by(layer))
    size = [helper.make_tensor_value_info(n, TensorProto.INT64, []) for n in ("k", "i")]
    state = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("x", "y", "s", "s2")]
    more = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("c", "c2")]
    nodes = [
        helper.make_node("MatMul", ["s", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["a"]),
        helper.make_node("Tanh", ["a"], ["s2"]),
        helper.make_node("Identity", ["c"], ["c2"]),
    ]
    body = helper.make_graph(nodes, "body", [size[1], more[0], state[2]], [more[1], state[3]])
    w = {"w": np.eye(4, dtype=np.float32) / 2, "b": np.array([0.5, -0.5, 0.25, 0], np.float32)}
    weights = [numpy_helper.from_array(v, n) for n, v in w.items()]
    node = helper.make_node("Loop", ["k", "", "x"], ["y"], body=body)
    graph = helper.make_graph([node], "g", [size[0], state[0]], [state[1]], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model = tw.compile(proto, compilers=["vendor"])
    assert isinstance(model, tw.Model) and model.manifest.compilers == ("vendor",)
    for k in (0, 1, 4):
        x = X
        for _ in range(k):
            x = expected(x, w)
        np.testing.assert_allclose(model(np.array(k, np.int64), X), x, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_children_of_a_fork_call_parts(compiled: Any) -> None:
    model = compiled(by(layer))
    model(X)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.allclose(model(X), expected(), rtol=1e-5, atol=1e-6) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_bundles_and_timelines(compiled: Any, tmp_path: Path) -> None:
    model = compiled(by(layer))
    assert any(s.kind == "kernel" for s in model.timeline(X).spans)
    with pytest.raises(tw.Error, match="compiler"):
        model.program.bundle(tmp_path)
