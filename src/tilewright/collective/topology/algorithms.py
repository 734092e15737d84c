"""All-reductions as rounds of messages: ring, tree, recursive doubling, halving and doubling, two trees.

In a round each rank sends and receives some messages, and continues when these are complete; it sends data as it was
before the round. A round consists of matchings, in each of which a rank sends and receives at most one message.

Sources: Thakur, Rabenseifner, Gropp 2005 (recursive doubling, halving and doubling); Patarasuk, Yuan 2009 (ring);
Sanders, Speck, Träff 2009 (two trees).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import CollectiveError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """Messages, one an entry of the vectors (i64 of one length): no rank sends two or receives two.

    Attributes:
        begin, end: the range of elements of each message.
        reduces: whether they are added to the receiver's elements, or replace them.
    """

    source: Array
    target: Array
    begin: Array
    end: Array
    reduces: bool


Round = tuple[Matching, ...]


def rounds_of(algorithm: str, ranks: int, elements: int, chunks: int = 1) -> Iterator[Round]:
    """The rounds of an all-reduction.

    Args:
        algorithm: one of `ALGORITHMS`.
        ranks: how many there are.
        elements: of each rank's array.
        chunks: into how many parts each of two trees divides its data; other algorithms ignore it.
    """
    if algorithm not in ALGORITHMS or ranks < 1 or elements < 0 or chunks < 1:
        raise CollectiveError(
            "no such all-reduction",
            where="topology",
            expected=f"one of {', '.join(ALGORITHMS)}",
            got=f"{algorithm} of {ranks} ranks, {elements} elements, {chunks} chunks",
        )
    return ALGORITHMS[algorithm](ranks, elements, chunks) if ranks > 1 else iter(())


def _matching(source: Array, target: Array, begin: Any, end: Any, reduces: bool) -> Matching:
    shape = source.shape
    return Matching(source, target, np.broadcast_to(begin, shape), np.broadcast_to(end, shape), reduces)


def ring(ranks: int, elements: int, chunks: int) -> Iterator[Round]:
    """The rounds of a ring all-reduction of `elements` elements: 2 (n - 1) for n ranks, in each of which a rank sends
    1/n of the data to the next rank. It sends the least bytes in the most rounds. `chunks` is unused."""
    every = np.arange(ranks)
    cuts = np.arange(ranks + 1) * elements // ranks
    for reduces in (True, False):
        for k in range(ranks - 1):
            block = (every - k + (0 if reduces else 1)) % ranks
            yield (_matching(every, (every + 1) % ranks, cuts[block], cuts[block + 1], reduces),)


def tree(ranks: int, elements: int, chunks: int) -> Iterator[Round]:
    """Yield the rounds that send all `elements` up a binomial tree to rank 0, reduced, and down again: 2 log n rounds
    of all bytes. `chunks` is unused."""
    distances = [1 << k for k in range((ranks - 1).bit_length())]
    for reduces, order in ((True, distances), (False, distances[::-1])):
        for distance in order:
            child = np.arange(distance, ranks, 2 * distance)
            ends = (child, child - distance) if reduces else (child - distance, child)
            yield (_matching(*ends, 0, elements, reduces),)


def recursive_doubling(ranks: int, elements: int, chunks: int) -> Iterator[Round]:
    """The rounds of an all-reduction of `elements` elements between n `ranks` by recursive doubling: log n, in which
    pairs of ranks at distances 1, 2, 4, ... exchange everything. These are the fewest rounds. `chunks` is unused."""
    power = 1 << (ranks.bit_length() - 1)
    every = np.arange(power)
    yield from _fold(ranks, power, elements, True)
    for k in range(power.bit_length() - 1):
        yield (_matching(every, every ^ (1 << k), 0, elements, True),)
    yield from _fold(ranks, power, elements, False)


def halving_doubling(ranks: int, elements: int, chunks: int) -> Iterator[Round]:
    """The rounds of an all-reduction of `elements` elements between n `ranks`: pairs exchange halves of what they still
    reduce, at distances n/2, n/4, ..., then the reduced parts in the reverse order. There are 2 log n rounds, and for
    powers of two as few bytes as in a ring. `chunks` is unused."""
    power = 1 << (ranks.bit_length() - 1)
    every = np.arange(power)
    begin, end = np.zeros(power, np.int64), np.full(power, elements, np.int64)
    yield from _fold(ranks, power, elements, True)
    steps = []
    for k in reversed(range(power.bit_length() - 1)):
        other, upper = every ^ (1 << k), (every >> k & 1).astype(bool)
        middle = (begin + end) // 2
        # the upper one of a pair sends its lower half, and keeps the other
        sent = np.where(upper, begin, middle), np.where(upper, middle, end)
        yield (_matching(every, other, *sent, True),)
        begin, end = np.where(upper, middle, begin), np.where(upper, end, middle)
        steps.append((other, begin, end))
    for other, low, high in reversed(steps):
        yield (_matching(every, other, low, high, False),)
    yield from _fold(ranks, power, elements, False)


def _fold(ranks: int, power: int, elements: int, reduces: bool) -> Iterator[Round]:
    """A round in which the ranks from `power` on send all data to partners below, which add it (`reduces`), or get the
    result from them."""
    if ranks > power:
        extra = np.arange(power, ranks)
        ends = (extra, extra - power) if reduces else (extra - power, extra)
        yield (_matching(*ends, 0, elements, reduces),)


def two_trees(ranks: int, elements: int, chunks: int) -> Iterator[Round]:
    """The rounds of an all-reduction of `elements` elements by two trees: each half of the data goes up and down one of
    two binary trees, in `chunks` chunks, one after another. It has nearly a ring's bandwidth with logarithmic latency,
    as a rank inside one tree is a leaf of the other (but for rank 0 of an odd number)."""
    middle = elements // 2
    spans = ((0, middle), (middle, elements))
    trees = [Tree.of(parents, low, high, chunks) for parents, (low, high) in zip(_parents(ranks), spans, strict=True)]
    for number in range(max(one.rounds for one in trees)):
        yield tuple(matching for one in trees for matching in one.at(number))


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """A tree through which chunks go up, then down.

    Attributes:
        edges: children and parents of first and of second children, (i64[m], i64[m]) each.
        height: of ranks over the leaves below them, i64[ranks].
        depth: of ranks below the root, i64[ranks].
        cuts: where chunks begin, i64[chunks + 1].
    """

    edges: tuple[tuple[Array, Array], ...]
    height: Array
    depth: Array
    cuts: Array

    @classmethod
    def of(cls, parents: list[int], low: int, high: int, chunks: int) -> Tree:
        ranks = len(parents)
        children: list[list[int]] = [[] for _ in range(ranks)]
        for child, parent in enumerate(parents):
            if parent >= 0:
                children[parent].append(child)
        order = [parents.index(-1)]
        for rank in order:
            order += children[rank]
        height, depth = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
        for rank in order[1:]:
            depth[rank] = depth[parents[rank]] + 1
        for rank in reversed(order):
            height[rank] = max((height[c] + 1 for c in children[rank]), default=0)
        edges = []
        for k in range(2):
            pairs = [(some[k], rank) for rank, some in enumerate(children) if len(some) > k]
            edges.append((np.array([c for c, _ in pairs], np.int64), np.array([p for _, p in pairs], np.int64)))
        return cls(tuple(edges), height, depth, low + np.arange(chunks + 1) * (high - low) // chunks)

    @property
    def rounds(self) -> int:
        return int(len(self.cuts) - 2 + self.height.max() + self.depth.max())

    def at(self, number: int) -> Iterator[Matching]:
        """The messages of a round: chunk k leaves a rank upwards in round k + height, downwards in round
        k + the root's height + depth."""
        top = self.height.max()
        for child, parent in self.edges:
            yield self._chunks(child, parent, number - self.height[child], True)
            yield self._chunks(parent, child, number - top - self.depth[parent], False)

    def _chunks(self, source: Array, target: Array, chunk: Array, reduces: bool) -> Matching:
        there = (chunk >= 0) & (chunk < len(self.cuts) - 1)
        chunk = chunk[there]
        return Matching(source[there], target[there], self.cuts[chunk], self.cuts[chunk + 1], reduces)


def _parents(ranks: int) -> tuple[list[int], list[int]]:
    """Each rank's parent in two trees, -1 of the root. In the first one odd ranks are leaves; the second one is its
    mirror image, or shifted by one where the number of ranks is odd, so that even ranks are."""
    first = []
    for rank in range(ranks):
        bit = rank & -rank
        up = (rank ^ bit) | bit << 1
        first.append(-1 if not rank else up if up < ranks else rank ^ bit)
    second = [-1] * ranks
    for rank, parent in enumerate(first):
        if parent >= 0:
            if ranks % 2:
                second[(rank + 1) % ranks] = (parent + 1) % ranks
            else:
                second[ranks - 1 - rank] = ranks - 1 - parent
    return first, second


ALGORITHMS: dict[str, Callable[[int, int, int], Iterator[Round]]] = {
    "ring": ring,
    "tree": tree,
    "recursive doubling": recursive_doubling,
    "halving and doubling": halving_doubling,
    "two trees": two_trees,
}


def execute(rounds: Iterator[Round], arrays: Array) -> dict[int, int]:
    """Execute rounds on arrays, [ranks, elements], in place; returns how many elements each rank has sent."""
    sent = dict.fromkeys(range(len(arrays)), 0)
    for one in rounds:
        messages = [
            (int(t), slice(int(b), int(e)), arrays[s, b:e].copy(), m.reduces)
            for m in one
            for s, t, b, e in zip(m.source, m.target, m.begin, m.end, strict=True)
        ]
        for m in one:
            for s, b, e in zip(m.source, m.begin, m.end, strict=True):
                sent[int(s)] += int(e - b)
        for target, part, data, reduces in messages:
            if reduces:
                arrays[target, part] += data
            else:
                arrays[target, part] = data
    return sent
