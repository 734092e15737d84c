"""Padding of planes: what it guarantees, and that it leaves alone planes in different sets."""

from __future__ import annotations

from math import prod

import pytest

from tilewright.targets.memory import USUAL
from tilewright.transform.loops.spread import spread


@pytest.mark.parametrize(
    "shape",
    [(6, 6, 64, 2, 8), (6, 6, 16, 32, 8), (6, 6, 16, 16), (4, 4, 16, 64, 8), (8, 8, 32, 16), (1, 1, 6, 6, 16, 64, 16)],
)
def test_planes_find_room_in_the_cache(shape: tuple[int, ...]) -> None:
    padded = spread(shape, 4)
    assert all(a <= b for a, b in zip(shape, padded, strict=True)) and padded[-1] == shape[-1]
    assert prod(padded) <= 1.1 * prod(shape)
    planes = prod(shape[:-2]) // shape[-3]
    lines = {4 * prod(padded[-3:]) * k // USUAL.line % (USUAL.way // USUAL.line) for k in range(min(planes, 64))}
    assert len(lines) * USUAL.l1_ways >= min(planes, 64)


@pytest.mark.parametrize("shape", [(), (4096,), (6, 6, 25, 16, 8), (3, 1000), (2, 2, 2)])
def test_what_is_separate_stays(shape: tuple[int, ...]) -> None:
    assert spread(shape, 4) == shape
