"""Operators. The file of each family defines an operator's type rule, tensor expression and NumPy reference side by
side."""

from __future__ import annotations

from tilewright.ops.registry import (
    OpDef,
    Operators,
    attributes,
    check_node,
    emit,
    emit1,
    get,
    infer,
    is_alias,
    is_pointwise,
    is_view,
    names,
    parse_func,
    parse_graph,
    register,
    unregister,
)

__all__ = [
    "OpDef",
    "Operators",
    "attributes",
    "check_node",
    "emit",
    "emit1",
    "get",
    "infer",
    "is_alias",
    "is_pointwise",
    "is_view",
    "names",
    "parse_func",
    "parse_graph",
    "register",
    "unregister",
]
