"""Reductions across lanes of several rows at once: `codegen/llvm/fold.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.codegen.llvm.llvm_run import run
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.codegen.llvm.fold import folded
from tilewright.ir.dtype import DType, f32, f64, i8, i16, i32, u8
from tilewright.ir.expr import Buffer, Var, cast, const, maximum
from tilewright.ir.loops import For, PrimFunc, Store
from tilewright.targets.target import Target


@pytest.mark.parametrize(("lanes", "part"), [(16, 4), (8, 4), (4, 4), (8, 2), (4, 2), (2, 2)])
def test_each_lane_holds_a_row_s_total(lanes: int, part: int) -> None:
    for rows in (n for n in (1, 2, 4, 8, 16) if n <= lanes):
        values = np.random.default_rng(rows).integers(0, 1000, (rows, lanes))
        vectors = {f"row{k}": v for k, v in enumerate(values)}
        counts = {"operations": 0, "shuffles": 0}

        def named(value: np.ndarray, kind: str, vectors=vectors, counts=counts) -> str:  # type: ignore[no-untyped-def]
            counts[kind] += 1
            name = f"{kind}{counts[kind]}"
            vectors[name] = value
            return name

        def shuffle(a: str, b: str, picks: Sequence[int], vectors=vectors, named=named) -> str:  # type: ignore[no-untyped-def]
            return named(np.concatenate([vectors[a], vectors[b]])[list(picks)], "shuffles")

        def combine(a: str, b: str, vectors=vectors, named=named) -> str:  # type: ignore[no-untyped-def]
            return named(vectors[a] + vectors[b], "operations")

        result = folded(list(vectors), lanes, part, combine, shuffle)
        np.testing.assert_array_equal(vectors[result][:rows], values.sum(axis=1))
        assert counts["shuffles"] == 2 * counts["operations"]
        if rows == lanes:
            assert counts["operations"] == lanes - 1


TARGET, ZEN4 = Target.parse("x86-64-v3"), Target.parse("znver4")


@pytest.mark.parametrize(
    ("kind", "rows", "width", "step", "together"),
    [
        (f32, 8, 8, 1, True),
        (f32, 8, 32, 1, True),
        (f32, 4, 16, 1, True),
        (f32, 2, 8, 1, True),
        (f64, 4, 8, 1, True),
        (i32, 8, 16, 1, True),
        (f32, 8, 16, 2, False),  # results in every second place
        (f32, 8, 16, 0, False),  # one result
        (f32, 3, 16, 1, False),
        (f32, 16, 16, 1, False),  # more rows than lanes
        (f32, 8, 12, 1, False),  # a part of a vector
        (i16, 8, 16, 1, False),
    ],
)
def test_rows_are_folded_together(kind: DType, rows: int, width: int, step: int, together: bool) -> None:
    """Where results lie side by side they are stored as one vector; the meaning is that of row after row."""
    r, lane = Var("r"), Var("lane")
    part, top = Buffer("part", kind, (const(rows), const(width))), Buffer("top", kind, (const(2 * rows),))
    body = Store(top, (r * step,), maximum(top[r * step], part[r, lane]))
    func = PrimFunc("f", (part, top), For(r, const(rows), For(lane, const(width), body, "vectorized"), "unrolled"))
    values = np.random.default_rng(0).integers(-99, 99, (rows, width)).astype(kind.numpy)
    want, got = np.full(2 * rows, -50, kind.numpy), np.full(2 * rows, -50, kind.numpy)
    interpret(func, [values, want])
    run(func, values, got, target=TARGET)
    np.testing.assert_array_equal(got, want)
    stores = [line for line in emit_llvm(func, TARGET).splitlines() if line.strip().startswith("store ")]
    assert len(stores) == (1 if together else rows)


@pytest.mark.parametrize("kinds", [(u8, i8), (i8, u8), (i8, i8), (u8, u8)], ids=str)
@pytest.mark.parametrize("width", [4, 8, 12, 16, 32])
def test_products_of_bytes_are_added_whole(kinds: tuple[DType, DType], width: int) -> None:
    """LLVM makes vpdpbusd of u8 times i8, which leaves a sum for each four of them."""
    lane = Var("lane")
    a, b = (Buffer(name, t, (const(width),)) for name, t in zip("ab", kinds, strict=True))
    total, zero = Buffer("total", i32, (const(1),)), const(0)
    added = Store(total, (zero,), total[zero] + cast(a[lane], i32) * cast(b[lane], i32))
    func = PrimFunc("f", (a, b, total), For(lane, const(width), added, "vectorized"))
    rng = np.random.default_rng(width)
    left, right = (rng.integers(np.iinfo(t.numpy).min, np.iinfo(t.numpy).max, width).astype(t.numpy) for t in kinds)
    got = np.array([5], np.int32)
    run(func, left, right, got)
    assert got[0] == 5 + left.astype(np.int64) @ right.astype(np.int64)
    text = assembly(emit_llvm(func, ZEN4), ZEN4)
    assert text.count("vpdpbusd") == 0 or width == 4 or "vpaddd" in text or "vphaddd" in text
