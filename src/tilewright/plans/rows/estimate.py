"""The cycles that chains of stages over rows take in addition to a roofline: contractions without tiles, windows, and
folding of lanes."""

from __future__ import annotations

from math import ceil, prod

from tilewright.arith import simplify
from tilewright.ir.expr import Expr, Load, Op
from tilewright.ir.loops import BlockIter, Store
from tilewright.ir.rewrite import variables, walk
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.common import lanes_of
from tilewright.plans.framework.cost import Cost, fetch_cycles, load_cycles, number, store_cycles, weight, write_cycles
from tilewright.plans.framework.tiles import row_limit
from tilewright.plans.idioms.reducing import lane_stride, steps
from tilewright.plans.idioms.tile_axes import flat
from tilewright.plans.rows.groups import LONG_ROW, TOGETHER
from tilewright.plans.rows.stages import Rows, loads_of, slides, vector_last
from tilewright.targets.target import Target

STEPS = 4
"""The number of rows that are added to a strip at once."""


def products(structure: Structure, rows: Rows, target: Target) -> Cost:
    """The cost of contractions in addition to a roofline. They have no register tile, so that each multiply-add loads
    both factors, and sums are loaded and stored every few steps. Vectors run along the output's last dimension or, if
    all dimensions are rows, along the reduction; a single sum waits for each addition."""
    total = Cost()
    for stage in structure.anchors:
        size = stage.writes[0].dtype.itemsize
        lanes = target.lanes(max(4, size))
        lane = lane_of(stage, rows, lanes)
        along = _count(lane.extent) if lane is not None else 1.0
        vectors = ceil(along / lanes)
        times = prod(_count(it.extent) for it in stage.block.iters) / max(1, along)
        vector = times * vectors * lanes * size
        crowds = sum(crowded(load, stage, target) for load in loads_of(stage)) * times * vectors
        distance = 0
        if lane is not None:
            distance += sum(scattered(load, stage, lane) for load in loads_of(stage))
        for before in structure.before(stage):
            walked = lane_of(before, rows, lanes) if before.reduce else next(reversed(before.spatial), None)
            if walked is not None:
                distance += sum(scattered(load, before, walked) for load in loads_of(before))
        gathered = distance * times * vectors * lanes * target.costs.arithmetic.gathered
        rereading = sum(read_anew(load, stage, target) for load in loads_of(stage))
        if lane in stage.spatial and not rows.strip:  # a line of sums comes back after the lines that are added
            seen = (1 + STEPS) * size * prod(_count(it.extent) for it in stage.spatial[rows.leading :])
            rereading += fetch_cycles(vector / STEPS, seen, target) + write_cycles(vector / STEPS, seen, target)
        total |= Cost(memory=rereading, overhead=crowds * target.costs.traffic.collision + gathered)
        parts = 1 if lane is None or lane in stage.spatial else 0
        waiting = times * max(vectors / target.fma_per_cycle, parts * target.costs.arithmetic.fma_latency)
        retained = vector / STEPS
        total |= Cost(waiting, load_cycles(2 * vector + retained, target), store_cycles(retained, target))
    return total


def _count(extent: Expr) -> int:
    """An extent as a number, in which each factor of a product counts by itself: a symbol as `SYMBOL`, so that height x
    width counts as two symbols."""
    if type(extent) is Op and extent.name == "mul":
        return prod(_count(part) for part in extent.args)
    return number(extent)


def lane_of(stage: Stage, rows: Rows, lanes: int) -> BlockIter | None:
    """The iterator along which a contraction is vectorised: the last one of the output or else, if it has at least
    `lanes / 2` iterations, that of the reduction; None if elements are computed one by one."""
    inside = rows.strip or rows.leading < len(stage.spatial)
    if inside and vector_last(stage):
        return stage.spatial[-1]
    inner = stage.reduce[-1] if stage.reduce else None
    return inner if inner is not None and number(inner.extent) >= lanes // 2 else None


def read_anew(load: Load, stage: Stage, target: Target) -> float:
    """The cycles of loading an operand's data again from beyond the first level: for each further step of an iterator
    that `load` does not use, if it is outside of loops that read more than that level holds (such as all maps for each
    filter)."""
    used = {v for index in load.indices for v in variables(index)}
    inside = load.buffer.dtype.itemsize * prod(_count(it.extent) for it in stage.reduce if it.var in used)
    outside, total = prod(_count(it.extent) for it in stage.spatial), 0.0
    for it in reversed(stage.spatial):
        count = _count(it.extent)
        outside //= count
        if it.var in used:
            inside *= count
        else:
            total += outside * (count - 1) * fetch_cycles(inside, inside, target)
    return total


def crowded(load: Load, stage: Stage, target: Target) -> bool:
    """Whether the rows of `load`, one for each step of the reduction, fall into so few sets of the first-level cache
    that they evict one another."""
    if not stage.reduce:
        return False
    pitch = steps(flat(load.indices, load.buffer.shape, 0), stage.reduce[-1].var)
    separate = abs(pitch or 0) * load.buffer.dtype.itemsize
    return separate > target.caches.line and number(stage.reduce[-1].extent) > row_limit(separate, target)


def scattered(load: Load, stage: Stage, lane: BlockIter) -> bool:
    """Whether a vector along iterator `lane` would gather: `load` is neither contiguous nor constant there."""
    if number(lane.extent) == 1:
        return False
    place = simplify(flat(load.indices, load.buffer.shape, 0), {it.var: it.extent for it in stage.block.iters})
    return steps(place, lane.var) not in (0, 1)


def windows(structure: Structure, target: Target) -> Cost:
    """The cycles that pooling takes in addition to a roofline. Along a line each tap loads a vector, or two for stride
    2, and a maximum is several operations; if neither the line nor the window is contiguous, elements are loaded one by
    one, except where LLVM vectorises."""
    total = Cost()
    for stage in structure.stages:
        if stage.role != "reduction" or len(stage.spatial) < 3 or stage in structure.anchors:
            continue
        size = max(4, stage.writes[0].dtype.itemsize)
        lanes = target.lanes(size)
        points = prod(number(it.extent) for it in stage.block.iters)
        if vector_last(stage):
            line = number(stage.spatial[-1].extent)
            vectors = points / line * ceil(line / lanes)
            loaded = vectors * (lane_stride(stage, stage.spatial[-1].var) or 1) * lanes * size
            work = vectors * (target.costs.arithmetic.extremum if is_extremum(stage) else 1.0) - points / lanes
            total |= Cost(max(0.0, work) / target.fma_per_cycle, load_cycles(loaded, target))
        elif slides(stage):
            total |= Cost(compute=points * _window_element(structure, stage, lanes, target))
    return total


def _window_element(structure: Structure, stage: Stage, lanes: int, target: Target) -> float:
    """The cycles per element of a pooling window without vectors of `lanes` elements along lines: elements are computed
    one by one, or vectors run along the window."""
    costs, length = target.costs.arithmetic, number(stage.reduce[-1].extent)
    if length >= lanes // 2:
        return (ceil(length / lanes) + costs.folded_window) / length
    is_long = number(stage.spatial[-1].extent) > lanes and not structure.before(stage)
    return costs.window_element_long if is_long else costs.window_element


def is_extremum(stage: Stage) -> bool:
    """Whether a stage reduces to a largest or smallest element."""
    values = [s.value for s in walk(stage.block.body) if isinstance(s, Store)]
    return all(isinstance(value, Op) and value.name in ("max", "min") for value in values)


def unfilled(structure: Structure, rows: Rows, strip: int, target: Target) -> Cost:
    """The cost of vectors that short rows do not fill, in addition to a roofline, which counts full ones: a partial
    vector takes as long as a full one, less than half of one is computed by elements. There is no such cost with at
    most one reduction, where LLVM vectorises across rows, or where rows are divided into strips (`strip`)."""
    total = 0.0
    if strip or not rows.leading or sum(stage.role != "spatial" for stage in structure.stages) < 2:
        return Cost()
    for stage in structure.stages:
        if stage in structure.anchors or slides(stage) or (stage.role != "spatial" and vector_last(stage)):
            continue
        inside = stage.reduce or stage.spatial[rows.leading :][-1:]
        length, lanes = prod(number(it.extent) for it in inside), lanes_of(stage, target)
        vectors = ceil(length / lanes) if length >= lanes // 2 else length
        times = prod(number(it.extent) for it in stage.block.iters) / length
        work = sum(weight(s.value, target) for s in walk(stage.block.body) if isinstance(s, Store))
        total += times * (vectors - length / lanes) * work
    return Cost(compute=total / target.fma_per_cycle)


def folds(structure: Structure, rows: Rows, strip: int, together: int, target: Target) -> Cost:
    """The cost, beyond a roofline, of reducing the lanes of each vector of partial sums to one number (folding), for
    short rows, which are not divided into strips (`strip` is 0). `together` rows fold at once, in the time of one. If
    each row has one fold and rows are processed one by one, out-of-order execution overlaps `TOGETHER[0]` rows."""
    total = Cost()
    if strip or not rows.leading:
        return total
    folded = [s for s in structure.stages if s.role == "reduction" and not vector_last(s) and s.reduce]
    at_once = TOGETHER[0] if together == len(folded) == 1 and not slides(folded[0]) else together
    for stage in folded:
        length = prod(number(it.extent) for it in stage.reduce)
        lanes = lanes_of(stage, target)
        least = lanes + 1 if slides(stage) else lanes // 2  # windows beside one another go on meanwhile
        if least <= length < LONG_ROW * lanes:
            times = prod(number(it.extent) for it in stage.spatial)
            total += Cost(overhead=times / at_once * target.costs.arithmetic.folded_row)
    return total
