"""Reductions beside the backward pass: the bits of reductions in turn, errors, and that both go on at once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.collective.ranks import in_threads
from tests.train.test_recompute import batch, chain
from tilewright.collective.group import Group
from tilewright.support.errors import CallError
from tilewright.train.entry import compile_step

Array = np.ndarray[Any, Any]


def learned(group: Group, overlaps: bool) -> Array:
    reduce: Any = tw.train.averaged(group)
    if overlaps:
        reduce = tw.train.overlapped(reduce)
    step = compile_step(chain(2), optimizer=tw.train.SGD(0.1), reduce=reduce, bucket=256)
    for k in range(4):
        step(batch(k + 10 * group.rank))
    if overlaps:
        reduce.close()
    return np.concatenate([np.ravel(v) for v in step.weights.values()])


def test_weights_are_those_of_reductions_in_turn(tmp_path: Path) -> None:
    results = [in_threads(2, tmp_path, lambda group, o=o: learned(group, o)) for o in (False, True)]
    for one in (results[0][1], *results[1]):
        np.testing.assert_array_equal(one, results[0][0])


def test_the_way_back_goes_on_meanwhile() -> None:
    parts, gate = list[int](), threading.Event()

    def slow(part: Array) -> None:
        if not parts:
            assert gate.wait(30)  # until a later part is there: in turns that would never be
        parts.append(part.size)

    reduce = tw.train.overlapped(slow)
    pushed = list[int]()

    def counted(part: Array) -> Any:
        pushed.append(part.size)
        work = reduce(part)
        if len(pushed) == 2:
            gate.set()
        return work

    step = compile_step(chain(2), optimizer=tw.train.SGD(0.1), reduce=counted, bucket=256)
    with reduce.record() as recording:
        step(batch(0))
    assert parts == pushed
    assert len(parts) > 1
    assert [r.name for r in recording.ran][: len(parts)] == ["reduce"] * len(parts)
    reduce.close()


def test_errors_come_with_the_step_and_end_with_it() -> None:
    fail = [True]

    def broken(part: Array) -> None:
        if fail[0]:
            raise ValueError("the link is down")

    reduce = tw.train.overlapped(broken)
    step = compile_step(chain(2), optimizer=tw.train.SGD(0.1), reduce=reduce, bucket=256)
    before = {n: np.array(v) for n, v in step.weights.items()}
    with pytest.raises(CallError, match="the link is down"):
        step(batch(0))
    for name, value in step.weights.items():
        np.testing.assert_array_equal(value, before[name])
    fail[0] = False
    step(batch(0))
    reduce.close()
