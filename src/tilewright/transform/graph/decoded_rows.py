"""One row times a cache of codes: what is read are the codes, and each is decoded in registers as it is summed.

    w = transpose(cast(codes) * s);  y = matmul(x, w)     ->      y = transpose(reduce_sum(x' * cast(codes)) * s)
                                                                  y = transpose(reduce_sum((x' * s) * cast(codes)))

The scale of a vector leaves the sum along that vector, or goes with the row before the sum over vectors. `codes` are
computed, such as a decoder's keys and values (`state.py`); otherwise a kernel would write all of them as numbers, four
times as many bytes as there are codes, for each token.
"""

from __future__ import annotations

from tilewright.ir.dtype import f32, i8, u8
from tilewright.ir.expr import Expr, const, is_const
from tilewright.ir.graph import Graph, Value
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.shape import TransposeAttrs
from tilewright.transform.graph.fixed import fixed_values
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite

CODES = op(
    "cast", "codes", name="cast", where=lambda node: node.inputs[0] is not None and node.inputs[0].dtype in (i8, u8)
)
NUMBERS = op("mul", CODES, "scale", name="numbers", through=("transpose", "identity"))


def decode_rows(graph: Graph) -> Graph:
    """The graph with sums of codes in place of products of one row with what they mean."""
    if not any(n.op == "cast" and n.inputs[0] is not None and n.inputs[0].dtype in (i8, u8) for n in graph.nodes):
        return graph
    fixed = fixed_values(graph)
    return rewrite(graph, [Rule(op("matmul", "x", NUMBERS), lambda m: None if m["codes"] in fixed else _summed(m))])


def _summed(m: Match) -> Value | None:
    x, codes, scale, node = m["x"], m["codes"], m["scale"], m.node
    attrs, rank = node.of(MatmulAttrs), codes.type.rank
    alike = x.type.rank == rank and node.output.type.rank == rank and node.output.dtype is f32
    if not alike or attrs.transpose_a or not is_const(node.output.shape[-2], 1):
        return None
    if scale.shape != (*codes.shape[:-1], const(1)):  # one for each vector of the last dimension
        return None
    order = _order(m, node.inputs[1], m["numbers"])
    if attrs.transpose_b:
        order = (*order[:-2], order[-1], order[-2])
    if any(x.shape[k] != codes.shape[order[k]] for k in range(rank - 2)):
        return None
    depth, columns = order[-2], order[-1]  # dimensions of the codes
    shape: list[Expr] = [*x.shape[:-2], x.shape[-1], const(1)]
    row = m.emit("transpose", m.emit("reshape", x, shape=tuple(shape)), perm=_inverse(order))
    wide = m.emit("cast", codes, dtype=f32)
    along = depth == rank - 1
    if not along and columns != rank - 1:
        return None
    row = row if along else m.emit("mul", row, scale)
    total = m.emit("reduce_sum", m.emit("mul", row, wide), axes=(depth,), keepdims=True)
    total = m.emit("mul", total, scale) if along else total
    return m.emit("transpose", total, perm=order)


def _order(m: Match, value: Value | None, source: Value) -> tuple[int, ...]:
    """For each dimension of a value the one of `source`, from which it is transposed."""
    moves: list[tuple[int, ...]] = []
    while value != source and (node := m.rewriter.producer(value)) is not None:
        if node.op == "transpose":
            moves.append(node.of(TransposeAttrs).perm)
        value = node.inputs[0]
    order = tuple(range(source.type.rank))
    for perm in reversed(moves):
        order = tuple(order[k] for k in perm)
    return order


def _inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(perm.index(k) for k in range(len(perm)))
