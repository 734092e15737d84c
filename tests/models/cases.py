"""The models of the policy suite, each compiled once for all tests of a process."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import tilewright as tw
from benchmarks import models

Arrays = dict[str, np.ndarray[Any, Any]]

SUITE = ("m64", "m256", "nat", "nl", "imp", "hok1", "dz", "az6")


class Case:
    """One model with its compiled form."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.proto = models.POLICY[name]()

    @functools.cached_property
    def model(self) -> tw.Model:
        return tw.compile(self.proto, threads=1)

    @functools.cached_property
    def _session(self) -> Any:
        import onnxruntime

        return onnxruntime.InferenceSession(self.proto.SerializeToString(), providers=["CPUExecutionProvider"])

    def inputs(self, batch: int, seed: int = 0) -> Arrays:
        return models.example_inputs(self.proto, batch, seed)

    def expected(self, inputs: Arrays) -> Arrays:
        names = [o.name for o in self.proto.graph.output]
        return dict(zip(names, self._session.run(None, inputs), strict=True))

    def other_weights(self, seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        weights = {i.name: numpy_helper.to_array(i) for i in self.proto.graph.initializer}
        return {k: (v * rng.uniform(0.5, 1.5, v.shape)).astype(v.dtype) for k, v in weights.items()}

    def with_weights(self, weights: Arrays) -> onnx.ModelProto:
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items())
        return proto


@functools.cache
def load(name: str) -> Case:
    return Case(name)


def bytes_of(outputs: Arrays) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in outputs.items()}
