"""Draws of the cases of a test, by node ids: those with most values of parameters, and those of a day."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random


def sampled(cases: Sequence[str], count: int) -> list[str]:
    """`count` of a test's cases. Each is the one with the most values of parameters that no case before it has, so that
    where cases are the product of several lists every value is there as soon as can be, and again when all have been.
    Which of equal ones comes first is drawn, in the same way in each run and for each worker."""
    if count >= len(cases):
        return list(cases)
    left = sorted(cases)
    Random(left[0].partition("[")[0]).shuffle(left)
    values = {case: set(enumerate(case.partition("[")[2].split("-"))) for case in left}
    retained: list[str] = []
    seen: set[tuple[int, str]] = set()
    while len(retained) < count:
        if all(values[case] <= seen for case in left):
            seen.clear()
        case = max(left, key=lambda case: len(values[case] - seen))
        left.remove(case)
        retained.append(case)
        seen |= values[case]
    return retained


def of_the_day(cases: Sequence[str], days: int, day: int) -> list[str]:
    """The cases of a day: in `days` days that follow each other each case has one turn, and a test with fewer cases has
    one on every day. `sampled` draws each day's cases from those that the days before it leave."""
    days = min(days, len(cases))
    left, turn = list(cases), day % days
    for k in range(turn):
        before = set(sampled(left, len(left) // (days - k)))
        left = [case for case in left if case not in before]
    return sampled(left, len(left) // (days - turn))
