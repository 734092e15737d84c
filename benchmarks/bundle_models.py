"""The models that are bundled and raced: policies, image networks, transformers, recurrences, 8 bits, loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from benchmarks import control_models, decoder_model, dynamic_models, models
from benchmarks.onnx_builder import Builder
from benchmarks.policy_suite import az, hok1, imp, m64, nat, nl

Inputs = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class BundleModel:
    """A model, what of its dimensions is fixed or bounded, and the sizes of the call that is made of it.

    Args:
        build: gives the model.
        dims: as `tw.compile_program` takes them.
        sizes: of the call, by name of dimension.
        options: more of `tw.compile_program`'s arguments.
        rows: as `Program.bundle` takes them.
        inputs: of the call, where random ones would make no sense.
    """

    build: Callable[[], onnx.ModelProto]
    dims: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    rows: int | None = None
    inputs: Callable[[], Inputs] | None = None


def _loaded(name: str) -> Callable[[], onnx.ModelProto]:
    return lambda: onnx.load(models.load(name))


def _ids(high: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).integers(0, high, shape)


def _scan() -> Inputs:
    rng = np.random.default_rng(5)
    shapes = {"h0": (1, 128), "xs": (40, 1, 64)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def integers() -> onnx.ModelProto:
    """A small perceptron in 8 bits, between QuantizeLinear and DequantizeLinear."""
    b = Builder("integers", seed=8)
    rng = np.random.default_rng(8)
    scale, zero = b.constant(np.float32(0.05)), b.constant(np.uint8(128))
    fine, none = b.constant(np.float32(0.01)), b.constant(np.int8(0))
    x = b.input("x", [1, 40])
    for width, rows in ((32, 40), (10, 32)):
        x = b.op("DequantizeLinear", [b.op("QuantizeLinear", [x, scale, zero]), scale, zero])
        weight = b.constant(rng.integers(-127, 128, (rows, width)).astype(np.int8))
        x = b.relu(b.op("MatMul", [x, b.op("DequantizeLinear", [weight, fine, none])]))
    b.output(x, "y", [1, 10])
    return b.build()


ONE: Mapping[str, Any] = {"batch": 1}
MODELS: dict[str, BundleModel] = {
    "m64": BundleModel(m64, ONE),
    "m64-any": BundleModel(m64, {"batch": tw.dim(1, 64)}, {"batch": 16}),
    "nat": BundleModel(nat, ONE),
    "imp": BundleModel(imp, ONE),
    "nl": BundleModel(nl, ONE),
    "hok1": BundleModel(hok1, ONE),
    "az6": BundleModel(az, ONE),
    "resnet50": BundleModel(_loaded("light-resnet50")),
    "mobilenetv2": BundleModel(_loaded("mobilenetv2"), ONE),
    "bert": BundleModel(
        dynamic_models.bert,
        {"batch": 1, "seq": tw.dim(1, 128)},
        {"seq": 48},
        inputs=lambda: {"ids": _ids(1000, 1, 48), "places": np.arange(48)},
    ),
    "gpt2-decode": BundleModel(
        lambda: decoder_model.decoder(4, 256, 4, 2000),
        {"batch": 1, "n": tw.dim(1, 16)},
        {"n": 8},
        {"state": "auto"},
        128,
        lambda: {"ids": _ids(2000, 1, 8)},
    ),
    "shufflenet-qdq": BundleModel(_loaded("light-shufflenet-qdq")),
    "scan": BundleModel(control_models.recurrence, {"length": tw.dim(1, 64)}, {"length": 40}, inputs=_scan),
    "loop": BundleModel(control_models.decoder, inputs=lambda: {"first": np.array([[3]])}),
    "detector": BundleModel(control_models.detector),
    "integers": BundleModel(integers),
}


def inputs_of(model: BundleModel, proto: onnx.ModelProto) -> Inputs:
    """The inputs of a call, by name."""
    return models.example_inputs(proto, model.sizes.get("batch", 1)) if model.inputs is None else model.inputs()
