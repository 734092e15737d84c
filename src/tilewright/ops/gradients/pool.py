"""Gradients of pooling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.expr import as_int, product
from tilewright.ir.graph import Node, Value
from tilewright.ops.dims import dims
from tilewright.ops.gradients.mechanical import mechanical
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.pool import AveragePoolAttrs, PoolAttrs
from tilewright.ops.registry import infer

Result = Sequence[Value | None]


@gradient("max_pool", "max_pool_places")
def max_pool(b: Backward) -> Result:
    """The gradient of each window goes to its first maximum. The forward pass is changed to also output where that is,
    so that the backward pass does not read the input."""
    attrs = b.of(PoolAttrs)
    node = b.builder.nodes[b.place]
    if node.op == "max_pool":
        types = infer("max_pool_places", [b.x().type], attrs)
        places = Value(b.builder.fresh(f"{b.y.name}.places"), types[1])
        b.builder.nodes[b.place] = node = Node("max_pool_places", node.inputs, (b.y, places), attrs)
    sizes = {name: getattr(attrs, name) for name in ("kernel", "strides", "dilations", "pads", "ceil_mode")}
    return [b.emit("max_pool_spread", node.outputs[1], b.g, **sizes, extents=b.x().shape[2:])]


@gradient("avg_pool")
def avg_pool(b: Backward) -> Result:
    """The gradient of average pooling: each window's gradient divided by its number of elements is added to all of its
    elements, by a transposed convolution with ones."""
    x, attrs = b.x(), b.of(AveragePoolAttrs)
    rank = len(attrs.kernel)
    sizes = [as_int(d) for d in x.shape[2:]]
    if attrs.ceil_mode or None in sizes:
        return mechanical(b)
    windows = [as_int(d) or 0 for d in b.g.shape[2:]]
    numbers = _window_sizes(attrs, [s or 0 for s in sizes], windows)
    share = b.div(b.g, b.constant(numbers.astype(x.dtype.numpy)))
    planes = dims([product(x.shape[:2]), 1])
    ones = b.constant(np.ones((1, 1, *attrs.kernel), x.dtype.numpy))
    extra = []
    for k in range(rank):
        reach = (attrs.kernel[k] - 1) * attrs.dilations[k] + 1
        covered = (windows[k] - 1) * attrs.strides[k] + reach - attrs.pads[k] - attrs.pads[rank + k]
        extra.append((sizes[k] or 0) - covered)
    result = b.emit(
        "conv_transpose",
        b.reshape(share, (*planes, *b.g.shape[2:])),
        ones,
        strides=attrs.strides,
        dilations=attrs.dilations,
        pads=attrs.pads,
        groups=1,
        output_padding=tuple(extra),
    )
    return [b.reshape(result, x.shape)]


def _window_sizes(attrs: AveragePoolAttrs, sizes: Sequence[int], windows: Sequence[int]) -> np.ndarray:
    """The divisor of each window's sum in an average pooling of an input with the spatial extents `sizes` to `windows`,
    an array with the spatial shape of the result."""
    total = np.ones((1,) * len(sizes))
    for k, (extent, count) in enumerate(zip(sizes, windows, strict=True)):
        at = np.arange(count)[:, None] * attrs.strides[k] + np.arange(attrs.kernel[k]) * attrs.dilations[k]
        at = at - attrs.pads[k]
        inside = np.ones_like(at) if attrs.count_include_pad else (at >= 0) & (at < extent)
        shape = [1] * len(sizes)
        shape[k] = count
        total = total * inside.sum(axis=1).reshape(shape)
    return np.maximum(total, 1)
