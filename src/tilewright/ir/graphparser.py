"""Parsing of graphs, their types and attributes."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from tilewright.ir.attributes import Attrs, ConstantArray
from tilewright.ir.dtype import BY_NAME, DType
from tilewright.ir.expr import Expr
from tilewright.ir.exprparser import element_type, expr, number_or_bool, skip_group, where_clause
from tilewright.ir.graph import Assumption, Graph, Node, TensorType, Value
from tilewright.ir.lexer import Cursor, Scope, Token
from tilewright.ir.selection import PRECISIONS, Selection, algorithms
from tilewright.support.errors import Error

A = TypeVar("A", bound=Attrs)


def graph(c: Cursor) -> Graph:
    """Parse a graph: `graph @main(inputs) params(weights) where ... { assumptions  nodes  return outputs }`."""
    c.expect("graph")
    c.expect("@")
    name = c.name("the graph's name")
    start = c.position
    skip_group(c)
    has_params = c.accept("params")
    if has_params:
        skip_group(c)
    where_clause(c)
    after = c.position
    # The `where` clause says what the symbols in the types are, so it was read first.
    c.position = start
    c.expect("(")
    inputs = tuple(c.separated(_typed_value, ")"))
    params: tuple[Value, ...] = ()
    if has_params:
        c.expect("params")
        c.expect("(")
        params = tuple(c.separated(_typed_value, ")"))
    c.position = after
    c.expect("{")
    assumptions = []
    while c.accept("assume"):
        assumptions.append(_assumption(c))
    nodes = []
    while not c.accept("return"):
        nodes.append(_node(c))
    outputs = tuple(c.separated(_value, "}"))
    return Graph(name, inputs, params, tuple(nodes), outputs, tuple(assumptions))


def _assumption(c: Cursor) -> Assumption:
    """Parse, after `assume`, an assumption: `s <= 512 "why"`."""
    condition, token = expr(c), c.token
    if token.kind != "string":
        c.fail("cannot read this", expected="the reason of an assumption as a string")
    c.position += 1
    return Assumption(condition, c.unquote(token))


def _value_name(c: Cursor) -> str:
    c.expect("%")
    token = c.token
    if token.kind == "number" and token.text.isdigit():
        c.position += 1
        return token.text
    return c.name("a value's name")


def _value(c: Cursor) -> Value:
    token = c.token
    name = _value_name(c)
    value = c.scope.values.get(name)
    if value is None:
        c.fail(f"no value is named {name!r}", token)
    return value


def _define(c: Cursor, token: Token, name: str, type: TensorType) -> Value:
    if name in c.scope.values:
        c.fail(f"a second value named {name!r}", token)
    value = c.scope.values[name] = Value(name, type)
    return value


def _typed_value(c: Cursor) -> Value:
    token = c.token
    name = _value_name(c)
    c.expect(":")
    return _define(c, token, name, tensor_type(c))


def tensor_type(c: Cursor) -> TensorType:
    """Parse the type of a tensor: `f32[batch, 64]`, with an optional layout `f32[1, 4, 16]:NCHW16c`."""
    element = element_type(c)
    c.expect("[")
    shape = tuple(c.separated(expr, "]"))
    return TensorType(element, shape, c.name("a layout") if c.accept(":") else "")


def _node(c: Cursor) -> Node:
    names: list[tuple[Token, str]] = []
    if c.sees("%"):
        names = c.separated(lambda c: (c.token, _value_name(c)), "=")
    at = c.token
    op = c.name("an operator")
    c.expect("(")
    inputs = tuple(c.separated(_input, ")"))
    attrs = attributes_of(c, c.kinds, op, at, attribute_values(c) if c.accept("{") else {})
    selected = _selection(c)
    outputs = []
    for i, (token, name) in enumerate(names):
        c.expect("," if i else ":")
        outputs.append(_define(c, token, name, tensor_type(c)))
    return Node(op, inputs, tuple(outputs), attrs, selected)


def _selection(c: Cursor) -> Selection | None:
    """Parse the choice of algorithm and precision of a node: `by winograd {tile = 4, ...} in fp32`, `in bf16`, or
    nothing."""
    algorithm = None
    if c.accept("by"):
        at = c.token
        name = c.name("an algorithm")
        kinds = algorithms()
        if name not in kinds:
            c.fail("no such algorithm", at, expected=", ".join(sorted(kinds)), got=name)
        values = attribute_values(c) if c.accept("{") else {}
        algorithm = attributes_of(c, kinds.__getitem__, name, at, values)
        c.expect("in")
    elif not c.accept("in"):
        return None
    at = c.token
    name = c.name("a precision")
    precision = next((p for p in PRECISIONS if p == name), None)
    if precision is None:
        c.fail("no such precision", at, expected=", ".join(PRECISIONS), got=name)
    return Selection(algorithm, precision)


def _input(c: Cursor) -> Value | None:
    return None if c.accept("none") else _value(c)


def attribute_values(c: Cursor) -> dict[str, Any]:
    """Parse, after `{`, attributes by name: `axis = 1, sizes = [2, $n]}`."""
    start = c.token
    pairs = c.separated(_attribute, "}")
    if [name for name, _ in pairs] != sorted({name for name, _ in pairs}):
        c.fail("attributes are sorted by name, each named once", start)
    return dict(pairs)


def attributes_of(c: Cursor, kinds: Callable[[str], type[A]], name: str, at: Token, values: Mapping[str, Any]) -> A:
    """The attributes with these values of the operator or algorithm `name`, which stands at token `at`; `kinds` returns
    the attribute class of a name."""
    try:
        return kinds(name).of(values, name)
    except Error as error:
        c.refuse(error, at)


def _attribute(c: Cursor) -> tuple[str, Any]:
    name = c.name("an attribute's name")
    c.expect("=")
    return name, attr_value(c)


def attr_value(c: Cursor) -> Any:
    """Parse the value of an attribute: a number, `true`, a string, an element type, `$expr`, an array, a graph, `none`
    or a `[list]` of those."""
    with c.nested():
        token = c.token
        if token.kind == "string":
            c.position += 1
            return c.unquote(token)
        if c.accept("none"):
            return None
        if c.accept("["):
            return tuple(c.separated(attr_value, "]"))
        if c.accept("$"):
            return _atom(c)
        if c.accept("array"):
            return _array(c)
        if c.sees("graph"):
            return _body(c)
        if token.kind == "name" and token.text in BY_NAME:
            c.position += 1
            return BY_NAME[token.text]
        value = number_or_bool(c)
        return math.nan if value != value else value


def _body(c: Cursor) -> Graph:
    """Parse a graph inside another: it may use the variables of the outer one, but not its values."""
    outer = c.scope
    c.scope = Scope(dict(outer.variables), outer.buffers, {}, outer.numbered)
    result = graph(c)
    c.scope = outer
    return result


def _atom(c: Cursor) -> Expr:
    """Parse, after `$`, a name, a number, a load, a call or a parenthesised expression."""
    # No operator binds as strongly as this, so the expression ends with its first operand.
    return expr(c, 1000)


def _array(c: Cursor) -> ConstantArray:
    start = c.token
    element = element_type(c)
    c.expect("[")
    shape = tuple(c.separated(Cursor.integer, "]"))
    if any(extent < 0 for extent in shape):
        c.fail("an array's extents are not negative", start)
    token = c.token
    if token.kind == "string":
        c.position += 1
        data = _from_base64(c, token)
    else:
        c.expect("(")
        data = b"".join(c.separated(lambda c: _element(c, element), ")"))
    if len(data) != math.prod(shape) * element.itemsize:
        c.fail(f"an array of shape {list(shape)} has {math.prod(shape)} elements", token)
    if element.kind == "bool" and data.strip(b"\0\1"):
        c.fail("bool elements are 0 or 1", token)
    return ConstantArray(np.frombuffer(data, element.numpy).reshape(shape))


def _from_base64(c: Cursor, token: Token) -> bytes:
    try:
        return base64.b64decode(c.unquote(token), validate=True)
    except ValueError as error:
        c.fail(f"malformed base64: {error}", token)


def _element(c: Cursor, element: DType) -> bytes:
    """Parse an element of an array, a number, `true`/`false`, or its bits as 0x...; returns its bytes."""
    token = c.token
    if token.kind == "hex":
        c.position += 1
        bits = int(token.text, 16)
        if bits >> (8 * element.itemsize):
            c.fail(f"{token.text} has more bits than {element}", token)
        return bits.to_bytes(element.itemsize, "little")
    value = number_or_bool(c)
    if isinstance(value, bool) != (element.kind == "bool") or (isinstance(value, float) and not element.is_float):
        c.fail(f"{token.text} is not of type {element}", token)
    if not element.min <= value <= element.max and value == value:
        c.fail(f"{value} does not fit {element}", token)
    with np.errstate(all="ignore"):
        if element.kind == "uint":
            return np.asarray(value, np.uint64).astype(element.numpy).tobytes()
        return np.asarray(value).astype(element.numpy).tobytes()
