"""The nine "light" real models that the onnx wheel carries: their graphs, inputs and expected outputs, offline.

Their weights are `ConstantOfShape` nodes (each tensor one repeated value), which is why they are small.
`randomized` puts seeded random weights in their place: with equal channels many mistakes would not show.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
PREFIX = "light_"


@dataclass(frozen=True, slots=True)
class LightModel:
    """One model with one set of inputs by name and the outputs that ONNX expects for it."""

    name: str
    path: Path
    inputs: dict[str, np.ndarray]
    expected: list[np.ndarray]
    rtol: float
    atol: float


def names() -> list[str]:
    """`bvlc_alexnet`, `densenet121`, ... in alphabetical order."""
    return sorted(p.stem.removeprefix(PREFIX) for p in FOLDER.glob(f"{PREFIX}*.onnx"))


def load(name: str) -> LightModel:
    """The model with its data, as ONNX's own runner makes them: input i / n, outputs from files beside the model."""
    path = FOLDER / f"{PREFIX}{name}.onnx"
    graph = onnx.load(path).graph
    inputs = {}
    for value in data_inputs(graph):
        shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
        size = int(np.prod(shape))
        inputs[value.name] = (np.arange(size).reshape(shape) / size).astype(np.float32)
    expected = []
    for i in range(len(graph.output)):
        tensor = onnx.load_tensor(path.with_name(f"{path.stem}_output_{i}.pb"))
        expected.append(numpy_helper.to_array(tensor))
    rtol = 2e-3 if name == "densenet121" else 1e-3
    return LightModel(name, path, inputs, expected, rtol, 1e-7)


def data_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Graph inputs that are not also initializers (IR version 3 lists both)."""
    initialized = {i.name for i in graph.initializer}
    return [value for value in graph.input if value.name not in initialized]


def randomized(name: str, seed: int = 0) -> onnx.ModelProto:
    """The model with an initializer of seeded random values in place of each `ConstantOfShape` weight."""
    model = onnx.load(FOLDER / f"{PREFIX}{name}.onnx")
    model.ir_version = 8  # from 4 on, initializers need not be graph inputs
    graph = model.graph
    rng = np.random.default_rng(seed)
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    roles = _roles(graph)
    retained = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            retained.append(node)
            continue
        shape = tuple(int(d) for d in shapes[node.input[0]])
        array = _draw(rng, roles.get(node.output[0], ("", 0)), shape)
        graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
    del graph.node[:]
    graph.node.extend(retained)
    used = {name for node in retained for name in node.input}
    for initializer in [i for i in graph.initializer if i.name not in used]:
        graph.initializer.remove(initializer)
    # An initializer that is also an input may be overridden at run time, which stops optimizers from folding it.
    data = data_inputs(graph)
    del graph.input[:]
    graph.input.extend(data)
    onnx.checker.check_model(model)
    return model


def _roles(graph: onnx.GraphProto) -> dict[str, tuple[str, int]]:
    """Value -> (operator that reads it, at which position), looking through `Unsqueeze`."""
    roles: dict[str, tuple[str, int]] = {}
    for node in reversed(graph.node):
        for position, name in enumerate(node.input):
            if node.op_type == "Unsqueeze" and node.output[0] in roles:
                roles[name] = roles[node.output[0]]
            else:
                roles[name] = (node.op_type, position)
    return roles


def _draw(rng: np.random.Generator, role: tuple[str, int], shape: tuple[int, ...]) -> np.ndarray:
    """A weight whose scale suits its role, so that activations stay near one through the network."""
    match role:
        case ("Conv" | "Gemm", 1) if len(shape) >= 2:
            fan_in = int(np.prod(shape[1:]))
            values = rng.standard_normal(shape) * (2.0 / fan_in) ** 0.5
        case ("BatchNormalization", 1) | ("Mul", _):
            values = rng.uniform(0.4, 0.8, shape)
        case ("BatchNormalization", 4):
            values = rng.uniform(0.8, 1.2, shape)
        case _:
            values = rng.standard_normal(shape) * 0.1
    return values.astype(np.float32)
