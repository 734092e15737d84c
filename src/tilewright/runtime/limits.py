"""Limits of loops whose end depends on data: they end after too many iterations, after too long a time, or by a signal.

`tw_run` counts down a budget of iterations. When it is used up, one thread calls `tw_poll`, which grants more: twice as
many as before, until these take about a millisecond, so that the check costs next to nothing. `tw_poll` also looks for
signals, whose Python handlers decide whether the call ends (Ctrl-C does).
"""

from __future__ import annotations

from tilewright.native.assembler import I32, I64, PTR, VOID, Function, Module, Value
from tilewright.runtime.layout import Struct
from tilewright.support.errors import CallError

MAX_ITERATIONS = 10_000_000
"""The most iterations of such loops in one call, unless the caller sets another limit."""
ENDLESS, TIMED_OUT, INTERRUPTED = 4, 5, 6
"""The status of a call that `max_iterations`, `time_limit` or the handler of a signal has ended."""
DEVICE = 1 << 20
"""The status of a call in which the device failed; larger than the number of any check."""
REFUSED = 64
"""The status of a call that its first check ended; later checks have consecutive numbers."""
CONTROL_FIELDS = ("limit", "status", "poll", "told", "budget", "began", "polled", "looked", "stride", "got")
CONTROL = Struct(*CONTROL_FIELDS)
"""The control words of a call in flight.

limit     iterations that all such loops of a call may have
status    why the call was ended, or 0
poll      the address of `tw_poll`
told      what it said last
budget    nanoseconds after which a call is ended; 0 for never
began, polled, looked    when the first loop began, when the last poll was, and when signals were last looked for
stride    iterations that the last poll allowed
got       the number by which a check ended the call, an i64 or f64
"""
POLL_NS = 1_000_000
"""The time in nanoseconds that one grant of iterations should take."""
SIGNAL_NS = 50_000_000
"""The interval in nanoseconds at which signals are looked for, which needs the GIL."""


def now(f: Function) -> Value:
    """Emit code that reads a monotonic clock, in nanoseconds."""
    spec = f.space(16)
    f.call(I32, "clock_gettime", (I32, 1), spec)
    return spec[0] * 1_000_000_000 + spec[8]


def define_time_limit(m: Module) -> None:
    """Define `tw_poll(control, spent)`, which loops call now and then: it returns the number of further iterations
    until the next call, for a program call that has made `spent`; 0 ends the call, and `status` says why."""
    with m.function("tw_poll", I64, [("control", PTR), ("spent", I64)]) as (f, (control, spent)):
        left = control[CONTROL.limit] - spent
        _end_if(f, control, left <= 0, ENDLESS)
        time = now(f)
        stride = f.var(I64, 1)
        stride.set(1)
        with f.when(spent.eq(0)):
            control[CONTROL.began] = time
            control[CONTROL.looked] = time
        with f.when(spent > 0):
            took = time - control[CONTROL.polled]
            before = control[CONTROL.stride]
            with f.when(took < POLL_NS):
                stride.set(before << 1)
            with f.when(took >= POLL_NS), f.when(before > 1):
                stride.set(before >> 1)
        iteration_limit = control[CONTROL.budget]
        with f.when(iteration_limit > 0):
            _end_if(f, control, time - control[CONTROL.began] >= iteration_limit, TIMED_OUT)
        with f.when(time - control[CONTROL.looked] >= SIGNAL_NS):
            control[CONTROL.looked] = time
            _end_if(f, control, f.call(I64, "tw_interrupted").ne(0), INTERRUPTED)
        with f.when(stride.get() > left):
            stride.set(left)
        control[CONTROL.stride] = stride.get()
        control[CONTROL.polled] = time
        f.ret(stride.get())


def _end_if(f: Function, control: Value, condition: Value, status: int) -> None:
    with f.when(condition):
        control[CONTROL.status] = status
        f.ret(0)


def define_signals(m: Module) -> None:
    """Add `tw_interrupted()`: run the Python handlers of pending signals; returns 1 if one raised an exception, which
    the interpreter raises when the call returns.

    Handlers only run in Python's main thread. Threads that Python does not know never wait for the GIL.
    """
    m.variable("tw_raised", 24)
    with m.function("tw_raise_again", I32, [("kept", PTR)], local=True) as (f, (retained,)):
        f.call(VOID, "PyErr_Restore", *(f.load(PTR, retained, 8 * k) for k in range(3)))
        f.ret(-1, I32)
    with m.function("tw_interrupted", I64, []) as (f, _):
        with f.when(f.call(PTR, "PyGILState_GetThisThreadState").eq(0)):
            f.ret(0)
        state = f.call(I32, "PyGILState_Ensure")
        raised = f.var(I64, 0)
        raised.set(0)
        with f.when(f.call(I32, "PyErr_CheckSignals").ne(0)):
            retained = f.symbol("tw_raised")
            f.call(VOID, "PyErr_Fetch", retained, retained + 8, retained + 16)
            f.call(I32, "Py_AddPendingCall", f.symbol("tw_raise_again"), retained)
            raised.set(1)
        f.call(VOID, "PyGILState_Release", state)
        f.ret(raised.get())


SIGNAL_FUNCTIONS = (
    "PyGILState_GetThisThreadState", "PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch",
    "PyErr_Restore", "Py_AddPendingCall",
)  # fmt: skip

__all__ = [
    "CONTROL",
    "CONTROL_FIELDS",
    "ENDLESS",
    "INTERRUPTED",
    "TIMED_OUT",
    "REFUSED",
    "SIGNAL_FUNCTIONS",
    "define_time_limit",
    "define_signals",
    "now",
]


def check_iterations(most: object) -> None:
    """Raise CallError unless `most`, a limit on iterations, is an int from 0 to 2**62 - 1."""
    if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most < 1 << 62:
        raise CallError("no number of iterations", expected="0 to 2**62 - 1", got=repr(most))


def check_time_limit(seconds: object) -> None:
    """Raise CallError unless `seconds` is None or a number above 0 and below 1e9."""
    fits = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < 1e9
    if seconds is not None and not fits:
        raise CallError("no time limit", expected="seconds, more than 0 and less than 1e9, or None", got=repr(seconds))
