"""A caller's knowledge of a symbolic dimension: its range, a known divisor, and its likely values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import lcm
from operator import index
from types import NoneType
from typing import Any

from tilewright.ir.expr import Expr, Var, as_expr
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError
from tilewright.support.options import check_option

LIKELY_COUNT = 8
"""The largest number of values of equal weight that stand for a distribution of sizes: enough to choose tiles as well
as by all of its values."""
MAX_DIM = (1 << 31) - 1
"""The largest value of a dimension for which no upper bound is stated."""


@dataclass(frozen=True, slots=True)
class Dim:
    """The facts known of a symbolic dimension: its values are from `lo` to `hi` (inclusive; None: no upper bound is
    known) and multiples of `multiple`. `likely` are values of equal weight, in order; one may occur several times."""

    lo: int = 1
    hi: int | None = None
    multiple: int = 1
    likely: tuple[int, ...] = ()

    def var(self, name: str, needs: Dim | None = None) -> Var:
        """The symbol `name` for this dimension, restricted to the range and multiple `needs` that the model
        requires."""
        both = self.within(needs or Dim(0))
        likely = tuple(n for n in self.likely if n % both.multiple == 0 and both.lo <= n <= (both.hi or n))
        return Var(name, lo=both.lo, hi=both.hi, multiple=both.multiple, likely=likely)

    def within(self, other: Dim) -> Dim:
        """The dimension whose values are those of both; likely values are dropped."""
        ends = [end for end in (self.hi, other.hi) if end is not None]
        return Dim(max(self.lo, other.lo), min(ends, default=None), lcm(self.multiple, other.multiple))

    def __str__(self) -> str:
        text = f"{self.lo}..{'' if self.hi is None else self.hi}"
        return text if self.multiple == 1 else f"{text} % {self.multiple}"


DimSizes = Mapping[str, int | Dim]
"""For each symbolic dimension, by name, its fixed size or what the caller knows of it."""


def stated(dims: Mapping[str, Any] | None) -> DimSizes:
    """`dims`, the sizes that a caller passes, with all integers as `int`. Raises ModelError for other values."""
    check_option("dims", dims, (Mapping, NoneType), "a dict of sizes by name")
    result: dict[str, int | Dim] = {}
    for name, said in (dims or {}).items():
        try:
            result[name] = said if isinstance(said, Dim) else index(said)
        except TypeError:
            what = f"no size of dimension {name!r}"
            raise ModelError(what, expected="a whole number or tw.dim(...)", got=repr(said)) from None
    return result


def dim(
    lo: int = 1, hi: int | None = None, *, multiple: int = 1, likely: Iterable[int] | Mapping[int, float] = ()
) -> Dim:
    """A symbolic dimension, for `tw.compile(model, dims={"seq": tw.dim(1, 512, likely=[32, 64, 128])})`.

    Args:
        lo, hi: the smallest and the largest value that calls may have; others are refused when called.
        multiple: a number that divides every value. A convolution over maps of a multiple of its tile has no tail.
        likely: values for which tiles and algorithms are chosen: a list, or a histogram {value: how often}. All other
            values run the same code.

    Raises ModelError if no value is left, or a likely one is not among them.
    """
    numbers = {"lo": lo, "hi": MAX_DIM if hi is None else hi, "multiple": multiple}
    for what, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_DIM:
            raise ModelError(f"{what} of a dimension must be a size", expected=f"0..{MAX_DIM}", got=repr(number))
    first = -(-lo // multiple) * multiple if multiple else lo
    if multiple == 0 or first > numbers["hi"]:
        raise ModelError("a dimension has no value", expected="lo <= a multiple <= hi", got=f"{lo}..{hi} % {multiple}")
    check_option("likely", likely, Iterable, "sizes, or how often each occurs")
    counts = dict(likely) if isinstance(likely, Mapping) else _counted(likely)
    for value, count in counts.items():
        if not isinstance(value, int) or not lo <= value <= numbers["hi"] or value % multiple:
            raise ModelError("a likely value is not in range", expected=str(Dim(lo, hi, multiple)), got=repr(value))
        if not 0 <= count < float("inf"):
            raise ModelError("a histogram counts how often", expected="a number, not negative", got=repr(count))
    return Dim(lo, hi, multiple, quantiles(counts))


def _counted(values: Iterable[int]) -> dict[int, float]:
    result: dict[int, float] = {}
    for value in values:
        result[value] = result.get(value, 0.0) + 1.0
    return result


def quantiles(counts: Mapping[int, float], most: int = LIKELY_COUNT) -> tuple[int, ...]:
    """At most `most` values of equal weight that represent the histogram `counts`: its values themselves if they have
    equal weights and are few enough, else the median of each of `most` parts of equal weight."""
    order = sorted(value for value, count in counts.items() if count > 0)
    if len(order) <= most and len({counts[value] for value in order}) <= 1:
        return tuple(order)
    total, result = sum(counts[value] for value in order), []
    below, at = 0.0, 0
    for part in range(most):
        middle = (part + 0.5) * total / most
        while below + counts[order[at]] < middle and at + 1 < len(order):
            below += counts[order[at]]
            at += 1
        result.append(order[at])
    return tuple(result)


def size(name: str, dims: DimSizes, symbol: str, needs: Dim | None = None) -> Expr:
    """The size of the dimension `name`: a number if `dims` states it or leaves only one possible, else the symbol
    `symbol` with its range, multiple and likely values."""
    said = dims.get(name, Dim(1))
    if not isinstance(said, Dim):
        return as_expr(said)
    var = said.var(symbol, needs)
    least = -(-(var.lo or 0) // var.multiple) * var.multiple
    return as_expr(least) if var.hi is not None and least <= var.hi < least + var.multiple else var


__all__ = ["Dim", "DimSizes", "dim", "quantiles", "size", "stated"]
