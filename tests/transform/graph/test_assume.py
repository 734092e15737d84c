"""Assumptions of a graph about its sizes: made ranges of symbols where it can be, checked at each call in any case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.expr import Var, const, equal, is_const, maximum, minimum, not_equal
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ir.key import key
from tilewright.ir.rewrite import substitute
from tilewright.ir.verify import verify_graph
from tilewright.ops import emit1, parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import CallError, ModelError, ParseError, VerifyError
from tilewright.transform.graph.assume import fold_assumptions

S, T = Var("s", lo=1), Var("t", lo=1)


def assuming(assumptions: str, where: str = "s in 1.., t in 1..") -> Graph:
    return parse_graph(f"""
graph @g(%x: f32[s], %y: f32[t]) where {where} {{
  {assumptions}
  %z = add(%x, %x) : f32[s]
  %w = add(%y, %y) : f32[t]
  return %z, %w
}}""")


@pytest.mark.parametrize(
    ("condition", "shapes", "where", "left"),
    [
        ("s >= 2", "s t", "s in 2.., t in 1..", ()),
        ("s <= 512", "s t", "s in 1..512, t in 1..", ()),
        ("s * 4 <= 17", "s t", "s in 1..4, t in 1..", ()),
        ("s % 4 == 0", "s t", "s in 1.. % 4, t in 1..", ()),
        ("s // 2 * 2 == s", "s t", "s in 1.. % 2, t in 1..", ()),
        ("s // 4 >= 2 and s // 4 < 9", "s t", "s in 8..35, t in 1..", ()),
        ("min(s, 512) == s", "s t", "s in 1..512, t in 1..", ()),
        ("max((s + 240) // 320 - 1, 0) == (s + 240) // 320 - 1", "s t", "s in 80.., t in 1..", ()),
        ("s == 5", "5 t", "t in 1..", ()),
        ("2 * s == 8", "4 t", "t in 1..", ()),
        ("s >= 3 and s <= 3", "3 t", "t in 1..", ()),
        ("t == s", "s s", "s in 1..", ()),
        ("t == 2 * s", "s s*2", "s in 1..", ()),
        ("s + t == 10", "s 10-s", "s in 1..9", ()),
        ("2 * t == 3 * s", "s t", "s in 1.., t in 1..", ("t * 2 == s * 3",)),
        ("s * t <= 100", "s t", "s in 1.., t in 1..", ("s * t < 101",)),
        ("s <= 9223372036854775807 // 4", "s t", "s in 1.., t in 1..", ()),
        ("s != 5", "s t", "s in 1.., t in 1..", ("s != 5",)),
        ("s >= 1", "s t", "s in 1.., t in 1..", ()),
    ],
)
def test_what_is_said_of_symbols_becomes_theirs(condition: str, shapes: str, where: str, left: tuple[str, ...]) -> None:
    x, y = shapes.replace("*", " * ").replace("-", " - ").split(" ", 1)
    result = fold_assumptions(assuming(f'assume {condition} "why"'))
    assert str(result).splitlines()[0] == f"graph @g(%x: f32[{x}], %y: f32[{y}]) where {where} {{"
    assert tuple(str(a.condition) for a in result.assumptions) == left
    assert all(a.reason == "why" for a in result.assumptions)
    verify_graph(result)


def test_ranges_of_symbols_that_are_one_are_joined() -> None:
    result = fold_assumptions(assuming('assume t == s "a" assume s >= 3 "b"', "s in 2..7 % 2, t in 1..6 % 3"))
    assert [str(v.type) for v in result.inputs] == ["f32[6]", "f32[6]"]
    retained = fold_assumptions(assuming('assume t == s "a"'), keep=("t", "s"))
    assert [str(a.condition) for a in retained.assumptions] == ["t == s"]


@pytest.mark.parametrize(
    ("condition", "where"),
    [
        ("s <= 2 * t", "s in 1..32, t in 1..16"),
        ("2 * s <= t + 1", "s in 1..8, t in 1..16"),
        ("s >= 20 + t", "s in 21..64, t in 1..16"),
        ("s >= t + 60", "s in 61..64, t in 1..4"),
        ("3 * s + t < 20", "s in 1..6, t in 1..16"),
    ],
)
def test_ranges_of_others_narrow_a_symbol(condition: str, where: str) -> None:
    result = fold_assumptions(assuming(f'assume {condition} "why"', "s in 1..64, t in 1..16"))
    assert str(result).splitlines()[0] == f"graph @g(%x: f32[s], %y: f32[t]) where {where} {{"
    assert len(result.assumptions) == 1
    (a,) = result.assumptions
    fits = {
        (s, t)
        for s in range(1, 65)
        for t in range(1, 17)
        if is_const(substitute(a.condition, {result.symbols[0]: const(s), result.symbols[1]: const(t)}), True)
    }
    assert all(v.lo == min(x) and v.hi == max(x) for v, x in zip(result.symbols, zip(*fits, strict=True), strict=True))


def test_symbols_that_narrow_each_other_without_end_are_left() -> None:
    result = fold_assumptions(assuming('assume s < t "a" assume t < s "b"', "s in 1..2147483647, t in 1..2147483647"))
    assert len(result.assumptions) == 2


@pytest.mark.parametrize("condition", ["s > 4 and s < 3", "2 * s == 7", "s < 1", "s >= t + 64"])
def test_what_holds_for_no_sizes_is_refused(condition: str) -> None:
    with pytest.raises(ModelError, match="holds for no sizes"):
        fold_assumptions(assuming(f'assume {condition} "why"', "s in 1..64, t in 1.."))


def test_text_and_key() -> None:
    graph = assuming('assume s * t <= 100 "a \\"b\\"" assume s < t ""')
    assert parse_graph(str(graph)) == graph
    assert key(graph) == key(assuming('assume s * t <= 100 "c" assume s < t "d"'))
    others = [assuming(""), assuming('assume s < t ""'), assuming('assume s * t <= 101 "" assume s < t ""')]
    assert len({key(g) for g in (graph, *others)}) == 4
    with pytest.raises(ParseError, match="the reason of an assumption"):
        assuming("assume s < t")


@pytest.mark.parametrize(
    ("assumption", "problem"),
    [("s + t", "is i64, not bool"), ("s < u", "mentions u, which is no symbol of an input")],
)
def test_verified(assumption: str, problem: str) -> None:
    with pytest.raises(VerifyError, match=problem):
        verify_graph(assuming(f'assume {assumption} "why"'))


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


SUM = """
graph @g(%x: f32[s], %y: f32[t], %w: f32[s + t]) where s in 1.., t in 1.. {
  assume s * t <= 100 "area"
  assume s < t "order"
  %z = add(%w, %w) : f32[s + t]
  return %z
}"""


def test_checked_at_calls(tmp_path: Path) -> None:
    graph = parse_graph(SUM)
    tw.compile(graph).save(tmp_path / "m.tw")
    wrong = {
        (3, 5, 9): "expected the size s \\+ t of input 'w', got s \\+ t = 9, s = 3, t = 5",
        (5, 3, 8): "expected s < t \\(order\\), got s = 5, t = 3",
        (10, 50, 60): "expected s \\* t < 101 \\(area\\), got s = 10, t = 50",
        (1 << 31, (1 << 31) - 1, 1): "out of range",
    }
    for model in (tw.compile(graph), tw.load(tmp_path / "m.tw")):
        assert model.inputs[2].shape == ("s + t",)
        for _ in range(2):
            assert model(ones(3), ones(5), ones(8)).shape == (8,)
            for sizes, message in wrong.items():
                args = [np.lib.stride_tricks.as_strided(ones(1), (n,), (0,)) for n in sizes]
                if max(sizes) < 100:
                    with pytest.raises(CallError, match=message):
                        model(*map(ones, sizes))
                    with pytest.raises(CallError):
                        model.run(dict(zip("xyw", map(ones, sizes), strict=True)))
                    with pytest.raises(CallError):
                        run_graph(graph, dict(zip("xyw", args, strict=True)))


def test_all_that_does_not_hold_is_named() -> None:
    with pytest.raises(CallError) as error:
        tw.compile(parse_graph(SUM))(ones(60), ones(50), ones(110))
    assert "s < t (order)" in str(error.value) and "s * t < 101 (area)" in str(error.value)


def test_products_in_conditions_do_not_wrap() -> None:
    """Sizes of tensors without elements may be any: 2**30 * 2**30 * 2**30 is 2**90, which is 0 in 64 bits."""
    graph = parse_graph("""
graph @g(%x: f32[a, 0], %y: f32[b, 0], %z: f32[c, 0]) where a in 1.., b in 1.., c in 1.. {
  assume a * b * c <= 100 "volume"
  return %x
}""")
    model = tw.compile(graph)
    assert model(*(np.zeros((n, 0), np.float32) for n in (2, 5, 10))).shape == (2, 0)
    with pytest.raises(CallError, match="volume"):
        model(*(np.zeros((1 << 30, 0), np.float32) for _ in range(3)))


def test_builders_say_assumptions() -> None:
    builder = GraphBuilder("g")
    x = builder.input("x", parse_graph("graph @g(%x: f32[s]) where s in 1.. { return %x }").inputs[0].type)
    builder.assume(S >= 2, "first")
    builder.assume(const(True), "always")
    builder.assume(S >= 2, "first")
    builder.assume(not_equal(S, const(7)), "not seven")
    builder.assume(equal(minimum(S, 9), S), "at most nine")
    builder.assume(equal(maximum(S, 1), S), "at least one")
    graph = builder.finish((emit1(builder, "neg", x),))
    assert len(graph.assumptions) == 4
    assert run_graph(graph, {"x": ones(9)})["neg"].shape == (9,)
    model = tw.compile(graph)
    for n in range(12):
        if 2 <= n <= 9 and n != 7:
            assert model(ones(n)).shape == (n,)
        else:
            with pytest.raises(CallError):
                model(ones(n))


def test_reasons_are_not_selected_from_another_program() -> None:
    for reason in ("one reason", "another reason"):
        with pytest.raises(CallError, match=reason):
            tw.compile(assuming(f'assume s < t "{reason}"'))(ones(3), ones(3))
