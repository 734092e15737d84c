"""The helpers that plans of contractions over packed weights share: which operand is packed, which iterators are its
rows."""

from __future__ import annotations

from tilewright.ir.expr import Const, Load, Op, as_int
from tilewright.ir.loops import BlockIter
from tilewright.plans.framework.analysis import Stage, Structure, factors, uses
from tilewright.plans.framework.common import inline_all, lanes_of, vectorize_spatial
from tilewright.plans.idioms.conversions import contiguous_output
from tilewright.schedule.recording import BlockRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target


def fits_panels(structure: Structure) -> bool:
    """Whether a function has one contraction whose weights are in panels: the last dimension of an operand is the
    panel's width."""
    if len(structure.anchors) != 1 or panel_width(structure.anchors[0]) is None:
        return False
    (anchor,) = structure.anchors
    epilogue, _ = contiguous_output(structure, anchor)
    if any(st.block.is_reduction for st in structure.stages if st is not anchor):
        return False
    return not epilogue or len(epilogue[-1].spatial) >= len(anchor.spatial)


def panel_width(anchor: Stage) -> int | None:
    """The width of the weights' panels, None if the operand is not packed."""
    weights = packed_operand(anchor)
    return None if weights is None else as_int(weights.buffer.shape[-1])


def packed_operand(anchor: Stage) -> Load | None:
    """The factor that is indexed by the columns' iterator, and by no iterator of rows; None if no operand is packed."""
    loads = factors(anchor.block)
    if loads is None or not anchor.spatial:
        return None
    last = anchor.spatial[-1]
    with_columns = [load for load in loads if last in uses(load, anchor.spatial)]
    if len(with_columns) != 1 or as_int(with_columns[0].buffer.shape[-1]) is None:
        return None
    (weights,) = with_columns
    match weights.indices[-1]:
        case Op("mod", (_, Const())):
            return weights
    # A single panel: the remainder was folded away.
    return weights if last.var is weights.indices[-1] else None


def weight_iters(anchor: Stage) -> tuple[BlockIter, ...]:
    """The spatial iterators of a contraction that index its packed weights."""
    weights = packed_operand(anchor)
    assert weights is not None
    return uses(weights, anchor.spatial)


def row_iter(anchor: Stage) -> BlockIter | None:
    """The innermost iterator that does not index the weights and has more than one iteration: its values share the
    weights."""
    mine = weight_iters(anchor)
    rows = [it for it in anchor.spatial if it not in mine]
    wide = [it for it in rows if as_int(it.extent) != 1]
    return (wide or rows)[-1] if rows else None


def schedule_prologue(
    s: Schedule, structure: Structure, prologue: tuple[Stage, ...], target: Target, *, parallel: bool = True
) -> None:
    """Compute all stages before the main loops once: the last one of `prologue` into its buffer, in vectors and, if
    `parallel`, by threads; the others are inlined into it."""
    if not prologue:
        return
    inline_all(s, structure, prologue[:-1])
    last = prologue[-1]
    vectorize_spatial(s, s.block(last.name), target, lanes_of(last, target), parallel=parallel)


def unroll_tile(s: Schedule, block: BlockRef, count: int) -> None:
    """Vectorise the innermost loop of `block` and unroll the `count` - 1 loops around it."""
    loops = s.loops(block)[-count:] if count else []
    for loop in loops[:-1]:
        s.unroll(loop)
    if loops:
        s.vectorize(loops[-1])
