"""`Runner`: the common base of `Model` and `Actor`: calls on arrays, and descriptions of the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.runtime.arguments import BoundInputs, bind_inputs, bind_outputs, describe_spec, in_order, separate
from tilewright.runtime.engine import Engine, StoreMoved
from tilewright.runtime.interop import Array, in_kind_of
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.outputs import uninitialised
from tilewright.runtime.ragged import call_ragged, call_versioned
from tilewright.runtime.rooms import Rooms
from tilewright.runtime.specs import InputSpec, OutputSpec, ParamSpec, evaluate
from tilewright.runtime.threads import check_threads
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, Problems, UnsupportedError
from tilewright.support.options import check_option

if TYPE_CHECKING:
    from tilewright.runtime import report
    from tilewright.runtime.pending import Pending
    from tilewright.runtime.profile import Profile, StepClock
    from tilewright.runtime.state import State


class Called:
    """Instances are called through the builtin in their `__call__` slot.

    Python looks up `__call__` on the type, finds the slot's descriptor and calls the function that the instance stores
    there, all in C. A Python method that forwards its arguments would take three times as long as the call itself.
    """

    __slots__ = ("__call__", "__dict__", "__weakref__")


@dataclass(frozen=True, slots=True)
class _Entry:
    """The engine of a program, its builtin function and its names of inputs and outputs, in one object, so that a call
    that reads it uses one program."""

    engine: Engine
    call: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Runner(Called):
    """A program that any number of threads may call at once. `_start` must be called before the first call."""

    _binding: _Entry

    def _start(self, engine: Engine) -> None:
        """Direct calls to `engine` from now on."""
        manifest = engine.manifest
        if (before := getattr(self, "_binding", None)) is not None:
            engine.max_iterations, engine.time_limit = before.engine.max_iterations, before.engine.time_limit
        engine.prepare_calls()
        call = engine.builtin(self._slow_call)
        self._rooms = Rooms(manifest)
        names = tuple(i.name for i in manifest.arguments), tuple(o.name for o in manifest.results)
        self._binding = _Entry(engine, call, *names)
        self.versioned = engine.builtin(self._slow_versioned, versioned=True)  # type: ignore[method-assign]
        self.__call__ = call  # type: ignore[method-assign]
        if manifest.extents:
            self._go_slow()
        if manifest.state is not None:
            self.__call__ = self._refuse  # type: ignore[method-assign]
            self.versioned = self._refuse  # type: ignore[method-assign]
        if manifest.ragged is not None:
            inputs = tuple(i.name for i in manifest.inputs if i.name != manifest.ragged.starts)
            self._binding = replace(self._binding, call=partial(call_ragged, manifest, call), inputs=inputs)
            self.__call__ = self._binding.call  # type: ignore[method-assign]
            self.versioned = partial(call_versioned, manifest, self.versioned)  # type: ignore[method-assign]

    def _go_slow(self) -> None:
        """Direct all calls to the slow path, in Python, from now on."""
        self._binding = replace(self._binding, call=self._slow_call)
        self.__call__ = self._slow_call  # type: ignore[method-assign]
        self.versioned = self._slow_versioned  # type: ignore[method-assign]

    def state(self, capacity: int, **dims: int) -> State:
        """Empty caches for a program that keeps state between calls; the returned `State` is called instead of the
        program.

        Args:
            capacity: the number of rows (tokens) for which memory is reserved.
            dims: the other symbolic dimensions of the caches ("batch").
        """
        from tilewright.runtime.state import State

        return State(self, capacity, dims)

    def _with_state(self, inputs: Sequence[Any], out: Any) -> Any:
        """A call with the caches of a state among `inputs`."""
        return self._binding.call(*inputs) if out is None else self._binding.call(*inputs, out=out)

    def _refuse(self, /, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Raise the error of a call without a state, for a program that keeps caches."""
        hint = "state = model.state(capacity=...), then state(...)"
        raise CallError("the program has caches that are kept between calls", where=f"program {self.name!r}", hint=hint)

    def _stateless(self) -> None:
        """Raise CallError for a program that can only be called with a state."""
        if self.manifest.state is not None:
            self._refuse()

    def _on_host(self, what: str) -> None:
        """Raise UnsupportedError, naming `what` was requested, for a program whose kernels run on a GPU."""
        if self._engine.device is not None:
            hint = "use NVIDIA's tools (nsys, ncu): kernels have names there"
            raise UnsupportedError(f"{what} of a program on a GPU", where=f"program {self.name!r}", hint=hint)

    @property
    def _engine(self) -> Engine:
        return self._binding.engine

    def _follow(self) -> None:
        """Switch to an engine for the store to which the weights have moved. Raises StoreMoved if that is impossible,
        as it is here."""
        raise StoreMoved

    def _weight_addresses(self) -> list[int]:
        """The addresses of the packed parameters that a call would read now; for measurements."""
        raise NotImplementedError

    # -- calls -------------------------------------------------------------------------------------------------------

    if TYPE_CHECKING:

        def __call__(self, /, *inputs: Any, out: Any = None, **named: Any) -> Any:
            """Call the program: returns the output, or a tuple of outputs; or the argument `out` (an array, or a tuple
            or list of all outputs). Inputs are positional or keyword arguments; an input named "out" must be
            positional."""

        def versioned(self, /, *inputs: Any, out: Any = None, **named: Any) -> tuple[Any, int]:
            """The outputs of a call, and the version of the weights that it used."""

    def _slow_call(self, /, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """The slow path of the builtin, for all cases that it does not handle."""
        return self._slow_versioned(*inputs, out=out, **named)[0]

    def _slow_versioned(self, /, *inputs: Any, out: Any = None, **named: Any) -> tuple[Any, int]:
        if named:
            ordered = in_order(self._binding.inputs, inputs, named)
            return self.versioned(*ordered) if out is None else self.versioned(*ordered, out=out)
        if isinstance(out, list):
            _, version = self.versioned(*inputs, out=tuple(out))  # the builtin takes tuples, at a fifth of the time
            return out, version
        dense = tuple(map(_dense, inputs))
        if any(a is not b for a, b in zip(dense, inputs, strict=True)) and not self._engine.writes_inputs:
            return self.versioned(*dense, out=out)  # the builtin takes them now, at a tenth of what all checks cost
        return self._answer(inputs, out)

    def _answer(self, inputs: tuple[Any, ...], out: Any) -> tuple[Any, int]:
        """(result, version of the weights) of a call with `inputs` and `out` by the slow path, which is repeated if the
        weights have moved meanwhile."""
        while True:
            try:
                return self._checked_call(inputs, out)
            except StoreMoved:
                self._follow()

    def _checked_call(self, inputs: tuple[Any, ...], out: Any) -> tuple[Any, int]:
        engine = self._engine
        manifest = engine.manifest
        if manifest.extents:
            return self._sized_call(engine, inputs, out)
        if engine.device is not None:
            from tilewright.runtime.gpu.arrays import call_on_device, on_device

            if any(on_device(x) for x in (*inputs, *(out if isinstance(out, tuple | list) else [out]))):
                return call_on_device(engine, engine.device, inputs, out)
        bound = bind_inputs(manifest.inputs, manifest.symbols, inputs)
        engine.learn(inputs)
        outputs = manifest.outputs
        shapes = engine.output_shapes(bound.dims)
        if out is None:
            new = uninitialised(outputs, shapes, bound.arrays)
            version = engine.call([*bound.arrays, *new], bound.dims)
            results = [in_kind_of(inputs[0], a) if inputs else a for a in new]
            return results[0] if len(results) == 1 else tuple(results) or None, version
        theirs, ours = bind_outputs(outputs, shapes, out)
        engine.learn(out if isinstance(out, tuple) else [out])
        version = engine.call([*separate(bound.arrays, ours), *ours], bound.dims)
        for their, our in zip(theirs, ours, strict=True):
            if their is not our:
                np.copyto(their, our)
        return out, version

    def _sized_call(self, engine: Engine, inputs: tuple[Any, ...], out: Any) -> tuple[Any, int]:
        """(result, version of the weights) of a call with `inputs` whose outputs' sizes data decides; it is repeated
        with larger rooms, the memory for such outputs, if these were too small. Raises CallError if `out` is passed."""
        manifest = engine.manifest
        if out is not None:
            raise CallError("data decides the sizes of outputs, so none can be given", where=f"program {self.name!r}")
        while True:
            bound = self._bound(engine, inputs)
            new = uninitialised(manifest.outputs, engine.output_shapes(bound.dims), bound.arrays)
            version = engine.call([*bound.arrays, *new], bound.dims)
            extents = _extents(manifest, new)
            if self._rooms.suffice(extents):
                break
        results = [in_kind_of(inputs[0], a) if inputs else a for a in _cut(manifest, bound.dims, new, extents)]
        return results[0] if len(results) == 1 else tuple(results) or None, version

    def _bound(self, engine: Engine, inputs: Sequence[Any]) -> BoundInputs:
        """The inputs of a call checked and converted, with rooms of their present sizes added."""
        manifest = engine.manifest
        return bind_inputs(manifest.inputs, manifest.symbols, self._rooms.filled(inputs))

    def _measured(self, inputs: Sequence[Any]) -> BoundInputs:
        """The inputs of calls to be measured; one call is made first, which enlarges the rooms as needed."""
        if self._rooms:
            self(*inputs)
        return self._bound(self._engine, inputs)

    def call_async(self, /, *inputs: Any, out: Any = None, **named: Any) -> Pending:
        """Let another thread make the call: `await` its result or call `result()` (`runtime/pending.py`). Its arrays
        must not be modified until then."""
        from tilewright.runtime.pending import in_background  # here: most programs make no such calls

        return in_background(self.__call__, inputs, out, named)

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call with inputs by name. `out` may contain some of the outputs; the others are new arrays."""
        self._stateless()
        interface = self._binding
        try:
            args = [inputs[name] for name in interface.inputs]
            if len(args) != len(inputs):
                args = _by_name(interface.inputs, inputs)
        except (KeyError, TypeError, IndexError):
            args = _by_name(interface.inputs, inputs)
        names = interface.outputs
        arrays = None if out is None else self._all_outputs(names, args, out)
        try:
            if arrays is None:
                result = interface.call(*args)
            else:
                interface.call(*args, out=tuple([arrays[name] for name in names]))
        except CallError:
            if self._binding is interface:
                raise
        if self._binding is not interface:
            return self.run(inputs, out)  # it became another program meanwhile, to which names may mean other places
        if arrays is not None:
            return dict(arrays)
        return {names[0]: result} if len(names) == 1 else dict(zip(names, result or (), strict=True))

    def _all_outputs(self, names: Sequence[str], args: Sequence[Any], out: Mapping[str, Any]) -> Mapping[str, Any]:
        """The caller's outputs `out`, completed by new arrays for the names that it lacks. Raises CallError for unknown
        names."""
        check_option("out", out, Mapping, "a dict of arrays by the outputs' names", CallError)
        arrays = out if len(out) == len(names) else {**self.empty_outputs(*args), **out}
        if len(arrays) != len(names) or not all(map(arrays.__contains__, names)):
            unknown = [name for name in out if name not in names]
            raise CallError(f"there is no output {unknown[0]!r}", expected=f"some of {list(names)}")
        return arrays

    @contextmanager
    def record_shapes(self) -> Iterator[dict[str, dict[int, int]]]:
        """Count, until the block ends, the values that calls give to symbolic dimensions: a histogram for each name, as
        `tw.dim(likely=)` takes it. Calls pass through Python meanwhile."""
        interface, seen = self._binding, {s.name: dict[int, int]() for s in self.manifest.symbols}

        def counted(*inputs: Any, out: Any = None, **named: Any) -> Any:
            inputs = in_order(interface.inputs, inputs, named)
            result = interface.call(*inputs, out=out)
            for name, size in _sizes_by_name(self.inputs, inputs).items():
                seen[name][size] = seen[name].get(size, 0) + 1
            return result

        self._binding = replace(interface, call=counted)
        self.__call__ = counted  # type: ignore[method-assign]
        try:
            yield seen
        finally:
            if self._binding.call is counted:  # else it follows other weights now
                self._binding = interface
                self.__call__ = interface.call  # type: ignore[method-assign]

    def empty_outputs(self, *inputs: Any) -> dict[str, Array]:
        """Uninitialised arrays that fit the outputs for these inputs, by name."""
        self._stateless()
        engine = self._engine
        bound = self._bound(engine, inputs)
        shapes = engine.output_shapes(bound.dims)
        outputs = engine.manifest.outputs
        return dict(zip([o.name for o in outputs], uninitialised(outputs, shapes, bound.arrays), strict=True))

    def ffi_function(self) -> Any:
        """The program as a tvm-ffi function of all inputs and then all outputs, for callers in any language."""
        self._stateless()
        if self._rooms:
            what = "data decides sizes that nothing bounds: call it from Python"
            raise CallError(what, where=f"program {self.name!r}")
        return self._engine.foreign()

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The program's name."""
        return self.manifest.name

    @property
    def manifest(self) -> Manifest:
        """Everything the runtime knows of the program."""
        return self._engine.manifest

    @property
    def descriptor(self) -> int:
        """The address of the program's descriptor (`call.MODEL`) for native callers, valid while this object lives."""
        self._stateless()
        return self._engine.address

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Names, dtypes and shapes of the inputs, in the order of a call."""
        return self.manifest.arguments

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """Names, dtypes and shapes of the outputs, in the order of a call."""
        return self.manifest.results

    @property
    def params(self) -> tuple[ParamSpec, ...]:
        """Names, dtypes and shapes of the weights that `update` takes."""
        return tuple(p for p in self.manifest.params if not p.fixed)

    @property
    def threads(self) -> int:
        """The most threads that a call uses; it uses fewer where these are faster (`runtime/trial.py`)."""
        return self._engine.threads

    @property
    def max_iterations(self) -> int:
        """The most iterations in one call of all loops whose end depends on data; a call that exceeds it raises
        CallError. Settable."""
        return self._engine.max_iterations

    @max_iterations.setter
    def max_iterations(self, most: int) -> None:
        self._engine.max_iterations = most

    @property
    def time_limit(self) -> float | None:
        """The most seconds that a call may spend in loops whose end depends on data; a call that exceeds it raises
        CallError. None, the default, means no limit. It is checked between iterations. Settable."""
        return self._engine.time_limit

    @time_limit.setter
    def time_limit(self, seconds: float | None) -> None:
        self._engine.time_limit = seconds

    def profile(self, *inputs: Any, repeat: int = 50, threads: int | None = None) -> Profile:
        """Time every kernel on these inputs, in `repeat` calls, with `threads` threads; if None, as many as calls may
        use."""
        self._stateless()
        self._on_host("timing of kernels")
        from tilewright.runtime.profile import measure  # here, as below: actors start without it

        engine = self._engine
        bound = self._measured(inputs)
        count = None if threads is None else min(check_threads(threads), engine.threads)
        return measure(engine, self._weight_addresses(), bound, repeat, count)

    def threads_of(self, *inputs: Any) -> int:
        """How many of the allowed `threads` calls on such inputs currently use."""
        engine = self._engine
        return engine.threads_now(self._measured(inputs).dims)

    def step_clock(self, *inputs: Any) -> StepClock:
        """A clock that times the program's steps on these inputs, in as many runs as wanted."""
        self._stateless()
        self._on_host("timing of kernels")
        from tilewright.runtime.profile import step_clock

        engine = self._engine
        bound = self._measured(inputs)
        return step_clock(engine, self._weight_addresses(), bound)

    def memory(self, **symbols: int) -> report.Memory:
        """The memory that the program uses for these values of symbolic dimensions (default: their smallest)."""
        from tilewright.runtime import report

        return report.memory(self._engine, symbols)

    def _described(self) -> str:
        ins, outs = _listed(self.inputs), _listed(self.outputs)
        return f"{self.name}({ins}) -> ({outs}), {self.threads} threads"


def _sizes_by_name(specs: Sequence[InputSpec], inputs: Sequence[Any]) -> dict[str, int]:
    """The sizes of the named dimensions of `specs` that the shapes of `inputs` give."""
    pairs = ((d, n) for spec, x in zip(specs, inputs, strict=True) for d, n in zip(spec.shape, x.shape, strict=True))
    return {d: int(n) for d, n in pairs if isinstance(d, str)}


def _extents(manifest: Manifest, arrays: Sequence[Array]) -> dict[str, int]:
    """The sizes that data decided, by name, which are the last of the program's output `arrays`."""
    return {name: int(a) for name, a in zip(manifest.extents, arrays[len(manifest.results) :], strict=True)}


def _cut(manifest: Manifest, dims: Sequence[int], arrays: Sequence[Array], extents: Mapping[str, int]) -> list[Array]:
    """The outputs for the caller: `arrays`, cut to the sizes that data decided (`extents`, by name); `dims` are the
    sizes of the symbols. Raises CallError for a negative size."""
    values = {**dict(zip((s.name for s in manifest.symbols), dims, strict=True)), **extents}
    results = []
    for spec, array in zip(manifest.results, arrays, strict=False):
        if spec.real is not None:
            shape = [evaluate(work, values) for work in spec.real]
            if min(shape, default=0) < 0:
                what = "a size that the data decides is negative"
                raise CallError(what, where=f"output {spec.name!r}", expected="at least 0", got=shape)
            array = array.reshape(-1)[: math.prod(shape)].reshape(shape)
        results.append(array)
    return results


def _dense(obj: Any) -> Any:
    """A contiguous copy of an array that is not contiguous; anything else unchanged."""
    return np.ascontiguousarray(obj) if type(obj) is np.ndarray and not obj.flags.c_contiguous else obj


def _listed(specs: Sequence[InputSpec | OutputSpec], most: int = 6) -> str:
    more = [f"{len(specs) - most} more"] if len(specs) > most else []
    return ", ".join([f"{s.name}: {describe_spec(s)}" for s in specs[:most]] + more)


def _by_name(names: Sequence[str], arguments: Mapping[str, Any]) -> list[Any]:
    """The values of the mapping `arguments` in the order of `names`. Raises CallError that lists missing and unknown
    names."""
    if not isinstance(arguments, Mapping):
        expected = f"a mapping with {list(names)}"
        hint = "tw.Session(model).run(names, feed) has ONNX Runtime's arguments" if arguments is None else None
        raise CallError("inputs by name are wanted", expected=expected, got=type(arguments).__qualname__, hint=hint)
    problems = Problems()
    for name in names:
        if name not in arguments:
            problems.add(CallError("is missing", where=f"input {name!r}"))
    for name in arguments:
        if name not in names:
            expected = f"one of {list(names)}"
            problems.add(CallError("there is no such input", where=f"input {name!r}", expected=expected))
    problems.raise_if_any("the inputs do not fit", kind=CallError)
    return [arguments[name] for name in names]
