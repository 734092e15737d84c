"""Outputs in the place of inputs: the same numbers where that is safe, and what is refused where it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.schedule.stages import StageSchedule
from tilewright.support.errors import CompileError, ScheduleError

Prepare = Callable[[StageSchedule, te.Tensor], Any]


def blocks(s: StageSchedule, c: te.Tensor) -> None:
    outer, inner = s[c].split(c.axis[1], 8)
    s[c].vectorize(inner)
    s[c].reorder(outer, c.axis[0])
    s[c].parallel(outer)


@pytest.mark.parametrize("prepare", [lambda s, c: None, blocks], ids=["plain", "blocks"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 21), (8, 16)])
def test_each_element_takes_the_place_of_its_own(prepare: Prepare, shape: tuple[int, int]) -> None:
    n, m = te.var("n"), te.var("m")
    a, b = te.placeholder((n, m), name="A"), te.placeholder((n, m), name="B")
    c = te.compute((n, m), lambda i, j: te.maximum(a[i, j], 0.0) * b[i, j] + a[i, j], name="C")
    s = te.create_schedule(c)
    prepare(s, c)
    f = tw.build(s, [a, b, c], in_place={c: a}, threads=2)
    x, y = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
    wanted = np.maximum(x, 0) * y + x
    f(x, y)
    np.testing.assert_allclose(x, wanted, rtol=1e-6, atol=1e-6)


def test_what_was_read_before_may_be_overwritten() -> None:
    """C = A - mean(A): the mean is done before the first element is written."""
    a, k = te.placeholder((100,), name="A"), te.reduce_axis((0, 100), name="k")
    total = te.compute((1,), lambda _: te.sum(a[k], axis=k), name="total")
    c = te.compute((100,), lambda i: a[i] - total[0] / 100.0, name="C")
    f = tw.build(te.create_schedule(c), [a, c], in_place={c: a})
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    wanted = x - x.mean()
    f(x)
    np.testing.assert_allclose(x, wanted, atol=1e-6)


def refused(make: Callable[[te.Tensor], te.Tensor], prepare: Prepare = lambda s, c: None) -> str:
    a = te.placeholder((16, 16), name="A")
    c = make(a)
    s = te.create_schedule(c)
    prepare(s, c)
    with pytest.raises((ScheduleError, CompileError)) as caught:
        tw.build(s, [a, c], in_place={c: a})
    return str(caught.value)


def test_what_would_read_overwritten_elements_is_refused() -> None:
    mirror = refused(lambda a: te.compute((16, 16), lambda i, j: a[j, i], name="C"))
    assert "block 'C' reads elements of 'A' that may be overwritten" in mirror
    k = te.reduce_axis((0, 16), name="k")
    product = refused(lambda a: te.compute((16, 16), lambda i, j: te.sum(a[i, k] * a[k, j], axis=k), name="C"))
    assert "may be overwritten" in product
    differ = refused(lambda a: te.compute((16, 8), lambda i, j: a[i, j], name="C"))
    assert "they differ: expected f32[16, 8], got f32[16, 16]" in differ
    typed = refused(lambda a: te.compute((16, 16), lambda i, j: te.cast(a[i, j], "int32"), name="C"))
    assert "they differ" in typed


def test_an_element_that_is_computed_twice_is_refused() -> None:
    """B is computed for each tile of C with its halo, and would start from what an earlier tile left."""
    a = te.placeholder((18,), name="A")
    b = te.compute((18,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((16,), lambda i: b[i] + b[i + 1] + b[i + 2], name="C")
    s = te.create_schedule(c)
    outer, _ = s[c].split(c.axis[0], 4)
    s[b].compute_at(s[c], outer)
    with pytest.raises(ScheduleError, match="may be overwritten"):
        tw.build(s, [a, b, c], in_place={b: a})
    ordinary = te.create_schedule([b, c])
    x, y = np.arange(18, dtype=np.float32), np.empty(16, np.float32)
    tw.build(ordinary, [a, b, c], in_place={b: a})(x, y)
    np.testing.assert_array_equal(x, 2 * np.arange(18))
    np.testing.assert_array_equal(y, 6 * (np.arange(16) + 1))


def test_a_later_stage_that_reads_the_input_is_refused() -> None:
    a = te.placeholder((16,), name="A")
    b = te.compute((16,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((16,), lambda i: b[i] + a[15 - i], name="C")
    with pytest.raises(ScheduleError, match="block 'C' reads 'A' after that"):
        tw.build(te.create_schedule([b, c]), [a, b, c], in_place={b: a})
    with pytest.raises(ScheduleError, match="'A' is written already"):
        d = te.compute((16,), lambda i: a[i], name="D")
        other = te.placeholder((16,), name="other")
        e = te.compute((16,), lambda i: other[i], name="E")
        tw.build(te.create_schedule([d, e]), [a, other, d, e], in_place={d: a, e: a})
    with pytest.raises(CompileError, match="has its arguments already"):
        tw.build(te.lower(te.create_schedule(b), [a, b]), in_place={b: a})
