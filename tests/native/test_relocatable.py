"""Objects joined into one: read back by the linker that the runtime has, and by the system's."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.native.elf import load
from tilewright.native.link import host_triple
from tilewright.native.relocatable import join
from tilewright.native.toolchain import machine_for, parsed
from tilewright.support.errors import CompileError, Error

linux = pytest.mark.skipif(host_triple() != "x86_64-unknown-linux-gnu", reason="ELF of x86-64 is loaded here")
ONE = """
define i64 @one(i64 %x) nounwind {
  %y = call i64 @two(i64 %x)
  ret i64 %y
}
declare i64 @two(i64) nounwind
"""
TWO = """
@t = internal constant [2 x i64] [i64 40, i64 2]
define i64 @two(i64 %x) nounwind {
  %p = getelementptr i64, ptr @t, i64 %x
  %y = load i64, ptr %p
  ret i64 %y
}
"""


def compiled(text: str, triple: str = "x86_64-unknown-linux-gnu") -> bytes:
    machine = machine_for(triple, opt=1, every_target=True)
    return bytes(machine.emit_object(parsed(text, triple, machine, "a test")))


@linux
def test_calls_between_objects_are_bound() -> None:
    joined = join({"one": compiled(ONE), "two": compiled(TWO)}, ["one"])
    assert b".text.one\0" in joined.image and b".text.two\0" in joined.image
    assert joined.needs == ()
    loaded = load([joined.image], ["one"], {})
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(loaded.addresses["one"])(1) == 2
    twice = join({"first": joined.image}, ["one"])  # a joined object is an object
    assert load([twice.image], ["one"], {}).addresses.keys() == {"one"}


@pytest.mark.parametrize("triple", ["x86_64-linux", "aarch64-linux", "riscv64-linux", "thumbv7em-none-eabi", "riscv32"])
def test_every_processor_of_little_endian(triple: str) -> None:
    joined = join({"one": compiled(ONE, triple), "two": compiled(TWO, triple)}, ["one"], {"data": b"abc"})
    assert join({"again": joined.image}, ["one"]).needs == ()


def test_what_does_not_fit_is_refused() -> None:
    one, two = compiled(ONE), compiled(TWO)
    assert join({"one": one}, ["one"]).needs == ("two",)
    with pytest.raises(CompileError, match="defined twice"):
        join({"a": two, "b": two}, [])
    with pytest.raises(CompileError, match="not defined"):
        join({"a": two}, ["three"])
    with pytest.raises(CompileError, match="different processors"):
        join({"a": one, "b": compiled(TWO, "aarch64-linux")}, [])
    with pytest.raises(CompileError, match="not a little-endian ELF"):
        join({"a": b"MZ"}, [])


@cache
def one() -> bytes:
    return compiled(ONE)


@given(st.data())
def test_damaged_objects_end_in_an_error_or_an_object(data: st.DataObject) -> None:
    image = bytearray(one())
    for _ in range(data.draw(st.integers(1, 4))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Error):
        join({"damaged": bytes(image[: data.draw(st.integers(0, len(image)))])}, [])
