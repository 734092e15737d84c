"""Schedules made by rules: right on awkward sizes, replayable, quick to choose, switched by a flag."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import plans
from tilewright.ir.loops import PrimFunc
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.plans.framework.space import Setting
from tilewright.plans.sketch import plan as sketch
from tilewright.plans.sketch.access import accesses
from tilewright.plans.sketch.tiling import tiling_of, tilings
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.trace import parse_trace
from tilewright.targets.target import Target

Shapes = Sequence[tuple[int, ...]]

CASES: list[tuple[str, Shapes, Callable[..., Any]]] = [
    ("C[i, j] +! A[i, k] * B[j, k]", [(13, 37), (29, 37)], lambda a, b: a @ b.T),
    ("C[i, r] +! X[i, j, k] * A[j, r] * B[k, r]", [(7, 5, 9), (5, 19), (9, 19)],
     lambda x, a, b: np.einsum("ijk,jr,kr->ir", x, a, b)),
    ("C[h, q, k] +! Q[q, h, d] * K[k, h, d]", [(11, 3, 10), (21, 3, 10)], lambda q, k: np.einsum("qhd,khd->hqk", q, k)),
    ("C[i, j] max! A[i, k] + B[k, j]", [(9, 14), (14, 33)], lambda a, b: (a[:, :, None] + b).max(1)),
    ("C[i, j] = exp(-sum(abs(A[i, k] - B[j, k]))) + A[i, 0]", [(10, 35), (17, 35)],
     lambda a, b: np.exp(-np.abs(a[:, None] - b).sum(-1)) + a[:, :1]),
    ("Y[h, w] +! X[h + r, w + s] * K[r, s]", [(12, 41), (3, 5)],
     lambda x, k: (np.lib.stride_tricks.sliding_window_view(x, (3, 5)) * k).sum((-1, -2))),
    ("Y[b, i] +! A[b, i, j] * X[b, j]", [(3, 11, 70), (3, 70)], lambda a, x: np.einsum("bij,bj->bi", a, x)),
    ("C[i, j] max! A[i, k] + B[j // 32, k, j % 32] where j in 0:64", [(13, 24), (2, 24, 32)],
     lambda a, b: (a[:, :, None] + b.transpose(1, 0, 2).reshape(24, 64)).max(1)),
    ("C[t, e] +! S[t, s] * V[e, s] where s <= t", [(19, 19), (18, 19)], lambda s, v: np.tril(s) @ v.T),
]  # fmt: skip


def arrays(shapes: Shapes, kind: Any = np.float32) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(kind) for s in shapes]


def function(text: str, shapes: Shapes) -> PrimFunc:
    """The unscheduled function of the only kernel."""
    with deciding() as record:
        tw.comprehension(text).compiled(*arrays(shapes))
    (created,) = (d for d in record.decisions if d.key.kind == "plan")
    assert isinstance(created.key.program, PrimFunc)
    return created.key.program


@pytest.mark.daily(2)
@pytest.mark.costly(2)
@pytest.mark.parametrize(("text", "shapes", "expected"), CASES, ids=[c[0] for c in CASES])
def test_every_kind_of_sketch_is_right(text: str, shapes: Shapes, expected: Callable[..., Any]) -> None:
    """One sketch of each kind (which iterators, what is transposed) against NumPy in double precision."""
    inputs = arrays(shapes)
    with deciding() as record:
        tw.comprehension(text).compiled(*inputs)
    created = next(d for d in record.decisions if d.selected.kind == "sketch")
    kinds: dict[object, Setting] = {}
    for setting in created.space:
        if setting.kind == "sketch":
            t = tiling_of(setting.knobs)
            kinds.setdefault((t.lane, tuple(k for k, _ in t.rows), t.packed, t.swap), setting)
    want = expected(*(a.astype(np.float64) for a in inputs))
    for setting in list(kinds.values())[:6]:
        with forcing({created.key.name: setting.label}):
            got = tw.comprehension(text)(*inputs)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=setting.label)


@pytest.mark.parametrize("kind", [np.float64, np.int32, np.float16])
def test_other_element_types(kind: Any) -> None:
    a, b = (np.arange(n).reshape(s).astype(kind) % 7 for n, s in ((13 * 9, (13, 9)), (21 * 9, (21, 9))))
    got = tw.comprehension("C[i, j] +! A[i, k] * B[j, k]")(a, b)
    assert got.dtype == kind
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ b.T.astype(np.float64)).astype(kind))


def test_infinity_and_nan_stay_where_they_are() -> None:
    a, b = arrays([(13, 40), (29, 40)])
    a[3, 5], a[7, 0], b[28, 39] = np.nan, np.inf, -np.inf
    got = tw.comprehension("C[i, j] max! A[i, k] + B[j, k]")(a, b)
    np.testing.assert_array_equal(got, (a[:, None] + b).max(-1))


def test_symbolic_sizes() -> None:
    f = tw.comprehension("C[i, j] +! A[i, k] * B[j, k]", dynamic=True)
    for m, n, k in ((1, 1, 1), (5, 40, 3), (33, 17, 65)):
        a, b = arrays([(m, k), (n, k)])
        np.testing.assert_allclose(f(a, b), a.astype(np.float64) @ b.T, rtol=2e-5, atol=2e-5)


def test_a_sketch_is_a_trace_that_prints_and_replays() -> None:
    # any machine: each trace is compared with itself
    target = Target.host()
    func = function(*CASES[0][:2])
    structure = analyse(func)
    for candidate in sketch.candidates(structure, target)[::5]:
        s = Schedule(func)
        sketch.apply(s, structure, candidate, target)
        assert str(parse_trace(str(s.trace)).replay(func).func) == str(s.func)


def test_it_is_chosen_within_a_second() -> None:
    func = function(*next(c for c in CASES if "max!" in c[0])[:2])
    begun = time.process_time()
    planned = plans.plan(func, Target.parse("x86-64-v3"))
    assert time.process_time() - begun < 1.0
    assert planned.plan == "sketch"


def test_where_sketches_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of matrices has a plan: sketches stand beside or instead of it only where they are asked for."""
    func, target = function("C[i, j] +! A[i, k] * B[k, j]", [(12, 20), (20, 40)]), Target.parse("x86-64-v3")

    def offered(asked: str) -> set[str]:
        monkeypatch.setenv("TILEWRIGHT_SKETCHES", asked)
        return {c.plan for c in plans.candidates(analyse(func), target)}

    assert offered("unplanned") == {"contraction", "rows"}
    assert offered("always") == {"contraction", "rows", "sketch"}
    assert offered("alone") == {"sketch"}
    other = function(*CASES[0][:2])
    monkeypatch.setenv("TILEWRIGHT_SKETCHES", "never")
    assert {c.plan for c in plans.candidates(analyse(other), target)} == {"rows"}


def test_what_shares_nothing_is_left_to_rows() -> None:
    func = function("Y[i] +! A[i, k]", [(12, 40)])
    assert not sketch.fits(analyse(func), Target.host())


def test_vectors_end_where_blocks_of_a_panel_do() -> None:
    """Panels of 32 lanes are read as they lie, by vectors that do not reach into the next one."""
    func = function("C[i, j] +! A[i, k] * B[j // 32, k, j % 32] where j in 0:96", [(20, 24), (3, 24, 32)])
    anchor = sketch.reduction(analyse(func))
    assert anchor is not None
    loads, column = accesses(anchor), anchor.spatial[-1].var
    panel = next(a for a in loads if a.blocks)
    assert panel.stride(column) == 1 and panel.blocks == {column: 32}
    assert panel.touched({column: 32}, 64) == 32 * 4
    result = [t for t in tilings(anchor, loads, 16, Target.parse("znver4")) if anchor.block.iters[t.lane].var is column]
    assert result and {t.vectors for t in result} == {1, 2}


def test_functions_without_a_tile_keep_their_plans_where_sketches_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a 3 x 3 result fills half a vector."""
    text, shapes = "C[m, n] +! A[m, k] * B[n, k]", [(3, 4), (3, 4)]
    func, target = function(text, shapes), Target.parse("x86-64-v4")
    usual = [c.label for c in plans.candidates(analyse(func), target)]
    monkeypatch.setenv("TILEWRIGHT_SKETCHES", "alone")
    assert usual and [c.label for c in plans.candidates(analyse(func), target)] == usual


def test_what_lies_separate_along_the_lanes_is_no_tile_of_columns() -> None:
    """Weights of each pixel are gathered: a column of them at a time, and more cycles than a load of each vector."""
    text = "Y[o, h, w] +! X[c, h + r, w + s] * W[{}, c, r, s]"
    target = Target.parse("x86-64-v4")
    result = {}
    for order, sizes in (("h, w, o", (20, 24, 12)), ("o, h, w", (12, 20, 24))):
        # With the taps after, the lanes of weights are separated; two of them in front of the pixel, they do not.
        separate = order == "h, w, o"
        index = text.format(order) if separate else "Y[o, h, w] +! X[c, h + r, w + s] * W[c, r, s, o, h, w]"
        shape = (*sizes, 8, 3, 3) if separate else (8, 3, 3, *sizes)
        choices = plans.candidates(analyse(function(index, [(8, 22, 26), shape])), target)
        result[separate] = [c for c in choices if c.plan == "depthwise"]
    assert [c.knobs for c in result[True]] == [(("columns", 1),)] and len(result[False]) == 8
    assert result[True][0].cycles > 2 * max(c.cycles for c in result[False])


def test_columns_that_share_weights_are_a_tile_whatever_lies_separate() -> None:
    """Four channels of a group read the same inputs, which a vector of channels gathers; weights serve all columns."""
    text = "Y[h, w, o] +! X[h + r, w + s, o // 4 * 4 + c] * W[c, r, s, o]"
    structure = analyse(function(text, [(22, 26, 64), (4, 3, 3, 64)]))
    choices = [c for c in plans.candidates(structure, Target.parse("x86-64-v4")) if c.plan == "depthwise"]
    assert {c.knob("columns") for c in choices} == {*range(1, 9)}
