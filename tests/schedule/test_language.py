"""Random schedules of random programs of the whole language: the interpreter before and after lowering, native code and
C with a sanitiser compute the same, nothing after an array is touched, traces replay; whatever is refused is refused
with one of our own errors.

`TILEWRIGHT_LANGUAGE_CASES` sets how many (1,000). A failing case names its seed. `make fuzz` tries 20,000.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.codegen.c.c_run import COMPILER
from tests.schedule.language import (
    PROGRAMS,
    Arrays,
    CCase,
    arrays_of,
    c_case,
    compare,
    run_c,
    run_interpreter,
    run_native,
)
from tests.schedule.native import TARGET
from tests.schedule.random_steps import (
    BLOCK_STEPS,
    STEPS,
    Step,
    attempt,
    move_to_a_reader,
    random_plan,
    random_tensorized,
)
from tilewright import te
from tilewright.ir.expr import as_int
from tilewright.ir.loops import PrimFunc
from tilewright.ir.verify import verify_func
from tilewright.schedule import BlockRef, LoopRef, Schedule, parse_trace
from tilewright.schedule.in_place import in_place
from tilewright.schedule.state import written_buffers
from tilewright.support.errors import ScheduleError
from tilewright.transform.loops import lower_loops

CASES = int(os.environ.get("TILEWRIGHT_LANGUAGE_CASES", "1000"))
CHUNK = 50


def _align(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    buffers = written_buffers(s.get(block))
    factor = rng.choice([1, 2, 4, 16])
    s.storage_align(block, rng.randint(-2, 1), factor, rng.randrange(factor), rng.choice(buffers).name)


def _prefetched(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    """Into a loop of what reads it, and filled ahead there."""
    consumers = s.consumers(block)
    if consumers:
        loop = rng.choice([*s.loops(consumers[0]), None])
        attempt(lambda: s.compute_at(block, loop or "none"))
    s.double_buffer(block)


def _next_pair() -> str:
    """An intrinsic for two elements that get one more each, as many programs here have it; there is no instruction."""
    x = te.placeholder((2,), name="x")
    return te.intrinsic("test_next_pair", te.compute((2,), lambda i: x[i] + 1.0, name="y"), [x]).name


NEXT_PAIR = _next_pair()


def _pairs(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    """Two of a block's elements at once, and perhaps to where they are read."""
    block = next((b for b in s.blocks() if " + 1.0\n" in f"{s.get(b).body}\n"), block)
    attempt(lambda: s.pad(block, [1] * (len(s.get(block).iters) - 1) + [2]))
    s.tensorize(s.split(s.loops(block)[-1], factor=2)[1], NEXT_PAIR)
    attempt(lambda: move_to_a_reader(s, rng, block, loops))


MORE_STEPS: tuple[tuple[str, Step], ...] = (
    *STEPS,
    ("storage_align", _align),
    ("storage_align", _align),
    ("double_buffer", _prefetched),
    ("double_buffer", _prefetched),
    ("double_buffer", lambda s, rng, block, loops: s.double_buffer(block)),
    ("rfactor", lambda s, rng, block, loops: s.rfactor(block, loops[-1], 0)),
    ("tensorize", _pairs),
)
MORE_BLOCK_STEPS = BLOCK_STEPS | {"storage_align", "double_buffer"}


def random_schedule(func: PrimFunc, rng: random.Random, steps: int) -> Schedule:
    """A schedule like `random_steps.random_schedule`, with all primitives."""
    s = Schedule(func, rng.randrange(1 << 30))
    start = rng.random()
    if start < 0.25 and s.loops(s.blocks()[-1]):
        random_plan(s, rng)
    elif start < 0.5 and func.name == "matmul":
        attempt(lambda: random_tensorized(s, rng))
    accepted = 0
    for _ in range(4 * steps):
        block = rng.choice(s.blocks())
        loops = s.loops(block)
        name, step = rng.choice(MORE_STEPS)
        if accepted < steps and (loops or name in MORE_BLOCK_STEPS):
            accepted += attempt(lambda b=block, x=loops, f=step: f(s, rng, b, x))
    return s


def random_in_place(func: PrimFunc, rng: random.Random) -> tuple[PrimFunc, dict[str, str]]:
    """The function with an output in the place of an input where that is legal, and which."""
    outputs = [p for p in func.params if p in written_buffers(func.body)]
    inputs = [p for p in func.params if p not in outputs]
    if rng.random() < 0.5 or not outputs or not inputs:
        return func, {}
    output, source = rng.choice(outputs).name, rng.choice(inputs).name
    try:
        return in_place(func, output, source), {output: source}
    except ScheduleError:
        return func, {}


def check_case(seed: int, every: int = 20) -> CCase | None:
    """One program, one schedule. Any error but a refusal inside `random_schedule` is a failure. Returns what is left to
    the C compiler, for one in `every` cases."""
    rng = random.Random(seed)
    func = rng.choice(PROGRAMS)(rng)
    schedule = random_schedule(func, rng, rng.randint(2, 7))
    trace = parse_trace(str(schedule.trace))
    assert trace == schedule.trace and trace.replay(func).func == schedule.func
    scheduled, moved = random_in_place(schedule.func, rng)
    verify_func(scheduled)
    arrays, symbols = arrays_of(func, rng)
    arguments = {name: a.copy() for name, a in arrays.items() if name not in moved}
    run_interpreter(func, arrays, symbols)
    expected: Arrays = dict(arrays)
    for output, source in moved.items():
        expected[source] = expected.pop(output)

    def fresh() -> Arrays:
        return {name: a.copy() for name, a in arguments.items()}

    flat = lower_loops(scheduled, TARGET)
    turns = [("scheduled", scheduled)] + ([("lowered", flat)] if seed % 4 == 0 else [])
    for what, program in turns:
        got = fresh()
        run_interpreter(program, got, symbols)
        compare(got, expected, what)
    got = fresh()
    run_native(scheduled, flat, got, symbols, 3 if seed % 20 == 0 else 0, rng.choice([1, 1, 2, 3]))
    compare(got, expected, "native")
    return c_case(scheduled, arguments, symbols, expected) if seed % every == 0 and COMPILER is not None else None


def check_chunk(seeds: range, every: int = 20) -> None:
    for seed in seeds:
        try:
            case = check_case(seed, every)
            if case is not None:
                run_c(case)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.daily(5)
@pytest.mark.costly(4)
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_random_programs_of_the_whole_language(first: int) -> None:
    check_chunk(range(first, min(first + CHUNK, CASES)))


def test_the_cases_reach_everything() -> None:
    """Among a few hundred cases every program and every primitive is accepted somewhere."""
    seen: set[str] = set()
    for seed in range(300):
        rng = random.Random(seed)
        func = rng.choice(PROGRAMS)(rng)
        schedule = random_schedule(func, rng, rng.randint(2, 7))
        seen |= {i.primitive for i in schedule.trace.instructions} | {func.name}
        seen |= set(random_in_place(schedule.func, rng)[1] and {"in_place"})
        seen |= {"symbolic"} if any(as_int(d) is None for p in func.params for d in p.shape) else set()
    wanted = {p.__name__ for p in PROGRAMS} | {name for name, _ in MORE_STEPS} | {"in_place", "symbolic", "tensorize"}
    assert wanted - {"expand"} <= seen, wanted - seen
