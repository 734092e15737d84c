"""Native code of a meeting, which is a barrier: each rank increases its counter, and waits until all others have done
so.

A rank's line in shared memory holds the number of meetings that it has reached. A waiting rank first spins, then yields
its core between reads, and finally sleeps (on a futex), since ranks can outnumber cores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from tilewright.live.broker.signals import ALL, copy, define_sleeping, least, now
from tilewright.native.assembler import I32, I64, PTR, VOID, Module
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.runtime.layout import Struct
from tilewright.support.classes import dataclass

PAGE = 4096
HEADER = Struct("magic", "abi", "size", "ranks", "window", "broken")
BELL = Struct("bell", "asleep", offset=128)
"""`bell` is changed to wake ranks that sleep; `asleep` is their number."""
LINE_SIZE = 256
"""Bytes of a rank's line, in cache lines of its own; the first word is the number of meetings that it has reached."""
LINES_AT = PAGE
"""Offset, in bytes, of the first rank's line."""

LOOKS, YIELDS = 200, 200
"""Reads without a pause, and reads between which the core is yielded, before a rank sleeps."""
NAP_NS = 5_000_000
"""The longest sleep of a rank before it checks again, in nanoseconds."""
OVER = 1
"""The result of `tw_await` and `tw_meet` if the timeout passes before the other ranks come."""
DIFFERENT = 2
"""The result of `tw_show` if the ranks' calls differ."""
DIED, ABSENT = 1, 2
"""The reasons that a rank states when it breaks its group: another one has died or left, or did not come in time."""
WORDS = 5
"""The number of words that encode a call."""
PLACE = Struct("header*", "rank", "ranks", "timeout", "window*", "other_window", "table*", "other_table")
"""A rank as `tw_reduce` is told of it, once: addresses of the shared memory, and for each turn of the rank's window and
of the table of all ranks' windows."""


def meeting_text() -> str:
    """The LLVM text of six functions.

    `tw_await(header, word, count, timeout)` waits until a shared word is at least `count` and gives 0, or OVER after
    `timeout` nanoseconds. `tw_meet(header, rank, ranks, count, timeout)` says that `rank` has come to `count`
    meetings and awaits all others; it may be called again with an equal count. `tw_show(header, rank, ranks, count,
    timeout, words, line, window, data, nbytes)` copies what this rank calls (five words, to offset `line` of its line;
    none if `words` is null) and its data to its window, meets, and compares the words with those of all others; it
    gives OVER, or DIFFERENT. `tw_reduce(place, count, turn, words, line, data, nbytes, kernel, elements)` shows data in
    the window of a turn likewise, and reduces what all have shown to it, by a kernel of `collective/kernels.py`.
    `tw_post(header, word, count)` stores a word after all that was stored before it; `tw_ring(header)` wakes ranks that
    sleep.
    """
    m = Module(host_triple())
    define_sleeping(m)
    with m.function("tw_ring", I64, [("header", PTR)]) as (f, (header,)):
        with f.when(f.load(I64, header + BELL.asleep, order="seq_cst").ne(0)):
            f.modify("add", header + BELL.bell, 1, I32)
            f.call(VOID, "tw_wake", header + BELL.bell, (I64, 1 << 30), (I64, ALL))
        f.ret(0)
    with m.function("tw_post", I64, [("header", PTR), ("word", PTR), ("count", I64)]) as (f, (header, word, count)):
        f.store(count, word, order="seq_cst")
        f.call(I64, "tw_ring", header)
        f.ret(0)
    with m.function("tw_await", I64, [(n, PTR if n in ("header", "word") else I64) for n in _AWAIT]) as (f, values):
        header, word, count, timeout = values
        looks, until = f.var(I64, 0), f.var(I64, 0)
        with f.loop() as waiting:
            waiting.leave_if(f.load(I64, word, order="seq_cst") >= count)
            looks.add(1)
            with f.when(looks.get() <= LOOKS):
                f.pause()
            with f.when(looks.get() > LOOKS):
                with f.when(until.get().eq(0)):
                    until.set(now(f) + timeout)
                with f.when(now(f) >= until.get()):
                    f.ret(OVER)
                with f.when(looks.get() <= LOOKS + YIELDS):
                    f.call(I32, "sched_yield")
                with f.when(looks.get() > LOOKS + YIELDS):
                    f.modify("add", header + BELL.asleep, 1)
                    heard = f.load(I32, header + BELL.bell, order="seq_cst")
                    with f.when(f.load(I64, word, order="seq_cst") < count):
                        end = least(f, until.get(), now(f) + NAP_NS)
                        f.call(I64, "tw_sleep", header + BELL.bell, heard.cast(I64), end, (I64, ALL))
                    f.modify("sub", header + BELL.asleep, 1)
        f.ret(0)
    with m.function("tw_meet", I64, [(n, PTR if n == "header" else I64) for n in _MEET]) as (f, values):
        header, rank, ranks, count, timeout = values
        lines = header + LINES_AT
        own = lines + rank * LINE_SIZE
        with f.when(f.load(I64, own, order="seq_cst").ne(count)):
            f.store(count, own, order="seq_cst")
            f.call(I64, "tw_ring", header)
        with f.each(ranks) as other:
            with f.when(f.call(I64, "tw_await", header, lines + other * LINE_SIZE, count, timeout).ne(0)):
                f.ret(OVER)
        f.ret(0)
    with m.function("tw_show", I64, [(n, PTR if n in _POINTERS else I64) for n in _SHOW]) as (f, values):
        header, rank, ranks, count, timeout, words, line, window, data, nbytes = values
        lines = header + LINES_AT
        own = lines + (rank * LINE_SIZE + line)
        with f.when(words.cast(I64).ne(0)):
            copy(f, own, words, f.value(8 * WORDS, I64))
        with f.when(nbytes.ne(0)):
            copy(f, window, data, nbytes)
        with f.when(f.call(I64, "tw_meet", header, rank, ranks, count, timeout).ne(0)):
            f.ret(OVER)
        with f.when(words.cast(I64).ne(0)), f.each(ranks) as other:
            theirs = lines + (other * LINE_SIZE + line)
            for k in range(WORDS):
                with f.when(theirs[8 * k].ne(words[8 * k])):
                    f.ret(DIFFERENT)
        f.ret(0)
    with m.function("tw_reduce", I64, [(n, PTR if n in _POINTERS else I64) for n in _REDUCE]) as (f, values):
        place, count, turn, words, line, data, nbytes, kernel, elements = values
        header = place[PLACE.header]
        rank, ranks, timeout = (place[at] for at in (PLACE.rank, PLACE.ranks, PLACE.timeout))
        window, table = (f.load(PTR, place + turn * 8, at) for at in (PLACE.window, PLACE.table))
        shown = f.call(I64, "tw_show", header, rank, ranks, count, timeout, words, line, window, data, nbytes)
        with f.when(shown.ne(0)):
            f.ret(shown)
        f.call(I64, kernel, data, table, ranks, elements)
        f.ret(0)
    return m.text()


_SHOW = ("header", "rank", "ranks", "count", "timeout", "words", "line", "window", "data", "nbytes")
_REDUCE = ("place", "count", "turn", "words", "line", "data", "nbytes", "kernel", "elements")
_POINTERS = ("header", "words", "window", "data", "place", "kernel")
_AWAIT = ("header", "word", "count", "timeout")
_MEET = ("header", "rank", "ranks", "count", "timeout")


@dataclass(frozen=True, slots=True)
class Meetings:
    """The native functions of `meeting_text`, callable from Python with addresses and counts as integers. They release
    the GIL."""

    meet: Callable[[int, int, int, int, int], int]
    show: Callable[[int, int, int, int, int, int, int, int, int, int], int]
    reduce: Callable[[int, int, int, int, int, int, int, int, int], int]
    wait: Callable[[int, int, int, int], int]
    post: Callable[[int, int, int], int]
    ring: Callable[[int], int]


@cache
def meetings() -> Meetings:
    """The linked code of `meeting_text`, which is never unloaded, since threads may wait in it while the interpreter
    ends."""
    names = ["tw_meet", "tw_show", "tw_reduce", "tw_await", "tw_post", "tw_ring"]
    library = Library({"meeting": compile_text(meeting_text)}, names)
    library.keep_forever()
    word = ctypes.c_int64
    return Meetings(
        ctypes.CFUNCTYPE(word, *[word] * 5)(library["tw_meet"]),
        ctypes.CFUNCTYPE(word, *[word] * 10)(library["tw_show"]),
        ctypes.CFUNCTYPE(word, *[word] * 9)(library["tw_reduce"]),
        ctypes.CFUNCTYPE(word, *[word] * 4)(library["tw_await"]),
        ctypes.CFUNCTYPE(word, *[word] * 3)(library["tw_post"]),
        ctypes.CFUNCTYPE(word, word)(library["tw_ring"]),
    )


def broken_by(broken: int) -> str:
    """The reason why a group is broken, from the word that encodes it."""
    by, culprit, why = (broken & 0xFFFF) - 1, (broken >> 16 & 0xFFFF) - 1, broken >> 32
    if culprit < 0 or why not in (DIED, ABSENT):
        return f"rank {by} gave the group up"
    return f"rank {culprit} {'has died or left' if why == DIED else 'did not come in time'}, says rank {by}"
