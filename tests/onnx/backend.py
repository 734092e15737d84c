"""Tilewright as an ONNX backend, and two other backends that show whether the runner itself is right.

A model that Tilewright refuses as unsupported is *skipped* with the compiler's reason, by raising `unittest.SkipTest`;
anything else that goes wrong is a failure.

Nothing is told of the inputs' values: where these decide the structure (axes, a shape), Tilewright itself compiles at
the call. What it lacks runs elsewhere; `TilewrightModel.route` tells, and the runner reports it.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

import tilewright as tw


class TilewrightModel(BackendRep):
    """A compiled model, and by which route it has run so far."""

    def __init__(self, model: onnx.ModelProto, compile: Callable[[onnx.ModelProto], Any]) -> None:
        self._inputs = [i.name for i in data_inputs(model)]
        self._outputs = [o.name for o in model.graph.output]
        self._compiled: Any = or_skip(compile, model)

    @property
    def route(self) -> str:
        """ "native", "values" (native, compiled at the call for what it told), or "fallback" (not all is compiled)."""
        if not hasattr(self._compiled, "coverage"):
            return "native"
        return "fallback" if self._compiled.coverage().share < 1 else "values"

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        feeds = {name: as_value(value) for name, value in zip(self._inputs, inputs, strict=True)}
        results = self._compiled.run(feeds)
        return tuple(results[name] for name in self._outputs)


class TilewrightBackend(Backend):
    """`onnx.backend.base.Backend` over `tilewright.compile`, CPU only."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        super().prepare(model, device, **kwargs)
        return TilewrightModel(model, cls.compile)

    @staticmethod
    def compile(model: onnx.ModelProto) -> Any:
        """An object with `run(inputs by name) -> outputs by name`."""
        return tw.compile(model, threads=1)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


class InterpreterBackend(TilewrightBackend):
    """The importer with the NumPy references of the operators, no code: tells their mistakes from the compiler's."""

    @staticmethod
    def compile(model: onnx.ModelProto) -> Any:
        from tilewright.frontend.onnx import import_onnx
        from tilewright.ops.interpret import run_graph

        imported = import_onnx(model)

        class Interpreted:
            def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
                return run_graph(imported.graph, feeds, imported.weights)

        return Interpreted()


class ExportedBackend(TilewrightBackend):
    """The importer, `tilewright export --to onnx`, and ONNX Runtime; what that does not implement is a skip."""

    @staticmethod
    def compile(model: onnx.ModelProto) -> Any:
        import onnxruntime

        from tilewright.codegen.onnx import onnx_model
        from tilewright.frontend.onnx import import_onnx

        imported = import_onnx(model)
        written = onnx_model(imported.graph, imported.weights)
        try:
            session = onnxruntime.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])
        except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
            raise tw.errors.UnsupportedError(f"ONNX Runtime: {error}") from error

        class Exported:
            def run(self, feeds: dict[str, np.ndarray]) -> dict[str, Any]:
                names = [o.name for o in session.get_outputs()]
                inputs = {i.name: feeds[i.name] for i in session.get_inputs()}
                return dict(zip([o.name for o in model.graph.output], session.run(names, inputs), strict=True))

        return Exported()


def or_skip(compile: Callable[[onnx.ModelProto], Any], model: onnx.ModelProto) -> Any:
    """Compiles; what Tilewright says is unsupported (and nothing else) skips the test."""
    try:
        return compile(model)
    except tw.Error as error:
        problems = list(error.each())
        if all(isinstance(problem, tw.errors.UnsupportedError) for problem in problems):
            raise unittest.SkipTest("; ".join(sorted({short_reason(p) for p in problems}))) from error
        raise


def short_reason(problem: Any) -> str:
    """The problem without the name of the file and node, so that equal reasons count together."""
    details = []
    if problem.expected is not None:
        details.append(f"expected {problem.expected}")
    if problem.got is not None:
        details.append(f"got {problem.got}")
    return ": ".join([problem.what, ", ".join(details)] if details else [problem.what])


def as_value(value: Any) -> Any:
    """Test data as Tilewright takes it: C-contiguous arrays, lists of them, None."""
    if value is None or isinstance(value, list):
        return value
    return np.asarray(value, order="C")


def data_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    initialized = {i.name for i in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in initialized]


class _Evaluated(BackendRep):
    def __init__(self, evaluate: Any) -> None:
        self._evaluate = evaluate

    def run(self, inputs: Any, **kwargs: Any) -> Sequence[Any]:  # type: ignore[override]
        return self._evaluate(inputs)


class ReferenceBackend(Backend):
    """ONNX's own reference implementation in Python."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(model)
        names = [i.name for i in data_inputs(model)]
        return _Evaluated(lambda inputs: evaluator.run(None, dict(zip(names, inputs, strict=True))))


class OnnxRuntimeBackend(Backend):
    """ONNX Runtime; what it does not implement is a skip."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise unittest.SkipTest(str(error)[:100]) from error
        names = [i.name for i in session.get_inputs()]
        return _Evaluated(lambda inputs: session.run(None, dict(zip(names, inputs, strict=True))))


BACKENDS: dict[str, type[Backend]] = {
    "tilewright": TilewrightBackend,
    "interpreter": InterpreterBackend,
    "exported": ExportedBackend,
    "reference": ReferenceBackend,
    "onnxruntime": OnnxRuntimeBackend,
}
