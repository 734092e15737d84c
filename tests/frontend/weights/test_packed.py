"""Packed weights of AWQ, GPTQ and bitsandbytes: packed here code by code, as their libraries do, and read back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import tilewright as tw
from tests.frontend.weights.models import products
from tilewright.frontend.weights.coded import NF4, CodedWeight
from tilewright.support.errors import ModelError

AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column whose code stands in each place of a word (AutoAWQ, `packing_utils`)."""


def words(codes: np.ndarray, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """Eight codes of the last dimension a word, the first of `order` lowest."""
    out = np.zeros((*codes.shape[:-1], codes.shape[-1] // 8), np.int64)
    for place, column in enumerate(order):
        out |= codes[..., column::8].astype(np.int64) << 4 * place
    return out.astype(np.uint32).view(np.int32)


def quantised(kind: str, depth: int, columns: int, group: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The tensors of a weight, and its numbers, f64[columns, depth]."""
    rng = np.random.default_rng(9)
    codes = rng.integers(0, 16, (depth, columns))
    scales = (rng.random((depth // group, columns)) / 8).astype(np.float16)
    zeros = rng.integers(1, 16, scales.shape)
    of = np.arange(depth) // group
    if kind == "gptq with any order":
        of = rng.permutation(of)
    numbers = ((codes - zeros[of]) * scales.astype(np.float64)[of]).T
    if kind == "awq":
        return {"qweight": words(codes, AWQ), "qzeros": words(zeros, AWQ), "scales": scales}, numbers
    tensors = {"qweight": words(np.ascontiguousarray(codes.T)).T.copy(), "qzeros": words(zeros - 1), "scales": scales}
    return tensors | {"g_idx": of.astype(np.int32)}, numbers


@pytest.mark.daily(3)
@pytest.mark.parametrize("kind", ["awq", "gptq", "gptq with any order"])
@pytest.mark.parametrize("transposed", [False, True])
def test_packed_words(kind: str, transposed: bool, tmp_path: Path) -> None:
    tensors, numbers = quantised(kind, 128, 24, 32)
    save_file({f"l.{k}": v for k, v in tensors.items()}, tmp_path / "m.safetensors")
    read = tw.read_weights(tmp_path / "m.safetensors")["l.weight"]
    np.testing.assert_allclose(read.numpy() if isinstance(read, CodedWeight) else read, numbers, rtol=1e-6, atol=1e-6)
    model = tw.compile(tw.with_weights(products(128, 24, transposed), {"w": read}))
    stays = kind != "gptq with any order"
    assert ("codes" in " ".join(step.label for step in model.manifest.run_steps)) == stays
    for rows in (1, 3, 9):
        x = np.random.default_rng(1).standard_normal((rows, 128)).astype(np.float32)
        np.testing.assert_allclose(model(x), x @ numbers.T, rtol=0, atol=2e-4)


@pytest.mark.parametrize("nested", [False, True])
def test_nf4(nested: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(10)
    rows, depth, block = 24, 128, 64
    codes = rng.integers(0, 16, rows * depth).astype(np.uint8)
    absmax = rng.random(rows * depth // block).astype(np.float32)
    state: dict[str, object] = {"shape": [rows, depth], "blocksize": block, "dtype": "float16", "quant_type": "nf4"}
    tensors = {"w": (codes[0::2] << 4 | codes[1::2]).reshape(-1, 1), "w.absmax": absmax, "w.quant_map": NF4}
    if nested:
        levels, inner = np.sort(rng.standard_normal(256)).astype(np.float32), 16
        small, outer = rng.integers(0, 256, absmax.size).astype(np.uint8), rng.random(absmax.size // inner, np.float32)
        state |= {"nested_blocksize": inner, "nested_offset": 0.25}
        tensors |= {"w.absmax": small, "w.nested_absmax": outer, "w.nested_quant_map": levels}
        absmax = levels[small] * np.repeat(outer, inner) + np.float32(0.25)
    tensors["w.quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    save_file(tensors, tmp_path / "m.safetensors")
    read = tw.read_weights(tmp_path / "m.safetensors")
    numbers = (NF4[codes].reshape(-1, block) * absmax[:, None]).reshape(rows, depth)
    np.testing.assert_array_equal(read["w"].numpy(), numbers)
    model = tw.compile(tw.with_weights(products(depth, rows, True), tmp_path / "m.safetensors"))
    assert "codes" in " ".join(step.label for step in model.manifest.run_steps)
    for count in (1, 4, 9):
        x = rng.standard_normal((count, depth)).astype(np.float32)
        np.testing.assert_allclose(model(x), x @ numbers.astype(np.float64).T, rtol=0, atol=1e-4)


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    tensors, _ = quantised("awq", 128, 24, 32)
    for change in (
        {"scales": tensors["scales"][:3]},
        {"qzeros": None},
        {"qweight": tensors["qweight"].astype(np.int64)},
    ):
        changed = {f"l.{k}": v for k, v in (tensors | change).items() if v is not None}
        save_file(changed, tmp_path / "m.safetensors")
        with pytest.raises(ModelError, match="packed"):
            tw.read_weights(tmp_path / "m.safetensors")
