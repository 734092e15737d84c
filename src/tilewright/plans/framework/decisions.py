"""Decisions of a compile: what was decided, among what, and how to force another choice.

Every choice by an estimate goes through `decide`: which algorithm a convolution takes, how weights are packed, whether
a kernel changes layouts itself, how it is scheduled. It takes what is preferred unless the caller of the compiler
forces something else:

    with deciding() as record:                                what is there to decide?
        tw.compile(model)
    for d in record.decisions: print(d.key.text, d.selected.label, len(d.space))

    with forcing({d.key.name: "winograd tile=4,..."}):        decided otherwise
        tw.compile(model)

A forced compile is cached like any other: what is forced is part of the program's key. While decisions are listed,
programs are made anew, for a cached one decides nothing. What is not forced may be known from tuning records
(`plans/framework/advice.py`), if the compile has an advisor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import field, replace
from typing import Any, TypeVar

from tilewright.plans.framework.advice import Advice, Advisor, answer, follow
from tilewright.plans.framework.decision_key import Key
from tilewright.plans.framework.space import Setting, Space
from tilewright.runtime.recorded import RecordUse
from tilewright.support.classes import dataclass
from tilewright.support.errors import ScheduleError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice.

    Args:
        key: what was decided.
        space: among which settings, the preferred one first.
        estimates: of each of them, in cycles of one core for all of what the key names (a call, or an image where the
            number of images is not known); 0.0 where a rule decides and nothing is estimated.
        selected: which setting the program has.
        why: "estimate", "rule", "record" or "forced".
    """

    key: Key
    space: Space
    estimates: tuple[float, ...]
    selected: Setting
    why: str

    @property
    def estimate(self) -> float:
        """The estimate of the selected setting, in cycles of one core."""
        return self.estimates[self.space.settings.index(self.selected)]

    @property
    def runners_up(self) -> tuple[tuple[Setting, float], ...]:
        """The other settings with their estimates, the preferred ones first."""
        return tuple((s, e) for s, e in zip(self.space, self.estimates, strict=True) if s != self.selected)

    def to_dict(self, runners_up: int = 3) -> dict[str, Any]:
        """The decision as data for JSON."""
        return {
            "kind": self.key.kind,
            "key": self.key.name,
            "about": self.key.text,
            "space": len(self.space),
            "knobs": {
                kind: {knob.name: list(knob.values) for knob in self.space.knobs(kind)} for kind in self.space.kinds
            },
            "taken": self.selected.label,
            "why": self.why,
            "cycles": self.estimate,
            "runners_up": [{"setting": s.label, "cycles": e} for s, e in self.runners_up[:runners_up]],
        }


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One decision about a kernel: its key's name, and the values of symbols for which the kernel runs what it decides
    (none: for all that have no decision of their own)."""

    name: str
    where: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class Context:
    """The settings that are forced, by the key's name, and the decisions so far (nothing if decisions are not listed).

    `kernels` has the decisions about each kernel's schedule by the kernel's symbol.
    `advisor` is asked about the rest. `asked` are the answers by the key's name, "" where there is no record, and
    `uses` what became of those that there are.
    """

    forced: Mapping[str, str]
    listing: bool
    decisions: list[Decision] = field(default_factory=list)
    met: set[str] = field(default_factory=set)
    kernels: dict[str, tuple[Scheduled, ...]] = field(default_factory=dict)
    advisor: Advisor | None = None
    asked: dict[str, str] = field(default_factory=dict)
    uses: dict[str, RecordUse] = field(default_factory=dict)

    def ask(self, name: str) -> tuple[Advice, ...]:
        """The answer of records about a decision."""
        if self.advisor is None or name in self.forced:
            return ()
        advices = self.advisor.advise(name)
        self.asked[name] = answer(advices)
        return advices

    def unused(self) -> tuple[str, ...]:
        """Forced keys about which nothing was decided."""
        return tuple(name for name in self.forced if name not in self.met)


_current: ContextVar[Context | None] = ContextVar("decisions", default=None)


@contextmanager
def _within(record: Context) -> Iterator[Context]:
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)


def deciding(forced: Mapping[str, str] | None = None) -> AbstractContextManager[Context]:
    """A context in which decisions are listed, with some of them forced: the key's name -> the setting's label.

    Raises ScheduleError (where the decision is made) if a forced label is none of the space's.
    """
    return _within(Context(dict(forced or {}), listing=True))


def forcing(forced: Mapping[str, str]) -> AbstractContextManager[Context]:
    """A context with forced decisions that lists none, so that programs compiled before with these settings are
    reused."""
    return _within(Context(dict(forced), listing=False))


@contextmanager
def advised(advisor: Advisor | None, listing: bool = False) -> Iterator[Context | None]:
    """A context in which `advisor` is asked about what is not forced, inside the one that there is; None where that is
    no other than without.

    Args:
        listing: list decisions, as `deciding` does.
    """
    outer = _current.get()
    if advisor is None and not listing:
        yield outer
        return
    base = outer or Context({}, False)
    inner = Context(base.forced, base.listing or listing, base.decisions, base.met, base.kernels, advisor)
    with _within(inner):
        yield inner


@contextmanager
def listed() -> Iterator[Context]:
    """A context in which decisions are listed, otherwise like the one that there is."""
    outer = _current.get()
    inner = Context({}, True) if outer is None else replace(outer, listing=True)  # what was decided is shared
    with _within(inner):
        yield inner


def decide(
    key: Callable[[], Key],
    options: Sequence[T],
    setting: Callable[[T], Setting],
    estimate: Callable[[T], float] = lambda _: 0.0,
) -> T:
    """One of `options`, which are in order of preference: the first, or the one whose setting is forced.

    Args:
        key: asked only while decisions are listed or forced, as are the others.
        setting: of an option; no two have the same.
        estimate: of an option, in cycles. Left out where a rule states the order.
    """
    record = _current.get()
    if record is None:
        return options[0]
    about = key()
    label = record.forced.get(about.name)
    advices = record.ask(about.name)
    new = about.name not in record.met
    record.met.add(about.name)
    if label is None and not advices and not (new and record.listing):
        return options[0]
    settings = [setting(option) for option in options]
    place, why = _selected(
        record, about, label, advices, [s.label for s in settings], lambda: [*map(estimate, options)]
    )
    if new and record.listing:
        estimates = tuple(float(estimate(option)) for option in options)
        why = why or ("estimate" if any(estimates) else "rule")
        record.decisions.append(Decision(about, Space(tuple(settings)), estimates, settings[place], why))
    return options[place]


def _selected(
    record: Context,
    about: Key,
    label: str | None,
    advices: Sequence[Advice],
    labels: list[str],
    estimates: Callable[[], Sequence[float]],
) -> tuple[int, str]:
    """The place of what is forced or recorded, and why it is taken; the first, and nothing, where neither is."""
    if label is not None:
        if label not in labels:
            raise ScheduleError("no such setting", where=about.name, expected=", ".join(labels), got=repr(label))
        return labels.index(label), "forced"
    if not advices:
        return 0, ""
    place, use = follow(about.name, advices, labels, estimates)
    record.uses.setdefault(about.name, use)
    return (0, "") if place is None else (place, "record")


def cheapest(key: Callable[[], Key], estimates: Mapping[str, float]) -> str:
    """The alternative of the least estimate, or the one that is forced."""
    ordered = sorted(estimates, key=lambda kind: estimates[kind])
    return decide(key, ordered, Setting, lambda kind: estimates[kind])


def listing() -> bool:
    """Whether decisions are listed: then everything is decided anew."""
    record = _current.get()
    return record is not None and record.listing


def scheduled(symbol: str, decisions: tuple[Scheduled, ...]) -> None:
    """Note, while decisions are listed, which of them made a kernel."""
    record = _current.get()
    if record is not None and record.listing:
        record.kernels[symbol] = decisions


def forced_settings() -> dict[str, str]:
    """The settings that are forced: the key's name -> the setting's label. It is a part of cache keys."""
    record = _current.get()
    return {} if record is None else dict(record.forced)


def effective_settings() -> dict[str, str]:
    """The settings that are forced, and those that records decided so far: forcing them repeats the decisions."""
    record = _current.get()
    return {} if record is None else dict(record.forced) | selected_of(record.uses.values())


def selected_of(uses: Iterable[RecordUse]) -> dict[str, str]:
    """The settings that were taken from records: the key's name -> the setting's label."""
    return {use.decision: use.setting for use in uses if use.state != "unusable"}


def recorded() -> tuple[RecordUse, ...]:
    """The outcomes so far of decisions about which there are records."""
    record = _current.get()
    return () if record is None else tuple(record.uses.values())


def current() -> Context | None:
    """The context of the compile; None where all is decided by estimates and no decisions are listed."""
    return _current.get()
