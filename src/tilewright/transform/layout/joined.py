"""Rows of products joined, where registers of matrices would not be filled by the rows of each part alone.

    y = matmul(x, w)        ->        f = reshape(x, [b*r, k]);  y' = matmul_tiles(f, p)
    z = add(y, bias)                  z' = add(y', bias)

PyTorch's attention multiplies `[tokens, 1, channels]`: as many products of one row. Pointwise operators after go on
with joined rows, so that they stay in the product's kernel; others read them in their own shape, which is the same
memory.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.ir.expr import is_const, product
from tilewright.ir.graph import Node, Value
from tilewright.transform.graph.fuse import same_shape
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.problems import joins


def as_rows(a: Assigner, x: Value, rows: int) -> Value:
    """Rows for registers of so many, which are in NCHW order already: joined if that is best."""
    return join(a, x) if joins(x, rows) else x


def join(a: Assigner, x: Value) -> Value:
    """A value of rows in NCHW order, all of them joined."""
    return a.emit("reshape", (x,), {"shape": (product(x.shape[:-1]), x.shape[-1])}, f"{x.name}_joined")[0]


def keep(a: Assigner, y: Value, result: Value) -> None:
    """`result` is `y`: as it is, or with its rows joined."""
    (a.row_major if result.type.rank == y.type.rank else a.joined)[y] = result


def pointwise(a: Assigner, node: Node) -> bool:
    """The rule for joined rows, what else it reads being of the same shape or the same for all rows."""
    if ops.get(node.op).kind != "pointwise" or len(node.outputs) != 1:
        return False
    y = node.output
    operands = [v for v in node.inputs if v is not None]
    if not any(v in a.joined and same_shape(v, y) for v in operands) or not _fits(node):
        return False
    inputs = tuple(None if v is None else _follow(a, v, y) for v in node.inputs)
    types = ops.infer(node.op, [None if v is None else v.type for v in inputs], node.attrs)
    (a.joined[y],) = a.builder.node(node.op, inputs, types, node.attrs, (y.name,))
    return True


def _fits(node: Node) -> bool:
    """Whether what a pointwise operator reads is of its result's shape or the same for all rows."""
    operands = [v for v in node.inputs if v is not None]
    return all(same_shape(v, node.output) or all(is_const(d, 1) for d in v.shape[:-1]) for v in operands)


def stays(a: Assigner, y: Value) -> bool:
    """Whether all pointwise work that follows a value can have joined rows, too, and so be in its kernel."""
    todo, seen = [y], {y}
    while todo:
        for node in a.readers.get(todo.pop(), ()):
            if ops.get(node.op).kind != "pointwise" or len(node.outputs) != 1 or node.output in seen:
                continue
            if not _fits(node):
                return False
            seen.add(node.output)
            todo.append(node.output)
    return True


def _follow(a: Assigner, v: Value, y: Value) -> Value:
    """The operand in place of `v` beside joined rows."""
    if v in a.joined:
        return a.joined[v]
    ordinary = a.as_row_major(v)
    if same_shape(v, y):
        a.joined[v] = join(a, ordinary)
        a.follow(v, a.joined[v])
        return a.joined[v]
    if v.type.rank < 2:
        return ordinary
    (row,) = a.emit("reshape", (ordinary,), {"shape": v.shape[-1:]}, f"{v.name}_row")
    a.follow(v, row)
    return row
