"""Where registers do not suffice: vectors that are put on the stack lie in lines of the cache of their own."""

from __future__ import annotations

import re

import pytest

from tilewright import te
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops

SPILL = re.compile(r"\t(vmov[au]p[sd])\t.*\(%r[sb]p\)")


@pytest.mark.parametrize(("cpu", "rows"), [("znver4", 20), ("haswell", 12)])
def test_vectors_on_the_stack_are_aligned(cpu: str, rows: int) -> None:
    target = Target.parse(cpu)
    lanes, depth = target.lanes(4), 64
    a, b = te.placeholder((rows, depth), name="a"), te.placeholder((depth, 2 * lanes), name="b")
    k = te.reduce_axis(depth, "k")
    out = te.compute((rows, 2 * lanes), lambda i, j: te.sum(a[i, k.var] * b[k.var, j], axis=k), name="out")
    s = Schedule(te.create_prim_func([a, b, out]))
    tile = s.cache_write("out", "local")
    i, j = s.loops(tile)
    s.compute_at("out", s.split(i, factor=rows)[0])
    s.set_scope("out", "local")
    *_, i, j, reduced = s.loops("out")
    s.reorder(reduced, i, j)
    s.decompose_reduction("out", reduced)
    s.unroll(s.loops("out")[-2])
    s.vectorize(s.loops("out")[-1])
    moves = SPILL.findall(assembly(emit_llvm(lower_loops(s.func, target), target), target))
    assert moves and set(moves) == {"vmovaps"}
