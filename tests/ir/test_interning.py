"""The table of expressions: one object as long as it is referenced, and no more entries than that needs."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

from tilewright.ir import interning
from tilewright.ir.expr import Var


def test_what_is_gone_leaves_the_table() -> None:
    gc.collect()
    held = Var("held")
    before = len(interning._table)
    for k in range(20 * interning.MAX_DEAD):
        _ = Var(f"passing{k}") + held
    assert len(interning._table) < before + 4 * interning.MAX_DEAD
    assert Var("held") is held


def test_what_is_recreated_before_the_first_has_left_stays() -> None:
    name = "made again"
    first = id(Var(name))  # gone at once, its reference waits
    recomputed = Var(name)
    for k in range(3 * interning.MAX_DEAD):
        _ = Var(f"other{k}")
    assert Var(name) is recomputed and first is not None


def test_threads_get_one_object() -> None:
    def make(_: int) -> list[Var]:
        return [Var(f"shared{k}") for k in range(2000)]

    with ThreadPoolExecutor(4) as pool:
        result = list(pool.map(make, range(4)))
    assert all(a is b for other in result[1:] for a, b in zip(result[0], other, strict=True))


def test_references_share_one_callback() -> None:
    held = [Var(f"referred{k}") for k in range(2)]
    callbacks = [r.__callback__ for r in interning._table.values() if any(r() is v for v in held)]
    assert len(callbacks) == 2 and callbacks[0] is callbacks[1]


def test_what_keys_of_dead_references_held_is_released() -> None:
    inner = Var("inside") + 1
    outer, seen = inner * Var("outside"), weakref.ref(inner)
    del inner, outer
    interning.release()
    assert seen() is None
