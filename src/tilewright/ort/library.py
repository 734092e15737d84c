"""The shared library of the provider that ONNX Runtime loads, as LLVM text that is compiled and linked here.

Its functions are those of ONNX Runtime's plug-in interface. What happens once a session (which nodes are taken, their
compilation) is left to Python, through the addresses in a table that Python fills in (`provider.py`) and empties when
the interpreter ends: then a function gives a status that says so, or does nothing. What happens once a call is
`tw_ort_compute`, which needs no Python: it binds the tensors of a node to a program's arguments and runs it.

    OrtNodeComputeInfo -> tw_ort_compute -> tw_find, tw_execute (runtime/call.py) -> the program
                                  |  anything out of the ordinary: sizes without memory yet, a refusal to be explained
                                  +-> Python (compute.py)
"""

from __future__ import annotations

from tilewright.native.assembler import I1, I32, I64, PTR, VOID, Function, Module, Value
from tilewright.native.link import compile_text, host_triple
from tilewright.native.shared import shared_object
from tilewright.ort.abi import CHECKED, EP_FAIL, NODE, UNCHECKED
from tilewright.runtime.call import LAYOUT, MODEL, OK, TENSOR
from tilewright.runtime.dlpack import (
    DL_CODE,
    DL_CPU,
    DL_DATA,
    DL_DEVICE,
    DL_OFFSET,
    DL_RANK,
    DL_SHAPE,
    DL_SIZE,
    DL_STRIDES,
)
from tilewright.runtime.layout import Struct

HOOKS: dict[str, tuple[str, str]] = {
    "create_factories": (PTR, "pppppp"),
    "supported_devices": (PTR, "pppppp"),
    "create_ep": (PTR, "ppppppp"),
    "release_ep": (VOID, "pp"),
    "capability": (PTR, "ppp"),
    "compile": (PTR, "pppppp"),
    "release_nodes": (VOID, "ppp"),
    "compute_slowly": (PTR, "pp"),
}
"""Functions of Python: what each gives (an address is that of a status) and its parameters, all of a word."""
SUPPORT = ("tw_find", "tw_in_range", "tw_overlap", "tw_take_dl_input")
"""Functions of the runtime that a call uses."""
TABLE = Struct("api", "name", "vendor", "version", *HOOKS, *SUPPORT)
"""The table that Python fills in: the address of `OrtApi`, three texts, functions of Python, those of the runtime."""
NODE_INFO = Struct("version", *NODE, "model*", "inputs*", "outputs*")
"""An `OrtNodeComputeInfo`, then our own fields: the program's descriptor, null if all calls are made by Python, and for
each of its arguments the number of the node's input or output."""

_TEXTS = {"tw_ort_name": "name", "tw_ort_vendor": "vendor", "tw_ort_version": "version"}
_NULL_RESULT = {"tw_ort_allocator": 4, "tw_ort_transfer": 2, "tw_ort_stream": 4}
"""Functions that give "there is none" through their last parameter, with how many parameters they have."""


def library_text() -> str:
    """The LLVM text of the provider's library."""
    m = Module(host_triple())
    m.variable("tw_ort_words", TABLE.size)
    m.string("tw_ort_ended", "tilewright: the Python interpreter has ended")
    with m.function("tw_ort_table", PTR, []) as (f, _):
        f.ret(f.symbol("tw_ort_words"))
    for hook, (result, parameters) in HOOKS.items():
        _forward(m, hook, result, len(parameters))
    for name, field in _TEXTS.items():
        with m.function(name, PTR, [("this", PTR)]) as (f, _):
            f.ret(_word(f, getattr(TABLE, field)))
    for name, count in _NULL_RESULT.items():
        with m.function(name, PTR, _words(count)) as (f, values):
            values[-1][0] = 0
            f.ret(0, PTR)
    _answers(m)
    _entries(m)
    _Compute(m)
    return m.text()


EXPORTS = (
    "CreateEpFactories", "ReleaseEpFactory", "tw_ort_table", *_TEXTS, *_NULL_RESULT, "tw_ort_nothing", "tw_ort_no",
    "tw_ort_compatible", "tw_ort_state", "tw_ort_compute", *(f"tw_ort_{hook}" for hook in HOOKS),
)  # fmt: skip
"""The functions that the library shows: the two that ONNX Runtime looks for, and those whose addresses Python needs."""


def library() -> bytes:
    """The library as an ELF file. Raises CompileError on machines for which no libraries can be written."""
    return shared_object(compile_text(library_text), EXPORTS, "libtilewright_ort.so")


def _words(count: int) -> list[tuple[str, str]]:
    return [(f"p{k}", PTR) for k in range(count)]


def _word(f: Function, offset: int) -> Value:
    return f.load(PTR, f.symbol("tw_ort_words"), offset, order="acquire")


def _ended(f: Function) -> Value:
    """Emit a status that says that Python has ended; null, for success, if no `OrtApi` was set yet."""
    api, result = _word(f, TABLE.api), f.var(PTR, 0)
    with f.when(api.ne(0)):
        create = f.load(PTR, api, 8 * UNCHECKED["CreateStatus"][0])
        result.set(f.call(PTR, create, (I32, EP_FAIL), f.symbol("tw_ort_ended")))
    return result.get()


def _forward(m: Module, hook: str, result: str, count: int) -> None:
    """Define `tw_ort_HOOK`, which passes its `count` arguments to the Python function in the table and returns
    `result`."""
    with m.function(f"tw_ort_{hook}", result, _words(count)) as (f, values):
        target = _word(f, getattr(TABLE, hook))
        with f.when(target.ne(0)):
            if result == VOID:
                f.call(VOID, target, *values)
                f.ret()
            else:
                f.ret(f.call(result, target, *values))
        if result == VOID:
            f.ret()
        else:
            f.ret(_ended(f))


def _answers(m: Module) -> None:
    """Define the functions of the provider's interface that always return one value."""
    with m.function("tw_ort_nothing", VOID, _words(2)) as (f, _):
        f.ret()
    with m.function("tw_ort_no", I32, _words(1)) as (f, _):
        f.ret(0, I32)
    with m.function("tw_ort_compatible", PTR, _words(5)) as (f, values):
        f.put(0, I32, values[-1])  # OrtCompiledModelCompatibility_EP_NOT_APPLICABLE
        f.ret(0, PTR)
    with m.function("tw_ort_state", PTR, _words(3)) as (f, (info, _, out)):
        out[0] = info
        f.ret(0, PTR)


def _entries(m: Module) -> None:
    """Define the two functions that ONNX Runtime looks up by name in a provider's library."""
    with m.function("CreateEpFactories", PTR, _words(6)) as (f, values):
        f.ret(f.call(PTR, "tw_ort_create_factories", *values))
    with m.function("ReleaseEpFactory", PTR, _words(1)) as (f, _):
        f.ret(0, PTR)


class _Compute:
    """Emits `tw_ort_compute(info, state, context)`, which runs a node and returns a status."""

    def __init__(self, m: Module) -> None:
        with m.function("tw_ort_compute", PTR, [("info", PTR), ("state", PTR), ("context", PTR)]) as (self.f, values):
            self.info, _, self.context = values
            self.emit()

    def emit(self) -> None:
        f = self.f
        self.model = self.info[NODE_INFO.model]
        self.api = _word(f, TABLE.api)
        self.slow_if(self.model.eq(0))
        self.slow_if(_word(f, TABLE.compute_slowly).eq(0))
        self.inputs, self.outputs = self.model[MODEL.inputs], self.model[MODEL.outputs]
        self.io = f.dynamic_space((self.inputs + self.outputs) * 2 + 1)
        symbols = self.model[MODEL.symbols]
        self.dims = f.dynamic_space(symbols + 1)
        with f.each(symbols) as i:
            self.dims[i * 8] = -1
        self.value, self.data = f.space(8), f.space(8)
        self.take_inputs()
        self.slow_if(f.call(I1, _word(f, TABLE.tw_in_range), self.model, self.dims).eq(0))
        layout = f.call(PTR, _word(f, TABLE.tw_find), self.model, self.dims)
        self.slow_if(layout.eq(0))
        self.take_outputs(layout)
        overlap = f.call(I1, _word(f, TABLE.tw_overlap), self.model, self.io, self.inputs + self.outputs)
        self.slow_if(overlap, layout)
        with f.each(self.inputs + self.outputs) as i:
            self.io[i * 8] = self.io[i * 16]
        status = f.call(I64, self.model[MODEL.execute], self.model, layout, self.io)
        f.add_atomic(layout + LAYOUT.users, -1)
        self.slow_if(status.ne(OK))
        f.ret(0, PTR)

    def slow_if(self, condition: Value, layout: Value | None = None) -> None:
        f = self.f
        with f.when(condition):
            if layout is not None:
                f.add_atomic(layout + LAYOUT.users, -1)
            f.ret(f.call(PTR, "tw_ort_compute_slowly", self.info, self.context))

    def ask(self, name: str, *arguments: Value, layout: Value | None = None) -> None:
        """Emit a call of function `name` of ONNX Runtime's interface; a status other than success is returned to the
        caller, after releasing `layout` if that is passed."""
        f = self.f
        status = f.call(PTR, f.load(PTR, self.api, 8 * CHECKED[name][0]), *arguments)
        with f.when(status.ne(0)):
            if layout is not None:
                f.add_atomic(layout + LAYOUT.users, -1)
            f.ret(status, PTR)

    def take_inputs(self) -> None:
        f = self.f
        view, type, shape, rank = f.space(DL_SIZE), f.space(8), f.space(8), f.space(8)
        view[DL_DEVICE] = DL_CPU
        view[DL_STRIDES] = view[DL_OFFSET] = 0
        numbers = self.info[NODE_INFO.inputs]
        with f.each(self.inputs) as i:
            self.ask("KernelContext_GetInput", self.context, numbers[i * 8], self.value)
            value = f.load(PTR, self.value)
            self.slow_if(value.eq(0))
            self.ask("GetTensorElementTypeAndShapeDataReference", value, type, shape, rank)
            self.ask("GetTensorMutableData", value, self.data)
            tensor = self.model[MODEL.tensors] + i * TENSOR.size
            view[DL_DATA] = f.load(PTR, self.data)
            f.store(rank[0].cast(I32), view, DL_RANK)
            f.store(tensor[TENSOR.code].cast(I32), view, DL_CODE)
            view[DL_SHAPE] = f.load(PTR, shape)
            accepted = f.call(I64, _word(f, TABLE.tw_take_dl_input), tensor, view, self.dims, self.io + i * 16)
            self.slow_if(accepted.eq(0))

    def take_outputs(self, layout: Value) -> None:
        f = self.f
        numbers, shape = self.info[NODE_INFO.outputs], f.var(PTR, layout[LAYOUT.outputs])
        with f.each(self.outputs) as i:
            index = self.inputs + i
            tensor = self.model[MODEL.tensors] + index * TENSOR.size
            rank, dims = tensor[TENSOR.rank], shape.get()
            number = numbers[i * 8]
            self.ask("KernelContext_GetOutput", self.context, number, dims, rank, self.value, layout=layout)
            self.ask("GetTensorMutableData", f.load(PTR, self.value), self.data, layout=layout)
            nbytes = f.var(I64, tensor[TENSOR.itemsize])
            with f.each(rank) as k:
                nbytes.set(nbytes.get() * dims[k * 8])
            self.io[index * 16] = self.data[0]
            self.io[index * 16 + 8] = nbytes.get()
            shape.set(dims + rank * 8)


__all__ = ["EXPORTS", "HOOKS", "NODE_INFO", "SUPPORT", "TABLE", "library", "library_text"]
