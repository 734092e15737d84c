"""Raw weights once they are packed: read again from their file, kept, or gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.runtime.model import Model
from tilewright.support.errors import CallError, WeightError


def arrays(seed: int) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    shapes = {"w1": (17, 40), "b1": (40,), "w2": (40, 6), "b2": (6,)}
    return {n: r.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def policy(seed: int) -> onnx.ModelProto:
    nodes = [node("Gemm", ["x", "w1", "b1"], ["h"]), node("Tanh", ["h"], ["t"]), node("Gemm", ["t", "w2", "b2"], ["y"])]
    return model(nodes, [info("x", ["n", 17])], ["y"], arrays(seed))


def expected(seed: int, x: np.ndarray) -> np.ndarray:
    w = arrays(seed)
    return np.tanh(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]


X = np.linspace(-1, 1, 51, dtype=np.float32).reshape(3, 17)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(policy(0), tmp_path / "policy.onnx")
    return tmp_path / "policy.onnx"


def held(m: Model) -> int:
    """Bytes of raw weights in memory."""
    return sum(a.nbytes for a in m._weights.current.raw if a is not None)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


def test_those_of_a_file_are_read_once_more(path: Path, tmp_path: Path) -> None:
    m = tw.compile(str(path))
    assert isinstance(m, Model)
    assert held(m) < 4 * 17 * 40 < held(tw.compile(path, keep_weights=True))
    assert same(m.weights, arrays(0))
    m.save(tmp_path / "m.tw")
    loaded = tw.load(tmp_path / "m.tw")
    for other in (m, loaded, tw.load(tmp_path / "m.tw", keep_weights=True)):
        np.testing.assert_allclose(other(X), expected(0, X), rtol=1e-5, atol=1e-5)
        assert same(other.weights, arrays(0))
    assert m.profile_prepare(1).kernels
    loaded.save(tmp_path / "again.tw")
    assert np.array_equal(tw.load(tmp_path / "again.tw")(X), loaded(X))


@pytest.mark.parametrize("keep", [None, True, False])
def test_updates(path: Path, tmp_path: Path, keep: bool | None) -> None:
    m = tw.compile(path, keep_weights=keep)
    for seed in range(1, 12):
        assert m.update(arrays(seed)) == seed
        np.testing.assert_allclose(m(X), expected(seed, X), rtol=1e-5, atol=1e-5)
    with pytest.raises(WeightError, match="weight 'w2': is missing"):
        m.update({n: a for n, a in arrays(3).items() if n != "w2"})
    path.unlink()
    if keep is False:
        with pytest.raises(WeightError, match="keep_weights=True"):
            _ = m.weights
        return
    assert same(m.weights, arrays(11)), "no file has them, so they are kept"
    m.save(tmp_path / "m.tw")
    assert np.array_equal(tw.load(tmp_path / "m.tw")(X), m(X))


@pytest.mark.parametrize("small", [0, 16 << 10])
def test_another_file_is_noticed(path: Path, tmp_path: Path, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By either digest of the weights that were read first."""
    monkeypatch.setattr("tilewright.runtime.weights.local._SMALL", small)
    m = tw.compile(path)
    onnx.save(policy(1), path)
    with pytest.raises(WeightError, match="has other weights now") as caught:
        m.save(tmp_path / "m.tw")
    assert "keep_weights=True" in str(caught.value)
    assert not (tmp_path / "m.tw").exists()
    path.write_bytes(b"nonsense")
    with pytest.raises(WeightError, match="cannot be read once more"):
        _ = m.weights
    path.unlink()
    with pytest.raises(WeightError, match="cannot be read once more"):
        _ = m.weights
    np.testing.assert_allclose(m(X), expected(0, X), rtol=1e-5, atol=1e-5)
    onnx.save(policy(0), path)
    assert same(m.weights, arrays(0))


def test_what_is_no_file_is_retained_unless_told(tmp_path: Path) -> None:
    proto = policy(0)
    retained, dropped = tw.compile(proto), tw.compile(proto, keep_weights=False)
    assert isinstance(retained, Model) and isinstance(dropped, Model)
    assert held(retained) >= sum(a.nbytes for a in arrays(0).values()) > held(dropped)
    assert same(retained.weights, arrays(0))
    assert np.array_equal(retained(X), dropped(X))
    with pytest.raises(WeightError, match="raw weights were not kept"):
        dropped.save(tmp_path / "m.tw")
    assert not (tmp_path / "m.tw").exists()
    with pytest.raises(CallError, match="keep_weights"):
        tw.compile(proto, keep_weights="no")


def test_a_model_of_parts_keeps_what_updates_need() -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("StringNormalizer", ["s"], ["t"]), node("Relu", ["h"], ["y"])]
    w = np.eye(3, dtype=np.float32)
    text = onnx.TensorProto.STRING
    proto = model(nodes, [info("x", [2, 3]), info("s", [1], text)], ["y", info("t", [1], text)], {"w": w})
    with pytest.warns(UserWarning):
        m = tw.compile(proto, keep_weights=False)
    x, s = np.ones((2, 3), np.float32), np.array(["a"], object)
    m.update({"w": 2 * w})
    assert np.array_equal(m(x, s)[0], 2 * x)
