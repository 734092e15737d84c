"""Every rewrite rule holds for sampled values of its letters, special floats included."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from tests.arith.evaluate import evaluate
from tilewright.arith.rules import RULES, Pattern, Rule, apply, build, match
from tilewright.ir.dtype import DType, boolean, f32, i8, i64, u8
from tilewright.ir.expr import Const, Expr, Op, Var, const

SAMPLES = {
    f32: [0.0, -0.0, 1.0, -1.0, 2.5, -3.75, 1e-40, 3e38, math.inf, -math.inf, math.nan],
    i64: list(range(-9, 10)),
    i8: [-128, -127, -3, -1, 0, 1, 2, 5, 126, 127],
    u8: [0, 1, 2, 3, 7, 128, 254, 255],
    boolean: [False, True],
}
KINDS = {"int": (i64, i8, u8), "float": (f32,), "bool": (boolean,), "any": (f32, i64, boolean)}


def letters(pattern: Pattern) -> list[str]:
    own = [pattern.letter] if pattern.letter else []
    return sorted(dict.fromkeys(itertools.chain(own, *(letters(a) for a in pattern.args))))


def same(a: object, b: object) -> bool:
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype.kind == "f" and np.isnan(x) and np.isnan(y):
        return True
    return x.dtype == y.dtype and x.tobytes() == y.tobytes()


@pytest.mark.daily(5)
@pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{r.before} -> {r.after} [{r.kind}]")
def test_rule_holds(rule: Rule) -> None:
    rng = random.Random(0)
    names = letters(rule.pattern)
    tried = 0
    for dtype in KINDS[rule.kind]:
        if dtype is boolean and rule.kind == "any" and any(n[0] == "c" for n in names):
            continue
        for _ in range(200):
            binding: dict[str, object] = {}
            values = {}
            for name in names:
                if name in "pqr":
                    var = Var(name, boolean)
                    values[var] = rng.choice((False, True))
                    binding[name] = var
                elif name[0] == "c":
                    binding[name] = const(rng.choice(SAMPLES[dtype]), dtype)
                else:
                    var = Var(name, dtype)
                    values[var] = rng.choice(SAMPLES[dtype])
                    binding[name] = var
            ordinary = {k: v.value if isinstance(v, Const) else v for k, v in binding.items()}
            if rule.guard is not None and not rule.guard(**ordinary):
                continue
            if not supported(rule, dtype):
                break
            before = build(rule.pattern, binding, dtype)
            after = build(rule.result, binding, dtype)
            assert isinstance(before, Expr)
            left, right = evaluate(before, values), evaluate(after, values)
            # An identity may give either zero of minimum and maximum of -0 and 0.
            assert same(left, right), (rule.before, dtype, values, left, right)
            tried += 1
    assert tried > 0


def supported(rule: Rule, dtype: object) -> bool:
    """Ordering is not defined on bools, negation of the least i8 overflows in both readings."""
    ordered = any(op in rule.before for op in ("<", ">", "neg", "-"))
    return not (dtype is boolean and ordered and rule.kind == "any")


def term(pattern: Pattern, binding: dict[str, Expr], dtype: DType) -> Expr:
    """The pattern with its letters filled in, not simplified."""
    if pattern.letter is not None:
        return binding[pattern.letter]
    if pattern.op is None:
        return const(pattern.literal, boolean if isinstance(pattern.literal, bool) else dtype)
    return Op(pattern.op, tuple(term(a, binding, dtype) for a in pattern.args))


@pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{r.before} -> {r.after} [{r.kind}]")
def test_rule_is_used(rule: Rule) -> None:
    """For its kinds of types, and with the numbers that its condition admits, alone."""
    comparable = rule.guard is not None and "c1" in letters(rule.pattern)
    for dtype in KINDS[rule.kind]:
        for c1, c2 in ((2, 3), (3, 3), (3, 2)):
            numbers = {"c": c1, "c1": c1, "c2": c2}
            binding: dict[str, Expr] = {
                name: Var(name, boolean) if name in "pqr" else Var(name, dtype)
                for name in letters(rule.pattern)
                if name not in numbers
            }
            binding |= {name: const(n, dtype) for name, n in numbers.items() if name in letters(rule.pattern)}
            before = term(rule.pattern, binding, dtype)
            assert isinstance(before, Op)
            wanted = None
            if not comparable or (c1 <= c2 if before.name == "max" else c1 >= c2):
                wanted = build(rule.result, {n: e.value if type(e) is Const else e for n, e in binding.items()}, dtype)
            result: dict[str, object] = {}
            fits = match(rule.pattern, before, rule.kind, result) and (rule.guard is None or rule.guard(**result))
            assert (build(rule.result, result, dtype) if fits else None) is wanted


def test_rules_are_for_kinds_of_types() -> None:
    """Operations that wrap and those that round are distinguished, and a letter that comes twice stands for one
    expression."""
    a, b = Var("a", f32), Var("b", f32)
    x, y = Var("x"), Var("y")
    assert apply(Op("sub", (x, x))) is const(0) and apply(Op("sub", (a, a))) is None
    assert apply(Op("sub", (x, y))) is None and apply(Op("div", (a, const(1.0, f32)))) is a
    assert apply(Op("not", (Op("lt", (x, y)),))) is Op("le", (y, x)) and apply(Op("not", (Op("lt", (a, b)),))) is None
    assert apply(Op("mod", (Op("mod", (x, const(4))), const(4)))) is Op("mod", (x, const(4)))
    assert apply(Op("mod", (Op("mod", (x, const(4))), const(3)))) is None
    assert apply(Op("mod", (Op("mod", (x, y)), y))) is None
    assert apply(Op("min", (Op("min", (a, const(2.0, f32))), const(1.0, f32)))) is None
