"""Tilewright as an ONNX backend, and two other backends that show whether the runner itself is right.

A model that uses what Tilewright does not implement is *skipped* with the compiler's reason, by raising
`unittest.SkipTest`; anything else that goes wrong is a failure.

Many node tests pass as run-time inputs what real models have as constants: the axes of a reduction, a shape,
repeats. Where the compiler cannot compile such a model as it stands, the backend compiles it at the first call for
the values given, keeping the other inputs free; `TilewrightModel.specialized` tells, and the runner reports it.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep

import tilewright as tw

# Operator -> positions of inputs that decide shapes or the structure of the computation.
STRUCTURAL: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "Col2Im": (1, 2),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
STRUCTURAL |= {f"Reduce{name}": (1,) for name in _REDUCTIONS}

# Operators whose outputs say nothing about the values of their inputs.
_SHAPE_ONLY = {"Shape", "Size"}


class TilewrightModel(BackendRep):
    """A compiled model, or one that is compiled at the first call for the values of its structural inputs."""

    def __init__(self, model: onnx.ModelProto, compile: Callable[[onnx.ModelProto], Any]) -> None:
        self._proto = model
        self._compile = compile
        self._inputs = [i.name for i in data_inputs(model)]
        self._outputs = [o.name for o in model.graph.output]
        self.specialized: tuple[str, ...] = ()
        self._compiled: Any = None
        try:
            self._compiled = or_skip(compile, model)
        except unittest.SkipTest:
            self.specialized = structural_inputs(model)
            if not self.specialized or len(self.specialized) == len(self._inputs):
                raise

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        feeds = {name: as_array(value) for name, value in zip(self._inputs, inputs, strict=True)}
        compiled = self._compiled
        if self.specialized:
            values = {name: feeds.pop(name) for name in self.specialized}
            compiled = or_skip(self._compile, with_constants(self._proto, values))
        results = compiled.run(feeds)
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


def as_array(value: Any) -> np.ndarray:
    """Test data as a C-contiguous array; sequences and optionals are not tensors."""
    if value is None or isinstance(value, list):
        raise unittest.SkipTest("sequence and optional inputs are not supported")
    return np.asarray(value, order="C")


def data_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    initialized = {i.name for i in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in initialized]


def structural_inputs(model: onnx.ModelProto) -> tuple[str, ...]:
    """Inputs of the graph from which the value at a structural position of some node is computed."""
    producers = {name: node for node in model.graph.node for name in node.output if name}
    wanted = {
        node.input[position]
        for node in model.graph.node
        for position in STRUCTURAL.get(node.op_type, ())
        if position < len(node.input) and node.input[position]
    }
    stack, seen = list(wanted), set(wanted)
    while stack:
        node = producers.get(stack.pop())
        if node is None or node.op_type in _SHAPE_ONLY:
            continue
        for name in node.input:
            if name and name not in seen:
                seen.add(name)
                stack.append(name)
    return tuple(i.name for i in data_inputs(model) if i.name in seen)


def with_constants(model: onnx.ModelProto, values: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The model with some inputs turned into initializers."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = [i for i in result.graph.input if i.name not in values]
    del result.graph.input[:]
    result.graph.input.extend(kept)
    result.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    return result


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
    "reference": ReferenceBackend,
    "onnxruntime": OnnxRuntimeBackend,
}
