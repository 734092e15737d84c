"""The numbers at which a symbolic dimension is estimated: batches of all sizes count equally, and none is chosen
because benchmarks measure it.

An estimate needs numbers. The logarithms of batches are assumed to be evenly distributed, so the numbers are a
geometric sequence. Rounded, they have no common divisor, so that partial tiles count as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewright.arith import Analyzer, simplify
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.rewrite import substitute, variables

FEWEST = 3
"""The least number of values at which a bounded range is estimated."""
MAX_VALUES = 5
"""The largest number of values of a symbol all of which are estimated."""


def geometric(most: int, count: int) -> tuple[int, ...]:
    """`count` numbers from 1 to `most`, each the same multiple of the one before, rounded."""
    return tuple(round(most ** (k / (count - 1))) for k in range(count))


def values_of(extent: Expr, usual: Sequence[int]) -> tuple[int, ...]:
    """The numbers at which an extent is estimated; they have equal weight. A constant is estimated at its value, an
    extent whose symbols have likely values at these, and one with few possible values at all of them. Other extents are
    estimated at the numbers of `usual` within their bounds, or, if there are fewer than `FEWEST` of these and both
    bounds are known, at the bounds and their geometric mean."""
    known = as_int(extent)
    if known is not None:
        return (max(1, known),)
    symbols = variables(extent)
    if symbols and all(s.likely for s in symbols):
        return tuple(at(extent, symbols, k) for k in range(max(len(s.likely) for s in symbols)))
    if fewer := listed_values_of(extent):
        return fewer
    lo, hi = Analyzer().bounds(extent)
    least = max(1, lo or 1)
    most = max(*usual, least) if hi is None else max(1, hi)
    inside = tuple(n for n in usual if least <= n <= most)
    if hi is None or len(inside) >= FEWEST:
        return inside or (least,)
    # Few of the usual are in a narrow range: its ends, and what lies between them.
    return tuple(dict.fromkeys(round(least * (most / least) ** (k / (FEWEST - 1))) for k in range(FEWEST)))


def listed_values_of(extent: Expr) -> tuple[int, ...]:
    """All values of an extent that depends on one symbol with at most `MAX_VALUES` values; () for other extents."""
    symbols = variables(extent)
    symbol = symbols[0] if len(symbols) == 1 else None
    if symbol is None or symbol.hi is None:
        return ()
    by = symbol.multiple
    values = range(-(-(symbol.lo or 1) // by) * by, symbol.hi + 1, by)
    return tuple(dict.fromkeys(where(extent, {symbol: const(n)}) for n in values)) if len(values) <= MAX_VALUES else ()


def maps_of(height: Expr, width: Expr) -> tuple[tuple[int, int], ...]:
    """The pairs (height, width) at which a map with these extents is estimated; all have equal weight."""
    rows, columns = sides_of(height), sides_of(width)
    count = max(len(rows), len(columns))
    return tuple((rows[k % len(rows)], columns[k % len(columns)]) for k in range(count))


def sides_of(extent: Expr) -> tuple[int, ...]:
    """Numbers of equal weight at which a height or width is estimated: as `values_of`, but for a longer bounded range
    the middles of its thirds, since its lower end, such as maps of one pixel, is rarely meant."""
    lo, hi = Analyzer().bounds(extent)
    symbols = variables(extent)
    if not symbols or hi is None or all(s.likely for s in symbols):
        return values_of(extent, SYMBOLIC_SIDES)
    if fewer := listed_values_of(extent):
        return fewer
    least = max(1, lo or 1)
    return tuple(dict.fromkeys(round(least + (max(least, hi) - least) * third) for third in (1 / 6, 1 / 2, 5 / 6)))


def instances_of(extents: Iterable[Expr]) -> tuple[dict[Var, Expr], ...]:
    """Assignments to the symbols of `extents` at which a function is estimated, each symbol -> number; one empty
    assignment if there are no symbols."""
    symbols = list(dict.fromkeys(v for e in extents for v in variables(e)))
    sides = {s: sides_of(s) for s in symbols}
    count = max(map(len, sides.values()), default=1)
    return tuple({s: const(sides[s][k % len(sides[s])]) for s in symbols} for k in range(count))


def small_maps_of(height: Expr, width: Expr) -> tuple[tuple[int, int], ...]:
    """Pairs (height, width) smaller than all of `maps_of`, for extents with a range of values: for small maps another
    choice may be best. () if the sizes are known or have likely values."""
    rows, columns = small_sides_of(height), small_sides_of(width)
    count = max(len(rows), len(columns))
    rows, columns = (small or sides_of(side)[:1] for small, side in ((rows, height), (columns, width)))
    return tuple((rows[k % len(rows)], columns[k % len(columns)]) for k in range(count))


def small_sides_of(extent: Expr) -> tuple[int, ...]:
    """Values of an extent, in geometric sequence, between its lower bound and the smallest value at which it is
    estimated; () if it is constant, unbounded, or has likely values."""
    lo, hi = Analyzer().bounds(extent)
    symbols = variables(extent)
    if not symbols or hi is None or all(s.likely for s in symbols):
        return ()
    least, first = max(1, lo or 1), sides_of(extent)[0]
    results = (round(least * (first / least) ** (k / FEWEST)) for k in range(1, FEWEST))
    return tuple(dict.fromkeys(n for n in results if n < first))


def estimated_at(symbol: Var) -> tuple[int, ...]:
    """The values at which a symbol for a height or width is estimated: its likely ones, or else values over its range,
    small ones included; () if it has no upper bound."""
    if symbol.likely or symbol.hi is None:
        return symbol.likely
    by = symbol.multiple
    least, most = -(-(symbol.lo or 1) // by) * by, symbol.hi // by * by
    results = (*small_sides_of(symbol), *sides_of(symbol))
    return tuple(dict.fromkeys(min(most, max(least, round(n / by) * by)) for n in results))


def at(extent: Expr, symbols: Sequence[Var], place: int) -> int:
    """The value of `extent` where each of `symbols` has its likely value number `place`, counted modulo the number of
    its likely values."""
    return where(extent, {s: const(s.likely[place % len(s.likely)]) for s in symbols})


def where(extent: Expr, numbers: Mapping[Var, Expr]) -> int:
    """The value of `extent` with its symbols replaced by `numbers`; at least 1."""
    return max(1, as_int(simplify(substitute(extent, numbers))) or 1)


SYMBOLIC_ROWS = geometric(96, 6)
"""The numbers at which a symbolic number of rows is estimated, with equal weights: 1, 2, 6, 15, 39, 96. In the mean
over all batches from 2 to 128, tiles chosen by these are estimated to be as near to each batch's best as tiles chosen
by 4, 30 and 64, which the benchmarks measure, or nearer, on Zen 4, AVX2, AVX-512 and Neoverse V1."""
LONG_ROWS = SYMBOLIC_ROWS[1:]
"""The batches by which settings for several rows are chosen: a single row has a separate version."""
SYMBOLIC_SIDES = (7, 28, 112)
"""The heights and widths that are assumed for unknown maps: those of deep, middle and first layers of image
networks."""
SYMBOLIC_IMAGES = geometric(25, 3)
"""The numbers of images that are assumed for an unknown one: 1, 5, 25. One image is enough work already, so that few
suffice."""
