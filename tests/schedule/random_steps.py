"""Random schedules: single primitives with arguments that are often legal, and whole plans as kernels are made."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tilewright.ir.dtype import f32
from tilewright.ir.loops import PrimFunc
from tilewright.ir.notes import Unroll
from tilewright.schedule import BlockRef, LoopRef, Schedule
from tilewright.schedule.intrinsics import TensorIntrin, describe, register
from tilewright.schedule.state import written_buffers
from tilewright.support.errors import ScheduleError

MATMUL = {"A": "ik", "B": "kj", "C": "ij"}


def random_schedule(func: PrimFunc, rng: random.Random, steps: int) -> Schedule:
    """Try random primitives until `steps` were accepted (or many were refused), for some after a random plan."""
    schedule = Schedule(func, rng.randrange(1 << 30))
    start = rng.random()
    if start < 0.35:
        random_plan(schedule, rng)
        steps //= 2
    elif start < 0.45:
        attempt(lambda: random_tensorized(schedule, rng))
    accepted = 0
    for _ in range(4 * steps):
        if accepted == steps:
            break
        accepted += attempt(lambda: random_step(schedule, rng))
    return schedule


def attempt(step: Callable[[], Any]) -> bool:
    """Whether a primitive was accepted."""
    try:
        step()
    except ScheduleError:
        return False
    return True


DOT = register(TensorIntrin("test_dot_2x2x2", describe("dot", {"i": 2, "j": 2, "k": 2}, "k", (f32, f32, f32), MATMUL)))
"""A small product of matrices, for which there is no instruction."""


def random_tensorized(s: Schedule, rng: random.Random) -> None:
    """Pad and tile a product of matrices and tensorize the tile, if there is one."""
    block = next((b for b in s.blocks() if s.get(b).is_reduction and len(s.get(b).iters) >= 3), s.blocks()[0])
    loops = s.loops(block)
    if len(loops) < 3:
        return
    attempt(lambda: s.pad(block, [1] * (len(loops) - 3) + [2, 2, 2]))
    *rest, i, j, k = loops
    parts = [s.split(x, factor=2) for x in (i, j, k)]
    inner = [p[1] for p in parts]
    rng.shuffle(inner)
    s.reorder(*rest, *(p[0] for p in parts), *inner)
    s.decompose_reduction(block, parts[2][0])
    s.tensorize(rng.choice([block, inner[0]]), DOT.name)


def random_plan(s: Schedule, rng: random.Random) -> None:
    """Schedule as plans do: inline, tile the last stage, move the rest into its tiles, reductions outside, a separate
    init."""
    *others, last = s.blocks()
    for block in others:
        if rng.random() < 0.6:
            attempt(lambda b=block: s.compute_inline(b))
    outer, inner = [], []
    for loop in s.loops(last):
        if rng.random() < 0.6:
            parts = s.split(loop, factor=rng.choice([1, 2, 3, 4, 8, 16]))
            outer.append(parts[0])
            inner.append(parts[1])
        else:
            outer.append(loop)
    attempt(lambda: s.reorder(*outer, *inner))
    place = rng.choice(outer)
    for block in reversed([b for b in s.blocks() if b != last]):
        depth = len(s.loops(last)) - len(s.loops(last)[s.loops(last).index(place) + 1 :])
        if attempt(lambda b=block: s.compute_at(b, place)):
            _tile_inside(s, rng, block, depth)
    for loop in inner:
        attempt(lambda x=loop: rng.choice([s.vectorize, s.unroll])(x))
    attempt(lambda: s.parallel(rng.choice(outer[:2])))


def _tile_inside(s: Schedule, rng: random.Random, block: BlockRef, depth: int) -> None:
    """Schedule a moved block within its tile."""
    attempt(lambda: s.set_scope(block, rng.choice(["local", "global"])))
    if attempt(lambda: s.expand(block)):
        attempt(lambda: s.vectorize(s.loops(block)[-1]))
        return
    own = s.loops(block)[depth:]
    kinds = [it.kind for it in s.get(block).iters]
    reduces = [x for x, kind in zip(own, kinds, strict=True) if kind == "reduce"]
    spatial = [x for x, kind in zip(own, kinds, strict=True) if kind == "spatial"]
    rng.shuffle(reduces)
    if reduces and rng.random() < 0.4:
        parts = s.split(reduces[-1], factor=rng.choice([2, 4]))
        reduces[-1:] = parts
    keep = rng.randrange(len(spatial) + 1)
    attempt(lambda: s.reorder(*spatial[:keep], *reduces, *spatial[keep:]))
    for loop in spatial[keep:]:
        if rng.random() < 0.7:
            attempt(lambda x=loop: rng.choice([s.vectorize, s.unroll])(x))
    if reduces and rng.random() < 0.7:
        attempt(lambda: s.decompose_reduction(block, reduces[0]))


def random_step(s: Schedule, rng: random.Random) -> None:
    """One primitive with arguments that are often, not always, legal."""
    block = rng.choice(s.blocks())
    loops = s.loops(block)
    name, step = rng.choice(STEPS)
    if loops or name in BLOCK_STEPS:
        step(s, rng, block, loops)


Step = Callable[[Schedule, random.Random, BlockRef, tuple[LoopRef, ...]], Any]


def _split(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    loop = rng.choice(loops)
    match rng.randrange(4):
        case 0:
            s.split(loop, nparts=rng.randint(1, 4))
        case 1:
            s.split(loop, factors=[None, rng.randint(1, 3), rng.randint(1, 3)])
        case 2 if s.extent(loop) is not None:
            s.split(loop, factors=s.sample_perfect_tile(loop, 2, 8))
        case _:
            s.split(loop, factor=rng.randint(1, 6))


def _fuse(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    start = rng.randrange(len(loops))
    s.fuse(*loops[start : start + rng.randint(2, 3)])


def _reorder(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    s.reorder(*rng.sample(loops, rng.randint(1, len(loops))))


def move_to_a_reader(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    consumers = s.consumers(block)
    target = rng.choice(consumers or s.blocks())
    s.compute_at(block, rng.choice(s.loops(target) or ["none"]))


def _reverse_move(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    producers = s.producers(block)
    target = rng.choice(producers or s.blocks())
    s.reverse_compute_at(block, rng.choice(s.loops(target) or ["none"]))


def _cache_read(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    buffers = [*s.func.params, *s.func.buffers]
    s.cache_read(block, rng.choice(buffers).name, rng.choice(["global", "local"]))


def _layout(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    buffer = rng.choice(list(s.func.buffers) or [None])
    if buffer is None:
        return
    writer = next((b for b in s.blocks() if buffer in written_buffers(s.get(b))), block)
    maps: dict[int, list[Callable[..., Any]]] = {
        1: [lambda i: (i // 4, i % 4), lambda i: (i % 3, i // 3)],
        2: [lambda i, j: (j, i), lambda i, j: (i, j // 2, j % 2), lambda i, j: (i // 3, j, i % 3)],
        3: [lambda i, j, k: (k, i, j), lambda i, j, k: (i // 2, j, k, i % 2), lambda i, j, k: (i, j * 16 + k)],
    }
    s.transform_layout(writer, rng.choice(maps[len(buffer.shape)]) if len(buffer.shape) < 4 else lambda *i: i[::-1])


def _pad(s: Schedule, rng: random.Random, block: BlockRef, loops: tuple[LoopRef, ...]) -> None:
    s.pad(block, [rng.choice([1, 1, 2, 4]) for _ in s.get(block).iters])


STEPS: tuple[tuple[str, Step], ...] = (
    ("split", _split),
    ("split", _split),
    ("fuse", _fuse),
    ("reorder", _reorder),
    ("reorder", _reorder),
    ("unroll", lambda s, rng, block, loops: s.unroll(rng.choice(loops))),
    ("vectorize", lambda s, rng, block, loops: s.vectorize(rng.choice(loops))),
    ("parallel", lambda s, rng, block, loops: s.parallel(rng.choice(loops))),
    ("annotate", lambda s, rng, block, loops: s.annotate(rng.choice(loops), Unroll(rng.randint(1, 3)))),
    ("compute_at", move_to_a_reader),
    ("compute_at", move_to_a_reader),
    ("reverse_compute_at", _reverse_move),
    ("compute_inline", lambda s, rng, block, loops: s.compute_inline(block)),
    ("reverse_compute_inline", lambda s, rng, block, loops: s.reverse_compute_inline(block)),
    ("decompose_reduction", lambda s, rng, block, loops: s.decompose_reduction(block, rng.choice(loops))),
    ("set_scope", lambda s, rng, block, loops: s.set_scope(block, rng.choice(["local", "global"]))),
    ("cache_write", lambda s, rng, block, loops: s.cache_write(block, rng.choice(["local", "global"]))),
    ("cache_read", _cache_read),
    ("rfactor", lambda s, rng, block, loops: s.rfactor(block, rng.choice(loops), rng.randint(-2, 1))),
    ("rfactor", lambda s, rng, block, loops: s.rfactor(block, rng.choice(loops), 0)),
    ("expand", lambda s, rng, block, loops: s.expand(block)),
    ("expand", lambda s, rng, block, loops: s.expand(block)),
    ("transform_layout", _layout),
    ("pad", _pad),
)
BLOCK_STEPS = frozenset(
    {"compute_inline", "reverse_compute_inline", "set_scope", "cache_write", "cache_read", "expand"}
)
