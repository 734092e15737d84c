"""Gradients that others change before parameters move; processes that learn on parts of a batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.train.test_recompute import batch, chain
from tilewright.support.errors import Error
from tilewright.train.arena import Arena
from tilewright.train.entry import compile_step
from tilewright.train.optimizers import Adam
from tilewright.train.reduced import buckets

Array = np.ndarray[Any, Any]


def weights(step: Any) -> Array:
    return np.concatenate([np.ravel(v) for v in step.weights.values()])


@pytest.mark.parametrize("clip", [None, 0.1])
def test_what_changes_nothing_is_a_plain_step(clip: float | None) -> None:
    seen: list[Array] = []
    plain = compile_step(chain(3), optimizer=Adam(0.01), clip=clip)
    parted = compile_step(chain(3), optimizer=Adam(0.01), clip=clip, reduce=lambda g: seen.append(g.copy()))
    for k in range(5):
        one, other = plain(batch(k)), parted(batch(k))
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-6)
    np.testing.assert_allclose(weights(parted), weights(plain), rtol=1e-5, atol=1e-7)
    assert len(seen) == 5  # small gradients are one part
    assert np.linalg.norm(seen[-1]) == pytest.approx(other["gradient_norm"], rel=1e-5)


def test_parameters_move_by_what_is_left() -> None:
    """Parameters move once what was begun has ended."""

    class Work:
        def __init__(self, part: Array) -> None:
            self.part = part

        def wait(self) -> None:
            self.part *= 2

    plain = compile_step(chain(2), optimizer=tw.train.SGD(0.2))
    doubled = compile_step(chain(2), optimizer=tw.train.SGD(0.1), reduce=Work)
    norms = plain(batch(0))["gradient_norm"], doubled(batch(0))["gradient_norm"]
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-6)
    np.testing.assert_allclose(weights(doubled), weights(plain), rtol=1e-6, atol=1e-8)


def test_the_last_parameters_come_first() -> None:
    arena = Arena(("a", "b", "c", "d"), ((16,), (32,), (5,), (16,)))
    assert buckets(arena, 1) == ((64, 80), (48, 64), (16, 48), (0, 16))
    assert buckets(arena, 128) == ((48, 80), (16, 48), (0, 16))
    assert buckets(arena, 1 << 20) == ((0, 80),)


def test_what_is_not_finite_leaves_no_trace() -> None:
    def spoil(part: Array) -> None:
        part[0] = np.nan

    step = compile_step(chain(2), reduce=spoil)
    before = weights(step).copy()
    with pytest.raises(Error, match="parameters are as they were"):
        step(batch(0))
    np.testing.assert_array_equal(weights(step), before)
    assert step.count == 0


def test_one_stage_and_one_batch() -> None:
    with pytest.raises(Error, match="of one stage and one batch"):
        compile_step(chain(2), accumulate=2, reduce=lambda g: None)


LEARNER = """
import sys
import numpy as np
import torch
from torch import distributed
import tilewright as tw
from tests.train.test_recompute import batch, chain

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
step = tw.compile_step(chain(3, rows=256), optimizer=tw.train.Adam(0.01), clip=0.1, reduce=tw.train.averaged())
for k in range(5):
    step(batch(k)[256 * rank : 256 * rank + 256])
np.save(out, np.concatenate([np.ravel(v) for v in step.weights.values()]))
distributed.destroy_process_group()
"""


def test_processes_learn_as_one(tmp_path: Path) -> None:
    """The mean of the gradients of two halves of a batch is that of the batch."""
    pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
    outs = [tmp_path / f"{rank}.npy" for rank in range(2)]
    command = [sys.executable, "-c", LEARNER]
    learners = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store"), str(out)]) for rank, out in enumerate(outs)
    ]
    assert [learner.wait(120) for learner in learners] == [0, 0]
    first, second = (np.load(out) for out in outs)
    np.testing.assert_array_equal(first, second)
    whole = compile_step(chain(3), optimizer=Adam(0.01), clip=0.1)
    for k in range(5):
        whole(batch(k))
    np.testing.assert_allclose(first, weights(whole), rtol=1e-4, atol=1e-6)
