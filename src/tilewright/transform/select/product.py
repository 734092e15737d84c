"""In which precision matrix products and attention multiply, and whether products go by Strassen's method."""

from __future__ import annotations

from functools import partial

from tilewright.ir.dtype import bf16, f32
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Packed, Precision, Strassen
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.norm import NormAttrs
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.plans.matmul.tiles import Product, has_whole_panels
from tilewright.plans.strassen.products import LEAST_GAIN, compared
from tilewright.schedule.dot_intrinsics import find_dot
from tilewright.transform.graph.rowgroups import NORMS
from tilewright.transform.select.convolution import STRASSEN
from tilewright.transform.select.surroundings import Surroundings


def product_precision(enclosing: Surroundings, node: Node) -> Precision:
    """The precision that the user asked for where the second factor is a matrix, of weights or of what was asked for;
    "fp32" elsewhere."""
    x, w = node.inputs
    assert x is not None and w is not None
    depth = x.shape[-2 if node.of(MatmulAttrs).transpose_a else -1]
    known = as_int(depth) is not None and as_int(node.output.shape[-1]) not in (None, 1)
    asked = w in enclosing.fixed or enclosing.options.products == "all"
    fits = x.dtype is f32 and w.dtype is f32 and asked and w.type.rank == 2 and known
    return _precision(enclosing, node, enclosing.options.precision if fits else "fp32")


def attention_precision(enclosing: Surroundings, node: Node) -> Precision:
    """bf16 where that was asked for and the machine has an instruction for both products."""
    q = node.inputs[0]
    dot = find_dot(bf16, bf16, enclosing.target)
    if enclosing.options.precision != "bf16" or dot is None or q is None or q.dtype is not f32:
        return "fp32"
    fits = (as_int(q.shape[3]) or 1) % dot.group == 0
    return _precision(enclosing, node, "bf16" if fits else "fp32")


def _precision(enclosing: Surroundings, node: Node, asked: Precision) -> Precision:
    """A rule, not an estimate: who asks for less precision gets it, unless "fp32" is forced for a node."""
    if asked == "fp32":
        return asked
    options: tuple[Precision, ...] = (asked, "fp32")
    return decide(lambda: key_of_nodes("precision", [node], enclosing.target), options, Setting)


def product_algorithm(enclosing: Surroundings, node: Node) -> Packed | Strassen:
    """Strassen's seven products of quarters, where they are allowed and save enough, or the product itself."""
    product = quartered(enclosing, node)
    if product is None:
        return Packed()
    ordinary, fast = compared(product, enclosing.weight_bytes, enclosing.target)
    options: list[tuple[float, Packed | Strassen]] = [
        (ordinary.cycles, Packed()),
        (fast.cycles / LEAST_GAIN, Strassen()),
    ]
    options.sort(key=lambda option: option[0])
    key = partial(key_of_nodes, "algorithm", [node], enclosing.target)
    return decide(key, options, lambda option: Setting.of(option[1]), lambda option: option[0])[1]


def quartered(enclosing: Surroundings, node: Node) -> Product | None:
    """The product of one matrix with a weight that Strassen's method may compute; None for others."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    fast = enclosing.options.fast
    allowed = fast == "strassen" or (fast in STRASSEN and one_sequence(enclosing, x))
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
    """Whether rows are those of one sample, the only one of its batch, and a norm has made them alike in size.

    Two rows that meet are one caller's then, and none loses digits beside a larger one.
    """
    node = enclosing.made.get(rows)
    if node is None or node.op not in NORMS or node.of(NormAttrs).axis % rows.type.rank != rows.type.rank - 1:
        return False
    *batch, _, _ = rows.shape
    return bool(batch) and all(as_int(d) == 1 for d in batch)
