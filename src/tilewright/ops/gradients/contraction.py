"""Gradients of matrix products, contractions and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Value
from tilewright.ops.conv import ConvAttrs, ConvTransposeAttrs, window_extent
from tilewright.ops.conv_gradient import ConvWeightGradientAttrs
from tilewright.ops.dims import dims
from tilewright.ops.gradients.mechanical import mechanical
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.matmul import EinsumAttrs, MatmulAttrs
from tilewright.support.errors import UnsupportedError

Result = Sequence[Value | None]


@gradient("matmul")
def matmul(b: Backward) -> Result:
    """The gradients of C = A B: dA = dC B' and dB = A' dC, where operands that were multiplied transposed are treated
    accordingly. Gradients of broadcast batches are summed. Where sums are wider than the factors, the gradients are
    rounded to the factors' type."""
    x, y, attrs = b.x(0), b.x(1), b.of(MatmulAttrs)
    ta, tb = attrs.transpose_a, attrs.transpose_b
    g = b.g if b.g.dtype is x.dtype else b.emit("cast", b.g, dtype=x.dtype)

    def product(left: Value, right: Value, a: bool, c: bool) -> Value:
        return b.emit("matmul", left, right, transpose_a=a, transpose_b=c)

    if x.type.rank > 2 and y.type.rank == 2 and not ta:
        # One product over all rows of the batch rather than a sum of products.
        rows = [_flat(b, v) for v in (x, g)]
        by_x = product(g, y, False, not tb)
        by_y = product(rows[1], rows[0], True, False) if tb else product(rows[0], rows[1], True, False)
        return [by_x, by_y]
    by_x = product(y, g, tb, True) if ta else product(g, y, False, not tb)
    by_y = product(g, x, True, ta) if tb else product(x, g, not ta, False)
    return [b.reduced_to(by_x, x.shape), b.reduced_to(by_y, y.shape)]


def _flat(b: Backward, value: Value) -> Value:
    return b.reshape(value, (dims([value.type.size])[0] // value.shape[-1], value.shape[-1]))


@gradient("einsum")
def einsum(b: Backward) -> Result:
    """Each operand's gradient is a contraction of the other operands with the gradient of the result."""
    equation = b.of(EinsumAttrs).equation
    left, result = equation.replace(" ", "").split("->")
    terms = left.split(",")
    results: list[Value | None] = []
    if any(len(set(t)) != len(t) for t in (*terms, result)):  # along a diagonal
        return mechanical(b)
    for k, term in enumerate(terms):
        others = [(t, b.x(j)) for j, t in enumerate(terms) if j != k]
        known = set(result).union(*(t for t, _ in others))
        inner = "".join(c for c in term if c in known)
        flow = b.emit(
            "einsum", b.g, *(v for _, v in others), equation=f"{','.join([result, *(t for t, _ in others)])}->{inner}"
        )
        if inner != term:  # summed over alone: every element has the same share
            shape = [d if c in inner else 1 for c, d in zip(term, b.x(k).shape, strict=True)]
            flow = b.broadcast(b.reshape(flow, dims(shape)), b.x(k).shape)
        results.append(flow)
    return results


@gradient("conv")
def conv(b: Backward) -> Result:
    """The gradients of a convolution. The gradient of the data is a transposed convolution; with strides of one it is a
    convolution with the flipped window, which computes no elements that padding would cut off. The gradient of the
    weights is a convolution of the input by the result's gradient, with batch and channels exchanged, and strides and
    dilations too."""
    attrs = b.of(ConvAttrs)
    x, w, rank = b.x(0), b.x(1), len(attrs.strides)
    extra = []
    for k in range(rank):
        reach = (w.shape[2 + k] - 1) * attrs.dilations[k] + 1
        covered = (b.g.shape[2 + k] - 1) * attrs.strides[k] + reach - attrs.pads[k] - attrs.pads[rank + k]
        rest = as_int(dims([x.shape[2 + k] - covered])[0])
        if rest is None:
            if attrs.strides[k] != 1:
                raise UnsupportedError("a convolution with strides has no gradient for symbolic maps", where=b.y.name)
            rest = 0
        extra.append(rest)
    if rank == 2 and attrs.groups == 1 and _turns(w, attrs) and not any(extra):
        return [_by_transposed_windows(b, b.g, w, attrs), _by_weight(b, x, b.g, attrs, w)]
    by_x = b.emit(
        "conv_transpose",
        b.g,
        w,
        strides=attrs.strides,
        dilations=attrs.dilations,
        pads=attrs.pads,
        groups=attrs.groups,
        output_padding=tuple(extra),
    )
    return [by_x, _by_weight(b, x, b.g, attrs, w)]


def _turns(w: Value, attrs: ConvAttrs) -> bool:
    """Whether the gradient by a convolution's data is itself a convolution with the flipped window: strides are 1, and
    pads are no larger than the window's reach."""
    window = [as_int(d) for d in w.shape[2:]]
    if any(s != 1 for s in attrs.strides) or None in window:
        return False
    reach = [((k or 1) - 1) * d for k, d in zip(window, attrs.dilations, strict=True)]
    return all(p <= r for p, r in zip(attrs.pads, [*reach, *reach], strict=True))


def _by_transposed_windows(b: Backward, g: Value, w: Value, attrs: ConvAttrs) -> Value:
    """The gradient by a convolution's data, as a convolution of `g` with the flipped window."""
    reach = [((as_int(k) or 1) - 1) * d for k, d in zip(w.shape[2:], attrs.dilations, strict=True)]
    transposed = b.transpose(w, [1, 0, 2, 3])
    if any(reach):
        last = [(as_int(d) or 1) - 1 for d in w.shape[2:]]
        transposed = b.emit("slice", transposed, begin=(0, 0, *last), size=transposed.shape, step=(1, 1, -1, -1))
    pads = tuple(r - p for r, p in zip([*reach, *reach], attrs.pads, strict=True))
    return b.emit("conv", g, transposed, strides=(1, 1), dilations=attrs.dilations, pads=pads, groups=1)


@gradient("conv_transpose")
def conv_transpose(b: Backward) -> Result:
    attrs = b.of(ConvTransposeAttrs)
    x, w, rank = b.x(0), b.x(1), len(attrs.strides)
    flow, pads = b.g, attrs.pads
    kinds = {"strides": attrs.strides, "dilations": attrs.dilations, "pads": pads, "groups": attrs.groups}
    by_x = b.emit("conv", flow, w, **kinds)
    by_x = _cropped(b, by_x, x.shape, rank)
    ordinary = ConvAttrs(attrs.strides, attrs.dilations, pads, attrs.groups)
    return [by_x, _by_weight(b, flow, x, ordinary, w)]


def _by_weight(b: Backward, x: Value, g: Value, attrs: ConvAttrs, w: Value) -> Value:
    """The gradient by the weight `w` [F, C / groups, ...] of a convolution of x whose result has the gradient `g`."""
    rank, groups = len(attrs.strides), attrs.groups
    if rank == 2 and groups == 1 and _whole_windows(x, g, attrs, w):
        window = tuple(as_int(d) for d in w.shape[2:])
        kinds = {"strides": attrs.strides, "dilations": attrs.dilations, "pads": attrs.pads}
        return b.emit("conv_weight_gradient", x, g, **kinds, window=window)
    spatial = list(range(2, 2 + rank))
    swap = [1, 0, *spatial]

    def one(part: Value, flow: Value) -> Value:
        result = b.emit(
            "conv",
            b.transpose(part, swap),
            b.transpose(flow, swap),
            strides=attrs.dilations,
            dilations=attrs.strides,
            pads=attrs.pads,
            groups=1,
        )
        return b.transpose(_cropped(b, result, (result.shape[0], result.shape[1], *w.shape[2:]), rank), swap)

    if groups == 1:
        return one(x, g)
    # Groups become channels of their own in one grouped convolution: [N, G C, ...] -> [C, G N, ...].
    n, c, f = x.shape[0], w.shape[1], w.shape[0] // groups

    def grouped(value: Value, inner: object) -> Value:
        split = b.reshape(value, dims([n, groups, inner, *value.shape[2:]]))
        return b.transpose(split, [2, 1, 0, *(k + 1 for k in spatial)])

    data = b.reshape(grouped(x, c), dims([c, groups * n, *x.shape[2:]]))
    flow = b.transpose(b.reshape(g, dims([n, groups, f, *g.shape[2:]])), [1, 2, 0, *(k + 1 for k in spatial)])
    flow = b.reshape(flow, dims([groups * f, n, *g.shape[2:]]))
    result = b.emit(
        "conv", data, flow, strides=attrs.dilations, dilations=attrs.strides, pads=attrs.pads, groups=groups
    )
    return b.transpose(_cropped(b, result, (result.shape[0], result.shape[1], *w.shape[2:]), rank), swap)


def _whole_windows(x: Value, g: Value, attrs: ConvAttrs, w: Value) -> bool:
    """Whether sizes of images and window are known, and a convolution of x has exactly the size of g, without a partial
    window at the end."""
    rank, pads = len(attrs.strides), attrs.pads
    if None in [as_int(d) for d in (*x.shape[2:], *w.shape[2:])]:
        return False
    covered = [
        window_extent(x.shape[2 + k], w.shape[2 + k], pads[k], pads[rank + k], attrs.strides[k], attrs.dilations[k])
        for k in range(rank)
    ]
    return [as_int(d) for d in covered] == [as_int(d) for d in g.shape[2:]]


@gradient("conv_weight_gradient")
def conv_weight_gradient(b: Backward) -> Result:
    """The gradients of `conv_weight_gradient`, which is linear in x and g: the gradient of g is the convolution of x by
    the result's gradient, and the gradient of x the transposed convolution of g by it."""
    attrs = b.of(ConvWeightGradientAttrs)
    x, g, rank = b.x(0), b.x(1), len(attrs.strides)
    kinds = {"strides": attrs.strides, "dilations": attrs.dilations, "pads": attrs.pads, "groups": 1}
    extra = []
    for k in range(rank):
        reach = (attrs.window[k] - 1) * attrs.dilations[k] + 1 - attrs.pads[k] - attrs.pads[rank + k]
        rest = as_int(dims([x.shape[2 + k] - (g.shape[2 + k] - 1) * attrs.strides[k] - reach])[0])
        if rest is None:
            raise UnsupportedError("a second gradient of a convolution needs maps of known sizes", where=b.y.name)
        extra.append(rest)
    by_x = b.emit("conv_transpose", g, b.g, **kinds, output_padding=tuple(extra))
    return [by_x, b.emit("conv", x, b.g, **kinds)]


def _cropped(b: Backward, value: Value, shape: Sequence[object], rank: int) -> Value:
    """`value` cut to the last `rank` dimensions of `shape`, if it is larger because of a partial window at the end."""
    size = dims([*value.shape[:-rank], *shape[-rank:]])
    if size == value.shape:
        return value
    zeros, ones = (0,) * len(size), (1,) * len(size)
    return b.emit("slice", value, begin=zeros, size=size, step=ones)
