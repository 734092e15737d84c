"""Processes that learn together by `torch.distributed`: every setting against one process with the whole batch."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")

from torch import nn  # noqa: E402  after what may skip

import tilewright as tw  # noqa: E402
from tests.train import learners  # noqa: E402
from tests.train.learners import CASES, Encoder, loss_of, vector  # noqa: E402

Array = np.ndarray[Any, Any]


def run(folder: Path, what: str, codes: tuple[int, int] = (0, 0)) -> tuple[Any, Any]:
    """The results of both processes."""
    outs = [folder / f"{rank}.npz" for rank in range(2)]
    command = [sys.executable, "-m", "tests.train.learners", what, str(folder / "store")]
    running = [subprocess.Popen([*command, str(rank), str(out)]) for rank, out in enumerate(outs)]
    assert tuple(process.wait(300) for process in running) == codes
    return tuple(np.load(out) if out.exists() else None for out in outs)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Parameters of two processes that have learned together, case by case."""
    return run(tmp_path_factory.mktemp("cases"), "cases")


@pytest.mark.parametrize("name", CASES)
def test_processes_learn_as_one(together: tuple[Any, Any], name: str) -> None:
    first, second = together
    np.testing.assert_array_equal(first[name], second[name])
    case = CASES[name]
    step = case.step(bucket=1 << 30, reduce=None)
    for k in range(learners.STEPS):
        step(*case.joint(k))
    np.testing.assert_allclose(first[name], vector(step), rtol=1e-4, atol=1e-5)
    assert int(first[f"{name} buckets"]) >= 2


def test_ways_of_failing(tmp_path: Path) -> None:
    """NaN in the batch of one process, or a batch that does not fit, is refused by both, and both go on."""
    first, second = run(tmp_path, "refused")
    for rank, retained in enumerate((first, second)):
        for name in ("raise", "skip", "shape"):
            np.testing.assert_array_equal(
                retained[f"{name} before"], retained[f"{name} after"], err_msg=f"{name} {rank}"
            )
        assert "not finite; parameters are as they were" in str(retained["raise error"])
        assert str(retained["skip error"]) == ""
    assert "not finite" in str(first["shape error"])
    assert "input 'x': wrong dimension 1" in str(second["shape error"])
    np.testing.assert_array_equal(first["last"], second["last"])
    assert not np.array_equal(first["last"], first["shape after"])


@pytest.mark.parametrize("what", ["dies", "dies in the backward pass"])
def test_a_process_that_dies(tmp_path: Path, what: str) -> None:
    """The other one has an error that says so, and its parameters."""
    first, _ = run(tmp_path, what, (0, 9))
    assert "gradients were not reduced; parameters are as they were" in str(first["error"])
    np.testing.assert_array_equal(first["before"], first["after"])
    assert int(first["count"]) == 2


@pytest.mark.parametrize("symbolic", [False, True])
def test_stages_and_averages(symbolic: bool) -> None:
    """A step of several losses whose gradients are not changed is the ordinary step."""
    stages, module, average = learners.stages(), learners.Agent(), learners.AVERAGE
    created = [
        tw.compile_step(
            copy.deepcopy(module), stages, example=learners.rows(6, 0), averages=[average], symbolic=symbolic, **item
        )
        for item in ({}, {"reduce": lambda part: None, "bucket": 4})
    ]
    for k in range(6):
        batch = learners.rows((6, 3, 9)[k % 3] if symbolic else 6, k)
        ordinary, reduced = (step(*batch) for step in created)
        assert ordinary.keys() == reduced.keys()
        assert len(ordinary) == (5 if k % 2 else 3)
        assert list(ordinary.values()) == pytest.approx(list(reduced.values()), rel=1e-5)
    one, other = (step.state_dict() for step in created)
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_later_stage_that_is_not_finite_leaves_no_trace() -> None:
    stages, module = learners.stages(), learners.Agent()
    calls: list[int] = []

    def spoil(part: Array) -> None:
        calls.append(part.size)
        if len(calls) == 3:
            part[0] = np.inf

    step = tw.compile_step(module, stages, example=learners.rows(6, 0), averages=[learners.AVERAGE], reduce=spoil)
    step(*learners.rows(6, 0))
    before = {name: np.array(value) for name, value in step.weights.items()}
    with pytest.raises(tw.Error, match="parameters are as they were"):
        step(*learners.rows(6, 1))
    assert len(calls) == 3  # both stages take part in every second update
    for name, value in step.weights.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert step.count == 1


def test_batches_of_any_size_have_buckets() -> None:
    """The data that sections keep grow and shrink with the batch, and are found again by their sizes."""
    seen: list[int] = []
    module = Encoder()
    example = learners.sequences(4, 0)
    ordinary = tw.compile_step(copy.deepcopy(module), loss_of, tw.train.SGD(0.1), example, symbolic=True, clip=0.5)
    parted = tw.compile_step(
        module, loss_of, tw.train.SGD(0.1), example, symbolic=True, clip=0.5, bucket=2000,
        reduce=lambda part: seen.append(part.size),
    )  # fmt: skip
    for k, rows in enumerate((4, 2, 33, 7, 7)):
        one, other = (step(*learners.sequences(rows, k)) for step in (ordinary, parted))
        assert one == pytest.approx(other, rel=1e-5)
    np.testing.assert_allclose(vector(parted), vector(ordinary), rtol=1e-5, atol=1e-6)
    assert len(seen) >= 5 * 3


def test_dropout_draws_the_same_with_buckets() -> None:
    module = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    example = learners.rows(6, 0)[0][:, :5].copy(), np.arange(6) % 3
    ordinary, parted = (
        tw.compile_step(copy.deepcopy(module), loss_of, tw.train.SGD(0.1), example, **item)
        for item in ({}, {"reduce": lambda part: None, "bucket": 4})
    )
    for _ in range(4):
        assert ordinary(*example) == pytest.approx(parted(*example), rel=1e-5)
    np.testing.assert_allclose(vector(parted), vector(ordinary), rtol=1e-5, atol=1e-6)
