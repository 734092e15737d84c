"""Products in reduced precision: weights packed as bf16 or i8, activations rounded to a type that the machine
multiplies.

    bf16, dot instruction    matmul_dot(cast(x, bf16), cast(pack_dot(w), bf16))       pairs into f32 accumulators
                             attention(..., dot)                          both of its products
    of bf16                  cast(matmul_dot(x, pack_dot(w)), bf16)                   models whose floats are all bf16;
                                                                                      not rounded if f32 is asked for
    bf16, elsewhere          matmul_packed(x, cast(pack_matmul(w), bf16))             weights widened on the way
    fp16                     as bf16, of f16: by registers of matrices, or widened on the way
    int8                     cast(matmul_dot(quantised x, quantised w)) * scale of the row * scale of the column

Quantisation is symmetric: weights by the greatest magnitude of each column, in `prepare`; activations by that of each
row, in each call. For an instruction with unsigned activations 128 is added to them, and 128 times the sum of each
column's weights is subtracted from the result. Integer products of narrow operands (MatMulInteger, QLinearMatMul) need
no scales: the same kernels compute them exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import DType, bf16, f16, f32, i8, i16, i32, u8
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Matrices
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.lowered.attention import AttentionAttrs
from tilewright.ops.lowered.codes import MAX_DECODED_ROWS, ZERO
from tilewright.ops.lowered.dot_conv import ConvDotAttrs
from tilewright.ops.lowered.tiles import ConvTilesAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.plans.framework.decision_key import Key, key_of_nodes
from tilewright.plans.matmul.dots import panel_multiple
from tilewright.plans.matmul.tile_dots import product_cycles
from tilewright.plans.matmul.tiles import matmul_tile
from tilewright.schedule.dot_intrinsics import Dot, find_dot, find_tile_dot
from tilewright.support.classes import dataclass
from tilewright.transform.graph.fixed import depends_on_weights
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.codes import Coded, find_coded
from tilewright.transform.layout.integer import in_tiles, least_rows_of
from tilewright.transform.layout.joined import as_rows, keep
from tilewright.transform.layout.pairs import convolution_of_pairs, in_pairs, product_of_pairs
from tilewright.transform.layout.registers import least_rows
from tilewright.transform.problems import convolution_in_pairs, rows_of

LEVELS = 127
"""The largest magnitude of a number quantised to 8 bits."""

NIBBLES = 7
"""The largest magnitude of a number quantised to 4 bits."""

OFFSET = 128
"""The number that is added to signed activations to make them unsigned."""

GROUP = 32
"""The number of rows of a column of 4-bit weights that share a scale."""

SMALLEST = 2.0**-100
"""The least magnitude from which a scale is computed, so that rows of zeros have one too."""


def reduced(a: Assigner, node: Node, x: Value) -> bool:
    """Compute a product of rows `x` with weights in the precision noted on the node; returns whether it did."""
    w = node.inputs[1]
    assert w is not None
    depth = as_int(x.shape[-1])
    assert depth is not None
    kind = f16 if node.precision == "fp16" else bf16
    product = _Product(a, node, x, w, depth, kind)
    dot = find_dot(kind, kind, a.target)
    if node.precision == "int8":
        product.quantised()
    elif node.precision == "int4w" and depth % GROUP == 0:
        product.of_nibbles()
    elif node.precision in ("int8w", "int4w"):
        product.of_codes()
    elif (tile := product.tile(kind, kind)) is not None:
        product.finish(product.in_tiles(tile))
    elif dot is not None and (total := product.in_vectors(dot)) is not None:
        product.finish(total)
    else:
        product.widened()
    return True


def bf16_product(a: Assigner, node: Node, x: Value) -> bool:
    """Compute a product of bf16 rows `x` and bf16 weights, if the machine multiplies such numbers; the f32 sum is
    rounded once. Returns whether it did."""
    w, dot, depth = node.inputs[1], find_dot(bf16, bf16, a.target), as_int(x.shape[-1])
    if w is None or w.dtype is not bf16 or not depth or w not in a.fixed or w.type.rank != 2:
        return False
    product = _Product(a, node, x, w, depth)
    if not product.columns:
        return False
    tile = product.tile(bf16, bf16)
    if tile is not None:
        total: Value | None = product.in_tiles(tile)
    else:
        total = None if dot is None else product.in_vectors(dot)
    if total is None:
        return False
    rounded = node.output.dtype is bf16
    product.finish(product.emit("cast", total, name=node.output.name, dtype=bf16) if rounded else total)
    return True


def conv_in_matrices(a: Assigner, node: Node, choice: Matrices) -> bool:
    """Rewrite a convolution of bf16 or f16 into one in matrix registers; returns whether it did."""
    x, w = node.inputs[:2]
    kind = f16 if node.precision == "fp16" else bf16
    tile, conv = find_tile_dot(kind, kind, a.target), node.of(ConvAttrs)
    assert x is not None and w is not None and tile is not None
    filters, channels = (as_int(d) or 1 for d in w.shape[:2])

    packing = {"block": channels + -channels % tile.depth, "width": tile.lanes, "group": tile.group}
    packing["panels"] = panel_multiple(filters, tile.lanes) if conv.groups == 1 else 1
    (packed,) = a.emit("lowered.pack_conv_dot", (_narrow(a, w, a.as_row_major, kind),), packing, f"{w.name}_packed")
    a.follow(w, packed)
    how = ConvTilesAttrs(
        conv.strides, conv.dilations, conv.pads, filters, tile.rows, bool(choice.flat), groups=conv.groups
    )
    operands = (_narrow(a, x, a.as_blocked, kind), packed)
    (a.blocked[node.output],) = a.emit("lowered.conv_tiles", operands, how, node.output.name)
    return True


def conv_in_pairs(a: Assigner, node: Node) -> bool:
    """Rewrite a convolution of bf16 into one by an instruction that multiplies two pixels by two filters; returns
    whether it did."""
    x, w = node.inputs[:2]
    way = convolution_in_pairs(node, bf16, bf16, a.target)
    assert x is not None and w is not None and way is not None
    factors = _narrow(a, x, a.as_blocked), _narrow(a, w, a.as_row_major)
    a.blocked[node.output] = convolution_of_pairs(a, way, *factors)
    return True


def conv_in_dots(a: Assigner, node: Node) -> bool:
    """Rewrite a convolution of bf16 into one by dot instructions, in blocks of as many channels as an instruction has
    lanes; returns whether it did."""
    x, w = node.inputs[:2]
    dot, conv = find_dot(bf16, bf16, a.target), node.of(ConvAttrs)
    assert x is not None and w is not None and dot is not None
    filters = as_int(w.shape[0]) or 1
    packing = {"block": a.block, "width": dot.lanes, "group": dot.group, "panels": panel_multiple(filters, dot.lanes)}
    (packed,) = a.emit("lowered.pack_conv_dot", (_narrow(a, w, a.as_row_major),), packing, f"{w.name}_packed")
    a.follow(w, packed)
    how = ConvDotAttrs(conv.strides, conv.dilations, conv.pads, filters)
    operands = (_narrow(a, x, a.as_blocked), packed)
    (a.blocked[node.output],) = a.emit("lowered.conv_dot", operands, how, node.output.name)
    return True


def _narrow(a: Assigner, value: Value, form: Callable[[Value], Value], kind: DType = bf16) -> Value:
    """Emit a factor in the type `kind` of 16 bits, in the form that `form` makes; if it was widened from that type, the
    value before."""
    producer = a.producer(value)
    if (
        producer is not None
        and producer.op == "cast"
        and producer.inputs[0] is not None
        and producer.inputs[0].dtype is kind
    ):
        return form(producer.inputs[0])
    (result,) = a.emit("cast", (form(value),), {"dtype": kind}, f"{value.name}_{kind.name}")
    a.follow(value, result)
    return result


def attention(a: Assigner, node: Node) -> bool:
    """Rewrite an attention whose node notes dot instructions for both products; returns whether it did."""
    dot = find_dot(bf16, bf16, a.target)
    if node.precision != "bf16" or dot is None:
        return False
    inputs = tuple(None if v is None else a.as_row_major(v) for v in node.inputs)
    attrs = replace(node.of(AttentionAttrs), dot=dot.name)
    (a.row_major[node.output],) = a.emit("lowered.attention", inputs, attrs, node.output.name)
    return True


@dataclass(frozen=True, slots=True)
class Codes:
    """Weights stored as codes (`ops/lowered/codes.py`), before packing. The codes are u8 or i8 [K, N]; if `paired` they
    are from 0 to 15, so that two fit into a byte. The scales are f32 [K / group, N], the offsets likewise, or None;
    `zero` is the code of 0.0."""

    codes: Value
    scales: Value
    offsets: Value | None
    paired: bool
    zero: float = 0.0
    book: ConstantArray | None = None


def by_codes(a: Assigner, node: Node, rows: Callable[[], Value]) -> bool:
    """Multiply rows by weights stored as codes without widening the codes, if the number of rows is small or unknown;
    returns whether it did."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    count, depth = as_int(node.output.shape[-2]), as_int(x.shape[-1])
    if w not in a.fixed or x.dtype is not f32 or not depth or (count is not None and count > MAX_DECODED_ROWS):
        return False
    coded = find_coded(a.producer, w, node.of(MatmulAttrs).transpose_b)
    if coded is None:
        return False
    product = _Product(a, node, rows(), w, depth)
    product.by_codes(product.as_rows(coded))
    return True


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of `x[..., M, K]` and the weights `w` that is to be computed in narrower types; `kind` is the narrow
    float."""

    a: Assigner
    node: Node
    x: Value
    w: Value
    depth: int
    kind: DType = bf16

    @property
    def transpose(self) -> bool:
        return self.node.of(MatmulAttrs).transpose_b

    @property
    def columns(self) -> int:
        return as_int(self.node.output.shape[-1]) or 0

    def key(self) -> Key:
        """The key of the decision about the layout of the weights."""
        return key_of_nodes("panels", [self.node], self.a.target)

    def emit(self, op: str, *inputs: Value, name: str, **attrs: object) -> Value:
        (value,) = self.a.emit(op, inputs, attrs, name)
        if inputs and depends_on_weights(inputs, self.a.fixed):
            self.a.fixed.add(value)
        return value

    def number(self, value: float, dtype: DType) -> Value:
        array = ConstantArray(dtype.numpy.type(value))
        return self.emit("constant", name="number", value=array)

    # bf16 and f16

    def widened(self) -> None:
        """Emit the product with narrow weights that are widened as they are read, which halves the bytes read; the
        arithmetic is in f32."""
        tile = matmul_tile(self.key, self.x.shape[-2], self.columns, self.depth, f32, self.a.target)
        packed = self.f32_panels(self.a.as_row_major(self.w), tile.width)
        self.finish(self.multiplied("lowered.matmul_packed", self.x, self.narrow(packed, self.w.name)))

    def in_vectors(self, dot: Dot) -> Value | None:
        """Emit the product with both factors narrow, row by row or in pairs of rows. Rounding x is fused into the
        kernel that computes it if possible. None if the depth is no multiple of the instruction's."""
        if (pair := self.pair(dot)) is not None:
            x, w = (self.narrow(v, v.name) for v in (self.x, self.a.as_row_major(self.w)))
            return product_of_pairs(self.a, pair, x, w, self.transpose, self.columns)
        if self.depth % dot.group:
            return None
        x = self.narrow(self.x, self.x.name)
        packed = self.panels(self.a.as_row_major(self.w), dot)
        return self.multiplied("lowered.matmul_dot", x, self.narrow(packed, self.w.name))

    def pair(self, dot: Dot) -> Dot | None:
        """The instruction for pairs of rows with the operand types of `dot`, if it is faster; None otherwise."""
        return in_pairs(self.a, self.node, self.x, self.depth, self.columns, dot)

    def tile(self, a: DType, b: DType) -> Dot | None:
        """The matrix instruction for these types, if products are summed in matrix registers; None if vectors, which
        would sum in f32, are faster."""
        tile, target = find_tile_dot(a, b, self.a.target), self.a.target
        if tile is None:
            return None

        def in_f32(rows: int) -> float:
            return rows * self.depth * self.columns / (target.lanes(4) * target.fma_per_cycle)

        def by_tiles(rows: int) -> float:
            return product_cycles(rows, self.depth, self.columns, tile, target)

        least = least_rows(self.a, self.node, rows_of(self.x, tile.rows), in_f32, by_tiles, both=False)
        return None if least is None else tile

    def in_tiles(self, tile: Dot) -> Value:
        """Emit the product with both factors narrow, in matrix registers."""
        x = as_rows(self.a, self.narrow(self.x, self.x.name), tile.rows)
        packed = self.whole_panels(self.a.as_row_major(self.w), tile)
        return self.multiplied("lowered.matmul_tiles", x, self.narrow(packed, self.w.name), rows=tile.rows)

    def whole_panels(self, w: Value, tile: Dot) -> Value:
        """Emit the weights in panels for matrix registers, their depth padded with zeros to whole registers."""
        more = -self.depth % tile.depth
        return self.panels(self.a.longer(w, 1 if self.transpose else 0, more) if more else w, tile)

    def narrow(self, value: Value, name: str) -> Value:
        """The factor `value` cast to the narrow type, under the name `name`."""
        kind = self.kind
        return value if value.dtype is kind else self.emit("cast", value, name=f"{name}_{kind.name}", dtype=kind)

    def panels(self, w: Value, dot: Dot) -> Value:
        attrs = {"width": dot.lanes, "group": dot.group, "panels": panel_multiple(self.columns, dot.lanes)}
        return self.emit("lowered.pack_dot", w, name=f"{self.w.name}_packed", transpose=self.transpose, **attrs)

    def f32_panels(self, w: Value, width: int) -> Value:
        return self.emit("lowered.pack_matmul", w, name=f"{self.w.name}_packed", width=width, transpose=self.transpose)

    def multiplied(self, op: str, x: Value, w: Value, **attrs: object) -> Value:
        return self.emit(op, x, w, name=self.node.output.name, columns=self.columns, **attrs)

    def finish(self, result: Value) -> None:
        keep(self.a, self.node.output, result)

    # int4w

    def of_nibbles(self) -> None:
        """Emit the product with 4-bit weights that have a scale for `GROUP` rows of a column and are decoded in
        registers; the arithmetic is in f32."""
        w, groups, columns_first = self.a.as_row_major(self.w), self.depth // GROUP, self.transpose
        shape = (self.columns, groups, GROUP) if columns_first else (groups, GROUP, self.columns)
        grouped = self.emit("reshape", w, name="groups", shape=shape)
        scale, levels = self.quantise(grouped, 2 if columns_first else 1, self.w.name, NIBBLES)
        levels = self.emit("add", levels, self.number(float(ZERO), f32), name="codes")
        narrow = self.emit("cast", levels, name="codes", dtype=u8)  # what is moved from here on has a byte
        codes = self.as_columns_last(narrow, self.depth, columns_first)
        scales = self.as_columns_last(scale, groups, columns_first)
        self.by_codes(Codes(codes, scales, None, True, float(ZERO)))

    def as_rows(self, coded: Coded) -> Codes:
        """The codes, scales and offsets of weights in the layout [rows, columns]; 4-bit codes are unsigned."""
        groups = as_int(coded.scales.type.size) or 1
        groups //= self.columns
        codes, zero, zeros, transposed = self.a.as_row_major(coded.codes), coded.zero, coded.zeros, coded.transposed
        shift = -coded.between[0] if coded.paired and coded.between[0] < 0 else 0
        if shift:
            wide = self.emit("cast", codes, name="codes", dtype=i8)
            codes = self.emit("add", wide, self.number(shift, i8), name="codes")
        scales = self.as_columns_last(self.a.as_row_major(coded.scales), groups, transposed)
        offsets = (
            None
            if coded.offsets is None
            else self.as_columns_last(self.a.as_row_major(coded.offsets), groups, transposed)
        )
        if zeros is not None:
            zeros = self.as_columns_last(self.real(self.a.as_row_major(zeros)), groups, transposed)
            if shift:
                zeros = self.emit("add", zeros, self.number(float(shift), f32), name="zeros")
        elif offsets is not None and zero + shift:
            zeros = self.number(zero + shift, f32)
        if zeros is not None:
            product = self.emit("mul", zeros, scales, name="offsets")
            offsets = product if offsets is None else self.emit("add", offsets, product, name="offsets")
        kind = u8 if coded.between[0] + shift >= 0 else i8
        narrow = codes if codes.dtype is kind else self.emit("cast", codes, name="codes", dtype=kind)
        return Codes(
            self.as_columns_last(narrow, self.depth, transposed),
            scales,
            offsets,
            coded.paired,
            zero + shift,
            coded.book,
        )

    def real(self, value: Value) -> Value:
        return value if value.dtype is f32 else self.emit("cast", value, name="real", dtype=f32)

    def as_columns_last(self, value: Value, count: int, transposed: bool) -> Value:
        """A value of `count` numbers per column as [count, columns]; with `transposed` it is stored as [columns, count]
        and is transposed."""
        if not transposed:
            return self.emit("reshape", value, name="rows", shape=(count, self.columns))
        rows = self.emit("reshape", value, name="rows", shape=(self.columns, count))
        return self.emit("transpose", rows, name="rows", perm=(1, 0))

    def by_codes(self, weights: Codes) -> None:
        """Emit the product with coded weights."""
        tile = matmul_tile(self.key, self.x.shape[-2], self.columns, self.depth, f32, self.a.target)

        def panels(rows: Value) -> Value:
            name = f"{self.w.name}_packed"
            return self.emit("lowered.pack_matmul", rows, name=name, width=tile.width, transpose=False)

        codes = self.pairs(weights.codes) if weights.paired else weights.codes
        operands = [panels(codes), panels(weights.scales)]
        operands += [] if weights.offsets is None else [panels(weights.offsets)]
        rows = as_int(self.x.shape[-2])
        op = (
            "matmul_codes_by_rows" if rows is None else "matmul_codes" if rows <= MAX_DECODED_ROWS else "matmul_decoded"
        )
        attrs = {"columns": self.columns, "zero": weights.zero, "book": weights.book}
        self.finish(self.emit(f"lowered.{op}", self.x, *operands, name=self.node.output.name, **attrs))

    def pairs(self, codes: Value) -> Value:
        """Emit 4-bit codes packed two to a byte: an even row in the low half, the next one in the high half."""
        half = self.depth // 2
        pairs = self.emit("reshape", codes, name="pairs", shape=(half, 2, self.columns))
        size, step = (half, 1, self.columns), (1, 1, 1)
        low, high = (self.emit("slice", pairs, name="half", begin=(0, k, 0), size=size, step=step) for k in range(2))
        both = self.emit("add", low, self.emit("mul", high, self.number(16, u8), name="high"), name="bytes")
        return self.emit("reshape", both, name="bytes", shape=(half, self.columns))

    # int8w

    def of_codes(self) -> None:
        """Emit the product with 8-bit weights that are widened as they are read, a quarter of the bytes; the arithmetic
        is in f32."""
        scale, narrow = self.quantised_weights()
        tile = matmul_tile(self.key, self.x.shape[-2], self.columns, self.depth, f32, self.a.target)
        total = self.multiplied("lowered.matmul_packed", self.x, self.f32_panels(narrow, tile.width))
        self.finish(self.emit("mul", total, scale, name=self.node.output.name))

    def quantised_weights(self) -> tuple[Value, Value]:
        """The scale of each column, [1, N], and the codes of the weights in the weights' layout."""
        scale, narrow = self.quantise(self.a.as_row_major(self.w), -1 if self.transpose else -2, self.w.name)
        if self.transpose:
            scale = self.emit("transpose", scale, name="scale", perm=(1, 0))
        return scale, self.emit("cast", narrow, name=f"{self.w.name}_i8", dtype=i8)

    # int8

    def quantised(self) -> None:
        """Emit the product with both factors as 8-bit codes with scales."""
        dots = ((t, find_dot(t, i8, self.a.target)) for t in (i8, u8, i16))
        match = next(((t, d) for t, d in dots if d is not None and self.depth % d.group == 0), None)
        least, matrices = self.in_matrices_from(match)
        if matrices is not None:
            match = u8, matrices
        rows = self.x if matrices is None else as_rows(self.a, self.x, matrices.rows)
        row_scale, x = self.quantise(rows, -1, self.x.name)
        column_scale, narrow = self.quantised_weights()
        attrs = {"columns": self.columns}
        if match is None:
            tile = matmul_tile(self.key, self.x.shape[-2], self.columns, self.depth, i32, self.a.target)
            x = self.emit("cast", x, name=f"{self.x.name}_i8", dtype=i8)
            total = self.emit("lowered.matmul_packed", x, self.f32_panels(narrow, tile.width), name="total", **attrs)
        else:
            kind, dot = match
            if kind is u8:
                x = self.emit("add", x, self.number(OFFSET, f32), name="shifted")
            x = self.emit("cast", x, name=f"{self.x.name}_{kind.name}", dtype=kind)
            if matrices is not None:
                total = in_tiles(self.a, x, self.whole_panels(narrow, matrices), self.columns, matrices, least)
            elif (pair := self.pair(dot)) is not None:
                total = product_of_pairs(self.a, pair, x, narrow, self.transpose, self.columns)
            else:
                total = self.emit("lowered.matmul_dot", x, self.panels(narrow, dot), name="total", **attrs)
            if kind is u8:
                total = self.emit("sub", total, self.correction(narrow), name="total")
        real = self.emit("cast", total, name="total", dtype=f32)
        real = self.emit("mul", real, row_scale, name="scaled")
        self.finish(self.emit("mul", real, column_scale, name=self.node.output.name))

    def in_matrices_from(self, result: tuple[DType, Dot] | None) -> tuple[int, Dot | None]:
        """(least number of rows for which integers are summed in matrix registers, the instruction), the instruction
        None if they never are."""
        tile = find_tile_dot(u8, i8, self.a.target)
        if result is None or result[0] is not u8 or tile is None:
            return 0, self.tile(u8, i8)
        least = least_rows_of(self.a, self.node, rows_of(self.x, tile.rows), self.depth, self.columns, result[1], tile)
        return (0, None) if least is None else (least, tile)

    def quantise(self, x: Value, axis: int, name: str, levels: int = LEVELS) -> tuple[Value, Value]:
        """Emit, and return, (scale, round(x / scale)), with scales for which the largest magnitude along `axis` becomes
        `levels`. `name` is how the new values' names begin."""
        size = self.emit("abs", x, name="size")
        axes = (axis % x.type.rank,)
        most = self.emit("reduce_max", size, name=f"{name}_most", axes=axes, keepdims=True)
        most = self.emit("max", most, self.number(SMALLEST, f32), name="most")
        scale = self.emit("mul", most, self.number(1.0 / levels, f32), name=f"{name}_scale")
        inverse = self.emit("div", self.number(float(levels), f32), most, name="inverse")
        rounded = self.emit("round", self.emit("mul", x, inverse, name="levels"), name="levels")
        return scale, rounded

    def correction(self, narrow: Value) -> Value:
        """The correction for unsigned activations: OFFSET times the sum of each column's weights, [1, N] of i32."""
        wide = self.emit("cast", narrow, name="wide", dtype=i32)
        axes = (1 if self.transpose else 0,)
        total = self.emit("reduce_sum", wide, name="sums", axes=axes, keepdims=True)
        if self.transpose:
            total = self.emit("transpose", total, name="sums", perm=(1, 0))
        return self.emit("mul", total, self.number(OFFSET, i32), name="correction")


__all__ = ["attention", "bf16_product", "by_codes", "conv_in_matrices", "conv_in_pairs", "reduced"]
