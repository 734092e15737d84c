"""Schedules by tensors and axes: an interface to `Schedule` in the style of TVM's tensor expressions.

    s = te.create_schedule(C)
    xo, xi = s[C].split(C.axis[0], factor=32)
    s[C].vectorize(xi)
    s[B].compute_at(s[C], xo)
    print(te.lower(s, [A, B, C]))

A stage is a block, an axis of a tensor the loop that drives the block's iterator. What primitives return are loops too
and can be passed on. `s.schedule` is the schedule underneath, with its trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

from tilewright.ir.expr import Var
from tilewright.ir.loops import Block, IterKind, PrimFunc
from tilewright.ir.notes import LoopNote, Note, register
from tilewright.schedule import groups
from tilewright.schedule.index_map import IndexMap
from tilewright.schedule.inline import is_elementwise, is_injective
from tilewright.schedule.primitive import Subject
from tilewright.schedule.recording import AnyPrimitive, BlockRef, LoopRef, Results
from tilewright.schedule.schedule import DeclaredPrimitives, Factor, Schedule
from tilewright.schedule.state import (
    block_path,
    depends_on,
    find_block,
    last_block,
    loops_on,
    own_loops,
    refuse,
    written_buffers,
)
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error


@register
@dataclass(frozen=True, slots=True)
class DmaCopy(LoopNote):
    """The loop, with those inside, copies between memories of an accelerator, by transfers of whole rows.

    Written by `te`'s `dma_copy`, read by `codegen/vta/emit.py`, which refuses a loop that is more than that.
    """


class HasVar(Protocol):
    """An object with a variable, such as an axis of a tensor."""

    @property
    def var(self) -> Var: ...


Axis = HasVar | LoopRef | str


@dataclass(frozen=True, slots=True)
class AxisPlace:
    """Where an axis of a tensor is in the program: its block, the position of its iterator, and the original name of
    its loop."""

    block: str
    position: int
    loop: str


class StageSchedule:
    """The schedule of a function made from tensors.

    Args:
        func: the unscheduled function.
        blocks: tensors and stages to block names.
        axes: axes' variables to their places.
        buffers: tensors to buffer names.
        lines: where the functions of the blocks were written.
    """

    def __init__(
        self,
        func: PrimFunc,
        blocks: Mapping[Any, str],
        axes: Mapping[Var, AxisPlace],
        buffers: Mapping[Any, str],
        lines: Mapping[str, str] | None = None,
    ) -> None:
        self.schedule = Schedule(func)
        self._first = func
        self.lines = dict(lines or {})
        self._buffers = dict(buffers)
        self._blocks = dict(blocks)
        self._axes = dict(axes)
        self.axes_used: dict[Var, str] = {}

    @property
    def func(self) -> PrimFunc:
        """The function as scheduled so far."""
        return self.schedule.func

    def __str__(self) -> str:
        return str(self.func)

    def __getitem__(self, key: Any) -> Stage:
        """The stage of a tensor, or of a block by name or reference."""
        if isinstance(key, Stage):
            return key
        if isinstance(key, BlockRef | str):
            return Stage(self, key if isinstance(key, BlockRef) else self.schedule.block(key))
        name = self._blocks.get(key) or self._blocks.get(getattr(key, "op", None))
        if name is None:
            known = ", ".join(dict.fromkeys(self._blocks.values()))
            raise refuse(self.func, f"{getattr(key, 'name', key)} is not computed by this schedule; stages: {known}")
        return Stage(self, BlockRef(name))

    def find(
        self, pattern: str, stage: Any = None, role: IterKind | None = None, *, nth: int | None = None
    ) -> LoopRef | Stage:
        """The one loop or stage that matches a pattern: `s.find("for k in _")`, `s.find("block C")`.

        Args:
            pattern: "for NAME in EXTENT", with a kind such as "vectorized" after if wanted, or "block NAME"; `_` is
                anything, `*` in a name any letters.
            stage: only loops around this stage (or tensor).
            role: only loops that drive a "spatial" or a "reduce" axis.
            nth: which of several, in program order; else there must be one.
        """
        result = self.find_all(pattern, stage, role)
        if nth is None and len(result) != 1:
            names = ", ".join(x.name for x in result) or "nothing"
            hint = "name the stage or its role, or say which with nth" if result else None
            raise refuse(self.func, f"{pattern!r} says {names}", expected="one loop or stage", hint=hint)
        if nth is not None and not -len(result) <= nth < len(result):
            raise refuse(self.func, f"{pattern!r} says {len(result)} of them", got=f"nth={nth}")
        return result[nth or 0]

    def find_all(self, pattern: str, stage: Any = None, role: IterKind | None = None) -> tuple[LoopRef | Stage, ...]:
        """All loops or stages that match a pattern, in program order."""
        block = None if stage is None else self[stage].block
        result = self.schedule.find(pattern, block, role)
        return tuple(Stage(self, x) if isinstance(x, BlockRef) else x for x in result)

    def create_group(self, outputs: Any, inputs: Any, include_inputs: bool = False) -> Group:
        """The stages on the ways from `inputs` to `outputs` (tensors, or several), to be moved as one.

        Args:
            outputs: tensors that the group computes.
            inputs: tensors where it begins; with placeholders, their first readers.
            include_inputs: whether the stages that compute `inputs` belong to it.

        Raises ScheduleError where no way leads from the ones to the others.
        """
        ends = outputs if isinstance(outputs, list | tuple) else [outputs]
        starts = inputs if isinstance(inputs, list | tuple) else [inputs]
        written = {b.name for t in ends for b in written_buffers(find_block(self.func, self[t].name))}
        read = {self.buffer_name(t) for t in starts}
        members = groups.blocks_between(self.func, read, written, include_inputs)
        if not members:
            raise refuse(self.func, f"no stage is between {', '.join(sorted(read))} and {', '.join(sorted(written))}")
        return Group(self, tuple(Stage(self, self.schedule.block(n)) for n in members))

    def inline_injective(self) -> tuple[str, ...]:
        """Inline all stages that have no reduction, are no output, and whose loops and memory were not scheduled.

        Before::

            for i in 0..n:
                block B(vi = i): B[vi] = A[n - 1 - vi] + 1
            for i2 in 0..n:
                block C(vi2 = i2): C[vi2] = B[vi2] * 2
            for i3 in 0..n:
                block D(vi3 = i3): D[vi3] = C[vi3] - B[vi3]

        After::

            for i3 in 0..n:
                block D(vi3 = i3): D[vi3] = (A[n - 1 - vi3] + 1) * 2 - (A[n - 1 - vi3] + 1)

        Returns the names of the removed stages. A stage whose whole array an external function or an intrinsic needs
        stays; `schedule.refused` says why.
        """
        return self._inline_all(is_injective)

    def inline_elementwise(self) -> tuple[str, ...]:
        """Inline, as `inline_injective` does, only stages that read their inputs at the indices that they write: none
        that transposes, broadcasts or shifts."""
        return self._inline_all(is_elementwise)

    def _inline_all(self, is_wanted: Callable[[PrimFunc, Block], bool]) -> tuple[str, ...]:
        gone: list[str] = []
        for block in self.schedule.blocks():
            if is_wanted(self.func, last_block(block_path(self.func, block.name))) and self._is_untouched(block.name):
                with self.schedule.trying(f"{block.name} is not inlined"):
                    self.schedule.compute_inline(block)
                    gone.append(block.name)
        return tuple(gone)

    def _is_untouched(self, block: str) -> bool:
        """Whether a stage's loops and buffers are as they were at the beginning."""
        if block not in self._blocks.values():
            return False  # a primitive made it
        then, now = (
            [(x.var, x.extent, x.kind, x.thread, x.notes) for x in own_loops(block_path(func, block))]
            for func in (self._first, self.func)
        )
        writes = (written_buffers(find_block(func, block)) for func in (self._first, self.func))
        return then == now and next(writes) == next(writes)

    def diff(self) -> str:
        """The lines of the program that the last step removed and added."""
        from tilewright.schedule.compose import difference  # which knows this class

        return difference(self.schedule)

    def buffer_name(self, tensor: Any) -> str:
        """The name of a tensor's buffer."""
        known: str | None = self._buffers.get(tensor)
        return known or (tensor if isinstance(tensor, str) else str(tensor.name))

    def knows(self, tensor: Any) -> bool:
        """Whether this schedule reads or computes the given tensor or scalar."""
        return tensor in self._buffers or tensor in self._blocks or getattr(tensor, "op", None) in self._blocks

    def axis(self, axis: Axis) -> LoopRef:
        """The loop of an axis. Raises ScheduleError if a primitive has replaced it."""
        if isinstance(axis, str):
            return self.schedule.find_loop(axis)
        if isinstance(axis, LoopRef):
            return axis
        if not hasattr(axis, "var"):
            raise refuse(self.func, "not an axis", expected="an axis of a tensor, or a loop", got=repr(axis))
        place = self._axes.get(axis.var)
        if place is None:
            raise refuse(self.func, f"axis {axis.var} does not belong to a stage of this schedule")
        if axis.var in self.axes_used:
            raise refuse(
                self.func, f"axis {place.loop!r} of {place.block!r} is gone: {self.axes_used[axis.var]} took it"
            )
        return self._loop_of(place)

    def dimension(self, block: str, axis: Axis) -> int:
        """The number of the dimension of a stage's tensor that `axis` runs over."""
        place = self._axes.get(axis.var) if hasattr(axis, "var") else None
        if place is None or place.block != block:
            expected = f"an axis of {block!r}, or the number of a dimension"
            raise refuse(self.func, "not a dimension", expected=expected, got=repr(axis))
        return place.position

    def used(self, axes: Sequence[Axis], by: str) -> None:
        """Record that the primitive `by` replaced the loops of `axes`, for later errors."""
        for axis in axes:
            if not isinstance(axis, LoopRef | str):
                self.axes_used[axis.var] = by

    def _loop_of(self, place: AxisPlace) -> LoopRef:
        path = block_path(self.func, place.block)
        first = LoopRef(place.loop)
        if self.schedule.has(first) and place.loop in [x.var.name for x in loops_on(path)]:
            return first  # also where it runs once and is in no binding
        # A primitive made another loop for the axis: one that this stage has for itself.
        binding = last_block(path).iters[place.position].binding
        driving = [x.var.name for x in own_loops(path) if depends_on(binding, x.var)]
        if len(driving) != 1:
            which = f"loops {', '.join(driving)} drive" if driving else "no loop of its own drives"
            raise refuse(self.func, f"{which} axis {place.loop!r} of {place.block!r}", hint="stage.loops has its loops")
        return self.schedule.find_loop(driving[0])


@dataclass(frozen=True, slots=True)
class Stage(DeclaredPrimitives):
    """One block of a `StageSchedule`; the primitives act on it."""

    owner: StageSchedule
    block: BlockRef
    supplies: ClassVar[tuple[Subject, ...]] = ("block",)

    @property
    def name(self) -> str:
        return self.block.name

    def __str__(self) -> str:
        """The stage as it stands, with the loops that are its alone."""
        path = block_path(self.owner.func, self.name)
        return str((*own_loops(path), path[-1])[0])

    @property
    def loops(self) -> tuple[LoopRef, ...]:
        """The loops around the stage, outermost first."""
        return self.owner.schedule.loops(self.block)

    def split(self, axis: Axis, factor: Factor = None, nparts: Factor = None) -> tuple[LoopRef, LoopRef]:
        """Split an axis; returns the outer and inner loop. A factor is a number, or a dimension of the arguments
        (`te.var`)."""
        outer, inner = self._schedule.split(self._loop(axis), factor=factor, nparts=nparts)
        self.owner.used([axis], "split")
        return outer, inner

    def tile(self, x: Axis, y: Axis, x_factor: int, y_factor: int) -> tuple[LoopRef, LoopRef, LoopRef, LoopRef]:
        """Tile two axes by their factors; returns the loops (outer x, outer y, inner x, inner y)."""
        loops = self._schedule.tile(self._loop(x), self._loop(y), x_factor, y_factor)
        self.owner.used([x, y], "tile")
        return loops

    def fuse(self, *axes: Axis) -> LoopRef:
        """Fuse nested axes into one loop, which is returned; without axes, put a loop of one iteration around all of
        the stage's own, as `add_unit_loop` does."""
        if not axes:
            return self.add_unit_loop()
        fused = self._schedule.fuse(*map(self._loop, axes))
        if len(axes) > 1:
            self.owner.used(axes, "fuse")
        return fused

    def reorder(self, *axes: Axis) -> None:
        """Put axes in this order."""
        self._schedule.reorder(*map(self._loop, axes))

    def cthread(self, axis: Axis) -> None:
        """Let virtual threads run through an axis: an accelerator issues their instructions by turns, each with buffers
        of its own, so that one's transfers run beside another's arithmetic."""
        self._schedule.bind(self._loop(axis), "vthread")

    def dma_copy(self, axis: Axis) -> None:
        """Say that the loops from an axis inwards are transfers between an accelerator's memories, nothing else."""
        self._schedule.annotate(self._loop(axis), DmaCopy())

    def annotate(self, note: Note, axis: Axis | None = None) -> None:
        """Put a note on an axis, or on the stage itself."""
        self._schedule.annotate(self.block if axis is None else self._loop(axis), note)

    def compute_at(self, consumer: Stage, axis: Axis) -> None:
        """Compute this stage inside an axis of a consumer."""
        self._schedule.compute_at(self.block, self._loop(axis))

    def reverse_compute_at(self, producer: Stage, axis: Axis) -> None:
        """Compute this stage inside an axis of a producer."""
        self._schedule.reverse_compute_at(self.block, self._loop(axis))

    def storage_align(self, axis: Axis | int, factor: int, offset: int = 0) -> None:
        """Let neighbours along an axis (or a dimension by number) of the stage's tensor lie `factor * n + offset`
        elements apart in memory."""
        dimension = axis if isinstance(axis, int) else self.owner.dimension(self.name, axis)
        self._schedule.storage_align(self.block, dimension, factor, offset)

    def cache_read(self, tensor: Any, scope: str) -> Stage:
        """Let the stage read a tensor (or a buffer by name) through a copy; returns the stage that makes the copy."""
        name = self.owner.buffer_name(tensor)
        return Stage(self.owner, self._schedule.cache_read(self.block, name, scope))

    def tensorize(self, axis: Axis, intrin: str) -> None:
        """Replace the loops from an axis inwards by an intrinsic."""
        self._schedule.tensorize(self._loop(axis), intrin)

    def transform_layout(self, layout: IndexMap | Callable[..., Any]) -> None:
        """Store the stage's tensor in another layout."""
        self._schedule.transform_layout(self.block, layout)

    def pad(self, *multiples: int) -> tuple[Stage, ...]:
        """Enlarge the stage's axes (reduction axes last) to `multiples`; returns the stages that this adds."""
        return tuple(Stage(self.owner, b) for b in self._schedule.pad(self.block, multiples))

    def apply(self, primitive: AnyPrimitive, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Apply a declared primitive to this stage, and record it. Returns created blocks as stages."""
        result = _refusing(_apply, primitive.__name__)(self, primitive, args, named)
        created = tuple(Stage(self.owner, x) if isinstance(x, BlockRef) else x for x in _several(result))
        return created if isinstance(result, tuple) else created[0] if created else None

    @property
    def _schedule(self) -> Schedule:
        return self.owner.schedule

    def _loop(self, axis: Axis) -> LoopRef:
        return self.owner.axis(axis)


@dataclass(frozen=True, slots=True)
class Group:
    """Stages of a schedule, in program order, that are moved as one; each can be scheduled by itself."""

    owner: StageSchedule
    stages: tuple[Stage, ...]

    def compute_at(self, consumer: Stage, axis: Axis) -> None:
        """Compute all stages of the group inside an axis of a consumer: see `groups.compute_at`."""
        members = tuple(s.name for s in self.stages)
        groups.compute_at(self.owner.schedule, members, self.owner.axis(axis))


P = ParamSpec("P")
R = TypeVar("R")


def _refusing(method: Callable[Concatenate[Stage, P], R], name: str) -> Callable[Concatenate[Stage, P], R]:
    """`method` of `Stage`, called `name`, but with ScheduleError in place of other errors for arguments of wrong
    types."""

    @wraps(method)
    def call(self: Stage, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except Error:
            raise
        except (TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
            what = f"{name}: the arguments do not fit: {error}"
            raise refuse(self.owner.func, what) from error

    return call  # type: ignore[return-value]


def _several(result: Results) -> tuple[BlockRef | LoopRef, ...]:
    return result if isinstance(result, tuple) else () if result is None else (result,)


def _apply(stage: Stage, primitive: AnyPrimitive, args: tuple[Any, ...], named: dict[str, Any]) -> Results:
    own = (stage.block,) if primitive.subjects[0] == "block" else ()
    axes = len(primitive.subjects) - len(own)
    loops = map(stage.owner.axis, args[:axes])
    return stage.owner.schedule.apply(primitive, (*own, *loops, *args[axes:]), named)


for _name, _method in list(vars(Stage).items()):
    if not _name.startswith("_") and _name != "apply" and callable(_method):
        setattr(Stage, _name, _refusing(_method, _name))
