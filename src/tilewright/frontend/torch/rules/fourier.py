"""Fourier transforms, as products with tables of cosines and sines.

    X = x W,  W[j, k] = exp(-2 pi i j k / n)

A long transform of n = a b goes in two shorter ones with a factor between (J. W. Cooley, J. W. Tukey, "An algorithm for
the machine calculation of complex Fourier series", 1965): with j = b p + q and k = r + a s,

    X[r + a s] = sum_q W_b[q, s] (W_n[q, r] sum_p W_a[p, r] x[b p + q])

so that products stay small; up to 128 a matrix product is as fast as an FFT.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontend.torch import complexes
from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.complexes import Complex, part_type
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import f64, i64
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Value

Table = np.ndarray[Any, np.dtype[np.float64]]

DIRECT = 128
"""Transforms of this length or less are one product; longer ones are factored where possible."""
LONGEST = 1 << 16
MAX_PRIME = 1024
"""The longest transform whose length is prime; PyTorch runs longer ones."""


@complexes.rule("_fft_r2c")
@rule("_fft_r2c")
def real_to_complex(n: Call, x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    *others, last = (n.axis(d, x) for d in dim)
    length = known(n, x, last)
    retained = length // 2 + 1 if onesided else length
    y = along(n, (n.cast(x, part_type(n)), None), last, length, -1, retained)
    for axis in others:
        y = along(n, y.parts, axis, known(n, x, axis), -1)
    return scaled(n, y, normalization, [length, *(known(n, x, a) for a in others)])


@complexes.rule("_fft_c2c")
@rule("_fft_c2c")
def complex_to_complex(n: Call, x: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    axes = [n.axis(d, x.re) for d in dim]
    lengths = [known(n, x.re, axis) for axis in axes]
    for axis, length in zip(axes, lengths, strict=True):
        x = along(n, x.parts, axis, length, -1 if forward else 1)
    return scaled(n, x, normalization, lengths)


@complexes.rule("_fft_c2r")
@rule("_fft_c2r")
def complex_to_real(n: Call, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: int) -> Value:
    """The inverse Fourier transform of `x` over the dimensions `dim`, with a real result, `last_dim_size` elements
    along the last of them, of which `x` has the first half of the spectrum. `normalization` says by which power of the
    size it is divided.

    The other half is the conjugate of the first, so that each element of the half counts with twice its real part. The
    first element and, for an even length, the last one have no conjugate: they count once, without imaginary parts.
    """
    *others, last = (n.axis(d, x.re) for d in dim)
    length = as_int(last_dim_size)
    if length is None or known(n, x.re, last) != length // 2 + 1 or length > LONGEST:
        raise n.unsupported("of this length")
    lengths = [known(n, x.re, axis) for axis in others]
    for axis, size in zip(others, lengths, strict=True):
        x = along(n, x.parts, axis, size, 1)
    inner = (length + 1) // 2 - 1  # elements that have a conjugate
    re, im = (moved(n, p, last) for p in x.parts)
    vector = re.type.rank == 1
    if vector:  # products are of matrices
        re, im = (n.reshape(p, (1, *p.shape)) for p in (re, im))
    if length <= 2 * DIRECT:
        table = np.array(weights(length))[:, None] * cosines(length // 2 + 1, length, length)
        y = n.emit("matmul", re, n.constant(table, re.dtype))
        if inner:
            table = -2 * sines(inner + 1, length, length)[1:]
            y = n.emit("add", y, n.emit("matmul", n.slice(im, im.type.rank - 1, 1, inner), n.constant(table, re.dtype)))
    else:
        y = transformed(n, mirrored(n, re, im, inner), length, 1, length)[0]
    y = n.reshape(y, (length,)) if vector else y
    return scaled(n, Complex(moved(n, y, last, back=True), re), normalization, [length, *lengths]).re


def mirrored(n: Call, re: Value, im: Value, inner: int) -> tuple[Value, Value]:
    """The whole spectrum (re, im) from its first half along the last axis: `inner` elements between both ends are
    repeated, conjugated, in reverse order."""
    last = re.type.rank - 1
    zero = n.broadcast(n.like(0, im), (*im.shape[:-1], 1))
    middle = n.slice(im, last, 1, inner)
    rest = [] if as_int(re.shape[-1]) == inner + 1 else [zero]
    transposed = [n.slice(p, last, inner, inner, -1) for p in (re, im)]
    whole = n.emit("concat", re, transposed[0], axis=last)
    return whole, n.emit("concat", zero, middle, *rest, n.emit("neg", transposed[1]), axis=last)


def weights(length: int) -> list[float]:
    """How often each element of a half spectrum, for signals of `length`, occurs in the whole one: 1 for those that are
    their own conjugate partner, else 2."""
    return [1.0 if k == 0 or 2 * k == length else 2.0 for k in range(length // 2 + 1)]


def along(
    n: Call, x: tuple[Value, Value | None], axis: int, length: int, sign: int, retained: int | None = None
) -> Complex:
    """The discrete Fourier transform of `x` (re, im or None) along `axis`, cut to its first `retained` elements; `sign`
    is that of the exponent."""
    re, im = (None if p is None else moved(n, p, axis) for p in x)
    assert re is not None
    y = transformed(n, (re, im), length, sign, length if retained is None else retained)
    return Complex(*(moved(n, p, axis, back=True) for p in y))


def moved(n: Call, x: Value, axis: int, back: bool = False) -> Value:
    """`x` with `axis` moved to the end or, if `back`, the last axis moved to `axis`."""
    order = [k for k in range(x.type.rank) if k != axis] + [axis]
    return n.transpose(x, [order.index(k) for k in range(x.type.rank)] if back else order)


def transformed(n: Call, x: tuple[Value, Value | None], length: int, sign: int, retained: int) -> tuple[Value, Value]:
    """The discrete Fourier transform (re, im) of `x` along its last axis of `length`, cut to its first `retained`
    elements; `sign` is the sign of the exponent. Long transforms are split by Cooley and Tukey's method."""
    factor = split(length)
    if length <= DIRECT or factor == 1:
        if length > MAX_PRIME:
            raise n.unsupported("of this length", expected=f"factors of at most {MAX_PRIME}", got=length)
        return product(n, x, length, sign, retained)
    a, b = factor, length // factor
    lead = x[0].shape[:-1]
    rank = len(lead)
    swap = (*range(rank), rank + 1, rank)
    columns = [None if p is None else n.transpose(n.reshape(p, (*lead, a, b)), swap) for p in x]  # [.., q, p]
    assert columns[0] is not None
    inner = transformed(n, (columns[0], columns[1]), a, sign, a)  # [.., q, r]
    re, im = twiddled(n, inner, a, b, sign)
    rows = [n.transpose(p, swap) for p in (re, im)]  # [.., r, q]
    outer = transformed(n, (rows[0], rows[1]), b, sign, b)  # [.., r, s]
    whole = [n.reshape(n.transpose(p, swap), (*lead, length)) for p in outer]
    return n.slice(whole[0], rank, 0, retained), n.slice(whole[1], rank, 0, retained)


def twiddled(n: Call, x: tuple[Value, Value], a: int, b: int, sign: int) -> tuple[Value, Value]:
    re, im = x
    cos, sin = (n.constant(f(b, a, a * b), re.dtype) for f in (cosines, sines))
    if sign < 0:
        sin = n.constant(-sines(b, a, a * b), re.dtype)
    return (
        n.emit("sub", n.emit("mul", re, cos), n.emit("mul", im, sin)),
        n.emit("add", n.emit("mul", re, sin), n.emit("mul", im, cos)),
    )


def product(n: Call, x: tuple[Value, Value | None], length: int, sign: int, retained: int) -> tuple[Value, Value]:
    """(re, im) of the discrete Fourier transform of `x` (re, im or None) over the last dimension, of `length` elements,
    of which `retained` frequencies are computed, as one matrix product [re | im] times [[cos, sin], [-sin, cos]]; real
    numbers need only the upper half of that matrix. `sign` is the sign of the exponent."""
    re, im = x
    cos, sin = cosines(length, retained, length), sign * sines(length, retained, length)
    table = np.concatenate([cos, sin], 1)
    last = re.type.rank - 1
    if im is not None:
        table = np.concatenate([table, np.concatenate([-sin, cos], 1)])
        re = n.emit("concat", re, im, axis=last)
    rows = n.reshape(re, (1, *re.shape)) if last == 0 else re  # products are of matrices
    y = n.reshape(n.emit("matmul", rows, n.constant(table, re.dtype)), (*re.shape[:-1], 2 * retained))
    return n.slice(y, last, 0, retained), n.slice(y, last, retained, retained)


def cosines(rows: int, columns: int, length: int) -> Table:
    return np.cos(angles(rows, columns, length))


def sines(rows: int, columns: int, length: int) -> Table:
    return np.sin(angles(rows, columns, length))


def angles(rows: int, columns: int, length: int) -> Table:
    """The angles 2 pi j k / length for j < `rows`, k < `columns`; j k is reduced modulo the length first, so that each
    angle is rounded once."""
    turns: Table = np.outer(np.arange(rows), np.arange(columns)) % length * np.float64(2 * math.pi / length)
    return turns


def split(length: int) -> int:
    """The largest divisor of a length up to its square root; 1 for a prime."""
    return next((a for a in range(math.isqrt(length), 1, -1) if length % a == 0), 1)


def known(n: Call, x: Value, axis: int) -> int:
    """The length of `axis` of `x`. Raises an error if it is symbolic or too long for a table."""
    length = as_int(x.shape[axis])
    if length is None or not 0 < length <= LONGEST:
        raise n.unsupported("of this length", got=x.shape[axis])
    return length


@rule("fft_fftfreq", "fft_rfftfreq")
def frequencies(n: Call, length: Any, spacing: float = 1.0, **_: Any) -> Value:
    """The frequencies of the results of a transform of `length` samples at distances of `spacing`: from half of the
    length on they are negative, but for `rfftfreq`."""
    count = n.operand(length, i64)
    place = n.emit("range", start=0, step=1, size=n.shape[0], dtype=i64)
    if n.name == "aten.fft_fftfreq":
        half = n.emit("truncdiv", n.emit("add", count, n.constant(1, i64)), n.constant(2, i64))
        place = n.emit("select", n.emit("lt", place, half), place, n.emit("sub", place, count))
    whole = n.emit("mul", n.cast(count, f64), n.operand(spacing, f64))
    return n.cast(n.emit("div", n.cast(place, f64), whole), n.dtype)


def scaled(n: Call, x: Complex, normalization: int, lengths: Sequence[int]) -> Complex:
    """`x` divided by nothing (`normalization` 0), by the root of the product of `lengths` (1), or by that product
    (2)."""
    if normalization == 0:
        return x
    size = math.prod(lengths)
    factor = 1 / math.sqrt(size) if normalization == 1 else 1 / size
    return Complex(*(n.emit("mul", p, n.like(factor, p)) for p in x.parts))
