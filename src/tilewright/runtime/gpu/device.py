"""A program's resources on a GPU: its context, memory, modules and calls, released when no object refers to them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from tilewright.native.link import Library, compile_text
from tilewright.runtime.gpu.driver import FUNCTIONS, MAJOR, MINOR, STREAM_NON_BLOCKING, Driver, driver
from tilewright.runtime.gpu.native import CALL, ENTRIES, EXPORTS, FULL, GONE, GRAPH, GRID, LOG_BYTES, MODULES, gpu_text
from tilewright.runtime.layout import Memory, function
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.native import native
from tilewright.support.errors import Error, TargetError, UnsupportedError

_PTR = ctypes.c_void_p


@cache
def _code() -> Library:
    symbols = native().linked.addresses
    library = Library({"gpu": compile_text(gpu_text)}, EXPORTS, {"tw_copy": symbols["tw_copy"]})
    library.keep_forever()
    return library


class Block:
    """A piece of device memory, with the attributes `address` and `nbytes` like arenas."""

    __slots__ = ("_device", "address", "nbytes")

    def __init__(self, device: Device, nbytes: int) -> None:
        self._device = device
        self.nbytes = nbytes
        self.address = 0
        with device.current() as d:
            self.address = d.number("cuMemAlloc_v2", max(nbytes, 1))
        device.blocks.add(self.address)

    def free(self) -> None:
        """Free the memory, which must not be in use any more."""
        if self.address in self._device.blocks:
            self._device.blocks.discard(self.address)
            with self._device.current() as d:
                d.call("cuMemFree_v2", self.address)

    def __del__(self) -> None:
        if self._device.alive:
            self.free()


class Device:
    """One program's resources on a GPU. Safe to use from several threads.

    Args:
        number: of the device, as the driver counts.

    Raises TargetError if there is no driver, no such device or not the program's kind of device.
    """

    def __init__(self, manifest: Manifest, number: int = 0) -> None:
        self.manifest = manifest
        self.driver = driver()
        _check_program(manifest)
        _code()  # before anything is taken that would have to be given back
        d = self.driver
        count = d.number("cuDeviceGetCount")
        if not 0 <= number < count:
            raise TargetError("no such GPU", where="GPU", expected=f"one of {count}", got=number)
        self._device = d.number("cuDeviceGet", ctypes.c_int(number)) & 0xFFFFFFFF
        _check_kind(d, self._device, manifest)
        self.context = d.number("cuDevicePrimaryCtxRetain", ctypes.c_int(self._device))
        self.blocks: set[int] = set()
        kernels = {s.kernel for s in (*manifest.run_steps, *manifest.prepare_steps)}
        self._log = ctypes.create_string_buffer(LOG_BYTES)
        self._modules = Memory(MODULES.list + 8 * len(kernels))
        self._modules[MODULES.room], self._modules[MODULES.log] = len(kernels), ctypes.addressof(self._log)
        self._calls: list[Memory] = []
        self._keep: list[object] = []
        state = d, self._device, self.context, self._modules, self._calls, self.blocks
        self._close = weakref.finalize(self, _release, *state)
        try:
            self.own = self.call_state()
        except BaseException:
            self._close()
            raise

    @contextmanager
    def current(self) -> Iterator[Driver]:
        """Within the context, the device's CUDA context is this thread's current one; yields the driver."""
        self.driver.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield self.driver
        finally:
            self.driver.result("cuCtxPopCurrent_v2", ctypes.addressof(ctypes.c_int64(0)))

    @property
    def run(self) -> int:
        """The address of the function that replaces `tw_run`."""
        return _code()["tw_gpu_run"]

    def allocate(self, nbytes: int) -> Block:
        """Allocate device memory. Raises TargetError if there is not enough."""
        return Block(self, nbytes)

    def call_state(self) -> Memory:
        """A new state (`CALL`) for one call in flight, with a stream of its own, and without a model yet."""
        call = Memory(CALL.size)
        call[CALL.launch], call[CALL.encode] = _code()["tw_gpu_launch"], _code()["tw_gpu_encode"]
        call[CALL.driver] = self.driver.table.address
        call[CALL.context], call[CALL.modules] = self.context, self._modules.address
        with self.current() as d:
            call[CALL.stream] = d.number("cuStreamCreate", ctypes.c_int(STREAM_NON_BLOCKING))
        self._calls.append(call)
        return call

    def executor(self, model: int, run: int) -> Memory:
        """A new state (`CALL`) for an executor of the model at address `model`, whose entry is at `run`."""
        m = self.manifest
        call = self.call_state()
        size = -(-(GRAPH.words + 16 * (len(m.inputs) + len(m.outputs))) // 64) * 64
        entries, slots = Memory(ENTRIES * size), Memory(8 * (m.run_slots + 1))
        self._keep += [entries, slots]
        call[CALL.model], call[CALL.run], call[CALL.slots] = model, run, slots.address
        call[CALL.entry_size], call[CALL.entries] = size, entries.address
        return call

    def forget_graphs(self, call: Memory) -> None:
        """Destroy the CUDA graphs of an executor that is not in use, as they contain addresses of its old arena."""
        with self.current():
            function(_code()["tw_gpu_forget"], None, _PTR)(call.address)

    def repeat(self, call: Memory, graph: int, dims: int, count: int) -> None:
        """Launch a CUDA graph `count` times without waiting; if `graph` is 0, launch the program's kernels one by one
        instead."""
        function(_code()["tw_gpu_repeat"], None, *[_PTR] * 3, ctypes.c_int64)(call.address, graph, dims, count)
        if call[CALL.failed]:
            raise self.error(call[CALL.failed] & 0xFFFFFFFF | call[CALL.symbol] << 32)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy `nbytes` bytes from `source` to `to`, addresses of the host or the device, in order with the program's
        preparations."""
        if nbytes:
            self.driver.call("cuMemcpyAsync", to, source, nbytes, self.own[CALL.stream])

    def wait(self) -> None:
        """Wait until copies and preparations are done."""
        self.driver.call("cuStreamSynchronize", self.own[CALL.stream])

    def raise_failed(self) -> None:
        """Raise the first error that occurred in launches of the program's `prepare`, if there was one."""
        code, symbol = self.own[CALL.failed], self.own[CALL.symbol]
        self.own[CALL.failed] = 0
        if code:
            raise self.error(code & 0xFFFFFFFF | symbol << 32)

    def error(self, got: int) -> Error:
        """The error for the word `got`, which `tw_gpu_run` returned: the driver's error code and the number of the
        function that failed."""
        where = f"program {self.manifest.name!r}"
        code = got & 0xFFFFFFFF
        code -= (code >> 31) << 32
        if code == GRID:
            expected = "at most 2**31 - 1 blocks in direction x, 65535 in y and z"
            return UnsupportedError("a grid would have more blocks than a GPU launches", where=where, expected=expected)
        if code == GONE:
            hint = "load the program in the child, or start processes by spawn"
            return TargetError("a GPU is lost in the child of a fork", where=where, hint=hint)
        if code == FULL:
            return TargetError("more modules than kernels", where=where)
        log = self._log.value.decode(errors="replace")
        symbol = FUNCTIONS[got >> 32]
        return self.driver.error(code, symbol, log if symbol == "cuModuleLoadDataEx" else "")

    def forked(self) -> None:
        """In the child of a fork: the device is not usable here, and none of its resources may be released."""
        self._close.detach()
        for call in self._calls:
            call[CALL.gone] = 1

    @property
    def name(self) -> str:
        """The driver's name of the device."""
        text = ctypes.create_string_buffer(256)
        self.driver.call("cuDeviceGetName", ctypes.addressof(text), ctypes.c_int(256), ctypes.c_int(self._device))
        return text.value.decode(errors="replace")

    @property
    def alive(self) -> bool:
        """Whether the device still holds something of this program."""
        return self._close.alive

    def close(self) -> None:
        """Release all resources now."""
        self._close()


def _release(d: Driver, device: int, context: int, modules: Memory, calls: Sequence[Memory], blocks: set[int]) -> None:
    """Release a program's resources on a device: the streams of `calls`, the memory at the addresses `blocks`, and the
    loaded modules. Errors are ignored: if the device is lost, nothing can be released."""
    d.result("cuCtxPushCurrent_v2", context)
    forget: Callable[[int], Any] = function(_code()["tw_gpu_forget"], None, _PTR)
    for call in calls:
        d.result("cuStreamSynchronize", call[CALL.stream])
        if call[CALL.entries]:
            forget(call.address)
        d.result("cuStreamDestroy_v2", call[CALL.stream])
    for address in sorted(blocks):
        d.result("cuMemFree_v2", address)
    blocks.clear()
    for k in range(modules[MODULES.count]):
        d.result("cuModuleUnload", modules[MODULES.list + 8 * k])
    d.result("cuCtxPopCurrent_v2", ctypes.addressof(ctypes.c_int64(0)))
    d.result("cuDevicePrimaryCtxRelease_v2", ctypes.c_int(device))


def _check_kind(d: Driver, device: int, manifest: Manifest) -> None:
    """Raise TargetError if the device is older than the code requires."""
    parts = [d.number("cuDeviceGetAttribute", ctypes.c_int(k), ctypes.c_int(device)) for k in (MAJOR, MINOR)]
    here = (parts[0] & 0xFFFFFFFF) * 10 + (parts[1] & 0xFFFFFFFF)
    wanted = int("".join(c for c in manifest.target.cpu if c.isdigit()) or 0)
    if here < wanted:
        raise TargetError(
            "the GPU is older than what the code is for", where=f"program {manifest.name!r}",
            expected=f"compute capability {wanted / 10}", got=str(here / 10), hint=f"compile for nvidia-sm_{here}",
        )  # fmt: skip


def _check_program(manifest: Manifest) -> None:
    """Raise UnsupportedError for programs that cannot be called on a GPU."""
    what = None
    if manifest.state is not None or any(i.written for i in manifest.inputs):
        what = "programs that keep caches between calls"
    elif manifest.extents or manifest.rooms or any(s.region is not None for s in manifest.run_steps):
        what = "loops, branches and sizes that data decides"
    elif manifest.compilers:
        what = "parts that another compiler made"
    if what is not None:
        raise UnsupportedError(f"{what} are not supported on a GPU", where=f"program {manifest.name!r}")


__all__ = ["Block", "Device"]
