"""Convolutions of two filters by their taps: when, and which of their ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.oracle import check
from tests.transform.select.graphs import OLD, ZEN4, conv, surroundings
from tilewright.algorithms.taps.estimate import choices, with_taps
from tilewright.algorithms.taps.selection import Taps
from tilewright.algorithms.winograd.selection import Winograd
from tilewright.ir.selection import Algorithm
from tilewright.targets.target import Target
from tilewright.transform.select.convolution import convolution_algorithm
from tilewright.transform.select.nchw import conversion

NARROW = conv("1, 64, 28, 28", "2, 64, 7, 7", "1, 2, 28, 28", "pads = [3, 3, 3, 3]")


ONES = {"strides": (1, 1), "dilations": (1, 1)}


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((2, 18, 5, 4), {"window": (3, 3), "pads": (1, 1, 1, 1), **ONES}),
        ((1, 5, 3, 7), {"window": (1, 5), "pads": (0, 4, 0, 1), **ONES}),
        ((1, 6, 6, 9), {"window": (3, 2), "pads": (2, 0, 1, 3), "strides": (2, 1), "dilations": (1, 3)}),
    ],
)
def test_the_expression_of_sums_over_taps_equals_its_reference(shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    check("lowered.sum_taps", np.random.default_rng(0).standard_normal(shape).astype(np.float32), **attrs)


@pytest.mark.parametrize("target", [ZEN4, OLD])
def test_two_filters_are_computed_by_their_taps(target: Target) -> None:
    a = surroundings(NARROW, target)
    assert convolution_algorithm(a, a.graph.nodes[-1]) == Taps(1, 1)
    full = surroundings(NARROW.replace("2, 64, 7, 7", "16, 64, 7, 7").replace("1, 2, 28", "1, 16, 28"), target)
    assert not isinstance(convolution_algorithm(full, full.graph.nodes[-1]), Taps)


def test_ways_of_taps_by_window_and_memory() -> None:
    """One line leaves no columns; more than 64 taps are not summed at once; and maps of large images do not
    take more than four times their input."""
    for text, expected in (
        (NARROW, [Taps(1, 1), Taps(1, 0), Taps(0, 0)]),
        (conv("1, 64, 1, 28", "2, 64, 1, 7", "1, 2, 1, 28", "pads = [0, 3, 0, 3]"), [Taps(1, 1), Taps(1, 0)]),
        (conv("1, 64, 28, 28", "2, 64, 9, 9", "1, 2, 28, 28", "pads = [4, 4, 4, 4]"), [Taps(0, 0)]),
        (conv("1, 8, 256, 256", "2, 8, 7, 7", "1, 2, 256, 256", "pads = [3, 3, 3, 3]"), [Taps(0, 0)]),
        (conv("1, 64, 28, 28", "2, 64, 1, 1", "1, 2, 28, 28", "pads = [0, 0, 0, 0]"), []),
    ):
        assert list(choices(surroundings(text).graph.nodes[-1], ZEN4)) == expected


def test_layouts_that_taps_change_count_for_them() -> None:
    """Taps read NCHW maps and write NCHW maps."""
    a = surroundings(NARROW)
    node, x = a.graph.nodes[-1], a.graph.inputs[0]
    ways: list[tuple[float, Algorithm]] = [(1e6, Winograd(4, 32, 1))]
    first, (whole, *_) = with_taps(a, node, ways)[0], with_taps(a, node, ways)[1:]
    before, after = conversion(x, ZEN4), conversion(node.output, ZEN4)
    assert first[0] == pytest.approx(1e6 + before + after)
    a.blocked.add(x)
    del a.row_major_use[node.output]
    second, (other, *_) = with_taps(a, node, ways)[0], with_taps(a, node, ways)[1:]
    assert second[0] == 1e6 and other[0] == pytest.approx(whole[0] + before + after)
