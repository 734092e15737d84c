"""All interleavings of an engine's steps: a model checker that drives the very functions of `engine/queues.py`, or of
`engine/native_code.py`.

A state is how far the pushing thread is, which operations run, and the queues. From each state every step is taken:
the next push, the begin of any ready operation, the end of any that runs. States are visited once, as what follows
depends on nothing else.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Protocol, Self

import numpy as np

from tilewright.engine.native_code import ENTRY, OPERATION, STATUS_BITS, VARIABLE, VARIABLE_SIZE, engine_text
from tilewright.engine.queues import Operation, Variable, distinct, enter, leave
from tilewright.native.link import Library, compile_text
from tilewright.runtime.layout import Memory

Program = Sequence[tuple[frozenset[int], frozenset[int], bool]]
"""Operations: variables read, variables written, and whether it fails."""


class Queues(Protocol):
    """The queues of a program's variables, whose operations go by their numbers."""

    def enter(self, number: int) -> bool: ...

    def inherited(self, number: int) -> str | None: ...

    def leave(self, number: int, failure: str | None) -> list[int]: ...

    def copied(self) -> Self: ...

    def key(self) -> object: ...

    def ends(self) -> tuple[list[str], bool]:
        """The failure that each variable carries, and whether nothing uses any or waits for it."""
        ...


class PythonQueues:
    """`engine/queues.py`."""

    def __init__(self, program: Program, variables: int) -> None:
        self.variables = [Variable(str(k)) for k in range(variables)]
        self.operations: list[Operation] = []
        for number, (reads, writes, _) in enumerate(program):
            named = distinct([self.variables[k] for k in sorted(reads)], [self.variables[k] for k in sorted(writes)])
            self.operations.append(Operation(int, *named, 0, number))

    def enter(self, number: int) -> bool:
        return enter(self.operations[number])

    def inherited(self, number: int) -> str | None:
        failure = self.operations[number].inherited
        return None if failure is None else str(failure)

    def leave(self, number: int, failure: str | None) -> list[int]:
        operation = self.operations[number]
        operation._failure = None if failure is None else ValueError(failure)
        return [o.number for o in leave(operation)]

    def copied(self) -> Self:
        new = type(self)((), 0)
        new.variables = [Variable(v.name) for v in self.variables]
        place = {id(v): k for k, v in enumerate(self.variables)}
        for o in self.operations:
            reads, writes = ([new.variables[place[id(v)]] for v in some] for some in (o.reads, o.writes))
            new.operations.append(Operation(o.function, reads, writes, 0, o.number))
            new.operations[-1]._waiting, new.operations[-1]._failure = o._waiting, o._failure
        for old, v in zip(self.variables, new.variables, strict=True):
            v._queue = deque((new.operations[o.number], w) for o, w in old._queue)
            v._readers, v._writing, v._failure, v._version = old._readers, old._writing, old._failure, old._version
        return new

    def key(self) -> object:
        return tuple(
            (tuple((o.number, w) for o, w in v._queue), v._readers, v._writing, str(v.failure)) for v in self.variables
        )

    def ends(self) -> tuple[list[str], bool]:
        return [str(v.failure) for v in self.variables], all(v.idle for v in self.variables)


@cache
def native_functions() -> tuple[Callable[[int], int], ...]:
    names = ("tw_enter", "tw_leave", "tw_inherited")
    library = Library({"engine": compile_text(engine_text)}, names)
    library.keep_forever()
    return tuple(ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library[name]) for name in names)


class NativeQueues:
    """`engine/native_code.py`: one memory has variables and operations, and a state is its bytes, which are put there
    before anything is done with them."""

    def __init__(self, program: Program, variables: int, memory: Memory | None = None) -> None:
        self.program, self.variables = program, variables
        self.entries = max((len(r | w) for r, w, _ in program), default=0)
        self.each = OPERATION.size + self.entries * ENTRY.size
        self.memory = memory or Memory(variables * VARIABLE_SIZE + len(program) * self.each)
        if memory is None:
            for number, (reads, writes, _) in enumerate(program):
                at = self.operation(number)
                self.memory[at + OPERATION.number] = number
                self.memory[at + OPERATION.reads] = len(reads - writes)
                self.memory[at + OPERATION.writes] = len(writes)
                for k, v in enumerate([*sorted(reads - writes), *sorted(writes)]):
                    entry = at + OPERATION.size + k * ENTRY.size
                    self.memory[entry + ENTRY.variable] = self.memory.address + v * VARIABLE_SIZE
                    self.memory[entry + ENTRY.operation] = self.memory.address + at
                    self.memory[entry + ENTRY.writes] = v in writes
        self.state = self.memory.words.tobytes()

    def operation(self, number: int) -> int:
        return self.variables * VARIABLE_SIZE + number * self.each

    def _called(self, function: int, number: int) -> int:
        ctypes.memmove(self.memory.address, self.state, len(self.state))
        result = native_functions()[function](self.memory.address + self.operation(number))
        self.state = self.memory.words.tobytes()
        return result

    def enter(self, number: int) -> bool:
        return bool(self._called(0, number))

    def inherited(self, number: int) -> str | None:
        word = self._called(2, number)
        return str((word >> STATUS_BITS) - 1) if word else None

    def leave(self, number: int, failure: str | None) -> list[int]:
        words = np.frombuffer(bytearray(self.state), np.int64)
        words[self.operation(number) + OPERATION.failure >> 3] = (int(failure) + 1) << STATUS_BITS if failure else 0
        self.state = words.tobytes()
        address, ready = self._called(1, number), []
        while address:
            at = address - self.memory.address
            ready.append(self.memory[at + OPERATION.number])
            address = self.memory[at + OPERATION.next]
        return ready

    def copied(self) -> Self:
        new = type(self)(self.program, self.variables, self.memory)
        new.state = self.state
        return new

    def key(self) -> object:
        return self.state

    def ends(self) -> tuple[list[str], bool]:
        words = np.frombuffer(self.state, np.int64)[: self.variables * VARIABLE_SIZE >> 3].reshape(self.variables, -1)
        carried = words[:, VARIABLE.failure >> 3].tolist()
        using = words[:, [at >> 3 for at in (VARIABLE.head, VARIABLE.readers, VARIABLE.writing)]]
        return [str((c >> STATUS_BITS) - 1) if c else "None" for c in carried], not using.any()


@dataclass
class State:
    """A moment: values stand for what was computed, as nested hashes."""

    queues: Queues
    values: list[int]
    pushed: int = 0
    ready: list[int] = field(default_factory=list)
    running: dict[int, tuple[int, str | None]] = field(default_factory=dict)
    ended: frozenset[int] = frozenset()

    def copied(self) -> State:
        return State(self.queues.copied(), [*self.values], self.pushed, [*self.ready], {**self.running}, self.ended)

    def key(self) -> tuple[object, ...]:
        running = tuple(sorted(self.running.items()))
        return self.pushed, tuple(sorted(self.ready)), running, self.ended, tuple(self.values), self.queues.key()


def steps(state: State, program: Program) -> Iterator[tuple[str, int]]:
    if state.pushed < len(program):
        yield "push", state.pushed
    yield from (("begin", number) for number in state.ready)
    yield from (("end", number) for number in state.running)


def after(state: State, program: Program, step: tuple[str, int]) -> State:
    """The state after a step; AssertionError where operations run together that conflict."""
    state = state.copied()
    kind, number = step
    reads, writes, fails = program[number]
    if kind == "push":
        state.pushed += 1
        if state.queues.enter(number):
            state.ready.append(number)
    elif kind == "begin":
        for other in state.running:
            theirs = program[other]
            assert not (writes & (theirs[0] | theirs[1]) or theirs[1] & reads), f"{number} runs beside {other}"
        state.ready.remove(number)
        value = hash((number, *(state.values[k] for k in sorted(reads | writes))))
        state.running[number] = value, state.queues.inherited(number)
    else:
        value, failure = state.running.pop(number)
        failure = failure or (str(number) if fails else None)
        if failure is None:
            for k in writes:
                state.values[k] = value
        state.ready += state.queues.leave(number, failure)
        state.ended |= {number}
    return state


def serial(program: Program, variables: int) -> tuple[list[int], list[str]]:
    """The values and failures that variables have at the end when operations run one by one."""
    values, carried = [0] * variables, ["None"] * variables
    for number, (reads, writes, fails) in enumerate(program):
        order = [*sorted(reads - writes), *sorted(writes)]
        failure = next((carried[k] for k in order if carried[k] != "None"), str(number) if fails else "None")
        value = hash((number, *(values[k] for k in sorted(reads | writes))))
        for k in writes:
            carried[k] = failure
            values[k] = value if failure == "None" else values[k]
    return values, carried


def explore(program: Program, variables: int, queues: Callable[[Program, int], Queues] = PythonQueues) -> int:
    """Visit every state of a program; returns how many there are. AssertionError if one is wrong: operations that
    conflict run together, nothing can go on though not all have ended, or the end differs from the serial one."""
    first = State(queues(program, variables), [0] * variables)
    seen, stack = {first.key()}, [first]
    expected = serial(program, variables)
    while stack:
        state = stack.pop()
        following = list(steps(state, program))
        if not following:
            assert len(state.ended) == len(program), f"{program}: stuck with {state.ended}"
            carried, idle = state.queues.ends()
            assert (state.values, carried) == expected, program
            assert idle
        for step in following:
            reached = after(state, program, step)
            key = reached.key()
            if key not in seen:
                seen.add(key)
                stack.append(reached)
    return len(seen)


def programs(length: int, variables: int) -> Iterator[Program]:
    """All programs of a length, each operation of which reads, writes or leaves each variable; none fails."""
    nothing: frozenset[int] = frozenset()
    uses = [
        (frozenset(k for k, u in enumerate(use) if u == 1), frozenset(k for k, u in enumerate(use) if u == 2), False)
        for use in product(range(3), repeat=variables)
    ]
    yield from product([u for u in uses if u[0] | u[1] != nothing], repeat=length)
