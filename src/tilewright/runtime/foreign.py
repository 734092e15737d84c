"""Calls through tvm-ffi: programs as `TVMFFISafeCallType`, for callers in C++, Rust, PyTorch or JAX.

Every argument is a `DLTensor*` or a tvm-ffi `Tensor`, inputs first, then outputs, which the caller owns. The checks are
those of calls from Python; a failed one raises through tvm-ffi's error channel. The GIL is only needed for dimensions
that are new, for which Python code plans memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tilewright.native.assembler import I1, I32, I64, PTR, VOID, Function, Module, Value
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.runtime.call import LAYOUT, MODEL, OK, SUPERSEDED, TENSOR
from tilewright.runtime.limits import ENDLESS, INTERRUPTED, REFUSED, TIMED_OUT

ANY_SIZE, ANY_VALUE = 16, 8
DL_TENSOR_PTR, TENSOR_OBJECT = 7, 70
OBJECT_HEADER = 24
"""Bytes of the header of a tvm-ffi object."""
_RETRIES = 1000
"""Attempts of a call whose memory has to be enlarged first."""


def define_foreign(m: Module) -> None:
    """Add `tw_foreign(model, raise, args, count)` to a module linked to core and glue; `raise` reports an error."""
    m.string("tw_type_error", "TypeError")
    m.string("tw_value_error", "ValueError")
    m.string("tw_count_message", "tilewright: wrong number of arguments; pass every input, then every output")
    m.string("tw_range_message", "tilewright: a dimension is outside the range that the program was compiled for")
    m.string("tw_overlap_message", "tilewright: an output shares memory with an input or another output")
    m.string("tw_memory_message", "tilewright: no memory could be set up for these dimensions")
    m.string("tw_endless_message", "tilewright: the model's loops would have more iterations than max_iterations")
    m.string("tw_late_message", "tilewright: the model's loops took longer than time_limit")
    m.string("tw_signal_message", "tilewright: the handler of a signal has ended the call")
    m.string("tw_refused_message", "tilewright: numbers in the data make no sense for the model; call it from Python")
    m.string("tw_moved_message", "tilewright: the weight store has another structure now; ask for its function again")
    params = [("model", PTR), ("raise", PTR), ("args", PTR), ("count", I32)]
    with m.function("tw_foreign", I32, params) as (f, (model, report, args, count)):
        inputs, outputs = model[MODEL.inputs], model[MODEL.outputs]

        def refuse(condition: Any, kind: str, message: Any, pinned: Any = None) -> None:
            with f.when(condition):
                if pinned is not None:
                    f.add_atomic(pinned + LAYOUT.users, -1)
                f.call(VOID, report, f.symbol(kind), message)
                f.ret(-1, I32)

        refuse(count.signed(I64).ne(inputs + outputs), "tw_type_error", f.symbol("tw_count_message"))
        io = f.dynamic_space((inputs + outputs) * 2 + 1)
        dims = f.dynamic_space(model[MODEL.symbols] + 1)
        with f.each(model[MODEL.symbols]) as i:
            dims[i * 8] = -1
        shape = f.var(PTR, 0)
        layout = f.var(PTR, 0)
        for suffix in ("input", "output"):
            first, several = (f.value(0, I64), inputs) if suffix == "input" else (inputs, outputs)
            if suffix == "output":
                refuse(f.call(I1, "tw_in_range", model, dims).eq(0), "tw_value_error", f.symbol("tw_range_message"))
                layout.set(f.call(PTR, "tw_ensured", model, dims))
                refuse(layout.get().eq(0), "tw_value_error", f.symbol("tw_memory_message"))
                shape.set(layout.get()[LAYOUT.outputs])
            with f.each(several) as i:
                index = first + i
                tensor = model[MODEL.tensors] + index * TENSOR.size
                argument = args + index * ANY_SIZE
                kind, view = f.load(I32, argument), f.var(PTR, f.load(PTR, argument, ANY_VALUE))
                is_object = kind.eq(TENSOR_OBJECT)
                with f.when(is_object):
                    view.set(view.get() + OBJECT_HEADER)
                message = tensor[TENSOR.message]
                pinned = layout.get() if suffix == "output" else None
                with f.when(is_object.eq(0)):
                    refuse(kind.ne(DL_TENSOR_PTR), "tw_type_error", message, pinned)
                against = shape.get() if suffix == "output" else dims
                consumed = f.call(I64, f"tw_take_dl_{suffix}", tensor, view.get(), against, io + index * 16)
                refuse(consumed.eq(0), "tw_type_error", message, pinned)
                if suffix == "output":
                    shape.set(shape.get() + tensor[TENSOR.rank] * 8)
        overlap = f.call(I1, "tw_overlap", model, io, inputs + outputs)
        refuse(overlap, "tw_value_error", f.symbol("tw_overlap_message"), layout.get())
        with f.each(inputs + outputs) as i:
            io[i * 8] = io[i * 16]
        _execute(f, model, layout.get(), io, dims, refuse)
    with m.function("tw_ensured", PTR, [("model", PTR), ("dims", PTR)], local=True) as (f, (model, dims)):
        layout = f.var(PTR, f.call(PTR, "tw_find", model, dims))
        with f.when(layout.get().eq(0)):
            f.call(I64, model[MODEL.ensure], model, dims)
            layout.set(f.call(PTR, "tw_find", model, dims))
        f.ret(layout.get())


def _execute(f: Function, model: Value, layout: Value, io: Value, dims: Value, refuse: Callable[..., None]) -> None:
    """Emit code that runs the model in `layout`, which it releases, with the addresses `io`, and repeats if memory for
    the sizes `dims` had to be enlarged first. `refuse` emits the return of an error under a condition."""
    tries = f.var(I64, 0)
    with f.loop() as loop:
        status = f.call(I64, model[MODEL.execute], model, layout, io)
        loop.leave_if(status.eq(OK))
        refuse(status.eq(SUPERSEDED), "tw_value_error", f.symbol("tw_moved_message"), layout)
        for ended, message in ((ENDLESS, "endless"), (TIMED_OUT, "late"), (INTERRUPTED, "signal")):
            refuse(status.eq(ended), "tw_value_error", f.symbol(f"tw_{message}_message"), layout)
        refuse(status >= REFUSED, "tw_value_error", f.symbol("tw_refused_message"), layout)
        tries.add(1)
        refuse(tries.get() > _RETRIES, "tw_value_error", f.symbol("tw_memory_message"), layout)
        f.call(I64, model[MODEL.ensure], model, dims)
    f.add_atomic(layout + LAYOUT.users, -1)
    f.ret(0, I32)


FOREIGN_EXPORTS = ("tw_foreign",)


def foreign_function(model: int, entry: int, keep_alive: object) -> Any:
    """A tvm-ffi `Function` that runs the model whose descriptor is at `model`; `entry` is `tw_foreign`'s address. The
    function holds `keep_alive` as long as it lives."""
    # tvm_ffi imports torch where it is installed, which takes seconds: only those who ask for it pay.
    import tvm_ffi

    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    report = ctypes.cast(library.TVMFFIErrorSetRaisedFromCStr, ctypes.c_void_p).value
    m = Module(host_triple())
    params = [("handle", PTR), ("args", PTR), ("count", I32), ("result", PTR)]
    with m.function("tw_safe_call", I32, params) as (f, (_, args, count, _)):
        target = f.let(PTR, f"inttoptr i64 {entry} to ptr")
        f.ret(f.call(I32, target, f.value(model, PTR), f.value(report or 0, PTR), args, count))
    thunk = Library({"thunk": compile_text(m.text(), speed=0, cache=False)}, ["tw_safe_call"])
    make = tvm_ffi.Function.__from_extern_c__
    return make(thunk["tw_safe_call"], keep_alive_object=(thunk, keep_alive))
