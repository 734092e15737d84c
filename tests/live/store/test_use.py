"""Unusual uses of actors, publishers and weights: each works, or says what to do instead."""

from __future__ import annotations

import copy
import os
import pickle
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.runtime.programs import affine, affine_reference, copy16
from tilewright.runtime.model import Model
from tilewright.support.errors import CallError, StoreError, WeightError

X = np.linspace(-1, 1, 50, dtype=np.float32)


def weights(value: float) -> dict[str, np.ndarray]:
    return {"w": np.arange(6, dtype=np.float32).reshape(2, 3) * value, "scale": np.array([value], np.float32)}


def test_an_actor_that_is_sent_attaches_where_it_arrives(store: Path) -> None:
    with tw.Publisher("policy", Model(affine())) as publisher, tw.attach("policy") as actor:
        publisher.publish(weights(2), version=2)
        with pickle.loads(pickle.dumps(actor)) as other:
            assert other.version == 2
            np.testing.assert_array_equal(other(X)[0], actor(X)[0])
            assert len(publisher.stats()["readers"]) == 2
        with pytest.raises(StoreError, match=r"attach there"):
            pickle.dumps(publisher)
        with pytest.raises(CallError, match=r"tw\.load"):
            copy.copy(Model(copy16()))


def test_strided_inputs() -> None:
    model = Model(affine())
    for x in (X[::2], X[::-1], np.stack([X, X]).T[:, 0]):
        np.testing.assert_allclose(model(x)[0], affine_reference(x, model.weights["w"]), rtol=1e-5)
        out = np.empty((len(x), 3), np.float32), np.empty(1, np.float32)
        assert model(x, out=out) is out
        np.testing.assert_array_equal(out[0], model(np.ascontiguousarray(x))[0])


def test_keywords_are_explained() -> None:
    model = Model(affine())
    np.testing.assert_array_equal(model(x=X)[0], model(X)[0])
    with pytest.raises(CallError, match=r"input 'z': there is no such input: expected one of \['x'\]"):
        model(z=X)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
def test_weights_of_a_wrapper(prefix: str) -> None:
    with pytest.raises(WeightError, match=rf"wrapped\.{prefix[:-1]}\.state_dict"):
        Model(affine()).update({prefix + name: w for name, w in weights(1).items()})


def test_half_precision_is_explained() -> None:
    with pytest.raises(WeightError, match=r"w\.float\(\)"):
        Model(affine()).update({name: w.astype(np.float16) for name, w in weights(1).items()})


@pytest.mark.parametrize("version", ["7", 7.0, True, 1 << 62])
def test_versions_are_whole_numbers(version: object) -> None:
    with pytest.raises(WeightError, match="a whole number"):
        Model(affine()).update(weights(1), version=version)  # type: ignore[arg-type]


def test_a_closed_publisher_has_no_stats(store: Path) -> None:
    publisher = tw.Publisher("policy", Model(affine()))
    publisher.close()
    with pytest.raises(StoreError, match="closed"):
        publisher.stats()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere programs are linked by LLVM")
def test_an_actor_needs_no_object_cache(store: Path, tmp_path: Path) -> None:
    """Code that is compiled besides the program comes with the store, so that an empty cache costs no compiling."""
    code = """
import sys, numpy as np, tilewright as tw
with tw.attach("policy") as actor:
    actor(np.zeros(3, np.float32))
assert not [name for name in sys.modules if name.startswith("llvmlite.binding")]
"""
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path / "empty")}
    with tw.Publisher("policy", Model(affine())):
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
