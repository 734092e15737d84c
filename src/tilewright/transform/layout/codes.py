"""Recognise weights stored as 4-bit or 8-bit codes with a scale for each group of rows of each column.

    w = reshape(level(codes) * scales, [K, N] or its transpose)
    w = reshape(level(codes) * scales - offsets)
    level(codes) = cast(codes) | cast(codes) - zeros | book_levels(codes)

Groups lie along the depth: codes are [K/group, group, N] with scales [K/group, 1, N], or, of a product by the
transpose, [N, K/group, group] with scales [N, K/group, 1]. MatMulNBits and blocked DequantizeLinear of ONNX files are
imported in this form, and `frontend/weights/coded.py` writes weights of other files so.
"""

from __future__ import annotations

from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.ops.book import BookAttrs
from tilewright.ops.shape import ConstantAttrs, TransposeAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.bounds import Bounds, Producer, bounds, holds


@dataclass(frozen=True, slots=True)
class Coded:
    """The parts of coded weights in a graph.

    codes, scales    three dimensions, groups before or after columns
    zeros            for each scale the code of 0.0, or None
    offsets          for each scale a number that is subtracted from the scaled codes, or None
    zero             the code of 0.0 in all groups, if `zeros` is None
    between          the least and the greatest code
    book             levels of the codes 0 to 15; None: a code is its level
    transposed       whether the columns come first
    """

    codes: Value
    scales: Value
    zeros: Value | None
    offsets: Value | None
    zero: float
    between: Bounds
    book: ConstantArray | None
    transposed: bool

    @property
    def paired(self) -> bool:
        """Whether codes have 4 bits."""
        return self.between[1] - self.between[0] < 16


def find_coded(producer: Producer, w: Value, transpose: bool) -> Coded | None:
    """The codes and scales from which weights `w` are computed; None if they are computed in another way. `transpose`:
    the product reads the weights transposed."""
    node = producer(w)
    if node is not None and node.op == "transpose" and node.inputs[0] is not None and w.type.rank == 2:
        return find_coded(producer, node.inputs[0], not transpose) if node.of(TransposeAttrs).perm == (1, 0) else None
    if node is not None and node.op == "cast" and node.output.dtype is f32:
        node = _maker(producer, node, "reshape")
    if node is None or node.op != "reshape" or w.type.rank != 2 or node.inputs[0] is None:
        return None
    scaled, offsets = producer(node.inputs[0]), None
    if scaled is not None and scaled.op == "sub":
        offsets, scaled = scaled.inputs[1], _maker(producer, scaled, "mul")
    if scaled is None or scaled.op != "mul" or scaled.output.type.rank != 3 or scaled.output.dtype is not f32:
        return None
    levels, scales = scaled.inputs
    sizes = [as_int(d) or 0 for d in scaled.output.shape]
    depth = sizes[1] * sizes[2] if transpose else sizes[0] * sizes[1]
    each = (sizes[0], sizes[1], 1) if transpose else (sizes[0], 1, sizes[2])
    if levels is None or scales is None or not all(sizes) or as_int(w.shape[1 if transpose else 0]) != depth:
        return None
    codes, zeros, book = _levels(producer, levels)
    zero = _number(producer, zeros)
    of_groups = [v for v in (scales, offsets, zeros if zero is None else None) if v is not None]
    if codes is None or codes.shape != scaled.output.shape or any(_sizes(v) != each for v in of_groups):
        return None
    between = _between(producer, codes)
    group = sizes[2] if transpose else sizes[1]
    if between is None or (book is not None and between[1] > 15):
        return None
    coded = Coded(codes, scales, zeros if zero is None else None, offsets, zero or 0.0, between, book, transpose)
    return None if coded.paired and group % 2 else coded


def _levels(producer: Producer, levels: Value) -> tuple[Value | None, Value | None, ConstantArray | None]:
    """(codes, codes of 0.0, codebook) from which the levels are computed; None for parts that do not exist."""
    node, zeros = producer(levels), None
    if node is not None and node.op == "cast" and node.inputs[0] is not None and node.inputs[0].dtype.is_int:
        levels, node = node.inputs[0], producer(node.inputs[0])
    if node is not None and node.op == "sub" and node.inputs[0] is not None and _is_exact(producer, node):
        levels, zeros = node.inputs[0], node.inputs[1]
        node = producer(levels)
    if node is not None and node.op == "book_levels" and zeros is None and node.inputs[0] is not None:
        return _narrowest(producer, node.inputs[0]), None, node.of(BookAttrs).book
    codes = _narrowest(producer, levels)
    return codes if codes.dtype.is_int else None, zeros, None


def _is_exact(producer: Producer, difference: Node) -> bool:
    """Whether codes minus the code of 0.0 cannot overflow: a difference in 8 bits may."""
    kind = difference.output.dtype
    return not kind.is_int or holds(kind, (-256, 256)) or bounds(producer, difference.output) is not None


def _narrowest(producer: Producer, value: Value) -> Value:
    """The integer value from which `value` is computed by casts that widen, as far back as casts go."""
    node = producer(value)
    while node is not None and node.op == "cast" and node.inputs[0] is not None and node.inputs[0].dtype.is_int:
        source = node.inputs[0]
        known = bounds(producer, source) or (int(source.dtype.min), int(source.dtype.max))
        if value.dtype.is_int and (source.dtype.bits > value.dtype.bits or not holds(value.dtype, known)):
            break
        value = source
        node = producer(value)
    return value


def _between(producer: Producer, codes: Value) -> Bounds | None:
    """(least code, largest code), if they fit into 8 bits; None otherwise."""
    known = bounds(producer, codes)
    if known is None and codes.dtype.bits <= 8:
        known = int(codes.dtype.min), int(codes.dtype.max)
    if known is None:
        return None
    fits = (known[0] >= 0 and known[1] <= 255) or (known[0] >= -128 and known[1] <= 127)
    return known if fits else None


def _number(producer: Producer, value: Value | None) -> float | None:
    """The number that all elements of a constant are; None for other values."""
    node = None if value is None else producer(value)
    while node is not None and node.op in ("cast", "reshape", "broadcast") and node.inputs[0] is not None:
        node = producer(node.inputs[0])
    array = node.of(ConstantAttrs).value.array if node is not None and node.op == "constant" else None
    return float(array.flat[0]) if array is not None and array.size and (array == array.flat[0]).all() else None


def _maker(producer: Producer, node: Node, op: str) -> Node | None:
    """The node that computes the first input of `node`, if its operator is `op`; None otherwise."""
    maker = None if node.inputs[0] is None else producer(node.inputs[0])
    return maker if maker is not None and maker.op == op else None


def _sizes(value: Value) -> tuple[int | None, ...]:
    return tuple(as_int(d) for d in value.shape)
