"""Deadlocks, races and hazards: what the checker says against a walk over all states, and against running programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.targets.vta.grid import Grid, touched
from tests.targets.vta.programs import BASE, Program, product, random_program
from tests.targets.vta.reference import Reference
from tilewright.targets.vta import Finish, Gemm, Load, Memory, Tokens, encode
from tilewright.targets.vta.access import queue_of
from tilewright.targets.vta.assembly import assemble, disassemble
from tilewright.targets.vta.check import Fault, faults
from tilewright.targets.vta.explore import explore
from tilewright.targets.vta.isa import TOKEN_NAMES
from tilewright.targets.vta.simulator import Machine
from tilewright.targets.vta.tokens import with_tokens


def uops_at(program: Program, image: np.ndarray) -> list[np.ndarray]:
    """The micro-operations that each instruction finds: those before the program, which are loaded once."""
    reference = Reference(image.copy(), BASE)
    reference.load(next(i for i in program if isinstance(i, Load)))
    return [reference.uop] * len(program)


def compare(program: Program, image: np.ndarray, rows: list[tuple[set, set]]) -> tuple[Fault, ...]:
    """The checker says what the walk over all states says."""
    result = faults(program, {BASE: image})
    grid = Grid(program)
    stuck = [f for f in result if f.kind == "deadlock"]
    assert bool(stuck) == bool(grid.dead)
    if grid.dead:  # every run stops in the same state
        (state,) = grid.dead
        nexts = [q[n] for q, n in zip(grid.queues, state, strict=True) if n < len(q)]
        assert list(stuck[0].instructions) == nexts
    racing = set()
    for a, b in grid.together():
        reads, writes = rows[a]
        if not writes.isdisjoint(rows[b][0] | rows[b][1]) or not reads.isdisjoint(rows[b][1]):
            racing.add((a, b))
    said = {f.instructions for f in result if f.kind == "race"}
    assert bool(said) == bool(racing)
    for a, b in said:  # each pair that is named may meet, and touches a common row
        assert rows[a][1] & (rows[b][0] | rows[b][1]) or rows[a][0] & rows[b][1]
    if not grid.dead:
        assert bool([f for f in result if f.kind == "tokens"]) == bool(grid.left())
    return result


def without(program: Program, k: int, flag: str) -> Program:
    tokens = replace(program[k].tokens, **{flag: False})
    return [*program[:k], replace(program[k], tokens=tokens), *program[k + 1 :]]


def examine(seed: int, length: int) -> int:
    """A random program with tokens, then with each of its tokens taken out; how many programs were looked at."""
    bare, image = random_program(np.random.default_rng(seed), length)
    program = with_tokens(bare, {BASE: image})
    rows = [touched(i, u) for i, u in zip(program, uops_at(program, image), strict=True)]
    assert not [f for f in compare(program, image, rows) if f.kind != "hazard"]
    count = 1
    for k, i in enumerate(program):
        for flag in TOKEN_NAMES:
            if getattr(i.tokens, flag):
                assert compare(without(program, k, flag), image, rows), (seed, k, flag)
                count += 1
    return count


@pytest.mark.daily(4)
@pytest.mark.parametrize("seed", range(12))
def test_no_missing_token_goes_unnoticed(seed: int) -> None:
    assert examine(seed, 14) > 3


@pytest.mark.parametrize("seed", range(10))
def test_programs_with_tokens_leave_what_their_order_leaves(seed: int) -> None:
    bare, image = random_program(np.random.default_rng(100 + seed), 40)
    program = with_tokens(bare, {BASE: image})
    assert [i for i in (replace(i, tokens=Tokens()) for i in program) if i != Load(Memory.UOP)] == [
        i for i in bare if i != Load(Memory.UOP)
    ]
    wanted = image.copy()
    Reference(wanted, BASE).run(bare)
    for first in range(3):
        memory = image.copy()
        Machine().run(encode(program), {BASE: memory}, first)
        assert np.array_equal(memory, wanted)
    result = explore(program, {BASE: image})
    assert result.complete and result.orders == 1 and len(result.outcomes) == 1


def test_each_token_is_needed() -> None:
    """No pair of a push and its pop can be taken out."""
    bare, image = random_program(np.random.default_rng(7), 25)
    program = with_tokens(bare, {BASE: image})
    pairs = {"push_next": "pop_prev", "push_prev": "pop_next"}
    for push, pop in pairs.items():
        for q in range(3):
            givers = [k for k, i in enumerate(program) if queue_of(i) == q and getattr(i.tokens, push)]
            other = q + (1 if push == "push_next" else -1)
            takers = [k for k, i in enumerate(program) if queue_of(i) == other and getattr(i.tokens, pop)]
            assert len(givers) == len(takers)
            for a, b in zip(givers, takers, strict=True):
                assert faults(without(without(program, a, push), b, pop), {BASE: image}) or (
                    program[-1] == program[b]  # FINISH waits for what nothing else reads
                )


def test_a_race_shows_as_several_outcomes() -> None:
    text, image, _, _ = product(np.random.default_rng(0), 4, 16, 16, 7)
    program = assemble(text)
    whole = explore(program, {BASE: image})
    assert whole.complete and len(whole.outcomes) == 1 and not whole.analysis.faults
    store = next(k for k, i in enumerate(program) if i.tokens.pop_prev and i.tokens.push_prev)
    racy = without(without(program, store, "pop_prev"), store - 1, "push_next")
    result = explore(racy, {BASE: image})
    assert len(result.outcomes) > 1 and result.complete
    (named, *_) = [f for f in result.analysis.faults if f.kind == "race"]
    assert "store out" in str(named) and "row 0 of ACC" in str(named)
    sampled = explore(racy, {BASE: image}, limit=2)
    assert not sampled.complete and sampled.orders == 2


def test_faults_name_instructions() -> None:
    image = np.zeros(1 << 14, np.uint8)
    program = assemble("load inp dram_base=300 y_size=1 x_size=2 +next\nfinish -prev -next")
    assert str(faults(program, {BASE: image})[0]) == (
        "deadlock: these queues wait for ever: compute at instruction 1 (finish -prev -next)"
    )
    program = assemble("load inp +next\nfinish")
    assert [str(f) for f in faults(program, {BASE: image})] == ["tokens: tokens are left over: 1 load to compute"]
    program = assemble("load inp -prev\nfinish")
    assert [f.kind for f in faults(program, {BASE: image})] == ["invalid"]
    program = assemble("load inp dram_base=1 y_size=1 x_size=1\nfinish")
    assert [f.kind for f in faults(program, {BASE: image})] == ["failure"]


def test_rows_written_repeatedly_too_soon_are_hazards() -> None:
    image = np.zeros(1 << 14, np.uint8)
    for distance in range(1, 7):
        gemm = Gemm(0, 1, 3, distance, dst_in=1, src_out=1)
        result = faults([gemm, Finish()], {BASE: image})
        assert [f.kind for f in result] == (["hazard"] if distance < 4 else []), distance
    assert faults([Gemm(0, 1, 3, 1, reset=True), Finish()], {BASE: image}) == ()


def test_text_of_tokens() -> None:
    bare = assemble("load inp dram_base=300 y_size=1 x_size=1\ngemm uop_end=1 iter_out=1 iter_in=1")
    bare += assemble("load inp dram_base=301 y_size=1 x_size=1\nstore out dram_base=300 y_size=1 x_size=1")
    assert disassemble(with_tokens(bare, {BASE: np.zeros(8192, np.uint8)})) == (
        "load inp dram_base=300 y_size=1 x_size=1 +next\n"
        "gemm uop_end=1 iter_out=1 iter_in=1 -prev +prev +next\n"
        "load inp dram_base=301 y_size=1 x_size=1 -next +next\n"
        "store out dram_base=300 y_size=1 x_size=1 -prev +prev\n"
        "finish -prev -next\n"
    )
