"""`Model`: a compiled program that is called on arrays and takes new weights while it runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime import artifact, report
from tilewright.runtime.arguments import bind_inputs, bind_outputs, describe_spec, separate
from tilewright.runtime.engine import Engine
from tilewright.runtime.interop import Array, in_kind_of
from tilewright.runtime.layout import aligned_bytes
from tilewright.runtime.link import Library
from tilewright.runtime.manifest import InputSpec, Manifest, OutputSpec, ParamSpec
from tilewright.runtime.profile import Profile, measure, measure_prepare
from tilewright.runtime.program import Program
from tilewright.runtime.target import check_target
from tilewright.runtime.threads import check_threads, pool
from tilewright.runtime.weights import WeightSet, check_weights, copy_aligned, packed_nbytes
from tilewright.support.errors import ArtifactError, CallError, CompileError, Problems, WeightError


class Called:
    """Instances are called through the builtin in their `__call__` slot.

    Python looks `__call__` up on the type, finds the slot's descriptor and calls what the instance keeps there, all in
    C. A method that passes its arguments on would cost three times what the call itself does.
    """

    __slots__ = ("__call__", "__dict__", "__weakref__")


class Model(Called):
    """A program, loaded. Any number of threads may call it at once.

        action, value = model(obs)                       new arrays, of the kind of the first input
        model(obs, out=(action, value))                  into the caller's arrays; nothing is allocated
        model.run({"obs": obs}, out={"action": action})  by names
        model.update(weights)                            new weights for all later calls

    A call gives the output, or a tuple of them; `out` itself if it is given (an array, or a tuple of all outputs).
    Arrays may be NumPy's, PyTorch's, JAX's or any with DLPack. Inputs must have the stated dtype and rank and lie in
    CPU memory; those that are not contiguous, or that share memory with an output, are copied. Symbolic dimensions are
    taken from the inputs. While a call runs longer than some microseconds, other Python threads run.

    Args:
        program: what the compiler made.
        threads: how many threads a call uses, the caller included.
        version: of the weights.
        adopt: keep the weights' arrays, which are dense, 64-byte aligned and never written again, instead of copies.
    """

    def __init__(self, program: Program, threads: int = 1, *, version: int = 0, adopt: bool = False) -> None:
        manifest = program.manifest
        check_target(manifest.target, f"program {manifest.name!r}")
        self._program = program
        self._manifest = manifest
        self._update_lock = threading.Lock()
        self._input_names = tuple(i.name for i in manifest.inputs)
        self._output_names = tuple(o.name for o in manifest.outputs)
        kernels = {s.kernel for s in (*manifest.run_steps, *manifest.prepare_steps)}
        exports = {"tw_run", "tw_prepare", "tw_shapes"} | kernels
        library = Library(program.objects, exports, {"tw_barrier": pool().barrier})
        self._engine = Engine(manifest, library, check_threads(threads))
        arrays = check_weights(manifest.params, program.weights, finite=False)
        self._publish(arrays if adopt else copy_aligned(manifest.params, arrays), version)
        self._call = self._engine.builtin(self._slow_call)
        self.__call__ = self._call  # type: ignore[method-assign]
        if not manifest.symbols:
            self._engine.ensure(())

    # -- calls -------------------------------------------------------------------------------------------------------

    if TYPE_CHECKING:

        def __call__(self, *inputs: Any, out: Any = None) -> Any:
            """The output, or a tuple of them; `out` itself if it is given (an array, or a tuple of all outputs)."""

    def _slow_call(self, *inputs: Any, out: Any = None) -> Any:
        """What the builtin calls when it meets anything out of the ordinary."""
        bound = bind_inputs(self._manifest.inputs, self._manifest.symbols, inputs)
        self._engine.learn(inputs)
        outputs = self._manifest.outputs
        shapes = self._engine.output_shapes(bound.dims)
        if out is None:
            new = [np.empty(shape, BY_NAME[o.dtype].numpy) for o, shape in zip(outputs, shapes, strict=True)]
            self._engine.call([*bound.arrays, *new], bound.dims)
            results = [in_kind_of(inputs[0], a) if inputs else a for a in new]
            return results[0] if len(results) == 1 else tuple(results) or None
        theirs, ours = bind_outputs(outputs, shapes, out)
        self._engine.learn(out if isinstance(out, (tuple, list)) else [out])
        self._engine.call([*separate(bound.arrays, ours), *ours], bound.dims)
        for their, our in zip(theirs, ours, strict=True):
            if their is not our:
                np.copyto(their, our)
        return out

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

    # -- weights -------------------------------------------------------------------------------------------------------

    def update(self, weights: Mapping[str, Any], version: int | None = None, *, finite: bool = True) -> int:
        """Take new weights: all of them, by name. Gives their version.

        They are checked and packed aside, then swapped in at once: a call sees the old ones or the new ones, never some
        of each. If anything is wrong, a WeightError lists all of it and the old weights stay.

        Args:
            version: a number larger than the present one; one more if None.
            finite: refuse NaN and infinity.
        """
        arrays = check_weights(self.params, weights, finite=finite)
        with self._update_lock:
            chosen = self.version + 1 if version is None else version
            if not isinstance(chosen, int) or isinstance(chosen, bool) or chosen <= self.version:
                raise WeightError("the version does not grow", expected=f"more than {self.version}", got=repr(version))
            copies = iter(copy_aligned(self.params, arrays))
            old = zip(self._manifest.params, self._engine.weights.raw, strict=True)
            self._publish([array if p.fixed else next(copies) for p, array in old], chosen)
            return chosen

    def _publish(self, raw: Sequence[Array], version: int) -> None:
        weights = WeightSet(self._manifest, raw, aligned_bytes(packed_nbytes(self._manifest)), version)
        self._engine.prepare(weights)
        self._engine.publish(weights)

    @property
    def version(self) -> int:
        """The version of the weights that a call now would use; 0 are those that it was compiled with."""
        return self._engine.weights.version

    @property
    def weights(self) -> dict[str, Array]:
        """The present raw weights by name, read-only: what `update` takes."""
        raw = zip(self._manifest.params, self._engine.weights.raw, strict=True)
        return {p.name: array for p, array in raw if not p.fixed}

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, texts: Sequence[str] = ("graph",)) -> None:
        """Write code and present weights to one `.tw` file, which appears whole or not at all.

        Args:
            texts: what `show` shall know of the loaded model; making some ("asm") takes a while.
        """
        weights = self._engine.weights
        named = {p.name: array for p, array in zip(self._manifest.params, weights.raw, strict=True)}
        kept = {name: text for name, text in self._program.texts.items() if name in texts}
        program = Program(self._manifest, self._program.objects, named, kept)
        artifact.write(path, program, weights.version)

    @classmethod
    def load(cls, path: str | os.PathLike[str], threads: int = 1) -> Model:
        """The model that `save` wrote. ArtifactError if the file is damaged or not for this machine."""
        program, version = artifact.read(path)
        try:
            check_target(program.manifest.target, str(path))
            return cls(program, threads, version=version, adopt=True)
        except (CompileError, WeightError) as error:
            raise ArtifactError(f"does not hold a program that fits together: {error}", where=str(path)) from None

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
        return measure(self._engine, bound, repeat)

    def profile_prepare(self, repeat: int = 5) -> Profile:
        """Time every kernel that packs weights, on the present ones."""
        return measure_prepare(self._engine, repeat)

    def memory(self, **symbols: int) -> report.Memory:
        """Where memory goes, for these values of the symbolic dimensions (their smallest if not given)."""
        return report.memory(self._engine, symbols)

    def show(self, what: str = "graph") -> str:
        """A text of the program: "memory", or what the compiler left ("graph", "loops", "schedule", "llvm", "asm")."""
        if what == "memory":
            return str(self.memory())
        text = self._program.texts.get(what)
        if text is None:
            known = ", ".join(sorted({*self._program.texts, "memory"}))
            raise CallError(f"there is nothing to show for {what!r}", expected=f"one of {known}")
        return text() if callable(text) else text

    def __repr__(self) -> str:
        ins, outs = _listed(self.inputs), _listed(self.outputs)
        return f"<Model {self.name}({ins}) -> ({outs}), {self.threads} threads, weights version {self.version}>"


def _listed(specs: Sequence[InputSpec | OutputSpec], most: int = 6) -> str:
    more = [f"{len(specs) - most} more"] if len(specs) > most else []
    return ", ".join([f"{s.name}: {describe_spec(s)}" for s in specs[:most]] + more)


def load(path: str | os.PathLike[str], threads: int = 1) -> Model:
    """Load a `.tw` file."""
    return Model.load(path, threads)
