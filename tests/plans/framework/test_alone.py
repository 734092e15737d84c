"""Work that is so little that one thread does it is planned for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilewright as tw
from tests.plans.convolution.test_convolution import TARGETS, arrays, graph_of, kernel_of
from tilewright.plans import candidates, named
from tilewright.plans.framework.alone import SMALL, alone_if_small
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.decisions import deciding

ZEN4 = TARGETS["znver4"]
# batch, channels, filters, (height, width), window, strides, pads, dilations
LITTLE = [
    (1, 52, 10, (9, 9), (5, 5), (2, 2), (0, 0, 0, 0), (2, 2)),
    (1, 78, 16, (3, 3), (3, 3), (1, 1), (0, 0, 0, 0), (1, 1)),
    (1, 22, 16, (8, 8), (5, 5), (2, 2), (0, 0, 0, 0), (1, 1)),
    (1, 24, 2, (6, 6), (3, 3), (2, 2), (2, 2, 2, 2), (2, 2)),
    (1, 29, 1, (8, 8), (7, 7), (2, 2), (0, 0, 0, 0), (1, 1)),
]
"""Each was 1.4 to 14 times slower with two threads: by other algorithms, and by plans that looked easier to share."""


def test_the_choice_for_one_is_selected_where_it_takes_little():
    two, small = replace(ZEN4, threads=2), SMALL * ZEN4.barrier

    def used_names(alone: float, shared: float) -> float:
        return alone_if_small(lambda t: [alone if t.threads == 1 else shared], float, two)[0]

    assert used_names(0.9 * small, 1.5 * small) == 0.9 * small
    assert used_names(1.1 * small, 1.5 * small) == 1.5 * small
    # It is not even asked for: what takes so long shared is not little alone.
    assert used_names(0.9 * small, 2.1 * small) == 2.1 * small
    assert alone_if_small(lambda _: [0.5 * small], float, replace(ZEN4, threads=1)) == [0.5 * small]
    assert alone_if_small(lambda _: [], float, two) == []


@pytest.mark.daily(2)
@pytest.mark.parametrize("case", LITTLE, ids=str)
def test_small_convolutions_are_the_same_for_two_threads(case):
    def decisions(threads: int) -> list[str]:
        data = arrays(case)
        with deciding() as record:
            tw.compile_program((graph_of(case), {k: data[k] for k in ("w", "bias")}), target=ZEN4, threads=threads)
        return [d.selected.label for d in record.decisions if d.key.kind != "threads"]

    # A program with so little to do that it never has a second thread is compiled once more, for one.
    one = decisions(1)
    assert decisions(2)[-len(one) :] == one


def test_a_sum_without_vectors_is_estimated_to_wait_for_each_addition():
    """Rows of blocked channels are the whole output: the sum of each goes element by element."""
    structure = analyse(kernel_of(LITTLE[0], ZEN4).func)
    (rows,) = named("rows").candidates(structure, ZEN4)
    sums = 52 * 5 * 5 * 10
    assert rows.cycles >= sums * ZEN4.costs.arithmetic.fma_latency
    assert candidates(structure, ZEN4)[0].plan == "convolution"
