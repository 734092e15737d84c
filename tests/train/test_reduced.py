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
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ops.registry import emit1
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


def test_buckets_are_handed_over_while_the_way_back_goes_on() -> None:
    """The last layer's gradients come when those of the first are not there yet; parameters are the same bits."""
    seen: list[tuple[int, Array]] = []

    def keep(part: Array) -> None:
        vector = part.base if part.base is not None else part
        seen.append((part.size, np.array(vector)))

    whole = compile_step(chain(3), optimizer=Adam(0.01), clip=0.1, reduce=lambda g: None)
    parted = compile_step(chain(3), optimizer=Adam(0.01), clip=0.1, reduce=keep, bucket=4)
    for k in range(4):
        assert whole(batch(k)) == parted(batch(k))
    np.testing.assert_array_equal(weights(parted), weights(whole))
    count = len(whole.parameters)
    assert len(seen) == 4 * count > 4
    filled = [np.count_nonzero(vector) for _, vector in seen[:count]]
    assert filled == sorted(filled) and len(set(filled)) == count  # of zeros, ever more is there
    for _, vector in seen[:count]:
        there = np.flatnonzero(vector)
        assert there[-1] == np.flatnonzero(seen[count - 1][1])[-1]  # the last ones first


def test_work_that_was_begun_ends_behind_the_way_back() -> None:
    """`wait` is called once all buckets have been handed over."""
    log: list[str] = []

    class Work:
        def __init__(self, part: Array) -> None:
            log.append("begin")

        def wait(self) -> None:
            log.append("wait")

    step = compile_step(chain(2), reduce=Work, bucket=4)
    step(batch(0))
    count = len(step.parameters)
    assert log == ["begin"] * count + ["wait"] * count


@pytest.mark.parametrize("bucket", [4, 1 << 20])
def test_gradients_of_several_batches_are_reduced_once(bucket: int) -> None:
    calls: list[int] = []
    plain = compile_step(chain(3), optimizer=Adam(0.01), clip=0.1, accumulate=3)
    reduced = compile_step(
        chain(3), optimizer=Adam(0.01), clip=0.1, accumulate=3, reduce=lambda g: calls.append(g.size), bucket=bucket
    )
    for k in range(6):
        one, other = plain(batch(k)), reduced(batch(k))
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)
    assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-6)
    np.testing.assert_allclose(weights(reduced), weights(plain), rtol=1e-5, atol=1e-7)
    assert len(calls) == 2 * (len(plain.parameters) if bucket == 4 else 1)


def test_a_spoiled_sum_is_begun_anew(tmp_path: Path) -> None:
    step = compile_step(chain(2), accumulate=2, reduce=lambda g: None)
    before = weights(step).copy()
    step(np.full_like(batch(0), np.nan))
    with pytest.raises(Error, match="parameters are as they were"):
        step(batch(0))
    np.testing.assert_array_equal(weights(step), before)
    clean = compile_step(chain(2), accumulate=2, reduce=lambda g: None)
    for k in range(2):
        step(batch(k))
        clean(batch(k))
    np.testing.assert_array_equal(weights(step), weights(clean))


def test_a_sum_that_was_saved_is_gone_on_with(tmp_path: Path) -> None:
    steps = [compile_step(chain(2), accumulate=2, reduce=lambda g: None) for _ in range(2)]
    steps[0](batch(0))
    steps[0].save(tmp_path / "step")
    steps[1].load(tmp_path / "step")
    for step in steps:
        step(batch(1))
    np.testing.assert_array_equal(weights(steps[0]), weights(steps[1]))


def test_what_is_given_and_read_again_is_kept() -> None:
    """The loss is a factor of all gradients: the first bucket's section gives it, the others read it."""

    def exponential() -> Any:
        builder = GraphBuilder("exponential")
        four = TensorType(f32, (as_expr(4),))
        x = builder.input("x", four)
        terms = [emit1(builder, "mul", x, builder.param(name, four)) for name in ("a", "b", "c")]
        total = emit1(builder, "add", emit1(builder, "add", terms[0], terms[1]), terms[2])
        loss = emit1(builder, "exp", emit1(builder, "reduce_sum", total, axes=(0,), keepdims=False))
        return builder.finish((loss,)), {name: np.zeros(4, np.float32) for name in ("a", "b", "c")}

    plain = compile_step(exponential(), optimizer=tw.train.SGD(0.1))
    parted = compile_step(exponential(), optimizer=tw.train.SGD(0.1), reduce=lambda g: None, bucket=4)
    x = np.arange(4, dtype=np.float32) / 8
    for _ in range(3):
        assert plain(x) == pytest.approx(parted(x), rel=1e-6)
    np.testing.assert_allclose(weights(parted), weights(plain), rtol=1e-6)


def test_one_stage() -> None:
    average = tw.train.Average("t.", "w", tau=0.5)
    with pytest.raises(Error, match="of one stage"):
        compile_step(chain(2), averages=[average], reduce=lambda g: None)


LEARNER = """
import sys
import numpy as np
import torch
from torch import distributed
import tilewright as tw
from tests.train.test_recompute import batch, chain

rank, store, out, bucket = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
averaged = tw.train.averaged()
step = tw.compile_step(chain(3, rows=256), optimizer=tw.train.Adam(0.01), clip=0.1, reduce=averaged, bucket=bucket)
for k in range(5):
    step(batch(k)[256 * rank : 256 * rank + 256])
np.save(out, np.concatenate([np.ravel(v) for v in step.weights.values()]))
distributed.destroy_process_group()
"""


def learned(folder: Path, bucket: int) -> list[Array]:
    """Parameters of two processes that have learned together."""
    folder.mkdir()
    outs = [folder / f"{rank}.npy" for rank in range(2)]
    command = [sys.executable, "-c", LEARNER]
    learners = [
        subprocess.Popen([*command, str(rank), str(folder / "store"), str(out), str(bucket)])
        for rank, out in enumerate(outs)
    ]
    assert [learner.wait(300) for learner in learners] == [0, 0]
    return [np.load(out) for out in outs]


def test_processes_learn_as_one(tmp_path: Path) -> None:
    """The mean of the gradients of two halves of a batch is that of the batch, in one bucket or in many."""
    pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
    first, second = learned(tmp_path / "many", 4)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, learned(tmp_path / "one", 1 << 20)[0])
    whole = compile_step(chain(3), optimizer=Adam(0.01), clip=0.1)
    for k in range(5):
        whole(batch(k))
    np.testing.assert_allclose(first, weights(whole), rtol=1e-4, atol=1e-6)
