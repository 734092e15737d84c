"""In which precision matrix products and attention multiply, and whether products go by Strassen's method.

Of a symbolic number of rows some calls may: those whose number lies in a range in which it is estimated to be faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import mean

from tilewright.ir.dtype import bf16, f32
from tilewright.ir.expr import as_int, ceildiv
from tilewright.ir.graph import Node, Value
from tilewright.ir.selection import Packed, Precision, Strassen, StrassenByRows
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.norm import NormAttrs
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.plans.framework.symbolic import SYMBOLIC_ROWS, values_of
from tilewright.plans.matmul.tiles import Product, has_whole_panels
from tilewright.plans.strassen.products import LEAST_GAIN, compared
from tilewright.schedule.dot_intrinsics import find_dot
from tilewright.transform.graph.rowgroups import NORMS
from tilewright.transform.select.convolution import STRASSEN
from tilewright.transform.select.surroundings import Surroundings


def product_precision(around: Surroundings, node: Node) -> Precision:
    """The precision that the user asked for where the second factor is a matrix, of weights or of what was asked for;
    "fp32" elsewhere."""
    x, w = node.inputs
    assert x is not None and w is not None
    depth = x.shape[-2 if node.of(MatmulAttrs).transpose_a else -1]
    known = as_int(depth) is not None and as_int(node.output.shape[-1]) not in (None, 1)
    asked = w in around.fixed or around.options.products == "all"
    fits = x.dtype is f32 and w.dtype is f32 and asked and w.type.rank == 2 and known
    return _precision(around, node, around.options.precision if fits else "fp32")


def attention_precision(around: Surroundings, node: Node) -> Precision:
    """bf16 where that was asked for and the machine has an instruction for both products."""
    q = node.inputs[0]
    dot = find_dot(bf16, bf16, around.target)
    if around.options.precision != "bf16" or dot is None or q is None or q.dtype is not f32:
        return "fp32"
    fits = (as_int(q.shape[3]) or 1) % dot.group == 0
    return _precision(around, node, "bf16" if fits else "fp32")


def _precision(around: Surroundings, node: Node, asked: Precision) -> Precision:
    """A rule, not an estimate: who asks for less precision gets it, unless "fp32" is forced for a node."""
    if asked == "fp32":
        return asked
    options: tuple[Precision, ...] = (asked, "fp32")
    return decide(lambda: key_of_nodes("precision", [node], around.target), options, Setting)


Ways = Packed | Strassen | StrassenByRows

STEPS = 12
"""Steps, each the same multiple of the one before, in which the range of rows is found that Strassen's method is taken
for: at its ends it saves just enough."""


def product_algorithm(around: Surroundings, node: Node) -> Ways:
    """Strassen's seven products of quarters, where they are allowed and save enough, or the product itself, or both, by
    the number of rows of a call."""
    products = quartered(around, node)
    if not products:
        return Packed()
    times = [both_ways(around, product) for product in products]
    options: list[tuple[float, Ways]] = [(mean(plain for plain, _ in times), Packed())]
    if as_int(node.output.shape[-2]) is not None:
        options.append((mean(fast for _, fast in times) / LEAST_GAIN, Strassen()))
    elif found := range_of_rows(products, around):
        least, most = found
        taken = [fast if least <= p.rows <= most else plain for p, (plain, fast) in zip(products, times, strict=True)]
        options.append((mean(taken) / LEAST_GAIN, StrassenByRows(found)))
    options.sort(key=lambda option: option[0])
    key = partial(key_of_nodes, "algorithm", [node], around.target)
    return decide(key, options, lambda option: Setting.of(option[1]), lambda option: option[0])[1]


def both_ways(around: Surroundings, product: Product) -> tuple[float, float]:
    """Cycles of the product as it is and by Strassen's method."""
    plain, fast = compared(product, around.weight_bytes, around.target)
    return plain.cycles, fast.cycles


def range_of_rows(products: Sequence[Product], around: Surroundings) -> tuple[int, int] | None:
    """The numbers of rows with which Strassen's method saves enough: from the first one to the last one before it does
    not, of those that the product is judged by and of `STEPS` steps between them. None if it never does."""
    first, last = (end(product.rows for product in products) for end in (min, max))
    numbers = {round(first * (last / first) ** (k / STEPS)) for k in range(STEPS + 1)}
    found: list[int] = []
    for rows in sorted(numbers.union(product.rows for product in products)):
        plain, fast = both_ways(around, replace(products[0], rows=rows))
        if fast < LEAST_GAIN * plain:
            found.append(rows)
        elif found:
            break
    return (found[0], found[-1]) if found else None


def quartered(around: Surroundings, node: Node) -> tuple[Product, ...]:
    """The product of one matrix with a weight that Strassen's method may compute, with each number of rows that it is
    judged by; nothing for others."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    fast = around.options.fast
    allowed = fast == "strassen" or (fast in STRASSEN and one_sequence(around, x))
    if not allowed or node.of(MatmulAttrs).transpose_a or w not in around.fixed or x in around.fixed:
        return ()
    if node.output.dtype is not f32 or x.dtype is not f32 or w.type.rank != 2:
        return ()
    *lead, rows = node.output.shape[:-1]
    columns, depth = as_int(node.output.shape[-1]), as_int(x.shape[-1])
    if as_int(rows) in (0, 1) or not columns or columns == 1 or not depth or any(as_int(d) != 1 for d in lead):
        return ()
    # Panels that both halves have a part of would be merged twice.
    if columns % 2 or not has_whole_panels(ceildiv(rows, 2), columns // 2, -(-depth // 2), f32, around.target):
        return ()
    return tuple(Product(count, columns, depth) for count in values_of(rows, SYMBOLIC_ROWS))


def one_sequence(around: Surroundings, rows: Value) -> bool:
    """Whether rows are those of one sample, the only one of its batch, and a norm has made them alike in size.

    Two rows that meet are one caller's then, and none loses digits beside a larger one.
    """
    node = around.made.get(rows)
    if node is None or node.op not in NORMS or node.of(NormAttrs).axis % rows.type.rank != rows.type.rank - 1:
        return False
    *batch, _, _ = rows.shape
    return bool(batch) and all(as_int(d) == 1 for d in batch)
