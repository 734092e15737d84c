"""A loaded program in native memory: the structs that `call.py` reads, filled and kept alive from Python."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.native.link import Library
from tilewright.runtime.arena import Interval, Plan, least_bytes, plan, temp_intervals
from tilewright.runtime.arguments import describe_spec
from tilewright.runtime.call import (
    EXECUTOR,
    LAYOUT,
    LAYOUTS,
    MODEL,
    NO_EXECUTOR,
    OK,
    RANGE,
    SUPERSEDED,
    TENSOR,
    WEIGHTS,
)
from tilewright.runtime.foreign import foreign_function
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import Memory, aligned_bytes, function
from tilewright.runtime.limits import (
    DEVICE,
    ENDLESS,
    INTERRUPTED,
    MAX_ITERATIONS,
    REFUSED,
    TIMED_OUT,
    check_iterations,
    check_time_limit,
)
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.native import native
from tilewright.runtime.places import places_table, usual_dims
from tilewright.runtime.refusals import check_assumptions, refused
from tilewright.runtime.specs import MAX_BYTES, InputSpec, OutputSpec
from tilewright.runtime.weights.control import SLOTS, Control
from tilewright.runtime.weights.prepare import Prepare
from tilewright.support.errors import CallError, CompileError

if TYPE_CHECKING:
    from tilewright.runtime.gpu.device import Block, Device

MAX_EXECUTORS = 64
"""Calls of one model at the same time, each with an arena of its own."""
MAX_RESERVED = 1 << 26
"""An arena for the largest sizes is allocated at once if it has at most this many bytes."""
UNBOUNDED = (1 << 31) - 1
"""The upper bound of a symbol whose range states none."""
_TIMEOUT_SECONDS = 60.0
"""Seconds that a call waits for an arena before it fails."""

_DLPACK_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_NO_CODE = 0xFFFFFFFF
"""A DLPack type that no tensor has."""
_live: weakref.WeakSet[Engine] = weakref.WeakSet()


class StoreMoved(Exception):
    """Raised when the control page names no slot, because the weights were moved or are gone."""


class Engine:
    """Native state of one program: descriptors, memory layouts by dimensions, executors, addresses of weights.

    Args:
        control: the control page that says which slot is current; a private one if None.
        reader: which entry of the page counts the calls of this process.
        device: where kernels run and arenas and packed weights are; the host if None.
    """

    def __init__(
        self,
        manifest: Manifest,
        library: Library,
        threads: int,
        control: Control | None = None,
        reader: int = 0,
        device: Device | None = None,
    ) -> None:
        self.device = device
        self.manifest = manifest
        self.linked = library
        self.threads = threads
        self.control = control or Control.private()
        self.prepare = Prepare(manifest, library, 1 if manifest.alone else threads)
        self._native = native()
        self._lock = threading.RLock()
        self._shapes = function(library["tw_shapes"], None, ctypes.c_void_p, ctypes.c_void_p)
        self._keep: list[object] = []
        self._arenas: list[Array | Block | None] = [None] * MAX_EXECUTORS
        self._device_calls: dict[int, Memory] = {}
        self._reserve = 0
        self._tags = 0
        self._max_iterations = MAX_ITERATIONS
        self._time_limit: float | None = None
        m = manifest
        self._arguments = len(m.inputs) + len(m.outputs)
        slots = m.run_slots + 1
        self._outdims = m.output_rank_total
        self._layout_size = _round(LAYOUT.dims + 8 * (len(m.symbols) + self._outdims + len(m.run_temps)))
        self._executor_size = _round(EXECUTOR.slots + 8 * slots)
        self._weights_size = _round(WEIGHTS.addresses + 8 * len(m.packed))
        self._layouts = Memory(LAYOUTS * self._layout_size)
        self._executors = Memory(MAX_EXECUTORS * self._executor_size)
        self._weights = Memory(SLOTS * self._weights_size)
        self._model = Memory(MODEL.size)
        self._describe()
        self.set_reader(reader)
        _live.add(self)

    @property
    def writes_inputs(self) -> bool:
        """Whether the program writes to some of its inputs, which must then be the caller's own memory."""
        return bool(self._model[MODEL.writes])

    @property
    def address(self) -> int:
        """The address of the model's descriptor."""
        return self._model.address

    # -- descriptors -----------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        m, model = self.manifest, self._model
        model[MODEL.run] = self.linked["tw_run"] if self.device is None else self.device.run
        model[MODEL.threads] = 1 if m.alone else self.threads
        model[MODEL.execute] = self._native.linked["tw_execute"]
        model[MODEL.shapes], model[MODEL.outdims] = self.linked["tw_shapes"], self._outdims
        model[MODEL.assumed] = len(m.assumptions)
        model[MODEL.promised] = self._promised().address
        model[MODEL.writes] = int(any(i.written for i in m.inputs))
        model[MODEL.call_error] = id(CallError)
        self._say()
        for field, part in (
            (MODEL.inputs, m.inputs), (MODEL.outputs, m.outputs), (MODEL.packed, m.packed),
            (MODEL.temps, m.run_temps), (MODEL.symbols, m.symbols),
        ):  # fmt: skip
            model[field] = len(part)
        ranges = Memory(RANGE.size * len(m.symbols))
        for k, s in enumerate(m.symbols):
            ranges.write(k * RANGE.size, [s.lo, s.hi, s.multiple])
        model[MODEL.tensors] = self._tensors().address
        model[MODEL.ranges] = self._retain(ranges).address
        model[MODEL.layouts], model[MODEL.layout_size] = self._layouts.address, self._layout_size
        model[MODEL.executors], model[MODEL.executor_size] = self._executors.address, self._executor_size
        model[MODEL.weights], model[MODEL.weights_size] = self._weights.address, self._weights_size
        model[MODEL.slots], model[MODEL.current] = SLOTS, self.control.current_address
        for k in range(SLOTS):
            self._weights[k * self._weights_size + WEIGHTS.version] = self.control.version_address(k)
        self._ensure_callback = _ensure_callback(weakref.ref(self))
        model[MODEL.ensure] = ctypes.cast(self._ensure_callback, ctypes.c_void_p).value or 0

    def _promised(self) -> Memory:
        """The results of `tw_shapes` that the manifest states: sizes of temporaries, dimensions of outputs and 1 for
        each assumption; -1 where any value is allowed."""
        m = self.manifest
        words = [-1 if t.nbytes is None else t.nbytes for t in m.run_temps]
        words += [d if isinstance(d, int) else -1 for o in m.outputs for d in o.shape]
        words += [1] * len(m.assumptions)
        memory = self._retain(Memory(8 * len(words)))
        memory.write(0, words)
        return memory

    def _retain(self, memory: Memory) -> Memory:
        self._keep.append(memory)
        return memory

    def _tensors(self) -> Memory:
        m = self.manifest
        index = {s.name: k for k, s in enumerate(m.symbols)}
        tensors = self._retain(Memory(TENSOR.size * self._arguments))
        specs: list[InputSpec | OutputSpec] = [*m.inputs, *m.outputs]
        for k, spec in enumerate(specs):
            kind = BY_NAME[spec.dtype]
            kind_of_tensor = "input" if k < len(m.inputs) else "output"
            message = f"tilewright: {kind_of_tensor} {spec.name!r} must be {describe_spec(spec)}, dense, on the CPU"
            text = ctypes.create_string_buffer(message.encode())
            dims = self._retain(Memory(8 * len(spec.shape)))
            if k < len(m.inputs):
                dims.write(0, [~index[d] if isinstance(d, str) else d for d in spec.shape])
            # The very dtype objects that new arrays get: the builtin compares addresses.
            descr = kind.numpy
            self._keep += [text, descr]
            row = [id(descr), _dlpack_code(spec.dtype), kind.itemsize, len(spec.shape), dims.address]
            written = isinstance(spec, OutputSpec) or spec.written
            tensors.write(k * TENSOR.size, [*row, ctypes.addressof(text), int(written)])
        return tensors

    # -- layouts and executors ---------------------------------------------------------------------------------------

    @property
    def most_threads(self) -> int:
        """The most threads that a call uses: one if the program is too small for more."""
        return self._model[MODEL.threads]

    def threads_now(self, dims: tuple[int, ...]) -> int:
        """The number of threads that calls with the symbols' values `dims` use at present (`trial.py`)."""
        with self._lock:
            if not self._model[MODEL.places]:
                self._plan()
            layout, words = self._layout(dims), self._layouts
            result = words[layout + LAYOUT.threads]
            self._native.add(words.address + layout + LAYOUT.users, -1)
        return result or self.most_threads

    def output_shapes(self, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The outputs' shapes for these values of the symbols."""
        _, flat = self._ask_shapes(dims)
        shapes, at = [], 0
        for spec in self.manifest.outputs:
            shapes.append(tuple(flat[at : at + len(spec.shape)]))
            at += len(spec.shape)
        return shapes

    def memory(self, dims: tuple[int, ...]) -> Plan:
        """Where temporaries lie in the arena for the symbols' values `dims`."""
        with self._lock:
            if not self._model[MODEL.places]:
                self._plan()
            layout, words = self._layout(dims), self._layouts
            try:
                at = words[layout + LAYOUT.offsets] - words.address
                offsets = words.words[at >> 3 : (at >> 3) + len(self.manifest.run_temps)]
                placed = Plan(tuple(map(int, offsets)), words[layout + LAYOUT.arena], least_bytes(self.intervals(dims)))
            finally:
                self._native.add(words.address + layout + LAYOUT.users, -1)
        return placed

    def intervals(self, dims: tuple[int, ...]) -> list[Interval]:
        """The run temporaries with their sizes for these values of the symbols."""
        sizes, _ = self._ask_shapes(dims, assumed=False)
        return temp_intervals(self.manifest.run_temps, sizes, self.threads)

    def _ask_shapes(self, dims: tuple[int, ...], *, assumed: bool = True) -> tuple[list[int], list[int]]:
        """(bytes of each temporary for one thread, all dimensions of outputs) for the symbols' values `dims`, by the
        program's `tw_shapes`. Raises CompileError if they contradict the manifest; CallError for sizes that are too
        large or, if `assumed`, violate an assumption."""
        m = self.manifest
        values = np.array([*dims, 0], np.int64)
        out = np.full(len(m.run_temps) + self._outdims + len(m.assumptions) + 1, -1, np.int64)
        self._shapes(values.ctypes.data, out.ctypes.data)
        flat = [int(v) for v in out[:-1]]
        sizes, outputs = flat[: len(m.run_temps)], flat[len(m.run_temps) : len(flat) - len(m.assumptions)]
        if assumed:
            check_assumptions(m, dims, flat[len(flat) - len(m.assumptions) :])
        promised = [d for o in m.outputs for d in o.shape]
        retained = all(not isinstance(p, int) or p == d for p, d in zip(promised, outputs, strict=True))
        stated = all(t.nbytes is None or t.nbytes == s for t, s in zip(m.run_temps, sizes, strict=True))
        fits = all(0 <= s <= MAX_BYTES for s in (*sizes, *self._output_bytes(outputs)))
        if dims and not (fits and min(outputs, default=0) >= 0):
            values_text = ", ".join(f"{s.name} = {d}" for s, d in zip(m.symbols, dims, strict=True))
            what = "tensors of the model have no size, or too large a one, with these dimensions"
            raise CallError(what, where=f"program {m.name!r}", got=values_text)
        if not (retained and stated and all(0 <= s <= MAX_BYTES for s in sizes) and min(outputs, default=0) >= 0):
            raise CompileError("tw_shapes breaks the manifest's promises", where=f"program {m.name!r}", got=str(dims))
        return sizes, outputs

    def _output_bytes(self, dims: Sequence[int]) -> list[int]:
        """The bytes of each output, from the dimensions of all outputs."""
        rest = iter(dims)
        return [prod(next(rest) for _ in o.shape) * BY_NAME[o.dtype].itemsize for o in self.manifest.outputs]

    def prepare_calls(self) -> None:
        """Plan memory, and create an executor for usual sizes, before the first call."""
        middling, *_ = usual_dims(self.manifest.symbols)
        with contextlib.suppress(CallError):
            self.ensure(middling)

    def ensure(self, dims: tuple[int, ...]) -> None:
        """Plan memory if that was not done, and create a layout for the symbols' values `dims` and an executor that is
        large enough for it."""
        with self._lock:
            if not self._model[MODEL.places]:
                self._plan()
            layout = self._layout(dims)
            try:
                arena = self._layouts[layout + LAYOUT.arena]
            finally:
                self._native.add(self._layouts.address + layout + LAYOUT.users, -1)
            self._ensure_executor(arena)

    def _layout(self, dims: tuple[int, ...]) -> int:
        """The position of the layout for the symbols' values `dims`, whose count of users was incremented; the caller
        must decrement it."""
        values = np.array([*dims, 0], np.int64)
        result = self._native.find(self.address, values.ctypes.data)
        if not result:
            self._ask_shapes(dims)  # says what is wrong with them
            raise CallError("too many calls with different dimensions at once", expected=f"at most {LAYOUTS}")
        return int(result) - self._layouts.address

    def _plan(self) -> None:
        """Plan memory for several typical values of the symbols. Native code derives the layout for any other values
        from these plans."""
        temps = self.manifest.run_temps
        plans: dict[tuple[int, ...], Plan] = {}
        most = 0
        for dims in usual_dims(self.manifest.symbols):
            with contextlib.suppress(CallError):  # such a size is none of this model's
                placed = plan(self.intervals(dims))
                plans.setdefault(placed.offsets, placed)
                most = max(most, placed.arena)
        table = places_table(temps, self.threads, list(plans.values()) or [Plan((0,) * len(temps), 0, 0)])
        words = self._retain(Memory(8 * len(table)))
        words.write(0, table)
        self._native.set(self.address + MODEL.places, words.address)
        self._reserve = self._largest_arena(most)

    def _largest_arena(self, usual: int) -> int:
        """The bytes of an arena for the largest values of the symbols, at least `usual`; 0 if symbols are unbounded or
        it is too large. Memory that is never touched costs nothing. Values in between may need more, if kernels have
        other versions for them."""
        symbols = self.manifest.symbols
        if not symbols or any(s.hi >= UNBOUNDED for s in symbols):
            return 0
        try:
            arena = self.memory(tuple(s.hi // s.multiple * s.multiple for s in symbols)).arena
        except CallError:
            return 0
        most = max(arena, usual)
        return most if most <= MAX_RESERVED else 0

    def _ensure_executor(self, arena: int) -> None:
        words, size = self._executors, self._executor_size
        count = self._model[MODEL.executor_count]
        idle = [k for k in range(count) if words[k * size + EXECUTOR.busy] == 0]
        if any(words[k * size + EXECUTOR.capacity] >= arena for k in idle):
            return
        for k in idle:
            if self._native.swap(words.address + k * size + EXECUTOR.busy, 0, 1):
                try:
                    self._set_arena(k, arena)
                finally:
                    self._native.set(words.address + k * size + EXECUTOR.busy, 0)
                return
        if count < MAX_EXECUTORS:
            self._set_arena(count, arena)
            self._native.set(self.address + MODEL.executor_count, count + 1)

    def _room(self, arena: int) -> int:
        """The bytes to allocate for a call that needs `arena` bytes: the reserve for bounded sizes, else up to a
        quarter more, so that lengths that grow by one rarely need a new arena."""
        if arena <= self._reserve:
            return self._reserve
        if not self.manifest.symbols:
            return arena
        step = max(4096, 1 << max(0, arena.bit_length() - 3))
        return -(-arena // step) * step

    def _set_arena(self, index: int, nbytes: int) -> None:
        nbytes = self._room(nbytes)
        words, base = self._executors, index * self._executor_size
        words[base + EXECUTOR.tag] = 0
        words[base + EXECUTOR.capacity] = -1
        if self.device is None:
            self._arenas[index] = None
            try:
                memory = aligned_bytes(nbytes)
            except MemoryError:
                raise CallError("not enough memory for temporaries", got=f"{nbytes} bytes") from None
            self._arenas[index], words[base + EXECUTOR.arena] = memory, memory.ctypes.data
        else:
            words[base + EXECUTOR.arena] = self._device_arena(self.device, index, nbytes)
        words[base + EXECUTOR.limit] = self._max_iterations
        words[base + EXECUTOR.budget] = self._limit_ns
        words[base + EXECUTOR.poll] = self._native.linked["tw_poll"]
        words[base + EXECUTOR.slots + 8 * self.manifest.run_slots] = words.address + base + EXECUTOR.limit
        words[base + EXECUTOR.capacity] = nbytes

    def _device_arena(self, device: Device, index: int, nbytes: int) -> int:
        """The address of a new arena of `nbytes` bytes on the device for executor `index`. Its old arena is released,
        with the CUDA graphs that use it."""
        at = index * self._executor_size + EXECUTOR.device
        call = self._device_calls.get(index)
        if call is None:
            call = self._device_calls[index] = device.executor(self.address, self.linked["tw_run"])
            self._executors[at] = call.address
        device.forget_graphs(call)
        old, self._arenas[index] = self._arenas[index], None
        if old is not None:
            old.free()  # type: ignore[union-attr]
        block = self._arenas[index] = device.allocate(nbytes)
        return block.address

    @property
    def device_calls(self) -> list[Memory]:
        """The executors' state on the device (`gpu.native.CALL`), in their order."""
        return [self._device_calls[k] for k in sorted(self._device_calls)]

    @property
    def max_iterations(self) -> int:
        """The most iterations of unbounded loops in one call, all together."""
        return self._max_iterations

    @max_iterations.setter
    def max_iterations(self, most: int) -> None:
        check_iterations(most)
        with self._lock:
            self._max_iterations = most
            self._tell(EXECUTOR.limit, most)

    @property
    def time_limit(self) -> float | None:
        """The most seconds of unbounded loops in one call; None for no limit."""
        return self._time_limit

    @time_limit.setter
    def time_limit(self, seconds: float | None) -> None:
        check_time_limit(seconds)
        with self._lock:
            self._time_limit = seconds
            self._tell(EXECUTOR.budget, self._limit_ns)

    @property
    def _limit_ns(self) -> int:
        """The time limit in nanoseconds, 0 for none."""
        return 0 if self._time_limit is None else max(1, round(self._time_limit * 1e9))

    def _tell(self, field: int, value: int) -> None:
        """Store a control word, at offset `field`, in all executors, and update the error texts that depend on it."""
        for k in range(self._model[MODEL.executor_count]):
            self._native.set(self._executors.address + k * self._executor_size + field, value)
        self._say()

    def _say(self) -> None:
        """Write the texts of the errors for exceeded limits, which the native entry raises. Earlier texts stay, as a
        call may be reading them."""
        for field, status in ((MODEL.endless_message, ENDLESS), (MODEL.delayed_message, TIMED_OUT)):
            text = ctypes.create_string_buffer(str(self.ended(status)).encode())
            self._keep.append(text)
            self._native.set(self.address + field, ctypes.addressof(text))

    def ended(self, status: int) -> CallError:
        """The error for a call whose loops ended with `status`: by the limit of iterations, that of time, or a
        signal."""
        where = f"program {self.manifest.name!r}"
        if status == ENDLESS:
            what = f"loops of the model would have more than {self._max_iterations} iterations"
            return CallError(what, where=where, hint="set max_iterations of the model, if they end")
        if status == TIMED_OUT:
            what = f"loops of the model took longer than {self._time_limit} s"
            return CallError(what, where=where, hint="set time_limit of the model, if they end")
        return CallError("the handler of a signal has ended the call", where=where)

    @property
    def arena_bytes(self) -> int:
        """Bytes of all arenas that are kept for calls."""
        return sum(a.nbytes for a in self._arenas if a is not None)

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self, arrays: Sequence[Array], dims: tuple[int, ...]) -> int:
        """Run on checked arrays, inputs then outputs; plans memory for these dims if necessary.

        Returns the version of the weights that were used. Raises StoreMoved if the weights were moved.
        """
        return self.call_at([a.ctypes.data for a in arrays], dims)

    def call_at(self, places: Sequence[int], dims: tuple[int, ...]) -> int:
        """Call the program on inputs and outputs at the addresses `places`, with the sizes `dims` of its symbols, and
        plan memory if needed. Returns the version of the weights; raises CallError if the call fails, StoreMoved if the
        weights were moved."""
        addresses = np.array([*places, 0], np.int64)
        values = np.array([*dims, 0], np.int64)
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            status = self._native.call(self.address, addresses.ctypes.data, values.ctypes.data)
            if status == OK:
                return int(addresses[-1])
            if status == SUPERSEDED:
                raise StoreMoved
            if status in (ENDLESS, TIMED_OUT, INTERRUPTED):
                raise self.ended(status)
            if status == DEVICE and self.device is not None:
                raise self.device.error(int(addresses[-1]))
            if status >= REFUSED:
                raise refused(self.manifest, status - REFUSED, addresses[-1:])
            self.ensure(dims)
            if status == NO_EXECUTOR and self._model[MODEL.executor_count] == MAX_EXECUTORS:
                if time.monotonic() > deadline:
                    raise CallError("too many calls at once", expected=f"at most {MAX_EXECUTORS}")
                time.sleep(0.0002)

    @property
    def call_address(self) -> int:
        """The address of `tw_call`."""
        return self._native.linked["tw_call"]

    def builtin(self, slow: Callable[..., Any], *, versioned: bool = False) -> Callable[..., Any]:
        """The native entry for Python; it calls `slow` with the same arguments in cases that it cannot handle."""
        return self._native.builtin(self.address, slow, self, versioned=versioned)

    def learn(self, args: Sequence[object]) -> None:
        """Let the native entry accept arguments of the types of `args` from now on, without the slow path."""
        for arg in args:
            self._native.learn(type(arg))

    def foreign(self) -> Any:
        """The program as a tvm-ffi function."""
        return foreign_function(self.address, self._native.foreign, self)

    # -- weights -----------------------------------------------------------------------------------------------------

    def set_slot(self, index: int, addresses: Sequence[int]) -> None:
        """Record the addresses of the packed parameters of slot number `index`; no call may have it pinned."""
        base = index * self._weights_size
        at = (base + WEIGHTS.addresses) >> 3
        if self._weights[base + WEIGHTS.generation] and self._weights.words[at : at + len(addresses)].tolist() == list(
            addresses
        ):
            return  # what executors and graphs know of the slot still holds
        self._tags += 1
        self._weights[base + WEIGHTS.generation] = self._tags
        self._weights.write(base + WEIGHTS.addresses, addresses)

    def set_reader(self, index: int) -> None:
        """Count this process's calls in another reader's entry of the control page."""
        self._reader = index
        self._model[MODEL.reader] = self.control.reader_address(index)

    def forget_calls(self) -> None:
        """In the child of a fork: drop the calls of other threads, which do not exist here."""
        self._lock = threading.RLock()
        if self.device is not None:
            self.device.forked()
        for k in range(MAX_EXECUTORS):
            self._executors[k * self._executor_size + EXECUTOR.busy] = 0
        for k in range(LAYOUTS):
            self._layouts[k * self._layout_size + LAYOUT.users] = 0
        self.prepare.forget()
        if self._reader == 0 and self.control.readers == 1:
            self.control.forget_pins(0)  # a shared page's entry is the parent's


def _round(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _dlpack_code(name: str) -> int:
    """DLDataType as one word: code, bits, lanes. Types that DLPack packs differently get a code that nothing has."""
    kind = BY_NAME[name]
    if kind.bits < 8 or kind.is_minifloat:
        return _NO_CODE
    code = 4 if name == "bf16" else _DLPACK_CODES[kind.kind]
    return code | kind.bits << 8 | 1 << 16


def _ensure_callback(engine: weakref.ref[Engine]) -> Any:
    """A C callback by which native callers request memory for new dimensions. It returns 0 if that succeeded."""

    def ensure(model: int, dims: int) -> int:
        try:
            owner = engine()
            if owner is None:
                return 1
            count = len(owner.manifest.symbols)
            owner.ensure(tuple((ctypes.c_int64 * count).from_address(dims)) if count else ())
        except Exception:
            return 1
        return 0

    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(ensure)


def _after_fork() -> None:
    for engine in list(_live):
        engine.forget_calls()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
