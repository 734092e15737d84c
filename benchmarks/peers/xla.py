"""XLA:CPU through JAX, for models whose operators `_OPERATORS` states: perceptrons, convolutions, single layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.peers.common import Arrays, fixed_shapes, load
from tilewright.measure.contender import Prepared
from tilewright.support.errors import Error

Attributes = dict[str, Any]


def jitted(model: str, threads: int, batch: int) -> Prepared:
    """One `jax.jit` with weights as constants, inputs on the device; a call waits for its result.

    XLA:CPU takes its number of threads from the process's affinity, which is set before JAX starts.
    """
    import os

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import jax

    _, inputs = load(model, batch)
    function, names = _function(fixed_shapes(model, batch).graph)
    compiled = jax.jit(function)
    arrays = [jax.device_put(x) for x in inputs.values()]

    def call() -> Any:
        return jax.block_until_ready(compiled(*arrays))

    def outputs() -> Arrays:
        return {name: np.asarray(x) for name, x in zip(names, call(), strict=True)}

    return Prepared(call, outputs, {"version": jax.__version__})


def _function(graph: onnx.GraphProto) -> tuple[Callable[..., tuple[Any, ...]], list[str]]:
    known = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            known[node.output[0]] = numpy_helper.to_array(helper.get_node_attr_value(node, "value"))
    steps = []
    for node in graph.node:
        if node.op_type == "Constant":
            continue
        if node.op_type not in _OPERATORS:
            raise Error("not stated for XLA", where=node.op_type)
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        steps.append((_OPERATORS[node.op_type], attributes, list(node.input), node.output[0]))
    inputs = [v.name for v in graph.input if v.name not in known]
    names = [v.name for v in graph.output]

    def function(*arrays: Any) -> tuple[Any, ...]:
        values: dict[str, Any] = {**known, **dict(zip(inputs, arrays, strict=True))}
        for operator, attributes, operands, name in steps:
            values[name] = operator([values[x] for x in operands], attributes)
        return tuple(values[name] for name in names)

    return function, names


def _conv(v: Sequence[Any], a: Attributes) -> Any:
    from jax import lax

    rank = v[1].ndim - 2
    pads = a.get("pads", [0] * 2 * rank)
    y = lax.conv_general_dilated(
        v[0],
        v[1],
        a.get("strides", [1] * rank),
        list(zip(pads[:rank], pads[rank:], strict=True)),
        rhs_dilation=a.get("dilations", [1] * rank),
        feature_group_count=a.get("group", 1),
    )
    return y + v[2].reshape(-1, *[1] * rank) if len(v) > 2 else y


def _gemm(v: Sequence[Any], a: Attributes) -> Any:
    y = v[0] @ (v[1].T if a.get("transB") else v[1])
    return y + v[2] if len(v) > 2 else y


def _softmax(v: Sequence[Any], a: Attributes) -> Any:
    import jax

    return jax.nn.softmax(v[0], a.get("axis", -1))


def _layer_norm(v: Sequence[Any], a: Attributes) -> Any:
    import jax.numpy as jnp

    mean = v[0].mean(-1, keepdims=True)
    variance = jnp.square(v[0] - mean).mean(-1, keepdims=True)
    return (v[0] - mean) / jnp.sqrt(variance + a.get("epsilon", 1e-5)) * v[1] + v[2]


def _batch_norm(v: Sequence[Any], a: Attributes) -> Any:
    scale = v[1] / np.sqrt(v[4] + a.get("epsilon", 1e-5))
    shape = (-1, *[1] * (v[0].ndim - 2))
    return v[0] * scale.reshape(shape) + (v[2] - v[3] * scale).reshape(shape)


def _jnp(name: str) -> Callable[[Sequence[Any], Attributes], Any]:
    def apply(v: Sequence[Any], a: Attributes) -> Any:
        import jax.numpy as jnp

        return getattr(jnp, name)(*v)

    return apply


def _erf(v: Sequence[Any], a: Attributes) -> Any:
    from jax import lax

    return lax.erf(v[0])


def _cast(v: Sequence[Any], a: Attributes) -> Any:
    return v[0].astype(helper.tensor_dtype_to_np_dtype(a["to"]))


_OPERATORS: dict[str, Callable[[Sequence[Any], Attributes], Any]] = {
    "Add": _jnp("add"),
    "Sub": _jnp("subtract"),
    "Mul": _jnp("multiply"),
    "Div": _jnp("divide"),
    "Tanh": _jnp("tanh"),
    "MatMul": _jnp("matmul"),
    "Relu": lambda v, a: v[0].clip(0),
    "Flatten": lambda v, a: v[0].reshape(v[0].shape[0], -1),
    "Erf": _erf,
    "Cast": _cast,
    "Conv": _conv,
    "Gemm": _gemm,
    "Softmax": _softmax,
    "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm,
}
