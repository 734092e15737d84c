"""The plan of Strassen's products: seven products of quarters, with the sums before and after them in the same kernel.

    for row, columns:                               parallel
        sums[7] = straight-line code of the four quarters' elements
    for panel:                                      parallel
        for t in 7, row tile:
            product[t] = sums[t] @ weights[panel, t]                    a register tile; the panel's products stay near
        for row, columns of the panel, quarter:
            out = epilogue(straight-line code of the seven products)    bias, residual, activation

Each quarter is read once, and each product is merged while it is in cache. An estimate decides whether it pays: it
saves an eighth of the multiplications, but weights take 7/4 of their size. Strips of rows, whose sums would stay in the
second level of cache, were no faster than all rows at once: each strip reads all panels.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from tilewright.algorithms.strassen.operators.product import MATMUL_STRASSEN, PRODUCTS, STRASSEN_SUMS
from tilewright.algorithms.winograd.plan.convolution import constant_product
from tilewright.ir.expr import as_int
from tilewright.ops.registry import OpDef
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import inline_all, lanes_of, vectorize_spatial
from tilewright.plans.framework.cost import (
    EXPOSED,
    SHARED_LEVELS,
    Cost,
    fetch_cycles,
    level,
    load_cycles,
    roofline,
    store_cycles,
    working_set,
    write_cycles,
)
from tilewright.plans.matmul.contraction import tile_block
from tilewright.plans.matmul.tiles import MAX_VECTORS, Product, best, estimate, sharing_rows, tiles
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

MAX_TIME = 0.96
"""The largest share that the products and sums may take of the time of the direct product: the method loses some
digits, and takes memory."""
VECTORS = 2
"""The number of vectors of each of the seven products that are merged into the output at once."""


@lru_cache(maxsize=1024)
def compared(product: Product, weights: int, target: Target) -> tuple[Cost, Cost]:
    """The estimated cycles of the product, and of seven products of quarters with their sums.

    `weights`: the bytes of all weights of the model, which determine the level of memory that they come from.
    """
    ordinary = best(product, target) | Cost(memory=fetch_cycles(product.weights, weights, target))
    half = {name: -(-getattr(product, name) // 2) for name in ("rows", "columns", "depth")}
    quarter = replace(product, **half, count=PRODUCTS)
    width = min(MAX_VECTORS * target.lanes(product.itemsize), quarter.columns)
    fast = best(quarter, target) * PRODUCTS + sums(quarter, width, target)
    fast |= Cost(memory=fetch_cycles(quarter.weights, weights * PRODUCTS / 4, target))
    return ordinary, fast


def sums(quarter: Product, width: int, target: Target) -> Cost:
    """The cost of summing quarters before the seven products, and of merging the products after them, for panels of
    `width` columns.

    All sums are read again for each panel, beside its weights and products. If these exceed the second-level cache,
    sums and products come from beyond it, a transfer that is partly hidden like any other.
    """
    x, y = (quarter.rows * size * quarter.itemsize for size in (quarter.depth, quarter.columns))
    panels = -(-quarter.columns // width)
    held = PRODUCTS * (x + (quarter.rows + quarter.depth) * width * quarter.itemsize)
    arrive = (
        fetch_cycles(PRODUCTS * (panels * x + 2 * y), held, target) if level(held, target) in SHARED_LEVELS else 0.0
    )
    before = Cost(
        load=load_cycles(4 * x, target),
        store=store_cycles(PRODUCTS * x, target),
        memory=fetch_cycles(4 * x, 4 * x, target) + write_cycles(PRODUCTS * x, PRODUCTS * x, target),
    )
    # What a panel's products take more than those of a direct product: they are stored once more, and read.
    after = Cost(
        load=load_cycles(PRODUCTS * y, target), store=store_cycles(PRODUCTS * y, target), overhead=EXPOSED * arrive
    )
    return before + after


@dataclass(frozen=True, slots=True)
class StrassenStages:
    """The stages of a product by Strassen's method, in order: `quarters` precede the sums, `rest` is the epilogue."""

    quarters: tuple[Stage, ...]
    sums: Stage
    product: Stage
    merged: Stage
    rest: tuple[Stage, ...]


def stages(structure: Structure, op: OpDef[Any]) -> StrassenStages | None:
    """The stages of `op`, an operator of Strassen's method, if the function is it with pointwise work around it; else
    None."""
    result = structure.operator(op)
    if result is None:
        return None
    sums, product, merged = map(result.stage, ("sums", "product", "merged"))
    quarters = tuple(s for s in structure.before(product) if s is not sums)
    rest = tuple(s for s in structure.after(product) if s is not merged)
    if structure.anchors != (product,) or any(s.role != "spatial" for s in (*quarters, *rest)):
        return None
    return StrassenStages(quarters, sums, product, merged, rest)


def fits(structure: Structure, target: Target) -> bool:
    return stages(structure, MATMUL_STRASSEN) is not None


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    result = stages(structure, MATMUL_STRASSEN)
    assert result is not None
    panels, _, rows, width = (as_int(it.extent) for it in result.product.spatial)
    depth = as_int(result.product.reduce[0].extent)
    assert panels is not None and rows is not None and width is not None and depth is not None
    itemsize, passing = result.product.writes[0].dtype.itemsize, working_set(0.0, structure.func.notes, target)
    quarter = Product(rows, panels * width, depth, itemsize, PRODUCTS, passing)
    options = []
    for tile in tiles(rows, width, quarter.columns, depth, quarter.itemsize, target):
        if tile.panels == 1:
            sharing = sharing_rows(tile, quarter, 0, target)
            knobs = (("rows", tile.rows), ("width", width), ("sharing", sharing), ("ahead", 0), ("panels", 1))
            cost = estimate(tile, quarter, target) * PRODUCTS + sums(quarter, width, target)
            options.append(Candidate(knobs, cost))
    return sorted(options, key=lambda c: c.cycles)


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    result = stages(structure, MATMUL_STRASSEN)
    assert result is not None
    inline_all(s, structure, (*result.quarters, *result.rest))
    sums, product, merged = (s.block(stage.name) for stage in (result.sums, result.product, result.merged))
    sum_quarters(s, sums, lanes_of(result.sums, target), target)
    panel = merge_products(s, result, merged, candidate.knob("width"), target)
    products = s.cache_write(product, "local")
    s.compute_at(products, panel)
    s.set_scope(products, "padded")
    register_tiles(s, result.product, product, products, candidate, target)
    s.parallel(panel)


def sum_quarters(s: Schedule, block: BlockRef, lanes: int, target: Target) -> None:
    """Schedule the block that sums the quarters' elements at each index, as straight-line code in vectors along the
    rows."""
    s.expand(block)
    vectorize_spatial(s, block, target, lanes)


def merge_products(s: Schedule, result: StrassenStages, merged: BlockRef, width: int, target: Target) -> LoopRef:
    """Schedule the output of a product by Strassen's method, a panel of `width` columns at a time, with `merged`, the
    sums of products, computed inside. Returns the loop over panels."""
    out = s.block(result.rest[-1].name)
    lanes = lanes_of(result.merged, target)
    half, across = (-(-as_int(d.extent) // 2) for d in result.rest[-1].spatial[-2:])  # type: ignore[operator]
    *lead, row, column = s.loops(out)
    upper, row = s.split(row, factors=(None, half))
    left, column = s.split(column, factors=(None, across))
    panel, lane = s.split(column, factor=width)
    parts = []
    if width > VECTORS * lanes:
        *parts, lane = s.split(lane, factor=VECTORS * lanes)
    s.reorder(*lead, panel, row, *parts, upper, left, lane)
    s.compute_at(merged, [row, *parts][-1])
    s.set_scope(merged, "local")
    constant_product(s, merged)
    s.unroll(upper)
    s.unroll(left)
    s.vectorize(lane)
    return panel


def register_tiles(
    s: Schedule, anchor: Stage, block: BlockRef, out: BlockRef, candidate: Candidate, target: Target
) -> None:
    """Schedule `block`, the products of a panel, in register tiles of the candidate's number of rows, inside the loops
    of `out`, which reads them."""
    row, lane = s.loops(out)[-2:]
    tile, row = s.split(row, factor=candidate.knob("rows"))
    s.compute_at(block, tile)
    s.set_scope(block, "local")
    tile_block(s, anchor, block, candidate, target)
    s.unroll(row)
    s.vectorize(lane)


def fits_weights(structure: Structure, target: Target) -> bool:
    """Whether a function computes the sums of a weight's quarters, with pointwise stages before them."""
    result = structure.operator(STRASSEN_SUMS)
    if result is None:
        return False
    *before, last = structure.stages
    return last is result.stage("sums") and all(s.role == "spatial" for s in before)


def weights_candidates(structure: Structure, target: Target) -> list[Candidate]:
    return [Candidate((), roofline(structure, target, expanded=True))]


def apply_weights(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    inline_all(s, structure, structure.stages[:-1])
    last = structure.stages[-1]
    sum_quarters(s, s.block(last.name), lanes_of(last, target), target)


PLAN = Plan("strassen", fits, candidates, apply)
WEIGHTS = Plan("strassen weights", fits_weights, weights_candidates, apply_weights)
