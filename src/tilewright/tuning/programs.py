"""Candidates as files: the model compiled with settings forced, its code written for the processes that time it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any

from tilewright.compiler import compile_program
from tilewright.frontend.read import import_model
from tilewright.ir.dim import DimSizes
from tilewright.measure.contender import save_arrays
from tilewright.plans.framework.decisions import Decision, Scheduled, deciding, forcing
from tilewright.runtime import artifact
from tilewright.runtime.program import Program
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.transform.remember import Lowered, remembering

Forced = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate.

    Args:
        forced: its settings: a decision's name -> a label.
        code: the file with its code; empty for what is never run.
        kernels: of its steps, in order: the symbol of each, which names its content.
        prefetches: pairs of steps, of which the first prefetches weights that the second, after it, reads.
        exchanges: pairs of steps, of which the second reads what the first wrote, or writes over it.
    """

    forced: Forced
    code: str
    kernels: tuple[str, ...]
    prefetches: frozenset[tuple[int, int]] = frozenset()
    exchanges: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Listed:
    """A compile with its decisions: those about the program that runs at each call, and by kernel those that made
    it."""

    built: Built
    decisions: tuple[Decision, ...]
    kernels: Mapping[str, tuple[Scheduled, ...]]
    program: Program = field(repr=False)


class Maker:
    """Compiles candidates of one model into a folder.

    Args:
        model: what `tw.compile` takes; read once.
        options: further arguments of `compile_program`.
        folder: where files go; the caller removes it.
    """

    def __init__(
        self,
        model: Any,
        folder: Path,
        *,
        threads: int,
        target: Target | None = None,
        example: Any = None,
        dims: DimSizes | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        extra = dict(options or {})
        self.folder = folder
        self.threads = threads
        self.target = replace(target or Target.host(), threads=threads)
        self._model = import_model(model, dims, example, extra.pop("dynamic", "auto"), extra.pop("params", None))
        self._options = extra
        self._count = 0
        self._lowered: Lowered = {}

    def untuned(self) -> Program:
        """The program with nothing forced, from the cache where it is known."""
        return self._compile()

    def listed(self, forced: Forced) -> Listed:
        """A candidate with all decisions, the untuned one where nothing is forced."""
        with deciding(forced) as record:
            program = self._compile()
        return Listed(self._write(program, forced), tuple(record.decisions), dict(record.kernels), program)

    def built(self, forced: Forced) -> Built:
        """A candidate. Raises ScheduleError for settings that are none, and what compiling it raises."""
        with forcing(forced):
            program = self._compile()
        return self._write(program, forced)

    def exact(self) -> Built:
        """The program without algorithms that trade accuracy for speed, in the widest type of products."""
        return self._write(self._compile(fast="exact", precision="fp32"), {})

    def weights(self, program: Program) -> Path:
        """A file with the weights, for all candidates."""
        path = self.folder / "weights.tw"
        artifact.write(path, replace(program, texts={}), 0)
        return path

    def inputs(self, arrays: Mapping[str, Any]) -> Path:
        """A file with the inputs."""
        path = self.folder / "inputs.npz"
        save_arrays(str(path), arrays)
        return path

    def _compile(self, **options: Any) -> Program:
        attributes = {
            **self._options,
            **options,
            "records": None,
        }  # what is known of candidates is forced, nothing else
        with remembering(self._lowered):
            return compile_program(self._model, threads=self.threads, target=self.target, **attributes)

    def _write(self, program: Program, forced: Forced) -> Built:
        self._count += 1
        path = self.folder / f"{self._count}.tw"
        artifact.write(path, replace(program, texts={}), 0, code_only=True)
        return Built(dict(forced), str(path), kernels(program), prefetches(program), exchanges(program))


def kernels(program: Program) -> tuple[str, ...]:
    """The symbols of a program's steps, in the order in which they run; regions' marks have none."""
    return tuple(step.kernel for step in program.manifest.run_steps)


def prefetches(program: Program) -> frozenset[tuple[int, int]]:
    """Pairs of steps with a packed weight in common, the second being the next one that has it. Weights that two layers
    share are among them, too, in every candidate alike."""
    m = program.manifest
    first = len(m.inputs) + len(m.outputs)
    packed = range(first, first + len(m.packed))
    members: set[tuple[int, int]] = set()
    last: dict[int, int] = {}
    for place, step in enumerate(m.run_steps):
        for slot in {slot for slot in step.slots if slot in packed}:
            if slot in last:
                members.add((last[slot], place))
            last[slot] = place
    return frozenset(members)


def exchanges(program: Program) -> frozenset[tuple[int, int]]:
    """Pairs of steps with a temporary in common: of each the first step, which writes it, with all others, and each
    with the next one."""
    m = program.manifest
    first = len(m.inputs) + len(m.outputs) + len(m.packed)
    users: dict[int, list[int]] = {}
    for place, step in enumerate(m.run_steps):
        for slot in {slot for slot in step.slots if slot >= first}:
            users.setdefault(slot, []).append(place)
    pairs = ((*pairwise(places), *product(places[:1], places[1:])) for places in users.values())
    return frozenset(chain.from_iterable(pairs))


def changes(before: Sequence[str], after: Sequence[str]) -> list[tuple[range, range]]:
    """Where two programs differ: the places of steps that are gone and of those that stand in their stead.

    Of as many steps each is compared with the one at its place, if that leaves fewer that differ: layers repeat, so
    that some layer's kernels are found again in another one.
    """
    opcodes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    results = [(range(a, b), range(c, d)) for what, a, b, c, d in opcodes if what != "equal"]
    if len(before) == len(after):
        places = [k for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if len(places) < sum(max(len(gone), len(come)) for gone, come in results):
            return [(range(k, k + 1), range(k, k + 1)) for k in places]
    return results


def changed(before: Sequence[str], after: Sequence[str]) -> tuple[frozenset[int], frozenset[int]]:
    """The places of the steps in which two programs differ, in each of them."""
    result = changes(before, after)
    return frozenset().union(*(mine for mine, _ in result)), frozenset().union(*(theirs for _, theirs in result))


def fed(before: Built, after: Built) -> frozenset[int]:
    """The places of steps that are the same in two programs and find their weights elsewhere, as an earlier step
    prefetches them in one program and none or another one in the other. None are told where steps come or go."""
    if len(before.kernels) != len(after.kernels):
        return frozenset()
    return frozenset(reader for _, reader in before.prefetches ^ after.prefetches)
