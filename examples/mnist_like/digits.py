"""scikit-learn's digits: 1,797 pictures of 8x8 pixels, three quarters to learn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
PIXELS, CLASSES = 64, 10


@dataclass(frozen=True, slots=True)
class Digits:
    """Pictures [n, 64] between 0 and 1, and which digit each shows."""

    train: Array
    train_labels: Array
    test: Array
    test_labels: Array

    def batches(self, size: int, seed: int) -> Iterator[tuple[Array, Array]]:
        """All pictures once in random order, in batches of one size (the rest waits for the next epoch), with labels
        as rows that have a one at the digit."""
        order = np.random.default_rng(seed).permutation(len(self.train))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield self.train[chosen], np.eye(CLASSES, dtype=np.float32)[self.train_labels[chosen]]


def load(seed: int = 0) -> Digits:
    """Raises SystemExit if scikit-learn is missing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit("the digits come with scikit-learn: pip install scikit-learn, or make demo-train") from None
    pictures, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(pictures))
    pictures, labels = (pictures[order] / 16).astype(np.float32), labels[order]
    count = len(order) * 3 // 4
    return Digits(pictures[:count], labels[:count], pictures[count:], labels[count:])
