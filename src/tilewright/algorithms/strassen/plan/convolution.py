"""Strassen's products in a convolution of one pixel (`strassen/operators/convolution.py`), as Winograd's are scheduled:
a strip of pixels at a time through all stages.

    for image, strip:                               parallel, or the loops inside are
        sums[7] = straight-line code of the quarters' elements              stay in L2, one of the seven at least
        for group of panels of filters:
            for t in 7, panel, rows of pixels:
                product[t, panel] = sums[t] @ u[group, t, panel]            a register tile
            for panel, pixel, quarter:
                out = epilogue(straight-line code of the seven products)    bias, residual, activation

This saves an eighth of the multiplications. Each element of the input is read once and stored 7/4 times, and each of
the output is stored and read 7/4 times before it is written. So the numbers of channels and filters, not that of
pixels, decide whether it pays; the filters take 7/4 of their size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import ceil

from tilewright.algorithms.strassen.operators.convolution import CONV_STRASSEN, pixels_in_strips
from tilewright.algorithms.strassen.operators.product import PRODUCTS
from tilewright.algorithms.strassen.plan.product import StrassenStages, stages
from tilewright.algorithms.strassen.selection import StrassenStrips
from tilewright.algorithms.winograd.plan.convolution import constant_product, products, share
from tilewright.algorithms.winograd.plan.tiles import ENOUGH, groups, one_block_a_thread
from tilewright.ir.expr import as_int
from tilewright.ir.loops import PrimFunc
from tilewright.plans.convolution import tiles as conv_tiles
from tilewright.plans.convolution.tiles import MAX_ROWS, WHOLE, Blocking, DirectProblem, registers
from tilewright.plans.framework.analysis import Structure, analyse
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import inline_all
from tilewright.plans.framework.cost import Cost, bandwidth, load_cycles, number, outside, sharing, store_cycles
from tilewright.plans.framework.restate import restate
from tilewright.plans.framework.symbolic import SYMBOLIC_IMAGES
from tilewright.plans.idioms.panels import packed_operand, panel_width
from tilewright.schedule.recording import LoopRef
from tilewright.schedule.routines import Routine, register
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.state import refuse
from tilewright.targets.target import Target
from tilewright.te import Tensor

MAX_TIME = 0.98
"""The largest share that the seven products may take of the time of the direct convolution: their filters take more
memory."""
MIN_STRIP = 32
"""The least number of pixels in a strip, counted in one half of a map; a smaller half is one strip."""
MAX_STRIPS = 64


@lru_cache(maxsize=4096)
def best(shape: DirectProblem, width: int, model: int, target: Target) -> tuple[Cost, StrassenStrips] | None:
    """(estimated cost, setting) of the best setting for one image of `shape`, in the best strips, for panels of `width`
    filters; None if no setting fits. `model` is the size in bytes of all weights of the model, which decides from which
    memory they are read."""
    results = (
        (estimate(shape, StrassenStrips(width, panels), strip, model, target), StrassenStrips(width, panels))
        for strip in strips(ceil(shape.height * shape.width / 2))
        for panels in groups(shape.filters // 2 // width)
    )
    return min(results, key=lambda c: c[0].cycles, default=None)


def strips(half: int) -> Iterator[int]:
    """The sizes of strips to try, of `half` pixels, half of a map: all of them, or an equal part."""
    yield half
    for parts in range(2, MAX_STRIPS + 1):
        if half % parts == 0 and half // parts >= MIN_STRIP:
            yield half // parts


def estimate(
    shape: DirectProblem, choice: StrassenStrips, strip: int, model: float, target: Target, rows: int | None = None
) -> Cost:
    """The cost of one image in strips of `strip` pixels: the work of one core, and the idle cycles of other cores, as
    threads share the strips or, if there are few strips, the phases of each.

    Args:
        model: the bytes of all weights of the model, which decide from which memory a call reads them.
        rows: of register tiles; None: the best number.
    """
    count = ceil(ceil(shape.height * shape.width / 2) / strip)
    x, y = (2 * strip * size for size in (shape.channels, shape.filters))  # bytes of a quarter, of a strip
    group = 4 * strip * choice.width * choice.panels
    passes = y // group
    heights = tiles(quarter(shape, strip), choice.width, target)
    product = min((c for n, c in heights if rows in (None, n)), key=lambda c: c.cycles) * PRODUCTS
    weights = float(PRODUCTS * shape.channels * shape.filters)
    held = PRODUCTS * (x + group)
    first, later = weights / bandwidth(model * PRODUCTS / 4, target), weights / bandwidth(weights + held, target)
    traffic = target.costs.traffic
    # A register tile reads some pixels of each block of channels, which lie at a distance of one strip.
    from_memory = traffic.short_runs * bandwidth(held, target)
    cached = target.l2_bandwidth if held <= traffic.reader_l2 * target.l2 else from_memory
    rereading = passes * PRODUCTS * x / cached
    before = Cost(
        load=load_cycles(4 * x, target),
        store=store_cycles(PRODUCTS * x, target),
        memory=4 * x / bandwidth(max(shape.source, target.l2), target) + PRODUCTS * x / cached,
    )
    output = 4.0 * shape.filters * shape.height * shape.width
    after = Cost(
        load=load_cycles(PRODUCTS * y, target),
        store=store_cycles(4 * y, target),
        memory=2 * PRODUCTS * y / cached + 8 * y / bandwidth(max(output, target.l2), target),
    )
    alone = one_block_a_thread(shape.images * count, target)
    if not alone:
        each, panels = (PRODUCTS * choice.panels, choice.panels) if passes < ENOUGH else (passes, passes)
        product, after = product * sharing(each, target), after * sharing(panels, target)
    one = (product | Cost(memory=rereading)) + before + after
    unequal = sharing(shape.images * count, target) if alone else 1.0
    return one * (count * unequal) | Cost(memory=first + (count - 1) * later)


def quarter(shape: DirectProblem, strip: int) -> DirectProblem:
    """One of Strassen's seven products of a strip of pixels, as a convolution of half of the channels and filters."""
    return replace(
        shape,
        height=1,
        width=strip,
        images=1,
        channels=shape.channels // 2,
        filters=shape.filters // 2,
        source=2 * strip * shape.channels,
        copied=False,
    )


def tiles(quarter: DirectProblem, width: int, target: Target) -> list[tuple[int, Cost]]:
    """(rows of a register tile, cost of one product of a strip, `quarter`, in such tiles of `width` columns) for each
    number of rows that the registers hold."""
    vectors = width // target.lanes(4)
    most = [n for n in range(1, MAX_ROWS + 1) if registers(n, vectors, target) < target.registers]
    results = [Blocking(n, width, WHOLE, WHOLE, True) for n in most if n <= quarter.width]
    one = replace(target, threads=1)  # who shares what is the strips' matter
    return [(b.rows, conv_tiles.estimate(quarter, b, one)) for b in results]


def fits(structure: Structure, target: Target) -> bool:
    return stages(structure, CONV_STRASSEN) is not None


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    """The settings of the plan to consider, by estimate: (number of pixels computed at once, rows of a register tile);
    all of the former with their best tiles, and the best of them with all tiles."""
    result, conv = stages(structure, CONV_STRASSEN), structure.operator(CONV_STRASSEN)
    assert result is not None and conv is not None
    (out,) = conv.stages[-1].writes
    (blocks, block), width = (as_int(it.extent) for it in result.product.reduce), panel_width(result.product)
    panels = as_int(result.product.spatial[4].extent)
    height, columns = (as_int(d) for d in out.shape[2:4])
    assert blocks and block and width and panels and height and columns
    channels, images = 2 * blocks * block, as_int(out.shape[0])
    source, filters = 4 * channels * height * columns, conv.attrs.channels
    count = SYMBOLIC_IMAGES[0] if images is None else images
    shape = DirectProblem(count, height, columns, (1, 1), 1, channels, block, filters, source, False)
    choice, model = StrassenStrips(width, panels), 4.0 * channels * filters
    after, times = outside(structure, conv.stages, target), number(out.shape[0])

    def candidate(strip: int, rows: int) -> Candidate:
        cost = estimate(shape, choice, strip, model, target, rows)
        return Candidate((("strip", strip), ("rows", rows)), cost * times + after)

    options: list[Candidate] = []
    for strip in strips(ceil(height * columns / 2)):
        each = sorted(tiles(quarter(shape, strip), width, target), key=lambda tile: tile[1].cycles)
        options += [candidate(strip, rows) for rows, _ in each]
    options.sort(key=lambda c: c.cycles)
    best = options[0].knob("strip")
    first = {c.knob("strip"): c for c in reversed(options)}
    return [c for c in options if c.knob("strip") == best or c is first[c.knob("strip")]]


def in_strips(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """The convolution `func`, by Strassen's method, restated in strips of `sizes["strip"]` pixels. Raises ScheduleError
    for other functions."""
    structure = analyse(func)
    conv = structure.operator(CONV_STRASSEN)
    if conv is None:
        raise refuse(func, "the routine 'strassen in strips' computes convolutions by Strassen's algorithm")
    weights, (out,) = packed_operand(conv.stage("product")), conv.stages[-1].writes
    assert weights is not None

    def convolution(x: Tensor, u: Tensor) -> Tensor:
        return pixels_in_strips(x, u, conv.attrs, out.shape, sizes["strip"])

    return restate(structure, conv, (*conv.stage("quarters").reads, weights.buffer), convolution)


IN_STRIPS = register(Routine("strassen in strips", ("strip",), in_strips))


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    result = stages(structure, CONV_STRASSEN)
    assert result is not None
    inline_all(s, structure, (*result.quarters, *result.rest))
    image, strip, group, panel = output_loops(s, result)
    element, product = products(s, result.product, group, candidate.knob("rows"), target, by_parts=False)
    sums = s.block(result.sums.name)
    s.compute_at(sums, strip)
    for block in (sums, product):
        s.set_scope(block, "padded")
    constant_product(s, sums)
    channels = s.loops(sums)[-3]
    phases: tuple[LoopRef, ...] = (channels, group)
    if one_block_a_thread(s.extent(strip) or 1, target):
        phases = (strip,)
    elif (s.extent(group) or 0) < ENOUGH:
        loops = s.loops(product)
        # Seven products alone are no fair share for two threads: four and three.
        each = s.fuse(element, loops[loops.index(element) + 1])
        phases = (channels, each, panel)
    share(s, image, strip, phases, (s.extent(image) or 1) * (s.extent(strip) or 1), target)


def output_loops(s: Schedule, result: StrassenStages) -> tuple[LoopRef, LoopRef, LoopRef, LoopRef]:
    """Split the loops of the block that writes the output, and return its loops over (images, strips, groups of panels,
    panels), outermost first, where other stages can be placed. In the innermost loops the seven products are
    combined to the four quarters of the output, for one vector of filters in each quarter at a time."""
    out = s.block(result.rest[-1].name)
    image, k, h, w, lane = s.loops(out)
    strips, groups, _, panels, strip, width = (as_int(it.extent) for it in result.product.spatial[1:])
    lanes, pixels = s.extent(lane), (s.extent(h) or 1) * (s.extent(w) or 1)
    assert strips and groups and panels and strip and width and lanes
    left, k = s.split(k, factor=groups * panels * width // lanes)
    group, k = s.split(k, factor=panels * width // lanes)
    panel, part = s.split(k, factor=width // lanes)
    upper, row = s.split(s.fuse(h, w), factor=-(-pixels // 2))
    at, row = s.split(row, factor=strip)
    s.reorder(image, at, group, panel, row, part, upper, left, lane)
    merged = s.block(result.merged.name)
    s.compute_at(merged, part)
    s.set_scope(merged, "local")
    constant_product(s, merged)
    for loop in (part, upper, left):
        s.unroll(loop)
    s.vectorize(lane)
    return image, at, group, panel


PLAN = Plan("strassen convolution", fits, candidates, apply, refines=("rows",), restated=IN_STRIPS)
