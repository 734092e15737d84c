"""Every operator: type rule, tensor expression (in the interpreter) and NumPy reference agree, on awkward shapes."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.oracle import check
from tilewright import ops
from tilewright.ir.attributes import NO_ATTRS
from tilewright.ir.dtype import bf16, boolean, f16, f32, f64, i4, i8, i32, i64, u8
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import TensorType, base_name
from tilewright.ops.special import FORMULAS
from tilewright.support.errors import ShapeError

rng = np.random.default_rng(0)
F = np.float32


def x(*shape: int, dtype: Any = F) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def ints(*shape: int, lo: int = -5, hi: int = 6, dtype: Any = np.int64) -> np.ndarray:
    return rng.integers(lo, hi, shape).astype(dtype)


def flags(*shape: int) -> np.ndarray:
    return rng.integers(0, 2, shape).astype(bool)


ODD = np.array([0.0, -0.0, 1.5, -2.5, 0.5, np.inf, -np.inf, np.nan, 1e-3, -7.0, 88.0], F)
UNIT = np.linspace(-0.99, 0.99, 7, dtype=F)

# (operator, arrays, attributes)
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []


def case(op: str, *arrays: Any, **attrs: Any) -> None:
    CASES.append((op, arrays, attrs))


for starts in ([0], [0, 1, 4], [0, 2, 2, 5]):
    case("same_sequence", np.array(starts, np.int64), rows=7)

for name in "neg abs exp exp2 expm1 sqrt sin cos tan sinh cosh tanh arctan arcsinh floor ceil trunc round erf".split():
    case(name, np.clip(ODD[:5], -2, 2))
for name in "sigmoid relu sign softplus softsign mish hard_swish isnan isinf detect_inf reciprocal".split():
    case(name, ODD)
case("lowered.reciprocal", ODD)
case("lowered.reciprocal_rest", ODD, ops.get("lowered.reciprocal").reference([ODD], NO_ATTRS)[0])
case("book_levels", np.arange(16, dtype=np.uint8), book=rng.standard_normal(16).astype(F))
for transposed in (False, True):
    blocks, index = rng.standard_normal((3, 2, 4)).astype(F), np.array([[0, 4], [1, 2], [3, 0]], np.int32)
    case(
        "sparse_matmul",
        rng.standard_normal((5, 3) if transposed else (3, 5)).astype(F),
        blocks,
        index,
        columns=11,
        transposed=transposed,
    )
    case("sparse_matmul", x(2, 5, 3) if transposed else x(2, 3, 5), blocks, index, columns=11, transposed=transposed)
case(
    "sparse_window_matmul",
    x(3, 21),
    x(2, 5, 4),
    np.array([[0, 1, 4, 4, 5], [0, 2, 5, 6, 65535]], np.uint16),  # the last windows begin at row 5
    rng.integers(0, 256, (2, 5, 4)).astype(np.uint8),
    window=16,
)
case("lowered.entry", np.arange(0, 256, 5, dtype=np.uint8), rng.standard_normal(256).astype(F))
case("book_levels", np.arange(16, dtype=np.uint8), book=rng.standard_normal(16).astype(F))
case("lowered.entry", np.arange(-128, 128, 5, dtype=np.int8).reshape(4, 13), np.arange(256, dtype=np.uint8))
case("lowered.quotient", x(3, 5), F(1 / 3) + x(5) * 0, x(5) * F(1e-9))
for positive, negative in np.ndindex(2, 2):
    case("detect_inf", ODD, positive=bool(positive), negative=bool(negative))
for name in "log log2 log1p rsqrt".split():
    case(name, np.abs(x(5)) + F(0.5))
for name in "arcsin arccos arctanh".split():
    case(name, UNIT)
case("arccosh", np.abs(x(5)) + F(1.5))
for name in "add sub mul div min max fmod atan2".split():
    case(name, x(3, 1, 5), x(4, 1))
    case(name, x(5, dtype=np.float16), x(5, dtype=np.float16))
case("max", ODD, ODD[::-1].copy())
case("min", ODD, ODD[::-1].copy())
case("pow", np.abs(x(4)) + F(0.1), x(4))
for name in "add sub mul min max truncdiv truncmod floordiv mod bitand bitor bitxor".split():
    case(name, ints(3, 1, 4), ints(2, 1))
    case(name, ints(7, dtype=np.int8), ints(7, dtype=np.int8))
case("shl", ints(5, lo=0, dtype=np.uint8), ints(5, lo=0, hi=4, dtype=np.uint8))
case("shr", ints(5, lo=0, dtype=np.uint8), ints(5, lo=0, hi=4, dtype=np.uint8))
case("bitnot", ints(5, dtype=np.int32))
for name in "eq ne lt le gt ge".split():
    case(name, ODD, ODD[::-1].copy())
    case(name, ints(4, 1), ints(3))
for name in "and or xor".split():
    case(name, flags(3, 1), flags(4))
case("not", flags(5))
case("select", flags(3, 1), x(3, 4), x(4))
case("identity", x(2, 3))
case("stop_gradient", x(2, 3))
case("surrogate", x(2, 3), x(2, 3))
for to in (f16, bf16, f64, i8, u8, i32, i64, boolean):
    case("cast", ODD, dtype=to)
for to in (f32, i4, i8, u8, boolean):
    case("cast", ints(9, lo=-300, hi=300), dtype=to)
case("cast", ODD, dtype=i32, bits=True)
case("cast", ODD.astype(ml_dtypes.bfloat16), dtype=f32)
case("clip", ODD, min=-1.0, max=2.0)
case("clip", ints(5), min=-2, max=None)
case("leaky_relu", ODD, alpha=0.1)
case("prelu", x(2, 3, 4), x(3, 1))
case("elu", x(5), alpha=0.7)
case("selu", x(5), alpha=1.67, gamma=1.05)
case("celu", x(5), alpha=0.7)
case("gelu", x(5), approximate="none")
case("gelu", x(5, dtype=np.float16), approximate="tanh")
case("swish", x(5), alpha=1.3)
case("hard_sigmoid", x(5), alpha=0.2, beta=0.5)
case("affine", x(5), alpha=0.2, beta=0.5)
case("scaled_tanh", x(5), alpha=1.5, beta=0.5)
case("thresholded_relu", x(5), alpha=0.3)
case("shrink", x(9), lambd=0.5, bias=0.2)

case("constant", value=x(2, 3))
case("constant", value=np.array([True, False, True]))
case("constant", value=np.asarray(2.5, F))
case("reshape", x(3, 4, 5), shape=(5, 12))
case("transpose", x(3, 4, 5), perm=(2, 0, 1))
case("broadcast", x(3, 1), shape=(2, 3, 4))
case("tile", x(2, 3), repeats=(3, 2))
case("concat", x(2, 3), x(2, 1), x(2, 4), axis=1)
case("slice", x(5, 7), begin=(1, 6), size=(2, 3), step=(2, -3))
case("slice", x(5, 7), begin=(0, 0), size=(0, 7), step=(1, 1))
for mode in ("constant", "reflect", "edge", "wrap"):
    case("pad", x(4, 5), before=(1, 3), after=(0, 2), mode=mode)
case("pad", x(4, 5), np.asarray(7, F), before=(1, 0), after=(0, 2), mode="constant")
case("range", start=3, step=-2, size=5, dtype=i64)
case("range", start=0.5, step=0.25, size=5, dtype=f32)
case("trilu", x(2, 4, 5), upper=True, k=1)
case("trilu", x(4, 4), upper=False, k=-1)
case("uniform", np.array([5, 1 << 31], np.uint32), shape=(3, 5), stream=2)
case("eye", rows=3, columns=5, k=1, dtype=f32)

case("gather", x(5, 3), ints(2, 2, lo=-9, hi=9), axis=0)
case("gather", x(2, 5, 3), np.asarray(-1), axis=1)
case("gather_elements", x(4, 5), ints(2, 5, lo=-4, hi=4), axis=0)
case("gather_nd", x(3, 4, 5), ints(2, 2, lo=-3, hi=3))
case("gather_nd", x(3, 4, 5), ints(3, 1, lo=-4, hi=4), batch_dims=1)
case("one_hot", ints(3, 2), np.array([-1, 2], F), axis=1, depth=4)
case("reverse_sequence", x(4, 3, 2), np.array([4, 1, 2]), batch_axis=1, time_axis=0)
for reduction in ("none", "add", "mul", "max", "min"):
    case("scatter_elements", x(4, 5), ints(2, 5, lo=-4, hi=4), x(2, 5), axis=0, reduction=reduction)
    case("scatter_nd", x(4, 5), ints(3, 1, lo=-4, hi=4), x(3, 5), reduction=reduction)

for name in "reduce_sum reduce_mean reduce_max reduce_min reduce_prod".split():
    case(name, x(3, 4, 5), axes=(0, 2), keepdims=False)
    case(name, x(3, 4), axes=(), keepdims=False)
    case(name, x(), axes=(), keepdims=True)
    case(name, x(3, 4, dtype=np.float16), axes=(1,), keepdims=True)
    case(name, ints(3, 4, dtype=np.int32), axes=(0, 1), keepdims=True)
case("reduce_max", ODD, axes=(0,), keepdims=False)
case("reduce_max", flags(3, 4), axes=(1,), keepdims=False)
case("reduce_sum", x(0, 3), axes=(0,), keepdims=False)
case("reduce_max", x(0, 3), axes=(0,), keepdims=False)
case("matmul", x(2, 0), x(0, 3))
for name in ("argmax", "argmin"):
    case(name, np.array([[1, 3, 3, 1], [2, 2, 0, 0]], F), axis=1, keepdims=True, select_last_index=False)
    case(name, np.array([[1, 3, 3, 1], [2, 2, 0, 0]], F), axis=1, keepdims=False, select_last_index=True)
    case(name, ODD, axis=0, keepdims=False, select_last_index=False)

for dtype in (F, np.float16, np.float64):
    case("softmax", x(3, 7, dtype=dtype), axis=1)
    case("log_softmax", x(3, 7, dtype=dtype), axis=0)
    case("layer_norm", x(2, 3, 5, dtype=dtype), x(5, dtype=dtype), x(3, 5, dtype=dtype), axis=1, epsilon=1e-5)
    case("rms_norm", x(2, 3, 5, dtype=dtype), x(5, dtype=dtype), axis=2, epsilon=1e-5)
case("layer_norm", x(2, 7), axis=1, epsilon=1e-5)
case("lrn", x(2, 7, 3), size=4, alpha=0.1, beta=0.75, bias=1.0)
case("lrn", x(2, 7, 3), size=3, alpha=0.1, beta=0.5, bias=2.0)

case("matmul", x(3, 4), x(4, 5))
case("matmul", x(2, 1, 3, 4), x(5, 7, 4), transpose_b=True)
case("matmul", x(4, 3, dtype=np.float16), x(4, 5, dtype=np.float16), transpose_a=True)
case("matmul", x(3, 4, dtype=np.float16), x(4, 5, dtype=np.float16), dtype=f32)
case("matmul", ints(3, 4, dtype=np.int8), ints(4, 2, lo=0, dtype=np.uint8))
case("matmul", ints(3, 4), ints(4, 2))
case("einsum", x(2, 3, 4), x(4, 3), equation="bij,ji->b")
case("einsum", x(3, 3), equation="ii->i")

case("conv", x(2, 3, 9), x(4, 3, 3), strides=(2,), dilations=(1,), pads=(1, 0), groups=1)
case("conv", x(1, 4, 7, 6), x(6, 2, 3, 2), strides=(2, 1), dilations=(1, 2), pads=(1, 0, 2, 1), groups=2)
case("conv", x(2, 3, 5, 5), x(3, 1, 3, 3), strides=(1, 1), dilations=(1, 1), pads=(1, 1, 1, 1), groups=3)
case("conv", x(1, 2, 3, 4, 5), x(2, 2, 2, 2, 2), strides=(1, 1, 1), dilations=(1, 1, 1), pads=(0,) * 6, groups=1)
case(
    "conv",
    ints(1, 2, 5, dtype=np.int8),
    ints(3, 2, 3, dtype=np.int8),
    strides=(1,),
    dilations=(1,),
    pads=(0, 0),
    groups=1,
)
for groups, filters in ((1, 3), (2, 2)):
    case(
        "conv_transpose",
        x(2, 4, 3, 4),
        x(4, filters, 3, 2),
        strides=(2, 3),
        dilations=(1, 2),
        pads=(1, 0, 0, 1),
        groups=groups,
        output_padding=(1, 0),
    )
case("conv_weight_gradient", x(3, 2, 9), x(3, 4, 4), strides=(2,), dilations=(1,), pads=(1, 0), window=(3,))
case(
    "conv_weight_gradient",
    x(2, 3, 7, 6),
    x(2, 4, 4, 5),
    strides=(2, 1),
    dilations=(1, 2),
    pads=(1, 0, 2, 1),
    window=(3, 2),
)
for data, wide, narrow in (
    ("narrow", (2, 2, 4, 3, 8), (2, 1, 9, 7, 8)),
    ("narrow", (2, 2, 4, 3, 8), (2, 5, 9, 7)),
    ("wide", (2, 2, 9, 7, 8), (2, 3, 4, 3)),
):
    attrs = {"strides": (2, 2), "dilations": (2, 1), "window": (2, 3), "data": data}
    case("lowered.conv_weight", x(*wide), x(*narrow), **attrs)
POOL = {"kernel": (3, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (1, 0, 1, 1)}
for ceil in (False, True):
    case("max_pool", x(2, 3, 7, 6), **POOL, ceil_mode=ceil)
    case("avg_pool", x(2, 3, 7, 6), **POOL, ceil_mode=ceil, count_include_pad=False)
    case("avg_pool", x(2, 3, 7, 6), **POOL, ceil_mode=ceil, count_include_pad=True)
    case("max_pool_indices", x(2, 3, 7, 6), **POOL, ceil_mode=ceil, storage_order=int(ceil))
HOLES = np.where(rng.random((2, 3, 7, 6)) < 0.6, F(np.nan), x(2, 3, 7, 6))
for op in ("max_pool", "max_pool_indices", "max_pool_places"):
    case(op, HOLES, **POOL, skips_nan=True)
case("lp_pool", x(1, 2, 7, 6), **POOL, ceil_mode=False, p=2)
case("lp_pool", x(1, 2, 7, 6), **POOL, ceil_mode=False, p=3)
case(
    "avg_pool",
    x(1, 2, 9),
    kernel=(3,),
    strides=(1,),
    dilations=(2,),
    pads=(1, 2),
    ceil_mode=False,
    count_include_pad=False,
)
for pads in ((3, 0, 2, 0), (0, 2, 1, 2), (2, 3, 2, 3)):  # windows of padding alone give 0
    case(
        "avg_pool",
        x(1, 2, 3, 4),
        kernel=(2, 2),
        strides=(1, 1),
        dilations=(1, 1),
        pads=pads,
        ceil_mode=False,
        count_include_pad=False,
    )
case(
    "avg_pool",
    x(1, 2, 3),
    kernel=(2,),
    strides=(1,),
    dilations=(5,),
    pads=(2, 2),
    ceil_mode=False,
    count_include_pad=False,
)
case("max_pool", ints(1, 2, 5, dtype=np.uint8), kernel=(2,), strides=(2,), dilations=(1,), pads=(0, 1), ceil_mode=False)

for exclusive in (False, True):
    for reverse in (False, True):
        case("cumsum", x(3, 5), axis=1, exclusive=exclusive, reverse=reverse)
        case("cumprod", x(3, 5), axis=0, exclusive=exclusive, reverse=reverse)
for largest in (False, True):
    case("topk", np.array([[3, 1, 3, 2, 1], [np.nan, 0, -np.inf, 1, np.nan]], F), axis=1, k=4, largest=largest)
    case("topk", ints(7, 2), axis=0, k=3, largest=largest)

RESIZE = {
    "rounding": "round_prefer_floor",
    "cubic_a": -0.75,
    "exclude_outside": False,
    "antialias": False,
    "extrapolation": 7.0,
}
for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"):
    for mode in ("nearest", "linear", "cubic"):
        case("resize", x(2, 5), axis=1, size=8, scale=1.6, mode=mode, coordinates=coordinates, **RESIZE)
case("resize", x(2, 5, 2), axis=1, size=10, scale=2.0, mode="nearest", coordinates="half_pixel", **RESIZE)
case(
    "resize",
    x(2, 9),
    axis=1,
    size=4,
    scale=4 / 9,
    mode="linear",
    coordinates="half_pixel",
    **RESIZE | {"antialias": True},
)
case(
    "resize",
    x(2, 5),
    axis=1,
    size=7,
    scale=1.4,
    mode="cubic",
    coordinates="half_pixel",
    **RESIZE | {"exclude_outside": True},
)
case(
    "resize",
    x(2, 5),
    axis=1,
    size=7,
    scale=1.4,
    mode="linear",
    coordinates="tf_crop_and_resize",
    roi=(0.2, 1.3),
    **RESIZE,
)

for mode in ("nearest", "linear", "cubic"):
    case("resize_taps", axis=1, size=7, extent=5, scale=1.4, mode=mode, coordinates="half_pixel", dtype=f32, **RESIZE)
case(
    "resize_taps",
    axis=1,
    size=4,
    extent=9,
    scale=4 / 9,
    mode="linear",
    coordinates="asymmetric",
    dtype=f64,
    **RESIZE | {"antialias": True, "exclude_outside": True},
)
case("resample", x(2, 5, 3), ints(2, 4, lo=0, hi=5), x(2, 4), axis=1)
for mode in ("nearest", "linear", "cubic"):
    taps = {"axis": 1, "size": 7, "extent": 5, "scale": 1.4, "mode": mode, "coordinates": "half_pixel", "dtype": f32}
    case("lowered.resampled", x(2, 5), **taps | RESIZE)
case("lowered.resampled", x(3, 5, dtype=np.float16), **taps | RESIZE)

GRID = (2 * rng.random((2, 3, 2, 2)) - 1).astype(F) * F(1.3)
for mode in ("nearest", "linear", "cubic"):
    for padding in ("zeros", "border", "reflection"):
        case("grid_sample", x(2, 3, 4, 5), GRID, mode=mode, padding=padding, align_corners=padding == "zeros")
for corners in (False, True):  # reflected several times
    case("grid_sample", x(2, 3, 4, 5), 5 * GRID, mode="linear", padding="reflection", align_corners=corners)
NEAREST = {"mode": "nearest", "padding": "reflection", "align_corners": False}
case("grid_sample", x(2, 3, 4, 5), 5 * GRID, **NEAREST, reflects_first=True)
case("lowered.sample_taps", 5 * GRID, **NEAREST, reflects_first=True, extents=(4, 5), dtype=f32)
case("grid_sample", x(1, 2, 3, 2, 4), x(1, 2, 2, 2, 3), mode="linear", padding="zeros", align_corners=False)
for mode, padding in (("linear", "zeros"), ("cubic", "reflection"), ("nearest", "border")):
    sampling = {"mode": mode, "padding": padding, "align_corners": False, "extents": (4, 5), "dtype": f32}
    case("lowered.sample_taps", GRID, **sampling)
case("lowered.sampled", x(2, 3, 4, 5), ints(2, 2, 2, 3, 2, lo=-1, hi=4), x(2, 2, 2, 3, 2), axis=1)
case("lowered.sampled", x(2, 4, 5, 3), ints(2, 2, 2, 3, 2, lo=-1, hi=4), x(2, 2, 2, 3, 2), axis=3)
case("lowered.sampled", x(2, 6, 3, dtype=np.float16), ints(1, 4, 2, 5, lo=-1, hi=6), x(1, 4, 2, 5), axis=2)
REGIONS = np.array([[0, 0, 3, 4], [-2, 1, 2, 9], [1, 1, 1.2, 1.1]], F)
for mode in ("avg", "max"):
    case(
        "roi_align",
        x(2, 3, 6, 5),
        REGIONS,
        np.array([0, 1, 1]),
        height=2,
        width=3,
        samples=2,
        scale=0.75,
        half_pixel=mode == "avg",
        mode=mode,
    )
    for most in (5, 9):  # fewer than one region has, of which some lie outside
        case(
            "roi_align",
            x(2, 3, 6, 5),
            REGIONS,
            np.array([0, 1, 1]),
            np.array([[1, 2], [4, 7], [0, 1]]),
            height=2,
            width=3,
            samples=most,
            scale=0.75,
            half_pixel=mode == "avg",
            mode=mode,
        )
CORNERS = np.array([[0, 0, 0, 3, 4], [1, -2, 1, 2, 9], [1, 3, 3, 1, 1], [0, 9, 9, 12, 12]], F)
for scale in (1.0, 0.5):
    case("roi_max_pool", x(2, 3, 6, 5), CORNERS, height=2, width=3, scale=scale)
for inverse in (False, True):
    case("dft", x(2, 6, 3, 2), axis=1, inverse=inverse, onesided=False)
case("dft", x(2, 7, 1), axis=1, inverse=False, onesided=True)
case("col2im", x(2, 12, 9), image=(4, 5), block=(2, 3), strides=(1, 2), dilations=(1, 1), pads=(0, 1, 0, 2))
for circular in (False, True):
    case("insert", x(2, 5, 3), x(2, 2, 3), np.array([4, 1]), axis=1, circular=circular)
    case("insert", x(2, 5, 3), x(2, 2, 3), axis=1, circular=circular)

TANH, SIGMOID = ("tanh", ()), ("sigmoid", ())
LENGTHS = np.array([3, 1, 5])
for reverse in (False, True):
    for lengths in (None, LENGTHS):
        common = {"reverse": reverse, "clip": 0.8 if reverse else None}
        case(
            "recurrence",
            x(5, 3, 16),
            x(4, 16),
            x(3, 4),
            x(3, 4),
            lengths,
            x(12) if reverse else None,
            cell="lstm",
            activations=(SIGMOID, TANH, TANH),
            **common,
        )
        case("recurrence", x(5, 3, 4), x(4, 4), x(3, 4), None, lengths, cell="rnn", activations=(TANH,), **common)
        for linear in (False, True):
            case(
                "recurrence",
                x(5, 3, 12),
                x(4, 12),
                x(3, 4),
                None,
                lengths,
                None,
                x(4) if linear else None,
                cell="gru",
                activations=(SIGMOID, TANH),
                linear_before_reset=linear,
                **common,
            )

for step, clip in ((0, None), (2, 0.8)):
    common = {"batch": 3, "step": step, "clip": clip, "activations": (SIGMOID, TANH, TANH)}
    for product, cell in ((None, None), (x(3, 16), x(3, 4)), (x(3, 16), None), (None, x(3, 4))):
        case("lstm_cell", x(9, 16), product, cell, **common)

POSITIVE = np.array([[[4, 2, 0.5], [2, 5, 1], [0.5, 1, 3]]] * 2, F)
case("cholesky", POSITIVE)
case("cholesky", x(1, 1) ** 2)
case("cholesky", x(0, 3, 3))
for m, n in ((4, 4), (3, 5), (5, 3), (1, 1), (0, 0)):
    case("lu", x(2, m, n))
case("lu", np.array([[0, 1], [0, 2]], F))
for upper in (False, True):
    for unit in (False, True):
        case("triangular_solve", POSITIVE, x(2, 3, 4), upper=upper, unit=unit)
case("triangular_solve", x(0, 0), x(0, 2), upper=True)

ROWS = np.array([[2, 2, np.nan, 1], [1, -1, 3, 3], [np.inf, 5, -np.inf, 0]], F)
for axis in (0, 1):
    for largest in (False, True):
        case("running_extreme", ROWS, axis=axis, largest=largest)
        case("running_extreme", ints(2, 5, lo=-2, hi=3), axis=axis, largest=largest)
    case("cumulative_logsumexp", ROWS, axis=axis)
case("running_extreme", flags(3, 4), axis=1, largest=True)
case("running_extreme", x(0, 3), axis=0, largest=True)
case("cumulative_logsumexp", np.array([[-np.inf, -np.inf, 0, 100, -3]], F), axis=1)
case("cumulative_logsumexp", x(2, 5, dtype=np.float16), axis=1)
for right in (False, True):
    case("search_sorted", np.array([-1, 0, 0, 2, 7], F), np.array([[0, 2, -3], [9, np.nan, 1]], F), right=right)
    case("search_sorted", np.sort(ints(3, 6), axis=1), ints(3, 4), right=right)
    case("search_sorted", np.zeros(0, F), x(3), right=right)


WINDOWS: list[tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = [
    ({**POOL, "ceil_mode": False}, (2, 3, 7, 6), (4, 3)),
    ({**POOL, "ceil_mode": True}, (2, 3, 8, 7), (5, 4)),
    ({"kernel": (2,), "strides": (3,), "dilations": (2,), "pads": (0, 0)}, (1, 2, 9), (3,)),
    ({"kernel": (2,), "strides": (1,), "dilations": (1,), "pads": (2, 2)}, (1, 2, 1), (4,)),
    ({"kernel": (1, 2, 2), "strides": (1, 1, 2), "dilations": (1, 1, 1), "pads": (0,) * 6}, (1, 1, 2, 3, 5), (2, 2, 2)),
]
for attrs, shape, extents in WINDOWS:
    case("max_pool_places", x(*shape), **attrs)
    case("max_pool_places", ints(*shape, lo=0, hi=2).astype(F), **attrs)
    taps = ints(*shape[:2], *extents, lo=-1, hi=prod(attrs["kernel"])).astype(np.int8)
    case("max_pool_grad", ints(*shape, lo=0, hi=2).astype(F), x(*shape[:2], *extents), **attrs)
    case("max_pool_spread", taps, x(*shape[:2], *extents), **attrs, extents=shape[2:])
    for include in (False, True):
        case("avg_pool_grad", x(*shape[:2], *extents), **attrs, extents=shape[2:], count_include_pad=include)
case("max_pool_grad", ODD.reshape(1, 1, 11), x(1, 1, 10), kernel=(2,), strides=(1,), dilations=(1,), pads=(0, 0))
case("max_pool_places", ODD.reshape(1, 1, 11), kernel=(2,), strides=(1,), dilations=(1,), pads=(0, 0))
for shape, size in (((2, 3, 7, 5), (3, 5)), ((1, 2, 1), (4,)), ((1, 1, 10), (1,)), ((1, 2, 2, 3, 4), (3, 2, 3))):
    case("adaptive_avg_pool", x(*shape), size=size)
    case("adaptive_max_pool", x(*shape), size=size)
case("adaptive_max_pool", ODD.reshape(1, 1, 11), size=(4,))
case("adaptive_max_pool", ints(1, 2, 5, dtype=np.int8), size=(2,))
case("adaptive_avg_pool", x(1, 2, 5, dtype=np.float16), size=(2,))
for source, target, shape, more in (
    ("NCHW", "NCHW8c", (2, 16, 3, 1), {}),
    ("NCHW", "NCHW8c", (2, 13, 3, 1), {"value": -1.5}),
    ("NCHW8c", "NCHW", (2, 2, 3, 1, 8), {}),
    ("NCHW8c", "NHWC", (2, 2, 3, 1, 8), {"extents": (2, 3, 1, 9)}),
    ("OIHW4i2o", "OIHW3o", (3, 1, 2, 2, 4, 2), {"extents": (5, 3, 2, 2)}),
    ("CN", "CN3n2c", (1, 1), {"value": 2.0}),
):
    case("layout_transform", x(*shape), source=source, target=target, **more)
for mode in ("DCR", "CRD"):
    case("space_to_depth", x(2, 3, 4, 6), block=2, mode=mode)
    case("space_to_depth", x(1, 2, 9), block=3, mode=mode)
    case("depth_to_space", x(2, 12, 2, 3), block=2, mode=mode)
    case("depth_to_space", x(2, 8, 1, 2, 3), block=2, mode=mode)
    case("depth_to_space", x(1, 3, 1), block=1, mode=mode)
case("sequence_mask", ODD.reshape(1, 11).repeat(3, 0), np.array([-2, 4, 20]), batch_axis=0, time_axis=1, value=-1.0)
case("sequence_mask", ints(4, 3, 2), np.array([0, 3], np.int32), batch_axis=-1, time_axis=0)
for p in (1.0, 2.0, 3.0, 0.5):
    case("lp_normalize", x(3, 1, 5), axes=(0, 2), p=p, epsilon=1e-3)
    case("lp_normalize", np.stack([ODD, np.zeros(11, F), np.abs(x(11))]), axes=(1,), p=p, epsilon=0.0)
case("lp_normalize", x(4, 6, dtype=np.float16), axes=(-1,), epsilon=1e-6)


@pytest.mark.daily(5)
@pytest.mark.parametrize("position", range(len(CASES)), ids=lambda i: f"{i}-{CASES[i][0]}")
def test_expression_equals_reference(position: int) -> None:
    op, arrays, attrs = CASES[position]
    check(op, *arrays, **attrs)


COVERED = {
    "append": "tests/compiler/test_state.py",
    "attention": "tests/ops/test_attention.py",
    "attention_gradient": "tests/ops/test_attention_gradient.py",
    "channels_last": "tests/ops/lowered/test_channels_last.py",
    "codes": "tests/ops/lowered/test_codes.py",
    "comprehension": "tests/fuzz/test_comprehensions.py",
    "control": "tests/ops/test_control.py",
    "dot_conv": "tests/plans/convolution/test_dot_convolution.py",
    "dots": "tests/plans/matmul/test_dots.py",
    "extent": "tests/ops/test_extent.py",
    "external_call": "tests/plugins/test_compiler.py",
    "packed": "tests/plans/test_plans.py",
    "packed_groups": "tests/plans/convolution/test_groups.py",
    "packed_transposed": "tests/plans/convolution/test_groups.py",
    "packed_windows": "tests/plans/convolution/test_groups.py",
    "recurrence": "tests/ops/test_recurrence.py",
    "require": "tests/frontend/onnx/test_numbers_of_the_data.py",
    "mmla": "tests/plans/matmul/test_mmla.py",
    "mmla_conv": "tests/plans/convolution/test_mmla_convolution.py",
    "patches": "tests/transform/graph/test_integer.py",
    "split": "tests/plans/matmul/test_split.py",
    "split_conv": "tests/plans/convolution/test_split_convolution.py",
    "tiles": "tests/plans/framework/test_tiles.py",
    "trees": "tests/frontend/common/test_trees.py",
    "unique": "tests/ops/test_extent.py",
    "vta": "tests/codegen/vta/test_models.py",
}
"""Families of operators whose expressions and references other files test."""


def test_a_convolution_has_no_bias() -> None:
    """A third operand would be dropped: a bias is an addition after it."""
    x, w, bias = (TensorType(f32, tuple(map(as_expr, shape))) for shape in ((1, 2, 4), (2, 2, 1), (2,)))
    attrs = {"strides": (1,), "dilations": (1,), "pads": (0, 0), "groups": 1}
    for op, more in (("conv", {}), ("conv_transpose", {"output_padding": (0,)})):
        with pytest.raises(ShapeError, match="takes no input beside data and weight: got 3 inputs"):
            ops.infer(op, [x, w, bias], ops.attributes(op, attrs | more))


def is_tested_by_its_algorithm(op: str) -> bool:
    """Whether an operator is of an algorithm's folder, and a test file of that folder names it."""
    _, room, folder, *_ = ops.get(op).infer.__module__.split(".")
    tests = Path(__file__).parents[1] / room / folder
    return room == "algorithms" and any(base_name(op) in path.read_text() for path in tests.glob("test_*.py"))


def test_every_operator_has_a_case() -> None:
    elsewhere = {n for n in ops.names() if ops.get(n).infer.__module__.rsplit(".", 1)[-1] in COVERED}
    elsewhere |= {n for n in ops.names() if is_tested_by_its_algorithm(n)}
    elsewhere |= set(FORMULAS)  # tests/ops/test_special.py
    missing = set(ops.names()) - {op for op, _, _ in CASES} - elsewhere
    assert all(Path(path).is_file() for path in COVERED.values())
    assert not missing, f"operators without a case: {sorted(missing)}"
