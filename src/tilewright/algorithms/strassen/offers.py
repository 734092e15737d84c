"""Offers Strassen's method if the options allow its rounding, sizes fill its quarters, and it saves enough time."""

from __future__ import annotations

from tilewright.algorithms.strassen.selection import Strassen
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Packed
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.norm import NormAttrs
from tilewright.plans.matmul.tiles import Product, has_whole_panels
from tilewright.transform.algorithm import Option
from tilewright.transform.graph.rowgroups import NORMS
from tilewright.transform.problems import blockings_of
from tilewright.transform.select.convolution import conversions
from tilewright.transform.select.surroundings import Surroundings

ALLOWED = ("auto", "f6", "strassen")
"""Settings of `fast` that allow Strassen's method for 1x1 convolutions and for the rows of one sequence; "strassen"
allows it for any rows."""


def with_strips(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """`options`, the ways to compute the 1x1 convolution `node`, with Strassen's method over strips of its pixels
    added."""
    w = node.inputs[1]
    assert w is not None
    filters, channels, *window = (as_int(d) or 0 for d in w.shape)
    if window != [1, 1] or enclosing.fast(node) not in ALLOWED or w not in enclosing.fixed:
        return options
    block, width = enclosing.block, 2 * enclosing.target.lanes(4)
    fills = channels % (2 * block) == 0 and filters % (2 * width) == 0 and block > 1
    if not fills or not all(as_int(d) for d in node.output.shape[1:]) or any(node.of(ConvAttrs).pads):
        return options
    from tilewright.algorithms.strassen.plan.convolution import MAX_TIME, best  # which few models need

    shapes, _ = blockings_of(node, filters, channels, block, enclosing.target)
    result = best(shapes[0], width, enclosing.weight_bytes, enclosing.target)
    if result is None:
        return options
    cost, choice = result
    # The filters take 7/4 of their memory, which is worth something.
    cycles = cost.cycles / MAX_TIME + conversions(enclosing, node, block)
    return [*options, (cycles, choice)]


def with_quarters(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """`options`, the ways to compute the matrix product `node`, with Strassen's method added; the direct product gets
    an estimate too."""
    quarters = quartered(enclosing, node)
    if quarters is None:
        return options
    from tilewright.algorithms.strassen.plan.product import MAX_TIME, compared  # which few models need

    ordinary, fast = compared(quarters, enclosing.weight_bytes, enclosing.target)
    return [*options, (ordinary.cycles, Packed()), (fast.cycles / MAX_TIME, Strassen())]


def quartered(enclosing: Surroundings, node: Node) -> Product | None:
    """The sizes of the product of one matrix by a weight, if Strassen's method may compute it; None otherwise."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    fast = enclosing.options.fast
    allowed = fast == "strassen" or (fast in ALLOWED and one_sequence(enclosing, x))
    allowed &= node.of(MatmulAttrs).exactness in ("", "x3")
    if not allowed or node.of(MatmulAttrs).transpose_a or w not in enclosing.fixed or x in enclosing.fixed:
        return None
    if node.output.dtype is not f32 or x.dtype is not f32 or w.type.rank != 2:
        return None
    *lead, rows, columns = (as_int(d) for d in node.output.shape)
    depth = as_int(x.shape[-1])
    if not rows or rows == 1 or not columns or columns == 1 or not depth or any(d != 1 for d in lead):
        return None
    # Panels that both halves have a part of would be merged twice.
    half = const(-(-rows // 2)), columns // 2, -(-depth // 2)
    return None if columns % 2 or not has_whole_panels(*half, f32, enclosing.target) else Product(rows, columns, depth)


def one_sequence(enclosing: Surroundings, rows: Value) -> bool:
    """Whether all rows belong to one sample, the only one of its batch, and a norm has given them one scale.

    Then the method adds only rows of the same caller, and none loses digits beside a much larger one.
    """
    node = enclosing.producers.get(rows)
    if node is None or node.op not in NORMS or node.of(NormAttrs).axis % rows.type.rank != rows.type.rank - 1:
        return False
    *batch, _, _ = rows.shape
    return bool(batch) and all(as_int(d) == 1 for d in batch)
