"""Attention on a GPU as one kernel, which never holds more than a block's rows of some keys' scores, whether sizes are
numbers or symbols. `attention_loops.py` has the loops.

Products are `mma.sync`; f32 are rounded to TF32, and shares of types of 16 bits to that type.
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
"""Warps of a block, each with 16 rows."""
KEYS = (64, 32, 16)
"""Keys of a step."""
MAX_DEPTH = 256
"""Columns of values up to which a thread has their sums in registers."""
OTHER_REGISTERS = 108
"""Registers of a thread beside sums, scores and shares: ptxas took up to 104 for sm_80."""
STEP_SHARE = 0.25
"""The share of a step of 64 keys that exchanging and scaling take, whatever its keys; estimated, not measured."""


def build(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """The loops in the place of the stages. Raises ScheduleError for what is not attention, or has more to it."""
    result = operands(analyse(func))
    if result is None or not _is_supported(result):
        raise refuse(func, "the routine 'gpu attention' computes attention as its operator states it")
    if sizes["keys"] % DEPTH[result.q.dtype]:
        raise refuse(func, "the keys of a step are whole products", expected=f"a multiple of {DEPTH[result.q.dtype]}")
    body = AttentionTiles(result, func.params, sizes, set(names_of(func))).nest()
    return replace(func, body=body, buffers=())


ROUTINE = register(Routine("gpu attention", ("warps", "keys"), build))


def _depths(o: Operands) -> tuple[int | None, int | None]:
    """The depths of both products."""
    depth, out = (
        as_int(b.shape[ORDERS[x][3]]) for b, x in zip((o.q, o.v), (o.attrs.order[0], o.attrs.order[2]), strict=True)
    )
    return depth, out


def _is_supported(o: Operands) -> bool:
    """Whether the loops have all that an attention has: neither packed sequences nor a share for rows without keys."""
    depth, out = _depths(o)
    known = depth is not None and out is not None and max(depth, out) <= MAX_DEPTH
    return known and o.q.dtype in MMA_HELD and o.substitute is None and o.starts is None and o.attrs.dot is None


def _fits(structure: Structure, target: Target) -> bool:
    o, gpu = operands(structure), target.gpu
    return o is not None and _is_supported(o) and gpu is not None and any(unit.a is o.q.dtype for unit in gpu.matrix)


def _candidates(structure: Structure, target: Target) -> list[Candidate]:
    """Blocks by the steps of the busiest multiprocessor, and by how many of them it holds at once."""
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
"""Cycles of a step of one warp in which it waits for instructions before; estimated, not measured."""


def _apply(s: Schedule, _structure: Structure, chosen: Candidate, _target: Target) -> None:
    s.implement(ROUTINE.name, **dict(chosen.knobs))


PLAN = Plan("gpu attention", _fits, _candidates, _apply, refines=("gpu nests", "gpu product", "gpu rows"))

__all__ = ["PLAN", "ROUTINE", "build"]
