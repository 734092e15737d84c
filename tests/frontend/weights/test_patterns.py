"""Sparse products against dense ones of the same numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import plans
from tilewright.compiler import passed
from tilewright.compression.steps import pruning_mask
from tilewright.frontend.weights.patterns import pattern_of, windows_of
from tilewright.ops.interpret import run_graph
from tilewright.runtime.specs import PatternSpec
from tilewright.support.errors import ArtifactError, WeightError
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.lower import lower_group

ZEN4 = Target.parse("znver4")


def network(w: np.ndarray, rows: int | str, transposed: bool) -> object:
    """y = relu(x w + b)."""
    columns = w.shape[1]
    info = helper.make_tensor_value_info
    arrays = {"w": np.ascontiguousarray(w.T) if transposed else w, "b": np.linspace(-1, 1, columns, dtype=np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["a"], transB=int(transposed)),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        "g",
        [info("x", TensorProto.FLOAT, [rows, len(w)])],
        [info("y", TensorProto.FLOAT, [rows, columns])],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def weights(rng: np.random.Generator, depth: int, columns: int, block: tuple[int, int]) -> np.ndarray:
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    return w * pruning_mask(w, 0.9, block)


@pytest.mark.daily(5)
@pytest.mark.parametrize("block,width", [((1, 1), 1), ((1, 8), 8), ((1, 16), 16), ((16, 16), 16)])
@pytest.mark.parametrize("rows", [1, 5, "n"])
@pytest.mark.parametrize("transposed", [False, True])
def test_zeros_are_left_out(block: tuple[int, int], width: int, rows: int | str, transposed: bool) -> None:
    rng = np.random.default_rng(11)
    w = weights(rng, 96, 80, block)
    assert pattern_of(w).width == width
    assert pattern_of(w, 16).width == (width if width % 16 == 0 else 1)
    read = tw.with_patterns(network(w, rows, transposed))
    model = tw.compile(read)
    assert "sparse" in " ".join(step.label for step in model.manifest.run_steps)
    for count in (1, 3, 37) if rows == "n" else (rows,):
        x = rng.standard_normal((count, 96)).astype(np.float32)
        wanted = np.maximum(x @ w.astype(np.float64) + np.linspace(-1, 1, 80), 0)
        np.testing.assert_allclose(model(x), wanted, rtol=0, atol=2e-5)
    model.update({"w": np.ascontiguousarray((w * 2).T if transposed else w * 2), "b": np.zeros(80, np.float32)})
    x = rng.standard_normal((1 if rows == "n" else int(rows), 96)).astype(np.float32)
    np.testing.assert_allclose(model(x), np.maximum(x @ (w * 2.0), 0), rtol=0, atol=4e-5)


@pytest.mark.parametrize("lanes,window", [(16, 32), (8, 16)])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.2, 1.0])
def test_windows_hold_each_element_once(lanes: int, window: int, share: float) -> None:
    rng = np.random.default_rng(15)
    nonzero = rng.random((70, 37)) < share
    windows = windows_of(nonzero, lanes, window)
    assert windows.first.shape == (-(-37 // lanes), windows.rows.shape[1])
    held = np.zeros((71, 37), int)
    np.add.at(held, (windows.rows, np.arange(37)[:, None]), 1)
    np.testing.assert_array_equal(held[:70], nonzero)
    first = windows.first.repeat(lanes, axis=0)[:37].astype(int)
    inside = (windows.rows >= first) & (windows.rows < first + window) & (first + window <= 70)
    assert (inside | (windows.rows == 70)).all()


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", ["x86-64-v4", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("transposed", [False, True])
def test_one_row_reads_windows_of_the_target_s_vectors(name: str, transposed: bool) -> None:
    """Blocks narrower than its vectors too; machines without such instructions compute the same."""
    rng = np.random.default_rng(16)
    w, x = weights(rng, 96, 70, (1, 1)), rng.standard_normal((1, 96)).astype(np.float32)
    read = tw.with_patterns(network(w, 1, transposed), target=Target.parse(name))
    windows = [node for node in read.graph.nodes if node.op == "sparse_window_matmul"]
    assert [n.inputs[1].shape[2].value for n in windows] == {"x86-64-v4": [16], "x86-64-v3": [8]}.get(name, [])
    model = tw.compile(read)
    wanted = np.maximum(x @ w.astype(np.float64) + np.linspace(-1, 1, 70), 0)
    np.testing.assert_allclose(model(x), wanted, rtol=0, atol=2e-5)
    other = {"w": (w.T if transposed else w) * 2, "b": np.zeros(70, np.float32)}
    model.update({n: np.ascontiguousarray(a) for n, a in other.items()})
    np.testing.assert_allclose(model(x), np.maximum(x @ (w * 2.0), 0), rtol=0, atol=4e-5)


@pytest.mark.daily(2)
@pytest.mark.parametrize("rows,columns,plan", [(64, 80, True), (32, 84, True), (96, 7, True), (37, 80, False)])
def test_rows_that_fill_vectors_meet_single_elements_by_columns(rows: int, columns: int, plan: bool) -> None:
    rng = np.random.default_rng(rows)
    w = weights(rng, 96, columns, (1, 1))
    read = tw.with_patterns(network(w, rows, False), target=ZEN4)
    graph = passed(read.graph, ZEN4)
    (group,) = (g for g in fuse(graph) if any(n.op == "sparse_matmul" for n in g.nodes))
    planned = plans.plan(lower_group(group, "kernel").func, ZEN4)
    assert (planned.plan == "sparse columns") == plan
    x = rng.standard_normal((rows, 96)).astype(np.float32)
    wanted = np.maximum(x @ w.astype(np.float64) + np.linspace(-1, 1, columns), 0)
    (got,) = run_graph(graph, {"x": x}, read.weights).values()
    for y in (got, tw.compile(read)(x)):
        np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("columns", [1, 7])
def test_columns_of_which_no_two_go_together(columns: int) -> None:
    rng = np.random.default_rng(columns)
    w = rng.standard_normal((96, columns)).astype(np.float32) * (rng.random((96, columns)) < 0.04)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Transpose", ["a"], ["y"], perm=[1, 0])]
    info = helper.make_tensor_value_info
    ends = [info("x", TensorProto.FLOAT, [16, 96])], [info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    read = tw.with_patterns(model, target=ZEN4)
    (group,) = (g for g in fuse(passed(read.graph, ZEN4)) if any(n.op == "sparse_matmul" for n in g.nodes))
    assert plans.plan(lower_group(group, "kernel").func, ZEN4).plan == "sparse columns"
    x = rng.standard_normal((16, 96)).astype(np.float32)
    np.testing.assert_allclose(tw.compile(read)(x), (x @ w.astype(np.float64)).T, rtol=0, atol=2e-5)


def test_columns_that_fill_no_panel_and_rows_without_elements() -> None:
    rng = np.random.default_rng(12)
    w = weights(rng, 40, 37, (1, 8))
    w[:, 8:16] = 0
    x = rng.standard_normal((4, 40)).astype(np.float32)
    got = tw.compile(tw.with_patterns(network(w, 4, False)))(x)
    np.testing.assert_allclose(got, np.maximum(x @ w + np.linspace(-1, 1, 37), 0), rtol=0, atol=2e-5)


def test_weights_below_the_share_of_zeros_stay_dense() -> None:
    w = np.ones((32, 32), np.float32)
    model = tw.compile(tw.with_patterns(network(w, 2, False)))
    assert "sparse" not in " ".join(step.label for step in model.manifest.run_steps)


@pytest.mark.daily(2)
@pytest.mark.parametrize("block", [(1, 1), (1, 16)])
@pytest.mark.parametrize("transposed", [False, True])
def test_numbers_outside_of_the_pattern_are_refused(
    block: tuple[int, int], transposed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By updates, publications, compiles and loads; what was there stays."""
    monkeypatch.setenv("TILEWRIGHT_STORE_DIR", str(tmp_path / "stores"))
    rng = np.random.default_rng(13)
    w, bias = weights(rng, 48, 64, block), np.zeros(64, np.float32)
    read = tw.with_patterns(network(w, 2, transposed))
    model = tw.compile(read)
    x = rng.standard_normal((2, 48)).astype(np.float32)
    before = model(x)
    # A zero that no block of any width holds: all of its row's panel is 0.
    row, panel = np.argwhere((w.reshape(48, 4, 16) == 0).all(axis=2))[0]
    outside = w.copy()
    outside[row, panel * 16 : panel * 16 + 3] = 1, np.nan, -1e-30
    new = {"w": np.ascontiguousarray(outside.T if transposed else outside), "b": bias}
    refused = pytest.raises(
        WeightError, match=r"weight 'w': has numbers outside .*: expected 0 outside of .*, got 3 elements"
    )
    with refused:
        model.update(new, finite=False)
    assert model.version == 0
    np.testing.assert_array_equal(model(x), before)
    with tw.Publisher("sparse", model) as publisher:
        with refused:
            publisher.publish(new, finite=False)
        assert publisher.version == 0
        publisher.publish({"w": np.ascontiguousarray(w.T if transposed else w) / 2, "b": bias})
    with refused:
        tw.compile(dataclasses.replace(read, weights={**read.weights, **new}))
    model.save(tmp_path / "m.tw")
    loaded = tw.load(tmp_path / "m.tw")
    np.testing.assert_array_equal(loaded(x), before)
    with refused:
        loaded.update(new, finite=False)
    assert loaded.update({"w": np.zeros_like(new["w"]), "b": bias}) == 1
    np.testing.assert_array_equal(loaded(x), np.zeros((2, 64), np.float32))


def test_patterns_that_do_not_fit_their_weight_are_refused() -> None:
    w = weights(np.random.default_rng(14), 48, 37, (1, 8))
    manifest = tw.compile(tw.with_patterns(network(w, 4, False), target=Target.parse("x86-64-v3"))).manifest
    (fitting,) = manifest.patterns
    assert fitting == PatternSpec("w", "w.pattern", 8)
    for change in ({"weight": "b"}, {"rows": "nobody"}, {"width": 0}, {"width": 16}, {"transposed": True}):
        other = (dataclasses.replace(fitting, **change),)
        with pytest.raises(ArtifactError, match="has a pattern that does not fit"):
            dataclasses.replace(manifest, patterns=other)


@pytest.mark.daily(3)
@pytest.mark.costly(4)
@pytest.mark.parametrize("seed", range(12))
def test_random_shapes(seed: int) -> None:
    """Any sizes, zeros and blocks, on vectors of the machine and of AVX2."""
    rng = np.random.default_rng(seed)
    depth, columns, rows = (int(n) for n in rng.integers((1, 1, 1), (150, 100, 20)))
    block = ((1, 1), (1, 8), (1, 16), (4, 4))[seed % 4]
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    present = rng.random((-(-depth // block[0]), -(-columns // block[1]))) < rng.uniform(0, 0.3)
    w *= np.kron(present, np.ones(block))[:depth, :columns].astype(np.float32)
    transposed, stated = bool(rng.integers(2)), "n" if rng.integers(2) else rows
    read = tw.with_patterns(network(w, stated, transposed), least=0.01)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    wanted = np.maximum(x @ w.astype(np.float64) + np.linspace(-1, 1, columns), 0)
    for target in (None, *([Target.on_host("x86-64-v3")] if Target.host().triple.startswith("x86") else [])):
        model = tw.compile(read, target=target)
        np.testing.assert_allclose(model(x), wanted, rtol=0, atol=2e-5)
        scaled = np.ascontiguousarray((w * 2).T if transposed else w * 2)
        model.update({"w": scaled, "b": np.linspace(-2, 2, columns, dtype=np.float32)})
        np.testing.assert_allclose(model(x), 2 * wanted, rtol=0, atol=4e-5)
