"""One row times a cache of codes: the kernel reads the codes and decodes them in registers as it sums.

    w = transpose(cast(codes) * s);  y = matmul(x, w)     ->      y = transpose(reduce_sum(x' * cast(codes)) * s)
                                                                  y = transpose(reduce_sum((x' * s) * cast(codes)))

The scale of a vector is factored out of the sum along that vector, or multiplied with the row before the sum over
vectors. `codes` are computed values, such as a decoder's keys and values (`transform/graph/state.py`); without this
pass a kernel would write all of them as floats, four times as many bytes, for each token.

Fewer heads of keys and values than of queries are repeated for each group of these:

    w = reshape(broadcast(reshape(numbers, [B, G, 1, S, D]), [B, G, n, S, D]), [B, G * n, S, D])

There each row of a group is summed separately.
"""

from __future__ import annotations

from tilewright.ir.dtype import f32, i8, u8
from tilewright.ir.expr import const, is_const
from tilewright.ir.graph import Graph, Value
from tilewright.ops.dims import dims
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.shape import TransposeAttrs
from tilewright.transform.graph.extra import GraphPass
from tilewright.transform.graph.fixed import fixed_values
from tilewright.transform.graph.heads import repeated_heads
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Match, Rule, rewrite

CODES = op(
    "cast", "codes", name="cast", where=lambda node: node.inputs[0] is not None and node.inputs[0].dtype in (i8, u8)
)
MAX_ROWS = 8
"""The largest number of query heads per head of keys and values for which a product is divided into one sum for each
query head."""
MOVES = ("transpose", "identity", "reshape", "broadcast")
NUMBERS = op("mul", CODES, "scale", name="numbers", through=MOVES)


def decode_rows(graph: Graph) -> Graph:
    """The graph with sums over codes in place of products of one row with dequantised codes."""
    if not any(n.op == "cast" and n.inputs[0] is not None and n.inputs[0].dtype in (i8, u8) for n in graph.nodes):
        return graph
    fixed = fixed_values(graph)
    return rewrite(graph, [Rule(op("matmul", "x", NUMBERS), lambda m: None if m["codes"] in fixed else _summed(m))])


PASS = GraphPass("decode rows", lambda graph, _: decode_rows(graph), ("after", "recognise norms"))


def _summed(m: Match) -> Value | None:
    x, codes, scale, node = m["x"], m["codes"], m["scale"], m.node
    attrs, rank = node.of(MatmulAttrs), codes.type.rank
    alike = x.type.rank == rank and node.output.type.rank == rank and node.output.dtype is f32
    if not alike or attrs.transpose_a or not is_const(node.output.shape[-2], 1):
        return None
    if scale.shape != (*codes.shape[:-1], const(1)):  # one for each vector of the last dimension
        return None
    read = _read(m, node.inputs[1], m["numbers"])
    if read is None:
        return None
    order, times = read
    if attrs.transpose_b:
        order = (*order[:-2], order[-1], order[-2])
    batch = [codes.shape[k] for k in order[:-2]]
    if times > 1:
        batch[-1] = batch[-1] * times
    if times > MAX_ROWS or list(x.shape[:-2]) != batch or rank - 1 not in order[-2:]:
        return None
    if times == 1:
        return _row_summed(m, x, codes, scale, order)
    heads = m.emit("reshape", x, shape=(*batch[:-1], codes.shape[order[-3]], const(times), x.shape[-1]))
    sums = [_row_summed(m, _row_of(m, heads, k), codes, scale, order) for k in range(times)]
    return m.emit("reshape", m.emit("concat", *sums, axis=rank - 2), shape=node.output.shape)


def _row_summed(m: Match, x: Value, codes: Value, scale: Value, order: tuple[int, ...]) -> Value:
    """Emit the product [..., 1, columns] of one row `x` with a matrix of dequantised `codes` times `scale`, as a sum
    over the depth, and return it. Dimension k of the product is dimension `order[k]` of `codes`."""
    depth = order[-2]
    row = m.emit("transpose", m.emit("reshape", x, shape=(*x.shape[:-2], x.shape[-1], const(1))), perm=_inverse(order))
    wide = m.emit("cast", codes, dtype=f32)
    along = depth == codes.type.rank - 1
    row = row if along else m.emit("mul", row, scale)
    total = m.emit("reduce_sum", m.emit("mul", row, wide), axes=(depth,), keepdims=True)
    total = m.emit("mul", total, scale) if along else total
    return m.emit("transpose", total, perm=order)


def _row_of(m: Match, heads: Value, k: int) -> Value:
    """Emit row number `k` of the second factor's groups: the slice [..., k, :] of `heads`."""
    rank = heads.type.rank
    size = (*heads.shape[:-2], const(1), heads.shape[-1])
    return m.emit("slice", heads, begin=dims((*[0] * (rank - 2), k, 0)), size=size, step=(1,) * rank)


def _read(m: Match, value: Value | None, source: Value) -> tuple[tuple[int, ...], int] | None:
    """(for each dimension of `value` the dimension of `source` that it is, how often each head of `source` is
    repeated); None if the value is not a transposition and repetition of `source`."""
    moves: list[tuple[int, ...]] = []
    times = 1
    while value is not None and value != source and (node := m.rewriter.producer(value)) is not None:
        if node.op == "transpose":
            moves.append(node.of(TransposeAttrs).perm)
        elif node.op != "identity":
            heads = repeated_heads(m.rewriter, value)
            if heads is None or times > 1 or any(perm[:-2] != tuple(range(len(perm) - 2)) for perm in moves):
                return None
            value, times = heads
            continue
        value = node.inputs[0]
    order = tuple(range(source.type.rank))
    for perm in reversed(moves):
        order = tuple(order[k] for k in perm)
    return order, times


def _inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(perm.index(k) for k in range(len(perm)))
