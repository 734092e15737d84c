"""Attributes of nodes, and function bodies: those that a model defines and those by which ONNX defines its
operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.external import Folder
from tilewright.frontend.onnx.tensors import DTYPES, to_array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Var, as_int
from tilewright.support.errors import DTypeError, Error, ModelError, UnsupportedError

_A = onnx.AttributeProto
_CODES: dict[DType, int] = {t: code for code, t in DTYPES.items()}


def attributes(node: onnx.NodeProto, outer: Mapping[str, Any], folder: Folder | None) -> dict[str, Any]:
    """A node's attributes as Python values; references to a function's attributes are looked up in `outer`."""
    result: dict[str, Any] = {}
    for a in node.attribute:
        if a.name in result:
            raise ModelError(f"attribute {a.name} is given twice")
        if a.ref_attr_name:
            if a.ref_attr_name in outer:
                result[a.name] = outer[a.ref_attr_name]
            continue
        result[a.name] = _value(a, folder)
    return result


def _value(a: onnx.AttributeProto, folder: Folder | None) -> Any:
    match a.type:
        case _A.FLOAT:
            return a.f
        case _A.INT:
            return a.i
        case _A.STRING:
            return a.s
        case _A.FLOATS:
            return list(a.floats)
        case _A.INTS:
            return list(a.ints)
        case _A.STRINGS:
            return list(a.strings)
        case _A.TENSOR:
            return Tensor(to_array(a.t, f"attribute {a.name!r}", folder), a.t.data_type)
        case _A.GRAPH:
            return a.g
    raise UnsupportedError(f"attribute {a.name} is of a kind that is not supported", got=_A.AttributeType.Name(a.type))


class Tensor:
    """A tensor attribute: its array and ONNX's code of its element type."""

    __slots__ = ("array", "code")

    def __init__(self, array: Any, code: int) -> None:
        self.array = array
        self.code = code


def check_attributes(call: Call) -> None:
    """Raise for attributes that the rule never asked for, unless they have their default value."""
    graphs = {"then_branch", "else_branch"}  # only one of them is looked at
    if call.opset < 6:
        call.asked.add("consumed_inputs")  # which inputs' memory may be overwritten
    ignored = [name for name in call.attributes if name not in call.asked and name not in graphs]
    if not ignored:
        return
    defaults = _defaults(call)
    for name in ignored:
        if name not in defaults or defaults[name] != call.attributes[name]:
            known = "" if name in defaults else " (the operator has none of this name)"
            raise UnsupportedError(f"attribute {name} is not supported{known}", got=str(call.attributes[name])[:100])


def _defaults(call: Call) -> dict[str, Any]:
    try:
        schema = onnx.defs.get_schema(call.node.op_type, call.opset, call.node.domain)
    except onnx.defs.SchemaError:
        return {}
    return {
        name: _value(a.default_value, None) if a.default_value.name else None for name, a in schema.attributes.items()
    }


# --- types ----------------------------------------------------------------------------------------------------------


def admits(call: Call) -> bool:
    """Whether ONNX's schema admits the types of the node's inputs; True for other domains, whose schemas are not
    known."""
    if call.node.domain not in ("", "ai.onnx"):
        return True
    try:
        schema = onnx.defs.get_schema(call.node.op_type, call.opset, "")
    except onnx.defs.SchemaError:
        return True
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    bound: dict[str, str] = {}
    for k, item in enumerate(call.items):
        if item is None or not schema.inputs:
            continue
        formal = schema.inputs[min(k, len(schema.inputs) - 1)]
        result = _type_string(item.dtype)
        if result not in allowed.get(formal.type_str, [formal.type_str]):
            return False
        if formal.is_homogeneous and bound.setdefault(formal.type_str, result) != result:
            return False
    return True


def _type_string(t: DType) -> str:
    """A type as ONNX's schemas write it."""
    name = onnx.TensorProto.DataType.Name(_CODES[t])
    return f"tensor({name.lower()})"


@contextmanager
def admitted(call: Call) -> Iterator[None]:
    """Within the context, report an element type that Tilewright's operator rejects, but ONNX's schema allows, as
    UnsupportedError."""
    try:
        yield
    except DTypeError as error:
        if admits(call):
            raise unsupported(error) from error
        raise


def unsupported(error: Error) -> Error:
    """An error about element types as UnsupportedError; any other error unchanged."""
    if not isinstance(error, DTypeError):
        return error
    return UnsupportedError(error.what, where=error.where, expected=error.expected, got=error.got, hint=error.hint)


# --- functions ------------------------------------------------------------------------------------------------------


def local_function(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.FunctionProto | None:
    """The function that `node` calls, if the file of `model` defines it; else None."""
    for f in model.functions:
        if f.name == node.op_type and f.domain == node.domain and f.overload == node.overload:
            return f
    return None


def parameters(call: Call, body: onnx.FunctionProto) -> dict[str, Any]:
    """The attribute values of the call of the function `body`: the ones that the node states, and defaults for the
    others."""
    values = {a.name: _value(a, None) for a in body.attribute_proto}
    if not call.node.domain:
        values = {k: v for k, v in _defaults(call).items() if v is not None} | values
    return values | call.attributes


def schema_body(call: Call) -> onnx.FunctionProto | None:
    """The function by which ONNX defines an operator for these input types, if it does."""
    try:
        schema = onnx.defs.get_schema(call.node.op_type, call.opset, call.node.domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    types = [_type_proto(call, i).SerializeToString() for i in range(len(call.items))]
    node = _without_references(call)
    try:
        text = schema.get_context_dependent_function(node.SerializeToString(), types)
    except (RuntimeError, onnx.defs.SchemaError):
        return None
    if not text:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(text)
    return body


def _without_references(call: Call) -> onnx.NodeProto:
    """The node of `call` with the values of attributes that refer to those of an enclosing function, on which a
    function's body may depend."""
    node = onnx.NodeProto()
    node.CopyFrom(call.node)
    del node.attribute[:]
    for a in call.node.attribute:
        if not a.ref_attr_name:
            node.attribute.append(a)
        elif a.name in call.attributes:
            value = call.attributes[a.name]
            if isinstance(value, Tensor):
                value = onnx.numpy_helper.from_array(value.array)
            node.attribute.append(onnx.helper.make_attribute(a.name, value, attr_type=a.type))
    return node


def _type_proto(call: Call, i: int) -> onnx.TypeProto:
    if not call.has(i):
        return onnx.TypeProto()
    t = call.type(i)
    result = onnx.helper.make_tensor_type_proto(_CODES[t.dtype], None)
    result.tensor_type.shape.SetInParent()
    for d in t.shape:
        entry = result.tensor_type.shape.dim.add()
        number = as_int(d)
        if number is not None:
            entry.dim_value = number
        elif isinstance(d, Var):
            entry.dim_param = d.name
    return result


def without_absent(nodes: Sequence[onnx.NodeProto], missing: Sequence[str]) -> list[onnx.NodeProto]:
    """Copies of `nodes`, which form a function's body, without the inputs in `missing`: a caller has omitted these."""
    if not missing:
        return list(nodes)
    gone = set(missing)
    result = []
    for node in nodes:
        if gone.intersection(node.input):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = ["" if name in gone else name for name in node.input]
            node = copy
        result.append(node)
    return result


def defined_names(graph: onnx.GraphProto) -> set[str]:
    """Every name of a value in a graph."""

    def all_names() -> Iterable[str]:
        yield from (i.name for i in graph.input)
        yield from (i.name for i in graph.initializer)
        yield from (i.name for i in graph.output)
        for node in graph.node:
            yield from node.output

    return set(filter(None, all_names()))
