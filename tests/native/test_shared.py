"""Shared objects that we write ourselves: what loaders fill in, data, and images that are refused."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tilewright.native.link import compile_text, host_triple
from tilewright.native.shared import shared_object
from tilewright.support.errors import CompileError

pytestmark = pytest.mark.skipif(
    host_triple() != "x86_64-unknown-linux-gnu", reason="libraries are written for x86-64 Linux"
)

TEXT = """
@numbers = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
@count = global i64 5
@nothing = internal global [1000 x i64] zeroinitializer
@places = global [2 x ptr] [ptr @count, ptr @strlen]
declare i64 @strlen(ptr)
declare double @cos(double)
define i64 @pick(i64 %i) { %p = getelementptr i64, ptr @numbers, i64 %i %v = load i64, ptr %p ret i64 %v }
define i64 @next() {
  %p = load ptr, ptr @places
  %v = load i64, ptr %p
  %w = add i64 %v, 1
  store i64 %w, ptr @count
  %z = getelementptr i64, ptr @nothing, i64 %w
  %a = load i64, ptr %z
  %r = add i64 %a, %w
  ret i64 %r
}
define i64 @through(ptr %s) {
  %p = getelementptr ptr, ptr @places, i64 1
  %f = load ptr, ptr %p
  %v = call i64 %f(ptr %s)
  ret i64 %v
}
define i64 @length(ptr %s) { %v = call i64 @strlen(ptr %s) ret i64 %v }
define double @cosine(double %x) { %v = call double @cos(double %x) ret double %v }
"""
NAMES = ("pick", "next", "through", "length", "cosine")


def load(folder: Path, name: str = "lib.so") -> ctypes.CDLL:
    place = folder / name
    place.write_bytes(shared_object(compile_text(TEXT, cache=False), NAMES, name))
    return ctypes.CDLL(str(place))


def test_code_data_and_functions_of_the_c_library(tmp_path: Path) -> None:
    library = load(tmp_path)
    assert [library.pick(ctypes.c_int64(k)) for k in range(4)] == [10, 20, 30, 40]
    assert [library.next(), library.next()] == [6, 7]
    assert library.length(b"twelve bytes") == library.through(b"twelve bytes") == 12
    library.cosine.restype, library.cosine.argtypes = ctypes.c_double, [ctypes.c_double]
    assert library.cosine(0.0) == 1.0


def test_two_copies_have_their_own_variables(tmp_path: Path) -> None:
    first, second = load(tmp_path, "first.so"), load(tmp_path, "second.so")
    assert [first.next(), first.next(), second.next()] == [6, 7, 6]


def test_what_is_no_object_or_lacks_a_function_is_refused() -> None:
    with pytest.raises(CompileError, match="no shared object"):
        shared_object(b"\x7fELF" + bytes(100), ["f"], "x.so")
    with pytest.raises(CompileError, match="missing is not defined"):
        shared_object(compile_text(TEXT, cache=False), ["missing"], "x.so")
