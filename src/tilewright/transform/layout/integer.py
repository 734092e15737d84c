"""Exact products of narrow integers (MatMulInteger, QLinearMatMul, ConvInteger, QLinearConv) by dot instructions.

The importer states them in i32: `matmul(cast(x) - zero, cast(w) - zero)`. The provable range of the factors decides:

    8 bits, one zero point for all of x     sum x*w - zero * sum w          by instructions of u8 or i8 and i8
    16 bits                                 sum (x - zero) * (w - zero)     by instructions of pairs of i16

`sum w` depends on weights alone. If the second factor is computed too, as in attention, a kernel packs it at each call,
and the contribution of its zero point is subtracted with the sums of the rows:

    sum (x - a) * (w - b)  =  sum x*w - b * sum x - a * sum (w - b)

Numbers of i8 become u8 by adding 128 to them and to their zero point, if an instruction needs that, and those of u8
become i8 by subtracting 128. Convolutions of maps read channels in blocks; others become products of their windows as
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from tilewright.arith import simplify
from tilewright.ir.attributes import Attrs, ConstantArray, Dim
from tilewright.ir.dtype import DType, i8, i16, i32, u8
from tilewright.ir.expr import Expr, as_expr, as_int, ceildiv, const
from tilewright.ir.graph import Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.lowered.dot_conv import ConvDotAttrs
from tilewright.ops.lowered.tiles import ConvTilesAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.shape import ConstantAttrs
from tilewright.plans.convolution.tile_dots import convolution_cycles, crosses_lines, gatherings
from tilewright.plans.matmul import dots, tile_dots
from tilewright.plans.matmul.dots import OPEN_PANELS, panel_multiple
from tilewright.schedule.dot_intrinsics import Dot, find_dot, find_tile_dot, has_pairs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.bounds import bounds, codes_of, holds, surrounds
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.gathered import gathered
from tilewright.transform.layout.joined import as_rows, keep
from tilewright.transform.layout.pairs import conv_by_pairs, convolution_of_pairs, in_pairs, product_of_pairs
from tilewright.transform.layout.registers import FLAT, GATHERED, MATRICES, VECTORS, least_rows, summed_in
from tilewright.transform.problems import multiplies_alike, rows_of

OFFSET = 128
"""The number that is added to signed 8-bit numbers to make them unsigned."""

GROUP = 4
"""The largest number of neighbouring elements that an instruction multiplies and adds into one lane."""


def integer_matmul(a: Assigner, node: Node) -> bool:
    """Rewrite a matrix product of integers with weights for dot instructions; returns whether it did."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    attrs, depth = node.of(MatmulAttrs), as_int(x.shape[-1])
    if attrs.transpose_a or depth == 0:
        return False
    if w not in a.fixed:
        return _computed_matmul(a, node, x, w)
    if w.type.rank != 2 or depth is None:
        return False
    result = _factors(a, node, a.as_row_major)
    if result is None:
        return False
    rows, weights, axis = result.x, result.weights, 1 if attrs.transpose_b else 0
    columns, tile = as_int(node.output.shape[-1]) or 1, _tile(a, result.dot)
    least = None
    if tile is not None and rows.type.rank > 1:
        least = least_rows_of(a, node, rows_of(rows, tile.rows), depth, columns, result.dot, tile)
    if tile is not None and least is not None:
        if more := -depth % tile.depth:
            weights = a.longer(weights, axis, more)
        packed = _packed(a, tile, weights, attrs.transpose_b, columns)
        total = in_tiles(a, as_rows(a, rows, tile.rows), packed, columns, tile, least)
    else:
        total = _product(a, node, result.dot, rows, weights, attrs.transpose_b, columns)
    if result.zero is not None:
        total = a.derive("sub", total, _correction(a, result.weights, result.zero, (axis,), (columns,)))
    keep(a, node.output, total)
    return True


def _computed_matmul(a: Assigner, node: Node, x: Value, w: Value) -> bool:
    """Rewrite a product of two computed factors, each with one zero point; returns whether it did. Depth and columns
    may be symbols, as in attention: the depth is rounded up to whole groups."""
    last, transpose = node.output.shape[-1], node.of(MatmulAttrs).transpose_b
    columns = last if (known := as_int(last)) is None else known
    if node.output.dtype is not i32 or known == 0 or x in a.fixed or not multiplies_alike(x, w):
        return False
    axis = w.type.rank - (1 if transpose else 2)
    factors, point = _computed_factors(a, x, w)
    if factors is None:
        return False
    total = _product(a, node, factors.dot, factors.x, factors.weights, transpose, columns)
    if point is not None:
        sums = a.derive("reduce_sum", a.derive("cast", factors.x, dtype=i32), axes=(x.type.rank - 1,), keepdims=True)
        total = a.derive("sub", total, a.derive("mul", sums, point))
    if factors.zero is not None:
        wide = a.derive("cast", factors.weights, dtype=i32)
        wide = wide if point is None else a.derive("sub", wide, point)
        sums = a.derive("reduce_sum", wide, axes=(axis,), keepdims=True)
        sums = a.derive("reshape", sums, shape=(*w.shape[:-2], const(1), as_expr(columns)))
        total = a.derive("sub", total, a.derive("mul", sums, factors.zero))
    keep(a, node.output, total)
    return True


def _computed_factors(a: Assigner, x: Value, w: Value) -> tuple[Factors | None, Value | None]:
    """The 8-bit factors of a product of two computed values, and the zero point of the second (None for 0)."""
    codes = _numbers(a, w)
    if codes is not None:
        codes = replace(codes, values=a.as_row_major(codes.values))
        codes = codes if codes.values.dtype is i8 else _shifted(a, codes, i8)
        if (result := _bytes(a, x, codes.values, a.as_row_major)) is not None:
            return result, codes.zero
    dot = find_dot(i16, i16, a.target)
    if dot is None or not _within(a, x, i16) or not _within(a, w, i16):
        return None, None
    first, second = (a.derive("cast", a.as_row_major(v), dtype=i16) for v in (x, w))
    return Factors(dot, first, None, second), None


def integer_conv(a: Assigner, node: Node) -> bool:
    """Rewrite an integer convolution, of maps over blocked channels, any other as a product of its windows; returns
    whether it did."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    conv = node.of(ConvAttrs)
    grouped = conv.groups != 1
    if grouped and (x.type.rank != 4 or not has_pairs(a.target)):
        return False
    if x.type.rank != 4:
        result = _factors(a, node, a.as_row_major, pairs=True)
        if result is not None:
            a.row_major[node.output] = _by_windows(a, node, result)
        return result is not None
    result = _factors(a, node, lambda v: _in_blocks(a, v))
    if result is not None and result.zero is not None and any(conv.pads) and not surrounds(a.producer, x):
        result = _factors(a, node, lambda v: _in_blocks(a, v), pairs=True)
    if result is None:
        return False
    pairs = conv_by_pairs(a, node, result.dot, _depth(result))
    if grouped and pairs is None:
        return False
    if pairs is not None:
        total, lanes = convolution_of_pairs(a, pairs, result.x, result.weights, *padding_of(a, result)), a.block
    else:
        total, lanes = _conv_by_dots(a, node, result), result.dot.lanes
    keep_sums(a, node, result, total, lanes)
    return True


def codes_in_blocks(a: Assigner, node: Node) -> Factors | None:
    """The factors of a convolution of 8-bit codes that is multiplied as pairs of 16 bits; None for other numbers."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    codes, dot = _numbers(a, x), find_dot(i16, i16, a.target)
    if codes is None or dot is None:
        return None
    return Factors(dot, _in_blocks(a, codes.values), codes.zero, _as_bytes(a, w))


def _as_bytes(a: Assigner, w: Value) -> Value:
    return w if w.dtype is i8 else a.derive("cast", a.as_row_major(w), dtype=i8)


def keep_sums(a: Assigner, node: Node, result: Factors, total: Value, lanes: int) -> None:
    """Record the result of a convolution, from `total`: its sums of products in blocks of `lanes` filters, from which
    the zero point's part is subtracted."""
    filters = as_int(result.weights.shape[0]) or 0
    if result.zero is not None:
        correction = _correction(a, result.weights, result.zero, (1, 2, 3), (1, filters, 1, 1))
        total = a.derive("sub", total, a.derive("lowered.block_channels", correction, block=lanes))
    if lanes == a.block:
        a.blocked[node.output] = total
    else:
        a.row_major[node.output] = a.derive("lowered.unblock_channels", total, channels=filters)


def _depth(result: Factors) -> int:
    """The number of products per element of the result of a convolution by dot instructions, with channels rounded up
    to whole blocks."""
    _, channels, *window = (as_int(d) or 1 for d in result.weights.shape)
    return prod(window) * (channels + -channels % min(result.dot.lanes, channels + -channels % result.dot.group))


def padding_of(a: Assigner, result: Factors) -> tuple[Value, ...]:
    """The zero point as an additional operand of a convolution, which pads the map with it; () if it is 0."""
    return () if result.zero is None else (a.derive("cast", result.zero, dtype=result.x.dtype),)


def _conv_by_dots(a: Assigner, node: Node, result: Factors) -> Value:
    """Emit a convolution by dot instructions or in matrix registers, in blocks of as many channels as these have."""
    conv, dot, filters = node.of(ConvAttrs), result.dot, as_int(result.weights.shape[0]) or 0
    block = as_int(result.x.shape[-1]) or GROUP
    op, tile, weights = "lowered.conv_dot", _tile(a, dot), result.weights
    how: Attrs = ConvDotAttrs(conv.strides, conv.dilations, conv.pads, filters)
    if tile is not None and (tiled := _map_in_tiles(a, node, result, tile)) is not None:
        op, how = "lowered.conv_tiles", tiled
        weights = gathered(a, weights, result.x, tiled.gathered)
        block = (as_int(weights.shape[1]) or 1) + -(as_int(weights.shape[1]) or 1) % tile.depth
    panels = panel_multiple(filters, dot.lanes)
    packed = a.derive("lowered.pack_conv_dot", weights, block=block, width=dot.lanes, group=dot.group, panels=panels)
    return a.emit(op, (result.x, packed, *padding_of(a, result)), how, op)[0]


def _in_blocks(a: Assigner, value: Value) -> Value:
    """Emit a value with its channels in blocks of vectors. Channels that do not fill a vector are in one block of as
    few groups of `GROUP` as they need."""
    channels = as_int(value.shape[1]) or 1
    if channels >= a.block or (a.is_blocked(value) and channels > 1):
        return a.as_blocked(value)
    ordinary = a.as_row_major(value)
    if channels == 1:  # which would be a block of its own
        ordinary = a.longer(ordinary, 1, GROUP - 1)
    return a.derive("lowered.block_channels", ordinary, block=min(a.block, -(-channels // GROUP) * GROUP))


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of a product in the types that an instruction multiplies: the numbers x, their zero point (one i32
    element; None for 0), and the weights before packing."""

    dot: Dot
    x: Value
    zero: Value | None
    weights: Value


def _factors(a: Assigner, node: Node, form: Callable[[Value], Value], *, pairs: bool = False) -> Factors | None:
    """The factors of an i32 product if they are narrow enough for an instruction, with `form` applied to x and the
    second factor constant. None otherwise. With `pairs`, factors are 16-bit numbers, from which zero points are
    subtracted."""
    x, w = node.inputs[:2]
    if x is None or w is None or node.output.dtype is not i32 or w not in a.fixed:
        return None
    if any(as_int(d) in (None, 0) for d in w.shape):
        return None
    if not pairs and _within(a, w, i8) and (result := _bytes(a, x, w, form)) is not None:
        return result
    dot = find_dot(i16, i16, a.target)
    if dot is None or not _within(a, x, i16) or not _within(a, w, i16):
        return None
    narrow = a.derive("cast", a.as_row_major(w), dtype=i16)
    return Factors(dot, a.derive("cast", form(x), dtype=i16), None, narrow)


def _bytes(a: Assigner, x: Value, w: Value, form: Callable[[Value], Value]) -> Factors | None:
    """The factors of a product if `x` is 8-bit numbers: unchanged, or shifted by 128 if the instruction requires it.
    None otherwise."""
    numbers = _numbers(a, x)
    if numbers is None:
        return None
    values, zero = numbers.values, numbers.zero
    other = i8 if values.dtype is u8 else u8
    kind, dot = next(
        ((t, d) for t in (values.dtype, other) if (d := find_dot(t, i8, a.target)) is not None), (None, None)
    )
    if kind is None or dot is None:
        return None
    if kind is values.dtype:
        operand = form(values)
    else:
        shifted = _shifted(a, replace(numbers, values=form(values)), kind)
        operand, zero = shifted.values, shifted.zero
    return Factors(dot, operand, zero, _as_bytes(a, w))


def _shifted(a: Assigner, codes: _Codes, kind: DType) -> _Codes:
    """8-bit codes converted between u8 and i8: the codes and their zero point are shifted by 128."""
    offset = OFFSET if kind is u8 else -OFFSET
    number = a.derive("constant", value=ConstantArray(i32.numpy.type(offset)))
    moved = a.derive("cast", a.derive("add", a.derive("cast", codes.values, dtype=i32), number), dtype=kind)
    if codes.known == -offset:
        return _Codes(moved)
    zero = number if codes.zero is None else a.derive("add", codes.zero, number)
    return _Codes(moved, zero, None if codes.known is None else codes.known + offset)


def _number(a: Assigner, value: Value) -> int | None:
    """The number that a value of one element is, if it is an integer constant; None otherwise."""
    node = a.producer(value)
    while node is not None and node.op == "reshape" and node.inputs[0] is not None:
        node = a.producer(node.inputs[0])
    if node is None or node.op != "constant":
        return None
    array = node.of(ConstantAttrs).value.array
    return int(array.reshape(-1)[0]) if array.size == 1 else None


def _within(a: Assigner, value: Value, dtype: DType) -> bool:
    between = bounds(a.producer, value)
    return between is not None and holds(dtype, between)


@dataclass(frozen=True, slots=True)
class _Codes:
    """8-bit numbers and their zero point `zero`, an i32 element (None for 0); `known` is its number, if that is
    constant."""

    values: Value
    zero: Value | None = None
    known: int | None = 0


def _numbers(a: Assigner, x: Value) -> _Codes | None:
    """The codes of a value `cast(codes) - zero` or `cast(codes)`; None for other values."""
    known = codes_of(a.producer, x)
    if known is None:
        return None
    codes, point = known
    if point is None:
        return _Codes(codes)
    return _Codes(codes, a.derive("reshape", a.as_row_major(point), shape=()), _number(a, point))


def _correction(a: Assigner, weights: Value, zero: Value, axes: tuple[int, ...], shape: tuple[int, ...]) -> Value:
    """Emit the zero point times the sums of weights over `axes`, in the shape `shape`."""
    sums = a.derive("reduce_sum", a.derive("cast", weights, dtype=i32), axes=axes, keepdims=False)
    return a.derive("reshape", a.derive("mul", sums, zero), shape=tuple(map(const, shape)))


def _by_windows(a: Assigner, node: Node, result: Factors) -> Value:
    """Emit a convolution of any rank as a matrix product: rows of copied windows times the filters."""
    attrs, (filters, *window) = node.of(ConvAttrs), (as_int(d) or 0 for d in result.weights.shape)
    elements = prod(window)
    spatial: dict[str, Any] = {"strides": attrs.strides, "dilations": attrs.dilations, "pads": attrs.pads}
    depth = elements + -elements % result.dot.group
    rows = a.derive("lowered.patches", result.x, kernel=tuple(window[1:]), depth=depth, **spatial)
    flat = a.derive("reshape", result.weights, shape=(const(filters), const(elements)))
    if depth > elements:
        flat = a.longer(flat, 1, depth - elements)
    total = _product(a, node, result.dot, rows, flat, True, filters)
    moved = a.derive("transpose", total, perm=(0, 2, 1))
    return a.derive("reshape", moved, shape=node.output.shape)


def _product(a: Assigner, node: Node, dot: Dot, rows: Value, w: Value, transpose: bool, columns: Dim) -> Value:
    """Emit the product of `rows` and `w`, [depth, columns] or, with `transpose`, [columns, depth], by dot instructions,
    row by row, or by pairs of rows if its sizes are known and that is faster; returns it."""
    depth, known, deep = rows.shape[-1], as_int(columns), as_int(rows.shape[-1])
    if known is not None and deep is not None and find_tile_dot(dot.a, dot.b, a.target) is None:
        if (pair := in_pairs(a, node, rows, deep, known, dot)) is not None:
            return product_of_pairs(a, pair, rows, w, transpose, known)
    more = -deep % dot.group if deep is not None else simplify(ceildiv(depth, dot.group) * dot.group - depth)
    if isinstance(more, Expr) or more:
        rows, w = a.longer(rows, rows.type.rank - 1, more), a.longer(w, w.type.rank - (1 if transpose else 2), more)
    return a.derive("lowered.matmul_dot", rows, _packed(a, dot, w, transpose, columns), columns=columns)


def _packed(a: Assigner, dot: Dot, w: Value, transpose: bool, columns: Dim) -> Value:
    known = as_int(columns)
    count = OPEN_PANELS if known is None else panel_multiple(known, dot.lanes)
    return a.derive("lowered.pack_dot", w, width=dot.lanes, group=dot.group, panels=count, transpose=transpose)


def _tile(a: Assigner, dot: Dot) -> Dot | None:
    """The target's matrix instruction for the operand types of `dot`; None if it has none."""
    tile = find_tile_dot(dot.a, dot.b, a.target)
    return tile if tile is not None and (tile.lanes, tile.group) == (dot.lanes, dot.group) else None


def least_rows_of(a: Assigner, node: Node, rows: Expr, depth: int, columns: int, dot: Dot, tile: Dot) -> int | None:
    """The least number of `rows` from which on the product `node`, which sums over `depth` and has `columns` columns,
    is computed in matrix registers, by `tile`, instead of by the instruction `dot` (0: always, None: never); a decision
    by estimates."""

    def by_dots(count: int) -> float:
        return dots.product_cycles(count, depth + -depth % dot.group, columns, dot, a.target)

    def by_tiles(count: int) -> float:
        return tile_dots.product_cycles(count, depth, columns, tile, a.target)

    return least_rows(a, node, rows, by_dots, by_tiles, depth % tile.depth == 0)


def in_tiles(a: Assigner, rows: Value, packed: Value, columns: int, tile: Dot, least: int) -> Value:
    """Emit the product of `rows` and the weight `packed`, which has `columns` columns, in matrix registers, and return
    it; with fewer than `least` rows it uses dot instructions, which is decided at run time."""
    attrs: dict[str, Any] = {"columns": columns, "rows": tile.rows}
    if not least:
        return a.derive("lowered.matmul_tiles", rows, packed, **attrs)
    return a.derive("lowered.matmul_by_rows", rows, packed, **attrs, least=least)


def _map_in_tiles(a: Assigner, node: Node, result: Factors, tile: Dot) -> ConvTilesAttrs | None:
    """The attributes of a convolution of a map in matrix registers: whether these hold pixels of one row or of all rows
    in order, and whether several pixels are side by side in the depth. None if vectors are estimated to be faster."""
    attrs, x = node.of(ConvAttrs), [as_int(d) for d in result.x.shape[1:]]
    filters, _, *window = (as_int(d) or 1 for d in result.weights.shape)
    out = [as_int(d) for d in node.output.shape[2:]]
    if not all(x) or not all(out):
        return None
    blocks, height, width, block = (d or 0 for d in x)
    by_lines = ConvTilesAttrs(attrs.strides, attrs.dilations, attrs.pads, filters, tile.rows)
    flat = replace(by_lines, flat=True)
    kinds = {MATRICES: by_lines}
    if crosses_lines(flat, (height, width), window):
        kinds[FLAT] = flat

    def cycles(conv: ConvTilesAttrs) -> float:
        depth = blocks * block
        if conv.gathered:
            depth *= prod(conv.gathered[2:])
        whole = depth + -depth % tile.depth
        return convolution_cycles(conv, (blocks, height, width, block), window, whole, tile, a.target)

    if beside := [replace(flat, gathered=g) for g in gatherings(attrs, window, blocks * block, tile)]:
        kinds[GATHERED] = min(beside, key=cycles)
    by_dots = dots.product_cycles(out[1] or 1, _depth(result), filters, result.dot, a.target)
    ways = {VECTORS: (out[0] or 1) * by_dots}
    return kinds.get(summed_in(a, node, ways | {way: cycles(conv) for way, conv in kinds.items()}))
