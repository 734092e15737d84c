"""Native code by the builder: what it computes, compared with Python, and what it refuses."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tilewright.native.assembler import I32, I64, PTR, Function, Module, Value
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.runtime.layout import Memory, Struct, function

LIST = Struct("next*", "value")


def test_a_list_is_followed_through_its_fields() -> None:
    m = Module(host_triple())
    with m.function("walk", I64, [("first", PTR)]) as (f, (first,)):
        total, item = f.var(I64, 0), f.var(PTR, first)
        with f.loop() as loop:
            here = item.get()
            loop.leave_if(here.eq(0))
            total.add(here[LIST.value])
            here[LIST.value] *= 2
            item.set(here[LIST.next])
        f.ret(total.get())
    library = Library({"walk": compile_text(m.text(), cache=False)}, ["walk"])
    items = [Memory(LIST.size) for _ in range(3)]
    for k, item in enumerate(items):
        item[LIST.next] = items[k + 1].address if k < 2 else 0
        item[LIST.value] = 10**k
    walk = function(library["walk"], ctypes.c_int64, ctypes.c_void_p)
    assert [walk(items[0].address), walk(items[1].address)] == [111, 220]
    assert [item[LIST.value] for item in items] == [2, 40, 400]


def test_numbers_stand_on_either_side() -> None:
    m = Module(host_triple())
    with m.function("fill", I64, [("out", PTR), ("x", I64), ("n", I64)]) as (f, (out, x, n)):
        for k, value in enumerate((7 - x, -1 << n, ~x, x // n, x % n, x >> n)):
            out[8 * k] = value
        out[n * 8 + 24] |= 1
        f.ret(f.swap_if(out, 7 - x, n).cast(I64) + f.modify("xchg", out + 8, 5))
    library = Library({"fill": compile_text(m.text(), cache=False)}, ["fill"])
    memory, wide = np.full(7, 6), 1 << 64
    fill = function(library["fill"], ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    for x, n in ((5, 3), (-5, 3), (1 << 40, 3)):
        memory[6] = 6
        assert fill(memory.ctypes.data, x, n) == 1 - (1 << n)
        unsigned = [x % wide // n, x % wide % n, (x % wide >> n) % wide]
        expected = [n, 5, ~x, *unsigned, 7]
        assert [v % wide for v in memory.tolist()] == [v % wide for v in expected]


def test_a_field_is_a_number_for_python() -> None:
    assert (LIST.next, LIST.value, LIST.size, LIST.names) == (0, 8, 16, ("next", "value"))
    with pytest.raises(AttributeError):
        _ = LIST.head


@pytest.mark.parametrize("value", ["i32", "wrong field"])
def test_values_of_other_types_are_refused(value: str) -> None:
    def write(f: Function, p: Value) -> None:
        if value == "i32":
            p[0] = f.load(I32, p)
        else:
            f.ret(p[LIST.next] + p[LIST.value] < p[LIST.value], I64)

    m = Module(host_triple())
    with pytest.raises(TypeError, match=r"is i32|is i64, not ptr"):
        with m.function("wrong", I64, [("p", PTR)]) as (f, (p,)):
            write(f, p)


def summing() -> str:
    m = Module(host_triple())
    with m.function("sum", I64, [("first", PTR), ("n", I64)]) as (f, (first, n)):
        total = f.var(I64, 0)
        with f.each(n) as i:
            total.add(first[i * 8] * (i + 3))
        f.ret(total.get())
    return m.text()


def test_text_by_a_function_is_compiled_at_the_stated_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    images = {speed: compile_text(summing, speed=speed) for speed in (0, 2)}
    assert images == {speed: compile_text(summing(), speed=speed, cache=False) for speed in (0, 2)}
    assert images[0] != images[2]
