"""Strassen's products: the identity after them, and the expression against the reference and a direct product."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.oracle import by_function, check, reference
from tilewright import ops
from tilewright.algorithms.strassen.operators.convolution import ConvStrassenAttrs, pixels_in_strips
from tilewright.algorithms.strassen.operators.product import LEFT, MERGE, PRODUCTS, RIGHT
from tilewright.ir.expr import const


def test_the_seven_products_are_a_matrix_product() -> None:
    """The products as a trilinear form: quarter (i, k) of the left operand times (k, j) of the right one goes to (i, j)
    alone."""
    got = np.einsum("qt,ta,tb->qab", np.array(MERGE), np.array(LEFT), np.array(RIGHT))
    want = np.zeros((4, 4, 4), int)
    for i, j, k in np.ndindex(2, 2, 2):
        want[2 * i + j, 2 * i + k, 2 * k + j] = 1
    np.testing.assert_array_equal(got, want)
    assert PRODUCTS == 7


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("lead", "rows", "depth", "columns", "width"), [
    ((), 4, 6, 8, 4),
    ((1,), 5, 7, 9, 4),
    ((1, 1), 1, 1, 1, 4),
    ((), 3, 8, 18, 8),
    ((), 8, 5, 7, 8),
])  # fmt: skip
def test_expression_reference_and_ordinary_product_agree(
    lead: tuple[int, ...], rows: int, depth: int, columns: int, width: int, transpose: bool
) -> None:
    rng = np.random.default_rng(rows)
    x = rng.integers(-9, 10, (*lead, rows, depth)).astype(np.float32)
    w = rng.integers(-9, 10, (depth, columns)).astype(np.float32)
    (sums,) = check("lowered.strassen_sums", np.ascontiguousarray(w.T) if transpose else w, transpose=transpose)
    (panels,) = reference("lowered.pack_matmul", [sums], {"width": width, "transpose": transpose})
    (got,) = check("lowered.matmul_strassen", x, np.ascontiguousarray(panels.swapaxes(0, 1)), columns=columns)
    np.testing.assert_array_equal(got, x @ w)


@pytest.mark.daily(3)
@pytest.mark.parametrize(("size", "strides", "channels", "filters", "strip", "panels"), [
    ((4, 6), (1, 1), 16, 32, 12, 2),
    ((4, 6), (1, 1), 16, 32, 4, 1),
    ((5, 5), (1, 1), 8, 16, 5, 1),
    ((7, 3), (2, 1), 24, 48, 5, 3),
    ((6, 9), (2, 2), 8, 16, 3, 1),
    ((1, 1), (1, 1), 8, 16, 1, 1),
])  # fmt: skip
def test_convolutions_of_one_pixel(
    size: tuple[int, int], strides: tuple[int, int], channels: int, filters: int, strip: int, panels: int
) -> None:
    rng = np.random.default_rng(filters)
    block, width = 4, 8
    x = rng.integers(-9, 10, (2, channels, *size)).astype(np.float32)
    w = rng.integers(-9, 10, (filters, channels)).astype(np.float32)
    (sums,) = reference("lowered.strassen_sums", [w], {"transpose": True})
    (packed,) = reference("lowered.pack_matmul", [sums], {"width": width, "transpose": True})
    grouped = packed.reshape(PRODUCTS, -1, panels, *packed.shape[2:]).swapaxes(0, 1)
    (blocked,) = reference("lowered.block_channels", [x], {"block": block})
    attrs = {"strides": strides, "channels": filters}
    (got,) = check("lowered.conv_strassen", blocked, np.ascontiguousarray(grouped), **attrs)
    typed = ops.attributes("lowered.conv_strassen", attrs)
    assert isinstance(typed, ConvStrassenAttrs)
    out = tuple(map(const, got.shape))
    stated = by_function(lambda x, u: pixels_in_strips(x, u, typed, out, strip), [blocked, grouped])
    np.testing.assert_array_equal(stated, got)
    want = np.einsum("nchw,kc->nkhw", x[:, :, :: strides[0], :: strides[1]], w)
    np.testing.assert_array_equal(
        reference("lowered.unblock_channels", [got], {"channels": filters})[0],
        want,
    )
