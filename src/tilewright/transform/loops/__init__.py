"""Lower a scheduled function to flat loops for the code generators: every pass by name, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.codegen.cuda.private import has_threads
from tilewright.ir.loops import PrimFunc
from tilewright.ir.verify import verify_func
from tilewright.support.log import PassLog
from tilewright.targets.target import Target
from tilewright.transform.driver import LOOPS_SHOWN, VERIFY_PASSES, Stage, run_passes
from tilewright.transform.loops.blocks import lower_blocks
from tilewright.transform.loops.capacity import check_capacities
from tilewright.transform.loops.compact import compact_buffers
from tilewright.transform.loops.conditions import bound_loops, move_conditions
from tilewright.transform.loops.dead import drop_dead_stores
from tilewright.transform.loops.defer import defer_epilogues
from tilewright.transform.loops.double import double_buffers
from tilewright.transform.loops.even import even_tails
from tilewright.transform.loops.fit import fit_buffers
from tilewright.transform.loops.forward import forward_copies
from tilewright.transform.loops.merge import merge_loops
from tilewright.transform.loops.narrow import narrow_tails
from tilewright.transform.loops.overlap import overlap_tails
from tilewright.transform.loops.partition import partition_loops
from tilewright.transform.loops.pipeline import pipeline_loops
from tilewright.transform.loops.portions import even_blocks
from tilewright.transform.loops.prefetch_share import WeightPrefetch, prefetch_upcoming
from tilewright.transform.loops.promote import promote_partials
from tilewright.transform.loops.remainder import rows_by_number
from tilewright.transform.loops.reuse import reuse_outputs
from tilewright.transform.loops.shorter import shorter_sums
from tilewright.transform.loops.simplify import simplify_loops
from tilewright.transform.loops.threads import one_thread
from tilewright.transform.loops.unread import leave_out_unread
from tilewright.transform.loops.unswitch import unswitch_loops
from tilewright.transform.loops.verify import Known, verify_flat, verify_loops
from tilewright.transform.loops.whole import whole_vectors
from tilewright.transform.loops.whole_tiles import whole_tiles
from tilewright.transform.loops.workspace import plan_workspace
from tilewright.transform.math.expand import expand_math

Pass = Callable[[PrimFunc], PrimFunc]

LOOPS: Stage[PrimFunc] = Stage(verify_func, verify_loops, verify_flat, VERIFY_PASSES, LOOPS_SHOWN, None)
"""The checks on the loops of one kernel: as scheduled, between passes, and as code generation takes them."""


def passes(target: Target, prefetch: WeightPrefetch | None = None) -> tuple[tuple[str, Pass], ...]:
    """The passes of `lower_loops`, with their names. `prefetch` describes the weights to prefetch for a later
    kernel."""
    always: tuple[tuple[str, Pass], ...] = (
        ("reuse outputs", _of_cpus(lambda func: reuse_outputs(func, target.l1))),
        ("lower blocks", lower_blocks),
        ("simplify", simplify_loops),
        ("compact buffers", lambda func: compact_buffers(func, target.caches)),
        ("double buffers", lambda func: check_capacities(double_buffers(func))),
        ("move conditions", move_conditions),
        ("even blocks", _of_cpus(even_blocks)),
        ("leave out unread", _of_cpus(leave_out_unread)),
        ("fit buffers", _of_cpus(lambda func: fit_buffers(func, target.caches))),
        ("forward copies", _of_cpus(forward_copies)),
        ("even tails", _of_cpus(even_tails)),
        ("overlap tails", _of_cpus(overlap_tails)),
        ("rows by number", _of_cpus(rows_by_number)),
        ("partition loops", lambda func: partition_loops(func, literal=target.isa.compact or has_threads(func.body))),
        ("defer epilogues", _of_cpus(defer_epilogues)),
        ("simplify again", simplify_loops),
        ("merge loops", _of_cpus(merge_loops)),
        ("promote partials", _of_cpus(promote_partials)),
        ("pipeline loops", _of_cpus(lambda func: pipeline_loops(func, target.caches))),
        ("bound loops", bound_loops),
        ("drop dead stores", drop_dead_stores),
        ("shorter sums", _of_cpus(lambda func: shorter_sums(func, target))),
        ("narrow tails", _of_cpus(lambda func: narrow_tails(func, target))),
        ("whole vectors", _of_cpus(whole_vectors)),
        ("whole tiles", _of_cpus(whole_tiles)),
        ("unswitch loops", _of_cpus(unswitch_loops)),
        *(() if target.isa.compact else (("expand math", lambda func: expand_math(func, target)),)),
        ("plan workspace", plan_workspace),
        ("one thread", one_thread),
        ("insert barriers", _insert_barriers),
    )
    return (
        always
        if prefetch is None
        else (*always, ("prefetch weights", lambda func: prefetch_upcoming(func, prefetch, target.caches.line)))
    )


def _insert_barriers(func: PrimFunc) -> PrimFunc:
    """The function with barriers between its threads; most functions have no threads."""
    if not has_threads(func.body):
        return func
    from tilewright.transform.loops.barriers import insert_barriers  # of rooms that few compiles need

    return insert_barriers(func)


def _of_cpus(run: Pass) -> Pass:
    """A pass that skips functions with GPU threads: its transformation of iterations is wrong for threads that share
    memory."""
    return lambda func: func if has_threads(func.body) else run(func)


def lower_loops(
    func: PrimFunc, target: Target, log: PassLog | None = None, prefetch: WeightPrefetch | None = None
) -> PrimFunc:
    """Flat loops: no blocks, every buffer placed, main parts free of conditions, ready for code generation."""
    return run_passes(func, passes(target, prefetch), _remembering(), log, func.name)


def readable_loops(func: PrimFunc, target: Target, prefetch: WeightPrefetch | None = None) -> PrimFunc:
    """The loops for human readers and for C: `exp` stays `exp`, without its expansion to a polynomial."""
    readable = [(name, run) for name, run in passes(target, prefetch) if name != "expand math"]
    return run_passes(func, readable, _remembering(), what=func.name)


def _remembering() -> Stage[PrimFunc]:
    """The checks that follow each pass on one kernel. A statement that was checked before and that no pass has changed
    since is skipped."""
    known = Known()
    return replace(LOOPS, each=lambda func: verify_loops(func, known), end=lambda func: verify_flat(func, known))


__all__ = ["LOOPS", "lower_loops", "passes", "readable_loops"]
