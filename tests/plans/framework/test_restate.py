"""Operators stated anew in blocks: the same stages by name, the same results, and nothing else is touched."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.algorithms.winograd.test_plan import layer
from tilewright import te
from tilewright.algorithms.winograd.operators.convolution import CONV_WINOGRAD
from tilewright.algorithms.winograd.plan.convolution import candidates, in_blocks
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.loops import Block, For, PrimFunc
from tilewright.ir.rewrite import walk
from tilewright.plans import plan
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.restate import restate
from tilewright.support.errors import ScheduleError
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.split import split_prepare
from tilewright.transform.lower import lower_group

TARGET = Target.parse("x86-64-v3")


def convolution() -> PrimFunc:
    """Winograd's convolution with a bias and an activation, on a map that no block divides."""
    graph = layer(4, 1, 8, 8, (19, 13), (1, 1, 1, 1), (1, 1))
    func = next(
        lower_group(g, "k").func
        for g in fuse(split_prepare(graph).run)
        if any(n.op == CONV_WINOGRAD.name for n in g.nodes)
    )
    return func


def names(func: PrimFunc) -> list[str]:
    """The names of all loops and blocks, in order."""
    return [s.name if isinstance(s, Block) else s.var.name for s in walk(func.body) if isinstance(s, Block | For)]


def test_names_stay_and_results_too() -> None:
    func = convolution()
    structure, rng = analyse(func), np.random.default_rng(0)
    arrays = [rng.standard_normal([int(str(d)) for d in b.shape]).astype(np.float32) for b in func.params]
    *inputs, out = arrays
    want = np.ones_like(out)
    interpret(func, [*inputs, want])
    names_of_sizes = ("tilerows", "tilecolumns")
    blocks = {tuple(c.knob(n) for n in names_of_sizes) for c in candidates(structure, TARGET)}
    assert len(blocks) > 4
    every = 5 if os.environ.get("TILEWRIGHT_FUZZ") else 30  # a second of interpretation each
    for block in sorted(blocks)[::every]:
        stated = in_blocks(func, dict(zip(names_of_sizes, block, strict=True)))
        assert names(stated) == names(func) and stated.params == func.params
        got = np.ones_like(out)
        interpret(stated, [*inputs, got])
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())


def test_other_stages_are_refused() -> None:
    structure = analyse(convolution())
    conv = structure.operator(CONV_WINOGRAD)
    assert conv is not None
    (x,) = conv.stage("strip").reads
    with pytest.raises(ScheduleError, match="other stages"):
        restate(structure, conv, (x,), lambda x: te.compute(x.shape, lambda *at: x[at] + 1.0, name="one"))


def test_what_is_selected_is_what_is_shown() -> None:
    planned = plan(convolution(), TARGET)
    assert planned.plan == "winograd" and "tilerows=" in planned.describe()
    assert planned.least.cycles <= planned.chosen.cycles
