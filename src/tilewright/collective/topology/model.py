"""A model of the time of all-reductions: a time a message, a time a byte, a time a byte that is added; fitted to what
was measured. It chooses the algorithm, and for two trees the number of chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log2

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import CollectiveError

CHUNKS = tuple(1 << k for k in range(10))
"""Numbers of chunks that two trees may have."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm, its chunks, and the seconds that the model expects."""

    algorithm: str
    chunks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Model:
    """Seconds of messages: `alpha + beta * bytes`, and `gamma * bytes` for adding them (Hockney 1994)."""

    alpha: float
    beta: float
    gamma: float

    def seconds(self, algorithm: str, ranks: int, nbytes: int, chunks: int = 1) -> float:
        """The expected time of an all-reduction of so many bytes on each rank."""
        if ranks < 2:
            return 0.0
        a, b, g, n = self.alpha, self.beta, self.gamma, ranks
        power = 1 << (n.bit_length() - 1)
        log = int(log2(power))
        fold = 0.0 if power == n else 2 * a + nbytes * (2 * b + g)
        match algorithm:
            case "ring":
                return 2 * (n - 1) * (a + b * nbytes / n) + g * nbytes * (n - 1) / n
            case "tree":
                return (n - 1).bit_length() * (2 * a + nbytes * (2 * b + g))
            case "recursive doubling":
                return fold + log * (a + nbytes * (b + g))
            case "halving and doubling":
                return fold + 2 * log * a + nbytes * (power - 1) / power * (2 * b + g)
            case "two trees":
                return self._two_trees(n, nbytes, chunks)
        raise CollectiveError("no such algorithm", where="model", got=algorithm)

    def _two_trees(self, ranks: int, nbytes: int, chunks: int) -> float:
        """Chunks one after another, and as many rounds as the way up and down has levels.

        A rank inside one tree gets two parts of a chunk to add and one that is reduced, and as a leaf of the other one
        more; it adds one while the next arrives. As long as chunks go up only, or down only, it gets two.
        """
        levels, part = (ranks - 1).bit_length(), nbytes / 2 / chunks
        b, g = self.beta, self.gamma
        up, down, both = max(2 * b, b + g) + g, 2 * b, max(4 * b, max(3 * b, b + g) + g)
        alone = levels + min(chunks, levels) / 2
        rounds = 2 * alone + max(chunks - levels, 0)
        return rounds * self.alpha + part * (alone * (up + down) + (rounds - 2 * alone) * both)

    def choose(self, ranks: int, nbytes: int, algorithms: Sequence[str] | None = None) -> Choice:
        """The algorithm with the least expected time."""
        from tilewright.collective.topology.algorithms import ALGORITHMS

        candidates = [
            Choice(name, chunks, self.seconds(name, ranks, nbytes, chunks))
            for name in (algorithms or ALGORITHMS)
            for chunks in (CHUNKS if name == "two trees" else (1,))
            if chunks <= max(1, nbytes // 2)
        ]
        return min(candidates, key=lambda c: c.seconds)

    def __str__(self) -> str:
        per_byte = ("-" if not x else f"{1e-9 / x:.2f} GB/s" for x in (self.beta, self.gamma))
        return "{:.1f} us a message, {}; adding {}".format(1e6 * self.alpha, *per_byte)


def fit(messages: Iterable[tuple[int, float]], additions: Iterable[tuple[int, float]] = ()) -> Model:
    """The model that is nearest to measurements, by relative squares.

    Args:
        messages: bytes and seconds of single messages.
        additions: bytes and seconds of adding an array to another.
    """
    alpha, beta = _line(list(messages))
    added = list(additions)
    return Model(alpha, beta, _line(added)[1] if added else 0.0)


def _line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """(a, b), not negative, with a + b x nearest to the points (x, y), errors taken relative to y."""
    if len({x for x, _ in points}) < 2 or any(y <= 0 for _, y in points):
        got = f"{len(points)} points"
        raise CollectiveError("a line needs times of two sizes", where="fit", expected="positive seconds", got=got)
    x, y = np.array(points, float).T
    a, b = np.linalg.lstsq(np.stack([1 / y, x / y], 1), np.ones(len(y)), rcond=None)[0]
    if b < 0:
        a, b = 1 / np.mean(1 / y), 0.0
    if a < 0:
        a, b = 0.0, float(np.sum(x / y) / np.sum((x / y) ** 2))
    return float(a), float(b)
