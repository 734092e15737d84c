"""The native part of calls on a GPU, as LLVM text: the functions that a program's launchers call, and that run a call.

A call of a model is: copies of its inputs to the device, one launch of a graph that has all its kernels, copies of its
outputs back, and a wait. A graph has a node for each launch by the program's entry. Graphs contain addresses, so there
is one for each memory layout and set of weights' addresses, in a table of some entries:

    CALL      one per executor: the driver, a stream, the model, and the table of graphs
    GRAPH     one per layout and slot of weights: the executable graph, and memory of its own for inputs and outputs

Updated weights reuse the memory of slots, so that updates need no new graphs in the long run.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.native.assembler import I1, I32, I64, PTR, VOID, Function, Module, Value
from tilewright.native.link import host_triple
from tilewright.runtime.call import EXECUTOR, LAYOUT, MODEL, TENSOR
from tilewright.runtime.gpu.driver import DRIVER, FUNCTIONS
from tilewright.runtime.layout import Struct
from tilewright.runtime.limits import DEVICE

CALL = Struct(
    "launch", "encode", "driver*", "context*", "stream*", "graph", "last", "failed", "symbol", "modules*",
    "model*", "run*", "entries*", "entry_size", "next", "slots*", "gone",
)  # fmt: skip
"""The context that launchers get, with all that one call in flight needs. `launch` and `encode` are called by the
program's launchers; `graph` is the one under construction (0 while kernels are launched directly), `last` its last
node. `failed` is the number of the first error, `symbol` the index of the driver's function that returned it. `gone`:
the process is the child of a fork, where the device is lost."""
GRAPH = Struct("tag", "generation", "graph", "memory", "words")
"""`words` is the beginning of an array: for each input and output its address on the device and its bytes."""
MODULES = Struct("lock", "count", "room", "log*", "list")
"""The loaded modules of a program: `list` is the beginning of an array of `room` entries, `log` the buffer for errors
of the driver's compiler."""

ENTRIES = 16
"""Graphs that an executor keeps."""
LOG_BYTES = 8192
GRID, FULL, GONE = -1, -2, -3
"""Error numbers besides the driver's: a grid that exceeds the limits, more modules than expected, and the child of a
fork."""
ALIGN = 256
"""Bytes to a multiple of which inputs and outputs are placed on the device."""
GRID_LIMITS = ((1 << 31) - 1, 65535, 65535)
"""Blocks of a grid in directions x, y and z, at most (CUDA C++ programming guide, "Technical specifications")."""
STATED_BYTES = 48 << 10
"""From this many bytes of shared memory on, a launch must first raise the kernel's limit."""
_MAX_DYNAMIC, _LOG, _LOG_SIZE = 8, 5, 6
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER and CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES."""
_MAX_RANK = 5
_NOT_INTERLEAVED, _SWIZZLE_128, _PROMOTE_128, _ZEROS = 0, 3, 2, 0
"""CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B and
CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE, which gives zeros."""
_NODE_BYTES = 72
"""CUDA_KERNEL_NODE_PARAMS_v2: function, seven numbers of 32 bits, arguments, extra, kernel, context."""


def _address(f: Function, call: Value, symbol: str) -> Value:
    return f.load(PTR, call[CALL.driver], getattr(DRIVER, symbol))


def _driver(f: Function, call: Value, symbol: str, *arguments: Value | tuple[str, int]) -> Value:
    """Emit a call of the driver's function `symbol`, unless an earlier one of this call failed. Returns whether none
    has failed."""
    fine = f.var(I1, 0)
    with f.when(call[CALL.failed].eq(0)):
        code = f.call(I32, _address(f, call, symbol), *arguments)
        fine.set(code.eq(0))
        with f.when(code.ne(0)):
            _fail(f, call, code.signed(I64), symbol)
    return fine.get()


def _fail(f: Function, call: Value, code: Value | int, symbol: str) -> None:
    call[CALL.failed] = f.value(code, I64)
    call[CALL.symbol] = FUNCTIONS.index(symbol)


def _load_function(m: Module) -> None:
    """Define `tw_gpu_function(call, ptx, module, name, function, shared)`: load a module, if need be, and find a kernel
    in it. One thread at a time."""
    params = [("call", PTR), ("ptx", PTR), ("module", PTR), ("name", PTR), ("function", PTR), ("shared", I64)]
    with m.function("tw_gpu_function", VOID, params, local=True) as (f, (call, ptx, module, name, function, shared)):
        modules = call[CALL.modules]
        with f.loop() as wait:
            wait.leave_if(f.swap_if(modules + MODULES.lock, 0, 1))
            f.pause()
        with f.when(module[0].eq(0)):
            count = modules[MODULES.count]
            with f.when(count >= modules[MODULES.room]):
                _fail(f, call, FULL, "cuModuleLoadDataEx")
            options, values, out = f.space(8), f.space(16), f.space(8)
            options[0] = _LOG | _LOG_SIZE << 32
            values[0] = modules[MODULES.log]
            values[8] = LOG_BYTES
            loaded = _driver(f, call, "cuModuleLoadDataEx", out, ptx, (I32, 2), options, values)
            with f.when(loaded):
                f.store(out[0], modules + MODULES.list + count * 8)
                modules[MODULES.count] = count + 1
                module[0] = out[0]
        with f.when(function[0].eq(0)):
            place = f.space(8)
            _driver(f, call, "cuModuleGetFunction", place, f.load(PTR, module), name)
            with f.when(shared > STATED_BYTES):
                _driver(f, call, "cuFuncSetAttribute", f.load(PTR, place), (I32, _MAX_DYNAMIC), shared.cast(I32))
            with f.when(call[CALL.failed].eq(0)):
                f.store(place[0], function, order="release")
        f.put(0, I64, modules, MODULES.lock, order="release")
        f.ret()


def _launch(m: Module) -> None:
    """Define `tw_gpu_launch(call, ptx, module, name, function, sizes, arguments)`, which launchers call
    (`codegen/ptx/launcher.py`): add a node to the graph under construction, or launch directly."""
    params = [(n, PTR) for n in ("call", "ptx", "module", "name", "function", "sizes", "arguments")]
    with m.function("tw_gpu_launch", VOID, params) as (f, (call, ptx, module, name, function, sizes, arguments)):
        with f.when(call[CALL.failed].ne(0)):
            f.ret()
        for k, most in enumerate(GRID_LIMITS):
            blocks = sizes[8 * k]
            with f.when(blocks <= 0):
                f.ret()
            with f.when(blocks > most):
                _fail(f, call, GRID, "cuLaunchKernel")
                f.ret()
        with f.when(f.load(I64, function, order="acquire").eq(0)):
            f.call(VOID, "tw_gpu_function", call, ptx, module, name, function, sizes[48])
        with f.when(call[CALL.failed].ne(0)):
            f.ret()
        kernel, stream = f.load(PTR, function), call[CALL.stream]
        numbers = [sizes[8 * k].cast(I32) for k in range(7)]
        with f.when(call[CALL.graph].eq(0)):
            _driver(f, call, "cuLaunchKernel", kernel, *numbers, stream, arguments, (PTR, 0))
            f.ret()
        node, out = f.space(_NODE_BYTES), f.space(8)
        for at in range(0, _NODE_BYTES, 8):
            node[at] = 0
        node[0] = kernel
        for k, number in enumerate(numbers):
            f.store(number, node, 8 + 4 * k)
        node[40] = arguments
        last = call + CALL.last
        count = last[0].ne(0).cast(I64)
        added = _driver(f, call, "cuGraphAddKernelNode_v2", out, f.load(PTR, call, CALL.graph), last, count, node)
        with f.when(added):
            last[0] = out[0]
        f.ret()


def _encode(m: Module) -> None:
    """Define `tw_gpu_encode(call, map, about, address)`, which launchers call to write the tensor map of the array at
    `address` to `map`. `about` has its type, rank, bytes of an element, five sizes of the array and five of the box
    (`codegen/ptx/launcher.py`). Arrays without elements get none, as nothing is launched for them."""
    params = [(n, PTR) for n in ("call", "map", "about", "address")]
    with m.function("tw_gpu_encode", VOID, params) as (f, (call, out, about, array)):
        steps, boxes, ones = f.space(8 * _MAX_RANK), f.space(4 * _MAX_RANK), f.space(4 * _MAX_RANK)
        step = f.var(I64, about[16])
        for k in range(_MAX_RANK):
            size = about[8 * (3 + k)]
            with f.when(size <= 0):
                f.ret()
            step.set(step.get() * size)
            steps[8 * k] = step.get()
            f.store(about[8 * (3 + _MAX_RANK + k)].cast(I32), boxes, 4 * k)
            f.put(1, I32, ones, 4 * k)
        kind, rank = about[0].cast(I32), about[8].cast(I32)
        options = [(I32, n) for n in (_NOT_INTERLEAVED, _SWIZZLE_128, _PROMOTE_128, _ZEROS)]
        _driver(f, call, "cuTensorMapEncodeTiled", out, kind, rank, array, about + 24, steps, boxes, ones, *options)
        f.ret()


def _clear(m: Module) -> None:
    """Define `tw_gpu_clear(call, entry)`: release the resources of a table entry; errors are ignored, as they belong to
    no call."""
    with m.function("tw_gpu_clear", VOID, [("call", PTR), ("item", PTR)], local=True) as (f, (call, entry)):
        for field, symbol in ((GRAPH.graph, "cuGraphExecDestroy"), (GRAPH.memory, "cuMemFree_v2")):
            with f.when(entry[field].ne(0)):
                f.call(I32, _address(f, call, symbol), f.load(PTR, entry, field))
            entry[field] = 0
        entry[GRAPH.tag] = 0
        f.ret()
    with m.function("tw_gpu_forget", VOID, [("call", PTR)]) as (f, (call,)):
        with f.each(ENTRIES) as k:
            entry = call[CALL.entries] + k * call[CALL.entry_size]
            f.call(VOID, "tw_gpu_clear", call, entry)
        f.ret()


def _sizes(m: Module) -> None:
    """Define `tw_gpu_sizes(model, dims, entry)`: store in a table entry the bytes and device offsets of all inputs
    and outputs; returns their total. `dims` are the symbols' values, in the layout that also has the outputs'
    dimensions."""
    with m.function("tw_gpu_sizes", I64, [("model", PTR), ("dims", PTR), ("item", PTR)], local=True) as (f, values):
        model, dims, entry = values
        inputs, total = model[MODEL.inputs], f.var(I64, 0)
        shape = f.var(PTR, f.load(PTR, dims + -LAYOUT.dims, LAYOUT.outputs))
        with f.each(inputs + model[MODEL.outputs]) as k:
            tensor = model[MODEL.tensors] + k * TENSOR.size
            rank, size = tensor[TENSOR.rank], f.var(I64)
            size.set(tensor[TENSOR.itemsize])
            with f.when(k < inputs), f.each(rank) as j:
                d = tensor[TENSOR.dims][j * 8]
                with f.when(d >= 0):
                    size.set(size.get() * d)
                with f.when(d < 0):
                    size.set(size.get() * dims[(-1 - d) * 8])
            with f.when(k >= inputs):
                with f.each(rank) as j:
                    size.set(size.get() * shape.get()[j * 8])
                shape.set(shape.get() + rank * 8)
            words = entry + k * 16 + GRAPH.words
            words[0] = total.get()
            words[8] = size.get()
            total.set((total.get() + size.get() + (ALIGN - 1)) & -ALIGN)
        f.ret(total.get())


def _make(m: Module) -> None:
    """Define `tw_gpu_make(call, slots, dims, tag, generation)`: create a graph for a layout and a set of weights,
    replacing the oldest one; null if the driver fails."""
    params = [("call", PTR), ("slots", PTR), ("dims", PTR), ("tag", I64), ("generation", I64)]
    with m.function("tw_gpu_make", PTR, params, local=True) as (f, (call, slots, dims, tag, generation)):
        model, number = call[CALL.model], call[CALL.next]
        call[CALL.next] = number + 1
        entry = call[CALL.entries] + (number & (ENTRIES - 1)) * call[CALL.entry_size]
        f.call(VOID, "tw_gpu_clear", call, entry)
        total = f.call(I64, "tw_gpu_sizes", model, dims, entry)
        _driver(f, call, "cuMemAlloc_v2", entry + GRAPH.memory, total + ALIGN)
        base, own = entry[GRAPH.memory], call[CALL.slots]
        arguments = model[MODEL.inputs] + model[MODEL.outputs]
        with f.each(arguments) as k:
            place = entry + k * 16 + GRAPH.words
            place[0] += base
            f.store(place[0], own + k * 8)
        others = model[MODEL.packed] + model[MODEL.temps]
        f.call(VOID, "tw_copy", own + arguments * 8, slots + arguments * 8, others + 1)
        created = _driver(f, call, "cuGraphCreate", call + CALL.graph, (I32, 0))
        with f.when(created):
            call[CALL.last] = 0
            f.call(VOID, call[CALL.run], own, dims, (I64, 0), (I64, 1), call)
            graph = f.load(PTR, call, CALL.graph)
            _driver(f, call, "cuGraphInstantiateWithFlags", entry + GRAPH.graph, graph, (I64, 0))
            f.call(I32, _address(f, call, "cuGraphDestroy"), graph)
        call[CALL.graph] = 0
        with f.when(call[CALL.failed].ne(0)):
            f.call(VOID, "tw_gpu_clear", call, entry)
            f.ret(0, PTR)
        entry[GRAPH.generation] = generation
        entry[GRAPH.tag] = tag
        f.ret(entry)


def _find(m: Module) -> None:
    params = [("call", PTR), ("tag", I64), ("generation", I64)]
    with m.function("tw_gpu_find", PTR, params, local=True) as (f, (call, tag, generation)):
        with f.each(ENTRIES) as k:
            entry = call[CALL.entries] + k * call[CALL.entry_size]
            with f.when(entry[GRAPH.tag].eq(tag)):
                with f.when(entry[GRAPH.generation].eq(generation)):
                    f.ret(entry)
        f.ret(0, PTR)


def _copies(f: Function, call: Value, entry: Value, slots: Value, first: Value, count: Value, back: bool) -> None:
    """Emit copies of `count` arrays, from number `first` on, from their addresses in `entry` to the memory in `slots`,
    or with `back` the other way. The driver recognises addresses of either side, so that arrays may be on host or
    device."""
    with f.each(count) as k:
        words = entry + (first + k) * 16 + GRAPH.words
        place, size, array = f.load(PTR, words), words[8], f.load(PTR, slots, (first + k) * 8)
        with f.when(size > 0):
            to, source = (array, place) if back else (place, array)
            _driver(f, call, "cuMemcpyAsync", to, source, size, call[CALL.stream])


def _run(m: Module) -> None:
    """Define `tw_gpu_run(slots, dims, tid, nthreads, barrier)`, which replaces a CPU program's `tw_run`, so that
    layouts, executors and weights are found as on a CPU (`call.py`)."""
    params = [("slots", PTR), ("dims", PTR), ("tid", I64), ("nthreads", I64), ("barrier", PTR)]
    with m.function("tw_gpu_run", VOID, params) as (f, (slots, dims, _tid, _nthreads, _barrier)):
        executor = slots + -EXECUTOR.slots
        call = executor[EXECUTOR.device]
        with f.when(call[CALL.gone].ne(0)):
            executor[EXECUTOR.status] = DEVICE
            executor[EXECUTOR.got] = GONE & 0xFFFFFFFF
            f.ret()
        call[CALL.failed] = 0
        pushed = _driver(f, call, "cuCtxPushCurrent_v2", call[CALL.context])
        with f.when(pushed):
            model = call[CALL.model]
            tag, generation = executor[EXECUTOR.tag], executor[EXECUTOR.generation]
            entry = f.var(PTR, f.call(PTR, "tw_gpu_find", call, tag, generation))
            with f.when(entry.get().eq(0)):
                entry.set(f.call(PTR, "tw_gpu_make", call, slots, dims, tag, generation))
            with f.when(entry.get().ne(0)):
                inputs, outputs = model[MODEL.inputs], model[MODEL.outputs]
                stream = call[CALL.stream]
                _copies(f, call, entry.get(), slots, f.value(0, I64), inputs, back=False)
                _driver(f, call, "cuGraphLaunch", f.load(PTR, entry.get(), GRAPH.graph), stream)
                _copies(f, call, entry.get(), slots, inputs, outputs, back=True)
                # Even where a step failed: those before it read the caller's memory.
                _always(f, call, "cuStreamSynchronize", stream)
            _always(f, call, "cuCtxPopCurrent_v2", f.space(8))
        with f.when(call[CALL.failed].ne(0)):
            executor[EXECUTOR.status] = DEVICE
            code = call[CALL.failed] & 0xFFFFFFFF
            executor[EXECUTOR.got] = code | call[CALL.symbol] << 32
        f.ret()


def _repeat(m: Module) -> None:
    """Define `tw_gpu_repeat(call, graph, dims, count)`: launch a graph `count` times, or without one each kernel of the
    program, without waiting; for measurements."""
    params = [("call", PTR), ("graph", PTR), ("dims", PTR), ("count", I64)]
    with m.function("tw_gpu_repeat", VOID, params) as (f, (call, graph, dims, count)):
        call[CALL.failed] = 0
        with f.each(count):
            with f.when(graph.ne(0)):
                _driver(f, call, "cuGraphLaunch", graph, call[CALL.stream])
            with f.when(graph.eq(0)):
                own, run = call[CALL.slots], call[CALL.run]
                f.call(VOID, run, own, dims, (I64, 0), (I64, 1), call)
        f.ret()


def _always(f: Function, call: Value, symbol: str, *arguments: Value) -> None:
    """Emit a call of the driver's function `symbol` even after earlier errors; its own error is recorded if it is the
    first."""
    code = f.call(I32, _address(f, call, symbol), *arguments)
    with f.when(code.ne(0)), f.when(call[CALL.failed].eq(0)):
        _fail(f, call, code.signed(I64), symbol)


def gpu_text() -> str:
    """LLVM text of what launchers and calls on a GPU need; it calls `tw_copy` of the core."""
    m = Module(host_triple())
    parts: tuple[Callable[[Module], None], ...] = (
        *(_load_function, _launch, _encode, _clear, _sizes, _make, _find, _run, _repeat),
    )
    for part in parts:
        part(m)
    return m.text()


EXPORTS = ("tw_gpu_launch", "tw_gpu_encode", "tw_gpu_forget", "tw_gpu_run", "tw_gpu_repeat")

__all__ = [
    "CALL",
    "ENTRIES",
    "EXPORTS",
    "FULL",
    "GONE",
    "GRAPH",
    "GRID",
    "GRID_LIMITS",
    "LOG_BYTES",
    "MODULES",
    "gpu_text",
]
