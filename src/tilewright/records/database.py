"""Operations on stores of records outside compiles: comparing, merging, statistics, tidying."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from itertools import groupby
from math import exp, log
from pathlib import Path

from tilewright.identity import code_version
from tilewright.records.archive import Absorbed, take_in
from tilewright.records.record import Record
from tilewright.records.store import Store, read
from tilewright.support.classes import dataclass
from tilewright.support.errors import RecordError

ABANDONED = 3600.0
"""The age in seconds after which an unfinished file counts as abandoned by its writer."""

Named = tuple[str, Record]
"""A record with its digest."""


def everything(store: Store) -> Iterator[Named]:
    """All records of a store except damaged ones."""
    for target in store.classes():
        for digest in sorted(store.digests(target)):
            record = store.get(digest, target)
            if record is not None:
                yield digest, record


def find(store: Store, text: str) -> list[Named]:
    """The records whose digest begins with a text, or whose decision has the text as its name."""
    return [(digest, r) for digest, r in everything(store) if digest.startswith(text) or text in (r.decision, r.about)]


def merge(sources: Iterable[Path], goal: Store, announce: Callable[[str], None] = lambda _: None) -> Absorbed:
    """Import the records of `sources` (folders, archives and single files) into the store `goal`, and call `announce`
    with descriptions of what happens; returns how many were new, known and damaged. The result is their union, whatever
    the order and repetition: records are immutable, and equal records are one file."""
    total = Absorbed()
    for source in sources:
        done = take_in(source, goal, announce)
        total.new, total.known, total.damaged = (
            total.new + done.new,
            total.known + done.known,
            total.damaged + done.damaged,
        )
    return total


def standing(records: Iterable[Named]) -> dict[tuple[str, str, str], Named]:
    """For each decision, class of machines and set of settings the record that a compile prefers: this compiler's
    before others, then the newest."""
    best: dict[tuple[str, str, str], Named] = {}
    for digest, record in records:
        place = record.decision, record.target, record.space
        if place not in best or _rank(digest, record) > _rank(*best[place]):
            best[place] = digest, record
    return best


def _rank(digest: str, record: Record) -> tuple[bool, int, str]:
    return record.provenance.compiler == code_version(), record.provenance.time, digest


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two stores.

    Args:
        left, right: the records that only this store has.
        changed: decisions about which both have records whose settings differ.
    """

    left: list[Named]
    right: list[Named]
    changed: list[tuple[Record, Record]]


def difference(left: Store, right: Store) -> Difference:
    """The records that only one of two stores has, and those that differ."""
    a, b = dict(everything(left)), dict(everything(right))
    mine, theirs = standing(a.items()), standing(b.items())
    both = sorted(mine.keys() & theirs.keys())
    changed = [(mine[k][1], theirs[k][1]) for k in both if mine[k][1].setting != theirs[k][1].setting]
    only = [[(d, x[d]) for d in sorted(x.keys() - y.keys())] for x, y in ((a, b), (b, a))]
    return Difference(only[0], only[1], changed)


@dataclass(slots=True)
class Statistics:
    """Counts of the records of a store.

    Args:
        records, bytes: the number of records, and the size of their files.
        current: measured by this compiler.
        decisions: the number of decisions that have records.
        faster: of the decisions, those whose setting is verified to be faster than the estimate's; `gain` is the
            geometric mean of their gains, `most` the largest.
        candidates: that were timed; `failed` those that could not be.
        classes, kinds, regimes, levels: how many records each has.
    """

    records: int = 0
    bytes: int = 0
    current: int = 0
    decisions: int = 0
    faster: int = 0
    gain: float = 1.0
    most: float = 1.0
    candidates: int = 0
    failed: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    regimes: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)


def statistics(store: Store) -> Statistics:
    """Compute the statistics of a store."""
    s = Statistics()
    results = list(everything(store))
    for digest, r in results:
        s.records += 1
        s.bytes += os.path.getsize(store.path(digest, r.target))
        s.current += r.provenance.compiler == code_version()
        s.candidates += sum(c.outcome == "timed" for c in r.candidates)
        s.failed += sum(c.outcome != "timed" for c in r.candidates)
        for counter, value in zip((s.classes, s.kinds, s.regimes, s.levels), _groups(r), strict=True):
            counter[value] += 1
    best = standing(results)
    s.decisions = len({(decision, target) for decision, target, _ in best})
    gains = [r.gain.median for _, r in best.values() if r.setting != r.untuned]
    if gains:
        s.faster, s.gain, s.most = len(gains), exp(sum(map(log, gains)) / len(gains)), max(gains)
    return s


def _groups(r: Record) -> tuple[str, str, str, str]:
    return r.target, r.kind, r.policy.regime, r.policy.level


@dataclass(frozen=True, slots=True)
class Superfluous:
    """A file that may be removed, and the reason."""

    path: Path
    why: str
    asks: bool = False
    """Whether to ask the user before removing it, since a compile might still use it."""


def superfluous(store: Store, others: bool = False) -> list[Superfluous]:
    """The files that a store does not need: records replaced by a later one of the same decision, settings and
    compiler, damaged files, and unfinished files of writers that died.

    Args:
        others: also records that other compilers measured, which a compile uses only where estimates stand by them.
    """
    sound: list[Named] = []
    results: list[Superfluous] = []
    for target in store.classes():
        for digest in sorted(store.digests(target)):
            path = store.path(digest, target)
            try:
                sound.append((digest, read(path)))
            except (RecordError, OSError) as error:
                results.append(Superfluous(path, f"damaged: {str(error).splitlines()[0]}"))
    sound.sort(key=lambda n: (_same(n[1]), n[1].provenance.time, n[0]))
    for _, group in groupby(sound, key=lambda n: _same(n[1])):
        *older, last = group
        results += [Superfluous(store.path(d, r.target), "a later one replaces it") for d, r in older]
        if others and last[1].provenance.compiler != code_version():
            results.append(Superfluous(store.path(last[0], last[1].target), "measured with another compiler", True))
    return results + [Superfluous(path, "left by a writer that died") for path in store.leftovers(ABANDONED)]


def _same(r: Record) -> tuple[str, ...]:
    return r.decision, r.target, r.space, r.provenance.compiler


def remove(files: Iterable[Superfluous]) -> int:
    """Remove files, and return how many of them existed."""
    count = 0
    for each in files:
        try:
            each.path.unlink()
            count += 1
        except FileNotFoundError:
            pass
        except OSError as error:
            raise RecordError(f"cannot be removed: {error.strerror}", where=str(each.path)) from None
    return count


__all__ = [
    "Difference",
    "Statistics",
    "Superfluous",
    "difference",
    "everything",
    "find",
    "merge",
    "remove",
    "standing",
    "statistics",
    "superfluous",
]
