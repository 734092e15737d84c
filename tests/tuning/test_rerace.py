"""Records of other compilers, raced without their models: with the processes' own results and made-up times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.plans.framework.test_decisions import model
from tests.records.samples import POLICY, PROVENANCE, record
from tilewright.identity import code_version
from tilewright.plans import candidates
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.decision_key import key_of_function
from tilewright.records.check import checked
from tilewright.records.record import NONE, Gain, Record
from tilewright.records.store import Store
from tilewright.support.errors import Error
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.lower import lower_group
from tilewright.tuning.programs import Built
from tilewright.tuning.rerace import Reraced, apply_result, copies_of, example_arrays, interpreted, rerace
from tilewright.tuning.workers import Processes, Timed

HOST = Target.host()


def old(number: int = 1, **changes: Any) -> tuple[Record, list[str]]:
    """A record of another compiler about a convolution, and the labels of today."""
    (group,) = fuse(model((1, 4, 16, 12, 3, 1, 1)))
    func = lower_group(group, "k").func
    labels = [c.label for c in candidates(analyse(func), HOST)]
    setting = labels[number]
    gain = NONE if number == 0 else Gain(1.04, 1.02, 1.06, 55)
    values = {"untuned": labels[0], "policy": POLICY, "candidates": (), "gain": gain, "provenance": PROVENANCE}
    return Record.of(key_of_function(func, HOST), HOST, labels, setting=setting, **{**values, **changes}), labels


@dataclass(frozen=True)
class Invented(Processes):
    """Times by label: a race's second takes so many µs for the first's 1."""

    slowness: float = 1.0
    outcome: str = "timed"

    def compared(self, candidates: Sequence[Built], reference: Mapping[str, Any] | None, allowed: float) -> list[Timed]:
        last = Timed("timed", ((1e-6 * self.slowness,),) * 11, 1e-7)
        if self.outcome != "timed":
            last = Timed(self.outcome, why="made up")  # type: ignore[arg-type]
        return [Timed("timed", ((1e-6,),) * 11, 1e-7), last][: len(candidates)]


def test_what_wins_is_verified_and_what_does_not_goes(tmp_path: Path) -> None:
    result, labels = old()
    assert checked(result, HOST).state == "unverified"
    faster = rerace(result, measure=lambda _, threads: Invented(Path(), Path(), threads, slowness=0.9))
    assert faster.state == "verified" and faster.record is not None
    new = faster.record
    assert (new.decision, new.setting, new.untuned) == (result.decision, labels[1], labels[0])
    assert new.provenance.compiler == code_version() and abs(new.gain.median - 1 / 0.9) < 1e-6
    assert new.measured == tuple(labels[:2])
    assert checked(new, HOST).state == "used"
    store = Store(tmp_path)
    apply_result(store, store.put(result), result, faster)
    assert list(store.records()) == [new]
    assert rerace(new).state == "stands"
    tied = rerace(result, measure=lambda _, threads: Invented(Path(), Path(), threads))
    assert tied.state == "dropped" and "not verified to be faster" in tied.why
    apply_result(store, store.put(result), result, tied)
    assert list(store.records()) == [new]


@pytest.mark.parametrize("outcome", ["wrong", "crashed", "timeout", "memory"])
def test_what_fails_is_dropped_with_its_reason(outcome: str) -> None:
    result = rerace(old()[0], measure=lambda _, n: Invented(Path(), Path(), n, slowness=0.5, outcome=outcome))
    assert result == Reraced("dropped", f"{outcome}: made up")


def test_labels_that_are_gone_are_dropped_and_others_left() -> None:
    assert rerace(replace(old()[0], setting="direct rows=999")) == Reraced("dropped", "not among the settings here")
    assert rerace(old(0)[0]).why == "it is what the estimates prefer now"
    assert rerace(record(), HOST).state == "skipped"  # about an algorithm, on another machine


def test_a_setting_must_not_lose_in_caches_or_from_memory() -> None:
    """Where it is not known which of the two it was in the model."""

    class Uncached(Invented):
        def compared(self, candidates: Sequence[Built], *rest: Any) -> list[Timed]:
            copies = [int(Path(built.code).read_text().rpartition(" ")[2].rstrip("}")) for built in candidates]
            return replace(self, slowness=0.8 if copies[0] == 1 else 1.1).times(candidates)

        def times(self, candidates: Sequence[Built]) -> list[Timed]:
            return Invented.compared(self, candidates, None, 0.0)

    nonresident = lambda _, threads: Uncached(Path(), Path(), threads)  # noqa: E731
    both, _ = old(policy=replace(POLICY, regime="model"))
    warm, _ = old(policy=replace(POLICY, regime="warm"))
    assert (
        "cold 0.909" in rerace(both, measure=nonresident).why and rerace(warm, measure=nonresident).state == "verified"
    )


def test_real_processes_agree_with_the_interpreter(tmp_path: Path) -> None:
    result = rerace(old()[0])
    assert result.state in ("verified", "dropped") and result.gain is not None, result.why
    assert result.state == "verified" or "not verified to be faster" in result.why


def test_results_of_the_interpreter_and_copies() -> None:
    func = old()[0].key().program
    arrays = example_arrays(func)  # type: ignore[arg-type]
    outputs = interpreted(func, arrays)  # type: ignore[arg-type]
    assert outputs is not None and all(np.isfinite(a).all() for a in outputs.values())
    size = sum(a.nbytes for a in arrays.values())
    assert 2 * HOST.l2 < size * copies_of(arrays, HOST) or copies_of(arrays, HOST) == 256


def test_an_error_of_a_process_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_inputs: Path, _threads: int) -> Processes:
        raise Error("no processes here")

    assert rerace(old()[0], measure=refuse) == Reraced("dropped", "no processes here")
