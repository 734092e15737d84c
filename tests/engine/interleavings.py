"""All interleavings of an engine's steps: a model checker that drives the very functions of `engine/queues.py`.

A state is how far the pushing thread is, which operations run, and the queues. From each state every step is taken:
the next push, the begin of any ready operation, the end of any that runs. States are visited once, as what follows
depends on nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from tilewright.engine.queues import Operation, Variable, distinct, enter, leave

Program = Sequence[tuple[frozenset[int], frozenset[int], bool]]
"""Operations: variables read, variables written, and whether it fails."""


@dataclass
class State:
    """A moment: values stand for what was computed, as nested hashes."""

    variables: list[Variable]
    operations: list[Operation]
    pushed: int = 0
    ready: list[int] = field(default_factory=list)
    running: dict[int, int] = field(default_factory=dict)
    values: list[int] = field(default_factory=list)
    ended: frozenset[int] = frozenset()

    def copied(self) -> State:
        variables = [Variable(v.name) for v in self.variables]
        place = {id(v): k for k, v in enumerate(self.variables)}
        operations = []
        for o in self.operations:
            reads, writes = ([variables[place[id(v)]] for v in some] for some in (o.reads, o.writes))
            operations.append(Operation(o.function, reads, writes, 0, o.number))
            operations[-1]._waiting, operations[-1].failure = o._waiting, o.failure
        for old, new in zip(self.variables, variables, strict=True):
            new._queue = deque((operations[o.number], w) for o, w in old._queue)
            new._readers, new._writing, new.failure, new.version = old._readers, old._writing, old.failure, old.version
        return State(variables, operations, self.pushed, [*self.ready], {**self.running}, [*self.values], self.ended)

    def key(self) -> tuple[object, ...]:
        queues = tuple(
            (tuple((o.number, w) for o, w in v._queue), v._readers, v._writing, str(v.failure)) for v in self.variables
        )
        running = tuple(sorted(self.running.items()))
        return self.pushed, tuple(sorted(self.ready)), running, self.ended, tuple(self.values), queues


def begun(program: Program, variables: int) -> State:
    state = State([Variable(str(k)) for k in range(variables)], [], values=[0] * variables)
    for number, (reads, writes, _) in enumerate(program):
        named = distinct([state.variables[k] for k in sorted(reads)], [state.variables[k] for k in sorted(writes)])
        state.operations.append(Operation(int, *named, 0, number))
    return state


def steps(state: State) -> Iterator[tuple[str, int]]:
    if state.pushed < len(state.operations):
        yield "push", state.pushed
    yield from (("begin", number) for number in state.ready)
    yield from (("end", number) for number in state.running)


def after(state: State, program: Program, step: tuple[str, int]) -> State:
    """The state after a step; AssertionError where operations run together that conflict."""
    state = state.copied()
    kind, number = step
    operation = state.operations[number]
    reads, writes, fails = program[number]
    if kind == "push":
        state.pushed += 1
        if enter(operation):
            state.ready.append(number)
    elif kind == "begin":
        for other in state.running:
            theirs = program[other]
            assert not (writes & (theirs[0] | theirs[1]) or theirs[1] & reads), f"{number} runs beside {other}"
        state.ready.remove(number)
        state.running[number] = hash((number, *(state.values[k] for k in sorted(reads | writes))))
        operation.failure = operation.inherited
    else:
        value = state.running.pop(number)
        if operation.failure is None and fails:
            operation.failure = ValueError(str(number))
        if operation.failure is None:
            for k in writes:
                state.values[k] = value
        state.ready += [o.number for o in leave(operation)]
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


def explore(program: Program, variables: int) -> int:
    """Visit every state of a program; returns how many there are. AssertionError if one is wrong: operations that
    conflict run together, nothing can go on though not all have ended, or the end differs from the serial one."""
    first = begun(program, variables)
    seen, stack = {first.key()}, [first]
    expected = serial(program, variables)
    while stack:
        state = stack.pop()
        following = list(steps(state))
        if not following:
            assert len(state.ended) == len(program), f"{program}: stuck with {state.ended}"
            assert (state.values, [str(v.failure) for v in state.variables]) == expected, program
            assert all(v.idle for v in state.variables)
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
