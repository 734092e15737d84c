"""The values of symbolic dimensions for which a model is valid: those for which the shapes that it adds or joins match.

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
    """For each symbol's name the number m such that each pair of sizes is equal exactly where the symbol is a multiple
    of m; {} if some symbol has no such m. Where a pair has several symbols, each is examined while all others are
    multiples of `ROUND`, a number with many divisors."""
    result = {symbol.name: _divisor(symbol, own) for symbol, own in _by_symbol(pairs).items()}
    if not all(result.values()):
        return {}
    for symbol, own in _while_others_are_round(pairs).items():
        if by := _divisor(symbol, own):
            result[symbol.name] = lcm(by, result.get(symbol.name) or 1)
    return {name: by for name, by in result.items() if by}


def _while_others_are_round(pairs: Sequence[tuple[Expr, Expr]]) -> dict[Var, list[tuple[Expr, Expr]]]:
    """Symbol -> the pairs of sizes that have it among several symbols, with the other ones replaced by multiples of
    `ROUND`. Pairs with a minimum or maximum are left out, since a large number decides these."""
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
    """Symbol -> those of `pairs` (of sizes to compare) that contain it and no other symbol; pairs without symbols or
    with several are left out."""
    result: dict[Var, list[tuple[Expr, Expr]]] = {}
    for a, b in dict.fromkeys(pairs):
        symbols = set(variables(a)) | set(variables(b))
        if len(symbols) == 1:
            result.setdefault(symbols.pop(), []).append((a, b))
    return result


def sufficient(pairs: Sequence[tuple[Expr, Expr]]) -> dict[str, int]:
    """Symbol name -> the smallest number m such that each pair of sizes is equal where the symbol is a multiple of m;
    other values may make them equal, too. Symbols without such a number are left out."""
    result = {}
    for symbol, own in _by_symbol(pairs).items():
        for by in range(2 * symbol.multiple, MAX_DIVISOR + 1, symbol.multiple):
            if all(_equal(a, b, symbol, n * by) for n in (*range(1, MAX_DIVISOR), START) for a, b in own):
                result[symbol.name] = by
                break
    return result


def ranges(pairs: Sequence[tuple[Expr, Expr]]) -> dict[str, Dim]:
    """Symbol name -> the one range of its values in which both sizes of each pair are equal, for pairs with a minimum
    or maximum: `min(n, 64)` and `n` are equal up to 64. Pairs that restrict nothing are left out."""
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
    """The one interval of values of `symbol` in which sizes `a` and `b` are equal; among several the one in which they
    are not 0 either. None if no interval, several, or all values remain."""
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
    """Some numbers from `begin` to `end`, sorted, at which to compare sizes: 24 at either end, and about 8 evenly
    spaced."""
    inner = 24
    between = range(begin, end + 1, max(1, (end - begin) // 7))
    return sorted({*range(begin, min(begin + inner, end + 1)), *range(max(end - inner, begin), end + 1), *between})


def _turns(e: Expr, symbol: Var, first: int, last: int) -> list[int]:
    """The numbers n, `first` < n <= `last`, at which the two arguments of a minimum or maximum in `e` become equal or
    change their order, where `symbol` is n * `symbol.multiple`. From one of them to the next, each minimum and maximum
    selects one argument throughout. Those that mention other symbols are left out."""
    results = []
    for atom in walk_expr(e):
        if type(atom) is Op and atom.name in ("min", "max") and set(variables(atom)) == {symbol}:
            difference = atom.args[0] - atom.args[1]
            results += [_first_above(end, difference, symbol, first, last) for end in (-1, 0)]
    return [n for n in results if n is not None]


def _first_above(end: int, e: Expr, symbol: Var, low: int, high: int) -> int | None:
    """The least n above `low` at which the truth of `e > end` differs from that at `low`; None if it does not differ at
    `high`. In `e`, which must be monotonic, `symbol` is n * `symbol.multiple`. Searches by bisection."""

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
    """A condition without minima and maxima that implies `a == b`, or None if none was derived. For sizes `min(past +
    seq, 64) - min(past, 64)` and `seq` it is `past + seq <= 64`."""
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
    """A condition on remainders that implies `a == b`: for `n + -n % 4` and `n` it is `n % 4 == 0`. If none was
    derived, `a == b` itself."""
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
    """Whether `result` is true wherever `wanted` is, tested on random sizes."""
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
    """Symbol -> the symbol that it equals according to `pairs`, where both are single symbols; of several equal ones it
    is the first in `order`, which itself is no key."""
    same: dict[Var, Var] = {}

    def first(v: Var) -> Var:
        return first(same[v]) if v in same else v

    for a, b in pairs:
        if isinstance(a, Var) and isinstance(b, Var) and a in order and b in order and first(a) is not first(b):
            early, deferred = sorted((first(a), first(b)), key=order.index)
            same[deferred] = early
    return {v: first(v) for v in same}


def shared_ranges(same: Mapping[Var, Var]) -> tuple[dict[Var, Var], dict[str, Dim]]:
    """From `same` (symbol -> equal symbol): those equalities whose symbols have common values, and the common range of
    each class, by the name of its first symbol. An equality that the caller's ranges exclude is left out."""
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
    """The value of sizes `a` and `b` where `symbol` has this value, if it is the same for both; else None."""
    numbers: dict[Var, Expr] = {symbol: const(value)}
    left, right = (as_int(simplify(substitute(e, numbers))) for e in (a, b))
    return left if left == right else None
