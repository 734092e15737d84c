"""The grid interpreter's expressions and memory: closures that give a value for each thread at once.

A closure takes a mask of active threads (None: all) and reads no elements for others. A value that is equal for all
threads stays a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.codegen.interpret.memory import Array, InterpretError
from tilewright.codegen.interpret.races import Detector
from tilewright.codegen.interpret.scalars import bitcaster, poison, value_of
from tilewright.codegen.interpret.vectors import Operation, Value, by_element, conversion, operation, storage
from tilewright.ir.c_functions import PREFIX, apply
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var

Mask = Array | None
Lanes = Callable[[Mask], Value]
"""A closure from a mask to an expression's value for the threads of the mask."""


class LaneMemory:
    """The elements of a buffer, with a copy for each group of threads that has its own.

    Args:
        buffer: the buffer.
        groups: for each thread the number of its group; None: all threads share one copy.
        count: the number of groups.
    """

    __slots__ = ("base", "buffer", "count", "data", "detector", "groups", "shape", "size")

    def __init__(self, buffer: Buffer, groups: Array | None, count: int = 1) -> None:
        self.buffer = buffer
        self.groups = groups
        self.count = count
        self.shape: tuple[int, ...] = ()
        self.size = 0
        self.data: Array = np.zeros(0, storage(buffer.dtype))
        self.base: Array | int = 0
        self.detector: Detector | None = None

    def reshape(self, shape: tuple[int, ...]) -> bool:
        """Set the shape and reset the content; returns whether the shape has changed."""
        changed = shape != self.shape or not self.size
        self.shape = shape
        self.size = int(np.prod(shape, dtype=np.int64))
        self.base = 0 if self.groups is None else self.groups * self.size
        self.data = np.full(self.count * self.size, poison(self.buffer.dtype), storage(self.buffer.dtype))
        return changed

    def element(self, place: int) -> str:
        """The text that names the element at the flat position `place`, such as "S[3, 4]"."""
        at = np.unravel_index(place % max(1, self.size), self.shape) if self.shape else ()
        return f"{self.buffer.name}[{', '.join(str(int(i)) for i in at)}]"

    def outside(self, index: Sequence[int]) -> InterpretError:
        inside = ", ".join(str(int(i)) for i in index)
        return InterpretError(f"index [{inside}] outside", where=f"buffer {self.buffer.name!r} {list(self.shape)}")


class LaneScope:
    """The scope of a kernel: `cells` hold the values of variables, `memory` the buffers; `who` are the numbers of the
    threads for race detection, and `statement` is the number of the statement whose expressions are compiled.
    `together`: lanes exchange registers by an instruction, which is no race."""

    def __init__(self, where: str, count: int) -> None:
        self.where = where
        self.count = count
        self.cells: dict[Var, list[Value]] = {}
        self.memory: dict[Buffer, LaneMemory] = {}
        self.who: Array = np.arange(count)
        self.statement = 0
        self.together = False
        self.exprs: dict[Expr, Lanes] = {}

    def begin(self, statement: int) -> None:
        """Set the number of the statement whose expressions are compiled next."""
        self.statement = statement
        self.exprs.clear()

    def expr(self, e: Expr) -> Lanes:
        """A closure that evaluates `e` for the threads of a mask."""
        done = self.exprs.get(e)
        if done is None:
            done = self.exprs[e] = self._expr(e)
        return done

    def _expr(self, e: Expr) -> Lanes:
        match e:
            case Const():
                value = value_of(e.dtype)(e.value)
                return lambda mask: value
            case Var():
                cell = self.cells.get(e)
                if cell is None:
                    raise InterpretError(f"the variable {e.name!r} is not defined", where=self.where)
                return lambda mask: cell[0]
            case Load():
                return self._load(e)
            case Op():
                return self._op(e)
        raise InterpretError(f"{type(e).__name__} cannot be interpreted; lower it first", where=str(e))

    def _op(self, e: Op) -> Lanes:
        args = [self.expr(a) for a in e.args]
        match e.name:
            case "select":
                return _choice(args[0], args[1], args[2], storage(e.dtype))
            case "and":
                left, right = args
                return lambda mask: _where(left(mask), lambda m: right(m), lambda m: False, mask)
            case "or":
                left, right = args
                return lambda mask: _where(left(mask), lambda m: True, lambda m: right(m), mask)
            case "lookup":
                position, *entries = args
                table = np.array([entry(None) for entry in entries], storage(e.dtype))
                kind = value_of(e.dtype)
                return lambda mask: _looked_up(table, position(mask), kind)
            case "cast":
                return _applied(conversion(e.args[0].dtype, e.dtype), args)
            case "bitcast":
                one = bitcaster(e.args[0].dtype, e.dtype)
                return _applied(lambda x: by_element(one, e.dtype, x) if type(x) is np.ndarray else one(x), args)
            case name if name.startswith(PREFIX):
                called = partial(apply, name)
                return _applied(lambda *xs: _of_outside(called, e.dtype, *xs), args)
        return _applied(operation(e.name, e.args[0].dtype, e.dtype), args)

    # Memory

    def position(self, buffer: Buffer, indices: Sequence[Expr]) -> Lanes:
        """A closure that computes, for the threads of a mask, the flat position of the element `indices` in its copy of
        a buffer, with each index checked against the shape."""
        memory = self.memory.get(buffer)
        if memory is None:
            raise InterpretError(f"the buffer {buffer.name!r} is not declared", where=self.where)
        index = [self.expr(i) for i in indices]

        def position(mask: Mask) -> Value:
            at: Value = 0
            values = [i(mask) for i in index]
            for value, extent in zip(values, memory.shape, strict=True):
                wrong = (value < 0) | (value >= extent)
                if type(value) is np.ndarray:
                    if mask is not None:
                        wrong = wrong & mask
                    if wrong.any():
                        lane = int(np.argmax(wrong))
                        raise memory.outside([v[lane] if type(v) is np.ndarray else v for v in values])
                elif wrong:
                    raise memory.outside([v if type(v) is not np.ndarray else v[0] for v in values])
                at = at * extent + value
            return np.where(mask, at, 0) if mask is not None and type(at) is np.ndarray else at

        return position

    def _load(self, e: Load) -> Lanes:
        position = self.position(e.buffer, e.indices)
        memory, statement, kind = self.memory[e.buffer], self.statement, value_of(e.dtype)
        exchanged = self.together and e.buffer.scope == "local"

        def load(mask: Mask) -> Value:
            at = memory.base + position(mask)
            if memory.detector is not None and not exchanged:
                self.watch(memory.detector.reads, at, mask, statement)
            value = memory.data[at]
            return value if type(at) is np.ndarray else kind(value)

        return load

    def watch(self, told: Callable[[Array, Array, int], None], at: Value, mask: Mask, statement: int) -> None:
        """Tell a race detector, by its method `told`, that the threads of `mask` access the elements at flat positions
        `at` in `statement`."""
        where = at if type(at) is np.ndarray else np.full(self.count, at)
        if mask is None:
            told(where, self.who, statement)
        else:
            told(where[mask], self.who[mask], statement)

    def store(self, buffer: Buffer, indices: Sequence[Expr], value: Expr) -> Callable[[Mask], None]:
        """A closure that stores `value` to the buffer at `indices` for each thread of a mask."""
        position, values = self.position(buffer, indices), self.expr(value)
        memory, statement = self.memory[buffer], self.statement

        def store(mask: Mask) -> None:
            at = memory.base + position(mask)
            new = values(mask)
            where = at if type(at) is np.ndarray else np.full(self.count, at)
            if memory.detector is not None:
                self.watch(memory.detector.writes, where, mask, statement)
            if mask is None:
                memory.data[where] = new
            else:
                memory.data[where[mask]] = new[mask] if type(new) is np.ndarray else new

        return store


def _of_outside(f: Callable[..., Any], result: DType, *args: Value) -> Value:
    """The results of an external C function `f`, called once if all `args` are single values, else once for each
    thread."""
    if any(type(a) is np.ndarray for a in args):
        return by_element(f, result, *args)
    return value_of(result)(f(*args))


def _applied(f: Operation, args: Sequence[Lanes]) -> Lanes:
    match args:
        case [only]:
            return lambda mask: f(only(mask))
        case [left, right]:
            return lambda mask: f(left(mask), right(mask))
    return lambda mask: f(*[a(mask) for a in args])


def _where(condition: Value, then: Lanes, orelse: Lanes, mask: Mask) -> Value:
    """The value of `then` for the threads for which `condition` holds, and the value of `orelse` for the other threads
    of `mask`."""
    if type(condition) is not np.ndarray:
        return (then if condition else orelse)(mask)
    yes, no = (condition, ~condition) if mask is None else (condition & mask, ~condition & mask)
    if not yes.any():
        return orelse(no)
    if not no.any():
        return then(yes)
    return np.where(condition, then(yes), orelse(no))


def _choice(condition: Lanes, then: Lanes, orelse: Lanes, kind: np.dtype[Any]) -> Lanes:
    def run(mask: Mask) -> Value:
        value = _where(condition(mask), then, orelse, mask)
        return value.astype(kind, copy=False) if type(value) is np.ndarray else value

    return run


def _looked_up(table: Array, position: Value, kind: Callable[[object], Value]) -> Value:
    if type(position) is np.ndarray:
        return table[np.clip(position, 0, len(table) - 1)]
    return kind(table[min(max(position, 0), len(table) - 1)])


__all__ = ["LaneMemory", "LaneScope", "Lanes", "Mask"]
