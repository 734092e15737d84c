"""Steps that several plans share."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tilewright.arith import bounds
from tilewright.ir.expr import Buffer, Expr, Op, as_int
from tilewright.ir.loops import Block, BlockIter, For, Store
from tilewright.ir.notes import BufferName, PastCaches, Prefetch, Streaming, find
from tilewright.ir.rewrite import loads, own_loads, variables, walk, walk_expr
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.cost import instructions
from tilewright.schedule.recording import BlockRef, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

ENOUGH = 16
"""The least number of iterations of a parallel loop that a few threads share well."""
IDLE = 32
"""In a well-shared loop, at most one in so many iterations may be missing from some threads' shares."""


def inline_all(s: Schedule, structure: Structure, stages: tuple[Stage, ...]) -> None:
    """Inline every spatial stage among `stages`, except outputs, into its readers."""
    for stage in stages:
        if stage.role == "spatial" and not structure.is_output(stage):
            s.compute_inline(s.block(stage.name))


def extent(s: Schedule, loop: LoopRef) -> int | None:
    """A loop's extent if it is a known number, else None."""
    return s.extent(loop)


def whole_extent(s: Schedule, loop: LoopRef) -> Expr:
    """The extent of `loop` as an expression, which may be symbolic."""
    entry = s.get(loop)
    assert isinstance(entry, For)
    return entry.extent


def short_vectors(extent: Expr, lanes: int, vectors: int = 4) -> int:
    """The number of elements to process at once along an extent: `vectors` vectors of `lanes`, or fewer if the extent's
    upper bound needs no more; if it never fills one vector, the bound rounded up to a power of two."""
    most = bounds(extent, {}).hi
    if most is None or most > lanes:
        return lanes * (vectors if most is None else min(vectors, -(-most // lanes)))
    return min(lanes, 1 << max(0, most - 1).bit_length())


def own_loops(s: Schedule, ref: BlockRef) -> list[tuple[BlockIter, LoopRef]]:
    """A block's iterators with the loops that drive them: the innermost loops around it, one for each."""
    block = s.get(ref)
    assert isinstance(block, Block)
    return list(zip(block.iters, s.loops(ref)[-len(block.iters) :], strict=True)) if block.iters else []


def lanes_of(stage: Stage, target: Target) -> int:
    """The lanes of a vector of the widest element type that the stage computes with; loads in indices do not count."""
    widest = max((b.dtype.itemsize for b in stage.writes), default=4)
    for stmt in walk(stage.block.body):
        if isinstance(stmt, Store):
            inside = {x for load in loads(stmt.value) for i in load.indices for x in loads(i)}
            widest = max([widest, *(x.dtype.itemsize for x in loads(stmt.value) if x not in inside)])
    return target.lanes(max(widest, 4))


def buffer_names(buffers: Iterable[Buffer]) -> tuple[BufferName, ...]:
    """The names of buffers, as notes refer to them."""
    return tuple(BufferName(b.name) for b in buffers)


def prefetch_inputs(s: Schedule, ref: BlockRef, width: int, target: Target) -> None:
    """Let the loop around a spatial block's vectors, of `width` elements per iteration, prefetch inputs from beyond the
    second level of cache, if its arithmetic is long: in a short body, out-of-order execution reads far enough ahead."""
    block = s.get(ref)
    assert isinstance(block, Block)
    if instructions(block) < target.costs.prefetching.lookahead_operations:
        return
    each = {load for stmt in walk(block.body) for load in own_loads(stmt)}
    along = {x.buffer for x in each if len(x.indices) == len(block.iters) and x.indices[-1] is block.iters[-1].var}
    from_memory = [b for b in s.func.params if b in along and (as_int(b.size) or 0) * b.dtype.itemsize > target.l2]
    if from_memory:
        # What goes into the second level from a page ahead disturbs the stream that hardware follows.
        lines = max(1, width * from_memory[0].dtype.itemsize // target.caches.line)
        prefetch = target.costs.prefetching.stream_bytes
        s.annotate(s.loops(ref)[-2], Prefetch(buffer_names(from_memory), prefetch, level=1, lines=lines))


def stream_outputs(s: Schedule, block: BlockRef, loop: LoopRef, target: Target, beside: Collection[str] = ()) -> None:
    """Use streaming stores in a vectorised loop if `streams` says so. `beside`: the names of blocks that follow in the
    same iteration and read the written values, which are still in registers (`codegen/llvm/stream.py`)."""
    if streams(s, block, target, beside):
        s.annotate(loop, Streaming())


def streams(s: Schedule, block: BlockRef, target: Target, beside: Collection[str] = ()) -> bool:
    """Whether a block writes an output with streaming stores: one that would fill half of the last cache (with an input
    as large, little of it would remain there for a reader), or any if the function has the note `PastCaches`."""
    others = [b for b in walk(s.func.body) if isinstance(b, Block) and b.name not in beside]
    read = {load.buffer for b in others for stmt in walk(b) for load in own_loads(stmt)}
    for stmt in walk(s.get(block)):
        if isinstance(stmt, Store) and stmt.buffer in s.func.params and stmt.buffer not in read:
            size = as_int(stmt.buffer.size)
            large = size is not None and size * stmt.buffer.dtype.itemsize >= target.l3 // 2
            if large or find(s.func.notes, PastCaches):
                return True
    return False


def vectorize_spatial(s: Schedule, block: BlockRef, target: Target, lanes: int, *, parallel: bool = True) -> None:
    """Schedule a spatial block's own loops: outermost in parallel, if `parallel`, innermost in vectors of `lanes`
    elements with a masked or shorter tail."""
    loops = list(s.loops(block))
    if not loops:
        return
    inner = loops[-1]
    size = extent(s, inner)
    outer = loops[:-1]
    if size is None or size > 8 * lanes:
        chunk, inner = s.split(inner, factor=short_vectors(whole_extent(s, inner), lanes))
        if reads_tables(s, block):
            s.unroll(chunk)  # what a table says of known places is known
        else:
            outer.append(chunk)
    s.vectorize(inner)
    stream_outputs(s, block, inner, target)
    if parallel and outer:
        parallelize(s, outer)
    if len(outer) == len(loops):
        prefetch_inputs(s, block, 4 * lanes, target)


def reads_tables(s: Schedule, ref: BlockRef) -> bool:
    """Whether a block's index expressions look up a constant table at its innermost iterator, as in gathers with fixed
    indices."""
    block = s.get(ref)
    assert isinstance(block, Block)
    last = block.iters[-1].var
    each = {load for stmt in walk(block.body) for load in own_loads(stmt)}
    places = {e for load in each for i in load.indices for e in walk_expr(i) if isinstance(e, Op)}
    return any(e.name == "lookup" and last in variables(e.args[0]) for e in places)


def parallelize(s: Schedule, loops: list[LoopRef]) -> LoopRef | None:
    """Fuse leading loops until there is enough to share evenly among threads, and make the result parallel.

    A symbolic extent may be one, so constant loops after it are fused as well; a symbolic one is never fused into
    what precedes it, for dividing by it would cost more than it gains.
    """
    if not loops:
        return None
    head, rest = loops[0], loops[1:]
    known = extent(s, head) or 1
    while rest and not shares_well(known):
        following = extent(s, rest[0])
        if following is None and extent(s, head) != 1:
            break
        known *= following or 1
        head = s.fuse(head, rest[0])
        rest = rest[1:]
    if extent(s, head) != 1:
        s.parallel(head)
    return head


def shares_well(iterations: int) -> bool:
    """Whether two or four threads get about equal shares of the iterations."""
    missing = max(-iterations % threads for threads in (2, 4))
    return iterations >= ENOUGH and missing <= iterations // IDLE


__all__ = [
    "ENOUGH",
    "buffer_names",
    "extent",
    "inline_all",
    "lanes_of",
    "parallelize",
    "shares_well",
    "stream_outputs",
    "streams",
    "vectorize_spatial",
]
