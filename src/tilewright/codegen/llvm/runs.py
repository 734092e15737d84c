"""Lanes that read a few runs of neighbours: a load for each run, joined in pairs, then one shuffle.

w[k + lane % 2, lane // 2]      eight columns of two rows side by side: two loads of eight lanes, interleaved
w[lane // 4, k + lane % 4]      four columns of four rows one after another: four loads of four lanes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.codegen.llvm.transpose import Shuffle


def runs(steps: Sequence[int]) -> tuple[tuple[int, ...], int] | None:
    """(first element of each run, length) of the runs of neighbouring elements that lanes at the offsets `steps` read.
    None if loads of single elements are as good: runs have different lengths or one element, or their number is no
    power of two."""
    touched = sorted(set(steps))
    starts = tuple(x for k, x in enumerate(touched) if not k or x != touched[k - 1] + 1)
    length, rest = divmod(len(touched), len(starts))
    whole = not rest and all(touched[k * length] == x for k, x in enumerate(starts))
    return (starts, length) if whole and length > 1 and len(starts).bit_count() == 1 else None


def joined(steps: Sequence[int], load: Callable[[int, int], str], shuffle: Callable[[int], Shuffle]) -> str | None:
    """The vector whose lanes are the elements at `steps`: `load(first, length)` loads each run of neighbours, and
    `shuffle(lanes of each vector)` joins two vectors. None where `runs` says that loading single elements is as
    good."""
    result = runs(steps)
    if result is None:
        return None
    starts, length = result
    place = {x: k for k, x in enumerate(x for start in starts for x in range(start, start + length))}
    vectors = [load(start, length) for start in starts]
    while len(vectors) > 2:
        both = tuple(range(2 * length))
        vectors = [shuffle(length)(a, b, both) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        length *= 2
    return shuffle(length)(vectors[0], vectors[-1], tuple(place[x] for x in steps))
