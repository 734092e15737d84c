"""The conversions of f16 beside NumPy's: all halves, and floats at and around the middle of each two."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tilewright.bundle.float16 import NAMES, calls_float16_conversions, float16_conversions
from tilewright.native.link import Library, compile_text, host_triple

ALL = np.arange(1 << 16, dtype=np.uint16)


@pytest.fixture(scope="module")
def library() -> Library:
    text = float16_conversions(host_triple())
    for name in NAMES:
        text = text.replace(f"@{name}(", f"@own{name}(")
    result = Library({"halves": compile_text(text, cache=False)}, [f"own{name}" for name in NAMES])
    result.keep_forever()
    return result


def test_to_single(library: Library) -> None:
    extend = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_uint16)(library["own__extendhfsf2"])
    result = np.array([extend(int(h)) for h in ALL], np.float32)
    np.testing.assert_array_equal(result, ALL.view(np.float16).astype(np.float32))


@pytest.mark.parametrize(
    ("name", "kind", "dtype"), [(NAMES[1], ctypes.c_float, "f4"), (NAMES[2], ctypes.c_double, "f8")]
)
def test_of_single_and_of_double(library: Library, name: str, kind: type, dtype: str) -> None:
    truncate = ctypes.CFUNCTYPE(ctypes.c_uint16, kind)(library[f"own{name}"])
    positive = ALL[:0x7C00].view(np.float16).astype(np.float64)
    middles = (positive[:-1] + positive[1:]) / 2
    exact = np.concatenate([positive, middles, [65519.9, 65520.0, 1e30, np.inf, np.nan, 1e-12, 0.0]]).astype(dtype)
    adjacent = [np.nextafter(exact, exact.dtype.type(side)) for side in (0.0, np.inf)]
    numbers = np.concatenate([exact, *adjacent])
    numbers = np.concatenate([numbers, -numbers])
    result = np.array([truncate(float(x)) for x in numbers], np.uint16).view(np.float16)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(result, numbers.astype(np.float16))


def test_who_needs_them() -> None:
    assert calls_float16_conversions({"a": b"..\0__extendhfsf2\0"}) and not calls_float16_conversions({"a": b"memcpy"})
