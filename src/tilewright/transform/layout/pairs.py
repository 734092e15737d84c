"""Products and convolutions by instructions that multiply two rows by two columns (Arm's smmla, usmmla, bfmmla), where
estimates say that these are faster than dot instructions, or than f32."""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.lowered.mmla import SIDE
from tilewright.plans.convolution.tiles import side
from tilewright.plans.matmul import dots, mmla
from tilewright.schedule.dot_intrinsics import Dot, find_mmla
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.registers import PAIRS, VECTORS, least_rows, summed_in
from tilewright.transform.problems import ConvInPairs, convolution_in_pairs


def in_pairs(a: Assigner, node: Node, rows: Value, depth: int, columns: int, dot: Dot) -> Dot | None:
    """The instruction for pairs of rows and columns with the operand types of `dot`, if it is faster for a product of
    `rows` with `columns` columns that sums over `depth`; None otherwise."""
    pair = find_mmla(dot.a, dot.b, a.target)
    if pair is None or rows.type.rank < 2:
        return None

    def by_dots(count: int) -> float:
        return dots.product_cycles(count, depth + -depth % dot.group, columns, dot, a.target)

    def by_pairs(count: int) -> float:
        return mmla.product_cycles(count, depth, columns, pair, a.target)

    return None if least_rows(a, node, rows.shape[-2], by_dots, by_pairs, both=False) is None else pair


def product_of_pairs(a: Assigner, pair: Dot, rows: Value, w: Value, transpose: bool, columns: int) -> Value:
    """Emit the product of `rows` and the weight `w`, with `columns` columns, by the instruction `pair`, for which `w`
    is packed. With `transpose`, `w` is stored as [columns, depth]."""
    axis = w.type.rank - (1 if transpose else 2)
    if more := -(as_int(w.shape[axis]) or 0) % pair.group:
        w = a.longer(w, axis, more)
    panels = mmla.panel_multiple(columns)
    packed = a.derive("lowered.pack_dot", w, width=SIDE, group=pair.group, panels=panels, transpose=transpose)
    return a.derive("lowered.matmul_mmla", rows, packed, columns=columns)


def conv_by_pairs(a: Assigner, node: Node, dot: Dot, depth: int) -> ConvInPairs | None:
    """How `node`, a convolution, uses an instruction that multiplies two pixels by two filters; None if the dot
    instruction `dot`, with `depth` products for each element of the result, is estimated to be faster. Convolutions in
    groups have no other instruction."""
    way = convolution_in_pairs(node, dot.a, dot.b, a.target)
    if way is None or node.of(ConvAttrs).groups > 1:
        return way
    lines, columns = map(side, node.output.shape[2:])
    vectors = lines * dots.product_cycles(columns, depth, way.attrs.channels, dot, a.target)
    return way if summed_in(a, node, {VECTORS: vectors, PAIRS: way.cycles}) == PAIRS else None


def convolution_of_pairs(a: Assigner, way: ConvInPairs, x: Value, w: Value, *zero: Value) -> Value:
    """Emit the convolution of a map in blocks of channels by the instruction of `way`, and the packing of its filters.
    `zero` is the zero point of the map, if it has one. The result is in blocks of channels."""
    group = way.pair.group
    packed = a.derive("lowered.pack_conv_dot", w, block=group, width=SIDE, group=group, panels=way.panels)
    return a.emit("lowered.conv_mmla", (x, packed, *zero), way.attrs, "lowered.conv_mmla")[0]
