"""`patches`: the windows of a convolution as the rows of a matrix, for products that know no windows ("im2col")."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright import te
from tilewright.ir.attributes import Attrs, Ints
from tilewright.ir.expr import Expr, all_of, as_int, const, product, select
from tilewright.ir.graph import TensorType
from tilewright.ops.conv import window_extent
from tilewright.ops.dims import dim, need, present, scalar, static
from tilewright.ops.lowered.index_maps import register_map
from tilewright.ops.registry import Types
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Out = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class PatchesAttrs(Attrs):
    """Attributes of operators on patches, the rows with the elements of a window each: sizes (`kernel`), strides,
    dilations and pads of the windows, as of `conv`, and the length `depth` to which rows are padded with zeros."""

    kernel: Ints
    strides: Ints
    dilations: Ints
    pads: Ints
    depth: int


def windows(shape: Sequence[Expr], attrs: PatchesAttrs) -> tuple[Expr, ...]:
    """The number of windows along each spatial dimension of `[N, C, ...]`."""
    rank, pads = len(shape) - 2, attrs.pads
    return tuple(
        window_extent(
            shape[2 + k], const(attrs.kernel[k]), pads[k], pads[rank + k], attrs.strides[k], attrs.dilations[k]
        )
        for k in range(rank)
    )


def _infer(types: Types, attrs: PatchesAttrs) -> Out:
    """The type rule of `lowered.patches`: `x[N, C, ...]` to `[N, windows, depth]`: each row has the elements of a
    window by (channel, kernel), then zeros up to `depth`. Attributes `kernel`, `strides`, `dilations`, `pads` (all
    befores, then all afters), `depth`."""
    x = present(types[0])
    if x.rank < 3 or x.rank - 2 != len(attrs.kernel):
        raise ShapeError("patches need one kernel extent for each spatial dimension", expected=attrs.kernel, got=x)
    if static(x.shape[1], "the number of channels") * prod(attrs.kernel) > attrs.depth:
        raise ShapeError("the windows have more elements than rows", expected=attrs.depth, got=x)
    count = product(windows(x.shape, attrs))
    return (TensorType(x.dtype, (x.shape[0], dim(count), const(attrs.depth))),)


def _compute(inputs: Sequence[Tensor | None], attrs: PatchesAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    counts, kernel, rank = windows(x.shape, attrs), attrs.kernel, x.ndim - 2
    elements = (as_int(x.shape[1]) or 0) * prod(kernel)

    def element(n: Expr, window: Expr, at: Expr) -> Expr:
        inside: list[Expr] = [] if elements == attrs.depth else [at < elements]
        place: list[Expr] = []
        for k in reversed(range(rank)):
            row, tap = window % counts[k], at % kernel[k]
            window, at = window // counts[k], at // kernel[k]
            i = row * attrs.strides[k] + tap * attrs.dilations[k] - attrs.pads[k]
            place.insert(0, i)
            if attrs.pads[k] or attrs.pads[rank + k]:
                inside += [i >= 0, i < x.shape[2 + k]]
        return select(all_of(inside), x[(n, at, *place)], scalar(0, x.dtype))

    return (te.compute(type.shape, element, name="patches"),)


register_map("lowered.patches", PatchesAttrs, _infer, _compute)
