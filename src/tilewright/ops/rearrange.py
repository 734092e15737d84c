"""Operators that move elements between layouts: blocked dimensions, and blocks of space to channels and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, Dims, Number
from tilewright.ir.expr import Expr, as_int, const, select
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import dim, need, number, present, same_dim, scalar, show
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


# --- layouts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayoutTransformAttrs(Attrs):
    """Attributes of a change of layout. A layout is written in letters: a capital is a dimension, a number with a small
    letter its innermost part, so that "NCHW8c" has channels in blocks of 8. `extents` are those of the dimensions (in
    the order of the target's capitals) where the source's last blocks are not full; elements of the target beyond them
    are `value`."""

    source: str
    target: str
    extents: Dims | None = None
    value: Number = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout: its dimensions in memory, outermost first. (letter, None) is a dimension, (letter, size) the block that
    is its innermost part."""

    text: str
    parts: tuple[tuple[str, int | None], ...]

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Parse a layout. Raises ShapeError unless each dimension has one capital letter, followed by its block, if
        any."""
        if not re.fullmatch(r"([A-Z]|[1-9][0-9]*[a-z])+", text):
            raise ShapeError("a layout is capitals and numbers with small letters, such as NCHW8c", got=repr(text))
        result = re.findall(r"([0-9]*)([A-Za-z])", text)
        letters = [letter for _, letter in result]
        if len(set(letters)) < len(letters):
            raise ShapeError("a layout names each dimension and each block once", got=repr(text))
        for k, (_, letter) in enumerate(result):
            if letter.islower() and letter.upper() not in letters[:k]:
                raise ShapeError(f"block {letter!r} stands before its dimension, or has none", got=repr(text))
        return cls(text, tuple((letter, int(size) if size else None) for size, letter in result))

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(letter for letter, size in self.parts if size is None)

    def block(self, letter: str) -> int | None:
        """The size of the blocks into which the dimension `letter` is divided; None if it is not divided."""
        return next((size for part, size in self.parts if part == letter.lower()), None)

    def point(self, at: Mapping[str, Any]) -> tuple[Any, ...]:
        """The index in memory (one number for each dimension of the layout) of the tensor's element at `at` (by
        letter)."""
        results = []
        for letter, size in self.parts:
            block = self.block(letter) if size is None else size
            index = at[letter.upper()]
            results.append(index if block is None else index // block if size is None else index % block)
        return tuple(results)

    def place(self, point: Sequence[Any]) -> dict[str, Any]:
        """The index in the tensor of the element at `point` in memory: the inverse of `point`."""
        index = {letter: p for (letter, _), p in zip(self.parts, point, strict=True)}
        result = {}
        for letter in self.dimensions:
            block = self.block(letter)
            result[letter] = index[letter] if block is None else index[letter] * block + index[letter.lower()]
        return result

    def shape(self, extents: Mapping[str, Any]) -> tuple[Any, ...]:
        """The shape in memory of a tensor of these extents, in which last blocks are filled up."""
        results: list[Any] = []
        for letter, size in self.parts:
            block = self.block(letter) if size is None else None
            extent = extents[letter.upper()]
            results.append(size if size is not None else extent if block is None else (extent + (block - 1)) // block)
        return tuple(results)


def _extents(source: Layout, target: Layout, shape: Sequence[Any], attrs: LayoutTransformAttrs) -> dict[str, Any]:
    """The extent of each dimension by its letter: as stated in `attrs`, or of the source's blocks, which are all full
    then."""
    if attrs.extents is not None:
        return dict(zip(target.dimensions, attrs.extents, strict=True))
    sizes = {letter: d for (letter, _), d in zip(source.parts, shape, strict=True)}
    return {letter: sizes[letter] * (source.block(letter) or 1) for letter in source.dimensions}


def _layout_infer(types: Types, attrs: LayoutTransformAttrs) -> Out:
    """The type rule of `layout_transform`: x in the source layout to the target layout, which has the same
    dimensions."""
    x = present(types[0])
    source, target = Layout.parse(attrs.source), Layout.parse(attrs.target)
    if set(source.dimensions) != set(target.dimensions):
        raise ShapeError("the layouts have other dimensions", expected=source.text, got=target.text)
    if x.rank != len(source.parts):
        raise ShapeError(f"layout {source.text} has another rank than the input", expected=len(source.parts), got=x)
    if attrs.extents is not None and len(attrs.extents) != len(target.dimensions):
        raise ShapeError("one extent is needed for each dimension", expected=len(target.dimensions), got=attrs.extents)
    extents = {k: dim(d) for k, d in _extents(source, target, x.shape, attrs).items()}
    wanted = [dim(d) for d in source.shape(extents)]
    if not all(same_dim(a, b) for a, b in zip(wanted, x.shape, strict=True)):
        raise ShapeError(f"the input's shape is not that of {source.text}", expected=show(wanted), got=show(x.shape))
    return (TensorType(x.dtype, tuple(dim(d) for d in target.shape(extents))),)


def _layout_compute(inputs: Tensors, attrs: LayoutTransformAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,) = need(inputs[0]), out
    source, target = Layout.parse(attrs.source), Layout.parse(attrs.target)
    extents = {k: dim(d) for k, d in _extents(source, target, x.shape, attrs).items()}
    partial = [k for k, d in extents.items() if (b := target.block(k)) and as_int(dim(d % b)) != 0]

    def element(*point: Expr) -> Expr:
        at = target.place(point)
        inside: Expr = const(True)
        for k in partial:
            inside = inside & (at[k] < extents[k])
        value = x[source.point(at)]
        return select(inside, value, scalar(attrs.value, x.dtype)) if partial else value

    return (te.compute(type.shape, element, name="layout_transform"),)


def _layout_numpy(arrays: Sequence[Any], attrs: LayoutTransformAttrs) -> tuple[Any, ...]:
    """The NumPy reference of `layout_transform`, through the layout without blocks: reshape, cut, pad, reshape."""
    x = np.asarray(arrays[0])
    source, target = Layout.parse(attrs.source), Layout.parse(attrs.target)
    letters = [letter for letter, _ in source.parts]
    extents = {k: number(d) for k, d in _extents(source, target, x.shape, attrs).items()}
    order = [letters.index(c) for k in source.dimensions for c in (k, k.lower()) if c in letters]
    ordinary = x.transpose(order).reshape(
        [-(-extents[k] // (b := source.block(k) or 1)) * b for k in source.dimensions]
    )
    ordinary = ordinary[tuple(slice(extents[k]) for k in source.dimensions)]
    sizes = [-(-extents[k] // (b := target.block(k) or 1)) * b for k in source.dimensions]
    widths = [(0, s - d) for s, d in zip(sizes, ordinary.shape, strict=True)]
    ordinary = np.pad(ordinary, widths, constant_values=np.asarray(attrs.value).astype(x.dtype))
    parts = [(k, c) for k in source.dimensions for c in (k, k.lower()) if c in dict(target.parts)]
    shape = dict(zip([k for k, _ in target.parts], target.shape(extents), strict=True))
    names = [c for _, c in parts]
    full = ordinary.reshape([shape[c] for c in names])
    return (np.ascontiguousarray(full.transpose([names.index(c) for c, _ in target.parts])),)


register(
    OpDef("layout_transform", "injective", LayoutTransformAttrs, _layout_infer, _layout_numpy, compute=_layout_compute)
)


# --- blocks of space ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpaceAttrs(Attrs):
    """Attributes of `depth_to_space` and `space_to_depth`. Squares (or cubes) of `block` elements a side become
    channels and back. The channels of a square are ordered by the place in it, then by channel (`DCR`), or the other
    way (`CRD`)."""

    block: int
    mode: Literal["DCR", "CRD"] = "DCR"


def _space_of(types: Types, attrs: SpaceAttrs) -> tuple[TensorType, int, int]:
    x = present(types[0])
    if x.rank < 3:
        raise ShapeError("batch, channels and space are needed", expected="a rank of at least 3", got=x)
    if attrs.block < 1:
        raise ShapeError("blocks have a positive size", got=attrs.block)
    return x, attrs.block, attrs.block ** (x.rank - 2)


def _parts(d: Expr, parts: int, what: str) -> Expr:
    if as_int(dim(d % parts)) != 0:
        raise ShapeError(f"{what} cannot be divided", expected=f"a multiple of {parts}", got=d)
    return dim(d // parts)


def _to_depth_infer(types: Types, attrs: SpaceAttrs) -> Out:
    """The type rule of `space_to_depth`: [N, C, ...] to [N, C * block ** r, ... / block], r spatial dimensions."""
    x, block, count = _space_of(types, attrs)
    space = tuple(_parts(d, block, "space") for d in x.shape[2:])
    return (TensorType(x.dtype, (x.shape[0], dim(x.shape[1] * count), *space)),)


def _to_space_infer(types: Types, attrs: SpaceAttrs) -> Out:
    """The type rule of `depth_to_space`: [N, C, ...] to [N, C / block ** r, ... * block], r spatial dimensions."""
    x, block, count = _space_of(types, attrs)
    space = tuple(dim(d * block) for d in x.shape[2:])
    return (TensorType(x.dtype, (x.shape[0], _parts(x.shape[1], count, "channels"), *space)),)


def _to_depth_compute(inputs: Tensors, attrs: SpaceAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,), block = need(inputs[0]), out, attrs.block
    count = block ** (x.ndim - 2)

    def element(n: Expr, c: Expr, *space: Expr) -> Expr:
        channel, within = (c % x.shape[1], c // x.shape[1]) if attrs.mode == "DCR" else (c // count, c % count)
        at = []
        for p in reversed(space):
            at.append(p * block + within % block)
            within = within // block
        return x[(n, channel, *reversed(at))]

    return (te.compute(type.shape, element, name="space_to_depth"),)


def _to_space_compute(inputs: Tensors, attrs: SpaceAttrs, out: Out) -> tuple[Tensor, ...]:
    x, (type,), block = need(inputs[0]), out, attrs.block
    count = block ** (x.ndim - 2)

    def element(n: Expr, c: Expr, *space: Expr) -> Expr:
        within: Expr = const(0)
        for p in space:
            within = within * block + p % block
        channel = within * type.shape[1] + c if attrs.mode == "DCR" else c * count + within
        return x[(n, channel, *(p // block for p in space))]

    return (te.compute(type.shape, element, name="depth_to_space"),)


def _to_depth_numpy(arrays: Sequence[Any], attrs: SpaceAttrs) -> tuple[Any, ...]:
    x, block = np.asarray(arrays[0]), attrs.block
    n, c, *space = x.shape
    rank = len(space)
    y = x.reshape(n, c, *(s for d in space for s in (d // block, block)))
    blocks, rest = [3 + 2 * k for k in range(rank)], [2 + 2 * k for k in range(rank)]
    y = y.transpose((0, *blocks, 1, *rest) if attrs.mode == "DCR" else (0, 1, *blocks, *rest))
    return (np.ascontiguousarray(y.reshape(n, c * block**rank, *(d // block for d in space))),)


def _to_space_numpy(arrays: Sequence[Any], attrs: SpaceAttrs) -> tuple[Any, ...]:
    x, block = np.asarray(arrays[0]), attrs.block
    n, c, *space = x.shape
    rank = len(space)
    left = c // block**rank
    first = attrs.mode == "DCR"
    y = x.reshape(n, *([block] * rank), left, *space) if first else x.reshape(n, left, *([block] * rank), *space)
    channel, blocks = (1 + rank, 1) if first else (1, 2)
    y = y.transpose(0, channel, *(a for k in range(rank) for a in (2 + rank + k, blocks + k)))
    return (np.ascontiguousarray(y.reshape(n, left, *(d * block for d in space))),)


register(OpDef("space_to_depth", "injective", SpaceAttrs, _to_depth_infer, _to_depth_numpy, compute=_to_depth_compute))
register(OpDef("depth_to_space", "injective", SpaceAttrs, _to_space_infer, _to_space_numpy, compute=_to_space_compute))
