"""Attention on a GPU as one kernel, for known and symbolic sizes, which holds scores of a block's rows and a few keys
only. `attention_loops.py` has the loops.

Products are `mma.sync`; f32 is rounded to TF32, and probabilities of 16-bit types to that type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from tilewright.ir.expr import as_int
from tilewright.ir.loops import PrimFunc
from tilewright.ir.rewrite import names_of
from tilewright.ops.lowered.attention import ORDERS
from tilewright.plans.attention.operands import Operands, operands
from tilewright.plans.framework.analysis import Structure, analyse
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.cost import Cost, number
from tilewright.plans.gpu.attention_loops import CORE, ROWS, STAGES, AttentionTiles
from tilewright.plans.gpu.products import MULTIPLIED, OVERHEAD, SYMBOL
from tilewright.schedule.mma_intrinsics import DEPTH, MMA_HELD
from tilewright.schedule.routines import Routine, register
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.state import refuse
from tilewright.targets.gpu import Gpu
from tilewright.targets.target import Target

WARPS = (8, 4, 2, 1)
"""The numbers of warps of a block that are tried, each with 16 rows."""
KEYS = (64, 32, 16)
"""The numbers of keys of a step that are tried."""
MAX_DEPTH = 256
"""The largest number of columns of values for which a thread has their sums in registers."""
OTHER_REGISTERS = 108
"""The registers of a thread besides sums, scores and probabilities: ptxas took up to 104 for sm_80."""
STEP_SHARE = 0.25
"""The time for exchanging and scaling in a step, as a share of a step with 64 keys, for any number of keys; estimated,
not measured."""


def build(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """`func`, which computes attention, with the loops of attention on a GPU, by blocks and steps of `sizes`, as its
    body. Raises ScheduleError for functions that are not attention, or compute more."""
    result = operands(analyse(func))
    if result is None or not _is_supported(result):
        raise refuse(func, "the routine 'gpu attention' computes attention as its operator states it")
    if sizes["keys"] % DEPTH[result.q.dtype]:
        raise refuse(func, "the keys of a step are whole products", expected=f"a multiple of {DEPTH[result.q.dtype]}")
    body = AttentionTiles(result, func.params, sizes, set(names_of(func))).nest()
    return replace(func, body=body, buffers=())


ROUTINE = register(Routine("gpu attention", ("warps", "keys"), build))


def _depths(o: Operands) -> tuple[int | None, int | None]:
    """(columns of queries and keys, columns of values); None for a symbolic one."""
    depth, out = (
        as_int(b.shape[ORDERS[x][3]]) for b, x in zip((o.q, o.v), (o.attrs.order[0], o.attrs.order[2]), strict=True)
    )
    return depth, out


def _is_supported(o: Operands) -> bool:
    """Whether the loops support an attention: without packed sequences and without a substitute for rows without
    keys."""
    depth, out = _depths(o)
    known = depth is not None and out is not None and max(depth, out) <= MAX_DEPTH
    return known and o.q.dtype in MMA_HELD and o.substitute is None and o.starts is None and o.attrs.dot is None


def _fits(structure: Structure, target: Target) -> bool:
    o, gpu = operands(structure), target.gpu
    return o is not None and _is_supported(o) and gpu is not None and any(unit.a is o.q.dtype for unit in gpu.matrix)


def _candidates(structure: Structure, target: Target) -> list[Candidate]:
    """The settings, with estimates by the steps of the busiest multiprocessor and by how many blocks it holds at
    once."""
    o, gpu = operands(structure), target.gpu
    assert o is not None and gpu is not None
    results = (_candidate(o, target, gpu, warps, keys) for warps in WARPS for keys in KEYS)
    return sorted((x for x in results if x is not None), key=lambda x: x.cycles)


def _candidate(o: Operands, target: Target, gpu: Gpu, warps: int, each: int) -> Candidate | None:
    depth, out = _depths(o)
    assert depth is not None and out is not None
    size, wide = o.q.dtype.itemsize, ceil(out / CORE) * CORE
    tall = ROWS * warps
    shared = (tall * depth + STAGES * each * (depth + wide)) * size
    registers = wide // 2 + each // 2 + (0 if size == 4 else each // 4) + OTHER_REGISTERS
    resident = gpu.blocks(32 * warps, registers, shared)
    if not resident:
        return None
    batch, rows = (number(o.q.shape[k], SYMBOL) for k in ORDERS[o.attrs.order[0]][:2])
    past = 0 if o.past_k is None else number(o.past_k.shape[2], SYMBOL)
    keys = number(o.k.shape[ORDERS[o.attrs.order[1]][1]], SYMBOL) + past
    blocks = batch * o.attrs.heads * ceil(rows / tall)
    waves = ceil(blocks / target.cores)
    steps = ceil(keys / each) * (0.5 if o.attrs.causal and rows == keys else 1.0)
    products = tall * (each + 64 * STEP_SHARE) * (depth + wide)
    compute = waves * steps * products / (MULTIPLIED * 4 / size)
    moved = waves * steps * each * (depth + wide) * size / target.l2_bandwidth
    # Warps wait for what they exchange, if there are no others beside them.
    together = min(resident, max(1, waves)) * warps
    waiting = waves * steps * WAITED / together
    knobs = (("warps", warps), ("keys", each))
    return Candidate(knobs, Cost(compute=compute, memory=moved, overhead=OVERHEAD / min(resident, waves) + waiting))


WAITED = 800.0
"""The cycles of one warp's step in which it waits for earlier instructions; estimated, not measured."""


def _apply(s: Schedule, _structure: Structure, chosen: Candidate, _target: Target) -> None:
    s.implement(ROUTINE.name, **dict(chosen.knobs))


PLAN = Plan("gpu attention", _fits, _candidates, _apply, refines=("gpu nests", "gpu product", "gpu rows"))

__all__ = ["PLAN", "ROUTINE", "build"]
