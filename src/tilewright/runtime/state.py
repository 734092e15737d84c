"""`State`: the caches of one sequence (or a batch of them) between the calls of a decoder.

    state = model.state(capacity=512, batch=1)
    logits = state(prompt)                           any number of tokens, where the model takes any
    while True: logits = state(token)                each call appends its rows; nothing is copied or allocated

A program with caches writes the new rows after those that there are, in memory that the state owns.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.arguments import in_order
from tilewright.runtime.interop import Array, as_numpy
from tilewright.runtime.layout import aligned_bytes
from tilewright.runtime.specs import ALIGNMENT, CacheSpec, InputSpec, evaluate
from tilewright.support.errors import CallError

if TYPE_CHECKING:
    from tilewright.runtime.runner import Runner


class State:
    """The values that a program with caches keeps between calls. One call at a time.

    Args:
        runner: the `Model` or `Actor`.
        capacity: the number of rows (tokens) for which memory is allocated at once.
        dims: the other symbolic dimensions of the caches, by name ("batch").

    Raises CallError if the program has no caches, or dimensions are missing or out of range.
    """

    def __init__(self, runner: Runner, capacity: int, dims: Mapping[str, int]) -> None:
        spec = runner.manifest.state
        if spec is None:
            hint = 'compile it with state="auto", or with the names of the caches'
            raise CallError("the program keeps no state", where=f"program {runner.name!r}", hint=hint)
        self._runner, self._spec = runner, spec
        self._lock = threading.Lock()
        self._length = 0
        self._capacity, self._dims = _checked_sizes(runner, capacity, dims)
        inputs = runner.inputs
        memory = spec.memory
        self._places = [k for k, i in enumerate(inputs) if i.name not in {spec.length, *memory}]
        self._inputs = [inputs[k] for k in self._places]
        named = {i.name: i for i in inputs}
        self._memory = dict(
            zip(memory, _allocated([named[name] for name in memory], self._capacity, self._dims), strict=True)
        )
        self._arguments: list[Any] = [None] * len(inputs)
        for name, array in self._memory.items():
            self._arguments[inputs.index(named[name])] = array
        self._first_cache = inputs.index(named[spec.caches[0].input])
        self._count = inputs.index(named[spec.length])
        self._reserve()

    def __call__(self, /, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """The outputs for these inputs (positional or by name, without the caches), given all rows appended so far.

        Raises CallError, and the state is as it was, for inputs that do not fit or rows for which there is no room.
        """
        if not self._lock.acquire(blocking=False):
            raise CallError("the state is in another call", where=f"program {self._runner.name!r}")
        try:
            if self._runner.manifest.state != self._spec:
                raise CallError("the program has become another one", where=f"program {self._runner.name!r}")
            inputs = in_order([i.name for i in self._inputs], inputs, named)
            rows = self._rows(inputs)
            if self._length + rows > self._capacity:
                raise CallError(
                    "the state is full",
                    where=f"program {self._runner.name!r}",
                    expected=f"{self._capacity} rows at most",
                    got=f"{self._length} and {rows} more",
                    hint="make one with more room, or take rows away: state.truncate(n)",
                )
            arguments = list(self._arguments)
            for k, array in zip(self._places, inputs, strict=True):
                arguments[k] = array
            arguments[self._count] = np.empty((self._length, 0), np.int8)
            result = self._runner._with_state(arguments, out)
            self._length += rows
            return result
        finally:
            self._lock.release()

    @property
    def length(self) -> int:
        """The number of rows that the caches hold."""
        return self._length

    @property
    def capacity(self) -> int:
        """The number of rows for which the caches have memory."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes of the caches."""
        return sum(a.nbytes for a in self._memory.values())

    def truncate(self, length: int) -> None:
        """Remove the last rows, so that `length` are left, as for tokens that were guessed wrong; 0 removes all. Raises
        CallError if there are fewer rows."""
        if not isinstance(length, int) or not 0 <= length <= self._length:
            raise CallError("there are not as many rows", expected=f"0 to {self._length}", got=length)
        with self._lock:
            self._length = length

    def arrays(self) -> dict[str, Array]:
        """The caches by the names of the model's inputs, in the model's shapes: views of the current rows, or
        dequantised copies of quantised caches."""
        return {c.input: self._as_model(c, self._rows_of(c)) for c in self._spec.caches}

    def _rows_of(self, cache: CacheSpec) -> Array:
        """The rows that a cache holds at present, dequantised if it has scales."""
        rows = self._memory[cache.input][: self._length]
        return rows * self._memory[cache.scales][: self._length] if cache.scales else rows

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Replace all rows by arrays like those that `arrays()` returns, all of one length.

        Raises CallError, and the state is as it was, if they do not fit.
        """
        names = [c.input for c in self._spec.caches]
        if set(arrays) != set(names):
            raise CallError("the caches have other names", expected=", ".join(names), got=", ".join(arrays))
        rows = [np.moveaxis(as_numpy(arrays[c.input], f"cache {c.input!r}"), c.axis, 0) for c in self._spec.caches]
        for cache, new in zip(self._spec.caches, rows, strict=True):
            retained = self._memory[cache.input]
            kind = np.dtype(np.float32) if cache.scales else retained.dtype
            fits = new.dtype == kind and new.shape[1:] == retained.shape[1:] and len(new) == len(rows[0])
            if not fits or len(new) > self._capacity:
                shape = self._as_model(cache, retained).shape
                expected = f"{kind}{list(shape)} with up to {self._capacity} in dimension {cache.axis}"
                got = f"{new.dtype}{list(self._as_model(cache, new).shape)}"
                raise CallError("a cache does not fit", where=f"cache {cache.input!r}", expected=expected, got=got)
        with self._lock:
            for cache, new in zip(self._spec.caches, rows, strict=True):
                if cache.scales:
                    new, scales = _coded(new)
                    self._memory[cache.scales][: len(new)] = scales
                self._memory[cache.input][: len(new)] = new
            self._length = len(rows[0])

    def copy(self) -> State:
        """A new state with the same rows, for example for another beam."""
        other = State(self._runner, self._capacity, self._dims)
        with self._lock:
            for name, array in self._memory.items():
                other._memory[name][: self._length] = array[: self._length]
            other._length = self._length
        return other

    def __repr__(self) -> str:
        return f"<State of {self._runner.name!r}: {self._length} of {self._capacity} rows, {self.nbytes >> 10} KB>"

    def _as_model(self, cache: CacheSpec, rows: Array) -> Array:
        return np.moveaxis(rows, 0, cache.axis)

    def _reserve(self) -> None:
        """Allocate an arena that suffices at full capacity, for the calls that append the most rows, so that a growing
        sequence never waits for memory. Memory that is not touched costs nothing."""
        room, length = (self._runner.inputs[k].shape[0] for k in (self._first_cache, self._count))
        symbols = self._runner.manifest.symbols
        least = {s.name: s.lo for s in symbols} | self._dims | {str(room): self._capacity}
        longest = max(0, self._capacity - evaluate(self._spec.rows, least))
        least[str(length)] = next(min(longest, s.hi) // s.multiple * s.multiple for s in symbols if s.name == length)
        with contextlib.suppress(CallError):  # where there is no memory, calls say so
            self._runner._engine.ensure(tuple(least[s.name] for s in symbols))

    def _rows(self, inputs: Sequence[Any]) -> int:
        """The number of rows that a call with these inputs appends. Raises CallError if the inputs do not fit."""
        if len(inputs) != len(self._inputs):
            names = ", ".join(i.name for i in self._inputs)
            raise CallError("wrong number of inputs", expected=f"{len(self._inputs)} ({names})", got=len(inputs))
        sizes: dict[str, int] = {}
        for spec, array in zip(self._inputs, inputs, strict=True):
            shape = np.shape(array) if not hasattr(array, "shape") else tuple(array.shape)
            sizes.update((d, int(n)) for d, n in zip(spec.shape, shape, strict=False) if isinstance(d, str))
        try:
            rows = evaluate(self._spec.rows, sizes)
        except KeyError as missing:
            raise CallError(
                "the inputs do not fit", expected=f"a dimension {missing}", got="fewer dimensions"
            ) from None
        if rows < 0:
            raise CallError("the inputs do not fit", expected="rows to append", got=f"{rows} rows")
        return rows


def _coded(rows: Array) -> tuple[Array, Array]:
    """`rows` quantised to 8-bit codes, and their scales, by the formula that programs use
    (transform/graph/state.py)."""
    most = np.maximum(np.abs(rows).max(-1, keepdims=True, initial=0), np.float32(2.0**-100))
    scales = most * np.float32(1 / 127)
    return np.rint(rows / scales).astype(np.int8), scales


def _checked_sizes(runner: Runner, capacity: int, dims: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """(capacity, sizes by symbol) of new caches, from the sizes `dims` that the caller states, if they are in range.
    Raises CallError otherwise."""
    state = runner.manifest.state
    assert state is not None
    caches = {c.input for c in state.caches}  # scales have the same sizes
    shapes = [i.shape for i in runner.inputs if i.name in caches]
    room = shapes[0][0]
    wanted = {d for shape in shapes for d in shape[1:] if isinstance(d, str)}
    if set(dims) != wanted:
        raise CallError(
            "the sizes of the state are not these",
            expected=", ".join(["capacity", *sorted(wanted)]),
            got=", ".join(dims),
        )
    ranges = {s.name: s for s in runner.manifest.symbols}
    for name, value in {"capacity": capacity, **dims}.items():
        s = ranges[room if name == "capacity" else name]  # type: ignore[index]
        if not isinstance(value, int) or not s.lo <= value <= s.hi or value % s.multiple:
            raise CallError("a dimension is out of range", where=name, expected=f"{s.lo}..{s.hi}", got=value)
    return capacity, dict(dims)


def _allocated(specs: Sequence[InputSpec], capacity: int, dims: Mapping[str, int]) -> list[Array]:
    """The caches of a state for `capacity` rows and the sizes `dims`, one for each of `specs`, all in one block of
    memory."""
    shapes = [(capacity, *(dims[d] if isinstance(d, str) else d for d in spec.shape[1:])) for spec in specs]
    kinds = [BY_NAME[spec.dtype].numpy for spec in specs]
    sizes = [
        int(np.prod(shape, dtype=object)) * np.dtype(kind).itemsize for shape, kind in zip(shapes, kinds, strict=True)
    ]
    places = [0]
    for size in sizes:
        places.append(places[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    try:
        memory = aligned_bytes(max(places[-1], 1))
    except MemoryError as error:
        raise CallError("not enough memory for the state", got=f"{places[-1]} bytes") from error
    return [
        memory[at : at + size].view(kind).reshape(shape)
        for at, size, kind, shape in zip(places, sizes, kinds, shapes, strict=False)
    ]


__all__ = ["State"]
