"""The structure of a function, as plans need to know it: its blocks and how they feed each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var
from tilewright.ir.loops import Block, BlockIter, If, PrimFunc, Store
from tilewright.ir.notes import Origin, find
from tilewright.ir.rewrite import own_loads, variables, walk
from tilewright.ops.registry import OpDef
from tilewright.support.classes import dataclass

A = TypeVar("A", bound=Attrs)

Role = Literal["spatial", "reduction", "contraction"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A block with what it reads and writes. `role`: spatial (no reduction), contraction (sum of products of two
    loads), or any other reduction."""

    block: Block
    role: Role
    writes: tuple[Buffer, ...]
    reads: tuple[Buffer, ...]

    @property
    def name(self) -> str:
        return self.block.name

    @property
    def origin(self) -> Origin | None:
        """The note about the graph operator that this stage is a part of."""
        return find(self.block.notes, Origin)

    def attributes(self, op: OpDef[A]) -> A | None:
        """The operator's attributes, if this is a stage of operator `op`; else None."""
        origin = self.origin
        if origin is None or origin.op != op.name or not isinstance(origin.attrs, op.attrs):
            return None
        return origin.attrs

    @property
    def spatial(self) -> tuple[BlockIter, ...]:
        return tuple(it for it in self.block.iters if it.kind == "spatial")

    @property
    def reduce(self) -> tuple[BlockIter, ...]:
        return tuple(it for it in self.block.iters if it.kind == "reduce")


@dataclass(frozen=True, slots=True)
class Operator(Generic[A]):
    """A graph operator in a function: its attributes, and its stages in order."""

    attrs: A
    stages: tuple[Stage, ...]

    def stage(self, name: str) -> Stage:
        """The stage with this name in the operator's tensor expression."""
        return next(s for s in self.stages if s.origin is not None and s.origin.stage == name)


@dataclass(frozen=True, slots=True)
class Structure:
    """The stages of an unscheduled function, in order."""

    func: PrimFunc
    stages: tuple[Stage, ...]

    def stage(self, name: str) -> Stage:
        return next(s for s in self.stages if s.name == name)

    def operator(self, op: OpDef[A]) -> Operator[A] | None:
        """The first use of operator `op` in this function, with its attributes and its stages; None if no stage belongs
        to `op`, as in functions that users wrote. Plans recognise functions by this."""
        attrs = next((result for s in self.stages if (result := s.attributes(op)) is not None), None)
        return None if attrs is None else Operator(attrs, tuple(s for s in self.stages if s.attributes(op) == attrs))

    def producers(self, stage: Stage) -> tuple[Stage, ...]:
        return tuple(s for s in self.stages if s is not stage and any(b in stage.reads for b in s.writes))

    def consumers(self, stage: Stage) -> tuple[Stage, ...]:
        return tuple(s for s in self.stages if s is not stage and any(b in s.reads for b in stage.writes))

    def before(self, stage: Stage) -> tuple[Stage, ...]:
        """All stages that `stage` depends on, in order."""
        members: set[str] = set()
        work = [stage]
        while work:
            for producer in self.producers(work.pop()):
                if producer.name not in members:
                    members.add(producer.name)
                    work.append(producer)
        return tuple(s for s in self.stages if s.name in members)

    def after(self, stage: Stage) -> tuple[Stage, ...]:
        """All stages that depend on `stage`, in order."""
        members: set[str] = set()
        work = [stage]
        while work:
            for consumer in self.consumers(work.pop()):
                if consumer.name not in members:
                    members.add(consumer.name)
                    work.append(consumer)
        return tuple(s for s in self.stages if s.name in members)

    def is_output(self, stage: Stage) -> bool:
        return any(b in self.func.params for b in stage.writes)

    @property
    def anchors(self) -> tuple[Stage, ...]:
        return tuple(s for s in self.stages if s.role == "contraction")


def analyse(func: PrimFunc) -> Structure:
    """The stages of a function as `te.create_prim_func` makes it."""
    return Structure(func, tuple(_stage(s) for s in walk(func.body) if isinstance(s, Block)))


def _stage(block: Block) -> Stage:
    writes: dict[Buffer, None] = {}
    reads: dict[Buffer, None] = {}
    for stmt in walk(block.body):
        if isinstance(stmt, Store):
            writes[stmt.buffer] = None
        reads.update((load.buffer, None) for load in own_loads(stmt))
    role: Role = "spatial"
    if block.is_reduction:
        role = "contraction" if factors(block) is not None else "reduction"
    outside = tuple(b for b in reads if b not in writes)
    return Stage(block, role, tuple(writes), outside)


def factors(block: Block) -> tuple[Load, Load] | None:
    """The two loads a, b of `C[...] = C[...] + a * b`, casts and a condition looked through; None for other bodies."""
    store = block.body.then if isinstance(block.body, If) and block.body.orelse is None else block.body
    if not isinstance(store, Store):
        return None
    match store.value:
        case Op("add", (Load() as old, Op("mul", (a, b)))) if old.buffer == store.buffer:
            x, y = _load(a), _load(b)
            if x is not None and y is not None:
                return x, y
    return None


def _load(e: Expr) -> Load | None:
    while isinstance(e, Op) and e.name == "cast":
        e = e.args[0]
    return e if isinstance(e, Load) else None


def uses(load: Load, iters: Sequence[BlockIter]) -> tuple[BlockIter, ...]:
    """The iterators in `iters` that occur in the indices of `load`."""
    members: set[Var] = {v for i in load.indices for v in variables(i)}
    return tuple(it for it in iters if it.var in members)
