"""Threefry against its authors' known answers, and the operator, compiled, against NumPy bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.dtype import f32, u32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ops.random import KEY, threefry, uniform
from tilewright.ops.registry import emit1

KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]
"""Key, counter, result: Random123's kat_vectors, threefry2x32 with 20 rounds."""


@pytest.mark.parametrize(("key", "counter", "expected"), KNOWN)
def test_known_answers(key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]) -> None:
    def words(pair: tuple[int, int]) -> tuple[np.uint32, np.uint32]:
        return np.uint32(pair[0]), np.uint32(pair[1])

    with np.errstate(over="ignore"):
        assert threefry(words(key), words(counter), np.uint32) == expected


@pytest.mark.parametrize("shape", [(3, 37), (1,), (), (2, 0), (5, 1, 16)])
def test_native(shape: tuple[int, ...]) -> None:
    builder = GraphBuilder("g")
    key = builder.input("key", KEY)
    x = builder.input("x", TensorType(f32, tuple(as_expr(d) for d in shape)))
    u = emit1(builder, "uniform", key, shape=shape, stream=3)
    model = tw.compile(builder.finish((emit1(builder, "add", u, x),)))
    words = np.array([7, 1 << 31], np.uint32)
    result = model(words, np.ones(shape, np.float32))
    np.testing.assert_array_equal(result, uniform((7, 1 << 31), shape, 3) + np.float32(1))


def test_streams_differ() -> None:
    one, other = uniform((1, 2), (1000,), 1), uniform((1, 2), (1000,), 2)
    assert one.min() >= 0 and one.max() < 1 and abs(np.corrcoef(one, other)[0, 1]) < 0.15


def test_a_key_is_two_words() -> None:
    builder = GraphBuilder("g")
    key = builder.input("key", TensorType(u32, (as_expr(3),)))
    with pytest.raises(tw.Error, match="two words"):
        emit1(builder, "uniform", key, shape=(4,), stream=0)
