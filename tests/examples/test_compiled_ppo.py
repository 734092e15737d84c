"""PPO with actor and learner compiled: the environment against its equations, one update as eager PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")

from examples import compiled_ppo as example


def test_poles_fall_and_stand_once_more() -> None:
    envs = example.CartPole(3, seed=0)
    ages = []
    for _ in range(40):
        before = envs.age.copy()
        fallen, deferred = envs.step(np.ones(3, int))  # always to the right
        ages += before[fallen].tolist()
        assert not deferred.any() and (np.abs(envs.state[fallen]) <= 0.05).all()
    assert len(ages) >= 6 and min(ages) >= 6 and max(ages) <= 12  # as Gymnasium's, pushed to one side
    envs.age[:] = 499
    assert envs.step(np.zeros(3, int))[1].all()


def test_learning_is_that_of_eager_pytorch() -> None:
    """Two updates from one seed give nearly the same returns and weights; here, the same actions."""
    arguments = ["--steps", "512", "--epochs", "2", "--seed", "3"]
    ours, eager = (example.train(example.parse([*arguments, *more])) for more in ([], ["--eager"]))
    assert ours["return"] == pytest.approx(eager["return"])


def test_it_learns() -> None:
    figures = example.train(example.parse(["--steps", "15000", "--seed", "2"]))
    assert figures["return"] > 60  # 22 before learning
