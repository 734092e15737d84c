"""Random small TFLite models of one operator or a few, by name: the file, and what its input may be."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.frontend.tflite.writer import Field, Writer

SAME, VALID = 0, 1
NONE, RELU, RELU6 = 0, 1, 3


def weights(rng: Any, *shape: int) -> Any:
    return rng.integers(-127, 128, shape).astype(np.int8)


def window(padding: int, strides: tuple[int, int], kernel: tuple[int, int], activation: int) -> list[Field]:
    sizes = [(1, "i", strides[1]), (2, "i", strides[0]), (3, "i", kernel[1]), (4, "i", kernel[0])]
    return [(0, "b", padding), *sizes, (5, "b", activation)]


def conv(rng: Any, dtype: str = "int8", activation: int = NONE, padding: int = SAME, dilation: int = 1) -> Writer:
    w = Writer()
    x = w.input((2, 7, 8, 5), dtype, 0.0313, 128 if dtype == "uint8" else -7)
    scales = (rng.random(6) * 0.01 + 0.002).astype(np.float32)
    if dtype == "uint8":
        k = w.constant(rng.integers(0, 256, (6, 3, 2, 5)).astype(np.uint8), 0.011, 117)
        b = w.constant(rng.integers(-2000, 2000, 6).astype(np.int32), 0.0313 * 0.011)
    else:
        k = w.constant(weights(rng, 6, 3, 2, 5), scales)
        b = w.constant(rng.integers(-2000, 2000, 6).astype(np.int32), np.float32(0.0313) * scales)
    stride = 1 if dilation > 1 else 2
    size = {SAME: (-(-7 // stride), 8), VALID: ((7 - (3 - 1) * dilation - 1) // stride + 1, 8 - dilation)}[padding]
    y = w.tensor((2, *size, 6), dtype, 0.17, 100 if dtype == "uint8" else 3)
    options = [
        (0, "b", padding),
        (1, "i", 1),
        (2, "i", stride),
        (3, "b", activation),
        (4, "i", dilation),
        (5, "i", dilation),
    ]
    w.add("CONV_2D", [x, k, b], y, *options)
    return w


def depthwise(rng: Any, multiplier: int = 1) -> Writer:
    w = Writer()
    x = w.input((1, 6, 6, 4), "int8", 0.05, 11)
    count = 4 * multiplier
    scales = (rng.random(count) * 0.01 + 0.002).astype(np.float32)
    k = w.constant(weights(rng, 1, 3, 3, count), scales, axis=3)
    b = w.constant(rng.integers(-900, 900, count).astype(np.int32), np.float32(0.05) * scales)
    y = w.tensor((1, 6, 6, count), "int8", 0.06, -20)
    options = [
        (0, "b", SAME),
        (1, "i", 1),
        (2, "i", 1),
        (3, "i", multiplier),
        (4, "b", RELU6),
        (5, "i", 1),
        (6, "i", 1),
    ]
    w.add("DEPTHWISE_CONV_2D", [x, k, b], y, *options)
    return w


def dense(rng: Any, scale: float = 0.05, activation: int = NONE) -> Writer:
    w = Writer()
    x = w.input((9, 33), "int8", 0.02, -128)
    k = w.constant(weights(rng, 10, 33), 0.0077)
    b = w.constant(rng.integers(-5000, 5000, 10).astype(np.int32), np.float32(0.02) * np.float32(0.0077))
    y = w.tensor((9, 10), "int8", scale, 14)
    w.add("FULLY_CONNECTED", [x, k, b], y, (0, "b", activation), (1, "b", 0), (2, "?", False))
    return w


def ties(rng: Any, name: str) -> Writer:
    """Codes whose results lie in the middle of two more often than not."""
    w = Writer()
    if name == "FULLY_CONNECTED":
        x = w.input((40, 16), "int8", 1.0, 5)
        y = w.tensor((40, 12), "int8", 16.0, 7)
        w.add(
            name,
            [x, w.constant(rng.integers(-2, 3, (12, 16)).astype(np.int8), 1.0), -1],
            y,
            (0, "b", 0),
            (1, "b", 0),
            (2, "?", False),
        )
    else:
        x = w.input((4, 64), "uint8", 0.078125, 10)
        w.add(name, [x], w.tensor((4, 64), "uint8", 0.09375, 0))
    return w


def vector(rng: Any) -> Writer:
    w = Writer()
    x = w.input((9,), "int8", 0.02, -3)
    k = w.constant(weights(rng, 6, 9), 0.0077)
    w.add("FULLY_CONNECTED", [x, k, -1], w.tensor((6,), "int8", 0.05, 4), (0, "b", 0), (1, "b", 0), (2, "?", True))
    return w


def mean(rng: Any, axes: tuple[int, ...], scale: float, keepdims: bool = False) -> Writer:
    w, shape = Writer(), (3, 6, 5, 7)
    x = w.input(shape, "int8", 0.031, -9)
    result = [1 if k in axes else d for k, d in enumerate(shape) if keepdims or k not in axes]
    y = w.tensor(result, "int8", scale, 20)
    w.add("MEAN", [x, w.constant(np.int32(axes))], y, (0, "?", keepdims))
    return w


def binary(rng: Any, name: str, activation: int = NONE) -> Writer:
    w = Writer()
    x = w.input((3, 5, 7), "int8", 0.043, 5)
    other = w.constant(weights(rng, 3, 5, 7), 0.0913, -31)
    y = w.tensor((3, 5, 7), "int8", 0.09 if name == "ADD" else 0.5, -4)
    w.add(name, [x, other], y, (0, "b", activation))
    return w


def pool(rng: Any, name: str, activation: int = NONE) -> Writer:
    w = Writer()
    x = w.input((2, 7, 7, 3), "int8", 0.031, -9)
    y = w.tensor((2, 4, 7, 3), "int8", 0.031, -9)
    w.add(name, [x], y, *window(SAME, (2, 1), (3, 2), activation))
    return w


def requantised(rng: Any, scale: float) -> Writer:
    w = Writer()
    x = w.input((4, 50), "int8", 0.031, -9)
    y = w.tensor((4, 50), "int8", scale, 20)
    w.add("QUANTIZE", [x], y)
    return w


def network(rng: Any) -> Writer:
    """Numbers in, codes between, numbers out."""
    w = Writer()
    x = w.input((1, 8, 8, 3), "float32")
    q = w.add("QUANTIZE", [x], w.tensor((1, 8, 8, 3), "int8", 0.03, 4))
    k = w.constant(weights(rng, 8, 3, 3, 3), (rng.random(8) * 0.01 + 0.002).astype(np.float32))
    b = w.constant(np.zeros(8, np.int32), 0.0001)
    options = [(0, "b", SAME), (1, "i", 1), (2, "i", 1), (3, "b", RELU), (4, "i", 1), (5, "i", 1)]
    c = w.add("CONV_2D", [q, k, b], w.tensor((1, 8, 8, 8), "int8", 0.02, -128), *options)
    padded = w.add(
        "PAD", [c, w.constant(np.int32([[0, 0], [1, 0], [0, 1], [0, 0]]))], w.tensor((1, 9, 9, 8), "int8", 0.02, -128)
    )
    p = w.add("MAX_POOL_2D", [padded], w.tensor((1, 4, 4, 8), "int8", 0.02, -128), *window(VALID, (2, 2), (2, 2), NONE))
    both = w.add("CONCATENATION", [p, p], w.tensor((1, 4, 4, 16), "int8", 0.02, -128), (0, "i", 3), (1, "b", 0))
    flat = w.add("RESHAPE", [both, w.constant(np.int32([1, 256]))], w.tensor((1, 256), "int8", 0.02, -128))
    m = w.constant(weights(rng, 5, 256), 0.004)
    d = w.add(
        "FULLY_CONNECTED", [flat, m, -1], w.tensor((1, 5), "int8", 0.3, 7), (0, "b", 0), (1, "b", 0), (2, "?", False)
    )
    w.add("DEQUANTIZE", [d], w.tensor((1, 5), "float32"))
    return w


def floats(rng: Any) -> Writer:
    w = Writer()
    x = w.input((1, 6, 6, 3), "float32")
    k = w.constant(rng.standard_normal((4, 3, 3, 3)).astype(np.float32))
    b = w.constant(rng.standard_normal(4).astype(np.float32))
    options = [(0, "b", SAME), (1, "i", 2), (2, "i", 2), (3, "b", RELU6), (4, "i", 1), (5, "i", 1)]
    c = w.add("CONV_2D", [x, k, b], w.tensor((1, 3, 3, 4), "float32"), *options)
    a = w.add("AVERAGE_POOL_2D", [c], w.tensor((1, 2, 2, 4), "float32"), *window(SAME, (2, 2), (2, 2), NONE))
    m = w.add("MEAN", [a, w.constant(np.int32([1, 2]))], w.tensor((1, 4), "float32"), (0, "?", False))
    w.add("SOFTMAX", [m], w.tensor((1, 4), "float32"), (0, "f", 1.0))
    return w


def function(rng: Any, name: str) -> Writer:
    w = Writer()
    x = w.input((4, 60), "int8", 0.05, 3)
    scale, zero = (1 / 128, 0) if name == "TANH" else (1 / 256, -128)
    w.add(name, [x], w.tensor((4, 60), "int8", scale, zero), *([(0, "f", 1.0)] if name == "SOFTMAX" else []))
    return w


EXACT = {
    "conv": conv,
    "conv relu": lambda r: conv(r, activation=RELU, padding=VALID),
    "conv dilated": lambda r: conv(r, dilation=2, padding=VALID),
    "conv u8": lambda r: conv(r, "uint8", RELU6),
    "depthwise": depthwise,
    "depthwise x3": lambda r: depthwise(r, 3),
    "dense": dense,
    "dense coarse": lambda r: dense(r, 0.9, RELU),
    "dense fine": lambda r: dense(r, 0.00013),
    "add": lambda r: binary(r, "ADD"),
    "add relu": lambda r: binary(r, "ADD", RELU),
    "mul": lambda r: binary(r, "MUL", RELU6),
    "average": lambda r: pool(r, "AVERAGE_POOL_2D"),
    "average relu": lambda r: pool(r, "AVERAGE_POOL_2D", RELU),
    "largest": lambda r: pool(r, "MAX_POOL_2D", RELU6),
    "finer": lambda r: requantised(r, 0.011),
    "coarser": lambda r: requantised(r, 0.07),
    "dense, middles": lambda r: ties(r, "FULLY_CONNECTED"),
    "dense vector": vector,
    "relu, middles": lambda r: ties(r, "RELU"),
    "relu6, middles": lambda r: ties(r, "RELU6"),
    "mean": lambda r: mean(r, (1, 2), 0.031, True),
    "mean finer": lambda r: mean(r, (2, 1), 0.0071),
    "mean of rows": lambda r: mean(r, (3,), 0.011),
    "network": network,
}
"""Models whose codes are those of the reference kernels."""
ROUNDED = {"floats": floats} | {n: lambda r, n=n: function(r, n) for n in ("SOFTMAX", "LOGISTIC", "TANH")}
"""Models whose outputs are within a step, or 1e-5."""


def allowed(name: str, dtype: Any) -> float:
    """By how much an output of a model may differ from LiteRT's."""
    if name in EXACT:
        return 0
    return 1e-5 if np.dtype(dtype).kind == "f" else 1


def model_and_input(name: str, seed: int) -> tuple[bytes, Any]:
    """A file and an input."""
    rng = np.random.default_rng(seed)
    w = {**EXACT, **ROUNDED}[name](rng)
    _, shape, dtype, _, _ = w.tensors[w.inputs[0]]
    info = None if dtype == "float32" else np.iinfo(dtype)
    x = rng.standard_normal(shape) if info is None else rng.integers(info.min, info.max + 1, shape)
    return w.file(w.operators[-1][2]), x.astype(dtype)
