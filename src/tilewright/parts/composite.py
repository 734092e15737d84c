"""`Composite`: a model of several parts, some of which are compiled, with the interface of a `Model`."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.onnx.derived import folded_weights
from tilewright.frontend.onnx.exported import Exported, exported
from tilewright.frontend.onnx.section import Section, declared
from tilewright.frontend.onnx.tensors import DTYPES
from tilewright.parts.context import Context, FallbackWarning
from tilewright.parts.part import Part, Watch
from tilewright.parts.report import coverage_of
from tilewright.runtime.arguments import describe_spec, in_order
from tilewright.runtime.interop import Array, as_numpy, in_kind_of
from tilewright.runtime.limits import check_iterations, check_time_limit
from tilewright.runtime.pending import Pending, in_background
from tilewright.runtime.profile import KernelTime, Profile
from tilewright.runtime.specs import InputSpec, OutputSpec, ParamSpec
from tilewright.runtime.weights.check import check_finite, check_version, check_weights
from tilewright.support.coverage import NATIVE, Coverage
from tilewright.support.errors import CallError, ModelError, Problems


class Composite:
    """Parts of an ONNX model in their order. Any number of threads may call it at once.

        y = model(x);  model(x, out=y);  model.run({"x": x});  model.update(weights)      as with a `Model`
        model.coverage()                                                                 what is compiled, what is not

    Values between parts are NumPy arrays, lists of them for sequences, None for an empty optional, and arrays of
    objects for strings.
    """

    def __init__(self, part: Part, context: Context, threads: int, name: str | None = None) -> None:
        self._part = part
        self._context = context
        self.threads = threads
        loaded = part.section.loaded
        graph = loaded.model.graph
        self.name = name or graph.name or "main"
        infos = {i.name: i for i in graph.input}
        self.inputs = tuple(InputSpec(n, *_described(infos[n])) for n in part.section.inputs)
        self._stated = tuple(declared(infos[n]) for n in part.section.inputs)
        self.outputs = tuple(OutputSpec(o.name, *_described(o)) for o in graph.output)
        module = exported(loaded.model)
        self._folded = {} if module is None else folded_weights(loaded.model, module, loaded.folder)
        named = {p: tensor for p, tensor in _params(part.section, module) if p.name not in self._folded}
        self.params = tuple(named)
        self._tensors = tuple(named.values())
        self._ignored = () if module is None else tuple(module.unread(loaded.model, [p.name for p in named]))
        self._gate = _Gate()
        self._said: set[str] = set()

    # -- calls ---------------------------------------------------------------------------------------------------------

    def __call__(self, /, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Call the model. Returns the output, or a tuple of them; `out` itself if it is given (an array, or a tuple of
        all outputs)."""
        inputs = in_order([i.name for i in self.inputs], inputs, named)
        if len(inputs) != len(self.inputs):
            names = ", ".join(f"{i.name}: {describe_spec(i)}" for i in self.inputs)
            raise CallError("wrong number of inputs", expected=f"{len(self.inputs)} ({names})", got=len(inputs))
        result = self._call(dict(zip((i.name for i in self.inputs), inputs, strict=True)))
        results = tuple(result[o.name] for o in self.outputs)
        if out is not None:
            _copy(results, out if isinstance(out, tuple | list) else (out,), [o.name for o in self.outputs])
            return out
        results = tuple(in_kind_of(inputs[0], r) if inputs and isinstance(r, np.ndarray) else r for r in results)
        return results[0] if len(results) == 1 else results

    def call_async(self, /, *inputs: Any, out: Any = None, **named: Any) -> Pending:
        """Make a call in another thread, as `Model.call_async` does."""
        return in_background(self, inputs, out, named)

    def stream(self) -> Composite:
        """The model itself: each compiled part has an arena for each of its callers, and other hosts manage their own
        memory."""
        return self

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call the model on `inputs` by names, and return its outputs by names. `out` may hold arrays for some of the
        outputs; the other outputs are new arrays. Raises CallError, which lists everything that does not fit."""
        names = [i.name for i in self.inputs]
        problems = Problems()
        for name in names:
            if name not in inputs:
                problems.add(CallError("is missing", where=f"input {name!r}"))
        for name in inputs:
            if name not in names:
                problems.add(CallError("there is no such input", where=f"input {name!r}", expected=f"one of {names}"))
        problems.raise_if_any("the inputs do not fit", kind=CallError)
        result = self._call({name: inputs[name] for name in names})
        for name, array in (out or {}).items():
            if name not in result:
                raise CallError(f"there is no output {name!r}", expected=f"some of {list(result)}")
            _copy([result[name]], [array], [name])
            result[name] = array
        return result

    def _call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        values = {name: _value(v, f"input {name!r}") for name, v in inputs.items()}
        self._check(values)
        with self._gate.calling():
            try:
                result = self._part.run(values)
            except ModelError as error:  # what only a call could find out
                raise CallError("the model does not run on these inputs", where=self.name, problems=[error]) from error
        self.warn_if_new(stacklevel=4)
        return {o.name: result[o.name] for o in self.outputs}

    def warn_if_new(self, stacklevel: int, hint: str = "") -> None:
        """Warn once for each node that runs elsewhere, at the caller `stacklevel` levels up: which host runs it, and
        the cost; `hint` is the advice to show."""
        if len(self._context.elsewhere) == len(self._said):
            return
        report = self.coverage()
        new = [u for u in report.uncompiled if u.node not in self._said]
        self._said |= self._context.elsewhere.keys()
        if not new:
            return
        listed = [f"{u.node}: {u.reason}; runs by {u.runs_by}" for u in new[:MAX_LISTED]]
        more = [f"and {len(new) - MAX_LISTED} more"] if len(new) > MAX_LISTED else []
        more += [f"hint: {hint}"] if hint else []
        outside = sum(p.runs_by != NATIVE for p in report.parts)
        warnings.warn(
            f"{self.name}: {len(new)} of {report.nodes} operators are not compiled and run elsewhere, which is slower: "
            f"{outside} of {len(report.parts)} parts are theirs, and values go from part to part through memory "
            "(fallback='never' refuses instead)\n  " + "\n  ".join([*listed, *more]),
            FallbackWarning,
            stacklevel=stacklevel,
        )

    def _check(self, values: Mapping[str, Any]) -> None:
        """Raise CallError for inputs that differ from the types that the model states."""
        problems = Problems()
        for spec, info in zip(self.inputs, self._stated, strict=True):
            value = values[spec.name]
            if info is None or info.code not in DTYPES:
                continue
            where, expected = f"input {spec.name!r}", describe_spec(spec)
            if not isinstance(value, np.ndarray):
                problems.add(CallError("not an array", where=where, expected=expected, got=type(value).__name__))
            elif value.dtype != DTYPES[info.code].numpy:
                problems.add(CallError("wrong element type", where=where, expected=expected, got=value.dtype))
            elif len(info.dims) != value.ndim:
                problems.add(CallError("wrong rank", where=where, expected=expected, got=list(value.shape)))
            elif any(isinstance(d, int) and d != n for d, n in zip(info.dims, value.shape, strict=True)):
                problems.add(CallError("wrong dimensions", where=where, expected=expected, got=list(value.shape)))
        problems.raise_if_any("the inputs do not fit", kind=CallError)

    # -- weights -------------------------------------------------------------------------------------------------------

    def update(self, weights: Mapping[str, Any], version: int | None = None, *, finite: bool = True) -> int:
        """Replace the weights by new ones, which must be complete, by name; returns their version, `version` or one
        more than the last. `finite` refuses NaN and infinity. A call sees the old weights or the new ones, never
        both."""
        folded = tuple(self._folded.items())
        arrays = check_weights(self.params, weights, finite=finite, ignored=self._ignored, folded=folded)
        if finite:
            check_finite(self.params, arrays)
        with self._gate.alone():
            chosen = check_version(version, self._context.version)
            pairs = zip(self._named(), arrays, strict=True)
            updated = {n: (a if n == p.name else a.T).copy() for (p, n), a in pairs}
            for model, section in self._part.models():
                self._context.check_folded(model.manifest.folded, section, updated)
            self._context.updated = updated
            self._context.version = chosen
            for model, section in self._part.models():
                mine = {n: self._context.updated[n] for n in model.weights if n in section.weights}
                model.update(model.weights | mine, finite=finite)
        return chosen

    @property
    def version(self) -> int:
        """The version of the weights; 0 for those of the file."""
        return self._context.version

    @property
    def weights(self) -> dict[str, Array]:
        """The present raw weights by name, as `update` takes them."""
        named = [(p, n, self._context.initializer(self._part.section, n)) for p, n in self._named()]
        return {p.name: a if n == p.name else a.T for p, n, a in named}

    def _named(self) -> Iterator[tuple[ParamSpec, str]]:
        return zip(self.params, self._tensors, strict=True)

    # -- where loops end -----------------------------------------------------------------------------------------------

    @property
    def max_iterations(self) -> int:
        """The most iterations of a loop that only data ends, as for a `Model`. May be set."""
        return self._context.max_iterations

    @max_iterations.setter
    def max_iterations(self, most: int) -> None:
        check_iterations(most)
        self._limit(most, self.time_limit)

    @property
    def time_limit(self) -> float | None:
        """The most seconds for a loop that only data ends, as for a `Model`; None for no limit. May be set."""
        return self._context.time_limit

    @time_limit.setter
    def time_limit(self, seconds: float | None) -> None:
        check_time_limit(seconds)
        self._limit(self.max_iterations, seconds)

    def _limit(self, iterations: int, seconds: float | None) -> None:
        with self._gate.alone():
            self._context.max_iterations, self._context.time_limit = iterations, seconds
            for model, _ in self._part.models():
                self._context.limit(model)

    # -- what it is ----------------------------------------------------------------------------------------------------

    def coverage(self) -> Coverage:
        """The coverage report: which parts are compiled, where the other parts run, and why, as far as the calls so far
        have shown."""
        return coverage_of(self._part, self._context)

    def show(self, what: str = "graph") -> str:
        """A text of each compiled part ("graph", "loops", "schedule", "llvm", "asm", "memory"), or "parts"."""
        if what == "parts":
            return str(self.coverage())
        return "\n".join(f"==== {section.name} ====\n{model.show(what)}" for model, section in self._part.models())

    def profile(self, *inputs: Any, repeat: int = 10) -> Profile:
        """Time every part on these inputs, the compiled ones by kernel as far as they take these very inputs."""
        names = [i.name for i in self.inputs]
        values = {n: _value(v, f"input {n!r}") for n, v in zip(names, inputs, strict=True)}
        self._check(values)
        samples: list[list[tuple[str, str, float]]] = []
        for _ in range(repeat + 1):
            results: list[tuple[str, str, float]] = []
            self._part.run(values, _noting(results))
            samples.append(results)
        last = samples[-1]
        usable = [s for s in samples[1:] if [x[:2] for x in s] == [x[:2] for x in last]]
        seconds = np.median([[x[2] for x in s] for s in usable], axis=0).tolist() if last else []
        total = sum(seconds) or 1e-12
        rows = zip(last, seconds, strict=True)
        kernels = tuple(KernelTime(name, label, s, s / total, None, None) for (name, label, _), s in rows)
        return Profile(kernels, total, {}, self.threads)

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Not supported: a model of parts needs the ONNX file and the hosts of its other parts wherever it runs."""
        others = sorted({p.runs_by for p in self.coverage().parts if p.runs_by != NATIVE})
        raise CallError(
            "a model of several parts cannot be saved: a .tw file holds code, and nothing that another runtime reads",
            where=f"model {self.name!r}",
            got=f"parts that run by {', '.join(others)}" if others else "parts that are compiled at calls",
            hint="keep the .onnx file; compiled parts are kept in the cache",
        )

    def __reduce__(self) -> Any:
        raise CallError("a model cannot be sent to another process", where=f"model {self.name!r}")

    def __repr__(self) -> str:
        ins = ", ".join(f"{s.name}: {describe_spec(s)}" for s in self.inputs[:6])
        outs = ", ".join(f"{s.name}: {describe_spec(s)}" for s in self.outputs[:6])
        return f"<Composite {self.name}({ins}) -> ({outs}), {self.threads} threads, weights version {self.version}>"


MAX_LISTED = 10
"""The largest number of operators that a warning lists."""


class _Gate:
    """A lock that admits any number of calls together, and an update only by itself."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._waiting = 0

    @contextmanager
    def calling(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._inside)
                yield
            finally:
                self._waiting -= 1
                self._changed.notify_all()


def _value(value: Any, where: str) -> Any:
    """An input `value` of a call in the form in which parts take it; `where` names it in errors."""
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return [_value(v, where) for v in value]
    if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
        return value
    return np.require(as_numpy(value, where), requirements=["C", "A"])


def _noting(result: list[tuple[str, str, float]]) -> Watch:
    """A watch function that appends the name, kind and seconds of each part to `result`."""
    return lambda name, label, seconds: result.append((name, label, seconds))


def _copy(results: Sequence[Any], out: Sequence[Any], names: Sequence[str]) -> None:
    if len(out) != len(results):
        raise CallError("wrong number of outputs", expected=f"{len(results)} {list(names)}", got=len(out))
    for result, their, name in zip(results, out, names, strict=True):
        array = as_numpy(their, f"output {name!r}")
        if not isinstance(result, np.ndarray) or array.shape != result.shape or array.dtype != result.dtype:
            what = "wrong shape or type"
            got = f"{array.dtype}{list(array.shape)}"
            expected = f"{result.dtype}{list(result.shape)}" if isinstance(result, np.ndarray) else "no array"
            raise CallError(what, where=f"output {name!r}", expected=expected, got=got)
        np.copyto(array, result)


def _described(info: onnx.ValueInfoProto) -> tuple[str, tuple[int | str, ...]]:
    """The element type and shape that a file states for a value, for display."""
    result = declared(info)
    if result is not None:
        known = DTYPES.get(result.code)
        return known.name if known else onnx.TensorProto.DataType.Name(result.code).lower(), result.dims
    kind = info.type.WhichOneof("value")
    return (kind.removesuffix("_type") if kind else "unknown"), ("...",)


def _params(section: Section, module: Exported | None) -> Iterator[tuple[ParamSpec, str]]:
    """The weights that `update` takes, each with the name of its tensor in the file, which may be stored transposed."""
    for name in section.initializers:
        tensor = section.initializers[name]
        t = DTYPES.get(tensor.data_type)
        if name in section.weights and t is not None and t.is_float:
            shape = tuple(tensor.dims)
            if module is not None and name in module.transposed:
                yield ParamSpec(module.transposed[name], t.name, shape[::-1]), name
            else:
                yield ParamSpec(name, t.name, shape), name


__all__ = ["Composite"]
