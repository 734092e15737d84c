"""Races that verify records of other compilers for this compiler, without the model.

A record about a kernel has all that a race needs: the function and its setting; this compiler says which setting it
would prefer. Both are compiled in processes of their own, checked against the interpreter, and timed in turns with five
fresh loadings. If the recorded setting wins, it becomes a record of this compiler; if not, the old record is removed.

A record about an algorithm or a packing names operators, which are raced as a model of their own (`layer_race.py`).
Without the surrounding layers such a race says less: a winner becomes a record of this compiler, a loser's record is
removed, and an undecided one is left to `tilewright tune --verify`, which races it in the model.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tilewright.codegen.interpret.interpreter import interpret
from tilewright.identity import code_version
from tilewright.ir.expr import as_int, const
from tilewright.ir.loops import Block, PrimFunc
from tilewright.ir.rewrite import substitute, walk
from tilewright.measure.contender import save_arrays
from tilewright.plans import candidates
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.decision_key import Key, target_class
from tilewright.records import record as records
from tilewright.records.check import checked
from tilewright.records.record import Record
from tilewright.records.store import Store
from tilewright.schedule.state import written_buffers
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error
from tilewright.targets.target import Target
from tilewright.tuning.kernel_subject import KERNEL, subject
from tilewright.tuning.layer_race import Raced, race_layer
from tilewright.tuning.programs import Built
from tilewright.tuning.significance import Gain, gain, ratios, there_and_back
from tilewright.tuning.workers import FLOOR, LOADINGS, LOOSER, ROUNDS, Processes, Timed

POLICY = "a kernel alone 1"
LAYER = "a layer alone 1"
IN_THE_MODEL = "`tilewright tune MODEL --verify` races it in its model"
REGIMES: Mapping[str, tuple[Literal["warm", "cold"], ...]] = {
    "warm": ("warm",),
    "cold": ("cold",),
    "model": ("warm", "cold"),  # which of the two it was there is not known: a setting must not lose in either
}
INTERPRETED = 3_000_000
"""Iterations of blocks that the interpreter is asked to run, some seconds; results of larger functions are held against
those of the untuned code."""
MAX_COPIES, MAX_BYTES = 256, 256 << 20
"""The most copies of a kernel's arrays, and the most bytes of all copies, of a race with arrays in memory."""


@dataclass(frozen=True, slots=True)
class Reraced:
    """The outcome of racing a record's setting again: the record "stands" as it is, was "verified" anew, was "dropped",
    or was "skipped" as a race says nothing about it. `gain` is that over this compiler's own preference; `record`
    replaces the old record."""

    state: Literal["stands", "verified", "dropped", "skipped"]
    why: str = ""
    gain: Gain | None = None
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement about a decision that races confirm or not: that `setting` is faster than the estimates' choice.

    Args:
        regime: where inputs and weights come from, or "model", where that is not known.
        author: the author of the record that is made if the claim holds.
    """

    key: Key
    setting: str
    regime: str
    author: str = ""

    @classmethod
    def of(cls, record: Record, key: Key) -> Claim:
        """The claim of `record` about the decision `key`: that its setting is faster than the estimates' choice."""
        return cls(key, record.setting, record.policy.regime, record.provenance.author)


Measure = Callable[[Path, int], Processes]
"""Makes the processes that time kernels with the arrays in a file, on a number of threads."""
RaceLayer = Callable[[Key, str, Target, tuple[Literal["warm", "cold"], ...]], Raced | str]
"""Races a setting of a decision about operators on a machine, in the given regimes."""


def rerace(
    record: Record, target: Target | None = None, measure: Measure | None = None, layer: RaceLayer = race_layer
) -> Reraced:
    """Race the setting of a record against what this compiler prefers.

    Args:
        target: the machine, with the instructions that the record is about; this machine if None.
        measure: where the times of kernels come from.
        layer: where the times of operators come from.
    """
    verdict = checked(record, target)
    machine = replace(target or Target.host(), threads=record.threads)
    here = target_class(machine) == record.target
    if verdict.state == "used" or (here and record.provenance.compiler == code_version()):
        return Reraced("stands", "measured with this compiler")
    if verdict.state == "unusable" and not verdict.why.startswith("estimated"):
        return Reraced("dropped", verdict.why)
    if not here:
        return Reraced("skipped", verdict.why)
    return confirm(Claim.of(record, record.key()), machine, measure, layer)


def confirm(claim: Claim, machine: Target, measure: Measure | None = None, layer: RaceLayer = race_layer) -> Reraced:
    """Race a claimed setting against the one that this compiler prefers, whether the claim comes from a record or
    elsewhere.

    Args:
        machine: the target of this machine, with the instructions and threads that the claim is about.
        measure, layer: as for `rerace`.
    """
    func = claim.key.program
    if not isinstance(func, PrimFunc):
        return _of_operators(claim, machine, layer)
    labels = [c.label for c in candidates(analyse(func), machine)]
    if claim.setting not in labels:
        return Reraced("dropped", "not among the settings here")
    if claim.setting == labels[0]:
        return Reraced("skipped", "it is what the estimates prefer now")
    try:
        return _raced(claim, func, machine, labels, measure or measure_kernels)
    except Error as error:
        return Reraced("dropped", error.headline())


def _of_operators(claim: Claim, machine: Target, layer: RaceLayer) -> Reraced:
    """The outcome for a claim about an algorithm or a packing, from a race of the operators alone. If that shows
    neither gain nor loss it is "skipped": there may be a gain inside the model."""
    try:
        result = layer(claim.key, claim.setting, machine, REGIMES[claim.regime])
    except Error as error:
        return Reraced("skipped", error.headline())
    if isinstance(result, str):
        return Reraced("skipped", f"{result}; {IN_THE_MODEL}")
    evaluated = _evaluated(claim, machine, list(result.labels), result.gains, result.turns, result.errors, LAYER)
    if evaluated.state == "verified" or any(g.high < 1.0 for g in result.gains.values()):
        return evaluated
    return replace(evaluated, state="skipped", why=f"{evaluated.why}; {IN_THE_MODEL}")


def apply_result(store: Store, digest: str, record: Record, result: Reraced) -> None:
    """Apply the outcome of a race to a store: the new record is written before the old one is removed, so that an
    interruption loses neither."""
    if result.record is not None:
        store.put(result.record)
    if result.state in ("verified", "dropped"):
        store.remove(digest, record.target)


def measure_kernels(inputs: Path, threads: int) -> Processes:
    """The processes on this machine that time kernels on the arrays in the file `inputs`."""
    return Processes(Path(), inputs, threads, setup=(KERNEL, KERNEL))


def _raced(claim: Claim, func: PrimFunc, machine: Target, labels: list[str], measure: Measure) -> Reraced:
    arrays = example_arrays(func)
    regimes = REGIMES[claim.regime]
    with tempfile.TemporaryDirectory(prefix="tilewright-race-") as folder:
        place = Path(folder)
        save_arrays(str(place / "inputs.npz"), arrays)
        processes = measure(place / "inputs.npz", machine.threads)
        reference = interpreted(func, arrays)
        gains: dict[str, Gain] = {}
        turns: dict[str, list[float]] = {labels[0]: [], claim.setting: []}
        error = own = 0.0
        for regime in regimes:
            copies = 1 if regime == "warm" else copies_of(arrays, machine)
            both = [written(place, claim.key, label, machine, copies) for label in turns]
            if reference is not None:
                (untuned,) = processes.compared(both[:1], reference, float("inf"))
                own = untuned.error
            races = [processes.compared(both, reference, max(FLOOR, LOOSER * own)) for _ in range(LOADINGS)]
            failed = next((timed for race in races for timed in race if timed.outcome != "timed"), None)
            if failed is not None:
                return Reraced("dropped", f"{failed.outcome}: {failed.why}")
            error = max(race[1].error for race in races)
            gains[regime] = gain([there_and_back(ratios(seconds_of(a), seconds_of(b))) for a, b in races])
            for label, column in zip(turns, zip(*races, strict=True), strict=True):
                turns[label] += [t for timed in column for t in seconds_of(timed)]
    return _evaluated(claim, machine, labels, gains, turns, (error, own))


def _evaluated(
    claim: Claim,
    machine: Target,
    labels: list[str],
    gains: Mapping[str, Gain],
    turns: Mapping[str, list[float]],
    errors: tuple[float, float],
    policy: str = POLICY,
) -> Reraced:
    """The outcome of a claim from its races: "verified", with a new record by `policy`, if at least one regime has a
    verified gain in `gains` and none a loss; else "dropped". `labels`: the settings that were raced; `turns`: the times
    of each in seconds; `errors`: the differences of the outputs with the claim's setting and with the estimates'
    choice."""
    best = max(gains, key=lambda regime: gains[regime].median)
    shown = gains[best]
    lost = [f"{regime} {g}" for regime, g in gains.items() if g.high < 1.0]
    if lost or not shown.verified:
        what = lost[0] if lost else f"{best} {shown}"
        return Reraced("dropped", f"not verified to be faster than {labels[0]}: {what}", shown)
    rounds = ROUNDS * LOADINGS
    tried = [
        records.Candidate(label, "timed", 0.0, tuple(records.rounded(t) for t in times))
        for label, times in turns.items()
    ]
    verified = record_of(
        claim,
        machine,
        labels,
        records.Policy(policy, best, "kernel", rounds, LOADINGS),
        tried,
        records.Gain(shown.median, shown.low, shown.high, rounds),
        records.Difference(*errors),
    )
    return Reraced("verified", f"{best} {shown}", shown, verified)


def record_of(
    claim: Claim,
    machine: Target,
    labels: Sequence[str],
    policy: records.Policy,
    tried: Sequence[records.Candidate],
    gain: records.Gain = records.NONE,
    difference: records.Difference | None = None,
) -> Record:
    """A new record of the setting of `claim`, as measured now on `machine`: candidates `tried`, and the setting's gain
    over the estimates' choice, the first of `labels`, which name all settings."""
    return Record.of(
        claim.key,
        machine,
        labels,
        setting=claim.setting,
        untuned=labels[0],
        policy=policy,
        candidates=tuple(tried),
        gain=gain,
        provenance=records.provenance(machine, int(time.time()), claim.author),
        difference=difference,
    )


def seconds_of(timed: Timed) -> list[float]:
    """The seconds of each round, summed over all steps."""
    return [sum(parts) for parts in timed.rounds]


def written(folder: Path, key: Key, label: str, machine: Target, copies: int) -> Built:
    """Write to `folder` the file that tells a timing process to compile the kernel of `key` with setting `label` and
    use `copies` copies of its arrays."""
    path = folder / f"{len(list(folder.iterdir()))}.json"
    name = (
        "host"
        if target_class(machine) == target_class(replace(Target.host(), threads=machine.threads))
        else machine.cpu
    )
    path.write_text(subject(str(key.program), key.name, label, name, copies))
    return Built({key.name: label}, str(path), (label,))


def example_arrays(func: PrimFunc) -> dict[str, np.ndarray[Any, Any]]:
    """Example arrays for a function's parameters, filled with small integers; symbolic sizes have their least
    values."""
    sizes = {v: const(v.multiple * max(1, ceil((v.lo or 1) / v.multiple))) for v in func.symbols}
    draw = np.random.default_rng(0)
    arrays = {}
    for p in func.params:
        shape = [as_int(substitute(d, sizes)) or 0 for d in p.shape]
        low, high = (-3, 4) if p.dtype.is_float else (0, 2)  # whole numbers may index something
        arrays[p.name] = draw.integers(low, high, shape).astype(p.dtype.numpy)
    return arrays


def interpreted(func: PrimFunc, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any] | None:
    """The arrays that `func` writes, computed by the interpreter from `arrays`; None if that would take too long."""
    sizes = {v: const(v.multiple * max(1, ceil((v.lo or 1) / v.multiple))) for v in func.symbols}
    blocks = (b for b in walk(func.body) if isinstance(b, Block))
    work = sum(prod(as_int(substitute(v.extent, sizes)) or 1 for v in b.iters) for b in blocks)
    if work > INTERPRETED:
        return None
    mine = {name: a.copy() for name, a in arrays.items()}
    interpret(func, mine)
    written = set(written_buffers(func.body))
    return {p.name: mine[p.name] for p in func.params if p in written}


def copies_of(arrays: Mapping[str, np.ndarray[Any, Any]], machine: Target) -> int:
    """The number of copies whose arrays together exceed twice the last cache level that a core does not share."""
    size = max(1, sum(a.nbytes for a in arrays.values()))
    return max(1, min(2 * machine.l2 // size + 1, MAX_COPIES, MAX_BYTES // size))


__all__ = ["Claim", "Measure", "Reraced", "confirm", "record_of", "rerace", "seconds_of", "apply_result", "written"]
