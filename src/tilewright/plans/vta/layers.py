"""Layers of 8-bit models as VTA computes them: tensor expressions over blocks of 16 channels.

Activations are int8[block][y][x][16], matrices int8[row][block][16], weights int8[out][in][ky][kx][16 out][16 in],
biases int32[out][16]. A result is `clip((sum + bias) >> shift, low, high)`; for rounding the caller adds half a step to
the bias.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from tilewright import te
from tilewright.support.classes import dataclass
from tilewright.te import Tensor

BLOCK = 16


@dataclass(frozen=True, slots=True)
class Requantised:
    """The requantisation of sums to bytes: shifted to the right, then clipped.

    shift   the number of bits by which a sum is shifted
    low     the least result
    high    the greatest result
    offset  the number that `with_offset` adds to all biases: a multiple of 256 steps of the result, which does not
            change the result's byte; with it no bias is less than `floor`
    even    whether ties are rounded to even; half a step has been added to the sums
    """

    shift: int = 0
    low: int = -128
    high: int = 127
    offset: int = 0
    even: bool = False

    def minus_odd(self, total: Any) -> Any:
        """-1 if a result, rounded up, is odd, else 0; added to a sum on a tie, it makes the result round down to
        even."""
        return ((total >> self.shift) << 31) >> 31

    @property
    def looks_twice(self) -> bool:
        """Whether the sums are read twice, as rounding to even does."""
        return self.even and self.shift > 0

    def of(self, total: Any) -> Any:
        shifted = total >> self.shift if self.shift else total
        more = self.offset >> self.shift
        return te.cast(te.minimum(te.maximum(shifted, self.low + more), self.high + more), "int8")

    @property
    def floor(self) -> int | None:
        """For a layer with an offset, a bound above every result before the result is cut to a byte; biases are at
        least that large. None without an offset."""
        return self.high + (self.offset >> self.shift) + 1 if self.offset else None


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution with a bias; sizes of channels are in blocks.

    Args:
        inputs, outputs: blocks of channels; `separate` ones read block o of the input for block o of the output
            (depthwise, weights on the diagonals of their blocks).
        height, width: of the input.
        kernel: its height and width.
        stride: 1 or more.
        pads: zeros above, left, below and right.
        phases: 2 for a transposed convolution of stride 2, each of whose phases is a convolution with `kernel` taps;
            weights then are [out][in][phase y][phase x][ky][kx][16][16], and phase r reads from
            `(r + pad) // phases` on.
        requantised: how sums become bytes.
    """

    inputs: int
    height: int
    width: int
    outputs: int
    kernel: tuple[int, int]
    stride: int = 1
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    separate: bool = False
    phases: int = 1
    shifted: tuple[int, int] = (0, 0)
    requantised: Requantised = Requantised()

    @property
    def rows(self) -> tuple[int, int]:
        """The height and width of the result, of one phase."""
        top, left, bottom, right = self.pads
        padded = self.height + top + bottom, self.width + left + right
        high, wide = ((n - k) // self.stride + 1 for n, k in zip(padded, self.kernel, strict=True))
        # The last phase may begin further on.
        most = [(self.phases - 1 + p) // self.phases for p in self.shifted] if self.phases > 1 else [0, 0]
        return high - most[0], wide - most[1]

    @property
    def reduced(self) -> int:
        """Blocks of channels that a result is summed over."""
        return 1 if self.separate else self.inputs


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a layer, for its schedule: the padded input, the sums, a copy of them if they are read twice, the
    result; and the arguments in order."""

    arguments: tuple[Tensor, ...]
    padded: Tensor | None
    sums: Tensor
    result: Tensor
    copy: Tensor | None = None


def _copied(q: Requantised, sums: Tensor) -> Tensor | None:
    return te.compute(sums.shape, lambda *i: sums[i], name="copy") if q.looks_twice else None


def _result(q: Requantised, sums: Tensor, copy: Tensor | None, bias: Tensor) -> Tensor:
    """The sums with the bias added, requantised by `q`; `copy` is a second copy of the sums where ties round to even.
    The bias is indexed by the first index of the sums, or by the last but one if rows come first."""
    at = 1 if len(sums.shape) == 3 else 0

    def element(*i: Any) -> Any:
        total = sums[i] + bias[i[at], i[-1]]
        return q.of(total if copy is None else total + q.minus_odd(copy[i] + bias[i[at], i[-1]]))

    result: Tensor = te.compute(sums.shape, element, name="result")
    return result


def convolution(c: Convolution) -> Stages:
    """The stages of a convolution over (input, weights, bias, result)."""
    top, left, bottom, right = c.pads
    (high, wide), (kh, kw), s = c.rows, c.kernel, c.stride
    x = te.placeholder((c.inputs, c.height, c.width, BLOCK), "int8", name="x")
    taps = (kh, kw) if c.phases == 1 else (c.phases, c.phases, kh, kw)
    w = te.placeholder((c.outputs, c.reduced, *taps, BLOCK, BLOCK), "int8", name="w")
    bias = te.placeholder((c.outputs, BLOCK), "int32", name="bias")
    # A kernel of one tap needs only the pixels that it reads.
    step = s if (kh, kw) == (1, 1) and not any(c.pads) else 1
    zero = te.const(0, "int8")

    def pad(b: Any, y: Any, q: Any, i: Any) -> Any:
        if not any(c.pads):
            return x[b, y * step, q * step, i]
        inside = (y >= top) & (y < c.height + top) & (q >= left) & (q < c.width + left)
        return te.if_then_else(inside, x[b, y - top, q - left, i], zero)

    extents = (high, wide) if step > 1 else (c.height + top + bottom, c.width + left + right)
    padded = te.compute((c.inputs, *extents, BLOCK), pad, name="padded")
    axes = [te.reduce_axis((0, n), name=k) for n, k in ((c.reduced, "c"), (kh, "ky"), (kw, "kx"), (BLOCK, "k"))]
    rc, ky, kx, k = axes
    inner = s if step == 1 else 1

    def product(pixel: Any, weight: Any) -> Any:
        return te.sum(te.cast(pixel, "int32") * te.cast(weight, "int32"), axis=axes)

    if c.phases == 1:
        sums = te.compute(
            (c.outputs, high, wide, BLOCK),
            lambda o, y, q, j: product(
                padded[o if c.separate else rc, y * inner + ky, q * inner + kx, k], w[o, rc, ky, kx, j, k]
            ),
            name="sums",
        )
    else:
        n, (down, across) = c.phases, c.shifted
        shape = (c.outputs, high, n, wide, n, BLOCK)
        sums = te.compute(
            shape,
            lambda o, y, r, q, t, j: product(
                padded[rc, y + (r + down) // n + ky, q + (t + across) // n + kx, k], w[o, rc, r, t, ky, kx, j, k]
            ),
            name="sums",
        )
    copy = _copied(c.requantised, sums)
    result = _result(c.requantised, sums, copy, bias)
    return Stages((x, w, bias, result), padded, sums, result, copy)


@dataclass(frozen=True, slots=True)
class Product:
    """A layer that multiplies rows by weights and adds a bias; depth and columns are in blocks."""

    rows: int
    depth: int
    columns: int
    requantised: Requantised = Requantised()


def product(p: Product) -> Stages:
    """The stages of a product over (input, weights, bias, result)."""
    x = te.placeholder((p.rows, p.depth, BLOCK), "int8", name="x")
    w = te.placeholder((p.columns, p.depth, BLOCK, BLOCK), "int8", name="w")
    bias = te.placeholder((p.columns, BLOCK), "int32", name="bias")
    rc, k = te.reduce_axis((0, p.depth), name="c"), te.reduce_axis((0, BLOCK), name="k")
    sums = te.compute(
        (p.rows, p.columns, BLOCK),
        lambda m, n, j: te.sum(te.cast(x[m, rc, k], "int32") * te.cast(w[n, rc, j, k], "int32"), axis=[rc, k]),
        name="sums",
    )
    copy = _copied(p.requantised, sums)
    result = _result(p.requantised, sums, copy, bias)
    return Stages((x, w, bias, result), None, sums, result, copy)


@dataclass(frozen=True, slots=True)
class Addition:
    """A layer `clip((a * scales[0] + b * scales[1] + offset) >> shift)` on rows of 16."""

    rows: int
    scales: tuple[int, int] = (1, 1)
    offset: int = 0
    requantised: Requantised = Requantised()


@dataclass(frozen=True, slots=True)
class MaxPool:
    """A layer of maxima over windows; padding is zeros, so that with pads inputs must not be negative."""

    blocks: int
    height: int
    width: int
    kernel: tuple[int, int]
    stride: int
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def rows(self) -> tuple[int, int]:
        """The height and width of the result."""
        top, left, bottom, right = self.pads
        padded = self.height + top + bottom, self.width + left + right
        high, wide = ((n - k) // self.stride + 1 for n, k in zip(padded, self.kernel, strict=True))
        return high, wide


L = TypeVar("L", Convolution, Product)

MAX_STEPS = 127
"""The largest offset, in steps of 256 units of a result: the bounds of the clip, which grow by it, have 16 bits."""


def most_bias(c: Convolution | Product) -> int:
    """The bound to which biases can be clipped without a change: a bias beyond it clips every result already."""
    terms = c.depth if isinstance(c, Product) else c.reduced * c.kernel[0] * c.kernel[1]
    return terms * BLOCK * 128 * 128 + (1 << c.requantised.shift + 8)


def with_offset(c: L) -> L:
    """The layer with an offset added to its biases, so that each, clipped to `most_bias`, is larger than any result.

    Such biases can be the first values of the sums (`codegen/vta/work.py`). Returns the layer itself if no offset fits
    into 32 bits.
    """
    q, most = c.requantised, most_bias(c)
    if q.looks_twice:
        return c
    step = (1 << q.shift + 8) - 256
    steps = -(-(most + q.high + 1) // step) if step else MAX_STEPS + 1
    if steps > MAX_STEPS or (steps << q.shift + 8) + 2 * most >= 1 << 31:
        return c
    return replace(c, requantised=replace(q, offset=steps << q.shift + 8))


Layer = Convolution | Product | Addition | MaxPool
