"""Native code that agents and servers share: clocks, atomics, sleeping and waking."""

from __future__ import annotations

from tilewright.live.broker.structs import READY_AT, WORDS
from tilewright.native.assembler import I1, I32, I64, PTR, VOID, Function, Module, Value
from tilewright.native.link import host_triple
from tilewright.runtime.threads import SYS_FUTEX

_WAIT_BITSET, _WAKE_BITSET = 9, 10
ALL = 0xFFFFFFFF
"""The mask of all sleepers on a word."""
EINTR, ETIMEDOUT = 4, 110


def now(f: Function) -> Value:
    spec = f.space(16)
    f.call(I32, "clock_gettime", (I32, 1), spec)
    return spec[0] * 1_000_000_000 + spec[8]


def count_bits(f: Function, word: Value) -> Value:
    return f.call(I64, "llvm.ctpop.i64", word)


def lowest_bit(f: Function, word: Value) -> Value:
    return f.call(I64, "llvm.cttz.i64", word, (I1, 1))


def least(f: Function, a: Value, b: Value | int) -> Value:
    return f.call(I64, "llvm.smin.i64", a, f.value(b, I64))


def most(f: Function, a: Value, b: Value | int) -> Value:
    return f.call(I64, "llvm.smax.i64", a, f.value(b, I64))


def copy(f: Function, to: Value, source: Value, nbytes: Value) -> None:
    f.call(PTR, "memcpy", to, source, nbytes)


def _futex_number() -> int:
    return SYS_FUTEX[host_triple().split("-")[0]]


def define_sleeping(m: Module) -> None:
    """Define `tw_sleep(word, value, until, mask)`: wait while the word is `value`, until a time or a wake-up by `mask`;
    returns 0, or the reason for the end."""
    params = [("word", PTR), ("value", I64), ("until", I64), ("mask", I64)]
    with m.function("tw_sleep", I64, params, local=True) as (f, (word, value, until, mask)):
        spec = f.space(16)
        seconds = f.let(I64, f"sdiv i64 {until.text}, 1000000000")
        spec[0] = seconds
        spec[8] = until - seconds * 1_000_000_000
        number, null = _futex_number(), f.value(0, PTR)
        result = f.call(I64, "syscall", (I64, number), word, (I64, _WAIT_BITSET), value, spec, null, mask)
        with f.when(result.eq(0)):
            f.ret(0)
        f.ret(f.load(I32, f.call(PTR, "__errno_location")).cast(I64))
    with m.function("tw_wake", VOID, [("word", PTR), ("count", I64), ("mask", I64)], local=True) as (f, values):
        word, count, mask = values
        number, null = _futex_number(), f.value(0, PTR)
        f.call(I64, "syscall", (I64, number), word, (I64, _WAKE_BITSET), count, null, null, mask)
        f.ret()


def define_ready(m: Module) -> None:
    with m.function("tw_ready", I64, [("header", PTR)], local=True) as (f, (header,)):
        count = f.var(I64, 0)
        with f.each(WORDS) as w:
            count.add(count_bits(f, f.load(I64, header + READY_AT, w * 8, order="seq_cst")))
        f.ret(count.get())
