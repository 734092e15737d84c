"""The functions of a bundle that its callers call, as LLVM text around a program's entries.

    i32 NAME_prepare(ptr constants, ptr weights, ptr workspace)
    i32 NAME_run(ptr constants, ptr activations, [ptr state], i64 dims..., ptr inputs..., ptr outputs..., [ptr extents])

They check what they are given, fill the tables that `tw_prepare` and `tw_run` read (`codegen/llvm/entry.py`) and call
these. All memory is the caller's; offsets in it are constants, planned for the greatest sizes (`binding.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.bundle.binding import ALIGNMENT, Binding
from tilewright.codegen.llvm.standalone import polynomial
from tilewright.native.assembler import I32, I64, PTR, VOID, Function, Module, Value
from tilewright.runtime.limits import CONTROL, ENDLESS, MAX_ITERATIONS

OK, BAD_SIZE, BAD_ALIGNMENT, FULL = 0, 1, 2, 3
"""The values that a bundle's functions return, besides `ENDLESS` (4)."""
STATUS = {
    "OK": (OK, "all was done"),
    "BAD_SIZE": (BAD_SIZE, "a dimension is out of its range, or sizes do not fit each other; nothing was done"),
    "BAD_ALIGNMENT": (BAD_ALIGNMENT, f"memory does not begin at a multiple of {ALIGNMENT}; nothing was done"),
    "FULL": (FULL, "there is no memory for so many rows"),
    "ENDLESS": (ENDLESS, "loops of the model have too many iterations; outputs hold nothing"),
}


def glue(binding: Binding, triple: str, pointer: int) -> str:
    """The LLVM text of a module with `NAME_prepare`, `NAME_run`, and the functions of a runtime that the program's
    objects call.

    Args:
        pointer: bytes of an address.
    """
    m = Module(triple)
    _tables(m, binding)
    _prepare(m, binding, pointer)
    _run(m, binding, pointer)
    if binding.threads == 1:
        with m.function("tw_barrier", VOID, [("barrier", PTR), ("nthreads", I64)], local=False) as (f, _):
            f.ret()
    return f'target triple = "{triple}"\n\n{m.text()}'


def parameters(binding: Binding) -> list[tuple[str, str]]:
    """The parameters of `NAME_run` as (LLVM type, identifier)."""
    result = [(PTR, "constants"), (PTR, "activations")]
    result += [(PTR, "state")] if binding.state is not None else []
    result += [(I64, s.identifier) for s in binding.sizes]
    result += [(PTR, a.identifier) for a in (*binding.inputs, *binding.outputs)]
    return result + ([(PTR, "extents")] if binding.extents else [])


class _Slots:
    """Writes the table with the address of each slot that the entry `tw_run` or `tw_prepare` reads."""

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


def _tables(m: Module, binding: Binding) -> None:
    """Define the constant tables of bounds on the results of `tw_shapes`."""
    if binding.manifest.symbols and binding.limits:
        words = ", ".join(f"i64 {n}" for n in binding.limits)
        m.raw("tw_limits", f"@tw_limits = internal constant [{len(binding.limits)} x i64] [{words}], align 16")


def _prepare(m: Module, binding: Binding, pointer: int) -> None:
    manifest = binding.manifest
    params = [(PTR, "constants"), (PTR, "weights"), (PTR, "workspace")]
    with m.function(f"{binding.name}_prepare", I32, [(f"p.{n}", t) for t, n in params]) as (f, values):
        constants, weights, workspace = values
        _check_alignment(f, values)
        f.emit(f"store ptr {weights.text}, ptr {constants.text}, align {pointer}")
        if manifest.prepare_steps:
            table = workspace + binding.workspace_slots
            slots = _Slots(f, table, pointer)
            for k, weight in enumerate(binding.weights):
                slots.put(k, weights + weight.offset)
            for k, (spec, offset) in enumerate(zip(manifest.packed, binding.packed, strict=True), len(binding.weights)):
                slots.put(k, (constants if spec.alias is None else weights) + offset)
            for k, offset in enumerate(binding.workspace, len(binding.weights) + len(manifest.packed)):
                slots.put(k, workspace + offset)
            steps = f.space(16)
            steps[0] = 0
            steps[8] = len(manifest.prepare_steps)
            _call(f, "tw_prepare", table, steps, binding.threads)
        f.ret(OK, I32)


def _call(f: Function, entry: str, slots: Value, dims: Value, threads: int) -> None:
    if threads > 1:
        f.module.declare(entry, VOID, [PTR, PTR, I64, I64, PTR])
        f.call(VOID, "tw_parallel", f.symbol(entry), slots, dims, (I64, threads))
        return
    f.call(VOID, entry, slots, dims, (I64, 0), (I64, 1), f.value(0, PTR))


def _run(m: Module, binding: Binding, pointer: int) -> None:
    manifest, places = binding.manifest, binding.activations
    if binding.has_loops:
        _poll(m)
    named = parameters(binding)
    with m.function(f"{binding.name}_run", I32, [(f"p.{n}", t) for t, n in named]) as (f, values):
        arguments = {n: v for (_, n), v in zip(named, values, strict=True)}
        activations = arguments["activations"]
        memory = [arguments[n] for n in ("constants", "activations", "state") if n in arguments]
        _check_alignment(f, memory)
        dims = activations + places.dims
        _sizes(f, binding, arguments, dims)
        slots = _Slots(f, activations + places.slots, pointer)
        _fill(f, binding, arguments, slots)
        control = activations + places.control
        if binding.has_loops:
            control[CONTROL.limit] = MAX_ITERATIONS
            control[CONTROL.status] = 0
            poll = control + CONTROL.poll
            f.emit(f"store ptr @tw_poll, ptr {poll.text}, align {pointer}")
        slots.put(manifest.run_slots, control)
        _call(f, "tw_run", slots.table, dims, 1 if manifest.alone else binding.threads)
        if binding.has_loops:
            _refuse(f, control[CONTROL.status].ne(0), ENDLESS)
        _finish(f, binding, arguments, dims)
        f.ret(OK, I32)


def _sizes(f: Function, binding: Binding, arguments: dict[str, Value], dims: Value) -> None:
    """Emit code that stores the extents of a call, its `arguments` by name, as numbers of 8 bytes from the address
    `dims` on. The code returns an error code if an extent is out of range, makes a block of memory too large, or the
    state is full."""
    manifest = binding.manifest
    for size in binding.sizes:
        value = arguments[size.identifier]
        _refuse(f, value < size.spec.lo, BAD_SIZE)
        _refuse(f, value > size.spec.hi, BAD_SIZE)
        if size.spec.multiple > 1:
            _refuse(f, (value % size.spec.multiple).ne(0), BAD_SIZE)
        dims[8 * size.number] = value
    for number, rows in binding.rooms.items():
        dims[8 * number] = rows
    if binding.state is not None:
        dims[8 * binding.state.room] = binding.state.capacity
        length = arguments["state"][0]
        _refuse(f, length < 0, FULL)
        _refuse(f, length > binding.state.capacity, FULL)
        dims[8 * binding.state.length] = length
        _refuse(f, length + _rows(f, binding, arguments) > binding.state.capacity, FULL)
    if not manifest.symbols:
        return
    result = arguments["activations"] + binding.activations.sizes
    f.call(VOID, "tw_shapes", dims, result)
    limits = f.symbol("tw_limits")
    with f.each(len(binding.limits)) as k:
        # As unsigned, what is negative is too large.
        fits = result[k * 8].below(limits[k * 8] + 1)
        _refuse(f, fits.eq(0), BAD_SIZE)
    for place in range(len(binding.limits), len(binding.limits) + len(manifest.assumptions)):
        _refuse(f, result[8 * place].ne(1), BAD_SIZE)


def _rows(f: Function, binding: Binding, arguments: dict[str, Value]) -> Value:
    """Emit the computation, from the sizes among `arguments`, of the number of rows that a call appends to the
    state."""
    assert binding.manifest.state is not None
    values: dict[str, Value] = {}
    for size in binding.sizes:
        value = arguments[size.identifier]
        values[size.spec.name] = value
        values |= dict.fromkeys(size.spec.terms - {size.spec.name}, value // size.spec.multiple)
    return polynomial(f, binding.manifest.state.rows, values)


def _fill(f: Function, binding: Binding, arguments: dict[str, Value], slots: _Slots) -> None:
    manifest, places = binding.manifest, binding.activations
    activations, constants = arguments["activations"], arguments["constants"]
    known = {a.slot: arguments[a.identifier] for a in (*binding.inputs, *binding.outputs)}
    if binding.state is not None:
        for cache, offset in zip(binding.state.caches, binding.state.offsets, strict=True):
            known[cache.slot] = arguments["state"] + offset
    first = len(manifest.inputs) + len(manifest.outputs)
    for k in range(len(binding.extents)):
        known[first - len(binding.extents) + k] = activations + (places.extents + 8 * k)
    for k in range(first):
        slots.put(k, known.get(k, activations))  # what has no elements is not given
    weights = (
        f.let(PTR, f"load ptr, ptr {constants.text}, align {slots.pointer}") if binding.keeps_weights else constants
    )
    for k, (spec, offset) in enumerate(zip(manifest.packed, binding.packed, strict=True), first):
        slots.put(k, (constants if spec.alias is None else weights) + offset)
    for k, offset in enumerate(places.offsets, first + len(manifest.packed)):
        slots.put(k, activations + offset)


def _finish(f: Function, binding: Binding, arguments: dict[str, Value], dims: Value) -> None:
    """Emit code that copies the extents which data decide from `dims` to the caller's argument, and updates the number
    of rows of the state; it returns an error if a result exceeds its memory."""
    manifest, places = binding.manifest, binding.activations
    result = arguments["activations"] + places.extents
    for k in range(len(binding.extents)):
        arguments["extents"][8 * k] = result[8 * k]
    number = {name: k for k, name in enumerate(binding.extents)}
    for room, rows in zip(manifest.rooms, binding.rooms.values(), strict=True):
        wanted = result[8 * number[room.extent]]
        _refuse(f, wanted.below(rows + 1).eq(0), FULL)
    if binding.state is not None:
        length = dims[8 * binding.state.length]
        arguments["state"][0] = length + _rows(f, binding, arguments)


def _poll(m: Module) -> None:
    """Define `tw_poll`, which grants a loop all iterations that a call may make at once, and then none
    (`runtime/limits.py`)."""
    with m.function("tw_poll", I64, [("control", PTR), ("spent", I64)], local=True) as (f, (control, spent)):
        left = control[CONTROL.limit] - spent
        with f.when(left <= 0):
            control[CONTROL.status] = ENDLESS
            f.ret(0)
        f.ret(left)


__all__ = ["BAD_ALIGNMENT", "BAD_SIZE", "FULL", "OK", "STATUS", "glue", "parameters"]
