"""The memory of a schedule: its function, the trace that led to it, and what each result of the trace stands for.

Every primitive ends here: `_record` stores the new function and the instruction, and which loops and blocks are removed
or new. References are resolved here as well: to their block or loop, or to an error that names the primitive which
removed it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from tilewright.ir.loops import PrimFunc
from tilewright.schedule.history import History
from tilewright.schedule.index_map import IndexMap
from tilewright.schedule.primitive import Primitive, Subject
from tilewright.schedule.requests import LoopId
from tilewright.schedule.state import block_path, loop_path, refuse
from tilewright.schedule.trace import Instruction, Ref, RefKind, Trace, Value, value_text
from tilewright.support.classes import dataclass
from tilewright.support.errors import ExpressionError, ScheduleError

AnyPrimitive = Primitive[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A reference to a block: its name, and the number of the instruction that created it (0: it was in the original
    function), as a later block may have the same name."""

    name: str
    birth: int = 0


@dataclass(frozen=True, slots=True)
class LoopRef(LoopId):
    """A reference to a loop: its variable's name, and the number of the instruction that created it (0: the original
    function)."""


Results = BlockRef | LoopRef | tuple[BlockRef | LoopRef, ...] | None
"""The type of a primitive's result: references to the blocks or loops that it creates."""


class Choice(int):
    """A sampled number that keeps the trace's reference to the instruction that sampled it."""

    ref: Ref


class Recording:
    """The state of a schedule: the function as it is now, the trace of the primitives that led to it, and references to
    blocks and loops. `seed` is the seed of sampled decisions."""

    supplies: ClassVar[tuple[Subject, ...]] = ()
    """The kinds of leading parameters (block, loop) that the object itself provides to primitives: none for a schedule,
    as callers name blocks and loops."""

    def __init__(self, func: PrimFunc, seed: int = 0) -> None:
        self.func = func
        self._random = random.Random(seed)
        self._instructions: list[Instruction] = []
        self._refs: dict[tuple[RefKind, str], Ref] = {}
        self._counts: dict[RefKind, int] = {"b": 0, "l": 0, "v": 0}
        self._objects: dict[Ref, BlockRef | LoopRef | Choice] = {}
        self._refused: list[str] = []
        self._history = History(func)
        self.last_step: tuple[str, PrimFunc] = ("", func)

    def __str__(self) -> str:
        return str(self.func)

    @property
    def trace(self) -> Trace:
        """The trace of the primitives that have been applied so far."""
        return Trace(tuple(self._instructions))

    @property
    def refused(self) -> tuple[str, ...]:
        """A text for each primitive that was refused inside of `trying`: what is lost by that, as `trying` was told,
        and the reason."""
        return tuple(self._refused)

    @contextmanager
    def trying(self, loss: str) -> Iterator[None]:
        """A context in which the refusal of a primitive is no error: the schedule stays as it was before, and `refused`
        gets an entry with `loss`, a text that says what the schedule loses, and the reason."""
        try:
            yield
        except ScheduleError as error:
            self._refused.append(f"{loss}: {error.headline()}")

    def copy(self) -> Self:
        """An independent schedule with the same function and trace."""
        other = type(self)(self.func)
        other._random.setstate(self._random.getstate())
        other._instructions = list(self._instructions)
        other._refused = list(self._refused)
        other._history = self._history.copy()
        other._refs, other._counts, other._objects = dict(self._refs), dict(self._counts), dict(self._objects)
        other.last_step = self.last_step
        return other

    def restore(self, saved: Self) -> None:
        """Restore the state of a saved copy, which must not be used afterwards."""
        vars(self).update(vars(saved))

    def name_step(self, name: str, before: PrimFunc) -> None:
        """Record everything done since `before` as one step with this name (`compose.primitive`)."""
        self.last_step = (name, before)

    def block(self, name: str) -> BlockRef:
        """The block of this name."""
        block_path(self.func, name)
        result: BlockRef = self._results("b", "block", (name,), (), (name,))[0]
        return result

    def loop(self, name: str) -> LoopRef:
        """The loop over the variable of this name."""
        loop_path(self.func, name)
        return self._loop_results("loop", (name,), (), (name,))[0]

    def find_loop(self, name: str) -> LoopRef:
        """The loop that has this name now (not recorded)."""
        return LoopRef(name, self._history.birth("l", name))

    def _resolve(self, v: Value) -> Any:
        if isinstance(v, Ref):
            if v not in self._objects:
                raise refuse(self.func, f"{v} is used before an instruction gives it")
            return self._objects[v]
        return tuple(map(self._resolve, v)) if isinstance(v, tuple) else v

    def _ref(self, kind: RefKind, target: BlockRef | LoopRef | str) -> Ref:
        """The trace's reference to a block or loop; for a name, a look-up is recorded."""
        name = self._name(target)
        entry = self._refs.get((kind, name))
        if entry is None:
            (self.block if kind == "b" else self.loop)(name)
            entry = self._refs[kind, name]
        return entry

    def _name(self, target: BlockRef | LoopRef | str) -> str:
        """The name of a referenced block or loop. Raises ScheduleError if it was removed."""
        if isinstance(target, str):
            return target
        if not isinstance(target, BlockRef | LoopRef):
            raise refuse(
                self.func, "not a part of the program", expected="a block or loop, or its name", got=repr(target)
            )
        kind: RefKind = "b" if isinstance(target, BlockRef) else "l"
        gone = self._history.why_gone(kind, target.name, target.birth)
        if gone is not None:
            raise refuse(self.func, f"{'block' if kind == 'b' else 'loop'} {target.name!r} is gone: {gone} took it")
        return target.name

    def _block_ref(self, name: str) -> BlockRef:
        return BlockRef(name, self._history.birth("b", name))

    def _become(self, primitive: str, inputs: tuple[Value, ...], func: PrimFunc) -> None:
        """Store `func`, the result of `primitive` with the arguments `inputs`, as the present function, and record
        which loops and blocks are removed and which are new."""
        named = (getattr(self._objects[v], "name", str(v)) if isinstance(v, Ref) else value_text(v) for v in inputs)
        by = f"{primitive}({', '.join(named)})"
        self.last_step = (by, self.func)
        for key in self._history.become(func, by, len(self._instructions) + 1):
            self._refs.pop(key, None)
        self.func = func

    def apply(self, primitive: AnyPrimitive, args: tuple[Any, ...], named: dict[str, Any]) -> Results:
        """Apply a declared primitive with the arguments `args`, by position, and `named` to the program, and record it.
        Returns references to the blocks or loops that it creates."""
        values = primitive.bind(args, named)
        subjects = dict(zip(values, primitive.subjects, strict=False))
        result = primitive.function(self.func, **{n: self._name(v) if n in subjects else v for n, v in values.items()})
        inputs: list[Value] = []
        options = {}
        for n, v in values.items():
            if n in subjects:
                inputs.append(self._ref("b" if subjects[n] == "block" else "l", v))
            elif primitive.defaults[n] is None:
                options[n] = v
            else:
                inputs.append(literal(v))
        recorded = tuple(inputs), present(**options)
        if isinstance(result, PrimFunc):
            self._record(primitive.__name__, *recorded, result)
            return None
        new, created = result
        names = (created,) if isinstance(created, str) else created
        kind: RefKind = "b" if primitive.makes == "block" else "l"
        results: tuple[Any, ...] = self._results(kind, primitive.__name__, *recorded, names, new)
        return results[0] if isinstance(created, str) else results

    def _new_ref(self, kind: RefKind) -> Ref:
        ref = Ref(kind, self._counts[kind])
        self._counts[kind] += 1
        return ref

    def _record(
        self,
        primitive: str,
        inputs: tuple[Value, ...],
        attributes: tuple[tuple[str, Value], ...],
        func: PrimFunc | None = None,
        outputs: tuple[Ref, ...] = (),
        decision: Value = None,
    ) -> None:
        if func is not None:
            self._become(primitive, inputs, func)
        self._instructions.append(Instruction(primitive, inputs, attributes, outputs, decision))

    def _results(
        self,
        kind: RefKind,
        primitive: str,
        inputs: tuple[Value, ...],
        attributes: tuple[tuple[str, Value], ...],
        names: Sequence[str],
        func: PrimFunc | None = None,
    ) -> tuple[Any, ...]:
        """Record the instruction `primitive`, with the arguments `inputs` and `attributes`, that results in `func` and
        creates blocks or loops (`kind`) called `names`; returns references to them."""
        if func is not None:
            self._become(primitive, inputs, func)
        reference: Callable[[str], BlockRef | LoopRef] = self._block_ref if kind == "b" else self.find_loop
        results = tuple(map(reference, names))
        refs = tuple(self._new_ref(kind) for _ in names)
        for result, ref in zip(results, refs, strict=True):
            self._refs[kind, result.name] = ref
            self._objects[ref] = result
        self._record(primitive, inputs, attributes, None, refs)
        return results

    def _loop_results(self, primitive: str, *recorded: Any) -> tuple[LoopRef, ...]:
        return self._results("l", primitive, *recorded)

    def _choices(
        self,
        primitive: str,
        inputs: tuple[Value, ...],
        attributes: tuple[tuple[str, Value], ...],
        chosen: Sequence[int],
        decision: Value = None,
    ) -> tuple[Choice, ...]:
        results = tuple(map(Choice, chosen))
        for result in results:
            result.ref = self._new_ref("v")
            self._objects[result.ref] = result
        selected = tuple(int(c) for c in chosen) if decision is None else decision
        self._record(primitive, inputs, attributes, None, tuple(r.ref for r in results), selected)
        return results

    def _renumber(self, outputs: tuple[Ref, ...], created: tuple[Any, ...]) -> None:
        """Give the last instruction's results `created` the references `outputs` that they have in a replayed trace, so
        that its text is reproduced."""
        own = self._instructions[-1]
        for old in own.outputs:
            del self._objects[old]
        for new, value in zip(outputs, created, strict=True):
            self._objects[new] = value
            self._counts[new.kind] = max(self._counts[new.kind], new.number + 1)
            if isinstance(value, Choice):
                value.ref = new
            else:
                self._refs[new.kind, value.name] = new
        self._instructions[-1] = Instruction(own.primitive, own.inputs, own.attributes, outputs, own.decision)


def literal(value: Any) -> Value:
    """A Python value in the form of a trace: sampled numbers as references, sequences as tuples."""
    if isinstance(value, Choice):
        return value.ref
    if isinstance(value, list | tuple):
        return tuple(map(literal, value))
    if value is None or isinstance(value, bool | int | float | str | Ref | IndexMap):
        return value
    raise ExpressionError(f"a trace cannot hold a {type(value).__name__}")


def present(**attributes: Any) -> tuple[tuple[str, Value], ...]:
    """The given attributes that are not None, as (name, value in the form of a trace)."""
    return tuple((name, literal(v)) for name, v in attributes.items() if v is not None)
