"""Functions that plans were written for, so that schedules by rules can be compared with those plans: products of
matrices as comprehensions, and layers with packed weights. `bench_sketches.py` times them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import layers, models

Shape = tuple[int, ...]
NN = "C[i, j] +! A[i, k] * B[k, j]"
TN = "C[i, j] +! A[k, i] * B[k, j]"
BATCH = "C[b, i, j] +! A[b, i, k] * B[b, k, j]"
RELU = "C[i, j] = max(sum(A[i, k] * B[k, j]) + D[j], 0)"

PRODUCTS: Mapping[str, tuple[str, Mapping[str, Shape]]] = {
    "product 64": (NN, {"A": (64, 64), "B": (64, 64)}),
    "product 128": (NN, {"A": (128, 128), "B": (128, 128)}),
    "product 256": (NN, {"A": (256, 256), "B": (256, 256)}),
    "product, few rows": (NN, {"A": (4, 512), "B": (512, 512)}),
    "product, tall": (NN, {"A": (1000, 48), "B": (48, 32)}),
    "product, odd": (NN, {"A": (97, 131), "B": (131, 75)}),
    "product, long": (NN, {"A": (48, 2000), "B": (2000, 40)}),
    "product, ReLU": (RELU, {"A": (200, 160), "B": (160, 144), "D": (144,)}),
    "columns 128": (TN, {"A": (128, 128), "B": (128, 128)}),
    "columns, odd": (TN, {"A": (300, 130), "B": (300, 90)}),
    "columns, long": (TN, {"A": (3000, 32), "B": (3000, 32)}),
    "batch": (BATCH, {"A": (12, 64, 48), "B": (12, 48, 64)}),
    "batch, odd": (BATCH, {"A": (7, 53, 41), "B": (7, 41, 59)}),
    "batch in the middle": ("C[b, i, j] +! A[i, b, k] * B[k, b, j]", {"A": (50, 10, 70), "B": (70, 10, 60)}),
    "vector by matrix": ("Y[j] +! X[k] * A[k, j]", {"X": (500,), "A": (500, 600)}),
}
LAYERS = (
    "gemm-256x256x256",
    "gemm-512x512x512",
    "gemm-128x768x768",
    "gemm-128x768x3072",
    "gemm-128x3072x768",
    "gemm-4x512x512",
    "gemm-64x376x256",
    "gemm-30x512x512",
    "gemv-1x512x512",
    "gemv-1x1024x1024",
    "gemv-1x3072x768",
    "depthwise3x3-144-144-56",
    "depthwise3x3-144-144-56-s2",
    "depthwise3x3-192-192-28",
    "depthwise3x3-960-960-7",
)
SUITE = (*PRODUCTS, *LAYERS)


def model(name: str) -> Any:
    """The argument for `tw.compile`: a graph, or the file of a layer."""
    import tilewright as tw
    from tilewright.ir.dtype import f32
    from tilewright.ir.expr import as_expr
    from tilewright.ir.graph import TensorType

    if name not in PRODUCTS:
        return models.load(layers.read()[name].model)
    text, shapes = PRODUCTS[name]
    return tw.comprehension(text).graph([TensorType(f32, tuple(map(as_expr, s))) for s in shapes.values()])


def inputs(compiled: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays for its call, the same ones each time."""
    from tilewright.runtime.examples import random_inputs

    return random_inputs(compiled.program.manifest.inputs, {})
