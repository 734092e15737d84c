"""How many threads the calls of a layout use: as many as were fastest in a trial on the calls themselves.

What several threads cost is known only where calls are made: a worker that sleeps must be woken, which takes 30 to 50
µs (a 2-core Sapphire Rapids, 2026-11-23: `python -m benchmarks.bench_threads --random 100`), while one that still
spins since the call before starts within a fraction of a microsecond. So what pays depends on the program, on its
sizes, and on what its caller does between two calls. Results are the same with any number.

The first calls use all threads that the user allows, the next ones half of them, and so on down to one, `CALLS` each.
Of each number the two longest calls are left out: the first one wakes and warms, another one may be interrupted. A
number of threads must be faster than a smaller one by a sixteenth. Then calls use the fastest number until the next
trial, which comes when so many calls have been made that all trials together cost one `SHARE`th of the time; or, where
several threads are used, when calls take much longer than in the trial: the caller makes pauses now, or the cores have
other work. Where another process takes a core now and then, a few calls wait for milliseconds and most for nothing, so
that trials do not see it: if calls with several threads are slower on average than with one, one is used for a while.

Of calls that take a millisecond and more with all threads one with one thread is enough, and eight would cost too much.
It must not be left out: where others use the cores, a call of microseconds takes many milliseconds with two threads, of
which each gives its core away while it waits for the other one, and the system gives it to another process for long.

Callers at the same time may lose each other's counts, which makes a trial a little longer.
"""

from __future__ import annotations

from tilewright.native.assembler import I64, PTR, VOID, Function, Module, Value
from tilewright.runtime.layout import Struct

CALLS = 8
"""Calls with each number of threads in a trial."""
COUNTED = CALLS - 2
"""The number of these calls that are evaluated."""
LARGE_NS = 1_000_000
"""A call that takes at least so many nanoseconds with all threads is only tried once with one thread."""
SHARE = 512
"""Trials may take this fraction of the time of all calls, 1 / SHARE."""
EACH = 8
"""One in so many calls with several threads is timed; a power of two."""
SLOW = 3
"""After so many timed calls in succession that take half as long again as in the trial, the next trial begins."""
MEAN = 32
"""Timed calls whose mean is compared."""
RESTING_CALLS = 1 << 13
"""Calls with one thread, if that is faster on average, before the next trial."""
MAX_CALLS = 1 << 16
"""The most calls between two trials, as the caller's pattern may change."""

TRIAL_FIELDS = (
    "threads",  # of calls outside a trial
    "wait",  # calls until the next trial
    "turn",  # calls made of those with `tried` threads
    "tried",  # threads of the present calls of a trial; 0 at its begin
    "total", "longest", "second",  # nanoseconds of these calls
    "best",  # nanoseconds of those calls that count, with `threads` threads
    "one",  # nanoseconds of those calls that count, with one thread
    "slow",  # timed calls in succession that took much longer
    "timed", "sum",  # timed calls since the mean was looked at, and their nanoseconds
    "spent", "numbers",  # nanoseconds of all such calls of the trial, and how many numbers of threads were tried
)  # fmt: skip
TRIAL = Struct(*TRIAL_FIELDS)
"""The state of a layout's trials, zeroed at first."""
_OF_A_NUMBER = (TRIAL.turn, TRIAL.total, TRIAL.longest, TRIAL.second)


def _turn(m: Module) -> None:
    """Define `tw_turn`: the number of threads that the next call of a trial uses, at most `most`, the user's limit."""
    with m.function("tw_turn", I64, [("trial", PTR), ("most", I64)]) as (f, (trial, most)):
        tried = trial[TRIAL.tried]
        with f.when(tried > 0), f.when(tried <= most):
            f.ret(tried)
        trial[TRIAL.tried] = most
        for field in (*_OF_A_NUMBER, TRIAL.best, TRIAL.spent, TRIAL.numbers):
            trial[field] = 0
        f.ret(most)


def _note(m: Module) -> None:
    """Define `tw_note`: add the duration `took` of a call to the trial; after CALLS calls go on to another number of
    threads, or end the trial."""
    params = [("trial", PTR), ("most", I64), ("took", I64)]
    with m.function("tw_note", VOID, params) as (f, (trial, most, took)):
        trial[TRIAL.total] += took
        longest = trial[TRIAL.longest]
        with f.when(took > longest):
            trial[TRIAL.second] = longest
            trial[TRIAL.longest] = took
        with f.when(took <= longest), f.when(took > trial[TRIAL.second]):
            trial[TRIAL.second] = took
        trial[TRIAL.turn] += 1
        tried = trial[TRIAL.tried]
        with f.when(tried < most), f.when(trial[TRIAL.best] >= COUNTED * LARGE_NS):
            _end(f, trial, tried, took * COUNTED)
        with f.when(trial[TRIAL.turn] < CALLS):
            f.ret()
        slow = trial[TRIAL.longest] + trial[TRIAL.second]
        time = trial[TRIAL.total] - slow
        with f.when(tried >= most):
            _count(f, trial, time)
            _take(f, trial, tried, time)
            with f.when(time >= COUNTED * LARGE_NS), f.when(most > 1):
                _next(f, trial, f.value(1, I64))
        with f.when(tried <= 1):
            _end(f, trial, tried, time)
        with f.when(tried < most):
            _count(f, trial, time)
            _compare(f, trial, tried, time)
        _next(f, trial, tried >> 1)


def _next(f: Function, trial: Value, threads: Value) -> None:
    """Emit code that continues the trial with `threads` threads."""
    trial[TRIAL.tried] = threads
    for field in _OF_A_NUMBER:
        trial[field] = 0
    f.ret()


def _end(f: Function, trial: Value, tried: Value, time: Value) -> None:
    """Emit code that ends the trial of `tried` threads, of which `time` is the duration with one thread."""
    _count(f, trial, time)
    _compare(f, trial, tried, time)
    trial[TRIAL.one] = time
    trial[TRIAL.tried] = 0
    trial[TRIAL.wait] = f.call(I64, "tw_until_next", trial)
    f.ret()


def _count(f: Function, trial: Value, time: Value) -> None:
    """Emit code that adds `time`, for one number of threads, to the time that the trial has taken."""
    trial[TRIAL.spent] += time
    trial[TRIAL.numbers] += 1


def _compare(f: Function, trial: Value, tried: Value, time: Value) -> None:
    """Emit code that selects `tried` threads, whose calls took `time`, unless larger numbers were faster by more than a
    sixteenth."""
    with f.when(trial[TRIAL.best] * 16 >= time * 15):
        _take(f, trial, tried, time)


def _check(m: Module) -> None:
    """Define `tw_check`, called for some calls outside of trials, which took `took`: it begins a trial if calls have
    become slow, and selects one thread if that is faster on average."""
    with m.function("tw_check", VOID, [("trial", PTR), ("took", I64)]) as (f, (trial, took)):
        timed, total = trial[TRIAL.timed] + 1, trial[TRIAL.sum] + took
        trial[TRIAL.timed] = timed
        trial[TRIAL.sum] = total
        with f.when(timed >= MEAN):
            trial[TRIAL.timed] = trial[TRIAL.sum] = 0
            one = trial[TRIAL.one]
            with f.when(one > 0), f.when(total * COUNTED > one * MEAN):
                trial[TRIAL.threads] = 1
                trial[TRIAL.wait] = RESTING_CALLS
                f.ret()
        with f.when(took * (2 * COUNTED) <= trial[TRIAL.best] * 3):
            trial[TRIAL.slow] = 0
            f.ret()
        slow = trial[TRIAL.slow] + 1
        trial[TRIAL.slow] = slow
        with f.when(slow >= SLOW):
            trial[TRIAL.slow] = trial[TRIAL.wait] = 0
        f.ret()


def _take(f: Function, trial: Value, tried: Value, time: Value) -> None:
    """Emit code that selects `tried` threads, whose calls took `time`."""
    trial[TRIAL.threads] = tried
    trial[TRIAL.best] = time


def _until_next(m: Module) -> None:
    """Define `tw_until_next`: the number of calls until the next trial, which grows with the time that this one
    lost."""
    with m.function("tw_until_next", I64, [("trial", PTR)], local=True) as (f, (trial,)):
        best = trial[TRIAL.best] + 1  # never zero
        lost = trial[TRIAL.spent] - best * trial[TRIAL.numbers]
        with f.when(lost <= 0):
            f.ret(SHARE)
        calls = lost * (SHARE * COUNTED) // best
        with f.when(calls > MAX_CALLS):
            f.ret(MAX_CALLS)
        f.ret(calls + SHARE)


def define_trials(m: Module) -> None:
    """Add to the module `m` the functions that try numbers of threads on calls: `tw_turn` chooses the number for a call
    of a trial, `tw_note` records the call's time, `tw_check` starts the next trial when calls become slow."""
    for part in (_turn, _until_next, _note, _check):
        part(m)
