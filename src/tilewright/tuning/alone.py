"""One decision tuned by itself, without its model: what a worker of a tuning service does.

The tuner's descent searches a kernel's settings; each candidate is compiled in a process of its own, and its arrays
come from memory. The best is then raced as `rerace` races recorded settings, with arrays in caches and in memory.
Operators whose algorithm or packing is decided become a model of their own, which `tune` tunes like any other.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tilewright.ir.graph import Graph
from tilewright.ir.loops import PrimFunc
from tilewright.measure.contender import save_arrays
from tilewright.plans import candidates
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.decision_key import Key, target_class
from tilewright.plans.framework.space import Setting, Space
from tilewright.records import record as records
from tilewright.records.record import Record
from tilewright.records.store import Store
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.tuning.entry import tune
from tilewright.tuning.layer_race import KINDS, model_of
from tilewright.tuning.recording import printable
from tilewright.tuning.rerace import (
    POLICY,
    Claim,
    Measure,
    confirm,
    copies_of,
    example_arrays,
    interpreted,
    measure_kernels,
    record_of,
    seconds_of,
    written,
)
from tilewright.tuning.search import Descent, Policy
from tilewright.tuning.significance import ratios, slowness, there_and_back
from tilewright.tuning.workers import FLOOR, LOOSER, Timed

AT_ONCE = 4
"""The number of candidates that race with the estimates' choice at once."""


@dataclass(frozen=True, slots=True)
class Alone:
    """The result of a search: records, the first of which is about the searched decision, and a description in
    words."""

    records: tuple[Record, ...]
    why: str


def tune_alone(
    key: Key,
    machine: Target,
    *,
    seconds: float = 120.0,
    policy: Policy | None = None,
    measure: Measure | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Alone:
    """Search the settings of one decision and verify the best.

    Args:
        machine: the target of this machine, with the instructions and threads that the decision is about.
        seconds: the time after which no further candidate is timed.
        policy: how far the search goes.
        measure: where the times of kernels come from.

    Raises Error where nothing can be compiled or timed.
    """
    if isinstance(key.program, PrimFunc):
        return _kernel(key, key.program, machine, seconds, policy or Policy(), measure, clock)
    assert isinstance(key.program, Graph)
    if key.kind not in KINDS:
        return Alone((), "its operators come up in the model alone")
    with tempfile.TemporaryDirectory(prefix="tilewright-alone-") as folder:
        store = Store(folder)
        tuned = tune(
            model_of(key.program, 1),
            seconds=seconds,
            threads=machine.threads,
            target=machine,
            store=store,
            policy=policy,
        )
        results = sorted(store.records(target_class(machine)), key=lambda r: (r.decision != key.name, r.decision))
    return Alone(tuple(results), f"{tuned.timed} candidates, {len(results)} decisions, {tuned.gain}")


def _kernel(
    key: Key,
    func: PrimFunc,
    machine: Target,
    seconds: float,
    policy: Policy,
    measure: Measure | None,
    clock: Callable[[], float],
) -> Alone:
    choices = candidates(analyse(func), machine)
    space = Space(tuple(Setting.parse(c.label) for c in choices))
    search = Descent(space, [c.cycles for c in choices], policy)
    timed: dict[str, Timed] = {}
    with tempfile.TemporaryDirectory(prefix="tilewright-alone-") as folder:
        arrays, place = example_arrays(func), Path(folder)
        save_arrays(str(place / "inputs.npz"), arrays)
        processes = (measure or measure_kernels)(place / "inputs.npz", machine.threads)
        reference, copies = interpreted(func, arrays), copies_of(arrays, machine)
        allowed, end = float("inf"), clock() + seconds  # what was prepared so far is no part of the search
        while labels := search.ask(AT_ONCE):
            built = [written(place, key, label, machine, copies) for label in (search.incumbent, *labels)]
            first, *others = processes.compared(built, reference, allowed)
            if first.outcome != "timed":
                return Alone((), f"the estimates' choice is {first.outcome}: {first.why}")
            allowed = max(FLOOR, LOOSER * first.error)
            timed[search.incumbent] = first
            for label, other in zip(labels, others, strict=True):
                good = other.outcome == "timed" and other.error <= allowed
                timed[label] = other
                gains = there_and_back(ratios(*(seconds_of(t) for t in (first, other)))) if good else ()
                search.tell(label, slowness(gains))
            if clock() > end:
                break
    ended = not labels
    for label in search.finalists(1):
        result = confirm(Claim(key, label, "model"), machine, measure)
        if result.record is not None:
            return Alone((result.record,), f"{search.measured} candidates; {label}: {result.why}")
    if not ended:
        return Alone((), f"{search.measured} candidates, none verified to be faster when the time was up")
    tie = _tie(key, machine, space, [c.cycles for c in choices], timed, search.incumbent)
    return Alone((tie,), f"{search.measured} candidates, none verified to be faster")


def _tie(
    key: Key, machine: Target, space: Space, estimates: list[float], timed: dict[str, Timed], incumbent: str
) -> Record:
    """A record that no setting was measured to be better than `incumbent`, the estimates' choice; `timed` has the
    outcome of each timed setting, `estimates` the estimate of each setting in `space`."""
    by_label = dict(zip(space.labels, estimates, strict=True))
    tried = tuple(
        records.Candidate(
            label, t.outcome, by_label[label], tuple(records.rounded(s) for s in seconds_of(t)), printable(t.why)
        )
        for label, t in timed.items()
    )
    policy = records.Policy(POLICY, "cold", "kernel", 0, 1)
    return record_of(Claim(key, incumbent, "cold"), machine, space.labels, policy, tried)


__all__ = ["Alone", "tune_alone"]
