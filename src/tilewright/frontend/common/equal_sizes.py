"""For which values of symbolic dimensions a model is valid: those that make the shapes equal which it adds or joins.

Files name the dimensions of their inputs, and some exporters give each dimension of each input a name of its own: two
inputs that are added have one batch under two names.

A network that halves its maps and doubles them again, and then joins them with those from before, needs heights that
halving does not round: `height // 2 * 2` is `height` for the even ones. The file does not say so.

A table of positions is cut at its end: `min(seq, 512)` rows of it are added to `seq` rows, which fits up to 512.

An image is padded to whole windows, and an exporter whose example needed no padding omits the slice that removes it: `n
+ -n % 4` rows are added to `n` rows, which fits for multiples of 4.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain, combinations, product
from math import gcd, lcm
from operator import and_

from tilewright.arith import prove_equal, simplify
from tilewright.ir.dim import MAX_DIM as LARGEST
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Const, Expr, Op, Var, as_expr, as_int, const, equal, is_const
from tilewright.ir.rewrite import map_expr, substitute, variables, walk_expr

START = 1 << 12
"""Sizes are compared from this one on: at small sizes, roundings to 0 make sizes equal by accident."""
MAX_CHOICES = 3
"""How many minima and maxima are decided at once."""
REMAINDERS = 4
"""Conditions on remainders are looked for up to this many different remainders in two sizes."""
DRAWN = 300
"""How many sizes are drawn at random to test whether a condition excludes valid sizes."""
MAX_DIVISOR = 256
"""The largest divisor that is looked for."""
ROUND = 256 * 720720
"""The value of all other symbols while one is examined: a multiple of the divisors that dimensions of networks have."""


def divisors(pairs: Sequence[tuple[Expr, Expr]]) -> dict[str, int]:
    """By name of each symbol, the number m such that the sizes of every pair are equal for the symbol's multiples of m
    and for no other value; empty where some symbol has no such m. In pairs with several symbols, the others are set to
    a multiple of all likely divisors (`ROUND`)."""
    result = {symbol.name: _divisor(symbol, own) for symbol, own in _by_symbol(pairs).items()}
    if not all(result.values()):
        return {}
    for symbol, own in _while_others_are_round(pairs).items():
        if by := _divisor(symbol, own):
            result[symbol.name] = lcm(by, result.get(symbol.name) or 1)
    return {name: by for name, by in result.items() if by}


def _while_others_are_round(pairs: Sequence[tuple[Expr, Expr]]) -> dict[Var, list[tuple[Expr, Expr]]]:
    """By symbol, the pairs with several symbols, in which all others are replaced by multiples of `ROUND`. Pairs with a
    minimum or maximum are left out, as a large number decides these."""
    result: dict[Var, list[tuple[Expr, Expr]]] = {}
    for a, b in dict.fromkeys(pairs):
        symbols = {*variables(a), *variables(b)}
        if len(symbols) < 2 or any(type(e) is Op and e.name in ("min", "max") for e in walk_expr(a - b)):
            continue
        for symbol in symbols:
            others: dict[Var, Expr] = {v: const(ROUND * v.multiple) for v in symbols if v is not symbol}
            result.setdefault(symbol, []).append((substitute(a, others), substitute(b, others)))
    return result


def _by_symbol(pairs: Sequence[tuple[Expr, Expr]]) -> dict[Var, list[tuple[Expr, Expr]]]:
    """The pairs that have only one symbol, by that symbol."""
    result: dict[Var, list[tuple[Expr, Expr]]] = {}
    for a, b in dict.fromkeys(pairs):
        symbols = set(variables(a)) | set(variables(b))
        if len(symbols) == 1:
            result.setdefault(symbols.pop(), []).append((a, b))
    return result


def sufficient(pairs: Sequence[tuple[Expr, Expr]]) -> dict[str, int]:
    """By name of each symbol, the least number whose multiples all make the sizes of the pairs equal; other values may
    make them equal as well. Symbols that need no such number, or have none, are left out."""
    result = {}
    for symbol, own in _by_symbol(pairs).items():
        for by in range(2 * symbol.multiple, MAX_DIVISOR + 1, symbol.multiple):
            if all(_equal(a, b, symbol, n * by) for n in (*range(1, MAX_DIVISOR), START) for a, b in own):
                result[symbol.name] = by
                break
    return result


def ranges(pairs: Sequence[tuple[Expr, Expr]]) -> dict[str, Dim]:
    """By name of each symbol, the only range of its values in which the sizes of a pair with a minimum or maximum are
    equal. Symbols whose pairs restrict nothing are left out."""
    result: dict[str, Dim] = {}
    for symbol, own in _by_symbol(pairs).items():
        for a, b in own:
            range_ = _range(symbol, a, b)
            if range_ is not None:
                known = result.get(symbol.name, range_)
                ends = [end for end in (known.hi, range_.hi) if end is not None]
                result[symbol.name] = Dim(max(known.lo, range_.lo), min(ends, default=None))
    return {name: d for name, d in result.items() if d.hi is None or d.lo <= d.hi}


def _range(symbol: Var, a: Expr, b: Expr) -> Dim | None:
    """The one interval of the symbol's range in which sizes `a` and `b` are equal; if there are several, the one in
    which they are also not 0. None if there is no such interval, more than one, or if it is the whole range."""
    step, most = symbol.multiple, symbol.hi if symbol.hi is not None else LARGEST
    first, last = -(-max(symbol.lo or 0, 1) // step), most // step
    turns = sorted({t for e in (a, b) for t in _turns(e, symbol, first, last)})
    parts = list(zip([first, *turns], [*(t - 1 for t in turns), last], strict=True))
    sizes = [[_size(a, b, symbol, n * step) for n in _sample(*part)] for part in parts]
    for least in (0, 1) if turns else ():
        equal = [[n is not None and n >= least for n in part] for part in sizes]
        whole = [k for k, results in enumerate(equal) if all(results)]
        if not whole or len(whole) == len(parts) or whole != list(range(whole[0], whole[-1] + 1)):
            continue
        if not any(any(results) for k, results in enumerate(equal) if k not in whole):
            begin, end = parts[whole[0]][0], parts[whole[-1]][1]
            return Dim(begin * step if whole[0] else 1, end * step if end < last else None)
    return None


def _sample(begin: int, end: int) -> list[int]:
    """Some numbers of a range: those at either end, and a few evenly spaced between."""
    inner = 24
    between = range(begin, end + 1, max(1, (end - begin) // 7))
    return sorted({*range(begin, min(begin + inner, end + 1)), *range(max(end - inner, begin), end + 1), *between})


def _turns(e: Expr, symbol: Var, first: int, last: int) -> list[int]:
    """The numbers n at which, for `symbol = n * multiple`, the two sides of a minimum or maximum in `e` become equal or
    change their order."""
    results = []
    for atom in walk_expr(e):
        if type(atom) is Op and atom.name in ("min", "max") and set(variables(atom)) == {symbol}:
            difference = atom.args[0] - atom.args[1]
            results += [_first_above(end, difference, symbol, first, last) for end in (-1, 0)]
    return [n for n in results if n is not None]


def _first_above(end: int, e: Expr, symbol: Var, low: int, high: int) -> int | None:
    """The first n of a range where, with `symbol = n * multiple`, `e` lies on the other side of `end` than at `low`, by
    bisection of a size that only grows or only falls; None if it never changes sides."""

    def above(n: int) -> bool:
        number = as_int(simplify(substitute(e, {symbol: const(n * symbol.multiple)})))
        return number is not None and number > end

    before = above(low)
    if above(high) == before:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if above(middle) == before else (low, middle)
    return high


def condition(a: Expr, b: Expr) -> Expr | None:
    """A condition for `a == b` without minima and maxima, such as `past + seq <= 64` for `min(past + seq, 64) -
    min(past, 64)` and `seq`: each of these is one of its sides then. None if no such condition was derived."""
    wanted = as_expr(equal(a, b))
    atoms = [e for e in walk_expr(simplify(a - b)) if type(e) is Op and e.name in ("min", "max")]
    if not atoms or len(atoms) > MAX_CHOICES:
        return None if atoms else _unrounded(a, b)
    for some in chain.from_iterable(combinations(atoms, count) for count in range(1, len(atoms) + 1)):
        for sides in product(*((x <= y, x >= y) for x, y in (atom.args for atom in some))):
            if prove_equal(a, b, assumptions=sides) and _is_needed(result := simplify(reduce(and_, sides)), wanted):
                return result
    for positions in product((0, 1), repeat=len(atoms)):
        chosen: dict[Expr, Expr] = {atom: atom.args[k] for atom, k in zip(atoms, positions, strict=True)}
        result = simplify(as_expr(equal(*(map_expr(e, chosen.get) for e in (a, b)))))
        if all(prove_equal(atom, side, assumptions=(result,)) for atom, side in chosen.items()) and _is_needed(
            result, wanted
        ):
            return result
    return None


def _unrounded(a: Expr, b: Expr) -> Expr:
    """A condition for `a == b` as remainders that are 0: `n + -n % 4` (rounded up to whole windows) equals `n` where `n
    % 4 == 0`. If none is derived, the equation itself."""
    wanted = as_expr(equal(a, b))
    is_rest = (e for e in walk_expr(wanted) if type(e) is Op and e.name == "mod" and isinstance(e.args[1], Const))
    rests = list(dict.fromkeys(is_rest))
    if len(rests) > REMAINDERS:
        return wanted
    for some in chain.from_iterable(combinations(rests, count) for count in range(1, len(rests) + 1)):
        zero: dict[Expr, Expr] = dict.fromkeys(some, const(0))
        left, right = (map_expr(e, zero.get) for e in (a, b))
        result = reduce(and_, (as_expr(equal(rest, 0)) for rest in some))
        if prove_equal(left, right) and _is_needed(result, wanted & (a >= 1)):
            return result
    return wanted


def _is_needed(result: Expr, wanted: Expr) -> bool:
    """Whether `result` holds wherever `wanted` does, tested on random sizes."""
    symbols = variables(wanted)
    ends = {abs(int(e.value)) + k for e in walk_expr(wanted) if isinstance(e, Const) for k in (-1, 0, 1)}
    draw = random.Random(0)
    for _ in range(DRAWN):
        sizes: dict[Var, Expr] = {}
        for v in symbols:
            n = draw.choice((draw.randint(1, 12), *ends)) * v.multiple
            sizes[v] = const(max(v.lo or 0, n if v.hi is None else min(n, v.hi)))
        if is_const(simplify(substitute(wanted, sizes)), True) and is_const(simplify(substitute(result, sizes)), False):
            return False
    return True


def joined(pairs: Sequence[tuple[Expr, Expr]], order: Sequence[Var]) -> dict[Var, Var]:
    """Pairs of two symbols say that these are equal: for each such symbol, the one of its class that comes first in
    `order`."""
    same: dict[Var, Var] = {}

    def first(v: Var) -> Var:
        return first(same[v]) if v in same else v

    for a, b in pairs:
        if isinstance(a, Var) and isinstance(b, Var) and a in order and b in order and first(a) is not first(b):
            early, deferred = sorted((first(a), first(b)), key=order.index)
            same[deferred] = early
    return {v: first(v) for v in same}


def shared_ranges(same: Mapping[Var, Var]) -> tuple[dict[Var, Var], dict[str, Dim]]:
    """The equalities that `joined` returns whose symbols have a size in common, and the range that all symbols
    of a class have in common, by the name of its first one. An equality is left out if the caller's ranges exclude it.
    """
    more: dict[Var, Var] = {}
    ranges_of: dict[str, Dim] = {}
    for v, w in same.items():
        own, of_all = (Dim(x.lo or 0, x.hi, x.multiple) for x in (v, w))
        both = ranges_of.get(w.name, of_all).within(own) if own != Dim() else ranges_of.get(w.name)
        if both is None or both.hi is None or -(-both.lo // both.multiple) * both.multiple <= both.hi:
            more[v] = w
            ranges_of |= {} if both is None else {w.name: both}
    return more, ranges_of


def _divisor(symbol: Var, pairs: Sequence[tuple[Expr, Expr]]) -> int | None:
    step = symbol.multiple
    sizes = range(START * step, START * step + 2 * MAX_DIVISOR * step, step)
    fitting = [n for n in sizes if all(_equal(a, b, symbol, n) for a, b in pairs)]
    by = gcd(*fitting)
    if not fitting or by == step or fitting != [n for n in sizes if n % by == 0]:
        return None
    least = -(-max(symbol.lo or 1, 1) // by) * by
    if symbol.hi is not None and least > symbol.hi:
        return None
    return by if all(_equal(a, b, symbol, n) for n in (least, least + by) for a, b in pairs) else None


def _equal(a: Expr, b: Expr, symbol: Var, value: int) -> bool:
    return _size(a, b, symbol, value) is not None


def _size(a: Expr, b: Expr, symbol: Var, value: int) -> int | None:
    """The value of `a` and `b` where the symbol has this value; None if they differ."""
    numbers: dict[Var, Expr] = {symbol: const(value)}
    left, right = (as_int(simplify(substitute(e, numbers))) for e in (a, b))
    return left if left == right else None
