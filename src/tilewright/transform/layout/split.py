"""Layouts of f32 products and convolutions by pieces of bf16 (`ops/lowered/split.py`): weights in panels of pieces, and
also in panels of f32, for numbers that cannot be split."""

from __future__ import annotations

from functools import partial
from math import gcd, prod

from tilewright.ir.attributes import ConstantArray, Ints
from tilewright.ir.dtype import bf16, f32
from tilewright.ir.expr import Expr, Var, as_int
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Split, SplitGathered, SplitMatrices
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.lowered.split import count_of
from tilewright.ops.lowered.split_conv import ConvPiecesAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.plans.convolution.tile_dots import gathering
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.matmul.dots import panel_multiple
from tilewright.plans.matmul.tiles import matmul_tile
from tilewright.schedule.dot_intrinsics import Dot, find_tile_dot
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.gathered import gathered
from tilewright.transform.layout.joined import join, keep


def split(a: Assigner, node: Node, choice: Split) -> bool:
    """Rewrite the product of rows with a matrix, or with one matrix per batch entry: a weight, or a computed value,
    whose pieces and panels are then made in each call.

    y = matmul(x, w)   ->   p = pieces(pack_dot(w));  b = reduce_max(abs(w)) * depth
                            m = reduce_max(abs(x));  y = matmul_x3(x, pieces(x), w, p, head(too_large(m, b)))

    Numbers that cannot be split are multiplied by unpacked f32 weights if the number of rows is known, which takes no
    more memory than packed ones; if it may be small, by packed ones.
    """
    x, w = node.inputs[:2]
    tile = find_tile_dot(bf16, bf16, a.target)
    assert x is not None and w is not None and tile is not None
    rows = a.as_row_major(x)
    most = largest(a, rows, -1)  # not of joined rows: the kernel that computes rows may have it beside them
    if node.of(MatmulAttrs).transpose_a:
        order = (*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2)
        rows = a.derive("transpose", rows, name=f"{x.name}_rows", perm=order)
    if x.type.rank > w.type.rank == 2:
        rows = join(a, rows)
    pieces = a.derive("lowered.pieces", rows, name=f"{x.name}_pieces", count=count_of(choice.terms), first=False)
    columns, depth = as_int(node.output.shape[-1]) or 1, as_int(rows.shape[-1]) or 1
    transpose, weights = node.of(MatmulAttrs).transpose_b, a.as_row_major(w)
    packed = weights
    if as_int(rows.shape[-2]) is None and w.type.rank == 2:
        key = partial(key_of_nodes, "panels", [node], a.target)
        width = matmul_tile(key, rows.shape[-2], columns, depth, f32, a.target).width
        packed = a.derive("lowered.pack_matmul", weights, name=f"{w.name}_packed", width=width, transpose=transpose)
    panels = panels_of_pieces(a, weights, columns, transpose, choice.terms, tile)
    away = rows_if_large(a, most, bound(a, weights, depth))
    attrs = {"columns": columns, "rows": tile.rows, "terms": choice.terms, "least": choice.least}
    attrs |= {"transpose": transpose}
    name, op = node.output.name, f"lowered.matmul_x{choice.terms}"
    keep(a, node.output, a.derive(op, rows, pieces, packed, panels, away, name=name, **attrs))
    return True


def split_conv(a: Assigner, node: Node, choice: SplitMatrices | SplitGathered) -> bool:
    """Rewrite a convolution whose channels, in each group, fill whole blocks, or are so few that they are one block.

    y = conv(x, w)   ->   p = pack_conv_dot(pieces(w));  q = pack_conv(w);  b = reduce_max(abs(w)) * depth
                          m = reduce_max(abs(x));  y = conv_x3(x, q, p, head(too_large(m, b)))
    """
    x, w = node.inputs[:2]
    tile, conv = find_tile_dot(bf16, bf16, a.target), node.of(ConvAttrs)
    assert x is not None and w is not None and tile is not None
    filters, channels, *window = (as_int(d) or 1 for d in w.shape)
    weights, block, flat = a.as_row_major(w), a.block, True
    how: Ints = ()
    if isinstance(choice, SplitGathered):
        block, how = channels, gathering(window, choice.lines, channels, tile)
        maps = a.derive("lowered.block_channels", a.as_row_major(x), name=f"{x.name}_pixels", block=block)
    else:
        maps, flat = a.as_blocked(x), bool(choice.flat)
    width = gcd(2 * a.block, filters // conv.groups) if conv.groups > 1 else 2 * a.block
    packed = a.derive("lowered.pack_conv", weights, name=f"{w.name}_packed", block=block, width=width)
    deep = gathered(a, weights, maps, how)
    depth, *taps = (as_int(d) or 1 for d in deep.shape[1:])
    if more := -depth % tile.depth:
        deep = a.longer(deep, 1, more)
    count = count_of(choice.terms)
    rows = a.derive("reshape", deep, name="rows", shape=(filters, (depth + more) * prod(taps)))
    pieces = a.derive("lowered.pieces", rows, name=f"{w.name}_pieces", count=count, first=False)
    shape = (filters, count * (depth + more), *taps)
    beside = a.derive("reshape", pieces, name=f"{w.name}_pieces", shape=shape)
    packing = {"block": depth + more, "width": tile.lanes, "group": tile.group}
    packing["panels"] = panel_multiple(filters, tile.lanes) if conv.groups == 1 else 1
    panels = a.derive("lowered.pack_conv_dot", beside, name=f"{w.name}_panels", **packing)
    away = rows_if_large(a, largest(a, maps, -1, -2), bound(a, weights, channels * prod(window)))
    attrs = ConvPiecesAttrs(
        conv.strides,
        conv.dilations,
        conv.pads,
        filters,
        tile.rows,
        flat,
        gathered=how,
        groups=conv.groups,
        terms=choice.terms,
    )
    op, operands = f"lowered.conv_x{choice.terms}", (maps, packed, panels, away)
    (a.blocked[node.output],) = a.emit(op, operands, attrs, node.output.name)
    return True


def panels_of_pieces(a: Assigner, w: Value, columns: int, transpose: bool, terms: int, tile: Dot) -> Value:
    """Emit the pieces, for products of `terms` terms, of a weight with `columns` columns, which is stored as [columns,
    depth] if `transpose`; returns them in panels for the matrix registers of `tile`, with zeros at the end of the
    depth.

    The packed weight is split, not the other way round, so that one kernel reads each number once.
    """
    axis, name = w.type.rank - (1 if transpose else 2), w.name
    if more := -(as_int(w.shape[axis]) or 0) % tile.depth:
        w = a.longer(w, axis, more)
    attrs = {"width": tile.lanes, "group": tile.group, "panels": panel_multiple(columns, tile.lanes)}
    packed = a.derive("lowered.pack_dot", w, name=f"{name}_groups", transpose=transpose, **attrs)
    return a.derive("lowered.pieces", packed, name=f"{name}_panels", count=count_of(terms), first=True)


def largest(a: Assigner, x: Value, *axes: int) -> Value:
    """Emit the largest magnitude of `x` along axes."""
    size = a.derive("abs", x, name="size")
    places = tuple(sorted(axis % x.type.rank for axis in axes))
    return a.derive("reduce_max", size, name=f"{x.name}_most", axes=places, keepdims=False)


def bound(a: Assigner, w: Value, depth: int) -> Value:
    """Emit a bound on sums of products with a weight: the depth times the weight's largest magnitude. A sum of products
    of a row is at most the row's largest magnitude times this."""
    number = a.derive("constant", name="depth", value=ConstantArray(f32.numpy.type(depth)))
    return a.derive("mul", largest(a, w, *range(w.type.rank)), number, name=f"{w.name}_bound")


def rows_if_large(a: Assigner, most: Value, limit: Value) -> Value:
    """Emit a value of one row if sums of products, bounded by `most` times `limit`, may exceed the largest float, else
    of no rows: kernels test its size."""
    count = a.derive("lowered.too_large", most, limit, name="too_large")
    one = a.derive("reshape", limit, name="row", shape=(1,))  # its value is not read
    symbol: Expr = Var(a.builder.fresh("_large"), lo=0, hi=1)
    return a.derive("head", one, count, name="large", defines=symbol)


__all__ = ["split", "split_conv"]
