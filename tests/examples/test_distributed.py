"""The examples of many processes, shortened, but for those that need PyTorch (`make demo-distributed`)."""

from __future__ import annotations

import numpy as np

from examples.distributed import pipeline, server_actors
from examples.distributed.digits import digits


def test_a_network_split_over_two_processes_is_the_whole_one() -> None:
    assert pipeline.main(batches=4) < 1e-4


def test_workers_learn_from_the_weights_that_their_server_publishes() -> None:
    first, last = server_actors.main(games=60)
    assert last > max(first, 0.9)


def test_digits_can_be_told() -> None:
    x, y = digits(2000, 0)
    means = np.stack([x[y == k].mean(0) for k in range(10)])
    assert x.shape == (2000, 144)
    assert (((x[:, None] - means) ** 2).sum(2).argmin(1) == y).mean() > 0.2
