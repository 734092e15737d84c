"""Weights are loaded and packed a group at a time: the same as all at once, and all or nothing."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.runtime.weights import prepare

WIDTHS = (19, 64, 33, 7)
X = np.random.default_rng(0).standard_normal((5, WIDTHS[0]), dtype=np.float32)
Weights = dict[str, np.ndarray]


def weights(seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    result = {}
    for k, (rows, columns) in enumerate(pairwise(WIDTHS)):
        result[f"w{k}"] = rng.standard_normal((rows, columns), dtype=np.float32)
        result[f"b{k}"] = rng.standard_normal(columns, dtype=np.float32)
    return result


def reference(w: Weights) -> np.ndarray:
    y = X.astype(np.float64)
    for k in range(len(WIDTHS) - 1):
        y = np.maximum(y @ w[f"w{k}"] + w[f"b{k}"], 0)
    return y


def network() -> onnx.ModelProto:
    nodes, last = [], "x"
    for k in range(len(WIDTHS) - 1):
        nodes.append(helper.make_node("Gemm", [last, f"w{k}", f"b{k}"], [f"g{k}"]))
        last = f"y{k}"
        nodes.append(helper.make_node("Relu", [f"g{k}"], [last]))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTHS[0]])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["n", WIDTHS[-1]])],
        [numpy_helper.from_array(array, name) for name, array in weights(0).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("groups") / "layers.tw"
    tw.compile(network(), threads=1).save(path)
    return path


def strided(w: Weights) -> Weights:
    """Weights of equal values, every other one with gaps between its elements."""
    return {name: np.repeat(a, 2, axis=-1)[..., ::2] if k % 2 else a for k, (name, a) in enumerate(w.items())}


def close(y: np.ndarray, w: Weights) -> bool:
    return bool(np.allclose(y, reference(w), rtol=1e-4, atol=1e-4))


@pytest.mark.daily(3)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("nbytes", [1, 5000, 1 << 30])
def test_groups_of_any_size(
    file: Path, store: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int, threads: int
) -> None:
    monkeypatch.setattr(prepare, "GROUP", nbytes)
    model = tw.load(file, threads=threads)
    groups = model._engine.prepare._groups
    steps = len(model.manifest.prepare_steps)
    assert [g.first for g in groups] == [0, *(g.last for g in groups[:-1])] and groups[-1].last == steps
    assert sorted(p for g in groups for p in g.params) == list(range(len(model.manifest.params)))
    assert (len(groups) == 1) == (nbytes == 1 << 30)
    with tw.Publisher("layers", model, threads=threads) as publisher, tw.attach("layers") as actor:
        for seed in range(1, 4):
            w = strided(weights(seed)) if seed % 2 else weights(seed)
            model.update(w)
            publisher.publish(w)
            assert close(model(X), w) and (actor(X) == model(X)).all()


@pytest.mark.parametrize("name", ["w0", "b1", "w2", "b2"])
def test_a_refused_group_leaves_the_old_weights(
    file: Path, store: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(prepare, "GROUP", 1)
    model = tw.load(file)
    model.update(weights(1))
    bad = weights(2)
    bad[name].flat[-1] = np.nan
    bad["b0"][3] = -np.inf
    with tw.Publisher("layers", model) as publisher, tw.attach("layers") as actor:
        version = publisher.version
        for take in (model.update, publisher.publish):
            for _ in range(12):  # more often than there are slots
                with pytest.raises(tw.errors.WeightError) as caught:
                    take(bad)
                assert f"'{name}'" in str(caught.value) and "'b0'" in str(caught.value)
                assert str(caught.value).count("NaN or infinity") == 2
        assert close(model(X), weights(1)) and close(actor(X), weights(1)) and publisher.version == version
        publisher.publish(weights(3))
        model.update(weights(3))
        assert close(model(X), weights(3)) and close(actor(X), weights(3))
        publisher.publish(bad, finite=False)
        assert actor.version == version + 2
