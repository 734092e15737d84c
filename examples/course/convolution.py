"""A 3x3 convolution, directly and by Winograd's algorithm, step by step: `make example-convolution`.

The direct schedule comes first; its last step is what Winograd's is raced against. `docs/course/convolution.md` says
what each step does and why.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import tilewright as tw
from examples.course.lesson import Lesson, Peer, Step, options, take
from tilewright import te
from tilewright.algorithms.winograd.operators.toomcook import winograd_matrices
from tilewright.schedule.stages import StageSchedule

PIXELS, FILTERS = 8, 32
"""A tile of the result that stays in registers: 8 pixels by two vectors of 16 filters."""
OUT, IN = 4, 6
"""Sides of a tile of the result and of what it needs of the input: F(4x4, 3x3)."""

AT, G, BT = (np.array(m, dtype=np.float64) for m in winograd_matrices(OUT, 3))


def direct(n: int, c: int, k: int) -> tuple[te.Tensor, ...]:
    """y = conv(x, w) of a map with a border of one pixel: x [n + 2, n + 2, c], w [3, 3, c, k], y [n, n, k]."""
    x, w = te.placeholder((n + 2, n + 2, c), name="x"), te.placeholder((3, 3, c, k), name="w")
    r, s, d = (te.reduce_axis((0, e), name=name) for e, name in ((3, "r"), (3, "s"), (c, "d")))
    y = te.compute((n, n, k), lambda i, j, f: te.sum(x[i + r, j + s, d] * w[r, s, d, f], axis=[r, s, d]), name="y")
    return x, w, y


def direct_steps(y: te.Tensor, s: StageSchedule) -> Iterator[Step]:
    """Apply one step after the other to `s`; give the name and the reason of each."""
    stage = s[y]
    yield "naive", "as the expression says: each element of y is a sum over the window and the channels"

    i, j, f, *sums = stage.loops
    pixels, filters, pixel, lane = stage.tile(j, f, PIXELS, FILTERS)
    stage.reorder(i, filters, pixels, *sums, pixel, lane)
    stage.vectorize(lane)
    yield "tiled", f"{PIXELS} pixels by {FILTERS} filters: a weight is used {PIXELS} times, a pixel {FILTERS} times"

    copy = stage.cache_write("local")
    copy.reverse_compute_at(stage, pixels)
    start = stage.decompose_reduction(sums[0])
    for part in (start, stage, copy):
        part.unroll(part.loops[-2])
    copy.vectorize(copy.loops[-1])
    yield "in registers", "the tile is summed up in registers and written once"

    stage.parallel(i)
    yield "parallel", "threads share the rows"


def winograd(n: int, c: int, k: int) -> tuple[te.Tensor, ...]:
    """The convolution by transformed filters u = G w G^T [6, 6, c, k]; 36 products for 16 elements instead of 144."""
    x, u = te.placeholder((n + 2, n + 2, c), name="x"), te.placeholder((IN, IN, c, k), name="u")
    tiles, bt, at = n // OUT, te.const_matrix(BT), te.const_matrix(AT)
    p, q, g, h = (te.reduce_axis((0, IN), name=name) for name in "pqgh")
    d = te.reduce_axis((0, c), name="d")
    half = te.compute(
        (tiles, tiles, IN, IN, c),
        lambda i, j, a, b, e: te.sum(bt[a, p] * x[i * OUT + p, j * OUT + b, e], axis=p),
        name="half",
    )
    v = te.compute(
        (IN, IN, tiles, tiles, c), lambda a, b, i, j, e: te.sum(bt[b, q] * half[i, j, a, q, e], axis=q), name="v"
    )
    m = te.compute(
        (IN, IN, tiles, tiles, k), lambda a, b, i, j, f: te.sum(v[a, b, i, j, d] * u[a, b, d, f], axis=d), name="m"
    )
    up = te.compute(
        (tiles, tiles, OUT, IN, k), lambda i, j, a, b, f: te.sum(at[a, g] * m[g, b, i, j, f], axis=g), name="up"
    )
    z = te.compute(
        (tiles, tiles, OUT, OUT, k), lambda i, j, a, b, f: te.sum(at[b, h] * up[i, j, a, h, f], axis=h), name="z"
    )
    y = te.compute((n, n, k), lambda i, j, f: z[i // OUT, j // OUT, i % OUT, j % OUT, f], name="y")
    return x, u, half, v, m, up, z, y


def winograd_steps(tensors: tuple[te.Tensor, ...], s: StageSchedule) -> Iterator[Step]:
    """Apply one step after the other to `s`; give the name and the reason of each."""
    half, v, m, up, z, y = (s[t] for t in tensors[2:])
    yield "naive", "as the expressions say: five stages, each over the whole map"

    for stage in (half, v, up, z):
        stage.expand()
        stage.vectorize(stage.loops[-1])
    yield "expanded", "the transforms by constant matrices become additions and few products, without loops"

    row, _ = y.split(y.loops[0], factor=OUT)
    copy = m.cache_write("local")
    for stage in (z, up, copy, m, v, half):
        stage.compute_at(y, row)
    yield "by rows of tiles", "a row goes through all stages before the next: what is between them stays in cache"

    *_, a, b, _, j, f = copy.loops
    tile, filters, pixel, lane = copy.tile(j, f, PIXELS, FILTERS)
    copy.reorder(a, b, filters, tile, pixel, lane)
    m.compute_at(copy, tile)
    *_, pixel, lane, d = m.loops
    m.reorder(d, pixel, lane)
    start = m.decompose_reduction(d)
    for part in (start, m, copy):
        part.unroll(part.loops[-2])
        part.vectorize(part.loops[-1])
    y.vectorize(y.loops[-1])
    yield "in registers", "each of the 36 products is one of matrices, and summed up like the direct one"

    y.parallel(row)
    yield "parallel", "threads share the rows of tiles"


SMALL = ("--size", "16", "--channels", "64")
"""Arguments that make it quick."""


def main(arguments: list[str] | None = None) -> int:
    parsed = options(__doc__, {"size": 64, "channels": 64}, arguments)
    n, c = parsed.size, parsed.channels
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((n + 2, n + 2, c), np.float32), rng.standard_normal((3, 3, c, c), np.float32)
    y, spare = np.empty((2, n, n, c), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), axis=(0, 1))
    wanted = np.einsum("ijdrs,rsdf->ijf", windows, w, optimize=True)
    u = np.einsum("ar,bs,rsdf->abdf", G, G, w).astype(np.float32)
    operations = 2 * 9 * n * n * c * c

    tensors = direct(n, c, c)
    schedule = te.create_schedule(tensors[-1])
    first = Lesson(tensors, schedule, direct_steps(tensors[-1], schedule), (x, w, y), (wanted,), 1e-5 * c, operations)
    take(first, parsed.rounds)
    best = tw.build(schedule, tensors)

    stages = winograd(n, c, c)
    arguments_of, schedule = (*stages[:2], stages[-1]), te.create_schedule(stages[-1])
    peers = {"the direct one": Peer(lambda: best(x, w, spare), 1.5)}
    second = Lesson(
        arguments_of,
        schedule,
        winograd_steps(stages, schedule),
        (x, u, y),
        (wanted,),
        5e-5 * c,
        operations,
        peers=peers,
    )
    return take(second, parsed.rounds)


if __name__ == "__main__":
    raise SystemExit(main())
