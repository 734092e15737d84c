"""Decoders whose length grows by one in each call: no memory is taken, nothing is planned; rows of all odd sizes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.compiler.test_state import WIDTH, decoder
from tilewright.ir.dtype import BY_NAME
from tilewright.native.assembler import I64, PTR, Module
from tilewright.native.link import compile_text, host_triple
from tilewright.native.shared import shared_object
from tilewright.ops import parse_graph
from tilewright.runtime import engine

STEPS = 10_000
COUNTED = {"malloc": [("n", I64)], "calloc": [("k", I64), ("n", I64)], "realloc": [("p", PTR), ("n", I64)]}


def counting_library(path: Path) -> None:
    """A library to be loaded before the C library: counts what is taken from it."""
    module = Module()
    module.variable("counter", 8)
    for name, params in COUNTED.items():
        module.declare(f"__libc_{name}", PTR, [t for _, t in params])
        with module.function(name, PTR, params) as (f, args):
            f.add_atomic(f.symbol("counter"), 1)
            f.ret(f.call(PTR, f"__libc_{name}", *args), PTR)
    with module.function("allocations", I64, []) as (f, ()):
        f.ret(f.load(I64, f.symbol("counter")))
    path.write_bytes(shared_object(compile_text(module.text), [*COUNTED, "allocations"], path.name))


def count_a_long_sequence(*, bounded: bool) -> None:
    """Run in a process of its own: nothing may come from the allocator or the planner once the state is there."""
    dims = {"past": tw.dim(0, STEPS)} if bounded else None
    model = tw.compile(decoder(1, 1), state="auto", dims=dims)
    assert isinstance(model, tw.Model)
    library = ctypes.CDLL(None)
    library.allocations.restype = ctypes.c_int64
    state = model.state(STEPS + 20)
    asked: list[str] = []
    for name in ("_plan", "_set_arena", "ensure", "_ask_shapes"):
        setattr(engine.Engine, name, lambda *_, name=name: asked.append(name))
    x, y = np.ones((1, 1, WIDTH), np.float32), np.empty((1, 3, 1, 16), np.float32)
    for _ in range(19):  # the interpreter specialises what it runs
        state(x, out=y)
    before = library.allocations()
    for _ in range(STEPS - 19):
        state(x, out=y)
    selected = library.allocations() - before
    assert state.length == STEPS
    assert np.isfinite(y).all()
    print(f"taken {selected}, asked {asked}")


@pytest.mark.skipif(host_triple() != "x86_64-unknown-linux-gnu", reason="libraries are written for x86-64 Linux")
@pytest.mark.parametrize("bounded", [False, True])
def test_ten_thousand_steps_take_no_memory(tmp_path: Path, *, bounded: bool) -> None:
    path = tmp_path / "libcounting.so"
    counting_library(path)
    command = f"from {__name__} import *; count_a_long_sequence(bounded={bounded})"
    ran = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "LD_PRELOAD": str(path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "taken 0, asked []\n", ran.stderr


@pytest.mark.daily(4)
@pytest.mark.costly(6)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", ["f32", "f16", "i8", "i64", "bool"])
@pytest.mark.parametrize("inner", [(1, 1), (1, 3), (3, 5), (2, 17), (7, 33), (1, 65)])
def test_rows_of_odd_sizes_are_appended(inner: tuple[int, int], kind: str, axis: int) -> None:
    """Any number of rows, any rows' shape, any axis; a reader of the whole sees what NumPy joins."""

    def shape(length: str) -> str:
        dims = [str(d) for d in inner]
        return ", ".join([*dims[:axis], length, *dims[axis:]])

    text = f"""
    graph @growing(%x: {kind}[{shape("n")}], %past: {kind}[{shape("past")}]) where n in 1.., past in 1.. {{
      %present = concat(%past, %x) {{axis = {axis}}} : {kind}[{shape("n + past")}]
      %wide = cast(%present) {{dtype = f64}} : f64[{shape("n + past")}]
      %y = reduce_sum(%wide) {{axes = [{axis}], keepdims = false}} : f64[{inner[0]}, {inner[1]}]
      return %y, %present
    }}
    """
    model = tw.compile(parse_graph(text), state="auto")
    assert isinstance(model, tw.Model)
    ends = [0, 1, 2, 5, 12, 13, 30, 63, 64, 66]
    rng = np.random.default_rng(sum(inner))
    whole: Any = rng.integers(0, 2, (*inner[:axis], ends[-1], *inner[axis:])).astype(BY_NAME[kind].numpy)
    state = model.state(ends[-1])
    for begin, end in pairwise(ends):
        y = state(whole.take(range(begin, end), axis))
        seen = whole.take(range(end), axis)
        np.testing.assert_array_equal(y, seen.astype(np.float64).sum(axis))
        np.testing.assert_array_equal(state.arrays()["past"], seen)


def test_an_empty_cache_is_told_how_it_may_be_empty() -> None:
    model = tw.compile(decoder())
    empty = np.zeros((1, 3, 0, 16), np.float32)
    with pytest.raises(tw.Error, match=r"tw\.compile\(\.\.\., dims=\{\"past\": tw\.dim\(0, \.\.\.\)\}\)"):
        model(np.zeros((1, 1, WIDTH), np.float32), empty, empty)
