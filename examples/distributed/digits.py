"""Digits of seven segments, moved, blurred and noisy: images of 12 x 12 pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_SEGMENTS = {
    0: "abcdef",
    1: "bc",
    2: "abged",
    3: "abgcd",
    4: "fgbc",
    5: "afgcd",
    6: "afgedc",
    7: "abc",
    8: "abcdefg",
    9: "abcdfg",
}
_PLACES = {
    "a": (slice(0, 1), slice(0, 5)),
    "b": (slice(0, 4), slice(4, 5)),
    "c": (slice(4, 8), slice(4, 5)),
    "d": (slice(7, 8), slice(0, 5)),
    "e": (slice(4, 8), slice(0, 1)),
    "f": (slice(0, 4), slice(0, 1)),
    "g": (slice(3, 4), slice(0, 5)),
}


def digits(count: int, seed: int) -> tuple[Array, Array]:
    """Images, f32[count, 144], and what they show, i64[count]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    images = rng.normal(0, 0.15, (count, 12, 12)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        top, left = rng.integers(0, 4), rng.integers(0, 7)
        for segment in _SEGMENTS[int(label)]:
            rows, columns = _PLACES[segment]
            image[rows.start + top : rows.stop + top, columns.start + left : columns.stop + left] += 1
    return images.reshape(count, 144), labels
