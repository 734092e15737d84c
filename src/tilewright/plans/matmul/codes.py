"""Products of few rows with weights stored as codes of 4 or 8 bits, which are decoded in registers
(`ops/lowered/codes.py`).

sums = sums of groups of each row                       once
for panel group, row tile:                              parallel
    tile[rows, width] = 0                               registers
    for g in groups:
        part[rows, width] = 0                           registers
        for k in the group:                             two rows of the weights share a byte
            part[r, :] += x[r, k] * code[panel, k, :]
        tile[r, :] += part[r, :] * scale[panel, g, :] - sums[r, g] * offset[panel, g, :]
    out[...] = epilogue(tile)
"""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.notes import Unroll
from tilewright.ir.rewrite import variables
from tilewright.ops.lowered.codes import MATMUL_CODES
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.common import inline_all, lanes_of, parallelize
from tilewright.plans.framework.cost import Cost, number, roofline
from tilewright.plans.framework.variants import Values
from tilewright.plans.idioms.panels import unroll_tile
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

DECODING = 2.5
"""The instructions per vector to decode 4-bit codes: half a widening load, a mask or shift, and a conversion. A book
needs one more, and many more on machines without permutations of sixteen numbers."""
BYTES = 1.5
"""The instructions per vector to decode 8-bit codes: a widening load, and a conversion."""
STEPS = 4
"""The number of steps of a group's sum that are unrolled."""


def stages(structure: Structure) -> tuple[Stage | None, Stage, Stage] | None:
    """The stages of a product with coded weights: (sums of groups of each row, needed if codes have offsets, else None;
    products of groups with codes; the sum of these over all groups). None for other functions."""
    # Names have numbers after them where a function has several versions.
    by_name = {stage.name.rstrip("_0123456789"): stage for stage in structure.stages}
    parts, total = by_name.get("parts"), by_name.get("matmul")
    return None if parts is None or total is None else (by_name.get("sums"), parts, total)


def fits(structure: Structure, target: Target) -> bool:
    """Whether a function is one product with coded weights, with pointwise work after it."""
    if structure.operator(MATMUL_CODES) is None:
        return False
    result = stages(structure)
    if result is None or any(st.block.is_reduction for st in structure.stages if st not in result):
        return False
    after = structure.after(result[2])
    alike = not after or len(after[-1].spatial) == len(result[2].spatial)
    first = result[0] or result[1]
    return alike and len(result[2].spatial) > 1 and not structure.before(first)


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    result = stages(structure)
    assert result is not None
    _, parts, total = result
    lanes, registers = lanes_of(total, target), target.registers
    rows = number(total.spatial[-2].extent)
    columns = as_int(total.spatial[-1].extent) or lanes
    depth = (as_int(parts.reduce[0].extent) or 1) * (as_int(total.reduce[0].extent) or 1)
    memory, choices = roofline(structure, target).memory, []
    decoding = _decoding(parts, depth)
    for tall in (1, 2, 4):
        for vectors in (4, 2, 1):
            if 2 * tall * vectors + vectors + 2 > registers or columns % (vectors * lanes) or tall > max(rows, 1):
                continue
            step = vectors * decoding / target.costs.arithmetic.loads_per_cycle + tall * vectors / target.fma_per_cycle
            waits = 4.0 / min(4.0, tall * vectors)  # a sum waits for the one before it
            tiles = -(-rows // tall) * columns / (vectors * lanes)
            cost = Cost(compute=tiles * depth * max(step, waits), memory=memory)
            choices.append(Candidate((("rows", tall), ("width", vectors * lanes)), cost))
    return sorted(choices, key=lambda c: c.cycles)


def _decoding(parts: Stage, depth: int) -> float:
    """The instructions per vector that decode codes: more if two codes share a byte."""
    codes = [b for b in parts.reads if b.dtype.bits == 8]
    paired = any((as_int(b.shape[1]) or depth) < depth for b in codes)
    return DECODING if paired else BYTES


def apply(s: Schedule, structure: Structure, candidate: Candidate, target: Target) -> None:
    result = stages(structure)
    assert result is not None
    _, parts, total = result
    epilogue = structure.after(total)
    inline_all(s, structure, (*(st for st in structure.stages if st not in (*result, *epilogue)), *epilogue))
    block, part = s.block(total.name), s.block(parts.name)
    out = s.block(epilogue[-1].name) if epilogue else s.cache_write(block, "local")
    *others, column = s.loops(out)[-len(total.spatial) :]
    panel, lane = s.split(column, factors=(None, candidate.knob("width")))
    tile, row = s.split(others[-1], factors=(None, candidate.knob("rows")))
    outer = [*others[:-1], tile]
    s.reorder(panel, *outer, row, lane)
    s.compute_at(block, tile)
    s.set_scope(block, "local")
    *inner, g = s.loops(block)[-3:]
    s.reorder(g, *inner)
    s.compute_at(part, g)
    s.set_scope(part, "local")
    *_, own, _, wide, k = s.loops(part)  # between its rows and columns the group, which is one turn here
    s.reorder(k, own, wide)
    s.annotate(k, Unroll(STEPS))
    wide_rows = 2 if candidate.knob("rows") > 1 else 1  # loops of one turn are left out
    for stage in (s.decompose_reduction(part, k), part, s.decompose_reduction(block, g), block):
        unroll_tile(s, stage, wide_rows)
    unroll_tile(s, out, 2)
    parallelize(s, [panel, *outer])


def cases(structure: Structure, target: Target) -> list[Values]:
    """One row of a symbolic number gets a separate version: it shares a decoded weight with no other row."""
    result = stages(structure)
    symbols = variables(result[2].spatial[-2].extent) if result is not None else frozenset()
    if len(symbols) != 1:
        return []
    (symbol,) = symbols
    return [{symbol: 1}] if (symbol.lo or 0) <= 1 and symbol.multiple == 1 else []


PLAN = Plan("codes", fits, candidates, apply, cases=cases)
"""The plan of products of few rows with weights stored as codes."""
