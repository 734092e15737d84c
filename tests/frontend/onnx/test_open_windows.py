"""Windows whose pads depend on open sizes: `auto_pad` SAME with a stride, `output_shape` of an open input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tests.frontend.onnx.test_disagreements import scattered
from tilewright.support.errors import CallError

Array = np.ndarray[Any, Any]
F = np.float32
SIZES = [(n, m) for n in range(1, 7) for m in (1, 5)]
KERNEL, STRIDES = (3, 2), (2, 3)


def windows(x: Array, auto: str, fill: float) -> Array:
    """Each window of [n, c, h, w] with what SAME puts around: [n, c, rows, columns, taps]."""
    pads = [(0, 0), (0, 0)]
    for extent, k, s in zip(x.shape[2:], KERNEL, STRIDES, strict=True):
        total = max((-(-extent // s) - 1) * s + k - extent, 0)
        less, more = total // 2, total - total // 2
        pads.append((less, more) if auto == "SAME_UPPER" else (more, less))
    wide = np.pad(x, pads, constant_values=fill)
    taps = np.lib.stride_tricks.sliding_window_view(wide, KERNEL, axis=(2, 3))
    counts = [-(-extent // s) for extent, s in zip(x.shape[2:], STRIDES, strict=True)]
    strided = taps[:, :, :: STRIDES[0], :: STRIDES[1]][:, :, : counts[0], : counts[1]]
    return strided.reshape(*strided.shape[:4], -1)


W = np.random.default_rng(0).integers(-3, 4, (3, 2, *KERNEL)).astype(F)
REFERENCES: dict[str, Callable[[Array, str], Array]] = {
    "Conv": lambda x, auto: np.einsum("nchwk,fck->nfhw", windows(x, auto, 0), W.reshape(3, 2, -1)),
    "MaxPool": lambda x, auto: windows(x, auto, -np.inf).max(-1),
    "AveragePool": lambda x, auto: np.nanmean(windows(x, auto, np.nan), -1),
    "AveragePool, all": lambda x, auto: windows(x, auto, 0).mean(-1),
    "LpPool": lambda x, auto: np.sqrt((windows(x, auto, 0) ** 2).sum(-1)),
}


@pytest.mark.daily(2)
@pytest.mark.costly(3)
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("name", REFERENCES)
def test_same_pads_of_open_sizes(name: str, auto: str) -> None:
    op = name.partition(",")[0]
    attributes: dict[str, Any] = {} if op == "Conv" else {"kernel_shape": KERNEL}
    attributes |= {"count_include_pad": 1} if "all" in name else {}
    layer = node(op, ["x", "w"] if op == "Conv" else ["x"], ["y"], auto_pad=auto, strides=STRIDES, **attributes)
    m = model([layer], [info("x", ["n", 2, "h", "w"])], ["y"], {"w": W} if op == "Conv" else {})
    compiled = tw.compile(m, fallback="never")
    rng = np.random.default_rng(1)
    for size in SIZES:
        x = rng.integers(-4, 5, (2, 2, *size)).astype(F)
        np.testing.assert_allclose(compiled(x), REFERENCES[name](x, auto), rtol=1e-5, atol=1e-5, err_msg=str(size))


def test_no_windows_of_no_elements() -> None:
    layer = node("MaxPool", ["x"], ["y"], auto_pad="SAME_UPPER", strides=STRIDES, kernel_shape=KERNEL)
    m = model([layer], [info("x", ["n", 2, "h", 4])], ["y"])
    compiled = tw.compile(m, fallback="never", dims={"h": tw.dim(0, 9)})
    assert compiled(np.zeros((2, 2, 0, 4), F)).shape == (2, 2, 0, 2)


@pytest.mark.daily(3)
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("storage", [0, 1])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 1)])
def test_places_of_open_windows(auto: str, storage: int, dilations: tuple[int, int]) -> None:
    """The first of equal maxima; where all elements are minus infinity, the window's first one."""
    more: dict[str, Any] = {"storage_order": storage, "dilations": dilations}
    layer = node("MaxPool", ["x"], ["y", "i"], auto_pad=auto, strides=STRIDES, kernel_shape=KERNEL, **more)
    compiled = tw.compile(model([layer], [info("x", ["n", 2, "h", "w"])], ["y", "i"]), fallback="never")
    rng = np.random.default_rng(1)
    for size in SIZES:
        x = rng.integers(-2, 3, (2, 2, *size)).astype(F)
        x[0, 0], x[1, 1, 0, 0] = -np.inf, np.nan
        want = places(x, auto, storage, dilations)
        np.testing.assert_array_equal(compiled(x)[1], want, err_msg=str(size))


def places(x: Array, auto: str, storage: int, dilations: tuple[int, int]) -> Array:
    """Where in `x` each window's first maximum lies, place element by element; NaN is less than every number."""
    height, width = x.shape[2:]
    result = np.empty((*x.shape[:2], *(-(-extent // s) for extent, s in zip((height, width), STRIDES, strict=True))))
    first = []
    for extent, k, s, d in zip((height, width), KERNEL, STRIDES, dilations, strict=True):
        total = max((-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent, 0)
        first.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
    for b, c, i, j in np.ndindex(*result.shape):
        best, place = -np.inf, -1
        for p, q in np.ndindex(*KERNEL):
            row, column = (
                at * s + t * d - f for at, t, s, d, f in zip((i, j), (p, q), STRIDES, dilations, first, strict=True)
            )
            if not (0 <= row < height and 0 <= column < width):
                continue
            value = -np.inf if np.isnan(x[b, c, row, column]) else x[b, c, row, column]
            if place < 0 or value > best:
                within = column * height + row if storage else row * width + column
                best, place = value, (b * 2 + c) * height * width + within
        result[b, c, i, j] = place
    return result.astype(np.int64)


@pytest.mark.parametrize("auto", ["NOTSET", "SAME_UPPER"])
def test_the_shape_of_a_transposed_convolution_of_open_sizes(auto: str) -> None:
    """Zeros follow where there is less than `output_shape` asks for."""
    shape, w = [5, 4], np.random.default_rng(2).integers(-3, 4, KERNEL).astype(F)
    layer = node("ConvTranspose", ["x", "w"], ["y"], auto_pad=auto, strides=STRIDES, output_shape=shape)
    m = model([layer], [info("x", [1, 1, "h", "w"])], ["y"], {"w": w[None, None]})
    compiled = tw.compile(m, fallback="never")
    rng = np.random.default_rng(1)
    for size in SIZES:
        x = rng.integers(-4, 5, size).astype(F)
        whole = scattered(x, w, [*STRIDES], [1, 1], [0, 0])
        cut = [max(n - s, 0) for n, s in zip(whole.shape, shape, strict=True)]
        first = [c // 2 if auto == "SAME_UPPER" else c - c // 2 for c in cut]
        want = np.pad(whole, [(0, 5), (0, 4)])[first[0] : first[0] + 5, first[1] : first[1] + 4]
        np.testing.assert_array_equal(np.asarray(compiled(x[None, None]))[0, 0], want, err_msg=str(size))


MODES = ("nearest", "linear", "cubic")
GRID = np.zeros((1, 2, 2, 2), F)
FROM_NOTHING: dict[str, tuple[str, dict[str, Array], dict[str, Any]]] = {
    **{f"GridSample, {p}": ("GridSample", {"grid": GRID}, {"padding_mode": p}) for p in ("zeros", "border")},
    **{f"Resize, {m}": ("Resize", {"": GRID, " ": GRID, "sizes": np.array([1, 1, 4, 5])}, {"mode": m}) for m in MODES},
    "RoiAlign": ("RoiAlign", {"rois": np.array([[0, 0, 1, 1]], F), "of": np.array([0])}, {"output_height": 2}),
    "MaxRoiPool": ("MaxRoiPool", {"rois": np.array([[0, 0, 0, 1, 1]], F)}, {"pooled_shape": [2, 2]}),
}


@pytest.mark.parametrize("name", FROM_NOTHING)
def test_nothing_is_read_from_an_empty_image(name: str) -> None:
    """PyTorch refuses images without rows, too; what ONNX Runtime gives differs by operator."""
    op, weights, attributes = FROM_NOTHING[name]
    names = [k.strip() for k in weights]
    constants = {k: v for k, v in weights.items() if k.strip()}
    proto = model([node(op, ["x", *names], ["y"], **attributes)], [info("x", (1, 1, "h", 3))], ["y"], constants)
    compiled = tw.compile(proto, fallback="never", dims={"h": tw.dim(0, 9)})
    assert np.isfinite(np.asarray(compiled(np.ones((1, 1, 2, 3), F)))).all()
    with pytest.raises(CallError, match="along an empty dimension"):
        compiled(np.ones((1, 1, 0, 3), F))
