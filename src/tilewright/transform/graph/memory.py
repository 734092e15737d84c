"""Give every value of a graph a slot: who shares memory with whom, and from when to when each temporary lives.

Aliases (reshape) take their source's slot; a pointwise kernel may write over an operand that dies with it. Offsets are
chosen later, on numbers (`runtime/arena.py`), since sizes may depend on symbols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright import ops
from tilewright.ir.expr import Expr, Var, is_const
from tilewright.ir.graph import Value
from tilewright.runtime.manifest import StepSpec, TempSpec, Work
from tilewright.transform.graph.fuse import Group, same_shape


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory of one kernel: bytes (for one thread if `per_thread`)."""

    nbytes: Expr
    per_thread: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call: the kernel's symbol in the object code, its values and workspaces, the symbols it is passed."""

    kernel: str
    group: Group
    args: tuple[Value, ...]
    workspaces: tuple[Workspace, ...] = ()
    symbols: tuple[Var, ...] = ()
    label: str = ""
    over: tuple[tuple[Value, Value], ...] = ()
    """(output, input) pairs where the output may be written over the input."""
    flops: Work | None = None
    traffic: Work | None = None
    alone: bool = False
    """Whether one thread executes the kernel."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Slots of values; temporaries with their sizes; the steps in terms of slots."""

    slots: dict[Value, int]
    temps: tuple[TempSpec, ...]
    sizes: tuple[Expr, ...]
    steps: tuple[StepSpec, ...]
    owners: tuple[str, ...] = field(default=())
    """What each temporary holds, for reports."""


def nbytes(value: Value) -> Expr:
    return value.type.size * value.dtype.itemsize


def alias_sources(groups: Sequence[Group]) -> dict[Value, Value]:
    """For each alias node's output the value whose memory it is."""
    result: dict[Value, Value] = {}
    for group in groups:
        if is_alias(group):
            node = group.nodes[-1]
            assert node.inputs[0] is not None
            result[node.output] = node.inputs[0]
    return result


def is_alias(group: Group) -> bool:
    """True when the group is a single alias node, which needs no kernel."""
    return len(group.nodes) == 1 and ops.get(group.nodes[0].op).alias


def overwritable(group: Group) -> tuple[tuple[Value, Value], ...]:
    """(output, input) pairs of a pointwise kernel that may share memory: same element at the same place."""
    if any(n.op != "constant" and ops.get(n.op).kind != "pointwise" for n in group.nodes) or len(group.outputs) != 1:
        return ()
    (out,) = group.outputs
    return tuple((out, v) for v in group.inputs if v.dtype.itemsize == out.dtype.itemsize and same_shape(v, out))


def assign_slots(
    steps: Sequence[Step], leading: Sequence[Value], aliases: Mapping[Value, Value], symbols: Sequence[Var]
) -> Storage:
    """Slots for `leading` (inputs, outputs, packed parameters, in the manifest's order), then for the temporaries."""
    return _Assigner(steps, leading, aliases, symbols).run()


class _Assigner:
    def __init__(
        self, steps: Sequence[Step], leading: Sequence[Value], aliases: Mapping[Value, Value], symbols: Sequence[Var]
    ) -> None:
        self.steps = steps
        self.aliases = aliases
        self.symbols = {s: i for i, s in enumerate(symbols)}
        self.leading = len(leading)
        self.home: dict[Value, int] = {}
        for i, value in enumerate(leading):
            self.home.setdefault(self.root(value), i)
        self.last_use = self.last_uses()
        self.temps: list[TempSpec] = []
        self.sizes: list[Expr] = []
        self.owners: list[str] = []

    def root(self, value: Value) -> Value:
        while value in self.aliases:
            value = self.aliases[value]
        return value

    def last_uses(self) -> dict[Value, int]:
        last: dict[Value, int] = {}
        for i, step in enumerate(self.steps):
            last.update((self.root(v), i) for v in step.args)
        return last

    def run(self) -> Storage:
        specs = []
        for i, step in enumerate(self.steps):
            for value in step.args:
                if self.root(value) not in self.home:
                    self.home[self.root(value)] = self.temporary(i, step, value)
            slots = [self.home[self.root(v)] for v in step.args]
            slots += [self.scratch(i, w, step.label) for w in step.workspaces]
            passed = tuple(self.symbols[s] for s in step.symbols)
            specs.append(StepSpec(step.kernel, tuple(slots), passed, step.label, step.flops, step.traffic, step.alone))
        slots_of = {v: self.home[self.root(v)] for s in self.steps for v in s.args}
        return Storage(slots_of, tuple(self.temps), tuple(self.sizes), tuple(specs), tuple(self.owners))

    def temporary(self, i: int, step: Step, value: Value) -> int:
        last = self.last_use[self.root(value)]
        alias = None
        for out, operand in step.over:
            slot = self.home.get(self.root(operand), -1)
            dies = self.last_use.get(self.root(operand)) == i
            if out == value and dies and slot >= self.leading and alias is None:
                alias = slot - self.leading
        return self.add(TempSpec(i, last, _number(nbytes(value)), alias), nbytes(value), value.name)

    def scratch(self, i: int, workspace: Workspace, label: str) -> int:
        size = workspace.nbytes
        return self.add(TempSpec(i, i, _number(size), None, workspace.per_thread), size, f"workspace of {label}")

    def add(self, spec: TempSpec, size: Expr, owner: str) -> int:
        self.temps.append(spec)
        self.sizes.append(size)
        self.owners.append(owner)
        return self.leading + len(self.temps) - 1


def _number(size: Expr) -> int | None:
    return int(size.value) if is_const(size) else None  # type: ignore[attr-defined]
