"""Merges models with a common prefix into one model that computes the prefix once (Nexus's prefix sharing, SOSP 2019,
6.3).

Nodes are equal if operator, attributes and inputs are; weights, if their bytes are. So a trunk shared by several heads
is recognised whatever the names of its values, and models that share nothing are put side by side.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from tilewright.serve.errors import ServeError
from tilewright.support.digest import blake2b


def merge(models: Mapping[str, onnx.ModelProto]) -> onnx.ModelProto:
    """One model with the inputs of all, by their names, and the outputs of each as `MODEL/OUTPUT`.

    Raises ServeError if inputs of one name differ, if operator sets differ, or for models with functions.
    """
    if not models:
        raise ServeError("there are no models to merge")
    merged = onnx.ModelProto()
    opsets: dict[str, int] = {}
    maker = _Maker(merged.graph)
    for name, model in models.items():
        if model.functions or model.graph.sparse_initializer:
            raise ServeError("has functions or sparse weights, which are not merged", where=f"model {name!r}")
        merged.ir_version = max(merged.ir_version, model.ir_version)
        for opset in model.opset_import:
            if opsets.setdefault(opset.domain, opset.version) != opset.version:
                what = f"operators of {opset.domain or 'ONNX'} in another version"
                raise ServeError(what, where=f"model {name!r}", expected=opsets[opset.domain], got=opset.version)
        maker.add(name, model.graph)
    for domain, version in opsets.items():
        merged.opset_import.add(domain=domain, version=version)
    merged.graph.name = "+".join(models)
    return merged


class _Maker:
    """Merges ONNX graphs into one, in which equal values are computed once."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._values: dict[bytes, list[str]] = {}
        self._inputs: dict[str, bytes] = {}

    def add(self, name: str, graph: onnx.GraphProto) -> None:
        names: dict[str, str] = {"": ""}
        weights = {tensor.name for tensor in graph.initializer}
        for value in graph.input:
            if value.name not in weights:
                names[value.name] = self._input(name, value)
        for tensor in graph.initializer:
            names[tensor.name] = self._weight(tensor)
        for node in graph.node:
            if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
                raise ServeError("has loops or branches, which are not merged", where=f"model {name!r}: {node.name!r}")
            for ours, theirs in zip(self._node(node, names), node.output, strict=True):
                names[theirs] = ours
        for value in graph.output:
            self._output(f"{name}/{value.name}", names[value.name], value)

    def _input(self, model: str, value: onnx.ValueInfoProto) -> str:
        text = value.type.SerializeToString(deterministic=True)
        if value.name not in self._inputs:
            self._inputs[value.name] = text
            self._graph.input.append(value)
        elif self._inputs[value.name] != text:
            raise ServeError(
                "another model has an input of this name and another type", where=f"{model}: {value.name!r}"
            )
        return str(value.name)

    def _weight(self, tensor: onnx.TensorProto) -> str:
        bare = onnx.TensorProto()
        bare.CopyFrom(tensor)
        bare.ClearField("name")
        bare.ClearField("doc_string")
        key = b"weight" + blake2b(bare.SerializeToString(deterministic=True)).digest()
        if key not in self._values:
            self._values[key] = [f"w{len(self._values)}"]
            new_node = self._graph.initializer.add()
            new_node.CopyFrom(bare)
            new_node.name = self._values[key][0]
        return self._values[key][0]

    def _node(self, node: onnx.NodeProto, names: Mapping[str, str]) -> list[str]:
        bare = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
        bare.attribute.extend(sorted(node.attribute, key=lambda a: a.name))
        bare.input.extend(names[name] for name in node.input)
        retained = ",".join("" if name else "-" for name in node.output)  # outputs that are left out
        key = b"node" + blake2b(bare.SerializeToString(deterministic=True) + retained.encode()).digest()
        if key not in self._values or node.op_type.startswith("Random") or node.op_type in ("Bernoulli", "Multinomial"):
            number = len(self._values)
            self._values[key] = [f"v{number}_{k}" if name else "" for k, name in enumerate(node.output)]
            new_node = self._graph.node.add()
            new_node.CopyFrom(bare)
            new_node.output.extend(self._values[key])
        return self._values[key]

    def _output(self, name: str, value: str, declared: onnx.ValueInfoProto) -> None:
        self._graph.node.add(op_type="Identity", input=[value], output=[name])
        new_node = self._graph.output.add()
        new_node.CopyFrom(declared)
        new_node.name = name


__all__ = ["merge"]
