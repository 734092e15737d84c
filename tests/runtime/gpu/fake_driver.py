"""A driver for tests: a library with the functions of NVIDIA's, over this process's memory.

The library is made by LLVM: each function jumps to one of Python's. Streams do nothing before they are waited for, so
that what is read too early is wrong. Kernels run in the emulator of their LLVM text. Everything is counted: calls in
order, memory, modules, streams and graphs that are not given back, threads without a context. Any call can be made to
fail.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.codegen.ptx.emulator import Emulator, encode_map
from tilewright.codegen.ptx import emit as emission
from tilewright.codegen.ptx.module import Launch, Module
from tilewright.native.link import compile_text
from tilewright.native.shared import shared_object
from tilewright.runtime.gpu.driver import FUNCTIONS

Modules = dict[str, tuple[Module, Launch]]
"""The module that was emitted for each kernel, and its launch."""

ARGUMENTS = {
    "cuInit": 1, "cuDriverGetVersion": 1, "cuDeviceGetCount": 1, "cuDeviceGet": 2, "cuDeviceGetName": 3,
    "cuDeviceGetAttribute": 3, "cuDevicePrimaryCtxRetain": 2, "cuDevicePrimaryCtxRelease_v2": 1,
    "cuCtxPushCurrent_v2": 1, "cuCtxPopCurrent_v2": 1, "cuModuleLoadDataEx": 5, "cuModuleUnload": 1,
    "cuModuleGetFunction": 3, "cuFuncSetAttribute": 3, "cuLaunchKernel": 11, "cuMemAlloc_v2": 2, "cuMemFree_v2": 1,
    "cuMemGetInfo_v2": 2, "cuMemcpyAsync": 4, "cuStreamCreate": 2, "cuStreamDestroy_v2": 1, "cuStreamSynchronize": 1,
    "cuGraphCreate": 2, "cuGraphDestroy": 1, "cuGraphAddKernelNode_v2": 5, "cuGraphInstantiateWithFlags": 3,
    "cuGraphExecDestroy": 1, "cuGraphLaunch": 2, "cuEventCreate": 2, "cuEventDestroy_v2": 1, "cuEventRecord": 2,
    "cuEventSynchronize": 1, "cuEventElapsedTime": 3, "cuGetErrorName": 2, "cuGetErrorString": 2,
    "cuTensorMapEncodeTiled": 12,
}  # fmt: skip
WITHOUT_CONTEXT = ("cuInit", "cuDriver", "cuDevice", "cuCtx", "cuGetError", "cuTensorMap")
INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, UNKNOWN = 1, 2, 201, 999
NAMES = {
    INVALID_VALUE: (b"CUDA_ERROR_INVALID_VALUE", b"invalid argument"),
    OUT_OF_MEMORY: (b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
    INVALID_CONTEXT: (b"CUDA_ERROR_INVALID_CONTEXT", b"invalid device context"),
    218: (b"CUDA_ERROR_INVALID_PTX", b"a PTX JIT compilation failed"),
    700: (b"CUDA_ERROR_ILLEGAL_ADDRESS", b"an illegal memory access was encountered"),
    UNKNOWN: (b"CUDA_ERROR_UNKNOWN", b"unknown error"),
}
CONTEXT = 0x1000
EMULATORS: dict[str, Emulator] = {}
"""Emulators by the names of kernels, which are digests of all that they do: to compile one takes half a second."""


def recorded_modules(patch: pytest.MonkeyPatch) -> Modules:
    """The modules of kernels that are compiled from now on."""
    modules: Modules = {}
    emit_module = emission.emit_module

    def recorded(*arguments: Any) -> Module:
        module = emit_module(*arguments)
        modules.update({launch.kernel: (module, launch) for launch in module.launches})
        return module

    patch.setattr(emission, "emit_module", recorded)
    return modules


def _text() -> str:
    count = len(FUNCTIONS)
    parts = [f"@table = internal global [{count} x ptr] zeroinitializer, align 8"]
    parts.append(
        f"define void @fake_set(i64 %k, ptr %f) {{\n  %p = getelementptr [{count} x ptr], ptr @table, i64 0, i64 %k\n"
        "  store ptr %f, ptr %p\n  ret void\n}"
    )
    for k, name in enumerate(FUNCTIONS):
        operands = ", ".join(f"i64 %a{n}" for n in range(ARGUMENTS[name]))
        parts.append(
            f"define i32 @{name}({operands}) {{\n  %p = getelementptr [{count} x ptr], ptr @table, i64 0, i64 {k}\n"
            f"  %f = load ptr, ptr %p\n  %r = call i32 %f({operands})\n  ret i32 %r\n}}"
        )
    return "\n".join(parts) + "\n"


def library(folder: Path) -> Path:
    """The library, written to a folder."""
    path = folder / "libfakecuda.so"
    path.write_bytes(shared_object(compile_text(_text()), ["fake_set", *FUNCTIONS], path.name))
    return path


def _store(address: int, value: int, kind: Any = ctypes.c_int64) -> None:
    kind.from_address(address).value = value


class FakeDriver:
    """The functions of the library. `failing`: of a function, the number of an error, and how many calls go well
    before."""

    def __init__(self, folder: Path, modules: Modules, capability: tuple[int, int] = (9, 0)) -> None:
        self.path = library(folder)
        self.modules = modules
        self.capability = capability
        self.calls: list[str] = []
        self.problems: list[str] = []
        self.failing: dict[str, tuple[int, int]] = {}
        self.memory: dict[int, np.ndarray[Any, Any]] = {}
        self.live: dict[str, dict[int, Any]] = {kind: {} for kind in ("module", "function", "stream", "graph", "exec")}
        self.retained = 0
        self.launched: list[tuple[str, tuple[int, ...]]] = []
        self.lock = threading.RLock()
        self.stacks = threading.local()
        self.numbers = itertools.count(0x10_0000, 16)
        self.texts = {name: ctypes.create_string_buffer(name) for pair in NAMES.values() for name in pair}
        self.emulate = True
        opened = ctypes.CDLL(str(self.path))
        self.callbacks = []
        for k, name in enumerate(FUNCTIONS):
            entry = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * ARGUMENTS[name])(self._entry(name))
            self.callbacks.append(entry)
            opened.fake_set(ctypes.c_int64(k), entry)

    # -- for tests ------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Counter[str]:
        """Calls so far, by name."""
        return Counter(self.calls)

    def left(self) -> dict[str, int]:
        """Counts of what was not given back."""
        kinds = {kind: len(things) for kind, things in self.live.items() if kind != "function"}
        return {k: n for k, n in (kinds | {"memory": len(self.memory), "contexts": self.retained}).items() if n}

    # -- the functions ------------------------------------------------------------------------------------------

    def _entry(self, name: str) -> Callable[..., int]:
        does = getattr(self, name.removesuffix("_v2"))

        def call(*arguments: int) -> int:
            try:
                with self.lock:
                    self.calls.append(name)
                    code, after = self.failing.get(name, (0, 0))
                    if code and after <= 0:
                        if name == "cuStreamSynchronize":  # nothing of the stream is done any more
                            self.live["stream"][arguments[0]].clear()
                        return code
                    if code:
                        self.failing[name] = code, after - 1
                    if not name.startswith(WITHOUT_CONTEXT) and not self._stack():
                        self.problems.append(f"{name} without a context")
                        return INVALID_CONTEXT
                    return does(*arguments) or 0
            except Exception as error:  # it cannot pass through native code
                self.problems.append(f"{name}: {type(error).__name__}: {error}")
                return UNKNOWN

        return call

    def _stack(self) -> list[int]:
        if not hasattr(self.stacks, "of_thread"):
            self.stacks.of_thread = []
        result: list[int] = self.stacks.of_thread
        return result

    def _new(self, kind: str, thing: Any, out: int) -> None:
        handle = next(self.numbers)
        self.live[kind][handle] = thing
        _store(out, handle)

    def _drop(self, kind: str, handle: int) -> int:
        return 0 if self.live[kind].pop(handle, None) is not None else self._wrong(f"no {kind} {handle:#x}")

    def _wrong(self, what: str) -> int:
        self.problems.append(what)
        return INVALID_VALUE

    def cuInit(self, flags: int) -> int:
        return INVALID_VALUE if flags & 0xFFFFFFFF else 0

    def cuDriverGetVersion(self, out: int) -> None:
        _store(out, 12040, ctypes.c_int32)

    def cuDeviceGetCount(self, out: int) -> None:
        _store(out, 1, ctypes.c_int32)

    def cuDeviceGet(self, out: int, number: int) -> None:
        _store(out, number & 0xFFFFFFFF, ctypes.c_int32)

    def cuDeviceGetName(self, out: int, size: int, device: int) -> None:
        ctypes.memmove(out, b"Fake GPU\0", min(9, size & 0xFFFFFFFF))

    def cuDeviceGetAttribute(self, out: int, which: int, device: int) -> None:
        _store(out, self.capability[(which & 0xFF) - 75], ctypes.c_int32)

    def cuDevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        self.retained += 1
        _store(out, CONTEXT)

    def cuDevicePrimaryCtxRelease(self, device: int) -> None:
        self.retained -= 1

    def cuCtxPushCurrent(self, context: int) -> int:
        if context != CONTEXT or not self.retained:
            return INVALID_CONTEXT
        self._stack().append(context)
        return 0

    def cuCtxPopCurrent(self, out: int) -> int:
        if not self._stack():
            return INVALID_CONTEXT
        _store(out, self._stack().pop())
        return 0

    def cuModuleLoadDataEx(self, out: int, image: int, count: int, options: int, values: int) -> int:
        ptx = ctypes.string_at(image).decode()
        if (code := self.failing.get("ptxas", (0, 0))[0]) != 0:
            ctypes.memmove(ctypes.c_int64.from_address(values).value, b"ptxas error: no such thing\0", 27)
            return code
        assert count & 0xFFFFFFFF == 2 and ".version 8.0" in ptx
        self._new("module", ptx, out)
        return 0

    def cuModuleUnload(self, module: int) -> int:
        return self._drop("module", module)

    def cuModuleGetFunction(self, out: int, module: int, name: int) -> int:
        kernel = ctypes.string_at(name).decode()
        if f".entry {kernel}(" not in self.live["module"][module]:
            return self._wrong(f"no kernel {kernel}")
        self._new("function", [kernel, 0], out)
        return 0

    def cuFuncSetAttribute(self, function: int, which: int, value: int) -> None:
        assert which & 0xFFFFFFFF == 8
        self.live["function"][function][1] = value & 0xFFFFFFFF

    def cuMemAlloc(self, out: int, nbytes: int) -> int:
        if nbytes <= 0:
            return INVALID_VALUE
        room = np.full(nbytes + 512, 0xFF, np.uint8)
        address = -(-room.ctypes.data // 256) * 256
        self.memory[address] = room
        _store(out, address)
        return 0

    def cuMemFree(self, address: int) -> int:
        return 0 if self.memory.pop(address, None) is not None else self._wrong(f"no memory at {address:#x}")

    def cuMemGetInfo(self, free: int, total: int) -> None:
        _store(free, 1 << 34)
        _store(total, 1 << 35)

    def cuMemcpyAsync(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self.live["stream"][stream].append(lambda: ctypes.memmove(to, source, nbytes))

    def cuStreamCreate(self, out: int, flags: int) -> None:
        self._new("stream", [], out)

    def cuStreamDestroy(self, stream: int) -> int:
        return self._drop("stream", stream)

    def cuStreamSynchronize(self, stream: int) -> None:
        work = self.live["stream"][stream]
        while work:  # what is next is taken off even where this one fails
            work.pop(0)()

    def _launch(self, function: int, sizes: tuple[int, ...], arguments: int) -> Callable[[], None]:
        """A launch whose arguments are read now, as the driver does."""
        kernel, dynamic = self.live["function"][function]
        module, launch = self.modules[kernel]
        assert sizes[3:] == (*launch.block, launch.shared), (sizes, launch)
        assert launch.shared <= max(dynamic, 48 << 10), (launch.shared, dynamic)
        assert 0 < sizes[0] < 1 << 31 and 0 < sizes[1] < 1 << 16 and 0 < sizes[2] < 1 << 16, sizes
        count = len(launch.buffers) + len(launch.symbols)
        places = (ctypes.c_int64 * (count + len(launch.maps))).from_address(arguments)
        words = [ctypes.c_int64.from_address(p).value for p in places[:count]]
        maps = [ctypes.create_string_buffer(ctypes.string_at(p, 128), 128) for p in places[count:]]
        words += [ctypes.addressof(m) for m in maps]

        def run() -> None:
            assert len(maps) == len(launch.maps)
            self.launched.append((kernel, sizes))
            for address in words[: len(launch.buffers)]:
                if not any(a <= address < a + m.nbytes for a, m in self.memory.items()):
                    raise ValueError(f"{kernel} reads {address:#x}, which is no memory of the device")
            if self.emulate:
                if kernel not in EMULATORS:
                    EMULATORS[kernel] = Emulator(module)
                EMULATORS[kernel].launch(launch, words, list(sizes[:3]))

        return run

    def cuLaunchKernel(self, function: int, *rest: int) -> None:
        *sizes, stream, arguments, _extra = rest
        run = self._launch(function, tuple(n & 0xFFFFFFFF for n in sizes), arguments)
        self.live["stream"][stream].append(run)

    def cuGraphCreate(self, out: int, flags: int) -> None:
        self._new("graph", {}, out)

    def cuGraphDestroy(self, graph: int) -> int:
        return self._drop("graph", graph)

    def cuGraphAddKernelNode(self, out: int, graph: int, before: int, count: int, params: int) -> None:
        nodes = self.live["graph"][graph]
        after = [ctypes.c_int64.from_address(before + 8 * k).value for k in range(count)]
        assert all(node in nodes for node in after)
        function, arguments = (ctypes.c_int64.from_address(params + at).value for at in (0, 40))
        assert all(ctypes.c_int64.from_address(params + at).value == 0 for at in (48, 56, 64))
        sizes = tuple(ctypes.c_uint32.from_address(params + 8 + 4 * k).value for k in range(7))
        node = next(self.numbers)
        nodes[node] = after, self._launch(function, sizes, arguments)
        _store(out, node)

    def cuGraphInstantiateWithFlags(self, out: int, graph: int, flags: int) -> None:
        nodes = self.live["graph"][graph]
        seen: list[int] = []
        for node, (after, _) in nodes.items():
            assert all(a in seen for a in after)
            seen.append(node)
        self._new("exec", [run for _, run in nodes.values()], out)

    def cuGraphExecDestroy(self, graph: int) -> int:
        return self._drop("exec", graph)

    def cuGraphLaunch(self, graph: int, stream: int) -> None:
        self.live["stream"][stream] += self.live["exec"][graph]

    def cuTensorMapEncodeTiled(
        self, out: int, kind: int, rank: int, address: int, sizes: int, steps: int, box: int, ones: int, *options: int
    ) -> int:
        rank, kind = rank & 0xFFFFFFFF, kind & 0xFFFFFFFF
        read = [(ctypes.c_int64, sizes, rank), (ctypes.c_int64, steps, rank - 1), (ctypes.c_uint32, box, rank)]
        lists = [list((t * n).from_address(at)) for t, at, n in read]
        assert list((ctypes.c_uint32 * rank).from_address(ones)) == [1] * rank and out % 64 == 0
        assert [x & 0xFFFFFFFF for x in options] == [0, 3, 2, 0] and all(0 < n <= 256 for n in lists[2])
        ctypes.memmove(out, encode_map(address, kind, *lists), 128)
        return 0

    def cuEventCreate(self, out: int, flags: int) -> None:
        _store(out, next(self.numbers))

    def cuEventDestroy(self, event: int) -> None:
        pass

    def cuEventRecord(self, event: int, stream: int) -> None:
        pass

    def cuEventSynchronize(self, event: int) -> None:
        pass

    def cuEventElapsedTime(self, out: int, start: int, end: int) -> None:
        _store(out, 0x3F800000, ctypes.c_int32)

    def cuGetErrorName(self, code: int, out: int) -> int:
        return self._named(code, out, 0)

    def cuGetErrorString(self, code: int, out: int) -> int:
        return self._named(code, out, 1)

    def _named(self, code: int, out: int, which: int) -> int:
        names = NAMES.get(code & 0xFFFFFFFF)
        if names is None:
            return INVALID_VALUE
        _store(out, ctypes.addressof(self.texts[names[which]]))
        return 0


class FakeArray:
    """An array in the fake device's memory, with DLPack's face."""

    def __init__(self, fake: FakeDriver, array: np.ndarray[Any, Any], strides: tuple[int, ...] | None = None) -> None:
        out = ctypes.c_int64(0)
        with fake.lock:
            fake.cuMemAlloc(ctypes.addressof(out), array.nbytes)
        self.fake, self.address, self.like = fake, out.value, array
        ctypes.memmove(self.address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
        rank = array.ndim
        self.shape = (ctypes.c_int64 * rank)(*array.shape)
        self.strides = (ctypes.c_int64 * rank)(*strides) if strides else None
        self.streams: list[int] = []
        self.tensors: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.streams.append(stream or 0)
        tensor = (ctypes.c_int64 * 8)()
        tensor[0], tensor[1] = self.address, 2
        code = {"f": 2, "i": 0}[self.like.dtype.kind] | self.like.dtype.itemsize * 8 << 8 | 1 << 16
        tensor[2] = self.like.ndim | code << 32
        tensor[3] = ctypes.addressof(self.shape)
        tensor[4] = 0 if self.strides is None else ctypes.addressof(self.strides)
        self.tensors.append(tensor)
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(("PyCapsule_New", ctypes.pythonapi))(ctypes.addressof(tensor), b"dltensor", None)

    def read(self) -> np.ndarray[Any, Any]:
        """A copy of what it holds."""
        data = ctypes.string_at(self.address, self.like.nbytes)
        return np.frombuffer(data, self.like.dtype).reshape(self.like.shape)

    def free(self) -> None:
        self.fake.memory.pop(self.address)
