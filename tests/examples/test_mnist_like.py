"""The digits' example on pictures made up here: ours learns, and PyTorch and JAX do the same steps."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from examples.mnist_like import __main__ as example
from examples.mnist_like import view
from examples.mnist_like.digits import CLASSES, PIXELS, Digits
from examples.mnist_like.learners import LEARNERS
from examples.mnist_like.networks import NETWORKS, accuracy, first_weights


def invented() -> Digits:
    """Ten pictures with noise."""
    rng = np.random.default_rng(0)
    pictures = rng.random((CLASSES, PIXELS))
    labels = rng.integers(CLASSES, size=400)
    seen = (pictures[labels] + 0.3 * rng.normal(size=(400, PIXELS))).astype(np.float32)
    return Digits(seen[:300], labels[:300], seen[300:], labels[300:])


def test_batches_are_all_pictures_once() -> None:
    data = invented()
    batches = list(data.batches(60, 3))
    assert len(batches) == 5
    together = np.concatenate([pictures for pictures, _ in batches])
    np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(data.train, axis=0))
    for pictures, shown in batches:
        rows = [np.flatnonzero((data.train == picture).all(1))[0] for picture in pictures]
        np.testing.assert_array_equal(shown.argmax(1), data.train_labels[rows])


@pytest.mark.parametrize("name", NETWORKS)
def test_ours_learns(name: str) -> None:
    row = view.Row(name, "Tilewright")
    calls: list[int] = []
    example.train([row], invented(), 12, 50, 0, lambda: calls.append(1))
    assert len(row.losses) == len(calls) == 12
    assert row.losses[-1] < row.losses[0] / 3
    assert row.accuracy > 0.95
    shown = Console(file=io.StringIO(), width=140)
    shown.print(view.picture([row], ["JAX"]))
    assert isinstance(shown.file, io.StringIO)
    assert name in shown.file.getvalue() and "not installed: JAX" in shown.file.getvalue()


def test_accuracy() -> None:
    weights = {"w0": np.eye(PIXELS, CLASSES, dtype=np.float32), "b0": np.zeros(CLASSES, np.float32)}
    assert accuracy(weights, np.eye(4, PIXELS, dtype=np.float32), np.array([0, 1, 2, 5])) == 0.75


def test_worse_than_others_fails() -> None:
    console = Console(file=io.StringIO(), width=140)
    rows = [view.Row("perceptron", "Tilewright", accuracy=0.95, seconds=1.0)]
    assert example.compared(rows, {"perceptron": 0.954}, console) == 0
    assert example.compared(rows, {"perceptron": 0.956}, console) == 1


@pytest.mark.parametrize("learner", ["PyTorch", "JAX"])
def test_others_take_the_same_steps(learner: str) -> None:
    package, make = LEARNERS[learner]
    pytest.importorskip(str(package), reason="make test does without PyTorch and JAX; make torch and make jax run this")
    hidden = NETWORKS["perceptron"]
    ours, theirs = LEARNERS["Tilewright"][1](hidden, 50), make(hidden, 50)
    data: Any = invented()
    for batch in data.batches(50, 0):
        assert ours.step(*batch) == pytest.approx(theirs.step(*batch), rel=1e-4)
    # An error of 1e-7 in a gradient near zero turns the first steps of Adam, each of which moves by 1e-2.
    for name, value in theirs.weights().items():
        np.testing.assert_allclose(ours.weights()[name], value, atol=2e-3)
    assert ours.weights().keys() == first_weights(hidden).keys()
