"""Two layouts of the filters of one convolution, for maps of different sizes: which two, and when each is used.

A transform's time is estimated as a line over the number of its tiles,

    cycles = each * tiles + fixed

where `fixed` is the time to stream the filters, for any map. Each call compares two lines
(`winograd/operators/by_size.py`), and so chooses by the number of tiles, which accounts for partial tiles and for large
filters on small maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations

from tilewright.algorithms.winograd.plan.tiles import (
    WinogradProblem,
    blocked,
    cost,
    direct,
    mean,
    ranked,
    tiles_of,
    unshared_penalty,
)
from tilewright.algorithms.winograd.selection import Winograd, WinogradBySize
from tilewright.ir.selection import Direct
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

MIN_GAIN = 1.03
"""The least factor by which two layouts must beat the best single one in the mean, to pay for memory and code: the
temporaries of both versions are in a call's arena."""

PAIRED = 4
"""The number of layouts that are tried in pairs: those that are best over all sizes, besides the best one for each
size."""

Layout = Direct | Winograd


@dataclass(frozen=True, slots=True)
class Line:
    """The estimated cycles of a convolution in one layout of its filters, as a linear function of the number of tiles
    (of pixels for the direct algorithm)."""

    layout: Layout
    each: int
    fixed: int

    def at(self, shape: WinogradProblem) -> int:
        return self.each * _count(shape, self.layout) + self.fixed


def with_pairs(
    shapes: tuple[WinogradProblem, ...],
    small: tuple[WinogradProblem, ...],
    tiles: tuple[int, ...],
    target: Target,
    *,
    directly: bool,
) -> tuple[tuple[float, Layout | WinogradBySize], ...]:
    """(cycles per image, layout) of all single layouts, for maps as in `shapes`, and of the best pair of layouts if
    there are several sizes of maps; the best first. Pairs are also estimated for the `small` maps. `directly`: whether
    the direct algorithm may be one of a pair."""
    single = ranked(shapes, tiles, target)
    result = best_pair(shapes, small, tiles, target, directly)
    return single if result is None else tuple(sorted((*single, result), key=lambda option: option[0]))


@lru_cache(maxsize=256)
def best_pair(
    shapes: tuple[WinogradProblem, ...],
    small: tuple[WinogradProblem, ...],
    tiles: tuple[int, ...],
    target: Target,
    directly: bool,
) -> tuple[float, WinogradBySize] | None:
    """(estimate, the best pair of layouts, between which an image's size decides). The estimate is the mean cycles of
    the best single layout for `shapes`, divided by the pair's gain and multiplied by `MIN_GAIN`, so that it exceeds the
    single layout's if the gain is less. `small`: further sizes that the pair is estimated for; `directly`: whether the
    direct algorithm may be one of the pair. None if there is no pair, or for fewer than two sizes or equal ones."""
    single = ranked(shapes, tiles, target)
    options, sizes = [layout for _, layout in single], (*shapes, *small)
    if len(sizes) < 2 or len({(s.height, s.width) for s in sizes}) != len(sizes):
        return None
    times = {layout: tuple(_cycles(s, shapes, layout, target) for s in sizes) for layout in options}
    retained = dict.fromkeys(options[:PAIRED])
    retained.update((min(options, key=lambda o: times[o][k]), None) for k in range(len(sizes)))
    lines = [_line(sizes, layout, times[layout]) for layout in retained]
    pairs = [
        (mean(_together(outer, inner, sizes, times), sizes), outer, inner)
        for outer, inner in permutations(lines, 2)
        if isinstance(outer.layout, Winograd) and (directly or isinstance(inner.layout, Winograd))
    ]
    if not pairs:
        return None
    cycles, outer, inner = min(pairs, key=lambda pair: pair[0])
    gain = mean(times[options[0]], sizes) / cycles
    return single[0][0] / gain * MIN_GAIN, _selected(outer, inner)


def _selected(outer: Line, inner: Line) -> WinogradBySize:
    first, second = outer.layout, inner.layout
    assert isinstance(first, Winograd)
    sizes = (second.tile, second.width, second.panels) if isinstance(second, Winograd) else (0, 0, 0)
    costs = (outer.each, outer.fixed, inner.each, inner.fixed)
    return WinogradBySize(first.tile, first.width, first.panels, *sizes, costs)


def _together(
    outer: Line, inner: Line, shapes: Sequence[WinogradProblem], times: dict[Layout, tuple[float, ...]]
) -> list[float]:
    """The cycles for each of `shapes` if the layout is used whose line predicts less; `times` are the estimates of each
    layout."""
    selected = [inner if inner.at(s) < outer.at(s) else outer for s in shapes]
    return [times[line.layout][k] for k, line in enumerate(selected)]


def _count(shape: WinogradProblem, layout: Layout) -> int:
    return tiles_of(shape, layout) if isinstance(layout, Winograd) else shape.images * shape.pixels


def _cycles(shape: WinogradProblem, shapes: tuple[WinogradProblem, ...], layout: Layout, target: Target) -> float:
    """The estimated cycles for maps of one size, `shape`, in a layout, with the blocks of tiles that are best over all
    sizes."""
    if isinstance(layout, Direct):
        return direct(shape, target) * shape.images
    _, block = blocked(shapes, layout, target)[0]
    return cost(shape, layout, block, target).cycles * unshared_penalty(shape, layout, block, target)


def _line(shapes: Sequence[WinogradProblem], layout: Layout, cycles: Sequence[float]) -> Line:
    """The line over numbers of tiles that fits the estimated `cycles` with the least relative squared errors."""
    counts = [_count(s, layout) for s in shapes]
    weights = [1.0 / c**2 for c in cycles]
    total = sum(weights)
    middle = sum(w * n for w, n in zip(weights, counts, strict=True)) / total
    level = sum(w * c for w, c in zip(weights, cycles, strict=True)) / total
    spread = sum(w * (n - middle) ** 2 for w, n in zip(weights, counts, strict=True))
    slope = 0.0
    if spread > 0:
        both = zip(weights, counts, cycles, strict=True)
        slope = sum(w * (n - middle) * (c - level) for w, n, c in both) / spread
    slope = max(0.0, min(slope, level / middle))
    return Line(layout, round(slope), round(level - slope * middle))
