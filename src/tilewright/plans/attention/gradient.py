"""Attention's gradient: five products and a softmax, a block of rows at a time (`gradient_loops.py`).

The gradients of keys and values are sums over rows. They are kept in cache with the keys of a head while blocks of its
rows are processed; no sequence of schedule primitives produces such loops from the operator's stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil

from tilewright.ir.expr import as_int
from tilewright.ir.loops import PrimFunc
from tilewright.ops.attention_gradient import ATTENTION_GRADIENT, JOINED, RESULTS, AttentionGradientAttrs
from tilewright.ops.dims import accumulator
from tilewright.ops.lowered.attention import ORDERS
from tilewright.plans.attention.gradient_loops import Results, gradient_loops
from tilewright.plans.attention.operands import Operands
from tilewright.plans.attention.rows import Tile
from tilewright.plans.attention.tiles import LENGTHS, MAX_TILES, SOFTMAX, VECTORS, Sizes, heights, square
from tilewright.plans.framework.analysis import Structure, analyse
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.cost import SYMBOL, Cost, fetch_cycles, fma_cycles, load_cycles, number, store_cycles
from tilewright.plans.framework.symbolic import values_of
from tilewright.plans.matmul.tiles import MatmulTile, Product, estimate, unrolled_steps
from tilewright.schedule.routines import Routine, register
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.state import refuse
from tilewright.targets.target import Target

SLOPES = 6.0
"""Operations per score besides the softmax's: the sum over the incoming gradient, the probability's gradient, the
slope."""


def operands(structure: Structure) -> tuple[Operands, Results] | None:
    """The parameters by their roles, if the function computes attention's gradient and nothing else, with known numbers
    of columns; `y` is the gradient of the result. None for other functions."""
    result = structure.operator(ATTENTION_GRADIENT)
    if result is None or len(result.stages) != len(structure.stages):
        return None
    stages = {stage.origin.stage: stage for stage in result.stages if stage.origin is not None}
    params = structure.func.params
    arguments = {n: next((b for b in stages[n].reads if b in params), None) for n in INPUTS if n in stages}
    attrs: AttentionGradientAttrs = result.attrs
    created = [stages[JOINED if attrs.joined else name].writes[0] for name in RESULTS]
    q, k, v, g = (arguments[name] for name in INPUTS[:4])
    if q is None or k is None or v is None or g is None or any(b is None for b in arguments.values()):
        return None
    order = attrs.order
    if any(as_int(b.shape[ORDERS[o][3]]) is None for b, o in ((q, order[0]), (v, order[2]))):
        return None
    if any(b not in params for b in created):
        return None
    return Operands(attrs.forward, q, k, v, g, arguments.get("mask")), Results(attrs, *created)


SIZES = ("rows", "width", "tiles", "steps", "side")
"""The names of a tile's sizes that are knobs. Rows of scores are held whole, so that there are no blocks of keys."""
INPUTS = ("queries", "keys", "values", "flows", "mask")
"""The names of the operator's input stages."""


def fits(structure: Structure, target: Target) -> bool:
    return operands(structure) is not None


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    result = operands(structure)
    assert result is not None
    sizes, groups = sizes_of(result[0])
    options = [(cost(tile, sizes, groups, target), tile) for tile in tiles(sizes, target)]
    options.sort(key=lambda option: float(f"{option[0].cycles:.4g}"))
    return [Candidate(tuple((size, getattr(tile, size)) for size in SIZES), cycles) for cycles, tile in options]


def sizes_of(result: Operands) -> tuple[Sizes, int]:
    """(the sizes that tiles depend on, the number of heads of keys in all batch entries)."""
    q, k, v = (
        tuple(b.shape[a] for a in ORDERS[o])
        for b, o in zip((result.q, result.k, result.v), result.attrs.order, strict=False)
    )
    batch, attrs = number(q[0]), result.attrs
    sizes = Sizes(
        rows=q[1],
        keys=k[1],
        depth=as_int(q[3]) or 64,
        out_depth=as_int(v[3]) or 64,
        heads=batch * attrs.heads,
        itemsize=accumulator(result.q.dtype).itemsize,
    )
    return sizes, batch * attrs.groups


def tiles(sizes: Sizes, target: Target) -> Iterator[Tile]:
    """The candidate tiles: rows and width that fit the registers, with as many tiles in a block that its scores and
    their gradients take a quarter of the second-level cache, or an eighth."""
    lanes = target.lanes(sizes.itemsize)
    known, keys = as_int(sizes.rows), max(values_of(sizes.keys, LENGTHS))
    for vectors in VECTORS:
        width = vectors * lanes
        for tall in heights(known, vectors, target):
            fitting = target.l2 // 4 // (2 * tall * keys * sizes.itemsize)
            steps = unrolled_steps(tall * vectors, None)
            for count in dict.fromkeys(max(1, min(n, MAX_TILES)) for n in (fitting, fitting // 2)):
                yield Tile(tall, width, width, count, steps, square(sizes, target))


def cost(tile: Tile, sizes: Sizes, groups: int, target: Target) -> Cost:
    """The estimated cycles of all heads, where `groups` of them have keys and values of their own; for symbolic numbers
    of rows and keys the mean over likely ones."""
    rows, keys = values_of(sizes.rows, LENGTHS), values_of(sizes.keys, LENGTHS)
    counts = [(rows[k % len(rows)], keys[k % len(keys)]) for k in range(max(len(rows), len(keys)))]
    total = Cost()
    for m, n in counts:
        total |= _products(tile, m, n, sizes, target) * sizes.heads + _panels(tile, n, sizes, target) * groups
    scale = 1.0 / len(counts)
    if as_int(sizes.rows) is None:
        scale *= SYMBOL * len(rows) / sum(rows)
    return total * scale


def _products(tile: Tile, rows: int, keys: int, sizes: Sizes, target: Target) -> Cost:
    """The cost of one head for its `rows` query rows: the five products (q k', g v', and those for dq, dk and dv), the
    softmax with its gradient, copies of rows, and rereading keys and values for each block of rows."""
    lanes, itemsize = target.lanes(sizes.itemsize), sizes.itemsize
    tall, tall_keys = max(1, min(tile.rows, rows)), max(1, min(tile.rows, keys))
    count, key_count = ceil(rows / tall), ceil(keys / tall_keys)
    by_row, by_key = MatmulTile(tall, tile.width), MatmulTile(tall_keys, tile.width)
    block = min(tile.tiles * tall, rows)
    blocks = ceil(rows / block)
    products = Cost()
    for depth in (sizes.depth, sizes.out_depth):
        products += estimate(by_row, Product(count * tall, keys, depth, itemsize), target)
        products += estimate(by_key, Product(key_count * tall_keys, depth, block, itemsize), target) * blocks
    products += estimate(by_row, Product(count * tall, sizes.depth, keys, itemsize), target)
    scores = rows * keys
    softmax = Cost(
        compute=fma_cycles((SOFTMAX + SLOPES) * scores, lanes, target),
        load=load_cycles(8.0 * scores * itemsize, target),
        store=store_cycles(5.0 * scores * itemsize, target),
    )
    held = keys * (3 * sizes.depth + 2 * sizes.out_depth) * itemsize
    rereading = Cost(memory=fetch_cycles(blocks * held, held + 2 * block * keys * itemsize, target))
    moved = 2 * rows * (sizes.depth + sizes.out_depth) * itemsize
    copies = Cost(load=load_cycles(moved, target), store=store_cycles(moved, target))
    return (products | rereading) + softmax + copies


def _panels(tile: Tile, keys: int, sizes: Sizes, target: Target) -> Cost:
    """The cost of preparing a head's keys and values: they are packed into transposed panels (by squares in registers
    or element by element), keys are copied too, and the sums dk and dv are cleared and written."""
    lanes, costs = target.lanes(sizes.itemsize), target.costs.arithmetic
    size = keys * (sizes.depth + sizes.out_depth)
    vectors = keys * (ceil(sizes.depth / lanes) + ceil(sizes.out_depth / lanes))
    return Cost(
        compute=costs.transposed_vector * vectors if tile.side > 1 else costs.gathered * size,
        load=load_cycles(3.0 * size * sizes.itemsize, target),
        store=store_cycles(3.0 * size * sizes.itemsize, target),
    )


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    s.implement(ROUTINE.name, **dict(candidate.knobs))


def build(func: PrimFunc, knobs: Mapping[str, int]) -> PrimFunc:
    """`func`, which computes attention's gradient, with the loops of `gradient_loops.py`, tiled by `knobs`, as its
    body."""
    result = operands(analyse(func))
    if result is None:
        raise refuse(func, "the routine 'attention_gradient' computes attention's gradient, and nothing beside")
    tile = Tile(**knobs, keys=knobs["width"])
    return replace(func, body=gradient_loops(func.name, *result, func.params, tile).body, buffers=())


ROUTINE = register(Routine("attention_gradient", SIZES, build))
PLAN = Plan("attention_gradient", fits, candidates, apply, refines=("rows",))
