"""Coded weights: the same bits come back, and damaged bytes are one error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime import coded
from tilewright.runtime.specs import ParamSpec
from tilewright.support.errors import ArtifactError


def spec(name: str, array: Any, dtype: str) -> ParamSpec:
    return ParamSpec(name, dtype, array.shape)


def arrays() -> dict[str, tuple[Any, str]]:
    rng = np.random.default_rng(6)
    normal = rng.standard_normal((33, 21)).astype(np.float32)
    fewer = rng.choice(np.asarray([0, -0.0, 1.5, np.nan, np.inf], np.float32), (50, 20))
    several = rng.choice(rng.standard_normal(1000).astype(np.float64), 9000)
    cases = {"normal": (normal, "f32"), "few": (fewer, "f32"), "many": (several, "f64")}
    cases |= {"empty": (np.zeros((0, 3), np.float32), "f32"), "one": (np.float32(3).reshape(()), "f32")}
    cases |= {"ints": (rng.integers(-128, 128, 500).astype(np.int8), "i8"), "long": (np.arange(300), "i64")}
    sparse = np.where(rng.random((90, 70)) < 0.03, rng.choice(np.asarray([1, -2.5, 3], np.float32), (90, 70)), 0)
    skewed = rng.choice(np.asarray([1, 2, 3, 4], np.float32), (1000, 9), p=(0.7, 0.2, 0.09, 0.01))
    alone = np.zeros(3000, np.float32)
    alone[[0, 1, 1500, 2999]] = 7
    cases |= {"sparse": (sparse, "f32"), "skewed": (skewed, "f32"), "alone": (alone, "f32")}
    cases |= {"one value": (np.full((40, 40), 2.5), "f64")}
    for name in ("f16", "bf16", "bool", "u16"):
        cases[name] = (rng.integers(0, 2, (9, 9)).astype(BY_NAME[name].numpy), name)
    return cases


def test_the_same_bits_come_back() -> None:
    arguments = arrays()
    params = [spec(n, a, t) for n, (a, t) in arguments.items()]
    data = coded.encode(params, {n: a for n, (a, _) in arguments.items()})
    back = coded.decode(params, memoryview(data))
    for name, (array, _) in arguments.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        assert back[name].tobytes() == np.ascontiguousarray(array).tobytes(), name
    assert len(data) < 0.8 * sum(a.nbytes for a, _ in arguments.values())


def test_damaged_bytes_are_one_error() -> None:
    rng = np.random.default_rng(7)
    array = rng.choice(np.asarray([0, 1, 2], np.float32), (40, 10))
    params = [spec("w", array, "f32"), spec("v", array[:, :3] * 0.1 + rng.standard_normal((40, 3)), "f64")]
    whole = coded.encode(params, {"w": array, "v": rng.standard_normal((40, 3))})
    for n in range(0, len(whole), 11):
        with pytest.raises(ArtifactError):
            coded.decode(params, memoryview(whole[:n]))
    stream = coded.expand(whole, 1 << 20, "w")
    for _ in range(150):
        bad = bytearray(stream)
        bad[int(rng.integers(0, 20 if rng.random() < 0.5 else len(bad)))] = int(rng.integers(0, 256))
        try:
            back = coded.decode(params, memoryview(coded.squeeze(bytes(bad))))
        except ArtifactError:
            continue
        assert [back[p.name].shape for p in params] == [p.shape for p in params]
    with pytest.raises(ArtifactError, match="more"):
        coded.decode(params[:1], memoryview(whole))
    with pytest.raises(ArtifactError):
        coded.expand(coded.squeeze(bytes(1 << 20)), 1000, "bomb")
