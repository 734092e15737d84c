"""Recurrences as stages: against NumPy, under schedules, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.te.conformance import close, evaluate, random
from tilewright import te
from tilewright.ir.parser import parse_func
from tilewright.schedule.inline import compute_inline
from tilewright.support.errors import Error, ExpressionError, ScheduleError

N = te.var("n")


def running(
    n: Any, m: int, step: Callable[..., Any], start: int = 1, first: Callable[..., Any] | None = None
) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """X, the stage of one step, and the recurrence `step(state, x, t, i)`, which begins with rows of X."""
    x, state = te.placeholder((n, m), name="X"), te.placeholder((n, m), name="state")
    rows = te.compute((start, m), first or (lambda t, i: x[t, i]), name="first")
    after = te.compute((n, m), lambda t, i: step(state, x, t, i), name="next")
    result: te.Tensor = te.scan(rows, after, state, name="S")
    return x, after, result


STEPS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "sum": (lambda s, x, t, i: s[t - 1, i] + x[t, i], lambda x: np.cumsum(x, 0)),
    "maximum": (lambda s, x, t, i: te.maximum(s[t - 1, i], x[t, i]), lambda x: np.maximum.accumulate(x, 0)),
    "product": (lambda s, x, t, i: s[t - 1, i] * x[t, i], lambda x: np.cumprod(x, 0)),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("symbolic", [False, True])
def test_running(name: str, size: int, symbolic: bool) -> None:
    step, meaning = STEPS[name]
    x, _, s = running(N if symbolic else size, 5, step)
    values = random((size, 5))
    close(evaluate(s, [(x, values)], [(size, 5)])[0], meaning(values), 1e-4)


def test_two_rows_back() -> None:
    """Fibonacci: rows of two steps before."""
    state = te.placeholder((20, 1), "int64", name="state")
    first = te.compute((2, 1), lambda t, i: t, name="first")
    after = te.compute((20, 1), lambda t, i: state[t - 1, i] + state[t - 2, i], name="next")
    numbers = [0, 1]
    while len(numbers) < 20:
        numbers.append(numbers[-1] + numbers[-2])
    close(evaluate(te.scan(first, after, state), [])[0].ravel(), np.array(numbers))


def test_neighbours() -> None:
    """Each element reads other columns of the row before: heat that spreads."""
    x, after, s = running(
        6,
        9,
        lambda s, x, t, i: s[t - 1, (i + 8) % 9] * 0.25 + s[t - 1, i] * 0.5 + s[t - 1, (i + 1) % 9] * 0.25,
        first=lambda t, i: te.if_then_else(i == 4, 1.0, 0.0),
    )
    rows = [np.eye(9)[4]]
    for _ in range(5):
        rows.append(0.25 * np.roll(rows[-1], 1) + 0.5 * rows[-1] + 0.25 * np.roll(rows[-1], -1))
    close(evaluate(s, [(x, random((6, 9)))], schedule=lambda t: t[after].vectorize(after.axis[1]))[0], np.array(rows))


def recurrent(n: Any, m: int) -> tuple[Any, ...]:
    """A recurrent layer: a product with the state, then a function, in each step."""
    x, w = te.placeholder((n, m), name="X"), te.placeholder((m, m), name="W")
    state, k = te.placeholder((n, m), name="state"), te.reduce_axis(m, "k")
    first = te.compute((1, m), lambda t, i: te.tanh(x[0, i]), name="first")
    product = te.compute((n, m), lambda t, i: te.sum(state[t - 1, k] * w[k, i], axis=k), name="P")
    after = te.compute((n, m), lambda t, i: te.tanh(product[t, i] + x[t, i]), name="U")
    h = te.scan(first, after, state, name="H")
    return x, w, product, after, h, te.compute((n, m), lambda t, i: h[t, i] * 2.0, name="Y")


def recurred(x: Any, w: Any) -> Any:
    rows = [np.tanh(x[0])]
    for row in x[1:]:
        rows.append(np.tanh(rows[-1] @ w + row))
    return np.array(rows)


def _products_on_vectors(s: Any, p: te.Tensor, u: te.Tensor, h: te.Tensor, y: te.Tensor) -> None:
    s[p].reorder(p.reduce_axis[0], p.axis[1])
    s[p].vectorize(s[p].split(p.axis[1], 4)[1])
    s[u].vectorize(u.axis[1])


def _tiles(s: Any, p: te.Tensor, u: te.Tensor, h: te.Tensor, y: te.Tensor) -> None:
    outer, _ = s[u].split(u.axis[1], 4)
    s[p].compute_at(s[u], outer)
    s[p].set_scope("local")
    s[u].parallel(outer)


SCHEDULES: dict[str, Callable[..., Any]] = {
    "none": lambda s, p, u, h, y: None,
    "vectors": _products_on_vectors,
    "tiles on threads": _tiles,
    "threads": lambda s, p, u, h, y: (s[p].parallel(p.axis[1]), s[u].parallel(u.axis[1])),
    "consumer inlined": lambda s, p, u, h, y: s[y].vectorize(y.axis[1]),
    "unrolled steps": lambda s, p, u, h, y: s[h].unroll(h.axis[0]),
    "layout": lambda s, p, u, h, y: s[p].transform_layout(lambda t, i: (i, t)),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", SCHEDULES)
def test_recurrent_layers(name: str) -> None:
    n, m = 6, 8
    x, w, p, u, h, y = recurrent(n, m)
    a, b = random((n, m)), random((m, m), seed=1) * np.float32(0.3)
    schedule = SCHEDULES[name]
    got = evaluate([y, h], [(x, a), (w, b)], schedule=lambda s: schedule(s, p, u, h, y), threads=2)
    close(got[1], recurred(a, b), 1e-4)
    close(got[0], 2 * recurred(a, b), 1e-4)


def test_a_producer_moves_into_a_step() -> None:
    x = te.placeholder((6, 8), name="X")
    b = te.compute((6, 8), lambda t, i: x[t, i] * 3.0, name="B")
    state = te.placeholder((6, 8), name="state")
    first = te.compute((1, 8), lambda t, i: te.cast(i, "float32"), name="first")
    after = te.compute((6, 8), lambda t, i: state[t - 1, i] + b[t, i], name="next")
    s = te.scan(first, after, state, name="S")
    values = random((6, 8))
    meant = np.arange(8) + np.concatenate([np.zeros((1, 8)), np.cumsum(3 * values[1:], 0)])
    for schedule in (lambda t: t[b].compute_at(t[s], s.axis[0]), lambda t: t[b].compute_inline()):
        close(evaluate(s, [(x, values)], schedule=schedule)[0], meant, 1e-4)


@pytest.mark.parametrize("inlined", [False, True])
def test_a_stage_of_the_step_is_inlined_into_the_next_row(inlined: bool) -> None:
    """The stage reads the state's earlier row, which the update does not write."""
    x = te.placeholder((6, 8), name="X")
    state = te.placeholder((6, 8), name="state")
    first = te.compute((1, 8), lambda t, i: x[t, i], name="first")
    half = te.compute((6, 8), lambda t, i: state[t - 1, 7 - i] * 0.5, name="half")
    after = te.compute((6, 8), lambda t, i: half[t, i] + x[t, i], name="next")
    s = te.scan(first, after, state, name="S")
    values = random((6, 8))
    rows = [values[0]]
    for row in values[1:]:
        rows.append(rows[-1][::-1] * np.float32(0.5) + row)

    def schedule(t: Any) -> None:
        if inlined:
            t[half].compute_inline()
            assert "half" not in str(t.func)

    close(evaluate(s, [(x, values)], schedule=schedule)[0], np.stack(rows), 1e-4)


def test_a_stage_that_another_loop_reads_is_not_inlined_over_its_rows() -> None:
    """After the loop its input is another one."""
    func = parse_func(
        """func @f(s: f32[9, 4], y: f32[4]) {
          buffer h: f32[4]
          for t in 0..8 {
            for i in 0..4 { block H(vi = spatial(4): i) { h[vi] = s[0, vi] * 2.0 } }
            for j in 0..4 { block S(vt = spatial(8): t, vj = spatial(4): j) { s[vt, vj] = h[vj] } }
          }
        }"""
    )
    with pytest.raises(ScheduleError, match="writes its input 's' later"):
        compute_inline(func, "H")


def test_several_states() -> None:
    """A running mean and a running sum of squares, each with the other's rows."""
    n = 7
    x = te.placeholder((n,), name="X")
    a, b = te.placeholder((n,), name="a"), te.placeholder((n,), name="b")
    a_0 = te.compute((1,), lambda t: x[0], name="a_0")
    b_0 = te.compute((1,), lambda t: 0.0 * x[0], name="b_0")
    step = te.compute((n,), lambda t: x[t] - a[t - 1], name="step")
    a_t = te.compute((n,), lambda t: a[t - 1] + step[t] / te.cast(t + 1, "float32"), name="a_t")
    b_t = te.compute((n,), lambda t: b[t - 1] + step[t] * (x[t] - a_t[t]), name="b_t")
    mean, square = te.scan([a_0, b_0], [a_t, b_t], [a, b], name="S")
    values = random((n,))
    got = evaluate([mean, square], [(x, values)])
    close(got[0], np.array([values[: k + 1].mean() for k in range(n)]))
    close(got[1], np.array([values[: k + 1].var() * (k + 1) for k in range(n)]))


def test_a_scan_of_a_scan() -> None:
    x, _, s = running(6, 4, STEPS["sum"][0])
    state = te.placeholder((6, 4), name="again")
    first = te.compute((1, 4), lambda t, i: s[0, i], name="start")
    after = te.compute((6, 4), lambda t, i: te.maximum(state[t - 1, i], s[t, i]), name="then")
    values = random((6, 4))
    got = evaluate(te.scan(first, after, state, name="M"), [(x, values)])
    close(got[0], np.maximum.accumulate(np.cumsum(values, 0), 0))


def _built(update: Callable[..., Any], **changed: Any) -> Callable[[], Any]:
    x, state = te.placeholder((6, 4), name="X"), changed.get("state", te.placeholder((6, 4), name="state"))
    first = changed.get("first", te.compute((1, 4), lambda t, i: x[0, i], name="first"))
    return lambda: te.scan(first, te.compute((6, 4), lambda t, i: update(state, x, t, i), name="next"), state, name="S")


FINE = STEPS["sum"][0]
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "the row itself": (_built(lambda s, x, t, i: s[t, i]), r"state\[t, i\] is no row that an earlier step made"),
    "a later row": (_built(lambda s, x, t, i: s[t + 1, i]), "no row that an earlier step made"),
    "before the first": (_built(lambda s, x, t, i: s[t - 2, i]), "expected an index t - 1 to t - 1"),
    "any row": (_built(lambda s, x, t, i: s[i, i]), "no row that an earlier step made"),
    "a row of its own": (_built(lambda s, x, t, i: s[0, i]), "no row that an earlier step made"),
    "another type": (_built(FINE, first=te.compute((1, 4), lambda t, i: i, name="first")), "of one type"),
    "another shape": (_built(FINE, first=te.compute((1, 5), lambda t, i: 0.0, name="first")), "the shapes of"),
    "no rows": (_built(FINE, first=te.compute((0, 4), lambda t, i: 0.0, name="first")), "one number of rows"),
    "no stage": (_built(FINE, first=te.placeholder((1, 4), name="first")), "init and update are stages"),
    "a number": (_built(FINE, first=3), "not a tensor: got int"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ExpressionError, match=message):
        call()


def test_a_stage_of_another_length() -> None:
    x, state = te.placeholder((6, 4), name="X"), te.placeholder((6, 4), name="state")
    first = te.compute((1, 4), lambda t, i: x[0, i], name="first")
    half = te.compute((5, 4), lambda t, i: state[t - 1, i] * 0.5, name="half")
    after = te.compute((6, 4), lambda t, i: half[t, i] + x[t, i], name="next")
    with pytest.raises(ExpressionError, match="the first dimension of 'half': expected 6, got 5"):
        te.scan(first, after, state)


def test_another_steps_values() -> None:
    x, state = te.placeholder((6, 4), name="X"), te.placeholder((6, 4), name="state")
    first = te.compute((1, 4), lambda t, i: x[0, i], name="first")
    half = te.compute((6, 4), lambda t, i: state[t - 1, i] * 0.5, name="half")
    after = te.compute((6, 4), lambda t, i: half[t - 1, i] + x[t, i], name="next")
    with pytest.raises(ExpressionError, match=r"half\[t - 1, i\] is computed in another step"):
        te.scan(first, after, state)


ORDER: dict[str, Callable[..., Any]] = {
    "parallel": lambda s, u: s[u].parallel(u.axis[0]),
    "vectorize": lambda s, u: s[u].vectorize(u.axis[0]),
    "bind": lambda s, u: s[u].bind(u.axis[0], "threadIdx.x"),
    "split": lambda s, u: s[u].split(u.axis[0], 2),
    "fuse": lambda s, u: s[u].fuse(u.axis[0], u.axis[1]),
    "reorder": lambda s, u: s[u].reorder(u.axis[1], u.axis[0]),
}


@pytest.mark.parametrize("name", ORDER)
def test_steps_stay_in_order(name: str) -> None:
    _, after, s = running(6, 4, FINE)
    schedule = te.create_schedule(s)
    with pytest.raises(ScheduleError, match=r"steps of a recurrence, which are in order|reads other elements"):
        ORDER[name](schedule, after)


def test_what_reads_all_rows_stays_outside() -> None:
    _, _, _, _, h, y = recurrent(6, 8)
    s = te.create_schedule(y)
    with pytest.raises(ScheduleError, match="makes the first rows of 'H' outside of this loop"):
        s[y].reverse_compute_at(s[h], h.axis[0])
    for step in (
        lambda: s[h].compute_inline(),
        lambda: s[h].compute_at(s[y], y.axis[0]),
        lambda: s[h].cache_read("H", "local"),
    ):
        with pytest.raises(Error):
            step()


def test_an_argument_is_no_part_of_a_recurrence() -> None:
    x, _, s = running(6, 4, FINE)
    assert isinstance(s.op, te.ScanOp)
    with pytest.raises(ExpressionError, match="'first' is a part of recurrence 'S'"):
        te.create_prim_func([x, s.op.inits[0], s])
    with pytest.raises(ExpressionError, match="read but not among the arguments: X"):
        te.create_prim_func([s])
