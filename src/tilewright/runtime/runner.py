"""`Runner`: what a `Model` and an `Actor` have in common: being called on arrays, and saying what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime import report
from tilewright.runtime.arguments import bind_inputs, bind_outputs, describe_spec, separate
from tilewright.runtime.engine import Engine, StoreMoved
from tilewright.runtime.interop import Array, in_kind_of
from tilewright.runtime.manifest import InputSpec, Manifest, OutputSpec, ParamSpec
from tilewright.runtime.profile import Profile, measure
from tilewright.support.errors import CallError, Problems


class Called:
    """Instances are called through the builtin in their `__call__` slot.

    Python looks `__call__` up on the type, finds the slot's descriptor and calls what the instance keeps there, all in
    C. A method that passes its arguments on would cost three times what the call itself does.
    """

    __slots__ = ("__call__", "__dict__", "__weakref__")


class Runner(Called):
    """A program that any number of threads may call at once. `_start` must be called before the first call."""

    _engine: Engine
    _manifest: Manifest

    def _start(self, engine: Engine) -> None:
        """Be the face of this engine from now on."""
        manifest = engine.manifest
        self._engine = engine
        self._manifest = manifest
        self._input_names = tuple(i.name for i in manifest.inputs)
        self._output_names = tuple(o.name for o in manifest.outputs)
        if not manifest.symbols:
            engine.ensure(())
        self._call = engine.builtin(self._slow_call)
        self.versioned = engine.builtin(self._slow_versioned, versioned=True)  # type: ignore[method-assign]
        self.__call__ = self._call  # type: ignore[method-assign]

    def _follow(self) -> None:
        """The engine's weights have moved: start another engine, or raise."""
        raise StoreMoved

    def _weight_addresses(self) -> list[int]:
        """Of packed parameters, those that a call now would read; for measuring."""
        raise NotImplementedError

    # -- calls -------------------------------------------------------------------------------------------------------

    if TYPE_CHECKING:

        def __call__(self, *inputs: Any, out: Any = None) -> Any:
            """The output, or a tuple of them; `out` itself if it is given (an array, or a tuple of all outputs)."""

        def versioned(self, *inputs: Any, out: Any = None) -> tuple[Any, int]:
            """What a call gives, and the version of the weights that this very call used."""

    def _slow_call(self, *inputs: Any, out: Any = None) -> Any:
        """What the builtin calls when it meets anything out of the ordinary."""
        return self._slow_versioned(*inputs, out=out)[0]

    def _slow_versioned(self, *inputs: Any, out: Any = None) -> tuple[Any, int]:
        while True:
            try:
                return self._checked_call(inputs, out)
            except StoreMoved:
                self._follow()

    def _checked_call(self, inputs: tuple[Any, ...], out: Any) -> tuple[Any, int]:
        bound = bind_inputs(self._manifest.inputs, self._manifest.symbols, inputs)
        self._engine.learn(inputs)
        outputs = self._manifest.outputs
        shapes = self._engine.output_shapes(bound.dims)
        if out is None:
            new = [np.empty(shape, BY_NAME[o.dtype].numpy) for o, shape in zip(outputs, shapes, strict=True)]
            version = self._engine.call([*bound.arrays, *new], bound.dims)
            results = [in_kind_of(inputs[0], a) if inputs else a for a in new]
            return results[0] if len(results) == 1 else tuple(results) or None, version
        theirs, ours = bind_outputs(outputs, shapes, out)
        self._engine.learn(out if isinstance(out, (tuple, list)) else [out])
        version = self._engine.call([*separate(bound.arrays, ours), *ours], bound.dims)
        for their, our in zip(theirs, ours, strict=True):
            if their is not our:
                np.copyto(their, our)
        return out, version

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call by names. `out` may hold some of the outputs; the others are new arrays."""
        try:
            args = [inputs[name] for name in self._input_names]
            if len(args) != len(inputs):
                args = self._by_name(inputs)
        except (KeyError, TypeError, IndexError):
            args = self._by_name(inputs)
        names = self._output_names
        if out is None:
            result = self._call(*args)
            return {names[0]: result} if len(names) == 1 else dict(zip(names, result or (), strict=True))
        arrays = out if len(out) == len(names) else {**self.empty_outputs(*args), **out}
        if len(arrays) != len(names) or not all(map(arrays.__contains__, names)):
            unknown = [name for name in out if name not in names]
            raise CallError(f"there is no output {unknown[0]!r}", expected=f"some of {list(names)}")
        self._call(*args, out=tuple([arrays[name] for name in names]))
        return dict(arrays)

    def empty_outputs(self, *inputs: Any) -> dict[str, Array]:
        """Uninitialised arrays that fit the outputs for these inputs, by name."""
        bound = bind_inputs(self._manifest.inputs, self._manifest.symbols, inputs)
        shapes = self._engine.output_shapes(bound.dims)
        return {
            o.name: np.empty(shape, BY_NAME[o.dtype].numpy)
            for o, shape in zip(self._manifest.outputs, shapes, strict=True)
        }

    def _by_name(self, given: Mapping[str, Any]) -> list[Any]:
        names = list(self._input_names)
        if not isinstance(given, Mapping):
            raise CallError(
                "inputs by name are wanted", expected=f"a mapping with {names}", got=type(given).__qualname__
            )
        problems = Problems()
        for name in names:
            if name not in given:
                problems.add(CallError("is missing", where=f"input {name!r}"))
        for name in given:
            if name not in names:
                problems.add(CallError("there is no such input", where=f"input {name!r}", expected=f"one of {names}"))
        problems.raise_if_any("the inputs do not fit", kind=CallError)
        return [given[name] for name in names]

    def ffi_function(self) -> Any:
        """The program as a tvm-ffi function of all inputs and then all outputs, for callers in any language."""
        return self._engine.foreign()

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The program's name."""
        return self._manifest.name

    @property
    def manifest(self) -> Manifest:
        """Everything the runtime knows of the program."""
        return self._manifest

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Names, dtypes and shapes of the inputs, in the order of a call."""
        return self._manifest.inputs

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """Names, dtypes and shapes of the outputs, in the order of a call."""
        return self._manifest.outputs

    @property
    def params(self) -> tuple[ParamSpec, ...]:
        """Names, dtypes and shapes of the weights that `update` takes."""
        return tuple(p for p in self._manifest.params if not p.fixed)

    @property
    def threads(self) -> int:
        """How many threads a call uses."""
        return self._engine.threads

    def profile(self, *inputs: Any, repeat: int = 50) -> Profile:
        """Time every kernel on these inputs."""
        bound = bind_inputs(self._manifest.inputs, self._manifest.symbols, inputs)
        return measure(self._engine, self._weight_addresses(), bound, repeat)

    def memory(self, **symbols: int) -> report.Memory:
        """Where memory goes, for these values of the symbolic dimensions (their smallest if not given)."""
        return report.memory(self._engine, symbols)

    def _described(self) -> str:
        ins, outs = _listed(self.inputs), _listed(self.outputs)
        return f"{self.name}({ins}) -> ({outs}), {self.threads} threads"


def _listed(specs: Sequence[InputSpec | OutputSpec], most: int = 6) -> str:
    more = [f"{len(specs) - most} more"] if len(specs) > most else []
    return ", ".join([f"{s.name}: {describe_spec(s)}" for s in specs[:most]] + more)
