"""`tw.tune`, the one entry point: finds settings of a model's decisions that are verified to be faster, and records
them for later compiles."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.ir.dim import DimSizes
from tilewright.measure.paired import Team
from tilewright.records.places import stores, user_store
from tilewright.records.store import Store
from tilewright.runtime.examples import random_inputs, usual_sizes
from tilewright.runtime.program import Program
from tilewright.support.errors import Error
from tilewright.targets.target import Target
from tilewright.tuning.journal import Journal
from tilewright.tuning.programs import Maker
from tilewright.tuning.recording import Memory, Unverified
from tilewright.tuning.result import Progress, Tuned
from tilewright.tuning.search import Policy
from tilewright.tuning.tuner import Tuner
from tilewright.tuning.workers import MEMORY, Processes, Races

LARGE = 16 << 20
"""From this many bytes of weights on, races share processes: fresh memory for a smaller model costs less than a fresh
process."""
RESULT = "result 2"
"""The name of a run's result in its journal; the number is the version of the tuning procedure."""


def tune(
    model: Any,
    example: Any = None,
    *,
    seconds: float | None = None,
    threads: int = 1,
    dims: DimSizes | None = None,
    target: Target | str | None = None,
    store: Store | Path | str | None = None,
    inputs: Mapping[str, Any] | None = None,
    policy: Policy | None = None,
    fresh: bool = False,
    verify: bool = False,
    announce: Callable[[Progress], None] = lambda _progress: None,
    **options: Any,
) -> Tuned:
    """Time settings of a model's decisions other than the estimates' choices, and keep those that are verified to be
    faster.

    Args:
        model, example, threads, dims, target: as for `tw.compile`; the target must be one that this machine runs.
        seconds: after which no further candidates are timed; None: until the search is over.
        store: where records go: a store or its folder; the user's, in the cache folder, if None.
        inputs: the input arrays of the timed call, by name; those left out are random, with symbolic sizes at likely or
            least values.
        policy: how far the search goes.
        fresh: time decisions again that records already answer.
        verify: search nothing; race again, in this model, what records of other compilers recommend for its decisions,
            wherever a compile looks for records. What stands becomes a record of this compiler in `store`, and so does
            that the estimates' setting is better where it does not.
        announce: called with the progress.
        options: `precision`, `fast`, `dynamic`, `params` of `tw.compile`.

    What is measured is in a journal in the cache folder: a run that was stopped goes on from there, and one that is
    repeated knows its result.

    Raises Error if nothing could be measured, with the first cause, and ModelError for a model that does not compile.
    """
    machine = Target.on_host(target, "target") if isinstance(target, str) else target
    with tempfile.TemporaryDirectory(prefix="tilewright-tune-") as folder:
        maker = Maker(model, Path(folder), threads=threads, target=machine, example=example, dims=dims, options=options)
        program = maker.untuned()
        arrays = example_inputs(program, inputs)
        question = f"{threads} {sorted(options.items())} {_sizes(program, arrays)} {policy}"
        journal = Journal.of(program.manifest.structure_key, maker.target, question)
        place = user_store() if store is None else store if isinstance(store, Store) else Store(store)
        name = f"{RESULT}, records in {place.folder.absolute()}"  # another place has none yet, though all was timed
        stored = None if fresh or verify else journal.result(name)
        if stored is not None:
            return replace(Tuned.from_dict(stored), timed=0, seconds=0.0, known=True)
        memory = Unverified(place, maker.target, stores()) if verify else Memory(place, maker.target, fresh=fresh)
        tuned = run(maker, program, arrays, journal, policy, seconds, announce, memory=memory)
    if tuned.rows and not any(row.outcomes.get("timed") for row in tuned.rows) and tuned.causes:
        raise Error(f"nothing was measured: {tuned.causes[0]}", problems=[Error(cause) for cause in tuned.causes[1:]])
    if not verify and not tuned.interrupted and (seconds is None or tuned.seconds < seconds):
        journal.keep(name, tuned.to_dict())
    return tuned


def run(
    maker: Maker,
    program: Program,
    arrays: Mapping[str, Any],
    journal: Journal,
    policy: Policy | None = None,
    seconds: float | None = None,
    announce: Callable[[Progress], None] = lambda _progress: None,
    races: Races | None = None,
    memory: Memory | None = None,
) -> Tuned:
    """Run the tuner once with everything it needs passed in; only the journal (and `memory`) outlives the run.

    Args:
        maker: builds the program with other settings.
        program: the untuned program.
        arrays: the inputs of the timed call.
        seconds: the budget of time; unlimited if None.
        races: where times come from; processes on this machine if None.
        memory: records; none are read or written if None.
    """
    untuned = maker.listed({})
    with Team() as team:
        if races is None:
            size = sum(p.nbytes for p in program.manifest.params)
            shared = team if size >= LARGE else None
            files = maker.weights(program), maker.inputs(arrays)
            processes = Processes(*files, maker.threads, MEMORY + 4 * size, team=shared)
            races = processes.compared_with(maker.exact(), untuned.built)
        tuner = Tuner(
            maker,
            races,
            journal,
            sizes=_sizes(program, arrays),
            policy=policy,
            seconds=float("inf") if seconds is None else seconds,
            announce=announce,
            memory=memory,
        )
        return tuner.run(untuned)


def example_inputs(program: Program, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """The input arrays of the timed call of `program`, by name: the ones in `arguments`, and random ones for the
    others."""
    sizes = _sizes(program, arguments or {})
    return {**random_inputs(program.manifest.arguments, sizes), **(arguments or {})}


def _sizes(program: Program, arrays: Mapping[str, Any]) -> dict[str, int]:
    """The values of the symbolic sizes: as the given arrays say, else a likely or the least value."""
    sizes = usual_sizes(program.manifest.symbols)
    for spec in program.manifest.inputs:
        if spec.name in arrays:
            shape = arrays[spec.name].shape
            sizes |= {d: int(n) for d, n in zip(spec.shape, shape, strict=False) if isinstance(d, str)}
    return sizes
