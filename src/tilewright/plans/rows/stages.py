"""The dimensions that the stages of a chain over rows share, and which stages have buffers: see `plan.py`."""

from __future__ import annotations

from tilewright.arith import prove_equal
from tilewright.ir.expr import Load, as_int, is_const, product
from tilewright.ir.loops import Store
from tilewright.ir.rewrite import loads, variables, walk
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.cost import instructions
from tilewright.plans.idioms.reducing import is_window, lane_stride
from tilewright.plans.rows.transposed import is_transposed
from tilewright.support.classes import dataclass

CHEAP_OPS = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """The dimensions that all stages share: the first `leading` ones, and the innermost one if `strip`."""

    leading: int
    strip: bool


def shared_rows(structure: Structure) -> Rows:
    """The dimensions that all materialised stages have in common with the output and access with unchanged indices."""
    outputs = [s for s in structure.stages if structure.is_output(s)]
    retained = [s for s in structure.stages if materialised(structure, s)]
    out = outputs[-1]
    rank = len(out.spatial)
    if not rank or (len(retained) == 1 and out.role == "spatial"):
        return Rows(0, False)
    same = [all(d < len(st.spatial) and st.spatial[d].extent is out.spatial[d].extent for st in retained)
            for d in range(rank)]  # fmt: skip
    between = {s.name for stage in retained if stage is not out for s in (stage, *structure.after(stage))} - {out.name}
    if any(len(st.spatial) != rank for st in retained):
        same = [k and d < min(len(st.spatial) for st in retained) for d, k in enumerate(same)]
        same[-1] = False
    for stage in structure.stages:
        if stage.name in between:
            passed = _passed(structure, stage)
            same = [k and d < len(passed) and passed[d] for d, k in enumerate(same)]
    leading = same.index(False) if False in same else rank
    reductions = [st for st in retained if st.role != "spatial"]
    strip = same[-1] and as_int(out.spatial[-1].extent) != 1 and all(vector_last(st) for st in reductions)
    return Rows(min(leading, rank - 1) if strip else leading, strip)


def _passed(structure: Structure, stage: Stage) -> list[bool]:
    """For each dimension of a stage, whether all readers index it by their own iterator of that position (or by 0 with
    extent 1)."""
    result = [True] * len(stage.spatial)
    written = stage.writes
    for reader in structure.consumers(stage):
        for stmt in walk(reader.block.body):
            if not isinstance(stmt, Store):
                continue
            for load in loads(stmt.value):
                if load.buffer not in written:
                    continue
                for d, index in enumerate(load.indices):
                    it = reader.spatial[d] if d < len(reader.spatial) else None
                    own = it is not None and (index is it.var or (is_const(index, 0) and as_int(it.extent) == 1))
                    result[d] = result[d] and own
    return result


def materialised(structure: Structure, stage: Stage) -> bool:
    """Whether a stage is stored in a buffer instead of being inlined: outputs, reductions and transpositions; costly
    pointwise stages that several stages or reductions read; values per row, derived from a reduction, that all elements
    of the row read."""
    if structure.is_output(stage) or stage.role != "spatial" or is_transposed(structure, stage):
        return True
    readers = structure.consumers(stage)
    if instructions(stage.block) and any(_spreads(stage, reader) for reader in readers):
        return any(p.role != "spatial" for p in structure.before(stage))
    if instructions(stage.block) <= CHEAP_OPS:
        return False
    return len(readers) > 1 or any(r.role != "spatial" and not _once(stage, r) for r in readers)


def _once(stage: Stage, reader: Stage) -> bool:
    """Whether `reader` has as many points as `stage` has elements, so that it reads each once."""
    return prove_equal(product([it.extent for it in reader.block.iters]), product([it.extent for it in stage.spatial]))


def _spreads(stage: Stage, reader: Stage) -> bool:
    """Whether `reader` broadcasts `stage`: it reads an element at many points."""
    pairs = zip(stage.spatial, reader.spatial, strict=False)
    return any(as_int(a.extent) == 1 != as_int(b.extent) for a, b in pairs) or len(stage.spatial) < len(reader.spatial)


def vector_last(stage: Stage) -> bool:
    """Whether the stage's loads are contiguous along its last spatial iterator, or of stride 2 in a window."""
    if not stage.spatial or as_int(stage.spatial[-1].extent) == 1:
        return False
    stride = lane_stride(stage, stage.spatial[-1].var)
    return stride is not None and 1 <= stride <= (2 if is_window(stage) else 1)


def slides(stage: Stage) -> bool:
    """Whether windows overlap or adjoin: an index of a load is a sum of a spatial and a reduced iterator."""
    places, taps = ({it.var for it in its} for its in (stage.spatial, stage.reduce))
    indices = [i for load in loads_of(stage) for i in load.indices]
    return any(not places.isdisjoint(variables(i)) and not taps.isdisjoint(variables(i)) for i in indices)


def loads_of(stage: Stage) -> list[Load]:
    """The loads of a stage, without that of its accumulator."""
    results = [load for s in walk(stage.block.body) if isinstance(s, Store) for load in loads(s.value)]
    return [load for load in results if load.buffer not in stage.writes]
