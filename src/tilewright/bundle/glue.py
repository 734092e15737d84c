"""The functions of a bundle that its callers call, as LLVM text around a program's entries.

    i32 NAME_prepare(ptr constants, ptr weights, ptr workspace)
    i32 NAME_run(ptr constants, ptr activations, [ptr state], i64 dims..., ptr inputs..., ptr outputs..., [ptr extents])

They check what they are given, fill the tables that `tw_prepare` and `tw_run` read (`codegen/llvm/entry.py`) and call
these. All memory is the caller's; offsets in it are constants, planned for the greatest sizes (`face.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.bundle.face import ALIGNMENT, Face
from tilewright.codegen.llvm.standalone import polynomial
from tilewright.native.assembler import I32, I64, PTR, VOID, Function, Module, Value
from tilewright.runtime.limits import CONTROL, ENDLESS

OK, BAD_SIZE, BAD_ALIGNMENT, FULL = 0, 1, 2, 3
"""What the functions give, beside `ENDLESS` (4)."""
STATUS = {
    "OK": (OK, "all was done"),
    "BAD_SIZE": (BAD_SIZE, "a dimension is out of its range, or sizes do not fit each other; nothing was done"),
    "BAD_ALIGNMENT": (BAD_ALIGNMENT, f"memory does not begin at a multiple of {ALIGNMENT}; nothing was done"),
    "FULL": (FULL, "there is no memory for so many rows"),
    "ENDLESS": (ENDLESS, "loops of the model have too many iterations; outputs hold nothing"),
}
MAX_ITERATIONS = 10_000_000
"""Iterations of the loops of one call that only data ends."""


def glue(face: Face, triple: str, pointer: int) -> str:
    """The text of a module with both functions, and what the program's objects need of a runtime.

    Args:
        pointer: bytes of an address.
    """
    m = Module(triple)
    _tables(m, face)
    _prepare(m, face, pointer)
    _run(m, face, pointer)
    if face.threads == 1:
        with m.function("tw_barrier", VOID, [("barrier", PTR), ("nthreads", I64)], local=False) as (f, _):
            f.ret()
    return f'target triple = "{triple}"\n\n{m.text()}'


def parameters(face: Face) -> list[tuple[str, str]]:
    """The parameters of `NAME_run`: kinds and identifiers."""
    result = [(PTR, "constants"), (PTR, "activations")]
    result += [(PTR, "state")] if face.state is not None else []
    result += [(I64, s.identifier) for s in face.sizes]
    result += [(PTR, a.identifier) for a in (*face.inputs, *face.outputs)]
    return result + ([(PTR, "extents")] if face.extents else [])


class _Slots:
    """Writes a table of addresses."""

    def __init__(self, f: Function, table: Value, pointer: int) -> None:
        self.f, self.table, self.pointer = f, table, pointer

    def put(self, k: int, address: Value) -> None:
        at = self.table + k * self.pointer
        self.f.emit(f"store ptr {address.text}, ptr {at.text}, align {self.pointer}")


def _refuse(f: Function, condition: Value, status: int) -> None:
    with f.when(condition):
        f.ret(status, I32)


def _check_alignment(f: Function, places: Sequence[Value]) -> None:
    together = places[0].cast(I64)
    for place in places[1:]:
        together = together | place.cast(I64)
    _refuse(f, (together & (ALIGNMENT - 1)).ne(0), BAD_ALIGNMENT)


def _tables(m: Module, face: Face) -> None:
    """What `tw_shapes` may give at most."""
    if face.manifest.symbols and face.limits:
        words = ", ".join(f"i64 {n}" for n in face.limits)
        m.raw("tw_limits", f"@tw_limits = internal constant [{len(face.limits)} x i64] [{words}], align 16")


def _prepare(m: Module, face: Face, pointer: int) -> None:
    manifest = face.manifest
    params = [(PTR, "constants"), (PTR, "weights"), (PTR, "workspace")]
    with m.function(f"{face.name}_prepare", I32, [(f"p.{n}", t) for t, n in params]) as (f, values):
        constants, weights, workspace = values
        _check_alignment(f, values)
        f.emit(f"store ptr {weights.text}, ptr {constants.text}, align {pointer}")
        if manifest.prepare_steps:
            table = workspace + face.workspace_slots
            slots = _Slots(f, table, pointer)
            for k, weight in enumerate(face.weights):
                slots.put(k, weights + weight.offset)
            for k, (spec, offset) in enumerate(zip(manifest.packed, face.packed, strict=True), len(face.weights)):
                slots.put(k, (constants if spec.alias is None else weights) + offset)
            for k, offset in enumerate(face.workspace, len(face.weights) + len(manifest.packed)):
                slots.put(k, workspace + offset)
            steps = f.space(16)
            f.put(0, I64, steps)
            f.put(len(manifest.prepare_steps), I64, steps, 8)
            _call(f, "tw_prepare", table, steps, face.threads)
        f.ret(OK, I32)


def _call(f: Function, entry: str, slots: Value, dims: Value, threads: int) -> None:
    if threads > 1:
        f.module.declare(entry, VOID, [PTR, PTR, I64, I64, PTR])
        f.call(VOID, "tw_parallel", f.symbol(entry), slots, dims, (I64, threads))
        return
    f.call(VOID, entry, slots, dims, (I64, 0), (I64, 1), f.value(0, PTR))


def _run(m: Module, face: Face, pointer: int) -> None:
    manifest, places = face.manifest, face.activations
    if face.has_loops:
        _poll(m)
    named = parameters(face)
    with m.function(f"{face.name}_run", I32, [(f"p.{n}", t) for t, n in named]) as (f, values):
        given = {n: v for (_, n), v in zip(named, values, strict=True)}
        activations = given["activations"]
        memory = [given[n] for n in ("constants", "activations", "state") if n in given]
        _check_alignment(f, memory)
        dims = activations + places.dims
        _sizes(f, face, given, dims)
        slots = _Slots(f, activations + places.slots, pointer)
        _fill(f, face, given, slots)
        control = activations + places.control
        if face.has_loops:
            f.put(MAX_ITERATIONS, I64, control, CONTROL.limit)
            f.put(0, I64, control, CONTROL.status)
            poll = control + CONTROL.poll
            f.emit(f"store ptr @tw_poll, ptr {poll.text}, align {pointer}")
        slots.put(manifest.run_slots, control)
        _call(f, "tw_run", slots.table, dims, 1 if manifest.alone else face.threads)
        if face.has_loops:
            _refuse(f, f.load(I64, control, CONTROL.status).ne(0), ENDLESS)
        _finish(f, face, given, dims)
        f.ret(OK, I32)


def _sizes(f: Function, face: Face, given: dict[str, Value], dims: Value) -> None:
    """Write the dimensions down, and refuse those that are out of range or that make something too large."""
    manifest = face.manifest
    for size in face.sizes:
        value = given[size.identifier]
        _refuse(f, value < size.spec.lo, BAD_SIZE)
        _refuse(f, value > size.spec.hi, BAD_SIZE)
        if size.spec.multiple > 1:
            _refuse(f, (value % size.spec.multiple).ne(0), BAD_SIZE)
        f.store(value, dims, 8 * size.number)
    for number, rows in face.rooms.items():
        f.put(rows, I64, dims, 8 * number)
    if face.state is not None:
        f.put(face.state.capacity, I64, dims, 8 * face.state.room)
        length = f.load(I64, given["state"])
        _refuse(f, length < 0, FULL)
        _refuse(f, length > face.state.capacity, FULL)
        f.store(length, dims, 8 * face.state.length)
        _refuse(f, length + _rows(f, face, given) > face.state.capacity, FULL)
    if not manifest.symbols:
        return
    result = given["activations"] + face.activations.sizes
    f.call(VOID, "tw_shapes", dims, result)
    limits = f.symbol("tw_limits")
    with f.each(len(face.limits)) as k:
        # As unsigned, what is negative is too large.
        fits = f.load(I64, result, k * 8).below(f.load(I64, limits, k * 8) + 1)
        _refuse(f, fits.eq(0), BAD_SIZE)
    for place in range(len(face.limits), len(face.limits) + len(manifest.assumptions)):
        _refuse(f, f.load(I64, result, 8 * place).ne(1), BAD_SIZE)


def _rows(f: Function, face: Face, given: dict[str, Value]) -> Value:
    """How many rows a call appends to the state."""
    assert face.manifest.state is not None
    values: dict[str, Value] = {}
    for size in face.sizes:
        value = given[size.identifier]
        values[size.spec.name] = value
        values |= dict.fromkeys(size.spec.terms - {size.spec.name}, value // size.spec.multiple)
    return polynomial(f, face.manifest.state.rows, values)


def _fill(f: Function, face: Face, given: dict[str, Value], slots: _Slots) -> None:
    manifest, places = face.manifest, face.activations
    activations, constants = given["activations"], given["constants"]
    known = {a.slot: given[a.identifier] for a in (*face.inputs, *face.outputs)}
    if face.state is not None:
        for cache, offset in zip(face.state.caches, face.state.offsets, strict=True):
            known[cache.slot] = given["state"] + offset
    first = len(manifest.inputs) + len(manifest.outputs)
    for k in range(len(face.extents)):
        known[first - len(face.extents) + k] = activations + (places.extents + 8 * k)
    for k in range(first):
        slots.put(k, known.get(k, activations))  # what has no elements is not given
    weights = f.let(PTR, f"load ptr, ptr {constants.text}, align {slots.pointer}") if face.keeps_weights else constants
    for k, (spec, offset) in enumerate(zip(manifest.packed, face.packed, strict=True), first):
        slots.put(k, (constants if spec.alias is None else weights) + offset)
    for k, offset in enumerate(places.offsets, first + len(manifest.packed)):
        slots.put(k, activations + offset)


def _finish(f: Function, face: Face, given: dict[str, Value], dims: Value) -> None:
    """Tell the extents that data has decided, and count the rows of the state."""
    manifest, places = face.manifest, face.activations
    result = given["activations"] + places.extents
    for k in range(len(face.extents)):
        f.store(f.load(I64, result, 8 * k), given["extents"], 8 * k)
    number = {name: k for k, name in enumerate(face.extents)}
    for room, rows in zip(manifest.rooms, face.rooms.values(), strict=True):
        wanted = f.load(I64, result, 8 * number[room.extent])
        _refuse(f, wanted.below(rows + 1).eq(0), FULL)
    if face.state is not None:
        length = f.load(I64, dims, 8 * face.state.length)
        f.store(length + _rows(f, face, given), given["state"])


def _poll(m: Module) -> None:
    """`tw_poll`: all iterations that a call may make at once, and then no more (`runtime/limits.py`)."""
    with m.function("tw_poll", I64, [("control", PTR), ("spent", I64)], local=True) as (f, (control, spent)):
        left = f.load(I64, control, CONTROL.limit) - spent
        with f.when(left <= 0):
            f.put(ENDLESS, I64, control, CONTROL.status)
            f.ret(0)
        f.ret(left)


__all__ = ["BAD_ALIGNMENT", "BAD_SIZE", "FULL", "OK", "STATUS", "glue", "parameters"]
