"""Columns of register tiles by shuffles."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.llvm_run import run
from tilewright import te
from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.codegen.llvm.transpose import SIZES, column
from tilewright.ir.dtype import DType, f16, f32, u8
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops


@pytest.mark.parametrize(("itemsize", "n"), [(itemsize, n) for itemsize, sizes in SIZES.items() for n in sizes])
def test_every_column_by_a_small_number_of_shuffles(itemsize: int, n: int) -> None:
    values = {f"r{i}": np.arange(n) + n * i for i in range(n)}
    created: dict[tuple[object, ...], str] = {}

    def shuffle(a: str, b: str, picks: tuple[int, ...]) -> str:
        name = created.setdefault((a, b, picks), f"s{len(created)}")
        values[name] = np.concatenate([values[a], values[b]])[list(picks)]
        return name

    rows = [f"r{i}" for i in range(n)]
    for j in range(n):
        assert values[column(rows, j, shuffle, itemsize)].tolist() == [j + n * i for i in range(n)]
    assert len(created) == n * (n.bit_length() - 1)


@pytest.mark.parametrize("most", [None, 5])
@pytest.mark.parametrize("cpu", ["znver4", "x86-64-v3"])
def test_what_remains_of_a_symbolic_line_is_transposed_in_registers(cpu: str, most: int | None) -> None:
    target = Target.parse(cpu)
    n, lanes = te.var("n", hi=most), target.lanes(4)
    a = te.placeholder((n, lanes), name="a")
    s = Schedule(te.create_prim_func([a, te.compute((lanes, n), lambda c, p: a[p, c], name="y")]))
    c, p = s.loops("y")
    outer, inner = s.split(p, factor=lanes)
    s.reorder(outer, c, inner)
    tile = s.cache_read("y", "a", "local")
    s.compute_at(tile, outer)
    *_, row, lane = s.loops(tile)
    s.unroll(row)
    s.vectorize(lane)
    s.unroll(c)
    s.vectorize(inner)
    assert "gather" not in emit_llvm(lower_loops(s.func, target), target)
    f = tw.build(s)
    rng = np.random.default_rng(0)
    for pixels in range(1, (most or 2 * lanes + 1) + 1):
        x = rng.standard_normal((pixels, lanes), np.float32)
        y = np.full((lanes, pixels), np.nan, np.float32)
        f(x, y)
        np.testing.assert_array_equal(y, x.T)


@pytest.mark.parametrize("rows", [8, 16])
def test_columns_longer_than_a_vector_are_parts_of_a_larger_tile(rows: int) -> None:
    """16 columns, which AVX2 holds in two vectors a row: lanes that go down one are a part of it, from any row on."""
    target = Target.parse("x86-64-v3")
    a = te.placeholder((16, 16), name="a")
    s = Schedule(te.create_prim_func([a, te.compute((16, 16), lambda c, p: a[p, c] * 2.0, name="y")]))
    c, p = s.loops("y")
    outer, inner = s.split(p, factor=rows)
    s.reorder(outer, c, inner)
    tile = s.cache_read("y", "a", "local")
    s.unroll(s.loops(tile)[0])
    s.vectorize(s.loops(tile)[1])
    for loop in (outer, c):
        s.unroll(loop)
    s.vectorize(inner)
    flat = lower_loops(s.func, target)
    text = emit_llvm(flat, target)
    assert "gather" not in text and "insertelement" not in text
    x = np.random.default_rng(0).standard_normal((16, 16), np.float32)
    y = np.full((16, 16), np.nan, np.float32)
    run(flat, x, y, target=target)
    np.testing.assert_array_equal(y, 2 * x.T)


@pytest.mark.parametrize("element", [f32, u8, f16])
@pytest.mark.parametrize("cpu", ["znver4", "x86-64-v3"])
def test_columns_share_shuffles_in_the_text(cpu: str, element: DType) -> None:
    """n log2(n) of them, and none that LLVM must find to be another again."""
    target = Target.parse(cpu)
    n = target.lanes(4) if element is f32 else 16 // element.itemsize
    a = te.placeholder((n, n), element, name="a")
    s = Schedule(te.create_prim_func([a, te.compute((n, n), lambda c, p: a[p, c], name="y")]))
    c, p = s.loops("y")
    tile = s.cache_read("y", "a", "local")
    s.unroll(s.loops(tile)[0])
    s.vectorize(s.loops(tile)[1])
    s.unroll(c)
    s.vectorize(p)
    text = emit_llvm(lower_loops(s.func, target), target)
    assert text.count("shufflevector") == n * (n.bit_length() - 1)
