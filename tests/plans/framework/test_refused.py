"""The loss of a plan by a refused primitive is reported: in the schedule, beside its description, in the log."""

from __future__ import annotations

import io

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.algorithms.winograd.plan.convolution import share
from tilewright.ir.loops import For, PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.kernels import KernelTexts
from tilewright.plans import plan
from tilewright.schedule import Schedule
from tilewright.support.log import PassLog
from tilewright.targets.target import Target

TARGET = Target.parse("znver4")


def test_blocks_that_threads_cannot_share() -> None:
    a = te.placeholder((8, 512, 512), name="A")
    j, k = te.reduce_axis(512, "j"), te.reduce_axis(512, "k")
    s = Schedule(te.create_prim_func([a, te.compute((8,), lambda i: te.sum(a[i, j, k], [j, k]), name="C")]))
    row, first, second = s.loops("C")
    share(s, first, second, (row,), 512 * 512, TARGET)
    kinds = [loop.kind for loop in map(s.get, s.loops("C")) if isinstance(loop, For)]
    assert kinds == ["parallel", "serial"]
    (refusal,) = s.refused
    assert refusal.startswith("threads share each phase, not blocks of tiles: ")
    assert s.copy().refused == s.refused


def decayed() -> PrimFunc:
    """The sum so far counts half: no reducer, the order matters."""
    return parse_func("""\
func @decayed(A: f32[64, 1000], N: f32[64]) {
  for i in 0..64 {
    for r in 0..1000 {
      block N (vi = spatial(64): i, vr = reduce(1000): r) {
        init { N[vi] = 0.0 }
        N[vi] = N[vi] * 0.5 + A[vi, vr]
      }
    }
  }
}
""")


def test_a_reducer_of_its_own_is_reduced_in_vectors() -> None:
    # any machine: what is asserted of is planned for TARGET
    norm = te.comm_reducer(lambda x, y: te.sqrt(x * x + y * y), lambda t: te.const(0.0, t), "norm")
    a, r = te.placeholder((1, 1000), name="A"), te.reduce_axis(1000, "r")
    func = te.create_prim_func([a, te.compute((1,), lambda i: norm(a[i, r], r), name="N")], "norms")
    planned = plan(func, TARGET)
    assert not planned.remarks and "rfactor" in str(planned.schedule.trace)
    x, result = np.random.default_rng(0).standard_normal((1, 1000)).astype(np.float32), np.zeros(1, np.float32)
    tw.build(plan(func, Target.host()).schedule)(x, result)
    np.testing.assert_allclose(result, np.linalg.norm(x.astype(np.float64), axis=1), rtol=1e-5)


def test_what_depends_on_the_order_is_not_reduced_in_vectors() -> None:
    planned = plan(decayed(), TARGET)
    (refusal,) = planned.remarks
    assert refusal.startswith("N is not reduced in vectors: ") and refusal in planned.describe()


def test_the_log_of_a_kernel_tells() -> None:
    out = io.StringIO()
    log = PassLog(level=1, dumps=(), stream=out)
    KernelTexts(decayed(), TARGET, log=log).llvm()
    (remark,) = log.remarks
    assert remark.startswith("decayed: N is not reduced in vectors: ") and f"remark: {remark}" in out.getvalue()
