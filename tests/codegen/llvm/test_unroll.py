"""Loops that LLVM unrolls: the note reaches it, and the sum is the same."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.notes import Unroll
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops


def test_a_loop_is_unrolled_by_llvm() -> None:
    a, b = te.placeholder((64, 8), name="a"), te.placeholder((64, 16), name="b")
    k, c = te.reduce_axis(64, "k"), te.reduce_axis(8, "c")
    out = te.compute((16,), lambda j: te.sum(a[k.var, c.var] * b[k.var, j], axis=[k, c]), name="out")
    sizes = {}
    for note in (0, 8):
        s = Schedule(te.create_prim_func([a, b, out]))
        j, kl, cl = s.loops("out")
        s.reorder(kl, cl, j)
        s.vectorize(j)
        if note:
            s.annotate(cl, Unroll(note))
        target = Target.parse("haswell")
        text = emit_llvm(lower_loops(s.func, target), target)
        assert ('!"llvm.loop.unroll.count", i32 8' in text) == bool(note)
        sizes[note] = assembly(text, target).count("vfmadd")
        f = tw.build(s)
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((64, 8), np.float32), rng.standard_normal((64, 16), np.float32)
        z = np.zeros(16, np.float32)
        f(x, y, z)
        np.testing.assert_allclose(z, np.einsum("kc,kj->j", x.astype(float), y), rtol=1e-4, atol=1e-4)
    assert sizes[8] >= 8 > sizes[0]
