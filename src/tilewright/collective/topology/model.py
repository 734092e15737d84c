"""A model of the time of all-reductions: seconds for each message, each byte sent, and each byte added, fitted to
measurements. It chooses the algorithm, and for two trees the number of chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import CollectiveError

CHUNKS = tuple(1 << k for k in range(10))
"""Numbers of chunks that two trees may have."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm of an all-reduction, its number of chunks, and the seconds that the model expects."""

    algorithm: str
    chunks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Model:
    """A model of communication time: messages take `alpha + beta * bytes` seconds, and adding them `gamma * bytes`
    (Hockney 1994). A link is a token bucket: after a pause it transmits `burst` bytes at once, and while other messages
    are under way it recovers at its rate."""

    alpha: float
    beta: float
    gamma: float
    burst: float = 0.0

    def round(self, nbytes: float) -> float:
        """The expected seconds of one of many rounds in which a link transmits `nbytes` bytes."""
        return max(self.alpha + max(0.0, nbytes - self.burst) * self.beta, nbytes * self.beta)

    def seconds(self, algorithm: str, ranks: int, nbytes: int, chunks: int = 1) -> float:
        """The expected seconds of an all-reduction by `algorithm`, such as "ring", of `nbytes` bytes on each of `ranks`
        ranks; two trees send the data in `chunks` chunks."""
        if ranks < 2:
            return 0.0
        n, whole, add = ranks, self.round(nbytes), self.gamma * nbytes
        power = 1 << (n.bit_length() - 1)
        log = power.bit_length() - 1
        fold = 0.0 if power == n else 2 * whole + add
        match algorithm:
            case "ring":
                return 2 * (n - 1) * self.round(nbytes / n) + add * (n - 1) / n
            case "tree":
                return (n - 1).bit_length() * (2 * whole + add)
            case "recursive doubling":
                return fold + log * (whole + add)
            case "halving and doubling":
                return fold + 2 * sum(self.round(nbytes / (2 << k)) for k in range(log)) + add * (power - 1) / power
            case "two trees":
                return self._two_trees(n, nbytes, chunks)
        raise CollectiveError("no such algorithm", where="model", got=algorithm)

    def _two_trees(self, ranks: int, nbytes: int, chunks: int) -> float:
        """The seconds of an all-reduction of `nbytes` bytes between `ranks` ranks by two trees: one round for each of
        `chunks` chunks, and one for each level up and down.

        In each round, an inner rank of one tree receives two parts of a chunk to add and one reduced part, and one more
        as a leaf of the other tree; it adds one while the next arrives. While chunks only go up, or only down, it
        receives two.
        """
        levels, part = (ranks - 1).bit_length(), nbytes / 2 / chunks
        one, two, three, four = (self.round(k * part) for k in range(1, 5))
        add = self.gamma * part
        up, down, both = max(two, one + add) + add, two, max(four, max(three, one + add) + add)
        alone = levels + min(chunks, levels) / 2
        return alone * (up + down) + max(chunks - levels, 0) * both

    def choose(self, ranks: int, nbytes: int, algorithms: Sequence[str] | None = None) -> Choice:
        """The algorithm, and its number of chunks, with the least expected time for `nbytes` bytes on each of `ranks`
        ranks."""
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
        text = "{:.1f} us a message, {}; adding {}".format(1e6 * self.alpha, *per_byte)
        return text + (f"; bursts of {self.burst / 1024:.0f} KB" if self.burst else "")


def fit(messages: Iterable[tuple[int, float]], additions: Iterable[tuple[int, float]] = ()) -> Model:
    """The model that fits measurements best, by the squares of relative errors.

    Args:
        messages: bytes and seconds of single messages.
        additions: bytes and seconds of adding an array to another.
    """
    points = list(messages)
    burst, (alpha, beta), ordinary = 0, _line(points), _error(points, 0)
    if len({x for x, _ in points}) > 3:
        sizes = [1 << k for k in range(10, 21) if sum(x > 1 << k for x, _ in points) > 1]
        best = min(sizes, key=lambda b: _error(points, b), default=0)
        if _error(points, best) < 0.8 * ordinary - 1e-6:  # one that hardly helps is noise
            burst, (alpha, beta) = best, _line(_over(points, best))
    added = list(additions)
    return Model(alpha, beta, _line(added)[1] if added else 0.0, burst)


def _over(points: list[tuple[int, float]], burst: int) -> list[tuple[int, float]]:
    return [(max(0, x - burst), y) for x, y in points]


def _error(points: list[tuple[int, float]], burst: int) -> float:
    """The sum of squared relative errors of the best line with a burst."""
    over = _over(points, burst)
    a, b = _line(over)
    return sum(((a + b * x) / y - 1) ** 2 for x, y in over)


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
