"""Lanes that read a few runs of neighbours: one load for each run."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.codegen.llvm.llvm_run import run
from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.codegen.llvm.runs import joined, runs
from tilewright.ir.dtype import f32, i8
from tilewright.ir.expr import Buffer, Expr, Var, const, maximum, minimum, select
from tilewright.ir.loops import For, PrimFunc, Store
from tilewright.targets.target import Target

ZEN4 = Target.parse("znver4")


def test_which_lanes_are_runs() -> None:
    assert runs([0, 100, 1, 101]) == ((0, 100), 2)
    assert runs([100, 101, 100, 101]) == ((100,), 2)
    assert runs([7, 6, 5, 4, 30, 31, 32, 33]) == ((4, 30), 4)
    assert runs([0, 10, 20, 30]) is None  # single elements
    assert runs([0, 1, 2, 10]) is None  # of different lengths
    assert runs([0, 1, 10, 11, 20, 21]) is None  # three of them


@pytest.mark.parametrize("lanes,group", [(8, 2), (16, 4), (16, 8), (4, 2)])
def test_runs_are_joined_in_order(lanes: int, group: int) -> None:
    memory = np.arange(5000)
    steps = [100 * (k % group) + k // group for k in range(lanes)]
    values: dict[str, np.ndarray] = {}

    def keep(vector: np.ndarray) -> str:
        values[name := f"v{len(values)}"] = vector
        return name

    def load(first: int, length: int) -> str:
        return keep(memory[first : first + length])

    def shuffle(width: int):  # type: ignore[no-untyped-def]
        def pick(a: str, b: str, picks: tuple[int, ...]) -> str:
            assert len(values[a]) == len(values[b]) == width
            return keep(np.concatenate([values[a], values[b]])[list(picks)])

        return pick

    result = joined(steps, load, shuffle)
    assert result is not None
    assert values[result].tolist() == steps


@pytest.mark.parametrize("dtype", [f32, i8], ids=str)
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("group", [2, 4])
def test_interleaved_rows(dtype, across: bool, group: int) -> None:  # type: ignore[no-untyped-def]
    """Some columns of a few rows, interleaved or one row's after the other's: vector loads only."""
    size = 16 * group
    i, v = Var("i"), Var("v")
    a = Buffer("a", dtype, (const(200), const(200)))
    b = Buffer("b", dtype, (const(5), const(size)))
    at: tuple[Expr, Expr] = (v // group, i * 7 + v % group) if across else (i * group + v % group, i + v // group)
    body = For(i, const(5), For(v, const(size), Store(b, (i, v), a[at]), "vectorized"))
    func = PrimFunc("f", (a, b), body)
    data = np.random.default_rng(0).integers(-100, 100, (200, 200)).astype(dtype.numpy)
    got = np.zeros((5, size), dtype.numpy)
    run(func, data, got)
    lane = np.arange(size)
    for k in range(5):
        rows, columns = (
            (lane // group, k * 7 + lane % group) if across else (k * group + lane % group, k + lane // group)
        )
        np.testing.assert_array_equal(got[k], data[rows, columns])
    text = emit_llvm(func, ZEN4)
    assert "gather" not in text and f"load {'float' if dtype is f32 else 'i8'}," not in text


@pytest.mark.parametrize("dtype", [f32, i8], ids=str)
@pytest.mark.parametrize("lanes", [3, 5, 6, 7, 8, 9, 12, 15, 16])
@pytest.mark.parametrize("backwards", [False, True])
def test_every_other_element_is_loaded_in_whole_pieces(dtype, lanes: int, backwards: bool) -> None:  # type: ignore[no-untyped-def]
    """Two loads of a power of two lanes, none of them outside of what is read: the buffer ends there."""
    i, v = Var("i"), Var("v")
    read = 2 * lanes - 1
    a, b = Buffer("a", dtype, (const(3 * read),)), Buffer("b", dtype, (const(3), const(lanes)))
    at = i * read + ((lanes - 1 - v) if backwards else v) * 2
    func = PrimFunc("f", (a, b), For(i, const(3), For(v, const(lanes), Store(b, (i, v), a[at]), "vectorized")))
    data = np.random.default_rng(0).integers(-100, 100, 3 * read).astype(dtype.numpy)
    got = np.zeros((3, lanes), dtype.numpy)
    run(func, data, got)
    want = data.reshape(3, read)[:, ::2]
    np.testing.assert_array_equal(got, want[:, ::-1] if backwards else want)
    loaded = [int(n) for n in re.findall(r"= load <(\d+) x ", emit_llvm(func, ZEN4))]
    assert loaded == [1 << read.bit_length() - 1] * 2


def test_lanes_separate_read_nothing_after_the_last() -> None:
    """A row padded by its ends: those lanes read the first and the last element, which are nearer than there are lanes.
    A load of as many lanes would end after the last row."""
    i, v = Var("i"), Var("v")
    a, b = Buffer("a", f32, (const(3), const(6))), Buffer("b", f32, (const(3), const(9)))
    within = (v >= const(1)) & (v < const(7))
    value = select(within, a[i, v - 1], a[i, minimum(maximum(v - 1, 0), 5)])
    func = PrimFunc("f", (a, b), For(i, const(3), For(v, const(9), Store(b, (i, v), value), "vectorized")))
    data, got = np.arange(18, dtype=np.float32).reshape(3, 6), np.zeros((3, 9), np.float32)
    run(func, data, got)
    np.testing.assert_array_equal(got, np.pad(data, ((0, 0), (1, 2)), mode="edge"))
    text = emit_llvm(func, ZEN4)
    assert "load <6 x float>" in text and "load <9 x float>" not in text
