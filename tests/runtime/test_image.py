"""The image of raw weights: a safetensors file like any other, laid out by the parameters alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.image import indexed, layout, pack, pack_into, unpack
from tilewright.runtime.specs import ParamSpec
from tilewright.support.errors import ArtifactError

PARAMS = (
    ParamSpec("a", "f32", (3, 5)), ParamSpec("__pad_1__", "u8", (7,)), ParamSpec("empty", "f32", (0, 2)),
    ParamSpec("b", "f64", (8,)), ParamSpec("scalar", "i64", ()), ParamSpec("half", "f16", (2, 2, 2)),
)  # fmt: skip


def weights() -> dict[str, np.ndarray]:
    result = {}
    for k, p in enumerate(PARAMS):
        count = int(np.prod(p.shape))
        result[p.name] = (np.arange(count) + k).astype(BY_NAME[p.dtype].numpy).reshape(p.shape)
    return result


def image() -> np.ndarray:
    placed = layout(PARAMS)
    memory = np.full(placed.nbytes, 255, np.uint8)
    pack_into(placed, PARAMS, [weights()[p.name] for p in PARAMS], memory)
    return memory


def test_others_read_it() -> None:
    result = load(image().tobytes())
    for name, array in weights().items():
        assert result[name].dtype == array.dtype and result[name].shape == array.shape
        assert (result[name] == array).all()


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
    result = unpack(PARAMS, memory.data)
    for p, start in zip(PARAMS, layout(PARAMS).starts, strict=True):
        assert start % 64 == 0
        assert (result[p.name] == weights()[p.name]).all()
        if p.nbytes:
            assert result[p.name].ctypes.data == memory.ctypes.data + start, "no copy"


def test_another_layout_is_refused() -> None:
    for params in ((ParamSpec("a", "f32", (5, 3)),), (ParamSpec("a", "f64", (3, 5)),), (ParamSpec("c", "f32", ()),)):
        with pytest.raises(ArtifactError, match="weight"):
            unpack(params, image().data)


@pytest.mark.parametrize("change", [(64, 64), (0, 64), (64, 0), (-64, -64), (1, 1), (1 << 20, 1 << 20)])
@pytest.mark.parametrize("name", ["a", "b", "scalar"])
def test_places_that_a_tensor_cannot_have_are_refused(name: str, change: tuple[int, int]) -> None:
    """Places of another length, no whole line, before the first byte, after the last."""
    body = image()
    index, rest = indexed(body.data, "weights")
    places = index[name]["data_offsets"]
    moved = [place + by for place, by in zip(places, change, strict=True)]
    text = json.dumps(index | {name: index[name] | {"data_offsets": moved}}).encode()
    text += b" " * (-len(text) % 64)
    data = np.frombuffer(len(text).to_bytes(8, "little") + text + bytes(rest), np.uint8)
    start, end = moved
    if start >= 0 and not start % 64 and end <= len(rest) and end - start == places[1] - places[0]:
        assert unpack(PARAMS, data.data)[name].tobytes() == bytes(rest[start:end])
        return
    with pytest.raises(ArtifactError, match=f"weight '{name}': is out of place"):
        unpack(PARAMS, data.data)
