"""`Section`: some nodes of a model as a model of their own, for the host that runs them.

A section has the nodes, the names that go in and out, and all initializers that its nodes may read. Types are not part
of it: they are known at different times, some only when values are there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx.inliner import inline_local_functions

from tilewright.frontend.common.finish import first_line
from tilewright.frontend.onnx.exported import exported
from tilewright.frontend.onnx.load import Loaded
from tilewright.frontend.onnx.order import MAX_DEPTH, captured, graphs, reads
from tilewright.frontend.onnx.tensors import as_tensor
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError

MAX_NODES = 1_000_000
"""Nodes of a model with its functions expanded."""

Dim = int | str


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """ONNX's code of an element type, and dimensions: numbers, or names of what is not known."""

    code: int
    dims: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{onnx.TensorProto.DataType.Name(self.code).lower()}[{', '.join(map(str, self.dims))}]"


Types = Mapping[str, TensorInfo | None]
"""The known types of values, by name; None: it is no tensor."""


@dataclass(frozen=True, slots=True)
class Section:
    """Some nodes of a model, in an order in which they can run, with the values that they read and compute, as a model
    of their own.

    Args:
        loaded: the model that they come from: its functions, versions, folder.
        name: of the section, for messages.
        nodes: the nodes.
        initializers: tensors that nodes may read, by name.
        inputs, outputs: names of values, in order.
        weights: those of the initializers that `Model.update` may change.
        prefix: the path of the graph that the nodes stand in, "" for the model's own.
    """

    loaded: Loaded
    name: str
    nodes: tuple[onnx.NodeProto, ...]
    initializers: Mapping[str, onnx.TensorProto]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: frozenset[str]
    prefix: str = ""

    def label(self, k: int) -> str:
        """The k-th node for messages: its path and operator."""
        node = self.nodes[k]
        name = node.name or next(filter(None, node.output), "") or f"#{k}"
        return f"{self.prefix}{name} ({operator(node)})"

    def cut(self, nodes: Sequence[int], outputs: Sequence[str], name: str) -> Section:
        """The section, called `name`, that computes `outputs` from the nodes with the indices `nodes`: the ones of them
        that are needed, with all values from outside as inputs."""
        needed, retained = set(outputs), list[onnx.NodeProto]()
        for k in sorted(nodes, reverse=True):
            if needed.intersection(self.nodes[k].output):
                retained.append(self.nodes[k])
                needed.update(reads(self.nodes[k]))
        produced = {name for node in retained for name in node.output}
        read = dict.fromkeys(name for node in reversed(retained) for name in reads(node))
        inputs = [n for n in read if n not in produced and n not in self.initializers]
        inputs += [n for n in outputs if n not in produced and n not in self.initializers and n not in read]
        return replace(self, name=name, nodes=tuple(retained[::-1]), inputs=tuple(inputs), outputs=tuple(outputs))

    def inner(self, node: onnx.NodeProto, graph: onnx.GraphProto, name: str) -> Section:
        """The inner graph `graph` of `node` as a section. Its inputs are its own, followed by the values that it reads
        from the graphs around it."""
        check_tensors(graph)
        constants, nodes = without_constants(graph.node)
        own = {t.name: t for t in graph.initializer} | constants
        mine = [i.name for i in graph.input if i.name not in own]
        outputs = tuple(o.name for o in graph.output)
        enclosing = {k: v for k, v in self.initializers.items() if k not in own and k not in mine}
        section = replace(
            self,
            name=name,
            nodes=nodes,
            initializers=enclosing | own,
            inputs=tuple(mine),
            outputs=outputs,
            weights=self.weights - own.keys() - set(mine),
            prefix=f"{self.prefix}{node.name or node.op_type}/",
        )
        outer = [n for n in captured(graph) if n not in enclosing]
        return replace(section, inputs=(*mine, *(n for n in outer if n not in mine)))

    def model(self, types: Types, values: Mapping[str, Any] | None = None) -> onnx.ModelProto:
        """The section as a model whose inputs have these types; inputs with `values` are initializers."""
        values = values or {}
        source = self.loaded.model
        model = onnx.ModelProto(ir_version=source.ir_version)
        for domain, version in self.loaded.opsets.items():
            model.opset_import.add(domain=domain, version=version)
        model.functions.extend(source.functions)
        graph = model.graph
        graph.name = self.name
        used = {n for node in self.nodes for n in reads(node)} | set(self.outputs)
        for name in sorted(used & self.initializers.keys()):
            if name in self.weights:  # its key is its name; constants' tensors have any
                graph.initializer.append(self.initializers[name])
            else:
                graph.node.append(onnx.helper.make_node("Constant", [], [name], value=self.initializers[name]))
        graph.node.extend(self.nodes)
        for name in self.inputs:
            if name in values:
                graph.initializer.append(as_tensor(values[name], name))
            else:
                graph.input.append(value_info(name, types.get(name)))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.outputs)
        return model


def whole(loaded: Loaded) -> Section:
    """The model's graph as a section."""
    graph = loaded.model.graph
    check_tensors(graph)
    initializers = {t.name: t for t in graph.initializer}
    inputs = tuple(i.name for i in graph.input if i.name not in initializers)
    constants, nodes = without_constants(graph.node)
    outputs = tuple(o.name for o in graph.output)
    name = graph.name or "main"
    module = exported(loaded.model)
    weights = frozenset(n for n in initializers if module is None or module.is_weight(n) or n in module.transposed)
    return Section(loaded, name, nodes, initializers | constants, inputs, outputs, weights)


def without_constants(
    nodes: Iterable[onnx.NodeProto],
) -> tuple[dict[str, onnx.TensorProto], tuple[onnx.NodeProto, ...]]:
    """(the tensors of Constant nodes by name, the other nodes)."""
    constants: dict[str, onnx.TensorProto] = {}
    others: list[onnx.NodeProto] = []
    for node in nodes:
        tensor = _constant(node) if node.op_type == "Constant" and node.domain in ("", "ai.onnx") else None
        if tensor is None or len(node.output) != 1 or not node.output[0] or node.output[0] in constants:
            others.append(node)
        else:
            constants[node.output[0]] = tensor
    return constants, tuple(others)


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The array of a constant; None for one of strings, or whose value is an attribute of the enclosing function."""
    if len(node.attribute) != 1 or node.attribute[0].ref_attr_name:
        return None
    a = node.attribute[0]
    match a.name, a.type:
        case "value", onnx.AttributeProto.TENSOR:
            return a.t
        case "value_float", onnx.AttributeProto.FLOAT:
            return as_tensor(np.float32(a.f), a.name)
        case "value_floats", onnx.AttributeProto.FLOATS:
            return as_tensor(np.array(a.floats, np.float32), a.name)
        case "value_int", onnx.AttributeProto.INT:
            return as_tensor(np.int64(a.i), a.name)
        case "value_ints", onnx.AttributeProto.INTS:
            return as_tensor(np.array(a.ints, np.int64), a.name)
    return None


def inlined(loaded: Loaded) -> Loaded:
    """The model with its functions' bodies in place of their calls, as far as their operator sets allow. Raises
    ModelError for functions that call themselves, or expand to too many nodes."""
    if not loaded.model.functions:
        return loaded
    bodies = {(f.domain, f.name, f.overload): f for f in loaded.model.functions}
    sizes: dict[tuple[str, str, str], int] = {}

    def size(node: onnx.NodeProto, depth: int) -> int:
        key = (node.domain, node.op_type, node.overload)
        if depth > MAX_DEPTH:
            raise ModelError("functions call each other too deeply", where=loaded.label)
        inner = sum(size(n, depth + 1) for graph in graphs(node) for n in graph.node)
        if key not in bodies:
            return 1 + inner
        if key not in sizes:
            sizes[key] = sum(size(n, depth + 1) for n in bodies[key].node)
        return sizes[key] + inner

    if sum(size(n, 0) for n in loaded.model.graph.node) > MAX_NODES:
        raise ModelError("the functions expand to too many nodes", where=loaded.label, expected=f"at most {MAX_NODES}")
    model = onnx.ModelProto()
    model.CopyFrom(loaded.model)
    del model.functions[:]
    model.functions.extend(f for key, f in bodies.items() if key in sizes)
    try:
        return replace(loaded, model=inline_local_functions(model))
    except Exception as error:  # ONNX's inliner has its own, of several classes
        text = first_line(error)
        raise ModelError("the functions cannot be expanded", where=loaded.label, got=text) from None


def check_tensors(graph: onnx.GraphProto) -> None:
    """Raise ModelError for initializers that are named twice."""
    names = [t.name for t in graph.initializer]
    if len(set(names)) != len(names) or not all(names):
        raise ModelError("an initializer's name is empty or used twice", where=f"graph {graph.name!r}")


def operator(node: onnx.NodeProto) -> str:
    """The name of a node's operator, with the domain where it is not ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def info_of(value: Any) -> TensorInfo | None:
    """The type and shape of a NumPy array or scalar; None for another object, and for an element type that ONNX
    lacks."""
    if not isinstance(value, np.ndarray | np.generic):
        return None
    code = _code_of(value.dtype)
    return None if code is None else TensorInfo(code, value.shape)


@functools.cache
def _code_of(dtype: np.dtype[Any]) -> int | None:
    """ONNX's code of NumPy's element type; None where it has none."""
    if dtype.kind in "OUS":
        return int(onnx.TensorProto.STRING)
    try:
        return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))
    except (ValueError, KeyError):
        return None


def declared(info: onnx.ValueInfoProto) -> TensorInfo | None:
    """The type that a file states for a value; None where it is no tensor or its rank is not stated."""
    return from_type(info.type, info.name)


def from_type(type: onnx.TypeProto, name: str) -> TensorInfo | None:
    """A tensor's type; dimensions that are not stated are named after the value."""
    if type.WhichOneof("value") != "tensor_type" or not type.tensor_type.HasField("shape"):
        return None
    dims: list[Dim] = []
    for k, d in enumerate(type.tensor_type.shape.dim):
        dims.append(d.dim_value if d.HasField("dim_value") else d.dim_param or f"{name}_dim{k}")
    return TensorInfo(type.tensor_type.elem_type, tuple(dims))


def value_info(name: str, info: TensorInfo | None) -> onnx.ValueInfoProto:
    """A value's name and type as ONNX says them."""
    if info is None:
        return onnx.ValueInfoProto(name=name)
    return onnx.helper.make_tensor_value_info(name, info.code, list(info.dims))


def names_of(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """The names of all values that nodes compute."""
    return {name for node in nodes for name in node.output if name}
