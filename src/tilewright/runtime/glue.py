"""The native entry for calls from Python: a builtin function that takes arrays and passes their addresses to the core.

The builtin reads NumPy arrays through the fields of `PyArrayObject`, whose layout is NumPy's stable ABI (its own macros
compile to the same loads), and other frameworks' tensors through the C functions of their type's
`__dlpack_c_exchange_api__`. In all other cases (a wrong argument, an input to be copied, new dimensions) it calls a
Python function, the *slow path*, with the same arguments, which converts them or raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tilewright.native.assembler import I1, I32, I64, PTR, VOID, Function, Module, Value
from tilewright.runtime.call import LAYOUT, MEASURED_CALLS, MODEL, OK, RANGE, RELEASE_GIL_NS, TENSOR
from tilewright.runtime.dlpack import (
    API_ALLOCATE,
    API_TO_PYTHON,
    API_VIEW,
    DL_CODE,
    DL_CPU,
    DL_DATA,
    DL_DEVICE,
    DL_MANAGED_TENSOR,
    DL_OFFSET,
    DL_RANK,
    DL_SHAPE,
    DL_SIZE,
    DL_STRIDES,
)
from tilewright.runtime.layout import Struct
from tilewright.runtime.limits import ENDLESS, TIMED_OUT
from tilewright.runtime.watch import WATCH

# CPython and NumPy, 64-bit with the GIL; `native.py` checks these on live objects before the builtin is ever used.
OB_TYPE = 8
ARRAY_DATA, ARRAY_RANK, ARRAY_DIMS, ARRAY_DESCR, ARRAY_FLAGS = 16, 24, 32, 56, 64
READABLE = 0x1 | 0x100  # C-contiguous and aligned
WRITABLE = READABLE | 0x400

MAX_TYPES = 16
"""The most tensor types of other frameworks in one process."""
GLOBALS = Struct("array_type*", "tuple_type*", "out*", "is_neg*", "types", "table")
"""Addresses of NumPy's array type, Python's tuple type and the interned names "out" and "is_neg"; then `types` pairs
(type, API)."""
GLOBALS_SIZE = 256 + MAX_TYPES * 16
"""Bytes of the globals and of the table of tensor types."""

_INPUT, _OUTPUT = 0, 1


def _globals(f: Function) -> Value:
    return f.symbol("tw_globals")


def _type_of(f: Function, obj: Value) -> Value:
    return f.load(PTR, obj, OB_TYPE)


def _is(f: Function, obj: Value, field: int) -> Value:
    return _type_of(f, obj).eq(f.load(PTR, _globals(f), field))


def _api(m: Module) -> None:
    """Define `tw_api(obj)`: the functions of DLPack's exchange API for the type of an object, or null."""
    with m.function("tw_api", PTR, [("obj", PTR)]) as (f, (obj,)):
        type = _type_of(f, obj)
        table = _globals(f) + GLOBALS.table
        with f.each(_globals(f)[GLOBALS.types]) as i, f.when(f.load(PTR, table, i * 16).eq(type)):
            f.ret(f.load(PTR, table, i * 16 + 8))
        f.ret(0, PTR)


def _fits(m: Module) -> None:
    """Define `tw_bind(tensor, shape, dims)`: compare a shape with an input's template, and bind symbols; returns the
    number of elements, or -1."""
    params = [("tensor", PTR), ("shape", PTR), ("dims", PTR)]
    with m.function("tw_bind", I64, params, local=True) as (f, (tensor, shape, dims)):
        template = tensor[TENSOR.dims]
        count = f.var(I64, 1)
        with f.each(tensor[TENSOR.rank]) as i:
            want, got = template[i * 8], shape[i * 8]
            with f.when(want >= 0), f.when(want.ne(got)):
                f.ret(-1)
            with f.when(want < 0):
                # ~k stands for symbol k.
                at = dims + (-1 - want) * 8
                bound = at[0]
                with f.when(bound < 0):
                    at[0] = got
                with f.when(bound >= 0), f.when(bound.ne(got)):
                    f.ret(-1)
            count.set(count.get() * got)
        f.ret(count.get())
    # The same for an output, whose dimensions the layout knows.
    with m.function("tw_equal", I64, params, local=True) as (f, (tensor, shape, dims)):
        count = f.var(I64, 1)
        with f.each(tensor[TENSOR.rank]) as i:
            got = shape[i * 8]
            with f.when(got.ne(dims[i * 8])):
                f.ret(-1)
            count.set(count.get() * got)
        f.ret(count.get())


def _contiguous(m: Module) -> None:
    with m.function("tw_dense", I1, [("rank", I64), ("shape", PTR), ("strides", PTR)], local=True) as (
        f,
        (rank, shape, strides),
    ):
        with f.when(strides.eq(0)):
            f.ret(1, I1)
        expected, dense = f.var(I64, 1), f.var(I1, 1)
        with f.each(rank) as i:
            at = (rank - 1 - i) * 8
            dim = shape[at]
            with f.when(dim.eq(0)):
                f.ret(1, I1)
            with f.when(dim.ne(1)), f.when(strides[at].ne(expected.get())):
                dense.set(0)
            expected.set(expected.get() * dim)
        f.ret(dense.get())


def _accept(f: Function, kind: int, tensor: Value, shape: Value, dims: Value, data: Value, io: Value) -> None:
    """Emit code that compares an argument's shape with the specification `tensor`: the shape of an input (`kind`) sets
    sizes in `dims`, any other must agree with them. It returns 1 with address (`data`) and bytes in `io` if it fits,
    else 0. A PyTorch tensor with elements but without memory is lazily zero, and does not fit."""
    count = f.call(I64, "tw_bind" if kind == _INPUT else "tw_equal", tensor, shape, dims)
    with f.when(count < 0):
        f.ret(0)
    with f.when(data.eq(0)), f.when(count.ne(0)):
        f.ret(0)
    io[0] = data
    io[8] = count * tensor[TENSOR.itemsize]
    f.ret(1)


def _negative(m: Module) -> None:
    """Define `tw_negative(obj)`: whether `obj.is_neg()` is true, which the exchange functions do not reveal."""
    with m.function("tw_negative", I1, [("obj", PTR)], local=True) as (f, (obj,)):
        arguments = f.space(8)
        arguments[0] = obj
        name = _globals(f)[GLOBALS.is_neg]
        said = f.call(PTR, "PyObject_VectorcallMethod", name, arguments, (I64, 1), (PTR, 0))
        with f.when(said.eq(0)):
            f.call(VOID, "PyErr_Clear")
            f.ret(0, I1)
        f.call(VOID, "Py_DecRef", said)
        f.ret(said.eq(f.symbol("_Py_TrueStruct")))


def _take(m: Module) -> None:
    """Define the functions that check one argument against its specification, and store its address and size in `io`;
    they return whether it is as expected."""
    for kind, suffix in ((_INPUT, "input"), (_OUTPUT, "output")):
        params = [("tensor", PTR), ("view", PTR), ("dims", PTR), ("io", PTR)]
        with m.function(f"tw_take_dl_{suffix}", I64, params) as (f, (tensor, view, dims, io)):
            rank = f.load(I32, view, DL_RANK).signed(I64)
            shape = f.load(PTR, view, DL_SHAPE)
            address = f.load(PTR, view, DL_DATA) + view[DL_OFFSET]
            itemsize = tensor[TENSOR.itemsize]
            for bad in (
                f.load(I32, view, DL_DEVICE).ne(DL_CPU),
                f.load(I32, view, DL_CODE).cast(I64).ne(tensor[TENSOR.code]),
                rank.ne(tensor[TENSOR.rank]),
                (address.cast(I64) % itemsize).ne(0),
            ):
                with f.when(bad):
                    f.ret(0)
            with f.when(f.call(I1, "tw_dense", rank, shape, f.load(PTR, view, DL_STRIDES)).eq(0)):
                f.ret(0)
            _accept(f, kind, tensor, shape, dims, address, io)
        params = [("tensor", PTR), ("obj", PTR), ("dims", PTR), ("io", PTR)]
        with m.function(f"tw_take_{suffix}", I64, params) as (f, (tensor, obj, dims, io)):
            with f.when(_is(f, obj, GLOBALS.array_type).eq(0)):
                api = f.call(PTR, "tw_api", obj)
                with f.when(api.eq(0)):
                    f.ret(0)
                view = f.space(DL_SIZE)
                with f.when(f.call(I32, f.load(PTR, api, API_VIEW), obj, view).ne(0)):
                    # The slow path will meet the same trouble and report it.
                    f.call(VOID, "PyErr_Clear")
                    f.ret(0)
                count = f.call(I64, f"tw_take_dl_{suffix}", tensor, view, dims, io)
                # A lazy negative of PyTorch is dense where a conjugate's imaginary parts have one element, or where
                # its rules of operators say so (`torch._neg_view`).
                with f.when(count.ne(0)), f.when(f.call(I1, "tw_negative", obj)):
                    f.ret(0)
                f.ret(count)
            written = tensor[TENSOR.written].cast(I32)
            need = written * (WRITABLE - READABLE) + READABLE
            for bad in (
                f.load(PTR, obj, ARRAY_DESCR).ne(tensor[TENSOR.descr]),
                f.load(I32, obj, ARRAY_RANK).signed(I64).ne(tensor[TENSOR.rank]),
                (f.load(I32, obj, ARRAY_FLAGS) & need).ne(need),
            ):
                with f.when(bad):
                    f.ret(0)
            _accept(f, kind, tensor, f.load(PTR, obj, ARRAY_DIMS), dims, f.load(PTR, obj, ARRAY_DATA), io)


def _ranges(m: Module) -> None:
    with m.function("tw_in_range", I1, [("model", PTR), ("dims", PTR)]) as (f, (model, dims)):
        ranges = f.load(PTR, model, MODEL.ranges)
        with f.each(model[MODEL.symbols]) as i:
            r, d = ranges + i * RANGE.size, dims[i * 8]
            for bad in (
                d < r[RANGE.lo],
                d > r[RANGE.hi],
                (d % r[RANGE.multiple]).ne(0),
            ):
                with f.when(bad):
                    f.ret(0, I1)
        f.ret(1, I1)


def _overlaps(m: Module) -> None:
    """Define `tw_overlap(model, io, count)`: whether an output shares memory with another argument; `io` holds
    (address, bytes) pairs."""
    with m.function("tw_overlap", I1, [("model", PTR), ("io", PTR), ("count", I64)]) as (f, values):
        model, io, count = values
        tensors = model[MODEL.tensors]

        def written(k: Value) -> Value:
            return f.load(I64, tensors + k * TENSOR.size, TENSOR.written)

        with f.each(count) as k, f.when(written(k).ne(0)):
            start = io[k * 16]
            end = start + io[k * 16 + 8]
            with f.each(count) as i:
                other = io[i * 16]
                with f.when(i.ne(k)), f.when(other < end), f.when(start < other + io[i * 16 + 8]):
                    f.ret(1, I1)
        f.ret(0, I1)


def _new_outputs(m: Module) -> None:
    """Define `tw_new`: a new array of the framework whose exchange functions are `api` (null: NumPy), with its address
    in `io`; null, with a Python exception set, if that fails."""
    params = [("api", PTR), ("tensor", PTR), ("shape", PTR), ("io", PTR)]
    with m.function("tw_new", PTR, params) as (f, (api, tensor, shape, io)):
        rank = tensor[TENSOR.rank].cast(I32)
        null = f.value(0, PTR)
        with f.when(api.eq(0)):
            descr = tensor[TENSOR.descr]
            f.call(VOID, "Py_IncRef", descr)
            array_type = _globals(f)[GLOBALS.array_type]
            array = f.call(PTR, "PyArray_NewFromDescr", array_type, descr, rank, shape, null, null, (I32, 0), null)
            with f.when(array.ne(0)):
                io[0] = f.load(PTR, array, ARRAY_DATA)
            f.ret(array)
        prototype = f.space(DL_SIZE)
        for at in (DL_DATA, DL_STRIDES, DL_OFFSET):
            prototype[at] = 0
        prototype[DL_DEVICE] = DL_CPU
        f.store(rank, prototype, DL_RANK)
        f.store(tensor[TENSOR.code].cast(I32), prototype, DL_CODE)
        prototype[DL_SHAPE] = shape
        out = f.space(16)
        failed = f.call(I32, f.load(PTR, api, API_ALLOCATE), prototype, out, null, f.symbol("tw_set_error"))
        with f.when(failed.ne(0)):
            f.ret(0, PTR)
        managed = f.load(PTR, out)
        view = managed + DL_MANAGED_TENSOR
        io[0] = f.load(PTR, view, DL_DATA) + view[DL_OFFSET]
        with f.when(f.call(I32, f.load(PTR, api, API_TO_PYTHON), managed, out).ne(0)):
            f.ret(0, PTR)
        f.ret(f.load(PTR, out))
    with m.function("tw_set_error", VOID, [("c", PTR), ("kind", PTR), ("message", PTR)], local=True) as (f, values):
        f.call(VOID, "PyErr_SetString", f.load(PTR, f.symbol("PyExc_MemoryError")), values[2])
        f.ret()


_CALL = (("self", PTR), ("args", PTR), ("nargs", I64), ("kwnames", PTR))
"""The parameters of a builtin."""


def _slow_path(m: Module) -> None:
    """Define `tw_slow`, which calls the slow path with a builtin's arguments; many places branch to it."""
    with m.function("tw_slow", PTR, _CALL, local=True) as (f, (self, args, nargs, kwnames)):
        path = f.call(PTR, "PyTuple_GetItem", self, (I64, 1))
        f.ret(f.call(PTR, "PyObject_Vectorcall", path, args, nargs, kwnames))


class _CallEmitter:
    """`tw_vectorcall(self, args, nargs, kwnames)`: `self` is a tuple (address of the model, slow path, ...).

    `tw_versioned` is the same, but returns a pair of the result and the version of the weights used: both call
    `tw_face`, with another value of `pair`. `tw_watching` has the address of a table of watched tensors in the tuple,
    and those after the model's inputs; where one has changed, the slow path is called.
    """

    def __init__(self, m: Module, name: str, *, watching: bool = False) -> None:
        self.watching = watching
        params = _CALL if watching else (*_CALL, ("pair", I64))
        with m.function(name, PTR, params, local=not watching) as (self.f, values):
            self.self, self.args, self.nargs, self.kwnames, *self.pair = values
            self.emit()

    def emit(self) -> None:
        f = self.f
        self.model = f.call(PTR, "PyLong_AsVoidPtr", f.call(PTR, "PyTuple_GetItem", self.self, (I64, 0)))
        self.inputs = self.model[MODEL.inputs]
        self.outputs = self.model[MODEL.outputs]
        self.out = f.var(PTR, 0)
        self.read_keywords()
        if self.watching:
            table = f.call(PTR, "PyLong_AsVoidPtr", f.call(PTR, "PyTuple_GetItem", self.self, (I64, 2)))
            self.slow_if(self.nargs.ne(self.inputs + table[WATCH.count]))
            self.slow_if(f.call(I64, "tw_unchanged", table, self.args + self.inputs * 8).eq(0))
        else:
            self.slow_if(self.nargs.ne(self.inputs))
        self.io = f.dynamic_space((self.inputs + self.outputs) * 2 + 1)
        self.dims = f.dynamic_space(self.model[MODEL.symbols] + 1)
        self.api = f.var(PTR, 0)
        self.take_inputs()
        self.layout = f.call(PTR, "tw_find", self.model, self.dims)
        self.slow_if(self.layout.eq(0))
        result = f.var(PTR, 0)
        with f.when(self.out.get().ne(0)):
            self.take_outputs()
            f.call(VOID, "Py_IncRef", self.out.get())
            result.set(self.out.get())
        with f.when(self.out.get().eq(0)):
            with f.when(self.model[MODEL.writes].ne(0)):
                self.slow_if_overlap(self.inputs)
            result.set(self.new_outputs())
        self.run(result.get())

    def slow(self) -> None:
        self.f.ret(self.f.call(PTR, "tw_slow", self.self, self.args, self.nargs, self.kwnames))

    def slow_if(self, condition: Value) -> None:
        with self.f.when(condition):
            self.slow()

    @contextmanager
    def slow_unpinned_if(self, condition: Value) -> Iterator[None]:
        f = self.f
        with f.when(condition):
            f.add_atomic(self.layout + LAYOUT.users, -1)
            yield
            self.slow()

    def read_keywords(self) -> None:
        f = self.f
        with f.when(self.kwnames.ne(0)):
            count = f.call(I64, "PyTuple_Size", self.kwnames)
            self.slow_if(count > 1)
            with f.when(count.eq(1)):
                # Names of keywords in calls are interned, so the same name is the same object.
                name = f.call(PTR, "PyTuple_GetItem", self.kwnames, (I64, 0))
                self.slow_if(name.ne(_globals(f)[GLOBALS.out]))
                operand = f.load(PTR, self.args, self.nargs * 8)
                with f.when(operand.ne(f.symbol("_Py_NoneStruct"))):
                    self.out.set(operand)

    def tensor(self, index: Value) -> Value:
        return self.model[MODEL.tensors] + index * TENSOR.size

    def take_inputs(self) -> None:
        f = self.f
        with f.each(self.model[MODEL.symbols]) as i:
            self.dims[i * 8] = -1
        with f.each(self.inputs) as i:
            obj = f.load(PTR, self.args, i * 8)
            count = f.call(I64, "tw_take_input", self.tensor(i), obj, self.dims, self.io + i * 16)
            self.slow_if(count.eq(0))
        self.slow_if(f.call(I1, "tw_in_range", self.model, self.dims).eq(0))
        # New outputs are of the first argument's framework.
        with f.when(self.inputs > 0):
            first = f.load(PTR, self.args)
            with f.when(_is(f, first, GLOBALS.array_type).eq(0)):
                self.api.set(f.call(PTR, "tw_api", first))

    def take_outputs(self) -> None:
        f = self.f
        out = self.out.get()
        shape = f.var(PTR, self.layout[LAYOUT.outputs])
        is_tuple = _is(f, out, GLOBALS.tuple_type)
        with f.when(is_tuple.eq(0)), self.slow_unpinned_if(self.outputs.ne(1)):
            pass
        with f.when(is_tuple), self.slow_unpinned_if(f.call(I64, "PyTuple_Size", out).ne(self.outputs)):
            pass
        with f.each(self.outputs) as i:
            obj = f.var(PTR, out)
            obj.set(out)
            with f.when(is_tuple):
                obj.set(f.call(PTR, "PyTuple_GetItem", out, i))
            index = self.inputs + i
            tensor = self.tensor(index)
            count = f.call(I64, "tw_take_output", tensor, obj.get(), shape.get(), self.io + index * 16)
            with self.slow_unpinned_if(count.eq(0)):
                pass
            shape.set(shape.get() + tensor[TENSOR.rank] * 8)
        self.slow_if_overlap(self.inputs + self.outputs)

    def slow_if_overlap(self, count: Value) -> None:
        with self.slow_unpinned_if(self.f.call(I1, "tw_overlap", self.model, self.io, count)):
            pass

    def new_outputs(self) -> Value:
        f = self.f
        result = f.var(PTR, 0)
        shape = f.var(PTR, self.layout[LAYOUT.outputs])
        single = self.outputs.eq(1)
        with f.when(self.outputs.eq(0)):
            result.set(f.symbol("_Py_NoneStruct"))
            f.call(VOID, "Py_IncRef", result.get())
        with f.when(self.outputs > 1):
            result.set(f.call(PTR, "PyTuple_New", self.outputs))
            self.fail_if(result.get().eq(0), None)
        with f.each(self.outputs) as i:
            index = self.inputs + i
            tensor = self.tensor(index)
            array = f.call(PTR, "tw_new", self.api.get(), tensor, shape.get(), self.io + index * 16)
            with self.slow_unpinned_if(array.eq(0)):  # there is no memory, which the slow path says as it says all
                f.call(VOID, "PyErr_Clear")
                with f.when(result.get().ne(0)):
                    f.call(VOID, "Py_DecRef", result.get())
            with f.when(single):
                result.set(array)
            with f.when(single.eq(0)):
                f.call(I32, "PyTuple_SetItem", result.get(), i, array)
            shape.set(shape.get() + tensor[TENSOR.rank] * 8)
        return result.get()

    def fail_if(self, condition: Value, drop: Value | None) -> None:
        f = self.f
        with f.when(condition):
            f.add_atomic(self.layout + LAYOUT.users, -1)
            if drop is not None:
                f.call(VOID, "Py_DecRef", drop)
            f.ret(0, PTR)

    def fail_if_ended(self, status: Value, result: Value) -> None:
        """Emit code that raises the error for loops that exceeded a limit, if `status` says so, and releases `result`;
        the slow path would run these loops again."""
        f = self.f
        for ended, message in ((ENDLESS, MODEL.endless_message), (TIMED_OUT, MODEL.delayed_message)):
            with f.when(status.eq(ended)):
                kind, text = self.model[MODEL.call_error], f.load(PTR, self.model, message)
                f.call(VOID, "PyErr_SetString", kind, text)
                self.fail_if(status.eq(ended), result)

    def run(self, result: Value) -> None:
        f = self.f
        # The core wants addresses alone; compacting in place only moves words down.
        with f.each(self.inputs + self.outputs) as i:
            self.io[i * 8] = self.io[i * 16]
        measured = self.layout[LAYOUT.measured]
        release = f.var(I1, measured < MEASURED_CALLS)
        with f.when(self.layout[LAYOUT.least_ns] > RELEASE_GIL_NS):
            release.set(1)
        state, status = f.var(PTR, 0), f.var(I64)
        with f.when(release.get()):
            state.set(f.call(PTR, "PyEval_SaveThread"))
        status.set(f.call(I64, self.model[MODEL.execute], self.model, self.layout, self.io))
        with f.when(release.get()):
            f.call(VOID, "PyEval_RestoreThread", state.get())
        if not self.watching:
            self.fail_if_ended(status.get(), result)
        with self.slow_unpinned_if(status.get().ne(OK)):
            f.call(VOID, "Py_DecRef", result)
        f.add_atomic(self.layout + LAYOUT.users, -1)
        if not self.pair:
            f.ret(result)
            return
        with f.when(self.pair[0].eq(0)):
            f.ret(result)
        version = f.call(PTR, "PyLong_FromLongLong", self.io[(self.inputs + self.outputs) * 8])
        pair = f.call(PTR, "PyTuple_New", (I64, 2))
        with f.when(version.eq(0)):
            f.ret(0, PTR)
        with f.when(pair.eq(0)):
            f.ret(0, PTR)
        f.call(I32, "PyTuple_SetItem", pair, (I64, 0), result)
        f.call(I32, "PyTuple_SetItem", pair, (I64, 1), version)
        f.ret(pair)


def define_glue(m: Module) -> None:
    """Add the builtins' bodies, `tw_vectorcall` and `tw_versioned`, to a module that has the core."""
    m.variable("tw_globals", GLOBALS_SIZE)
    parts: tuple[Callable[[Module], None], ...] = (
        _api, _fits, _contiguous, _ranges, _overlaps, _negative, _take, _new_outputs, _slow_path,
    )  # fmt: skip
    for part in parts:
        part(m)
    m.external("_Py_NoneStruct")
    m.external("_Py_TrueStruct")
    m.external("PyExc_MemoryError")
    _CallEmitter(m, "tw_face")
    for pair, name in enumerate(("tw_vectorcall", "tw_versioned")):
        with m.function(name, PTR, _CALL) as (f, values):
            f.ret(f.call(PTR, "tw_face", *values, (I64, pair)))


def define_watching(m: Module) -> None:
    """Add to the module `m` the builtin's body `tw_watching`: it calls a program if the tensors of a table are
    unchanged (`tw_unchanged`), else the slow path."""
    m.external("tw_globals")
    m.external("_Py_NoneStruct")
    _slow_path(m)
    _CallEmitter(m, "tw_watching", watching=True)


GLUE_EXPORTS = (
    "tw_globals", "tw_vectorcall", "tw_versioned", "tw_api", "tw_in_range", "tw_overlap", "tw_new", "tw_take_input",
    "tw_take_output", "tw_take_dl_input", "tw_take_dl_output",
)  # fmt: skip
"""The functions that Python calls, and those that `tw_watching` and `tw_foreign` call."""
PYTHON_FUNCTIONS = (
    "PyTuple_GetItem", "PyTuple_SetItem", "PyTuple_New", "PyTuple_Size", "PyLong_AsVoidPtr", "PyLong_FromLongLong",
    "Py_IncRef", "Py_DecRef", "PyErr_Clear", "PyErr_SetString", "PyEval_SaveThread", "PyEval_RestoreThread",
    "PyObject_Vectorcall", "PyObject_VectorcallMethod",
)  # fmt: skip
PYTHON_DATA = ("_Py_NoneStruct", "_Py_TrueStruct", "PyExc_MemoryError")
