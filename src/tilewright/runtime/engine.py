"""A loaded program in native memory: the structs that `call.py` reads, filled and kept alive from Python."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.native.link import Library
from tilewright.runtime.arena import Interval, Plan, plan, temp_intervals
from tilewright.runtime.arguments import describe_spec
from tilewright.runtime.call import (
    ENDLESS,
    EXECUTOR,
    LAYOUT,
    MODEL,
    NO_EXECUTOR,
    OK,
    RANGE,
    SUPERSEDED,
    TAKEN,
    TENSOR,
    WEIGHTS,
)
from tilewright.runtime.foreign import foreign_function
from tilewright.runtime.interop import Array
from tilewright.runtime.layout import Memory, aligned_bytes, function
from tilewright.runtime.manifest import MAX_BYTES, InputSpec, Manifest, OutputSpec
from tilewright.runtime.native import native
from tilewright.runtime.trial import TRIAL_FIELDS
from tilewright.runtime.weights.control import SLOTS, Control
from tilewright.runtime.weights.prepare import Prepare
from tilewright.support.errors import CallError, CompileError

MAX_LAYOUTS = 256
"""Sets of dimensions whose layouts of the arena are kept."""
MAX_EXECUTORS = 64
"""Calls of one model at the same time, each with an arena of its own."""
MAX_ITERATIONS = 10_000_000
"""Iterations of the loops of one call that only data ends, unless the caller says another number."""
_PATIENCE_SECONDS = 60.0
"""Seconds that a call waits for one of the arenas."""

_DLPACK_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_NO_CODE = 0xFFFFFFFF
"""A DLPack type that no tensor has."""
_live: weakref.WeakSet[Engine] = weakref.WeakSet()


class StoreMoved(Exception):
    """The control page names no slot: the weights are elsewhere now, or gone."""


class Engine:
    """Native state of one program: descriptors, memory layouts by dimensions, executors, and where its weights are.

    Args:
        control: the control page that says which slot is current; a private one if None.
        reader: which entry of the page counts the calls of this process.
    """

    def __init__(
        self, manifest: Manifest, library: Library, threads: int, control: Control | None = None, reader: int = 0
    ) -> None:
        self.manifest = manifest
        self.linked = library
        self.threads = threads
        self.control = control or Control.private()
        self.prepare = Prepare(manifest, library, 1 if manifest.alone else threads)
        self._native = native()
        self._lock = threading.RLock()
        self._shapes = function(library["tw_shapes"], None, ctypes.c_void_p, ctypes.c_void_p)
        self._keep: list[object] = []
        self._arenas: list[Array | None] = [None] * MAX_EXECUTORS
        self._plans: dict[tuple[int, ...], tuple[int, Plan]] = {}
        self._tags = 0
        self._max_iterations = MAX_ITERATIONS
        m = manifest
        self._arguments = len(m.inputs) + len(m.outputs)
        slots = m.run_slots + 1
        self._outdims = m.output_rank_total
        self._layout_size = _round(LAYOUT.dims + 8 * (len(m.symbols) + self._outdims + len(m.run_temps)))
        self._executor_size = _round(EXECUTOR.slots + 8 * slots)
        self._weights_size = _round(WEIGHTS.addresses + 8 * len(m.packed))
        self._layouts = Memory(MAX_LAYOUTS * self._layout_size)
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
        """Where the model's descriptor is."""
        return self._model.address

    # -- descriptors -----------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        m, model = self.manifest, self._model
        model[MODEL.run] = self.linked["tw_run"]
        model[MODEL.threads] = 1 if m.alone else self.threads
        model[MODEL.execute] = self._native.linked["tw_execute"]
        model[MODEL.writes] = int(any(i.written for i in m.inputs))
        for field, part in (
            (MODEL.inputs, m.inputs), (MODEL.outputs, m.outputs), (MODEL.packed, m.packed),
            (MODEL.temps, m.run_temps), (MODEL.symbols, m.symbols),
        ):  # fmt: skip
            model[field] = len(part)
        ranges = Memory(RANGE.size * len(m.symbols))
        for k, s in enumerate(m.symbols):
            ranges.write(k * RANGE.size, [s.lo, s.hi, s.multiple])
        model[MODEL.tensors] = self._tensors().address
        model[MODEL.ranges] = self._kept(ranges).address
        model[MODEL.layouts], model[MODEL.layout_size] = self._layouts.address, self._layout_size
        model[MODEL.executors], model[MODEL.executor_size] = self._executors.address, self._executor_size
        model[MODEL.weights], model[MODEL.weights_size] = self._weights.address, self._weights_size
        model[MODEL.slots], model[MODEL.current] = SLOTS, self.control.current_address
        for k in range(SLOTS):
            self._weights[k * self._weights_size + WEIGHTS.version] = self.control.version_address(k)
        self._ensure_callback = _ensure_callback(weakref.ref(self))
        model[MODEL.ensure] = ctypes.cast(self._ensure_callback, ctypes.c_void_p).value or 0

    def _kept(self, memory: Memory) -> Memory:
        self._keep.append(memory)
        return memory

    def _tensors(self) -> Memory:
        m = self.manifest
        index = {s.name: k for k, s in enumerate(m.symbols)}
        tensors = self._kept(Memory(TENSOR.size * self._arguments))
        specs: list[InputSpec | OutputSpec] = [*m.inputs, *m.outputs]
        for k, spec in enumerate(specs):
            kind = BY_NAME[spec.dtype]
            kind_of_tensor = "input" if k < len(m.inputs) else "output"
            message = f"tilewright: {kind_of_tensor} {spec.name!r} must be {describe_spec(spec)}, dense, on the CPU"
            text = ctypes.create_string_buffer(message.encode())
            dims = self._kept(Memory(8 * len(spec.shape)))
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

    def output_shapes(self, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The outputs' shapes for these values of the symbols."""
        _, flat = self._ask_shapes(dims)
        shapes, at = [], 0
        for spec in self.manifest.outputs:
            shapes.append(tuple(flat[at : at + len(spec.shape)]))
            at += len(spec.shape)
        return shapes

    def memory(self, dims: tuple[int, ...]) -> Plan:
        """How temporaries are placed for these values of the symbols."""
        return plan(self.intervals(dims))

    def intervals(self, dims: tuple[int, ...]) -> list[Interval]:
        """The run temporaries with their sizes for these values of the symbols."""
        sizes, _ = self._ask_shapes(dims)
        return temp_intervals(self.manifest.run_temps, sizes, self.threads)

    def _ask_shapes(self, dims: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Bytes of each temporary (of one thread) and the outputs' dims; CompileError if they break a promise."""
        m = self.manifest
        values = np.array([*dims, 0], np.int64)
        out = np.full(len(m.run_temps) + self._outdims + 1, -1, np.int64)
        self._shapes(values.ctypes.data, out.ctypes.data)
        flat = [int(v) for v in out[:-1]]
        sizes, outputs = flat[: len(m.run_temps)], flat[len(m.run_temps) :]
        promised = [d for o in m.outputs for d in o.shape]
        kept = all(not isinstance(p, int) or p == d for p, d in zip(promised, outputs, strict=True))
        stated = all(t.nbytes is None or t.nbytes == s for t, s in zip(m.run_temps, sizes, strict=True))
        if dims and not (all(0 <= s <= MAX_BYTES for s in sizes) and min(outputs, default=0) >= 0):
            values_text = ", ".join(f"{s.name} = {d}" for s, d in zip(m.symbols, dims, strict=True))
            what = "tensors of the model have no size, or too large a one, with these dimensions"
            raise CallError(what, where=f"program {m.name!r}", got=values_text)
        if not (kept and stated and all(0 <= s <= MAX_BYTES for s in sizes) and min(outputs, default=0) >= 0):
            raise CompileError("tw_shapes breaks the manifest's promises", where=f"program {m.name!r}", got=str(dims))
        return sizes, outputs

    def ensure(self, dims: tuple[int, ...]) -> None:
        """Make sure that there is a layout for these dims and an executor that can take it."""
        with self._lock:
            known = self._plans.get(dims)
            if known is None or self._layout_dims(known[0]) != dims:
                known = self._add_layout(dims)
            self._ensure_executor(known[1].arena)

    def _layout_dims(self, index: int) -> tuple[int, ...]:
        at = (index * self._layout_size + LAYOUT.dims) >> 3
        return tuple(int(v) for v in self._layouts.words[at : at + len(self.manifest.symbols)])

    def _add_layout(self, dims: tuple[int, ...]) -> tuple[int, Plan]:
        sizes, outputs = self._ask_shapes(dims)
        placed = plan(temp_intervals(self.manifest.run_temps, sizes, self.threads))
        count = self._model[MODEL.layout_count]
        index = count if count < MAX_LAYOUTS else self._take_oldest_layout()
        base, words = index * self._layout_size, self._layouts
        self._tags += 1
        after_dims = base + LAYOUT.dims + 8 * len(dims)
        after_outputs = after_dims + 8 * len(outputs)
        words[base + LAYOUT.tag] = self._tags
        words[base + LAYOUT.arena] = placed.arena
        words[base + LAYOUT.stamp] = self._model[MODEL.clock]
        words[base + LAYOUT.measured] = 0
        words[base + LAYOUT.least_ns] = (1 << 62) - 1
        words.write(base + LAYOUT.threads, [0] * len(TRIAL_FIELDS))
        words[base + LAYOUT.outputs] = words.address + after_dims
        words[base + LAYOUT.offsets] = words.address + after_outputs
        words.write(base + LAYOUT.dims, dims)
        words.write(after_dims, outputs)
        words.write(after_outputs, placed.offsets)
        if index == count:
            self._native.set(self.address + MODEL.layout_count, count + 1)
        else:
            self._native.add(words.address + base + LAYOUT.users, TAKEN)
        self._plans[dims] = index, placed
        return index, placed

    def _take_oldest_layout(self) -> int:
        """Take the layout that was used longest ago for refilling: its users become very negative."""
        words = self._layouts
        order = sorted(range(MAX_LAYOUTS), key=lambda k: words[k * self._layout_size + LAYOUT.stamp])
        for index in order:
            if self._native.swap(words.address + index * self._layout_size + LAYOUT.users, 0, -TAKEN):
                self._plans.pop(self._layout_dims(index), None)
                return index
        raise CallError("too many calls with different dimensions at once", expected=f"at most {MAX_LAYOUTS}")

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

    def _set_arena(self, index: int, nbytes: int) -> None:
        words, base = self._executors, index * self._executor_size
        words[base + EXECUTOR.tag] = 0
        words[base + EXECUTOR.capacity] = -1
        self._arenas[index] = None
        try:
            memory = aligned_bytes(nbytes)
        except MemoryError:
            raise CallError("not enough memory for temporaries", got=f"{nbytes} bytes") from None
        self._arenas[index] = memory
        words[base + EXECUTOR.arena] = memory.ctypes.data
        words[base + EXECUTOR.limit] = self._max_iterations
        words[base + EXECUTOR.slots + 8 * self.manifest.run_slots] = words.address + base + EXECUTOR.limit
        words[base + EXECUTOR.capacity] = nbytes

    @property
    def max_iterations(self) -> int:
        """How many iterations loops may have that nothing known bounds, in one call all together."""
        return self._max_iterations

    @max_iterations.setter
    def max_iterations(self, most: int) -> None:
        if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most < 1 << 62:
            raise CallError("no number of iterations", expected="0 to 2**62 - 1", got=repr(most))
        with self._lock:
            self._max_iterations = most
            for k in range(self._model[MODEL.executor_count]):
                self._native.set(self._executors.address + k * self._executor_size + EXECUTOR.limit, most)

    @property
    def arena_bytes(self) -> int:
        """Bytes of all arenas that are kept for calls."""
        return sum(a.nbytes for a in self._arenas if a is not None)

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self, arrays: Sequence[Array], dims: tuple[int, ...]) -> int:
        """Run on checked arrays, inputs then outputs, planning memory for these dims if need be.

        Gives the version of the weights that were used. StoreMoved if there are none where they were.
        """
        addresses = np.array([a.ctypes.data for a in arrays] + [0], np.int64)
        values = np.array([*dims, 0], np.int64)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            status = self._native.call(self.address, addresses.ctypes.data, values.ctypes.data)
            if status == OK:
                return int(addresses[-1])
            if status == SUPERSEDED:
                raise StoreMoved
            if status == ENDLESS:
                what = f"loops of the model would have more than {self._max_iterations} iterations"
                hint = "set max_iterations of the model, if they end"
                raise CallError(what, where=f"program {self.manifest.name!r}", hint=hint)
            self.ensure(dims)
            if status == NO_EXECUTOR and self._model[MODEL.executor_count] == MAX_EXECUTORS:
                if time.monotonic() > deadline:
                    raise CallError("too many calls at once", expected=f"at most {MAX_EXECUTORS}")
                time.sleep(0.0002)

    def builtin(self, slow: Callable[..., Any], *, versioned: bool = False) -> Callable[..., Any]:
        """The native face for Python; `slow` is called with the same arguments where it cannot go on."""
        return self._native.builtin(self.address, slow, self, versioned=versioned)

    def learn(self, args: Sequence[object]) -> None:
        """Let the native face read these arguments' types by itself from now on."""
        for arg in args:
            self._native.learn(type(arg))

    def foreign(self) -> Any:
        """The program as a tvm-ffi function."""
        return foreign_function(self.address, self._native.foreign, self)

    # -- weights -----------------------------------------------------------------------------------------------------

    def set_slot(self, index: int, addresses: Sequence[int]) -> None:
        """Say where the packed parameters of a slot are; nobody pins it."""
        base = index * self._weights_size
        self._tags += 1
        self._weights[base + WEIGHTS.generation] = self._tags
        self._weights.write(base + WEIGHTS.addresses, addresses)

    def set_reader(self, index: int) -> None:
        """Count calls in another entry of the control page."""
        self._reader = index
        self._model[MODEL.reader] = self.control.reader_address(index)

    def forget_calls(self) -> None:
        """In the child of a fork: calls that other threads were making do not go on here."""
        self._lock = threading.RLock()
        for k in range(MAX_EXECUTORS):
            self._executors[k * self._executor_size + EXECUTOR.busy] = 0
        for k in range(MAX_LAYOUTS):
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
    """What native callers call for dimensions that have no layout; gives 0 if there is one now."""

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
