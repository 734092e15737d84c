"""Software pipelining of stages over rows: what is overlapped, what is refused, and that values stay the same."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.loops import For, PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import walk
from tilewright.ir.verify import verify_func
from tilewright.transform.loops.pipeline import pipeline_loops

ROWS = 6


def softmax(steps: int, last: str = "e[j2 * 8 + w2] / s[0]", also: str = "", between: str = "") -> PrimFunc:
    """Rows of `steps` vectors; `last` is what the last stage stores, after `also`."""
    n = 8 * steps
    return parse_func(f"""
        func @rows(x: f32[{ROWS}, {n}], y: f32[{ROWS}, {n}]) {{
          for r in 0..{ROWS} @pipeline {{
            alloc m: f32[1]
            alloc e: f32[{n}]
            alloc s: f32[1]
            alloc part: f32[8]
            alloc sums: f32[8]
            for v0 in 0..8 vectorized {{ part[v0] = -inf }}
            for j0 in 0..{steps} {{ for w0 in 0..8 vectorized {{ part[w0] = max(part[w0], x[r, j0 * 8 + w0]) }} }}
            m[0] = -inf
            for u0 in 0..8 vectorized {{ m[0] = max(m[0], part[u0]) }}
            for v3 in 0..8 vectorized {{ sums[v3] = 0.0 }}
            for j1 in 0..{steps} {{
              for v1 in 0..8 vectorized {{ e[j1 * 8 + v1] = exp(x[r, j1 * 8 + v1] - m[0]) }}
              for w1 in 0..8 vectorized {{ sums[w1] = sums[w1] + e[j1 * 8 + w1] }}
            }}
            s[0] = 0.0
            for u1 in 0..8 vectorized {{ s[0] = s[0] + sums[u1] }}
            {between}
            for j2 in 0..{steps} {{
              {also}
              for w2 in 0..8 vectorized {{ y[r, j2 * 8 + w2] = {last} }}
            }}
          }}
        }}
    """)


def turns(func: PrimFunc) -> int:
    """The extent of the loop over rows."""
    return next(s.extent.value for s in walk(func.body) if isinstance(s, For))  # type: ignore[attr-defined, no-any-return]


def same_values(func: PrimFunc, n: int) -> PrimFunc:
    """The function in stages, having checked that it computes the same."""
    done = pipeline_loops(func)
    verify_func(done)
    x = np.random.default_rng(0).standard_normal((ROWS, n)).astype(np.float32)
    results = []
    for version in (func, done):
        y = np.zeros_like(x)
        interpret(version, [x, y])
        results.append(y)
    np.testing.assert_array_equal(*results)
    return done


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_three_stages(steps: int) -> None:
    done = same_values(softmax(steps), 8 * steps)
    assert turns(done) == ROWS + 2
    joint = [s for s in walk(done.body) if isinstance(s, For) and s.kind == "serial"]
    assert len(joint) == (1 if steps == 2 else 2)  # the rows, and the steps where they are not written out
    assert same_values(done, 8 * steps) is done


def test_a_single_value_is_copied_from_stage_to_stage() -> None:
    """The third stage's maximum is that of the row before the last one."""
    assert turns(same_values(softmax(4, "x[r, j2 * 8 + w2] - m[0] - log(s[0])"), 32)) == ROWS + 2


def test_an_array_that_the_third_stage_reads_has_three_versions() -> None:
    done = same_values(softmax(4, "e[j2 * 8 + w2] * part[w2]"), 32)
    assert turns(done) == ROWS + 2 and "alloc part: f32[3, 8]" in str(done)


@pytest.mark.parametrize(("steps", "length"), [(127, 1016), (128, 1536)])
def test_versions_are_not_whole_pages_separate(steps: int, length: int) -> None:
    assert f"alloc e: f32[2, {length}]" in str(same_values(softmax(steps), 8 * steps))


@pytest.mark.parametrize("last", ["e[(3 - j2) * 8 + w2] / s[0]", "e[j2 * 8 + (7 - w2)] / s[0]"])
def test_elements_may_be_read_in_another_order(last: str) -> None:
    """A row has two versions of what a row leaves to the next stage."""
    assert turns(same_values(softmax(4, last), 32)) == ROWS + 2


def test_a_stage_that_changes_what_another_one_created_joins_it() -> None:
    assert turns(same_values(softmax(4, between="s[0] = s[0] + m[0]"), 32)) == ROWS + 2
    changed = softmax(4, also="for v2 in 0..8 vectorized { e[j2 * 8 + v2] = e[j2 * 8 + v2] * 2.0 }")
    assert turns(same_values(changed, 32)) == ROWS + 1


def test_rows_that_depend_on_each_other_stay_in_order() -> None:
    """A buffer outside of the loop goes from a row's last stage to the next row's first."""
    func = parse_func(f"""
        func @rows(x: f32[{ROWS}, 32], y: f32[{ROWS}, 32]) {{
          alloc carry: f32[1]
          carry[0] = 0.0
          for r in 0..{ROWS} @pipeline {{
            alloc m: f32[1]
            m[0] = carry[0]
            for j in 0..4 {{ for v in 0..8 vectorized {{ m[0] = max(m[0], x[r, j * 8 + v]) }} }}
            for k in 0..4 {{ for w in 0..8 vectorized {{ y[r, k * 8 + w] = x[r, k * 8 + w] - m[0] }} }}
            carry[0] = m[0]
          }}
        }}
    """)
    assert turns(same_values(func, 32)) == ROWS


def test_loops_of_other_lengths_stay_in_order() -> None:
    func = parse_func(f"""
        func @rows(x: f32[{ROWS}, 32], y: f32[{ROWS}, 32]) {{
          for r in 0..{ROWS} @pipeline {{
            alloc m: f32[1]
            m[0] = -inf
            for j in 0..4 {{ for v in 0..8 vectorized {{ m[0] = max(m[0], x[r, j * 8 + v]) }} }}
            for k in 0..2 {{ for w in 0..16 vectorized {{ y[r, k * 16 + w] = x[r, k * 16 + w] - m[0] }} }}
          }}
        }}
    """)
    assert turns(same_values(func, 32)) == ROWS
