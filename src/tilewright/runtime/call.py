"""The native core of a call: find the memory layout for these dimensions, claim an executor, run, give it back.

It touches no Python object, so that it runs without the GIL and serves callers that have none. What it reads is
laid out by `engine.py`:

    model      one per loaded program: addresses, counts, and where the following are
    layout     for one binding of the symbols: output dims, and each temporary's offset in an arena. Shared by calls
               (`users`). They stand in a table by a hash of the symbols' values; values that are not there take the
               place of some that nothing uses (after making `users` very negative), and temporaries are placed for them
               by one of the model's plans (`places.py`). So no call waits for Python because its sizes are new.
    executor   one per call in flight: an arena and a slot table. Any executor whose arena is large enough can load any
               layout (`tag` names the loaded one), so memory is bounded by calls in flight, not by dimensions seen.
    weights    one per slot of the control page (`weights/control.py`), which is private or shared with other processes:
               where the version stands, and addresses of packed parameters. A call pins the current slot and looks
               again whether it still is current; a slot that no call pins and that is not current may be rewritten.

None of these structs is ever freed before the model, so a reader that comes late reads stale data but never freed data,
and notices.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.native.assembler import I1, I64, PTR, VOID, Function, Module, Value
from tilewright.runtime.layout import Struct
from tilewright.runtime.limits import CONTROL_FIELDS, REFUSED, define_signals, define_time_limit, now
from tilewright.runtime.places import define_check, define_places
from tilewright.runtime.trial import EACH, TRIAL_FIELDS, define_trials
from tilewright.runtime.weights.control import READER

OK, NO_LAYOUT, NO_EXECUTOR, SUPERSEDED = 0, 1, 2, 3
"""The results of `tw_execute`. SUPERSEDED: the control page names no slot, so that its owner has to find the new
weights. Or a status of `limits.py` if loops or a check ended the call, so that outputs are invalid; the number that the
check tested is then in the word after the addresses, in place of the version."""

REFILLING = 1 << 40
"""Subtracted from `users` of a layout while it is refilled, so that no call uses it."""
LAYOUTS = 256
"""The number of layouts of a model, a power of two."""
WAYS = 4
"""The number of layouts (a set of the table) in which one for certain values of the symbols may be."""

MEASURED_CALLS = 8
"""Calls of a layout that are timed before deciding whether they release the GIL."""
RELEASE_GIL_NS = 10_000
"""Calls of at least this many nanoseconds release the GIL; for shorter ones, acquiring it again may cost more than the
call."""

MODEL = Struct(
    "run*", "threads", "inputs", "outputs", "packed", "temps", "symbols",
    "tensors*", "ranges",
    "layouts*", "layout_size", "layout_hint", "clock",
    "executors*", "executor_size", "executor_count",
    "weights*", "weights_size", "slots", "current*", "reader*",
    "ensure*", "writes", "execute*",
    "shapes*", "promised*", "outdims", "assumed", "places*", "tags",
    "call_error*", "endless_message*", "delayed_message*",
)  # fmt: skip
"""`execute` is the function that a call runs once arguments are checked: `tw_execute`, or an agent's call of its
broker. `promised` has the words that `shapes` must return, -1 for any; its last `assumed` words are results of the
assumptions about sizes. `places` is null until memory is planned; `tags` counts the layouts created. `call_error` is
the class that the native entry for Python raises where loops do not end, with one of the two texts at `endless_message`
and `delayed_message`."""
TENSOR = Struct("descr*", "code", "itemsize", "rank", "dims*", "message*", "written")
RANGE = Struct("lo", "hi", "multiple")
LAYOUT = Struct("users", "tag", "arena", "stamp", "measured", "least_ns", "outputs*", "offsets*", *TRIAL_FIELDS, "dims")
EXECUTOR = Struct("busy", "tag", "arena*", "capacity", "generation", *CONTROL_FIELDS, "device*", "slots")
WEIGHTS = Struct("version*", "generation", "addresses")
"""`device` is for calls on a GPU (`gpu/native.py`). `dims`, `slots` and `addresses` are the beginnings of arrays that
end their structs. EXECUTOR's fields from `limit` on are the control words that `tw_run` finds through its last slot.
MODEL's `current` and WEIGHTS' `version` are addresses of words of the control page, MODEL's `reader` that of this
process's entry in it."""


def _layout_at(f: Function, model: Value, index: Value) -> Value:
    return model[MODEL.layouts] + index * model[MODEL.layout_size]


def _same_dims(m: Module) -> None:
    with m.function("tw_same", I1, [("a", PTR), ("b", PTR), ("n", I64)], local=True) as (f, (a, b, n)):
        with f.each(n) as i, f.when(a[i * 8].ne(b[i * 8])):
            f.ret(0, I1)
        f.ret(1, I1)


def _find(m: Module) -> None:
    """Define `tw_find(model, dims)`: the layout for these values of the symbols, created if there is none, and
    pinned."""
    with m.function("tw_pin", I1, [("layout", PTR), ("dims", PTR), ("n", I64)], local=True) as (f, (layout, dims, n)):
        with f.when(layout[LAYOUT.tag].eq(0)):
            f.ret(0, I1)
        with f.when(f.call(I1, "tw_same", layout + LAYOUT.dims, dims, n).eq(0)):
            f.ret(0, I1)
        # Pin, then look again: it may have been refilled in between.
        before = f.add_atomic(layout + LAYOUT.users, 1)
        with f.when(before >= 0), f.when(layout[LAYOUT.tag].ne(0)):
            with f.when(f.call(I1, "tw_same", layout + LAYOUT.dims, dims, n)):
                f.ret(1, I1)
        f.add_atomic(layout + LAYOUT.users, -1)
        f.ret(0, I1)
    with m.function("tw_find", PTR, [("model", PTR), ("dims", PTR)]) as (f, (model, dims)):
        symbols = model[MODEL.symbols]
        hint = _layout_at(f, model, model[MODEL.layout_hint])

        def result(layout: Value) -> None:
            clock = model[MODEL.clock] + 1
            model[MODEL.clock] = clock
            layout[LAYOUT.stamp] = clock
            f.ret(layout)

        with f.when(f.call(I1, "tw_pin", hint, dims, symbols)):
            result(hint)
        first = f.call(I64, "tw_hash", dims, symbols)
        with f.each(WAYS) as way:
            index = (first + way) & (LAYOUTS - 1)
            layout = _layout_at(f, model, index)
            with f.when(f.call(I1, "tw_pin", layout, dims, symbols)):
                model[MODEL.layout_hint] = index
                result(layout)
        created = f.call(PTR, "tw_make", model, dims, first)
        with f.when(created.ne(0)):
            result(created)
        f.ret(0, PTR)


def _hash(m: Module) -> None:
    with m.function("tw_hash", I64, [("dims", PTR), ("n", I64)], local=True) as (f, (dims, n)):
        mixed = f.var(I64, 0)
        with f.each(n) as i:
            mixed.set((mixed.get() + dims[i * 8]) * MIX)
            mixed.set(mixed.get() + (mixed.get() >> 32))
        f.ret(mixed.get())


MIX = 0x9E3779B97F4A7C15 - (1 << 64)
"""2**64 divided by the golden ratio, an odd number: multiplying by it gives neighbouring sizes distant slots."""


def _make(m: Module) -> None:
    """Define `tw_make(model, dims, first)`: create a layout for new values of the symbols, and pin it; null if sizes
    are invalid, memory is not planned yet, or all layouts are in use."""
    with m.function("tw_take_layout", I1, [("layout", PTR)], local=True) as (f, (layout,)):
        with f.when(f.load(I64, layout, LAYOUT.users, order="monotonic").ne(0)):
            f.ret(0, I1)
        f.ret(f.swap_if(layout + LAYOUT.users, 0, -REFILLING))
    params = [("model", PTR), ("dims", PTR), ("first", I64)]
    with m.function("tw_make", PTR, params) as (f, (model, dims, first)):
        with f.when(model[MODEL.places].eq(0)):
            f.ret(0, PTR)
        oldest, stamp = f.var(I64, first), f.var(I64, (1 << 62) - 1)
        with f.each(WAYS) as way:
            result = _layout_at(f, model, (first + way) & (LAYOUTS - 1))[LAYOUT.stamp]
            with f.when(result < stamp.get()):
                stamp.set(result)
                oldest.set(first + way)
        with f.each(LAYOUTS) as k:  # one call more than there are ways may be under way
            layout = _layout_at(f, model, (oldest.get() + k) & (LAYOUTS - 1))
            with f.when(f.call(I1, "tw_take_layout", layout)):
                f.ret(f.call(PTR, "tw_fill", model, layout, dims))
        f.ret(0, PTR)


def _sized(m: Module) -> None:
    """Define `tw_sized(model, dims)`: whether all outputs, whose dimensions `dims` lists one after another, have sizes
    that memory can have. No product here overflows."""
    with m.function("tw_sized", I1, [("model", PTR), ("dims", PTR)], local=True) as (f, (model, dims)):
        at, size = f.var(PTR, dims), f.var(I64, 0)
        first = model[MODEL.tensors] + model[MODEL.inputs] * TENSOR.size
        with f.each(model[MODEL.outputs]) as k:
            tensor = first + k * TENSOR.size
            size.set(tensor[TENSOR.itemsize])
            rank = tensor[TENSOR.rank]
            with f.each(rank) as j:
                d = at.get()[j * 8]
                with f.when(size.get() > HALF), f.when(d > HALF):
                    f.ret(0, I1)
                with f.when((size.get() >> HALF_BITS) * d > HALF):
                    f.ret(0, I1)
                with f.when((d >> HALF_BITS) * size.get() > HALF):
                    f.ret(0, I1)
                size.set(size.get() * d)
            at.set(at.get() + rank * 8)
        f.ret(1, I1)


HALF_BITS = 23
HALF = 1 << HALF_BITS
"""The root of MAX_BYTES."""


def _fill(m: Module) -> None:
    params = [("model", PTR), ("layout", PTR), ("dims", PTR)]
    with m.function("tw_fill", PTR, params, local=True) as (f, (model, layout, dims)):
        temps, outdims = model[MODEL.temps], model[MODEL.outdims]
        symbols = model[MODEL.symbols]
        supplied = temps + outdims + model[MODEL.assumed]
        values = f.dynamic_space(supplied + 1)
        layout[LAYOUT.tag] = 0
        f.call(VOID, model[MODEL.shapes], dims, values)
        promised = model[MODEL.promised]
        with f.when(f.call(I1, "tw_promised", promised, values, supplied).eq(0)):
            f.add_atomic(layout + LAYOUT.users, REFILLING)
            f.ret(0, PTR)
        with f.when(f.call(I1, "tw_sized", model, values + temps * 8).eq(0)):
            f.add_atomic(layout + LAYOUT.users, REFILLING)
            f.ret(0, PTR)
        f.call(VOID, "tw_copy", layout + LAYOUT.dims, dims, symbols)
        outputs = layout + (symbols * 8 + LAYOUT.dims)
        offsets = outputs + outdims * 8
        f.call(VOID, "tw_copy", outputs, values + temps * 8, outdims)
        arena = f.call(I64, "tw_place", model[MODEL.places], temps, values, offsets)
        for field, value in ((LAYOUT.arena, arena), (LAYOUT.outputs, outputs), (LAYOUT.offsets, offsets)):
            layout[field] = value
        layout[LAYOUT.measured] = 0
        layout[LAYOUT.least_ns] = (1 << 62) - 1
        for k in range(len(TRIAL_FIELDS)):
            layout[LAYOUT.threads + 8 * k] = 0
        layout[LAYOUT.tag] = f.add_atomic(model + MODEL.tags, 1) + 1
        f.add_atomic(layout + LAYOUT.users, REFILLING + 1)
        f.ret(layout)


def _claim(m: Module) -> None:
    """Define `tw_claim(model, layout)`: claim an executor that has this layout loaded, else any whose arena is large
    enough; null if there is none."""
    with m.function("tw_take", I1, [("executor", PTR)], local=True) as (f, (executor,)):
        with f.when(f.load(I64, executor, EXECUTOR.busy, order="monotonic").ne(0)):
            f.ret(0, I1)
        f.ret(f.swap_if(executor + EXECUTOR.busy, 0, 1))
    with m.function("tw_claim", PTR, [("model", PTR), ("layout", PTR)], local=True) as (f, (model, layout)):
        count = f.load(I64, model, MODEL.executor_count, order="acquire")
        size = model[MODEL.executor_size]
        tag = layout[LAYOUT.tag]
        arena = layout[LAYOUT.arena]
        for exact in (True, False):
            at = f.var(PTR, model[MODEL.executors])
            with f.each(count):
                e = at.get()
                fits = e[EXECUTOR.tag].eq(tag) if exact else e[EXECUTOR.capacity] >= arena
                with f.when(fits), f.when(f.call(I1, "tw_take", e)):
                    # Its arena may have been exchanged before we took it.
                    with f.when(e[EXECUTOR.capacity] >= arena):
                        f.ret(e)
                    f.put(0, I64, e, EXECUTOR.busy, order="release")
                at.set(e + size)
        f.ret(0, PTR)


def _load_layout(m: Module) -> None:
    """Define `tw_load`: set an executor's slots for temporaries, from slot `first` on, to the addresses that `layout`
    gives them in its arena."""
    params = [("model", PTR), ("layout", PTR), ("executor", PTR), ("first", I64)]
    with m.function("tw_load", VOID, params, local=True) as (f, (model, layout, executor, first)):
        arena = executor[EXECUTOR.arena]
        offsets = layout[LAYOUT.offsets]
        slots = executor + (first * 8 + EXECUTOR.slots)
        with f.each(model[MODEL.temps]) as i:
            slots[i * 8] = arena + offsets[i * 8]
        executor[EXECUTOR.tag] = layout[LAYOUT.tag]
        f.ret()


def _copy_words(m: Module) -> None:
    with m.function("tw_copy", VOID, [("to", PTR), ("source", PTR), ("n", I64)]) as (f, (to, source, n)):
        with f.each(n) as i:
            to[i * 8] = source[i * 8]
        f.ret()


def _pin_weights(f: Function, model: Value, give_up: Callable[[], None]) -> tuple[Value, Value]:
    """Emit code that counts this call of `model` as a user of the current slot of weights, so that it is not
    overwritten. Returns (the slot's WEIGHTS, the address of its count of users); `give_up` is emitted for pages without
    a current slot."""
    pinned, pins = f.var(I64), f.var(PTR)
    current = model[MODEL.current]
    with f.loop() as loop:
        index = f.load(I64, current, order="seq_cst")
        # A negative number, or one that a damaged page holds.
        with f.when(index.below(model[MODEL.slots]).eq(0)):
            give_up()
        pinned.set(index)
        pins.set(model[MODEL.reader] + READER.pins + index * 8)
        f.add_atomic(pins.get(), 1)
        loop.leave_if(f.load(I64, current, order="seq_cst").eq(index))
        f.add_atomic(pins.get(), -1)
    return model[MODEL.weights] + pinned.get() * model[MODEL.weights_size], pins.get()


def _load_weights(f: Function, model: Value, weights: Value, executor: Value, first: Value) -> None:
    """Emit code that copies the addresses of `weights` to the slots of the model's executor, from number `first` on, if
    these still hold the addresses of another version of the weights."""
    generation = weights[WEIGHTS.generation]
    with f.when(generation.ne(executor[EXECUTOR.generation])):
        slots = executor + (first * 8 + EXECUTOR.slots)
        f.call(VOID, "tw_copy", slots, weights + WEIGHTS.addresses, model[MODEL.packed])
        executor[EXECUTOR.generation] = generation


def _note_call(f: Function, model: Value, weights: Value, io: Value, arguments: Value) -> None:
    """Emit the code that notes a call of `model`: the version of its `weights` in the word after the `arguments`
    addresses at `io` and in the reader's entry, where a publisher sees it, and one more call. Threads of one reader may
    lose counts to each other, as the number of calls is only for display."""
    version = f.load(I64, weights[WEIGHTS.version], order="monotonic")
    f.store(version, io + arguments * 8)
    reader = model[MODEL.reader]
    f.store(version, reader, READER.version, order="monotonic")
    f.store(f.load(I64, reader, READER.calls, order="monotonic") + 1, reader, READER.calls, order="monotonic")


def _run(m: Module) -> None:
    params = [("model", PTR), ("slots", PTR), ("dims", PTR), ("threads", I64)]
    with m.function("tw_run_model", VOID, params, local=True) as (f, (model, slots, dims, threads)):
        run = model[MODEL.run]
        with f.when(threads <= 1):
            f.call(VOID, run, slots, dims, (I64, 0), (I64, 1), f.value(0, PTR))
            f.ret()
        f.call(VOID, "tw_parallel", run, slots, dims, threads)
        f.ret()


def _run_timed(f: Function, model: Value, layout: Value, slots: Value, dims: Value) -> None:
    """Emit the call of `model`, with the addresses `slots` and the extents `dims`, by the number of threads that trials
    found to be fastest for `layout`, and time it if it is part of a trial."""
    most, trial = model[MODEL.threads], layout + LAYOUT.threads
    measured = layout[LAYOUT.measured]
    threads, trying, checked = f.var(I64, 1), f.var(I1, 0), f.var(I1, 0)
    timed = f.var(I1, measured < MEASURED_CALLS)
    with f.when(most > 1):
        wait = layout[LAYOUT.wait]
        threads.set(layout[LAYOUT.threads])
        with f.when(wait > 0):
            layout[LAYOUT.wait] = wait - 1
            with f.when((wait & (EACH - 1)).eq(0)), f.when(threads.get() > 1):
                checked.set(1)
                timed.set(1)
        with f.when(wait <= 0):
            threads.set(f.call(I64, "tw_turn", trial, most))
            trying.set(1)
            timed.set(1)
    with f.when(timed.get().eq(0)):
        f.call(VOID, "tw_run_model", model, slots, dims, threads.get())
    with f.when(timed.get()):
        start = now(f)
        f.call(VOID, "tw_run_model", model, slots, dims, threads.get())
        took = now(f) - start
        with f.when(took < layout[LAYOUT.least_ns]):
            layout[LAYOUT.least_ns] = took
        with f.when(measured < MEASURED_CALLS):
            layout[LAYOUT.measured] = measured + 1
        with f.when(trying.get()):
            f.call(VOID, "tw_note", trial, most, took)
        with f.when(checked.get()):
            f.call(VOID, "tw_check", trial, took)


def _execute(m: Module) -> None:
    params = [("model", PTR), ("layout", PTR), ("io", PTR)]
    with m.function("tw_execute", I64, params) as (f, (model, layout, io)):
        executor = f.call(PTR, "tw_claim", model, layout)
        with f.when(executor.eq(0)):
            f.ret(NO_EXECUTOR)
        arguments = model[MODEL.inputs] + model[MODEL.outputs]
        temps = arguments + model[MODEL.packed]
        with f.when(executor[EXECUTOR.tag].ne(layout[LAYOUT.tag])):
            f.call(VOID, "tw_load", model, layout, executor, temps)

        def give_up() -> None:
            f.put(0, I64, executor, EXECUTOR.busy, order="release")
            f.ret(SUPERSEDED)

        weights, pins = _pin_weights(f, model, give_up)
        _load_weights(f, model, weights, executor, arguments)
        slots, dims = executor + EXECUTOR.slots, layout + LAYOUT.dims
        f.call(VOID, "tw_copy", slots, io, arguments)
        _note_call(f, model, weights, io, arguments)
        _run_timed(f, model, layout, slots, dims)
        f.add_atomic(pins, -1)
        status = executor[EXECUTOR.status]
        with f.when(status.ne(0)):
            with f.when(status >= REFUSED):
                io[arguments * 8] = executor[EXECUTOR.got]
            executor[EXECUTOR.status] = 0
            f.put(0, I64, executor, EXECUTOR.busy, order="release")
            f.ret(status)
        f.put(0, I64, executor, EXECUTOR.busy, order="release")
        f.ret(OK)


def _call(m: Module) -> None:
    """Define `tw_call(model, io, dims)`: a whole call with checked arguments. `io` holds their addresses and one more
    word for the version; `dims` the values of the symbols."""
    with m.function("tw_call", I64, [("model", PTR), ("io", PTR), ("dims", PTR)]) as (f, (model, io, dims)):
        layout = f.call(PTR, "tw_find", model, dims)
        with f.when(layout.eq(0)):
            f.ret(NO_LAYOUT)
        status = f.call(I64, model[MODEL.execute], model, layout, io)
        f.add_atomic(layout + LAYOUT.users, -1)
        f.ret(status)


def _python_side(m: Module) -> None:
    """Define the functions by which Python does atomic operations on native memory: `tw_swap`, `tw_add`, `tw_set` and
    others."""
    with m.function("tw_swap", I64, [("p", PTR), ("old", I64), ("new", I64)]) as (f, (p, old, new)):
        f.ret(f.swap_if(p, old, new).cast(I64))
    with m.function("tw_add", I64, [("p", PTR), ("n", I64)]) as (f, (p, n)):
        f.ret(f.add_atomic(p, n))
    with m.function("tw_set", VOID, [("p", PTR), ("n", I64)]) as (f, (p, n)):
        f.store(n, p, order="seq_cst")
        f.ret()
    with m.function("tw_scan", I64, [("p", PTR), ("stride", I64), ("first", I64), ("count", I64)]) as (f, values):
        p, stride, first, count = values
        with f.each(count) as i, f.when(i >= first), f.when(f.load(I64, p + i * stride, order="seq_cst").ne(0)):
            f.ret(i)
        f.ret(count)
    params = [("places", PTR), ("offset", I64), ("n", I64), ("out", PTR)]
    with m.function("tw_words_at", VOID, params) as (f, (places, offset, n, out)):
        with f.each(n) as i:
            out[i * 8] = f.load(I64, f.load(PTR, places, i * 8) + offset)
        f.ret()


def define_core(m: Module) -> None:
    """Add to the module `m` the functions of a call, such as `tw_call`. The module is linked to `tw_parallel` and to
    the functions of `define_seldom`."""
    for part in (_same_dims, _copy_words, _hash, _find, _claim, _load_layout, _run, _execute, _call):
        part(m)


def define_seldom(m: Module) -> None:
    """Add the functions that few calls need: layouts for new sizes, and trials of numbers of threads."""
    define_time_limit(m)
    define_signals(m)
    define_places(m)
    define_check(m)
    define_trials(m)
    for part in (_sized, _fill, _make, _python_side):
        part(m)


CORE_EXPORTS = ("tw_copy", "tw_find", "tw_execute", "tw_call")
SELDOM_EXPORTS = ("tw_place", "tw_poll", "tw_swap", "tw_add", "tw_set", "tw_scan", "tw_words_at")
