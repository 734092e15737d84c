"""Served models: a program, checks of its requests, and how rows of requests form batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.live.broker.fit import check_rows, ring_spec
from tilewright.runtime.runner import Runner
from tilewright.runtime.specs import InputSpec, OutputSpec, SymbolSpec, evaluate
from tilewright.serve.batching.estimates import Estimates
from tilewright.serve.errors import ServeError, Status
from tilewright.serve.requests import Request
from tilewright.serve.statistics import Statistics
from tilewright.serve.tensors import DATATYPES, Array, datatype_of
from tilewright.support.errors import BrokerError, CallError

MAX_BATCH = 64
"""The default limit on the rows of a batch."""
_KNOWN = 256
"""The most input signatures that are stored as checked."""
_GATHERED_BYTES = 64 << 20
"""The largest batch, in bytes, whose buffer is reused."""
_WARM_SECONDS = 0.25
"""Seconds for which a newly loaded model is timed."""
_PEAK, _BANDWIDTH, _STEP = 40e9, 10e9, 0.5e-6
"""Operations a second, bytes a second, and seconds to call a kernel, of a core of about 2020. Only ratios matter, since
measurements correct the estimates."""


class Runnable(Protocol):
    """An object that can be served: a `Model`, an `Actor`, or a `Function`. `versioned` takes arrays in the order of
    `inputs`; it returns the output, or a tuple of them in the order of `outputs`, and the version of the weights."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]: ...
    @property
    def outputs(self) -> tuple[OutputSpec, ...]: ...

    def versioned(self, /, *inputs: Any) -> tuple[Any, int]: ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or an output as the protocol describes it: -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Function:
    """A Python function of arrays, served like a model.

    Args:
        inputs, outputs: name, element type ("f32", "string") and shape, as a program's have them.
    """

    def __init__(
        self, call: Callable[..., Any], inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec], version: int = 0
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.version = version
        self._call = call

    def versioned(self, /, *inputs: Any) -> tuple[Any, int]:
        return self._call(*inputs), self.version


@dataclass(frozen=True, slots=True)
class Rows:
    """The axes along which requests are batched: one for each of the inputs and one for each of the outputs."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Interface:
    """The inputs and outputs of a program, against which requests are checked. It is read anew if a store switches to
    another program."""

    key: object
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    names: tuple[str, ...]
    results: tuple[str, ...]
    symbols: Mapping[str, SymbolSpec]
    rows: Rows | None
    known: dict[tuple[tuple[np.dtype[Any], tuple[int, ...]], ...], int] = field(default_factory=dict)
    """The number of rows, by element types and shapes of inputs that have been checked."""


class Served:
    """One version of a model.

    Args:
        promise: seconds in which a request that says nothing else must be answered; infinite if None.
        max_batch: rows that one call computes at most.
    """

    def __init__(
        self,
        name: str,
        version: str,
        runner: Runnable,
        *,
        promise: float | None = None,
        max_batch: int = MAX_BATCH,
        source: str = "",
    ) -> None:
        self.name, self.version, self.runner, self.source = name, version, runner, source
        self.promise = float("inf") if promise is None else promise
        self.statistics = Statistics()
        self.max_batch = max_batch
        self._interface = self._read()
        if self._interface.rows is None:
            self.max_batch = 1
        self.estimates = Estimates(self.max_batch, prior(runner))
        self.canary: object = None
        self._own = threading.local()

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.version

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(Tensor(i.name, DATATYPES[i.dtype], _open(i.shape)) for i in self.interface.inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(Tensor(o.name, DATATYPES[o.dtype], _open(o.shape)) for o in self.interface.outputs)

    @property
    def rows(self) -> Rows | None:
        """The axes along which requests are batched; None if they cannot be."""
        return self.interface.rows

    @property
    def weights_version(self) -> int:
        return int(getattr(self.runner, "version", 0))

    @property
    def interface(self) -> _Interface:
        if self._interface.key is not getattr(self.runner, "manifest", None):
            self._interface = self._read()
        return self._interface

    def _read(self) -> _Interface:
        runner = self.runner
        manifest = getattr(runner, "manifest", None)
        where = f"model {self.name!r}"
        if manifest is not None and (manifest.state is not None or manifest.ragged is not None):
            raise ServeError("keeps state, or takes packed sequences: it cannot be served", where=where)
        specs: tuple[InputSpec | OutputSpec, ...] = (*runner.inputs, *runner.outputs)
        for spec in specs:
            if spec.dtype not in DATATYPES:
                raise ServeError(f"the protocol has no element type {spec.dtype}", where=f"{where}: {spec.name!r}")
        symbols = {} if manifest is None else {s.name: s for s in manifest.symbols}
        rows = _rows(runner, self.max_batch) if isinstance(runner, Runner) else None
        names = tuple(i.name for i in runner.inputs)
        results = tuple(o.name for o in runner.outputs)
        return _Interface(manifest, runner.inputs, runner.outputs, names, results, symbols, rows)

    # -- requests ------------------------------------------------------------------------------------------------------

    def bind(self, request: Request) -> tuple[list[Array], int]:
        """The checked inputs in the order of a call, and their number of rows (1 if the model cannot be batched).
        Raises ServeError for inputs that do not fit."""
        interface = self.interface
        inputs = request.inputs
        try:
            arrays = [inputs[name] for name in interface.names]
        except KeyError:
            arrays = []
        if len(inputs) != len(interface.names) or len(arrays) != len(inputs):
            got = ", ".join(sorted(inputs)[:20])[:200] or "none"
            raise ServeError(
                "other inputs are wanted", where=f"model {self.name!r}", expected=_text(interface), got=got
            )
        form = tuple([(array.dtype, array.shape) for array in arrays])
        rows = interface.known.get(form)
        if rows is None:
            rows = _checked(interface, arrays)
            if len(interface.known) < _KNOWN:
                interface.known[form] = rows
        return arrays, rows

    def outputs_of(self, result: Any, wanted: tuple[str, ...] | None) -> dict[str, Array]:
        """The outputs in `result`, which a call returned, by name: those in `wanted`, or all."""
        results = result if isinstance(result, tuple) else (result,)
        arrays = [r if type(r) is np.ndarray else np.asarray(r) for r in results]
        named = dict(zip(self.interface.results, arrays, strict=True))
        return named if wanted is None else {name: named[name] for name in wanted}

    def check_outputs(self, wanted: tuple[str, ...] | None) -> None:
        """Raise ServeError if one of the output names `wanted` is not a name of the model's outputs; None names all of
        them."""
        if wanted is None:
            return
        known = self.interface.results
        for name in wanted:
            if name not in known:
                raise ServeError("there is no such output", where=f"output {name[:60]!r}", expected=", ".join(known))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(self, arrays: Sequence[Array]) -> tuple[Any, int]:
        """The outputs of a call, and the version of the weights. Raises ServeError if the arrays do not fit the
        model."""
        try:
            return self.runner.versioned(*arrays)
        except CallError as error:
            raise ServeError(error.what, where=error.where, expected=error.expected, got=error.got) from None

    def gathered(self, k: int, axis: int, arrays: Sequence[Array]) -> Array:
        """Input `k` of several requests, their `arrays`, concatenated along an axis. Each thread reuses one buffer, as
        allocating new memory costs as much as copying."""
        first, rows = arrays[0], sum(array.shape[axis] for array in arrays)
        nbytes = first.nbytes // max(1, first.shape[axis]) * self.max_batch
        if axis or rows > self.max_batch or first.dtype.hasobject or nbytes > _GATHERED_BYTES:
            return np.concatenate(arrays, axis)
        buffers: dict[int, Array] = self._own.__dict__.setdefault("buffers", {})
        buffer = buffers.get(k)
        if buffer is None or buffer.dtype != first.dtype or buffer.shape[1:] != first.shape[1:]:
            buffer = buffers[k] = np.empty((self.max_batch, *first.shape[1:]), first.dtype)
        return np.concatenate(arrays, out=buffer[:rows])

    def warm(self, seconds: float = _WARM_SECONDS) -> None:
        """Time some batches, for about `seconds` seconds, so that the first estimates are valid for this machine."""
        stop = time.perf_counter() + seconds
        sizes = self.estimates.sizes if self.rows is not None else [1]
        for size in sizes:
            try:
                arrays = self.example(size)
                self.call(arrays)
                self.estimates.observe(size, min(self._timed(arrays) for _ in range(3)))
            except (ServeError, MemoryError):
                return  # zeros do not fit this model; requests will tell
            if time.perf_counter() > stop:
                return

    def _timed(self, arrays: Sequence[Array]) -> float:
        start = time.perf_counter()
        self.call(arrays)
        return time.perf_counter() - start

    def example(self, rows: int) -> list[Array]:
        """Inputs of zeros with `rows` rows."""
        symbols = {name: max(s.lo, s.multiple, 1) for name, s in self.interface.symbols.items()}
        arrays = []
        for k, spec in enumerate(self.interface.inputs):
            shape = [d if isinstance(d, int) else symbols.get(d, 1) for d in spec.shape]
            if self.interface.rows is not None:
                shape[self.interface.rows.inputs[k]] = rows
            dtype = object if spec.dtype == "string" else BY_NAME[spec.dtype].numpy
            array = np.zeros(shape, dtype)
            if spec.dtype == "string":
                array[...] = b""
            arrays.append(array)
        return arrays


def prior(runner: Runnable) -> Callable[[int], float]:
    """A function that estimates a batch's seconds from the counts in a program's manifest; proportional to the rows if
    it has none."""
    manifest = getattr(runner, "manifest", None)
    steps = () if manifest is None else manifest.run_steps

    def seconds(rows: int) -> float:
        symbols = {} if manifest is None else {s.name: max(rows, s.lo) for s in manifest.symbols}
        total = 1e-6
        for step in steps:
            try:
                flops = evaluate(step.flops, symbols) if step.flops else 0
                traffic = evaluate(step.traffic, symbols) if step.traffic else 0
            except KeyError:  # sizes that data decides
                continue
            total += max(flops / _PEAK, traffic / _BANDWIDTH) + _STEP
        return total if steps else 1e-5 * rows

    return seconds


def _rows(runner: Runner, max_batch: int) -> Rows | None:
    """The axes along which requests to `runner` are batched; None if a row's result depends on other rows, so that
    batches would change it."""
    try:
        spec = ring_spec(runner.manifest, 1, 1, max_batch)
        check_rows(runner, spec, max_batch)
    except (BrokerError, CallError):
        return None
    return Rows(tuple(t.axis for t in spec.inputs), tuple(t.axis for t in spec.outputs))


def _open(shape: Sequence[int | str]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else -1 for d in shape)


def _checked(interface: _Interface, arrays: Sequence[Array]) -> int:
    """The number of rows of `arrays`, checked against the interface's types, shapes and ranges; 1 if the model is not
    batched. Raises ServeError if they do not fit."""
    sizes: dict[str, int] = {}
    for spec, array in zip(interface.inputs, arrays, strict=True):
        _fit(array, spec, sizes)
    for name, size in sizes.items():
        symbol = interface.symbols.get(name)
        if symbol is not None and not (symbol.lo <= size <= symbol.hi and size % symbol.multiple == 0):
            expected = f"{symbol.lo} to {symbol.hi}, multiples of {symbol.multiple}"
            raise ServeError(f"the size of {name} is out of range", expected=expected, got=size)
    return 1 if interface.rows is None else int(arrays[0].shape[interface.rows.inputs[0]])


def _fit(array: Array, spec: InputSpec, sizes: dict[str, int]) -> None:
    """Raise ServeError unless an array has an input's element type and shape; records the values of symbols in
    `sizes`."""
    where = f"input {spec.name!r}"
    datatype = DATATYPES[spec.dtype]
    if datatype_of(array.dtype) != datatype:
        raise ServeError("wrong datatype", where=where, expected=datatype, got=datatype_of(array.dtype))
    if array.ndim != len(spec.shape):
        raise ServeError("wrong rank", where=where, expected=list(_open(spec.shape)), got=list(array.shape))
    for dim, size in zip(spec.shape, array.shape, strict=True):
        if isinstance(dim, str):
            dim = sizes.setdefault(dim, size)
        if dim != size:
            raise ServeError("wrong shape", where=where, expected=list(_open(spec.shape)), got=list(array.shape))


def _text(interface: _Interface) -> str:
    return ", ".join(f"{i.name}: {DATATYPES[i.dtype]}{list(_open(i.shape))}" for i in interface.inputs)


def missing(name: str, version: str = "") -> ServeError:
    """The error for a request of the model `name`, or of its version `version`, which is not served."""
    what = f"no model {name[:100]!r} is served" + (f" in version {version[:40]!r}" if version else "")
    return ServeError(what, Status.NOT_FOUND)


__all__ = ["MAX_BATCH", "Function", "Rows", "Runnable", "Served", "Tensor", "missing"]
