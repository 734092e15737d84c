"""Native reductions against NumPy's, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.collective.kernels import KINDS, WIDTH, is_native, reduction, reduction_text
from tilewright.collective.reductions import DTYPES, OPERATIONS, address_of, reduce_in_numpy, reduce_into


def parts_of(dtype: str, ranks: int, size: int, seed: int) -> list[np.ndarray[Any, Any]]:
    rng, kind = np.random.default_rng(seed), DTYPES[dtype]
    if kind.kind == "f":
        parts = [rng.standard_normal(size).astype(kind) for _ in range(ranks)]
        for part in parts:
            part[rng.integers(size, size=min(size, 3))] = [np.nan, np.inf, -0.0][: min(size, 3)]
        return parts
    limits = np.iinfo(kind)
    return [rng.integers(limits.min, limits.max, size, kind, endpoint=True) for _ in range(ranks)]


CASES = [("f32", "sum"), ("f64", "avg"), ("f16", "avg"), ("bf16", "sum"), ("bf16", "max"), ("u8", "max"), ("i8", "min")]


@pytest.mark.parametrize(("dtype", "operation"), CASES)
def test_bits_are_numpys(dtype: str, operation: str) -> None:
    if not is_native(dtype, operation):
        pytest.skip("this machine has no instructions for halves")
    function = reduction(dtype, operation)
    for ranks in (1, 2, 3, 5):
        for size in (1, WIDTH - 1, WIDTH, 5 * WIDTH + 3):
            parts = parts_of(dtype, ranks, size, ranks)
            want, out = np.empty(size, DTYPES[dtype]), np.zeros(size + 1, DTYPES[dtype])
            with np.errstate(all="ignore"):
                reduce_in_numpy(want, parts, dtype, operation)
            table = np.array([address_of(part) for part in parts], np.int64)
            function(address_of(out), address_of(table), ranks, size)
            np.testing.assert_array_equal(out[:-1], want)
            assert out[-1] == 0


def test_every_type_and_operation_has_text_or_none() -> None:
    for dtype in KINDS:
        for operation in OPERATIONS:
            floats = KINDS[dtype].floats
            if not is_native(dtype, operation):
                assert (operation[0] == "b" and floats) or (operation == "avg" and not floats) or dtype == "f16"
            else:
                assert "define i64 @tw_reduce" in reduction_text(dtype, operation)


def test_the_result_may_be_a_part() -> None:
    parts = parts_of("f32", 3, 5000, 1)
    parts = [np.nan_to_num(part) for part in parts]
    want = (parts[0] + parts[1]) + parts[2]
    reduce_into(parts[1], parts, "f32", "sum")
    np.testing.assert_array_equal(parts[1], want)
