"""Winograd convolution: the expression against the reference, and the reference against a direct convolution."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.oracle import by_expression, by_function, check, reference, type_of
from tilewright import ops, te
from tilewright.algorithms.winograd.operators.convolution import ConvWinogradAttrs, tiles_in_blocks
from tilewright.ir.dtype import dtype
from tilewright.ir.graph import TensorType

LANES = 4


def convolution(
    x: np.ndarray, w: np.ndarray, pads: tuple[int, int, int, int], stride: int = 1, dilation: int = 1
) -> np.ndarray:
    """In double precision."""
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    covered = [(r - 1) * dilation + 1 for r in w.shape[2:]]
    windows = np.lib.stride_tricks.sliding_window_view(padded, covered, axis=(2, 3))[:, :, ::stride, ::stride]
    windows = windows[..., ::dilation, ::dilation]
    return np.einsum("nchwrs,kcrs->nkhw", windows, w.astype(np.float64))


CASES = [
    # tile, window, stride, dilation, images, channels, filters, height, width, pads, rows, columns, panel, panels
    (2, 3, 1, 1, 1, 4, 4, 4, 4, (1, 1, 1, 1), 2, 2, 4, 2),
    (2, 3, 1, 1, 2, 5, 7, 3, 5, (0, 1, 2, 0), 1, 2, 8, 1),
    (4, 3, 1, 1, 1, 8, 4, 9, 5, (1, 1, 1, 1), 2, 1, 4, 3),
    (4, 3, 1, 1, 3, 3, 9, 4, 6, (1, 0, 0, 1), 2, 2, 8, 2),
    (4, 3, 1, 1, 1, 4, 4, 1, 1, (1, 1, 1, 1), 1, 1, 4, 1),
    (6, 3, 1, 1, 1, 4, 5, 7, 8, (1, 1, 1, 1), 1, 2, 4, 1),
    (10, 3, 1, 1, 2, 3, 5, 11, 2, (1, 0, 1, 1), 1, 1, 4, 2),
    (2, 3, 2, 1, 2, 5, 7, 8, 7, (1, 1, 1, 1), 2, 1, 4, 1),
    (4, 3, 2, 1, 1, 4, 9, 9, 10, (1, 0, 0, 2), 1, 2, 4, 2),
    (3, 2, 2, 1, 1, 3, 4, 1, 3, (0, 1, 1, 0), 1, 1, 4, 1),
    (2, 4, 3, 1, 1, 4, 4, 7, 10, (0, 2, 1, 0), 1, 2, 4, 1),
    (2, 7, 3, 1, 2, 3, 4, 11, 7, (3, 3, 2, 3), 2, 1, 4, 1),
    (4, 3, 1, 2, 1, 4, 4, 9, 11, (2, 1, 2, 2), 2, 2, 4, 1),
    (2, 3, 1, 3, 2, 5, 4, 8, 7, (3, 3, 3, 3), 3, 1, 4, 1),
    (2, 3, 2, 3, 1, 3, 4, 13, 16, (1, 3, 0, 2), 1, 2, 4, 1),
    (2, 3, 1, 4, 1, 3, 4, 9, 10, (0, 0, 0, 0), 2, 1, 4, 1),
]


@pytest.mark.daily(2)
@pytest.mark.costly(4)
@pytest.mark.parametrize("case", CASES)
def test_expression_reference_and_ordinary_convolution_agree(case: tuple) -> None:
    tile, window, stride, dilation, images, channels, filters, height, width, pads, rows, columns, panel, panels = case
    rng = np.random.default_rng(tile)
    x = rng.standard_normal((images, channels, height, width)).astype(np.float32)
    w = rng.standard_normal((filters, channels, window, window)).astype(np.float32)
    (packed,) = check("lowered.pack_winograd", w, tile=tile, stride=stride, block=LANES, width=panel, panels=panels)
    (blocked,) = reference("lowered.block_channels", [x], {"block": LANES})
    attrs = {"tile": tile, "pads": pads, "out_block": LANES}
    attrs |= {"channels": filters, "input_channels": channels, "window": window}
    attrs |= {"stride": stride, "dilation": dilation}
    want = convolution(x, w, pads, stride, dilation)
    (y,) = ops.infer(
        "lowered.conv_winograd", [type_of(blocked), type_of(packed)], ops.attributes("lowered.conv_winograd", attrs)
    )
    assert [d.value for d in y.shape] == [images, -(-filters // LANES), *want.shape[2:], LANES]
    (got,) = reference("lowered.conv_winograd", [blocked, packed], attrs)
    (wide,) = reference("lowered.conv_winograd", [blocked, packed.astype(np.float64)], attrs)
    assert (got.dtype, wide.dtype) == (x.dtype, x.dtype)  # the image's type, whatever the filters'
    (ordinary,) = reference("lowered.unblock_channels", [got], {"channels": filters})
    scale = np.abs(want).max()
    np.testing.assert_allclose(ordinary / scale, want / scale, atol=5e-6, rtol=0)
    (computed,) = by_expression("lowered.conv_winograd", [blocked, packed], attrs)
    typed = ops.attributes("lowered.conv_winograd", attrs)
    assert isinstance(typed, ConvWinogradAttrs)
    stated = by_function(lambda x, u: tiles_in_blocks(x, u, typed, y.shape, rows, columns), [blocked, packed])
    for result in (computed, stated):
        (ordinary,) = reference("lowered.unblock_channels", [result], {"channels": filters})
        np.testing.assert_allclose(ordinary / scale, want / scale, atol=2e-5, rtol=0)


@pytest.mark.parametrize(("of", "last"), [("f32", ["ci", "lane"]), ("i8", ["ci", "lane", "member"])])
def test_loops_of_packed_filters_have_names(of: str, last: list[str]) -> None:
    """Also those of codes, which have a dimension more."""
    attrs = ops.attributes("lowered.pack_winograd", {"tile": 4, "stride": 1, "block": 4, "width": 4, "panels": 2})
    pack, w = ops.get("lowered.pack_winograd"), te.placeholder((8, 8, 3, 3), of, "w")
    assert pack.compute is not None
    (packed,) = pack.compute([w], attrs, pack.infer([TensorType(dtype(of), w.shape)], attrs))
    assert [axis.name for axis in packed.axis] == ["g", "i", "j", "p", "co", *last]
