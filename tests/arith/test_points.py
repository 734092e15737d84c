"""Points that refute goals: what they say is so, and no proof is lost by them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.arith.evaluate import ARITHMETIC, evaluate
from tests.arith.test_laws import EXTENTS, LEAVES
from tilewright.arith import Analyzer, compare, points
from tilewright.arith.points import Point
from tilewright.ir.expr import Expr, Var, binary, const, maximum, minimum
from tilewright.ir.rewrite import variables

Source = np.random.Generator


def random_expr(source: Source, depth: int) -> Expr:
    """An i64 expression over all variables and small literals."""
    if depth == 0 or source.random() < 0.2:
        return LEAVES[source.integers(len(LEAVES))] if source.random() < 0.7 else const(int(source.integers(-9, 10)))
    name = ARITHMETIC[source.integers(len(ARITHMETIC))]
    divides = name in ("floordiv", "mod")
    right = const(int(source.integers(-4, 13))) if divides else random_expr(source, depth - 1)
    return binary(name, random_expr(source, depth - 1), right)


def random_fact(source: Source) -> Expr:
    return binary("lt", random_expr(source, 1), random_expr(source, 1))


def values_at(point: Point, e: Expr) -> dict[Var, int]:
    return {v: point.value(v) for v in variables(e)}


def test_points_are_inside_of_the_ranges() -> None:
    for point in points.some(EXTENTS, ()):
        values = {v: point.value(v) for v in LEAVES if isinstance(v, Var)}
        for v, value in values.items():
            if v in EXTENTS:
                assert value is None or 0 <= value < evaluate(EXTENTS[v], values)
            else:
                assert value % v.multiple == 0
                assert (v.lo is None or v.lo <= value) and (v.hi is None or value <= v.hi)


def test_a_refuted_goal_is_negative_where_facts_hold() -> None:
    source = np.random.default_rng(0)
    refuted = 0
    for _ in range(60):
        e, an = random_expr(source, 3), Analyzer(EXTENTS, (random_fact(source),))
        form = an.form(e)
        if not an.refutes(form):
            continue
        refuted += 1
        known = points.some(EXTENTS, an.facts)
        assert any(
            p.form(form) == evaluate(e, values_at(p, e)) < 0 for p in known if None not in values_at(p, e).values()
        )


def test_results_are_those_without_points() -> None:
    """An analyzer that learns one more fact is as one that is told both at once."""
    source = np.random.default_rng(1)
    for _ in range(60):
        e, first, second = random_expr(source, 3), random_fact(source), random_fact(source)
        both = Analyzer(EXTENTS, (first,)).also(second).simplify(e)
        assert both is Analyzer(EXTENTS, (first, second)).simplify(e)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Analyzer, "refutes", lambda self, form: False)
            assert Analyzer(EXTENTS, (first, second)).simplify(e) is both


def test_no_proof_is_tried_of_what_is_not_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of two ends of a split is always the first: a proof would try both sides of each minimum and maximum."""
    first, length = Var("first"), Var("length", lo=0)
    rows = length // 32
    begin = minimum(rows, maximum(-(first // 32), const(0)))
    end = maximum(minimum((1 - first) // 32 + 3, minimum(rows, const(3))), begin)
    tried: list[object] = []
    relax = compare._relax_atom
    monkeypatch.setattr(compare, "_relax_atom", lambda *args: tried.append(args) or relax(*args))
    an = Analyzer()
    assert not an.prove(end <= maximum(minimum((1 - first) // 32 + 9, rows // 2), begin))
    some = len(tried)
    monkeypatch.setattr(Analyzer, "refutes", lambda self, form: False)
    an = Analyzer()
    assert not an.prove(end <= maximum(minimum((1 - first) // 32 + 9, rows // 2), begin))
    assert some * 2 < len(tried) - some
