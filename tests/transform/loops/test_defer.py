"""Epilogues deferred into the next tile's products: the loops that come of it, what is refused, the same values."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.loops import For, PrimFunc, Store
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import walk
from tilewright.ir.verify import verify_func
from tilewright.transform.loops.defer import defer_epilogues

ROWS, WIDTH = 2, 16


def product(depth: int, last: str = "tanh(tile[r, v])", notes: str = "", more: str = "", tiles: str = "3") -> PrimFunc:
    """Tiles of two rows and two vectors of eight; `last` is what is stored, of row r and column v."""
    return parse_func(f"""
        func @product(x: f32[6, {depth}], w: f32[{depth}, {WIDTH}], y: f32[6, {WIDTH}]) {{
          for t in 0..{tiles} @defer(lanes=8) {{
            alloc tile: f32[{ROWS}, {WIDTH}] in local
            for r0 in 0..{ROWS} unrolled {{ for v0 in 0..{WIDTH} vectorized {{ tile[r0, v0] = 0.0 }} }}
            for k in 0..{depth} {notes} {{
              for r1 in 0..{ROWS} unrolled {{
                for v1 in 0..{WIDTH} vectorized {{ tile[r1, v1] = tile[r1, v1] + x[t*2 + r1, k] * w[k, v1] }}
              }}
            }}
            for r in 0..{ROWS} unrolled {{ for v in 0..{WIDTH} vectorized {{ y[t*2 + r, v] = {last} }} }}
            {more}
          }}
        }}
    """)


def serial(func: PrimFunc) -> list[str]:
    """Extents of the loops that stay loops."""
    return [str(s.extent) for s in walk(func.body) if isinstance(s, For) and s.kind == "serial"]


def same_values(func: PrimFunc) -> PrimFunc:
    """The function with deferred epilogues, having checked that it computes the same."""
    done = defer_epilogues(func)
    verify_func(done)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal([int(str(d)) for d in p.shape]).astype(np.float32) for p in func.params[:2])
    results = []
    for version in (func, done):
        y = np.zeros((6, WIDTH), np.float32)
        interpret(version, [x, w, y])
        results.append(y)
    np.testing.assert_array_equal(*results)
    assert "defer" not in str(done)
    return done


@pytest.mark.parametrize(
    ("depth", "loops"),
    [
        (8, ["8", "2", "2", "2"]),  # the first tile's reduction; tiles, rows, vectors, each with two steps
        (11, ["11", "2", "2", "2"]),  # three steps are left, and written out
        (64, ["64", "2", "2", "2", "16"]),  # sixteen steps between pieces are a loop
        (3, ["3", "2", "2", "1"]),  # pieces of two vectors
    ],
)
def test_pieces_between_products(depth: int, loops: list[str]) -> None:
    done = same_values(product(depth))
    assert serial(done) == loops
    assert sum(isinstance(s, Store) and "tanh" in str(s) for s in walk(done.body)) == 2  # pieces, and the last tile's


def test_one_tile_is_done_at_once() -> None:
    assert "alloc tile_raw" in str(same_values(product(8, tiles="1")))


def test_notes_of_the_reduction_stay() -> None:
    assert str(same_values(product(64, notes="@unroll(times=4)"))).count("@unroll(times=4)") == 2


@pytest.mark.parametrize(
    "func",
    [
        product(1),  # fewer steps than lines
        product(8, last="tanh(tile[r, v] + x[t*2 + r, 0])", more="y[0, 0] = 1.0"),
        product(8, notes="@prefetch(buffers=[w], nbytes=64)"),
    ],
    ids=["short", "something behind", "asks"],
)
def test_what_stays_as_it_was(func: PrimFunc) -> None:
    assert "raw" not in str(same_values(func))


def test_products_of_what_epilogues_write_stay_in_order() -> None:
    func = parse_func(str(product(8)).replace("x[t * 2 + r1, k]", "y[t * 2 + r1, k]"))
    assert "y[t * 2 + r1, k]" in str(func) and "raw" not in str(defer_epilogues(func))
