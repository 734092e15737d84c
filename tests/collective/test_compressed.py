"""Compressed means of gradients: error feedback loses nothing, ranks agree bit for bit, and a toy learns as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.collective.ranks import in_threads
from tilewright.collective.compressed import METHODS, Compressed, method
from tilewright.collective.group import Group
from tilewright.support.errors import CollectiveError

OPTIONS: dict[str, dict[str, Any]] = {"top-k": {"share": 0.05}, "powersgd": {"rank": 2, "start": 2}}
RATIOS = {"fp16": 2.0, "int8": 3.9, "top-k": 9.9, "1-bit": 30.0, "powersgd": 4.0}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_nothing_is_lost_and_ranks_agree(name: str, ranks: int, tmp_path: Path) -> None:
    size, steps = 5000, 6

    def body(group: Group) -> Any:
        rng, reduce = np.random.default_rng(group.rank), Compressed(group, name, **OPTIONS.get(name, {}))
        vector, total, results = np.empty(size, np.float32), np.zeros(size), np.zeros(size)
        for _ in range(steps):
            vector[:] = rng.standard_normal(size) * np.geomspace(1e-3, 1, size)
            total += vector
            reduce(vector)
            results += vector
        (residual,) = reduce.method._residuals.values()
        return total, results, residual.copy(), reduce.ratio

    every = in_threads(ranks, tmp_path, body)
    means = [np.mean([one[k] for one in every], 0) for k in (0, 2)]
    for _, results, _, ratio in every:
        np.testing.assert_array_equal(results, every[0][1])
        np.testing.assert_allclose(
            results + means[1], means[0], atol=1e-3 if name == "fp16" else 2e-5
        )  # a sum in f16 is rounded
        assert ratio >= RATIOS[name] * (0.6 if name == "powersgd" else 1)


@pytest.mark.parametrize("name", METHODS)
def test_first_steps_travel_whole(name: str, tmp_path: Path) -> None:
    def body(group: Group) -> Any:
        reduce, vector, results = Compressed(group, name, start=2), np.empty(3000, np.float32), []
        for step in range(3):
            vector[:] = np.random.default_rng([group.rank, step]).standard_normal(3000)
            reduce(vector)
            results.append(vector.copy())
        return results, reduce.method.sent

    (results, sent), _ = in_threads(2, tmp_path, body)
    for step, result in enumerate(results):
        parts = [np.random.default_rng([r, step]).standard_normal(3000).astype(np.float32) for r in range(2)]
        assert np.array_equal(result, (parts[0] + parts[1]) / np.float32(2)) == (step < 2)
    assert 2 * 12_000 < sent < 2 * 12_000 + 6_100


def learned(folder: Path, name: str | None) -> float:
    """The share of test points that a small network of two ranks gets right."""
    rng = np.random.default_rng(3)
    centers = rng.standard_normal((10, 30)).astype(np.float32)
    labels = rng.integers(0, 10, 6000)
    points = (centers[labels] + rng.standard_normal((6000, 30)) * 1.1).astype(np.float32)

    def body(group: Group) -> float:
        options: dict[str, Any] = {"top-k": {"share": 0.1}, "powersgd": {"rank": 4, "start": 10}}.get(name or "", {})
        reduce = None if name is None else Compressed(group, name, **options)
        weights = np.random.default_rng(1).standard_normal(30 * 64 + 64 * 10).astype(np.float32) * 0.1
        first, second = weights[: 30 * 64].reshape(30, 64), weights[30 * 64 :].reshape(64, 10)
        gradients = np.empty_like(weights)
        for step in range(130):
            rows = np.arange(step * 64 + group.rank * 32, step * 64 + group.rank * 32 + 32) % 4000
            x, hidden = points[rows], np.maximum(points[rows] @ first, 0)
            scores = hidden @ second
            odds = np.exp(scores - scores.max(1, keepdims=True))
            odds /= odds.sum(1, keepdims=True)
            odds[np.arange(32), labels[rows]] -= 1
            odds /= 32
            gradients[30 * 64 :] = (hidden.T @ odds).reshape(-1)
            gradients[: 30 * 64] = (x.T @ (odds @ second.T * (hidden > 0))).reshape(-1)
            if reduce is None:
                group.all_reduce(gradients, "avg")
            else:
                reduce(gradients)
            weights -= np.float32(0.3) * gradients
        guesses = (np.maximum(points[4000:] @ first, 0) @ second).argmax(1)
        return float((guesses == labels[4000:]).mean())

    return float(in_threads(2, folder, body)[0])


def test_a_toy_learns_as_well(tmp_path: Path) -> None:
    exact = learned(tmp_path, None)
    assert exact > 0.9
    for name in METHODS:
        assert learned(tmp_path, name) >= exact - 0.003, name


def test_wrong_arguments() -> None:
    for call, message in (
        (lambda: method("zip"), "no such compression"),
        (lambda: method("top-k", share=0), "no such share"),
        (lambda: method("powersgd", rank=0), "no such rank"),
        (lambda: method("1-bit", start=-1), "no such step"),
        (lambda: method("fp16").mean(None, np.zeros(3), 0), "not compressed"),  # type: ignore[arg-type]
    ):
        with pytest.raises(CollectiveError, match=message):
            call()
