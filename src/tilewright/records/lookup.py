"""The look-up of decisions in the records of several stores about one class of machines; nearer stores take
precedence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.identity import code_version
from tilewright.plans.framework.advice import Advice
from tilewright.plans.framework.decision_key import Key, target_class
from tilewright.plans.framework.decisions import Decision
from tilewright.plans.framework.space import Setting, Space
from tilewright.records.record import Record
from tilewright.records.store import Store
from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import Problems, RecordError
from tilewright.targets.target import Target

if TYPE_CHECKING:
    from tilewright.records.index import Index, Row

MAX_RECORDS = 16
"""The most records about one decision that are considered."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A setting for a search to begin with.

    Args:
        setting: a setting of the requested space.
        distance: how far the record's sizes lie from those that were asked for: 1.0 is a factor of two in one of them.
        record: the digest of the record that it comes from.
        target: the class of machines that it is about.
    """

    setting: Setting
    distance: float
    record: str
    target: str


class Lookup:
    """An `Advisor` (`plans/framework/advice.py`) that answers from tuning records.

    Of several records about one decision, records that this compiler measured go before others, then records of nearer
    stores, then newer ones. Answers are remembered: within one compile nothing changes.
    """

    def __init__(self, indexes: Sequence[Index]) -> None:
        self._indexes = tuple(indexes)
        stamps = [(str(index.store.folder.absolute()), index.stamp) for index in indexes]
        known = all(stamp for _, stamp in stamps)
        self._stamp = blake2b(repr(stamps).encode(), digest_size=16).hexdigest() if known else ""
        self._said: dict[str, tuple[Advice, ...]] = {}

    @property
    def stamp(self) -> str:
        return self._stamp

    def advise(self, decision: str) -> tuple[Advice, ...]:
        entry = self._said.get(decision)
        if entry is None:
            entry = self._said[decision] = tuple(_advice(digest, record) for digest, record in self.find(decision))
        return entry

    def find(self, decision: str) -> list[tuple[str, Record]]:
        """The records about a decision with their digests, in order of precedence."""
        rows: dict[str, tuple[int, Row, Index]] = {}
        for place, index in enumerate(self._fresh):
            for row in index.find(decision):
                rows.setdefault(row.digest, (place, row, index))
        mine = code_version() if rows else ""
        ranked = sorted(rows.values(), key=lambda r: (r[1].compiler != mine, r[0], -r[1].time, r[1].digest))
        read = ((row.digest, index.store.get(row.digest, index.target)) for _, row, index in ranked[:MAX_RECORDS])
        # An index may be damaged in a way that SQLite does not see; the record says what it is about.
        return [(digest, record) for digest, record in read if record is not None and record.decision == decision]

    @cached_property
    def _fresh(self) -> tuple[Index, ...]:
        for index in self._indexes:
            index.refresh()
        return self._indexes


def _advice(digest: str, record: Record) -> Advice:
    current = record.provenance.compiler == code_version()
    return Advice(digest, record.setting, record.measured, record.space, current)


def lookup(stores: Iterable[Store], target: Target) -> Lookup | None:
    """The look-up in the records of these stores about a target's class of machines; None if there are no such
    records."""
    machines = target_class(target)
    results = [
        index_of(store, machines)
        for store in (s.prepare(machines) for s in stores)
        if store.class_folder(machines).is_dir()
    ]
    return Lookup(results) if results else None


def check_recorded(created: Iterable[Decision], target: Target) -> None:
    """Raise RecordError, which lists the decisions, if estimates chose among several settings for lack of a record."""
    problems = Problems()
    for d in created:
        if d.why == "estimate" and len(d.space) > 1:
            problems.add(RecordError("there is no tuning record that can be used", where=f"{d.key.name}, {d.key.text}"))
    hint = "`tilewright tune` makes records, `tilewright db list` shows those that there are"
    problems.raise_if_any(f"decisions without records about {target_class(target)}; {hint}", kind=RecordError)


def seeds(stores: Iterable[Store], key: Key, target: Target, space: Space, most: int = 5) -> list[Seed]:
    """At most `most` settings that are good for decisions which differ from the decision `key` in sizes only, the ones
    for the nearest sizes first.

    Records of the target's own class of machines come first, then records of other classes with the same vectors and
    registers, for any number of threads. A recorded setting that is not in `space` is replaced by the nearest one that
    is: a seed is measured like any other setting.
    """
    mine = target_class(target)
    results: list[tuple[bool, float, str, str, Setting]] = []
    for store in stores:
        for machines in store.classes():
            if _vectors(machines) != _vectors(mine):
                continue
            index = index_of(store, machines)
            index.refresh()
            for distance, row in index.similar(key.text)[: 4 * most]:
                beside = row.decision.startswith(f"{key.kind} ") and nearest(Setting.parse(row.setting), space)
                if beside:
                    results.append((machines != mine, distance, row.digest, machines, beside))
    best: dict[Setting, Seed] = {}
    for _, distance, digest, machines, setting in sorted(results, key=lambda f: f[:3]):
        best.setdefault(setting, Seed(setting, distance, digest, machines))
    return list(best.values())[:most]


def nearest(setting: Setting, space: Space) -> Setting | None:
    """The setting in `space` with the alternative and the knobs of `setting` whose values are nearest; None if there is
    none."""
    knobs = dict(setting.knobs)
    alike = [s for s in space if s.kind == setting.kind and dict(s.knobs).keys() == knobs.keys()]
    if not alike:
        return None
    return min(alike, key=lambda s: sum(abs(log2((abs(v) + 1) / (abs(knobs[n]) + 1))) for n, v in s.knobs))


def _vectors(machines: str) -> tuple[str, ...]:
    """Architecture, vectors and registers of a class of machines (`Target.kind`)."""
    words = machines.split(" ")
    return (words[0], words[2]) if len(words) > 3 else (machines,)


def index_of(store: Store, machines: str) -> Index:
    """The index of a store's records about a class of machines; the process has one of each."""
    return _index(store.folder.absolute(), machines, flags.CACHE_DIR())


@lru_cache(maxsize=64)
def _index(folder: Path, machines: str, cache: Path) -> Index:
    from tilewright.records.index import Index  # here: where there are no records, no call waits for SQLite

    return Index(Store(folder), machines, cache / "records-index")


__all__ = ["Lookup", "Seed", "check_recorded", "index_of", "lookup", "nearest", "seeds"]
