"""The image of raw weights: a safetensors file like any other, laid out by the parameters alone."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.image import layout, pack, pack_into, unpack
from tilewright.runtime.specs import ParamSpec
from tilewright.support.errors import ArtifactError

PARAMS = (
    ParamSpec("a", "f32", (3, 5)), ParamSpec("__pad_1__", "u8", (7,)), ParamSpec("empty", "f32", (0, 2)),
    ParamSpec("b", "f64", (8,)), ParamSpec("scalar", "i64", ()), ParamSpec("half", "f16", (2, 2, 2)),
)  # fmt: skip


def weights() -> dict[str, np.ndarray]:
    found = {}
    for k, p in enumerate(PARAMS):
        count = int(np.prod(p.shape))
        found[p.name] = (np.arange(count) + k).astype(BY_NAME[p.dtype].numpy).reshape(p.shape)
    return found


def image() -> np.ndarray:
    placed = layout(PARAMS)
    memory = np.full(placed.nbytes, 255, np.uint8)
    pack_into(placed, PARAMS, [weights()[p.name] for p in PARAMS], memory)
    return memory


def test_others_read_it() -> None:
    found = load(image().tobytes())
    for name, array in weights().items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert (found[name] == array).all()


def test_both_ways_of_writing_give_the_same_bytes() -> None:
    parts = [part if isinstance(part, bytes) else part.tobytes() for part in pack(PARAMS, weights())]
    assert b"".join(parts) == image().tobytes()
    strided = {name: np.asfortranarray(array) for name, array in weights().items()}
    placed = layout(PARAMS)
    memory = np.zeros(placed.nbytes, np.uint8)
    pack_into(placed, PARAMS, [strided[p.name] for p in PARAMS], memory)
    assert memory.tobytes() == image().tobytes()


def test_views_of_it() -> None:
    memory = image()
    found = unpack(PARAMS, memory.data)
    for p, start in zip(PARAMS, layout(PARAMS).starts, strict=True):
        assert start % 64 == 0
        assert (found[p.name] == weights()[p.name]).all()
        if p.nbytes:
            assert found[p.name].ctypes.data == memory.ctypes.data + start, "no copy"


def test_another_layout_is_refused() -> None:
    for params in ((ParamSpec("a", "f32", (5, 3)),), (ParamSpec("a", "f64", (3, 5)),), (ParamSpec("c", "f32", ()),)):
        with pytest.raises(ArtifactError, match="weight"):
            unpack(params, image().data)
