"""A graph of ONNX Runtime as an ONNX model: what a session has loaded and simplified, read back through its interface.

What cannot be read back (an attribute or a type that the interface has no functions for) is left out, and the node is
marked as opaque: Tilewright never takes it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import field

import onnx

from tilewright.frontend.onnx.order import MAX_DEPTH
from tilewright.ort import abi
from tilewright.ort.api import Api, OrtError
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError

_A = onnx.AttributeProto


@dataclass(frozen=True, slots=True)
class Read:
    """A graph of ONNX Runtime as an ONNX model.

    Args:
        model: the model.
        nodes: the handles of its nodes, in the order of `model.graph.node`.
        opaque: the indices of nodes that cannot be expressed in ONNX.
    """

    model: onnx.ModelProto
    nodes: tuple[int, ...]
    opaque: frozenset[int]


def read_graph(api: Api, graph: int) -> Read:
    """The graph of this handle as an ONNX model."""
    model = onnx.ModelProto(ir_version=max(api.number("Graph_GetOnnxIRVersion", graph), 3))
    count = api.number("Graph_GetNumOperatorSets", graph)
    domains, versions = (ctypes.c_char_p * max(count, 1))(), (ctypes.c_int64 * max(count, 1))()
    api.call("Graph_GetOperatorSets", graph, domains, versions, count)
    for domain, version in zip(domains[:count], versions[:count], strict=True):
        model.opset_import.add(domain=(domain or b"").decode(), version=version)
    reader = _Reader(api)
    nodes = reader.fill(model.graph, graph, 0)
    return Read(model, tuple(nodes), frozenset(reader.opaque))


@dataclass(slots=True)
class _Reader:
    api: Api
    opaque: set[int] = field(default_factory=set)
    outermost: int = 0

    def fill(self, out: onnx.GraphProto, graph: int, depth: int) -> list[int]:
        """Write ONNX Runtime's graph with handle `graph`, `depth` levels inside of the model, to the message `out`;
        returns its nodes' handles. Raises ModelError for graphs that nest too deeply."""
        if depth > MAX_DEPTH:
            raise ModelError("graphs nest too deeply", expected=f"at most {MAX_DEPTH} levels")
        api = self.api
        out.name = api.text("Graph_GetName", graph) or "main"
        constant = set[str]()
        for info in api.handles("Graph_GetInitializers", graph):
            name = self.name(info)
            stated = self.value_info(info)
            is_text = stated.type.tensor_type.elem_type == onnx.TensorProto.STRING
            if self.flag("ValueInfo_IsConstantInitializer", info) and not is_text:
                out.initializer.append(self.tensor(api.handle("ValueInfo_GetInitializerValue", info), name))
                constant.add(name)
            elif depth == 0:  # a session's caller may give another value
                out.input.append(stated)
        known = {i.name for i in out.input} | constant
        inputs = [info for info in api.handles("Graph_GetInputs", graph) if self.name(info) not in known]
        out.input.extend(map(self.value_info, inputs))
        out.output.extend(map(self.value_info, api.handles("Graph_GetOutputs", graph)))
        stated = {v.name for v in (*out.input, *out.output)} | constant
        nodes = api.handles("Graph_GetNodes", graph)
        for k, node in enumerate(nodes):
            if depth == 0:
                self.outermost = k
            self.node(out.node.add(), node, depth)
            for info in filter(None, api.handles("Node_GetOutputs", node)):
                if (name := self.name(info)) and name not in stated:
                    out.value_info.append(self.value_info(info))
                    stated.add(name)
        return nodes

    def name(self, info: int) -> str:
        return self.api.text("GetValueInfoName", info) if info else ""

    def names(self, infos: Iterable[int]) -> list[str]:
        return list(map(self.name, infos))

    def flag(self, name: str, handle: int) -> bool:
        out = ctypes.c_bool()
        self.api.call(name, handle, ctypes.byref(out))
        return out.value

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def node(self, out: onnx.NodeProto, node: int, depth: int) -> None:
        api = self.api
        out.name, out.op_type = api.text("Node_GetName", node), api.text("Node_GetOperatorType", node)
        out.domain = api.text("Node_GetDomain", node)
        out.input.extend(self.names(api.handles("Node_GetInputs", node)))
        out.output.extend(self.names(api.handles("Node_GetOutputs", node)))
        for attribute in filter(None, api.handles("Node_GetAttributes", node)):
            kind = api.number("OpAttr_GetType", attribute)
            if kind == abi.GRAPH:
                continue
            try:
                self.attribute(out, attribute, kind)
            except (OrtError, UnicodeDecodeError):
                self.opaque.add(self.outermost)
        self.subgraphs(out, node, depth)

    def attribute(self, out: onnx.NodeProto, attribute: int, kind: int) -> None:
        name = self.api.text("OpAttr_GetName", attribute)
        if kind == abi.TENSOR_ATTRIBUTE:
            value = self.api.handle("OpAttr_GetTensorAttributeAsOrtValue", attribute)
            try:
                out.attribute.add(name=name, type=_A.TENSOR).t.CopyFrom(self.tensor(value, name))
            finally:
                self.api.free("ReleaseValue", value)
            return
        data = self.bytes_of(attribute, kind)
        match kind:
            case abi.INT_ATTRIBUTE:
                out.attribute.add(name=name, type=_A.INT, i=ctypes.c_int64.from_buffer_copy(data).value)
            case abi.INTS:
                out.attribute.add(
                    name=name, type=_A.INTS, ints=(ctypes.c_int64 * (len(data) // 8)).from_buffer_copy(data)
                )
            case abi.FLOAT:
                out.attribute.add(name=name, type=_A.FLOAT, f=ctypes.c_float.from_buffer_copy(data).value)
            case abi.FLOATS:
                floats = (ctypes.c_float * (len(data) // 4)).from_buffer_copy(data)
                out.attribute.add(name=name, type=_A.FLOATS, floats=floats)
            case abi.STRING:
                out.attribute.add(name=name, type=_A.STRING, s=data)
            case abi.STRINGS:
                out.attribute.add(name=name, type=_A.STRINGS, strings=data.split(b"\0")[:-1])
            case _:
                raise OrtError("an attribute of a kind that cannot be read", where=name, got=kind)

    def bytes_of(self, attribute: int, kind: int) -> bytes:
        """The elements of the attribute with handle `attribute`, of the type number `kind`, as bytes."""
        needed = ctypes.c_size_t()
        self.api.succeeds("ReadOpAttr", attribute, kind, None, 0, ctypes.byref(needed))  # says how many bytes
        data = ctypes.create_string_buffer(max(needed.value, 1))
        self.api.call("ReadOpAttr", attribute, kind, data, needed.value, ctypes.byref(needed))
        return data.raw[: needed.value]

    def subgraphs(self, out: onnx.NodeProto, node: int, depth: int) -> None:
        api = self.api
        count = api.number("Node_GetNumSubgraphs", node)
        if not count:
            return
        graphs, names = (ctypes.c_void_p * count)(), (ctypes.c_char_p * count)()
        api.call("Node_GetSubgraphs", node, graphs, count, names)
        for graph, name in zip(graphs, names, strict=True):
            held = out.attribute.add(name=(name or b"").decode(), type=_A.GRAPH).g
            self.fill(held, graph or 0, depth + 1)

    # -- values --------------------------------------------------------------------------------------------------------

    def value_info(self, info: int) -> onnx.ValueInfoProto:
        """A value's name and type; only the name if it is not a tensor or its type is unknown."""
        api, out = self.api, onnx.ValueInfoProto(name=self.name(info))
        type = api.handle("GetValueInfoTypeInfo", info)
        if not type or api.number("GetOnnxTypeFromTypeInfo", type) != abi.TENSOR:
            return out
        tensor = api.handle("CastTypeInfoToTensorInfo", type)
        if not tensor:
            return out
        out.type.tensor_type.elem_type = api.number("GetTensorElementType", tensor)
        if not api.free("TensorTypeAndShape_HasShape", tensor) & 1:
            return out
        rank = api.number("GetDimensionsCount", tensor)
        dims, names = (ctypes.c_int64 * max(rank, 1))(), (ctypes.c_char_p * max(rank, 1))()
        api.call("GetDimensions", tensor, dims, rank)
        api.call("GetSymbolicDimensions", tensor, names, rank)
        shape = out.type.tensor_type.shape
        shape.SetInParent()
        for size, name in zip(dims[:rank], names[:rank], strict=True):
            if size >= 0:
                shape.dim.add(dim_value=size)
            else:
                shape.dim.add(**({"dim_param": name.decode()} if name else {}))
        return out

    def tensor(self, value: int, name: str) -> onnx.TensorProto:
        """A copy of ONNX Runtime's tensor `value` as ONNX's tensor `name`. Raises OrtError for strings."""
        code, shape = shape_of(self.api, value)
        if code == onnx.TensorProto.STRING:
            raise OrtError("a tensor of strings", where=name)
        address, nbytes = self.api.handle("GetTensorMutableData", value), self.api.number("GetTensorSizeInBytes", value)
        data = ctypes.string_at(address, nbytes) if nbytes else b""
        return onnx.TensorProto(name=name, data_type=code, dims=shape, raw_data=data)


def shape_of(api: Api, value: int) -> tuple[int, tuple[int, ...]]:
    """(the code of the element type, the shape) of the tensor with handle `value`."""
    code, shape, rank = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t()
    refs = (ctypes.byref(code), ctypes.byref(shape), ctypes.byref(rank))
    api.call("GetTensorElementTypeAndShapeDataReference", value, *refs)
    count = rank.value
    dims = tuple((ctypes.c_int64 * count).from_address(shape.value)) if count and shape.value else ()
    return code.value, dims


__all__ = ["Read", "read_graph", "shape_of"]
