"""Join the rows of a product's batch entries if the rows of one entry alone would not fill matrix registers.

    y = matmul(x, w)        ->        f = reshape(x, [b*r, k]);  y' = matmul_tiles(f, p)
    z = add(y, bias)                  z' = add(y', bias)

PyTorch's attention multiplies `[tokens, 1, channels]`, which is a product of one row for each token. Pointwise
operators after the product work on joined rows, so that they stay in its kernel; other nodes read the old shape, which
is the same memory.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.ir.expr import is_const, product
from tilewright.ir.graph import Node, Value
from tilewright.transform.graph.fuse import same_shape
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.problems import joins


def as_rows(a: Assigner, x: Value, rows: int) -> Value:
    """Emit the rows of `x` for matrix registers of `rows` rows: joined over batch entries if that fills registers
    better."""
    return join(a, x) if joins(x, rows) else x


def join(a: Assigner, x: Value) -> Value:
    """Emit the row-major value `x` as a matrix: all of its dimensions but the last are joined to one. Returns the
    matrix."""
    return a.emit("reshape", (x,), {"shape": (product(x.shape[:-1]), x.shape[-1])}, f"{x.name}_joined")[0]


def keep(a: Assigner, y: Value, result: Value) -> None:
    """Record that `result` is the value `y` in the new graph, row-major or as a matrix of joined rows, as its rank
    says."""
    (a.row_major if result.type.rank == y.type.rank else a.joined)[y] = result


def pointwise(a: Assigner, node: Node) -> bool:
    """The rule for pointwise nodes whose operands have joined rows: other operands have the same shape, or are the same
    for all rows. Returns whether the node was rewritten."""
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
    """Whether each operand of a pointwise node has the shape of the result or is the same for all rows."""
    operands = [v for v in node.inputs if v is not None]
    return all(same_shape(v, node.output) or all(is_const(d, 1) for d in v.shape[:-1]) for v in operands)


def stays(a: Assigner, y: Value) -> bool:
    """Whether all pointwise work after a value can use joined rows, and so be in the same kernel."""
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
    """The form of operand `v` that broadcasts against the joined rows of `y`."""
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
