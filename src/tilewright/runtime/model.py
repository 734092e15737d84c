"""`Model`: a compiled program that is called on arrays and takes new weights while it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Any

from tilewright.runtime import artifact
from tilewright.runtime.engine import Engine
from tilewright.runtime.interop import Array
from tilewright.runtime.program import Program, link
from tilewright.runtime.recorded import describe
from tilewright.runtime.runner import Runner
from tilewright.runtime.target import check_target, is_gpu
from tilewright.runtime.threads import check_threads
from tilewright.runtime.weights.check import check_version, check_weights
from tilewright.runtime.weights.local import LocalWeights, Reread
from tilewright.runtime.weights.packed import adopted, copy_aligned, readable
from tilewright.support.errors import ArtifactError, CallError, CompileError, WeightError
from tilewright.support.options import check_option

if TYPE_CHECKING:
    from tilewright.runtime.gpu.device import Device
    from tilewright.runtime.gpu.weights import DeviceWeights
    from tilewright.runtime.manifest import Manifest
    from tilewright.runtime.profile import Profile
    from tilewright.runtime.stream import Stream
    from tilewright.runtime.trace_events import Timeline


class Model(Runner):
    """A program, loaded. Any number of threads may call it at once.

        action, value = model(obs)                       new arrays, of the kind of the first input
        model(obs, out=(action, value))                  into the caller's arrays; nothing is allocated
        model(obs=obs)                                   inputs by name
        model.run({"obs": obs}, out={"action": action})  inputs and outputs by name
        await model.call_async(obs)                      by another thread
        model.stream()                                   a way in for one of several callers, with memory of its own
        model.update(weights)                            new weights for all later calls

    A call returns the output, or a tuple of outputs; or the argument `out` (an array, or a tuple of all outputs).
    Arrays may be NumPy's, PyTorch's, JAX's or any with DLPack. Inputs must have the stated dtype and rank and lie in
    CPU memory; those that are not contiguous, or that share memory with an output, are copied. Symbolic dimensions are
    taken from the inputs. While a call runs longer than some microseconds, other Python threads run.

    Args:
        program: the compiled program.
        threads: how many threads a call uses, the caller included.
        version: of the weights.
        keep_weights: whether raw weights stay in memory once they are packed. None: only if they cannot be read again.
        repeated: a function that reads the raw weights again, by name.
    """

    def __init__(
        self,
        program: Program,
        threads: int = 1,
        *,
        version: int = 0,
        keep_weights: bool | None = None,
        repeated: Reread | None = None,
    ) -> None:
        check_option("keep_weights", keep_weights, (bool, NoneType), "True, False or None", CallError)
        manifest = program.manifest
        if not is_gpu(manifest.target):  # of which the driver says whether it is there
            check_target(manifest.target, f"program {manifest.name!r}")
        # Constants stay with the program; the rest of the weights is kept once, by `LocalWeights`.
        fixed = {p.name: program.weights[p.name] for p in manifest.params if p.fixed and p.name in program.weights}
        self._program = replace(program, weights=fixed)
        device = _device(manifest)
        engine = Engine(manifest, link(program), check_threads(threads) if device is None else 1, device=device)
        arrays = check_weights(manifest.params, program.weights, finite=False, patterns=manifest.patterns)
        own = adopted if program.private else copy_aligned
        self._weights: LocalWeights | DeviceWeights
        if device is not None:
            self._weights = _device_weights(engine, device)
            self._weights.adopt(own(manifest.params, arrays), version)
        else:
            self._weights = LocalWeights(engine, keep=keep_weights is not False)
            if keep_weights is False or (keep_weights is None and repeated is not None):
                self._weights.adopt(readable(manifest, arrays, program.private), version, repeated)
            else:
                self._weights.adopt(own(manifest.params, arrays), version)
        self._start(engine)

    # -- weights -------------------------------------------------------------------------------------------------------

    def update(self, weights: Mapping[str, Any], version: int | None = None, *, finite: bool = True) -> int:
        """Replace all weights, by name; returns their version.

        They are checked and packed in other memory, then exchanged at once: a call uses the old or the new weights,
        never a mixture. If anything is wrong, a WeightError lists all of it and the old weights stay.

        Args:
            version: a number larger than the current version; that plus 1 if None.
            finite: refuse NaN and infinity.
        """
        if self._engine.device is not None:
            from tilewright.runtime.gpu.arrays import on_host

            weights = on_host(weights, self._engine.device)
        arrays = check_weights(
            self.params,
            weights,
            finite=finite,
            ignored=self.manifest.ignored,
            tied=self.manifest.tied,
            folded=self.manifest.folded,
            patterns=self.manifest.patterns,
            fixed=self._program.weights,
        )
        with self._weights.updating:
            chosen = check_version(version, self.version)
            self._weights.publish(arrays, chosen, finite=finite)
            return chosen

    def stream(self, threads: int | None = None) -> Stream:
        """A `Stream` for one of several callers: it has an arena of its own, and shares code and weights
        (`runtime/stream.py`).

        Args:
            threads: of each of its calls; as many as the model's if None. With a stream for each core, 1.
        """
        from tilewright.runtime.stream import Stream  # which is built on models

        return Stream(self, self.threads if threads is None else threads)

    @property
    def version(self) -> int:
        """The version of the weights that a call would use now; 0 for those that the model was compiled with."""
        return self._weights.current.version

    @property
    def weights(self) -> dict[str, Array]:
        """The present raw weights by name, read-only: what `update` takes.

        If they are not in memory, they are read from the model's file again. Raises WeightError if the file has
        changed, or if they were dropped (`keep_weights=False`).
        """
        raw = zip(self.manifest.params, self._weights.lend().raw, strict=True)
        return {p.name: array for p, array in raw if not p.fixed}

    def _weight_addresses(self) -> list[int]:
        return list(self._weights.current.packed_addresses)

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(
        self, path: str | os.PathLike[str], *, texts: Sequence[str] = ("graph",), compressed: bool = False
    ) -> None:
        """Write code and current weights to a `.tw` file, atomically.

        Args:
            texts: those that the loaded model's `show` can print; generating some ("asm") takes a while.
            compressed: with weights compressed losslessly (see `Program.save`).
        """
        weights = self._weights.lend()
        named = {p.name: array for p, array in zip(self.manifest.params, weights.raw, strict=True)}
        replace(self._program, weights=named).save(path, texts=texts, version=weights.version, compressed=compressed)

    @classmethod
    def load(cls, path: str | os.PathLike[str], threads: int = 1, *, keep_weights: bool | None = None) -> Model:
        """The model that `save` wrote to the file at `path`, for calls of `threads` threads. Raises ArtifactError if
        the file is damaged or not for this machine.

        Args:
            keep_weights: True to keep raw weights in memory once they are packed; else they stay in the file, which is
                mapped, until they are needed.
        """
        program, version = artifact.read(path)
        try:
            if not is_gpu(program.manifest.target):
                check_target(program.manifest.target, str(path))
            model = cls(program, threads, version=version)
        except (CompileError, WeightError) as error:
            raise ArtifactError(f"does not hold a program that fits together: {error}", where=str(path)) from None
        if not keep_weights:
            artifact.leave_in_file(program)
        return model

    @property
    def program(self) -> Program:
        """Manifest, code and constants, without weights; a weight store passes it to its actors."""
        return replace(self._program, texts={})

    # -- what it is ----------------------------------------------------------------------------------------------------

    def profile_prepare(self, repeat: int = 5) -> Profile:
        """Time every kernel that packs weights, with the current weights."""
        from tilewright.runtime.profile import measure_prepare  # here: few models are timed

        self._on_host("timing of kernels")
        return measure_prepare(self._engine, self._weights.lend().raw, repeat)

    def timeline(self, *inputs: Any, calls: int = 1, threads: int | None = None) -> Timeline:
        """Record a timeline of all threads during calls on these inputs: `timeline(obs).save("trace.json")`.

        Args:
            threads: of these calls; if None, as many as ordinary calls currently use.
        """
        from tilewright.runtime.timeline import record  # here: few models are traced

        self._on_host("a timeline")

        engine = self._engine
        bound = self._measured(inputs)
        count = engine.threads_now(bound.dims) if threads is None else check_threads(threads)
        return record(engine, self._program.objects, self._weight_addresses(), bound, calls, min(count, self.threads))

    def show(self, what: str = "graph") -> str:
        """A text of the program: "memory", "records" (the tuning records that decided it), or a text that the compiler
        stored ("graph", "loops", "schedule", "llvm", "asm")."""
        check_option("what", what, str, "the name of a text", CallError)
        if what == "memory":
            return str(self.memory())
        if what == "records":
            return describe(self.manifest.records)
        text = self._program.texts.get(what)
        if text is None:
            known = ", ".join(sorted({*self._program.texts, "memory", "records"}))
            stored = what in ("graph", "loops", "schedule", "llvm", "asm")
            hint = f"save(path, texts=[{what!r}]) puts it into the file" if stored else None
            raise CallError(f"there is nothing to show for {what!r}", expected=f"one of {known}", hint=hint)
        return text() if callable(text) else text

    def __reduce__(self) -> Any:
        hint = "send a file (model.save, tw.load), or publish it and send the store's name (tw.Publisher, tw.attach)"
        raise CallError("a model cannot be sent to another process", where=f"model {self.name!r}", hint=hint)

    def __repr__(self) -> str:
        return f"<Model {self._described()}, weights version {self.version}>"


def _device(manifest: Manifest) -> Device | None:
    """The GPU that a program is for; None for a program for this processor."""
    if not is_gpu(manifest.target):
        return None
    from tilewright.runtime.gpu.device import Device  # which few programs need

    return Device(manifest)


def _device_weights(engine: Engine, device: Device) -> DeviceWeights:
    from tilewright.runtime.gpu.weights import DeviceWeights

    return DeviceWeights(engine, device)


def load(path: str | os.PathLike[str], threads: int = 1, *, keep_weights: bool | None = None) -> Model:
    """Load the model in the `.tw` file at `path`. `keep_weights=True` keeps raw weights in memory, not in the file
    alone."""
    return Model.load(path, threads, keep_weights=keep_weights)
