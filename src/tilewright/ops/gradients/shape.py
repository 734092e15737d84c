"""Gradients of operators that only move elements."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import Expr, const
from tilewright.ir.graph import Value
from tilewright.ops.dims import dims
from tilewright.ops.gradients.mechanical import mechanical
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.shape import ConcatAttrs, PadAttrs, SliceAttrs, TileAttrs, TransposeAttrs, TriluAttrs

Result = Sequence[Value | None]


@gradient("reshape")
def reshape(b: Backward) -> Result:
    return [b.reshape(b.g, b.x().shape)]


@gradient("transpose")
def transpose(b: Backward) -> Result:
    perm = b.of(TransposeAttrs).perm
    return [b.transpose(b.g, [perm.index(k) for k in range(len(perm))])]


@gradient("broadcast")
def broadcast(b: Backward) -> Result:
    return [b.reduced_to(b.g, b.x().shape)]


@gradient("tile")
def tile(b: Backward) -> Result:
    """The gradient summed over the copies, which are reshaped to a dimension of their own."""
    x, repeats = b.x(), b.of(TileAttrs).repeats
    split = [d for pair in zip(repeats, x.shape, strict=True) for d in pair]
    return [b.sum(b.reshape(b.g, dims(split)), range(0, 2 * x.type.rank, 2), keepdims=False)]


@gradient("concat")
def concat(b: Backward) -> Result:
    axis = b.of(ConcatAttrs).axis % b.y.type.rank
    results: list[Value | None] = []
    at: Expr = const(0)
    for k in range(len(b.node.inputs)):
        x = b.x(k)
        begin = [at if d == axis else const(0) for d in range(x.type.rank)]
        results.append(b.emit("slice", b.g, begin=dims(begin), size=x.shape, step=(1,) * x.type.rank))
        at = at + x.shape[axis]
    return results


@gradient("slice")
def cut(b: Backward) -> Result:
    """The gradient of a slice: the result's gradient padded with zeros, also between its elements if the slice had a
    step."""
    x, attrs, flow = b.x(), b.of(SliceAttrs), b.g
    rank = x.type.rank
    begin, size, step = list(dims(attrs.begin)), list(dims(attrs.size)), list(attrs.step)
    if any(s < 0 for s in step):
        back = [s < 0 for s in step]
        last = [d - 1 if r else const(0) for d, r in zip(flow.shape, back, strict=True)]
        flow = b.emit("slice", flow, begin=dims(last), size=flow.shape, step=tuple(-1 if r else 1 for r in back))
        begin = [s + (d - 1) * k if k < 0 else s for s, d, k in zip(begin, size, step, strict=True)]
        step = [abs(s) for s in step]
    for k, s in enumerate(step):
        if s != 1:  # each element with the zeros after it, the last ones cut off
            shape = list(flow.shape)
            open_ = b.reshape(flow, dims([*shape[: k + 1], 1, *shape[k + 1 :]]))
            after = [0] * (rank + 1)
            after[k + 1] = s - 1
            spread = b.emit("pad", open_, before=(0,) * (rank + 1), after=tuple(after), mode="constant")
            flow = b.reshape(spread, dims([*shape[:k], shape[k] * s, *shape[k + 1 :]]))
            size[k] = (size[k] - 1) * s + 1
            flow = b.emit(
                "slice", flow, begin=(0,) * rank, size=dims([*shape[:k], size[k], *shape[k + 1 :]]), step=(1,) * rank
            )
    following = [d - s - n for d, s, n in zip(x.shape, begin, size, strict=True)]
    return [b.emit("pad", flow, before=dims(begin), after=dims(following), mode="constant")]


@gradient("pad")
def pad(b: Backward) -> Result:
    x, attrs = b.x(), b.of(PadAttrs)
    if attrs.mode != "constant":
        return mechanical(b)
    return [b.emit("slice", b.g, begin=dims(attrs.before), size=x.shape, step=(1,) * x.type.rank)]


@gradient("trilu")
def trilu(b: Backward) -> Result:
    attrs = b.of(TriluAttrs)
    return [b.emit("trilu", b.g, k=attrs.k, upper=attrs.upper)]
