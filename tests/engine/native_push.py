"""Pushes by native code: how long they take, one by one, in nanoseconds."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from tilewright.engine import Engine
from tilewright.engine.native import Native, code
from tilewright.engine.native_code import REQUEST
from tilewright.native.assembler import I64, PTR, Module
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.runtime.layout import function
from tilewright.runtime.limits import now


def _text() -> str:
    """`tw_pushes(engine, request, times, count)`."""
    m = Module(host_triple())
    params = [("engine", PTR), ("request", PTR), ("times", PTR), ("count", I64)]
    with m.function("tw_pushes", I64, params) as (f, (engine, request, times, count)):
        with f.each(count) as k:
            begin = now(f)
            f.call(I64, "tw_engine_push", engine, request)
            f.store(now(f) - begin, times, k * 8)
        f.ret(0)
    with m.function("tw_increment", I64, [("word", PTR)]) as (f, (word,)):
        f.store(f.load(I64, word) + 1, word)
        f.ret(0)
    with m.function("tw_status", I64, [("word", PTR)]) as (f, (word,)):
        f.ret(f.load(I64, word))
    return m.text()


@cache
def library() -> Library:
    """`tw_pushes`; `tw_increment(word)`, which adds one without care for other threads; `tw_status(word)` gives it."""
    exports = ["tw_pushes", "tw_increment", "tw_status"]
    linked = Library({"pushes": compile_text(_text())}, exports, {"tw_engine_push": code().push_address})
    linked.keep_forever()
    return linked


def nanoseconds(engine: Engine, count: int) -> tuple[np.ndarray, int]:
    """The times of so many pushes of `tw_increment`, each of which reads a variable and writes another, and the word
    that these have incremented when all have ended."""
    word = np.zeros(1, np.int64)
    a, b = engine.variable("a"), engine.variable("b")
    engine.wait(engine.push_native(library()["tw_increment"], word.ctypes.data, [a], [b]))
    core = engine._core
    assert isinstance(core, Native)
    request = np.zeros(REQUEST.size // 8 + 2, np.int64)
    for at, value in (
        (REQUEST.function, library()["tw_increment"]),
        (REQUEST.argument, word.ctypes.data),
        (REQUEST.reads, 1),
        (REQUEST.writes, 1),
        (REQUEST.size, core._place(a)),
        (REQUEST.size + 8, core._place(b)),
    ):
        request[at >> 3] = value
    times = np.zeros(count, np.int64)
    run = function(library()["tw_pushes"], ctypes.c_int64, *[ctypes.c_int64] * 4)
    run(core._address, request.ctypes.data, times.ctypes.data, count)
    engine.wait()
    return times, int(word[0]) - 1
