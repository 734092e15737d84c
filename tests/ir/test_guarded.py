"""The conditions under which loads are evaluated."""

from __future__ import annotations

import itertools

from tilewright.ir.dtype import f32, i64
from tilewright.ir.expr import Buffer, Expr, Load, Var, call, const
from tilewright.ir.guarded import guarded_loads


def test_a_chain_of_branches_on_values_has_one_set_for_each_branch() -> None:
    """Each value has a branch on the one before: 2^40 paths lead to the element."""
    n = Var("n", i64)
    x = Buffer("x", f32, (n,))
    element = Load(x, (Var("i", i64),))
    value: Expr = element
    for _ in range(40):
        value = call("select", value < const(0, f32), value + const(1, f32), value * const(2, f32))
    results = list(itertools.islice(guarded_loads(value, {element}), 10_000))
    assert len(results) < 200
    assert {load for load, _ in results} == {element}
    assert all(len(conditions) <= 1 for _, conditions in results)


def test_conditions_on_sizes_and_on_elements_that_an_index_reads_all_count() -> None:
    n, i = Var("n", i64), Var("i", i64)
    places, x = Buffer("places", i64, (n,)), Buffer("x", f32, (n,))
    place = Load(places, (i,))
    element = Load(x, (place,))
    inside = call("select", place < n, element, const(0, f32))
    whole = call("select", place >= const(0, i64), inside, const(0, f32))
    assert dict(guarded_loads(whole, {element})) == {element: (place >= const(0, i64), place < n)}


def test_of_conditions_on_values_the_outermost_on_the_same_variables_counts() -> None:
    n, i, j = Var("n", i64), Var("i", i64), Var("j", i64)
    x, y = Buffer("x", f32, (n,)), Buffer("y", f32, (n,))
    element, zero = Load(x, (i,)), const(0, f32)
    first, same, other = element > zero, element < const(9, f32), Load(y, (j,)) > zero
    inner = call("select", same, call("select", other, Load(y, (i,)), zero), zero)
    assert dict(guarded_loads(call("select", first, inner, zero), {Load(y, (i,))})) == {Load(y, (i,)): (first, other)}
