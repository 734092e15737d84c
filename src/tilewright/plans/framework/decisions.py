"""Decisions of a compile: what was decided, among what, and how to force another choice.

Every choice by an estimate goes through `decide`: which algorithm a convolution takes, how weights are packed, whether
a kernel changes layouts itself, how it is scheduled. It chooses the preferred option unless the caller of the compiler
forces another one:

    with deciding() as record:                                what is there to decide?
        tw.compile(model)
    for d in record.decisions: print(d.key.text, d.selected.label, len(d.space))

    with forcing({d.key.name: "winograd tile=4,..."}):        decided otherwise
        tw.compile(model)

A forced compile is cached like any other: what is forced is part of the program's key. While decisions are listed,
programs are compiled anew, since a cached one makes no decisions. Decisions that are not forced may follow tuning
records (`plans/framework/advice.py`), if the compile has an advisor.
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
    """A choice that the compiler has made among settings, with the settings and their estimates.

    Args:
        key: what was decided.
        space: the settings that were possible, the preferred one first.
        estimates: of each setting, in cycles of one core for everything that the key names (a call, or an image if the
            number of images is not known); 0.0 if a rule decides without estimates.
        selected: the index of the setting in the program.
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
        """The settings other than the selected one with their estimates, the preferred ones first."""
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
    """A reference to a decision about a kernel's schedule: `name` is the name of its key, and `where` the values of
    symbols for which it was made; () if it is for all other values."""

    name: str
    where: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class Context:
    """The state of decisions in a compile: settings that are forced, by key name, and decisions so far if these are
    listed.

    `kernels` has, for each kernel's symbol, the decisions about its schedule. `advisor` is queried about decisions that
    are not forced. `asked` are its answers by key name ("": there is no record), `uses` the outcomes for its records.
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
        """The records about the decision with this key name."""
        if self.advisor is None or name in self.forced:
            return ()
        advices = self.advisor.advise(name)
        self.asked[name] = answer(advices)
        return advices

    def unused(self) -> tuple[str, ...]:
        """The forced keys for which no decision was made."""
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
    """A context for plans, nested in the current one, in which `advisor` is queried about each decision that the caller
    of the compiler has not forced. If there is neither an advisor nor a listing, the current context stays, and is None
    where there is none.

    Args:
        advisor: has the records of earlier measurements; None for no queries.
        listing: also list the decisions that are made, as `deciding` does.
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
    """A context in which decisions are listed; otherwise it equals the current one."""
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
    """The chosen one of `options`, which are in order of preference: the first, or the one that is forced or recorded.

    Args:
        key: returns the key; called only if decisions are listed or forced, as are the others.
        setting: maps an option to its setting; no two options have the same.
        estimate: maps an option to its cycles. Left out if a rule states the order.
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
    """(index of the setting that is forced, "forced"), or of the one that a tuning record recommends ("record"); (0,
    "") if there is neither. `estimates` returns the settings' estimates. Raises ScheduleError if `label`, the forced
    setting, is not in `labels`."""
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
    """The alternative to use, by a decision: the key of `estimates` with the smallest estimate, unless another one is
    forced or recorded."""
    ordered = sorted(estimates, key=lambda kind: estimates[kind])
    return decide(key, ordered, Setting, lambda kind: estimates[kind])


def listing() -> bool:
    """Whether decisions are listed, so that everything is decided anew."""
    record = _current.get()
    return record is not None and record.listing


def scheduled(symbol: str, decisions: tuple[Scheduled, ...]) -> None:
    """Remember, if decisions are listed, the `decisions` that led to the schedule of kernel `symbol`."""
    record = _current.get()
    if record is not None and record.listing:
        record.kernels[symbol] = decisions


def forced_settings() -> dict[str, str]:
    """The forced settings: the key's name -> the setting's label. They are a part of cache keys."""
    record = _current.get()
    return {} if record is None else dict(record.forced)


def effective_settings() -> dict[str, str]:
    """The forced settings and those that records decided so far: forcing them repeats all decisions."""
    record = _current.get()
    return {} if record is None else dict(record.forced) | selected_of(record.uses.values())


def selected_of(uses: Iterable[RecordUse]) -> dict[str, str]:
    """From outcomes of records, the settings that they decided: key name -> label."""
    return {use.decision: use.setting for use in uses if use.state != "unusable"}


def recorded() -> tuple[RecordUse, ...]:
    """The outcomes of tuning records so far: for each decision that has a record, whether it was followed."""
    record = _current.get()
    return () if record is None else tuple(record.uses.values())


def current() -> Context | None:
    """The current context of decisions; None if estimates decide everything and no decisions are listed."""
    return _current.get()
