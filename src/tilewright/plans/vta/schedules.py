"""The schedules of VTA's layers: stages in its memories, tiles, virtual threads and prefetched loads.

for outputs, for lines, virtual threads, for chunks:   load inputs, load weights, vta_gemm over the tile
                                                       then bias, shift and clip in place, and store
"""

from __future__ import annotations

from math import ceil
from typing import Any

from tilewright import te
from tilewright.codegen.vta.machine import ACC, GEMM, INP, WGT
from tilewright.ir.loops import PrimFunc
from tilewright.plans.framework.decision_key import Key, key_of_program
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.plans.vta.layers import Addition, Convolution, Layer, MaxPool, Product, Stages, convolution, product
from tilewright.plans.vta.tiles import Tile, cycles, shape_of, tiles
from tilewright.support.errors import ScheduleError
from tilewright.targets.vta.config import DEFAULT, Memory

TRIED = 64
"""The number of tiles, by estimate, among which a decision is made."""


class DoesNotFit(ScheduleError):
    """Raised for a layer of which no tile fits into the memories of VTA."""


def choose(layer: Convolution | Product, overlap: bool = True) -> Tile:
    """The tile of the best estimate, or the one that is forced or recorded. `overlap`: whether transfers may run beside
    products. Raises DoesNotFit if none fits."""
    shape = shape_of(layer)
    stages = convolution(layer) if isinstance(layer, Convolution) else product(layer)
    results = sorted(tiles(shape, overlap), key=lambda t: cycles(t, shape))[:TRIED]
    if not results:
        raise DoesNotFit("no tile of the layer fits into the memories of VTA", where=str(layer))
    return decide(lambda: decision_key(stages), results, lambda t: Setting("vta", t.knobs), lambda t: cycles(t, shape))


def schedule(layer: Layer, tile: Tile | None = None) -> PrimFunc:
    """The scheduled function of a layer; `tile` has the sizes for a product or convolution (None: the chosen ones)."""
    match layer:
        case Convolution():
            return _contraction(convolution(layer), tile or choose(layer), layer.phases, layer.separate)
        case Product():
            return _contraction(product(layer), tile or choose(layer), 1, False)
        case Addition():
            return _addition(layer)
        case MaxPool():
            return _max_pool(layer)


def decision_key(stages: Stages) -> Key:
    """The key by which the sizes of a layer's tiles are forced or recorded."""
    return key_of_program("plan", te.create_prim_func(stages.arguments, "vta"), "vta-1x16x16")


def _contraction(stages: Stages, tile: Tile, phases: int, separate: bool) -> PrimFunc:
    """The scheduled function of `stages`, sums of products computed by tiles of `tile`. `phases` is 1, or 2 for a
    transposed convolution of stride 2; `separate` is not used."""
    s = te.create_schedule(stages.result)
    result, sums = s[stages.result], s[stages.sums]
    x, w, bias, _ = stages.arguments
    sums.set_scope(ACC)
    if stages.padded is not None:
        inputs = s[stages.padded]
        inputs.set_scope(INP)
    else:
        inputs = sums.cache_read(x, INP)
    weights, biases = sums.cache_read(w, WGT), result.cache_read(bias, ACC)
    own = result.loops
    if stages.padded is None:  # rows, then blocks
        y, o, inner = own[0], own[1], list(own[2:])
    elif phases == 1:
        o, y, inner = own[0], own[1], list(own[2:])
    else:
        o, y, ry, q, rx, j = own
        inner = [q, j]
    oo, oi = result.split(o, factor=tile.outputs)
    yo, yi = result.split(y, factor=tile.lines)
    yo, thread = result.split(yo, factor=tile.threads)
    outside = [ry, rx] if phases > 1 else []
    result.reorder(oo, *outside, yo, thread, oi, yi, *inner)
    if tile.threads > 1:
        result.cthread(thread)
    if stages.copy is not None:
        s[stages.copy].set_scope(ACC)
        s[stages.copy].compute_at(result, thread)
    sums.compute_at(result, thread)
    mine = sums.loops
    tiled = mine[mine.index(thread) + 1 :] if thread in mine else mine[-_rank(stages) :]
    j, rest = tiled[_spatial(stages) - 1], tiled[_spatial(stages) :]
    spatial = list(tiled[: _spatial(stages) - 1])
    c, *taps, k = rest
    outer, c = sums.split(c, factor=tile.chunk)
    sums.reorder(outer, c, *taps, *spatial, j, k)
    inputs.compute_at(sums, outer)
    if tile.weights == "chunk":
        weights.compute_at(sums, outer)
    elif tile.weights == "tile":
        weights.compute_at(result, oo)
    if tile.doubled:
        inputs.double_buffer()
        if tile.weights != "all":
            weights.double_buffer()
    for stage, rank in ((inputs, len(x.shape)), (weights, len(w.shape)), (biases, len(bias.shape))):
        stage.dma_copy(stage.loops[-rank])
    sums.decompose_reduction(outer)
    sums.tensorize(j, GEMM)
    return te.lower(s, list(stages.arguments), "vta")


def _rank(stages: Stages) -> int:
    return _spatial(stages) + (4 if stages.padded is not None else 2)


def _spatial(stages: Stages) -> int:
    return len(stages.sums.shape)


def _addition(a: Addition) -> PrimFunc:
    """The scheduled addition: two inputs are widened into accumulators, and the result replaces the first one."""
    shape = (a.rows, DEFAULT.block)
    first, second = te.placeholder(shape, "int8", name="a"), te.placeholder(shape, "int8", name="b")
    wide = [
        te.compute(shape, lambda i, j, t=t: te.cast(t[i, j], "int32"), name=f"{t.name}_wide") for t in (first, second)
    ]

    def total(i: Any, j: Any) -> Any:
        terms = [t[i, j] if m == 1 else t[i, j] * m for t, m in zip(wide, a.scales, strict=True)]
        return terms[0] + terms[1] + a.offset if a.offset else terms[0] + terms[1]

    q, more = a.requantised, list[te.Tensor]()
    if q.looks_twice:
        sums = te.compute(shape, total, name="sums")
        copy = te.compute(shape, lambda i, j: sums[i, j], name="copy")
        more = [sums, copy]
        result = te.compute(shape, lambda i, j: q.of(sums[i, j] + q.minus_odd(copy[i, j])), name="result")
    else:
        result = te.compute(shape, lambda i, j: q.of(total(i, j)), name="result")
    s = te.create_schedule(result)
    stage = s[result]
    i, _ = stage.loops
    places = 2 * (2 + len(more))
    size = min(DEFAULT.rows(Memory.ACC) // places, ceil(a.rows / 2)) if a.rows > 1 else 1
    outer, _ = stage.split(i, factor=size)
    outer, thread = stage.split(outer, factor=2 if a.rows > 1 else 1)
    stage.cthread(thread)
    for t in (*wide, *more)[::-1]:
        s[t].set_scope(ACC)
        s[t].compute_at(stage, thread)
    for t in wide:
        s[t].dma_copy(s[t].loops[-2])
    return te.lower(s, [first, second, result], "vta")


def _max_pool(p: MaxPool) -> PrimFunc:
    """The scheduled maxima: windows of widened inputs; two virtual threads compute lines of results in turns."""
    top, left, bottom, right = p.pads
    (high, wide), (kh, kw) = p.rows, p.kernel
    x = te.placeholder((p.blocks, p.height, p.width, DEFAULT.block), "int8", name="x")
    zero = te.const(0, "int32")

    def pad(b: Any, y: Any, q: Any, i: Any) -> Any:
        if not any(p.pads):
            return te.cast(x[b, y, q, i], "int32")
        inside = (y >= top) & (y < p.height + top) & (q >= left) & (q < p.width + left)
        return te.if_then_else(inside, te.cast(x[b, y - top, q - left, i], "int32"), zero)

    shape = (p.blocks, p.height + top + bottom, p.width + left + right, DEFAULT.block)
    padded = te.compute(shape, pad, name="padded")
    ky, kx = te.reduce_axis((0, kh), name="ky"), te.reduce_axis((0, kw), name="kx")
    greatest = te.compute(
        (p.blocks, high, wide, DEFAULT.block),
        lambda b, y, q, i: te.max(padded[b, y * p.stride + ky, q * p.stride + kx, i], axis=[ky, kx]),
        name="greatest",
    )
    result = te.compute(greatest.shape, lambda *i: te.cast(greatest[i], "int8"), name="result")
    s = te.create_schedule(result)
    stage, inner = s[result], s[greatest]
    inner.set_scope(ACC)
    s[padded].set_scope(ACC)
    b, y, *_ = stage.loops
    lines = _pool_lines(p)
    yo, yi = stage.split(y, factor=lines)
    stage.reorder(b, yo, yi)
    fused = stage.fuse(b, yo)
    _, thread = stage.split(fused, factor=2 if p.blocks * ceil(high / lines) > 1 else 1)
    stage.cthread(thread)
    inner.compute_at(stage, thread)
    mine = inner.loops[-6:]
    inner.reorder(mine[4], mine[5], *mine[:4])
    s[padded].compute_at(stage, thread)
    s[padded].dma_copy(s[padded].loops[-4])
    inner.decompose_reduction(mine[4])
    return te.lower(s, [x, result], "vta")


def _pool_lines(p: MaxPool) -> int:
    """The number of result lines whose windows fit into half of the accumulators."""
    high, wide = p.rows
    width = p.width + p.pads[1] + p.pads[3]
    fitting = [
        n for n in range(1, high + 1)
        if 2 * (n * wide + ((n - 1) * p.stride + p.kernel[0]) * width) <= DEFAULT.rows(Memory.ACC)
    ]  # fmt: skip
    if not fitting:
        raise DoesNotFit("no line of the layer fits into the memories of VTA", where=str(p))
    return fitting[-1]
