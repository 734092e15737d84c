"""Columns of register tiles by shuffles."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.llvm_run import run
from tilewright import te
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.codegen.llvm.transpose import SIZES, column
from tilewright.ir.dtype import DType, f16, f32, u8
from tilewright.ir.loops import PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.schedule.schedule import Schedule
from tilewright.targets.host import host
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


def tile(rows: int, columns: int, pitch: int | None, versions: int, element: DType, target: Target) -> PrimFunc:
    return parse_func(tile_text(rows, columns, pitch, versions, element, target))


def tile_text(rows: int, columns: int, pitch: int | None, versions: int, element: DType, target: Target) -> str:
    """`versions` tiles of `rows` x `columns` transposed one after another; rows of the source `pitch` elements apart,
    a symbol's number of them if None."""
    n = target.lanes(4) if element is f32 else 16 // element.itemsize
    width, where = ("p", f" where p in {n}..4096") if pitch is None else (str(pitch), "")
    copies = "".join(
        f"alloc t{v}: {element}[{n}, {n}] in local {{ for i in 0..{rows} unrolled {{ for k in 0..{n} vectorized {{ "
        f"t{v}[i, k] = a[{v * rows} + i, k] }} }} for k in 0..{columns} unrolled {{ for i in 0..{rows} vectorized {{ "
        f"y[k, {v * rows} + i] = t{v}[i, k] }} }} }} "
        for v in range(versions)
    )
    count = rows * versions
    return f"func @f(a: {element}[{count}, {width}], y: {element}[{columns}, {count}]){where} {{ {copies}}}"


@pytest.mark.parametrize("versions", [1, 2, 3])
@pytest.mark.parametrize("element", [f32, u8, f16])
@pytest.mark.parametrize("cpu", ["znver4", "x86-64-v3"])
def test_whole_tiles_are_moved_by_one_function(cpu: str, element: DType, versions: int) -> None:
    """The function has n log2(n) shuffles however many versions call it; a tile that stands once needs no call."""
    target = Target.parse(cpu)
    n = target.lanes(4) if element is f32 else 16 // element.itemsize
    func = tile(n, n, 100, versions, element, target)
    text = emit_llvm(func, target)
    assert text.count("shufflevector") == n * (n.bit_length() - 1)
    assert text.count("call void @tile.0(") == versions and text.count("define internal") == 1
    calls = [line for line in assembly(text, target).splitlines() if "call" in line and "tile.0" in line]
    assert len(calls) == (versions if versions > 1 else 0)


@pytest.mark.parametrize("pitch", [None, 100])
@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (12, 16), (16, 3), (9, 5), (5, 2)])
@pytest.mark.parametrize("versions", [1, 2])
def test_tiles_with_rows_or_columns_missing_are_moved_by_functions(
    rows: int, columns: int, pitch: int | None, versions: int
) -> None:
    target = Target.parse("znver4")
    func = tile(rows, columns, pitch, versions, f32, target)
    text = emit_llvm(func, target)
    assert text.count("define internal") == 1
    x = np.random.default_rng(0).standard_normal((rows * versions, pitch or 77), np.float32)
    y = np.full((columns, rows * versions), np.nan, np.float32)
    if host().has("avx512f"):
        run(func, x, y, target=target, **({} if pitch else {"p": 77}))
        np.testing.assert_array_equal(y, x[:, :columns].T)


@pytest.mark.parametrize("value", ["t{v}[i, k]", "t{v}[i, k] * 2.0"])
@pytest.mark.parametrize(("rows", "width"), [(16, 13), (13, 13), (8, 2), (3, 3), (16, 1), (16, 16)])
def test_rows_that_are_missing_are_zero(rows: int, width: int, value: str) -> None:
    """The last rows of a tile that is written in lines of 16: it is transposed by shuffles, like a whole one."""
    target = Target.parse("znver4")
    copies = "".join(
        f"alloc t{v}: f32[16, 16] in local {{ for i in 0..{rows} unrolled {{ for k in 0..16 vectorized {{ "
        f"t{v}[i, k] = a[{v * rows} + i, k] }} }} for k in 0..16 unrolled {{ for i in 0..16 vectorized {{ "
        f"y[{v}, k, i] = select(i < {width}, {value.format(v=v)}, 0.0) }} }} }} "
        for v in range(2)
    )
    func = parse_func(f"func @f(a: f32[{2 * rows}, 40], y: f32[2, 16, 16]) {{ {copies} }}")
    text = emit_llvm(func, target)
    assert "insertelement" not in text or width == 1
    assert text.count("call void @tile.0(") == (0 if "*" in value else 2)
    x = np.random.default_rng(0).standard_normal((2 * rows, 40), np.float32)
    y = np.full((2, 16, 16), np.nan, np.float32)
    if host().has("avx512f"):
        run(func, x, y, target=target)
        expected = np.zeros_like(y)
        for v in range(2):
            expected[v, :, :width] = x[v * rows : v * rows + width, :16].T * (2 if "*" in value else 1)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("change", ["+ 1.0", "masked", "other columns"])
def test_what_is_no_whole_tile_is_written_where_it_stands(change: str) -> None:
    """Sums, conditions and columns in another order are no tile that a function moves."""
    target = Target.parse("x86-64-v3")
    text = tile_text(8, 8, 100, 2, f32, target)
    old, new = {
        "+ 1.0": ("= t0[i, k] }", "= t0[i, k] + 1.0 }"),
        "masked": ("t0[i, k] = a[0 + i, k]", "if i < 7 { t0[i, k] = a[0 + i, k] }"),
        "other columns": ("= t0[i, k] }", "= t0[i, 7 - k] }"),
    }[change]
    assert old in text
    changed = emit_llvm(parse_func(text.replace(old, new)), target)
    assert changed.count("call void @tile.0(") == 1 and changed.count("define internal") == 1


def test_fences_change_no_instruction() -> None:
    """LLVM takes less time for tiles with them, and comes to the same shuffles."""
    target = Target.parse("x86-64-v4")
    text = emit_llvm(tile(16, 16, 100, 1, f32, target), target)
    names = dict(
        re.findall(r"(%\.\d+) = call <16 x float> @llvm.arithmetic.fence.v16f32\(<16 x float> (%\.\d+)\)", text)
    )
    assert len(names) == 32
    without = "\n".join(line for line in text.splitlines() if "arithmetic.fence" not in line)
    without = re.sub(r"%\.\d+\b", lambda m: names.get(m.group(), m.group()), without)

    def instructions(of: str) -> Counter[str]:
        words = (line.split()[0] for line in assembly(of, target).splitlines() if line.startswith("\t"))
        return Counter(word for word in words if "shuf" in word or "perm" in word or "unpck" in word)

    assert instructions(text) == instructions(without) and instructions(text).total() == 64
