"""The changes that PyTorch's exporters make to a module's weights, so that `model.update(module.state_dict())`
fits the file.

An exporter adds tensors of its own to the weights (masks, tables, numbers, transposed copies), keeps one tensor of
several with the same numbers, and folds transposes into weights. The newer one (based on torch.export) leaves a list of
the module's weights and, with each node, the operation it comes from:

    val_0 = MatMul(x, W.T)   of   linear(%x, %p_fc_weight, %p_fc_bias)    ->   W is "fc.weight", val_0 its transpose
    LayerNormalization(x, a.weight, a.bias)   of   layer_norm(%x, [8], %p_b_weight, ...)   ->   reads "b.weight"

The older one gives tensors of its own names such as "onnx::MatMul_12", and what was one tensor stays an `Identity`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import field

import numpy as np
import onnx
from onnx import numpy_helper

from tilewright.support.classes import dataclass

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_ORIGIN = "pkg.torch.onnx.fx_node"
_WEIGHT = re.compile(r"^(\w+): (?:PARAMETER|BUFFER) target='([^']+)'", re.MULTILINE)
_PLACEHOLDER = re.compile(r"%([pb]_\w+)")
_INVENTED = re.compile(r"val_\d+|onnx::\w+")
STATISTICS, COUNTER = "running_mean", "num_batches_tracked"
"""Parameters of a batch norm: a running statistic, which inference reads, and the counter, which only training
reads."""


@dataclass(frozen=True, slots=True)
class Exported:
    """How a module's weights are stored in the file that PyTorch exported from it.

    names       the module's own names of its weights; None where the file does not list them
    transposed  tensors of the file that are the transpose of a weight: to the weight's name
    read        the weight that a node really reads, where the file has one tensor for several: by the node's first
                output and the input's place, the weight's name
    copies      weights that are the `Identity` of another tensor in the file
    """

    names: frozenset[str] | None = None
    transposed: dict[str, str] = field(default_factory=dict)
    read: dict[tuple[str, int], str] = field(default_factory=dict)
    copies: set[str] = field(default_factory=set)

    def is_weight(self, name: str) -> bool:
        """Whether a float initializer of this name is one of the module's weights."""
        return not _INVENTED.fullmatch(name) if self.names is None else name in self.names

    def unread(self, model: onnx.ModelProto, weights: Collection[str]) -> set[str]:
        """Names of the module's `state_dict()` that inference does not read: counters of batch norms whose statistics
        are among `weights`, and tensors of the file that no node reads."""
        listed = self.names or frozenset()
        norms = [name.removesuffix(STATISTICS) for name in weights if name.endswith(STATISTICS)]
        dead = {t.name for t in model.graph.initializer if t.name in listed}
        return {n for n in listed if n.endswith(COUNTER)} | {norm + COUNTER for norm in norms} | (dead - set(weights))

    def missing(self, model: onnx.ModelProto) -> set[str]:
        """The module's weights that the file has in no form, neither as they are nor transposed nor as a copy."""
        result = {t.name for t in model.graph.initializer} | {*self.transposed.values(), *self.read.values()}
        return {n for n in self.names or () if n not in result | self.copies and not n.endswith(COUNTER)}


def exported(model: onnx.ModelProto) -> Exported | None:
    """The description of the module that a file was exported from; None for a file that is not PyTorch's."""
    if model.producer_name != "pytorch":
        return None
    text = next((entry.value for entry in model.graph.metadata_props if entry.key == _SIGNATURE), None)
    if text is None:
        return _by_scopes(model)
    targets = dict(_WEIGHT.findall(text))
    result = Exported(frozenset(targets.values()))
    present = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        origin = next((entry.value for entry in node.metadata_props if entry.key == _ORIGIN), "")
        weights = [targets[p] for p in _PLACEHOLDER.findall(origin) if p in targets]
        if weights:
            _read(node, origin, weights, present, result)
    return result


def _by_scopes(model: onnx.ModelProto) -> Exported:
    """The storage of weights in a file of PyTorch's older exporter, derived from the names of nodes, which contain the
    paths of modules."""
    result = Exported()
    present = {tensor.name: tensor for tensor in model.graph.initializer}
    biases = {name: node for node in model.graph.node if node.op_type == "Add" for name in node.input}
    for node in model.graph.node:
        if node.op_type == "Identity" and node.input[0] in present and result.is_weight(node.output[0]):
            result.copies.add(node.output[0])
        if node.op_type != "MatMul" or node.input[1] not in present or result.is_weight(node.input[1]):
            continue
        module = node.name.removesuffix("/MatMul").strip("/").replace("/", ".")
        add = biases.get(node.output[0])
        if add is not None and f"{module}.bias" in add.input and f"{module}.weight" not in present:
            result.transposed[node.input[1]] = f"{module}.weight"
    for name, tensor in present.items():
        if len(tensor.dims) == 2 and not result.is_weight(name) and name not in result.transposed:
            source = next((w for w, t in present.items() if result.is_weight(w) and _is_transpose(t, tensor)), None)
            if source is not None:
                result.transposed[name] = source
    return result


def _is_transpose(a: onnx.TensorProto, b: onnx.TensorProto) -> bool:
    """Whether the tensors `a` and `b` are each other's transposes; False where either is stored outside of the file."""
    if list(a.dims) != list(b.dims)[::-1] or a.data_type != b.data_type or not a.raw_data or not b.raw_data:
        return False
    if len(a.raw_data) != len(b.raw_data) or onnx.TensorProto.EXTERNAL in (a.data_location, b.data_location):
        return False
    first, second = numpy_helper.to_array(a), numpy_helper.to_array(b).T
    return np.array_equal(first[:1], second[:1]) and np.array_equal(first, second)


def _read(
    node: onnx.NodeProto,
    origin: str,
    weights: list[str],
    present: dict[str, onnx.TensorProto],
    result: Exported,
) -> None:
    """Record in `result` how a node reads the module's `weights`, which the exporter states for its operation `origin`:
    transposed, or through another initializer that equals one of them."""
    places = [k for k, name in enumerate(node.input) if name in present]
    linear = "torch.ops.aten.linear.default" in origin and len(node.output) == 1
    if linear and node.op_type == "MatMul" and places == [1]:
        name = node.input[1]
        if not result.is_weight(name) and len(present[name].dims) == 2 and weights[0] not in present:
            result.transposed[name] = weights[0]
        return
    if linear and node.op_type == "Add" and len(places) == 1:
        weights = weights[1:]
    if len(places) != len(weights):
        return
    for place, name in zip(places, weights, strict=True):
        held = node.input[place]
        if held != name and name not in present and result.is_weight(held):
            result.read[node.output[0], place] = name


__all__ = ["Exported", "exported"]
