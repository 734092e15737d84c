"""The end of loops that only data ends: after too many iterations, after too long a time, or by a signal.

`tw_run` counts iterations down that it was allowed. Where none is left it calls `tw_poll`, in one of its threads, which
allows some more: twice as many as before until those take about a millisecond, so that an iteration itself costs
nothing. Signals are looked for on the way, as only their handlers in Python can say whether they end the call (Ctrl-C
does).
"""

from __future__ import annotations

from tilewright.native.assembler import I32, I64, PTR, VOID, Function, Module, Value
from tilewright.runtime.layout import Struct
from tilewright.support.errors import CallError

MAX_ITERATIONS = 10_000_000
"""Iterations of the loops of one call that only data ends, unless the caller says another number."""
ENDLESS, TIMED_OUT, INTERRUPTED = 4, 5, 6
"""The statuses of a call that was ended: by `max_iterations`, by `time_limit`, by the handler of a signal."""
DEVICE = 1 << 20
"""The status of a call in which the device failed: more than any check's number."""
REFUSED = 64
"""The status of a call that the first check ended, in the order of the steps; more by one for each check after it."""
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
"""Iterations that are allowed at once should take about as long as this."""
SIGNAL_NS = 50_000_000
"""Signals are looked for as often as this: it takes the GIL."""


def now(f: Function) -> Value:
    """Nanoseconds of a clock that only goes forward."""
    spec = f.space(16)
    f.call(I32, "clock_gettime", (I32, 1), spec)
    return spec[0] * 1_000_000_000 + spec[8]


def define_time_limit(m: Module) -> None:
    """Add `tw_poll(control, spent)`: how many more iterations a call may make that was allowed `spent` so far; 0 ends
    it, with `status` saying why. It calls `tw_interrupted`."""
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
    """Add `tw_interrupted()`: run the Python handlers of signals that have come; 1 if one raised an exception, which
    the interpreter raises as soon as the call has returned to it.

    Handlers run in Python's main thread alone. A thread that Python does not know is never made to wait for the GIL.
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
    """Raise CallError unless `most` is an int from 0 to 2**62 - 1: the most iterations that a loop may have."""
    if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most < 1 << 62:
        raise CallError("no number of iterations", expected="0 to 2**62 - 1", got=repr(most))


def check_time_limit(seconds: object) -> None:
    """Raise CallError unless `seconds` is None or a number above 0 and below 1e9."""
    fits = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < 1e9
    if seconds is not None and not fits:
        raise CallError("no time limit", expected="seconds, more than 0 and less than 1e9, or None", got=repr(seconds))
