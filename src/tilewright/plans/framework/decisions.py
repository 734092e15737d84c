"""Decisions of a compile: what was decided, among what, and how to force another choice.

Layout assignment decides how weights are packed, plans decide how a kernel is scheduled. Each asks `decide`, which
takes the best estimate unless the caller of the compiler forces something else:

    with deciding() as record:                       what is there to decide?
        tw.compile(model)
    for d in record.made: print(d.site, d.labels)

    with deciding({site: "rows=4,width=16"}):        decided otherwise
        tw.compile(model)

A site is text that names one decision by content: the same layer in another model has the same. Searches and tuners
enumerate `made` and force one label after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from tilewright.support.errors import ScheduleError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice: where, among which settings (the best estimate first), each one's estimate in cycles, which."""

    site: str
    labels: tuple[str, ...]
    estimates: tuple[float, ...]
    taken: str


@dataclass(slots=True)
class Record:
    """What is forced, by site, and what was decided so far."""

    forced: Mapping[str, str]
    made: list[Decision] = field(default_factory=list)

    def unused(self) -> tuple[str, ...]:
        """Forced sites at which nothing was decided."""
        sites = {d.site for d in self.made}
        return tuple(site for site in self.forced if site not in sites)


_current: ContextVar[Record | None] = ContextVar("decisions", default=None)


@contextmanager
def deciding(forced: Mapping[str, str] | None = None) -> Iterator[Record]:
    """Record the decisions made inside, with some of them forced: site -> label.

    Raises ScheduleError (where the decision is made) if a forced label is none of the site's.
    """
    record = Record(dict(forced or {}))
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)


def cheapest(site: Callable[[], str], estimates: Mapping[str, float]) -> str:
    """The label of the least estimate, or the one that is forced at this site."""
    labels = sorted(estimates, key=lambda label: estimates[label])
    return decide(site, labels, labels, [estimates[label] for label in labels])


def decide(site: Callable[[], str], options: Sequence[T], labels: Sequence[str], estimates: Sequence[float]) -> T:
    """One of `options`, which are sorted: the first, or the one whose label is forced at this site."""
    record = _current.get()
    if record is None:
        return options[0]
    name = site()
    taken = record.forced.get(name, labels[0])
    if taken not in labels:
        raise ScheduleError("no such setting", where=name, expected=", ".join(labels), got=repr(taken))
    if all(d.site != name for d in record.made):
        record.made.append(Decision(name, tuple(labels), tuple(estimates), taken))
    return options[list(labels).index(taken)]


def recording() -> bool:
    """Whether decisions are recorded, and some of them perhaps forced."""
    return _current.get() is not None
