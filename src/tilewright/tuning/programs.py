"""Candidate programs as files: the model compiled with forced settings, its code written for the processes that time
it."""

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
    """A compiled candidate.

    Args:
        forced: the settings that it was compiled with: a decision's name -> a label.
        code: the file with its code; an empty path if the candidate is never run.
        kernels: the symbol of each step's kernel, in order; equal symbols mean equal code.
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
    """A candidate with its decisions: the decisions about the program that runs at each call, and by kernel the
    decisions that shaped the kernel."""

    built: Built
    decisions: tuple[Decision, ...]
    kernels: Mapping[str, tuple[Scheduled, ...]]
    program: Program = field(repr=False)


class Maker:
    """Compiles candidates of one model into a folder.

    Args:
        model: as for `tw.compile`; it is read once.
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
        """The program with no setting forced, from the cache if it is there."""
        return self._compile()

    def listed(self, forced: Forced) -> Listed:
        """The candidate compiled with `forced`, with all its decisions; the untuned program if nothing is forced."""
        with deciding(forced) as record:
            program = self._compile()
        return Listed(self._write(program, forced), tuple(record.decisions), dict(record.kernels), program)

    def built(self, forced: Forced) -> Built:
        """The candidate compiled with `forced`. Raises ScheduleError if a setting does not exist, and the errors of
        compiling."""
        with forcing(forced):
            program = self._compile()
        return self._write(program, forced)

    def exact(self) -> Built:
        """The reference program for accuracy: no algorithms that trade accuracy for speed, and the widest accumulator
        types."""
        return self._write(self._compile(fast="exact", precision="fp32"), {})

    def weights(self, program: Program) -> Path:
        """Write the file of weights that all candidates share, and return its path."""
        path = self.folder / "weights.tw"
        artifact.write(path, replace(program, texts={}), 0)
        return path

    def inputs(self, arrays: Mapping[str, Any]) -> Path:
        """Write the file of input arrays, and return its path."""
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
    """The kernel symbols of a program's steps, in the order in which the steps run, without the marks of regions."""
    return tuple(step.kernel for step in program.manifest.run_steps)


def prefetches(program: Program) -> frozenset[tuple[int, int]]:
    """Pairs of steps that use the same packed weight, the second being its next user after the first. Weights that two
    layers share give pairs, too; every candidate has the same ones."""
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
    """Pairs of steps that share a temporary buffer: the first step (the writer) paired with each other step, and each
    step with the next one."""
    m = program.manifest
    first = len(m.inputs) + len(m.outputs) + len(m.packed)
    users: dict[int, list[int]] = {}
    for place, step in enumerate(m.run_steps):
        for slot in {slot for slot in step.slots if slot >= first}:
            users.setdefault(slot, []).append(place)
    pairs = ((*pairwise(places), *product(places[:1], places[1:])) for places in users.values())
    return frozenset(chain.from_iterable(pairs))


def changes(before: Sequence[str], after: Sequence[str]) -> list[tuple[range, range]]:
    """Where two programs, lists of the steps' keys `before` and `after`, differ: ranges of steps of the first, each
    with the range of steps of the second that replaces it.

    If both have as many steps, steps are compared place by place, where that leaves fewer differences than an
    alignment: layers repeat, so that an alignment may match one layer's kernels with another's.
    """
    opcodes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    results = [(range(a, b), range(c, d)) for what, a, b, c, d in opcodes if what != "equal"]
    if len(before) == len(after):
        places = [k for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if len(places) < sum(max(len(gone), len(come)) for gone, come in results):
            return [(range(k, k + 1), range(k, k + 1)) for k in places]
    return results


def changed(before: Sequence[str], after: Sequence[str]) -> tuple[frozenset[int], frozenset[int]]:
    """(indices of steps of `before`, indices of steps of `after`) in which these two programs, lists of steps,
    differ."""
    result = changes(before, after)
    return frozenset().union(*(mine for mine, _ in result)), frozenset().union(*(theirs for _, theirs in result))


def fed(before: Built, after: Built) -> frozenset[int]:
    """The indices of steps that are equal in two programs but find their weights in another place, since different
    earlier steps (or none) prefetch them. Empty if the programs differ in the number of steps."""
    if len(before.kernels) != len(after.kernels):
        return frozenset()
    return frozenset(reader for _, reader in before.prefetches ^ after.prefetches)
