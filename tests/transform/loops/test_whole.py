"""Conditions on lanes of temporaries that must stay."""

from __future__ import annotations

import pytest

from tilewright.ir.parser import parse_func
from tilewright.transform.loops.whole import whole_vectors

FUNC = """
func @kept(a: f32[m], c: f32[n]) where n in 1..16, m in 1..40 {{
  alloc t: f32[{size}]
  for i in 0..16 vectorized {{
    {init}
  }}
  for v in 0..16 vectorized {{
    if {condition} {{
      t[v] = t[v] + {value}
    }}
  }}
  for w in 0..16 vectorized {{
    if w < n {{
      c[w] = t[w]
    }}
  }}
}}
"""

INIT, GUARDED = "if i < n { t[i] = 0.0 }", "select(v < m, a[v], 0.0)"

UNCHANGED = {
    "other lanes are wanted: a sum over all of them follows": {"init": "t[i] = 0.0"},
    "stores under different conditions": {"init": "if i < n - 1 { t[i] = 0.0 }"},
    "two conditions, as halves of one vector": {"init": "if i >= n { t[i] = 0.0 }"},
    "the condition is the same for all lanes": {"condition": "3 < n", "init": "if 3 < n { t[i] = 0.0 }"},
}


@pytest.mark.parametrize("what", UNCHANGED)
def test_conditions_that_stay(what: str) -> None:
    parts = {"size": "16", "init": INIT, "condition": "v < n", "value": GUARDED} | UNCHANGED[what]
    func = parse_func(FUNC.format(**parts))
    assert whole_vectors(func) == func
    assert (
        whole_vectors(
            parse_func(FUNC.format(**(parts | {"size": "16", "init": INIT, "condition": "v < n", "value": GUARDED})))
        )
        != func
    )


READ = {
    "a[v]": "select(v < n, a[v], 0.0)",
    GUARDED: GUARDED,
    "select(v <= m, a[v], 0.0)": "select(v <= m, select(v < n, a[v], 0.0), 0.0)",
    "select(v < m, 1.0, a[v])": "select(v < m, 1.0, select(v < n, a[v], 0.0))",
    "select(a[v] < 1.0, 1.0, 0.0)": "select(select(v < n, a[v], 0.0) < 1.0, 1.0, 0.0)",
    "a[max(min(i64(a[v]), m - 1), 0)]": "select(v < n, a[max(min(i64(a[v]), m - 1), 0)], 0.0)",
    "a[max(min(i64(a[0]), m - 1), 0)]": "a[max(min(i64(a[0]), m - 1), 0)]",
    "exp(a[v] + a[0])": "exp(select(v < n, a[v], 0.0) + a[0])",
}


@pytest.mark.parametrize("value", READ)
def test_what_might_not_be_there_is_read_under_the_condition(value: str) -> None:
    after = whole_vectors(parse_func(FUNC.format(size=16, init=INIT, condition="v < n", value=value)))
    assert f"t[v] = t[v] + {READ[value]}" in str(after) and str(after).count("if ") == 1


def test_parameters_keep_theirs() -> None:
    func = parse_func("func @f(c: f32[n]) where n in 1..16 { for v in 0..16 vectorized { if v < n { c[v] = 0.0 } } }")
    assert whole_vectors(func) is func
