"""On a GPU, factors of products lie with their depth innermost, in whole groups of 16 bytes, which threads copy at
once.

    y = conv(x, w)      ->      xb = block_channels(x)      one block of all channels: [N, 1, H, W, C]
                                p = block_channels(w)       [F, 1, kh, kw, C]
                                yb = conv_last(xb, p)       [N, 1, H', W', F]

Later nodes keep this form by the rules for channels in blocks (`blocked.py`). If the channels do not fill whole groups,
zeros follow them, in the data and in the filters.

    y = matmul(x, w)    ->      f = reshape(x, [b * r, k]);  p = transpose(w)  [n, k];  y' = matmul(f, p)

Products by weights have their rows joined into one dimension, so that threads copy whole tiles; the pointwise work that
follows has joined rows too (`joined.py`).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.targets.gpu import COPY_BYTES
from tilewright.transform.layout import joined
from tilewright.transform.layout.assigner import Assigner


def conv(a: Assigner, node: Node) -> bool:
    """Rewrite a 2-D convolution of floats with known channels and window to `lowered.conv_last`. Returns False for
    others."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    attrs = node.of(ConvAttrs)
    if x.type.rank != 4 or not x.dtype.is_float or not (x.dtype is w.dtype is node.output.dtype):
        return False
    if not all(as_int(d) for d in w.shape):
        return False
    form = in_groups if attrs.groups == 1 else Assigner.as_blocked
    (a.blocked[node.output],) = a.emit("lowered.conv_last", (form(a, x), form(a, w)), attrs, node.output.name)
    return True


def in_groups(a: Assigner, value: Value) -> Value:
    """The form of a value with its channels innermost, padded with zeros to whole groups of `COPY_BYTES`."""
    channels, group = as_int(value.shape[1]) or 0, COPY_BYTES // value.dtype.itemsize
    missing = -channels % group
    if not missing:
        return a.as_blocked(value)
    if channels == 1:
        return a.longer(a.as_blocked(value), 4, missing)
    return a.derive("lowered.block_channels", a.as_row_major(value), block=channels + missing)


def matmul(a: Assigner, node: Node) -> bool:
    """Rewrite a product by weights: the weights are transposed to [n, k], and batch and rows become one dimension where
    the nodes that follow work with that too. Returns False for other products."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    attrs = node.of(MatmulAttrs)
    if w not in a.fixed or attrs.transpose_a or x.type.rank < 2 or w.type.rank < 2:
        return False
    weights = a.as_row_major(w)
    if not attrs.transpose_b:
        weights = a.derive("transpose", weights, perm=(*range(w.type.rank - 2), w.type.rank - 1, w.type.rank - 2))
    rows = a.as_row_major(x)
    if x.type.rank > 2 and w.type.rank == 2 and joined.stays(a, node.output):
        rows = joined.join(a, rows)
    (y,) = a.emit("matmul", (rows, weights), replace(attrs, transpose_b=True), node.output.name)
    joined.keep(a, node.output, y)
    return True
