"""Products of packed weights with NCHW maps: register tiles of filters x pixels, the pixels in vectors.

    for image, group, run of pixels:                    parallel over what is outermost; a few runs (`runs_together`)
        x' = the run of all channels, side by side      a copy: one stream from the first-level cache or the second
        for panel of filters:
            tile[filters, pixels] = 0                   registers
            for channel:
                tile[f, :] += w[panel, channel, f] * x'[channel, :]
            out[...] = epilogue(tile)                   bias, residual, activation

This plan serves groups whose channels fill no blocks, and layers with NCHW maps on both sides
(`transform/layout/pixels.py`): no layout is converted, and lanes are wasted only at the end of a map. A run is copied
if enough panels read it, or if its channels would touch too many pages; strided pixels, and 16-bit floats, which the
copy widens, are always copied.
"""

from __future__ import annotations

from math import ceil, gcd, prod

from tilewright.ir.expr import Buffer, as_int
from tilewright.ir.notes import Prefetch
from tilewright.ops.lowered.packed_groups import CONV_POINTWISE_GROUPS
from tilewright.plans.convolution.tiles import share_of, side
from tilewright.plans.framework.analysis import Stage, Structure, factors, uses
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import buffer_names, extent, inline_all, lanes_of, parallelize
from tilewright.plans.framework.cost import EXPOSED, Cost, bandwidth, fetch_cycles, fma_cycles, write_cycles
from tilewright.plans.framework.tiles import row_limit, whole_step
from tilewright.plans.matmul.epilogues import epilogue_work
from tilewright.schedule.recording import LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

MAX_VECTORS = 12


@dataclass(frozen=True, slots=True)
class PixelProblem:
    """A 1x1 convolution for one image and one group: `filters` outputs for each of `pixels`, from `depth` channels."""

    filters: int
    pixels: int
    depth: int


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is products over the pixels of maps, with pointwise stages before and after."""
    conv = structure.operator(CONV_POINTWISE_GROUPS)
    if conv is None or any(st.role == "reduction" for st in structure.stages):
        return False
    anchor = conv.stage("pointwise")
    if structure.anchors != (anchor,) or structure.before(anchor)[-1:] != (conv.stage("maps"),):
        return False
    return len(structure.after(anchor)[-1].spatial) == 4


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    anchor = structure.anchors[0]
    width, shape = panel_of(structure), shape_of(structure)
    images, groups = (as_int(it.extent) or 1 for it in anchor.spatial[:2])
    calls = images * groups * share_of(it.extent for it in structure.after(anchor)[-1].spatial[2:])
    work = epilogue_work(structure, anchor, target) * shape.filters * shape.pixels
    after = Cost(compute=fma_cycles(work, target.lanes(4), target))
    results = [
        Candidate((("filters", width), ("vectors", vectors), ("copied", int(copied))), (cost + after) * calls)
        for vectors, copied, cost in estimates(shape, width, target)
        if copied or len(structure.before(anchor)) == 1  # what is done on the way is done once, not for each panel
    ]
    return sorted(results, key=lambda c: c.cycles)


def shape_of(structure: Structure) -> PixelProblem:
    """The sizes of the convolution of one image and one group, as a problem of this plan."""
    anchor = structure.anchors[0]
    pixels = prod(side(it.extent) for it in structure.after(anchor)[-1].spatial[2:])
    return PixelProblem(filters_of(structure), pixels, as_int(anchor.reduce[0].extent) or 64)


def estimates(shape: PixelProblem, width: int, target: Target) -> list[tuple[int, bool, Cost]]:
    """(vectors of a tile, whether runs are copied, cost) of each setting for panels of `width` filters."""
    lanes, result = target.lanes(4), []
    for vectors in range(1, MAX_VECTORS + 1):
        if vectors > 1 and (
            registers(width, vectors, target) > target.registers or (vectors - 1) * lanes >= shape.pixels
        ):
            break
        result += [(vectors, copied, estimate(shape, width, vectors, copied, target)) for copied in (True, False)]
    return result


def registers(filters: int, vectors: int, target: Target) -> int:
    """How many vector registers a tile of `filters` x `vectors` takes: the accumulators, the pixels of a step (a single
    filter reads them from memory), and one weight. On targets that read a step's operands before its products, it
    includes all of them."""
    if target.isa.reads_first:
        return whole_step(filters, vectors)
    return filters * vectors + (vectors if filters > 1 else 0) + 1


def estimate(shape: PixelProblem, width: int, vectors: int, copied: bool, target: Target) -> Cost:
    """The estimated cost for one image and group, in tiles of `width` filters by `vectors` vectors of pixels; `copied`:
    each run of pixels is copied first. A partial last vector is computed as several shorter ones; a run with more data
    than the first level of cache holds is read from the second."""
    lanes, panels = target.lanes(4), -(-shape.filters // width)
    costs, traffic, caches = target.costs.arithmetic, target.costs.traffic, target.caches
    run, loads = 4 * shape.depth * vectors * lanes, costs.loads_per_cycle
    cached = run <= traffic.resident_l1 * target.l1
    rate = loads if cached else min(loads, target.l2_bandwidth / (4.0 * lanes))
    pages = min(shape.depth, 4 * shape.pixels * shape.depth // caches.page)
    # A quarter of the translation buffer is left for what else is touched.
    turning = pages > caches.l1_pages * 3 // 4 or shape.depth > row_limit(4 * shape.pixels, target)
    whole, rest = divmod(shape.pixels, vectors * lanes)
    compute = overhead = 0.0
    for count, used in ((whole, vectors), (1, rest // lanes + (rest % lanes).bit_count())):
        if not used or not count:
            continue
        step = max(width * used / target.fma_per_cycle, width / loads + used / rate, costs.fma_latency)
        step += 0.0 if cached else EXPOSED * used / rate
        step += 0.0 if copied else traffic.unaligned * used + (traffic.distant_page if turning else 0.0)
        compute += count * panels * shape.depth * step
        overhead += count * panels * (width * used + costs.tile_overhead / 2.0)
        if copied:
            overhead += count * shape.depth * used * traffic.copied_vector
    maps = shape.depth + shape.filters
    if maps >= room(shape, target):
        overhead += traffic.collision * (whole + 1) * maps * touched(vectors * lanes, target)
    source, result = 4 * shape.depth * shape.pixels, 4 * shape.filters * shape.pixels
    weights = 4 * shape.filters * shape.depth
    if beyond_l2(shape, target):
        overhead += scattered(shape, target) * source / caches.line
    memory = fetch_cycles(source, max(source, target.l1), target) + write_cycles(result, max(result, target.l1), target)
    memory += (whole + 1) * weights / bandwidth(weights + run, target) if weights + run > target.l1 else 0.0
    return Cost(compute=compute, memory=memory, overhead=overhead)


def scattered(shape: PixelProblem, target: Target) -> float:
    """Cycles to load a cache line from beyond the second level where a run reads a short piece of each channel's map;
    more for more maps than hardware prefetchers follow."""
    traffic = target.costs.traffic
    return traffic.scattered_line if shape.depth <= traffic.followed_rows else traffic.scattered_line_unfollowed


def touched(pixels: int, target: Target) -> float:
    """The expected number of cache lines that `pixels` neighbouring f32 pixels of a map touch."""
    return 4 * pixels / target.caches.line + 1


def room(shape: PixelProblem, target: Target) -> float:
    """The number of maps of which one run of pixels stays in the second level of cache. Maps whose size is a multiple
    of many lines start in the same few sets of it, as far as addresses within a page decide; pages are assumed to be
    anywhere."""
    ways, page = target.caches.l2_ways, target.caches.page
    pages = target.l2 // ways // page
    return target.costs.traffic.retained_sets * ways * pages * (page // gcd(4 * shape.pixels, page))


def panels(shape: PixelProblem, target: Target) -> list[tuple[float, int]]:
    """(cycles, width) of panels, for one image and group, the best first. The last panel may have filters of zeros."""
    most = min(shape.filters, target.registers)
    fitting = [n for n in range(1, most + 1) if n == 1 or registers(n, 1, target) <= target.registers]
    return sorted(
        (min(cost.cycles for _, _, cost in estimates(shape, n, target)) * (UNEVEN if shape.filters % n else 1.0), n)
        for n in fitting
    )


UNEVEN = 1.1
"""The factor on the estimated time if the filters do not fill the last panel, which then has separate code (64 to 107,
216 to 31 and 300 to 50 channels; Zen 5, 28 November 2026)."""


def panel_of(structure: Structure) -> int:
    """The width of the weights' panels, in filters."""
    anchor = structure.anchors[0]
    loads = factors(anchor.block)
    assert loads is not None
    (weights,) = (load for load in loads if anchor.spatial[2] in uses(load, anchor.spatial))
    return as_int(weights.buffer.shape[-1]) or 1


def filters_of(structure: Structure) -> int:
    """The number of filters of a group in the function's output."""
    anchor = structure.anchors[0]
    out = structure.after(anchor)[-1]
    return (as_int(out.spatial[1].extent) or 1) // (as_int(anchor.spatial[1].extent) or 1)


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    anchor = structure.anchors[0]
    *_, maps = structure.before(anchor)
    after, source = structure.after(anchor), structure.before(anchor)[0].reads[0]
    copied = bool(candidate.knob("copied"))
    inline_all(s, structure, tuple(st for st in structure.stages if st is not anchor and not (copied and st is maps)))
    block, out = s.block(anchor.name), s.block(after[-1].name)
    n, k, h, v = s.loops(out)
    group, f = s.split(k, factor=filters_of(structure))
    panel, f = s.split(f, factor=candidate.knob("filters"))
    pixel = s.fuse(h, v)
    most = candidate.knob("vectors") * lanes_of(anchor, target)
    size = min(most, extent(s, pixel) or most)
    together = 1 if copied or extent(s, pixel) is None else runs_together(shape_of(structure), candidate, size, target)
    run, lane = s.split(pixel, factor=size * together)
    enclosing = [n, group, run, panel]
    if together > 1:
        piece, lane = s.split(lane, factor=size)
        enclosing.append(piece)
    s.reorder(*enclosing, f, lane)
    s.compute_at(block, enclosing[-1])
    s.set_scope(block, "local")
    _, _, own_f, own_lane, channel = s.loops(block)[len(enclosing) :]
    s.reorder(channel, own_f, own_lane)
    init = s.decompose_reduction(block, channel)
    for stage in (block, init, out):
        *_, rows, vector = s.loops(stage)
        if rows not in (enclosing[-1], channel):
            s.unroll(rows)
        if extent(s, lane) != 1:
            s.vectorize(vector)
    if copied:
        copy_run(s, maps, source, run, size, target)
    elif prefetches(shape_of(structure), candidate.knob("filters"), target) and extent(s, lane) != 1:
        s.annotate(channel, prefetch(source, size, target))
    parallelize(s, [n, group, run])


def runs_together(shape: PixelProblem, candidate: Candidate, size: int, target: Target) -> int:
    """How many runs of `size` pixels a panel processes before the next panel: one, unless the maps of all filters lie
    in the same few sets of the first level. There, lines of results would be evicted before the panel writes their next
    part, if it wrote only a tile's few lines at a time; so it writes more, as transpositions do."""
    if shape.filters <= max(candidate.knob("filters"), row_limit(4 * shape.pixels, target)):
        return 1
    lines = 4 * target.costs.copies.lines_together
    return min(ceil(lines * target.caches.line / (4 * size)), ceil(shape.pixels / size))


def copy_run(s: Schedule, maps: Stage, source: Buffer, run: LoopRef, size: int, target: Target) -> None:
    """Compute the copy of a run's `size` pixels of each channel at the loop `run`, with a prefetch of the next run's
    pixels: they are in many pages, which hardware prefetchers do not follow."""
    copy = s.block(maps.name)
    s.compute_at(copy, run)
    *_, channels, pixels = s.loops(copy)
    if extent(s, pixels) != 1:
        s.vectorize(pixels)
        s.annotate(channels, prefetch(source, size, target))


def prefetch(source: Buffer, size: int, target: Target) -> Prefetch:
    """A note to prefetch, while a channel's part of this run is read, the `size` elements that the next run reads."""
    nbytes = size * source.dtype.itemsize
    return Prefetch(buffer_names((source,)), nbytes, lines=-(-nbytes // target.caches.line))


def beyond_l2(shape: PixelProblem, target: Target) -> bool:
    """Whether maps come from beyond the second level of cache."""
    return 4 * shape.depth * shape.pixels > target.costs.traffic.retained_sets * target.l2


HIDING = 4
"""The least number of filters in a panel for which the next run is prefetched from the last level of cache (from memory
it always is): less work cannot hide the instructions (sides of 64 to 300: one filter 1.0 to 1.29 times as long with
prefetches, four 0.9 to 1.06; Zen 4, 28 November 2026, docs/decisions/nchw-pixels.md)."""


def prefetches(shape: PixelProblem, filters: int, target: Target) -> bool:
    """Whether a panel of `filters` filters prefetches the next run of pixels while it computes one."""
    beyond = 4 * shape.depth * shape.pixels > target.costs.traffic.resident_l3 * target.l3
    return beyond_l2(shape, target) and (filters >= HIDING or beyond)


PLAN = Plan("pixels", fits, candidates, apply)
