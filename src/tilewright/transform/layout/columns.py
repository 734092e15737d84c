"""Keep values between matrix products in blocks of columns, as maps between convolutions are in blocks of channels.

    h = matmul(x, w)          hb = conv_blocked(blocks(x), p)
    a = gelu(h + b)     ->    ab = gelu(hb + bb)
    y = matmul(a, v)          y = rows(conv_blocked(ab, q))
    d = matmul(a', g)         d = conv_weight(blocks(g), ab)

A learning step multiplies the value between two linear layers three times: by the next weights and, in the backward
pass, transposed, as an operand of the gradients of both weights. Register tiles access one cache line of each row,
which is kilobytes long, and gradients need the value transposed or packed. In blocks of a vector's columns, `[n, C/b,
R/n, 1, b]`, it is n maps with a pixel per row, which register tiles of all three products read and write directly
(docs/decisions/columns-in-blocks.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import prod
from types import NoneType

from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.selection import Packed
from tilewright.ops.attention_gradient import AttentionGradientAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.ops.reduce import ReduceAttrs
from tilewright.plans.convolution.tiles import DirectProblem, ranked
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.transform.graph.fixed import depends_on_weights
from tilewright.transform.layout.assigner import Assigner

MAX_ROWS = 128
"""The largest number of rows in a part: a part with 1,024 columns stays in the second-level cache while panels of
weights are read for it."""
LARGE = 1 << 18
"""The least number of elements of a value that is stored in blocks of columns: smaller values stay in the second-level
cache, where copies are cheap."""


def in_columns(graph: Graph, block: int) -> frozenset[Value]:
    """The values that are to lie in blocks of columns: results of linear layers whose weights come with each call, and
    of pointwise work on them. All readers must be pointwise work, products, or sums of rows, and gradients of weights
    must read enough of them (`pays`)."""
    makers, readers = graph.producers(), graph.consumers()
    fixed = set(graph.params)
    for node in graph.nodes:
        if depends_on_weights(node.inputs, fixed):
            fixed.update(node.outputs)
    result = {v for v, n in makers.items() if fits(v, block) and may_make(n, fixed, block)} - set(graph.outputs)
    left: set[Value] | None = None
    while left is None or left:
        left = {v for v in result if not stays(makers[v], result)}
        left |= {v for v in result if not all(takes(n, v, result, block) for n in readers.get(v, []))}
        result -= left
    parts = tied(result, makers, readers)
    while (worth := [part for part in parts if pays(graph, part, result, makers, block)]) != parts:
        parts, result = worth, set().union(*worth)
    return frozenset(result)


def tied(
    result: AbstractSet[Value], makers: Mapping[Value, Node], readers: Mapping[Value, Sequence[Node]]
) -> list[set[Value]]:
    """Divide the values `result` into sets whose members are connected by nodes other than products: `makers` has the
    node that computes each value, `readers` the nodes that read it."""
    parts: list[set[Value]] = []
    for start in result:
        if any(start in part for part in parts):
            continue
        part, stack = set[Value](), [start]
        while stack:
            v = stack.pop()
            if v not in part:
                part.add(v)
                nodes = [n for n in (makers[v], *readers.get(v, [])) if n.op != "matmul"]
                stack += [u for n in nodes for u in (*n.inputs, *n.outputs) if u is not None and u in result]
        parts.append(part)
    return parts


def pays(
    graph: Graph, part: AbstractSet[Value], result: AbstractSet[Value], makers: Mapping[Value, Node], block: int
) -> bool:
    """Whether it pays to store the values `part` in blocks of columns.

    Gradients of weights then read them as they are, instead of transposing or packing them. This must save more
    elements than are copied otherwise: gradients of weights, operands of products that come row by row (unless a
    gradient reads them, which copies them in any case), and results that are needed row by row.
    """
    transposed = [n for n in graph.nodes if is_transposed(n, block)]
    copied = {
        base(v, makers) for n in transposed if any(v in result for v in n.inputs) for v in n.inputs if v is not None
    }
    gain = sum(elements(v) for n in transposed for v in n.inputs if v in part)
    rows = {n.output for n in transposed if any(v in part for v in n.inputs)}
    for node in graph.nodes:
        x = node.inputs[0] if is_linear(node, block) else None
        if x is not None and node.output in part and x not in result and base(x, makers) not in copied:
            rows.add(base(x, makers))
        elif x is not None and x in part and node.output not in result:
            rows.add(node.output)
    return gain > sum(map(elements, rows))


def base(value: Value, makers: Mapping[Value, Node]) -> Value:
    """The value from which `value` is computed by reshapes that keep the last dimension; `value` itself if there are
    none."""
    while (
        (producer := makers.get(value)) is not None
        and keeps_columns(producer)
        and (x := producer.inputs[0]) is not None
    ):
        value = x
    return value


def elements(value: Value | None) -> int:
    return 0 if value is None else as_int(value.type.size) or 0


def fits(value: Value, block: int) -> bool:
    """Whether a value may lie in blocks of columns: a large matrix, or several, whose columns fill whole blocks."""
    sizes = [as_int(d) for d in value.shape]
    return len(sizes) > 1 and None not in sizes and fills(sizes[-1], block) and prod(d or 0 for d in sizes) >= LARGE


def fills(columns: int | None, block: int) -> bool:
    return columns is not None and columns > 0 and columns % block == 0


def is_linear(node: Node, block: int) -> bool:
    """Whether a node multiplies rows with one matrix, and the columns of both sides fill their blocks."""
    if node.op != "matmul" or node.of(MatmulAttrs).transpose_a or not is_single(node):
        return False
    x, w = node.operands(2)
    return x.type.rank > 1 and w.type.rank == 2 and all(fills(as_int(v.shape[-1]), block) for v in (x, node.output))


def is_transposed(node: Node, block: int) -> bool:
    """Whether a node is the gradient of a weight: the product of a transposed matrix and a matrix, summed over rows."""
    if node.op != "matmul" or node.of(MatmulAttrs) != MatmulAttrs(transpose_a=True) or not is_single(node):
        return False
    return node.output.type.rank == 2 and all(fills(as_int(d), block) for d in node.output.shape)


def is_single(node: Node) -> bool:
    """Whether a product is computed in f32 by its definition."""
    known = all(v is not None and v.dtype is f32 for v in node.inputs)
    return known and node.precision == "fp32" and isinstance(node.algorithm, (Packed, NoneType))


def may_make(node: Node, fixed: set[Value], block: int) -> bool:
    """Whether a node can compute its result in blocks of columns."""
    if is_linear(node, block):
        return node.inputs[1] not in fixed
    if node.op == "attention_gradient":
        return may_join(node, block)
    return keeps_columns(node) or ops.is_pointwise(node)


def may_join(node: Node, block: int) -> bool:
    """Whether a node, an attention gradient, may return f32 columns in blocks: its three results are one array side by
    side, and each head's columns fill whole blocks of `block`."""
    (q, *_), attrs = node.inputs, node.of(AttentionGradientAttrs)
    return attrs.joined and q is not None and q.dtype is f32 and fills(as_int(q.shape[3]), block)


def keeps_columns(node: Node) -> bool:
    """Whether a node is a reshape that keeps the last dimension."""
    if node.op != "reshape":
        return False
    (x,) = node.inputs
    return x is not None and x.type.rank > 1 and as_int(x.shape[-1]) == as_int(node.output.shape[-1])


def stays(node: Node, result: AbstractSet[Value]) -> bool:
    """Whether a node's inputs allow it to compute its result in blocks of columns: each is in blocks with the same
    shape, one number, or one number per column."""
    if node.op in ("matmul", "attention_gradient"):
        return True
    if node.op == "reshape":
        return node.inputs[0] in result
    own = [v for v in node.inputs if v in result]
    others = [v for v in node.inputs if v is not None and v not in result]
    alike = all(v is not None and v.shape == node.output.shape for v in own)
    return bool(own) and alike and all(as_int(d) == 1 for v in others for d in v.shape[:-1])


def takes(node: Node, value: Value, result: AbstractSet[Value], block: int) -> bool:
    """Whether `node` can read its operand `value` in blocks of columns; `result` are the values that are to lie in this
    layout."""
    if node.op == "matmul":
        return is_transposed(node, block) or (is_linear(node, block) and node.inputs[1] != value)
    if node.op == "reduce_sum":
        return node.of(ReduceAttrs).axes == tuple(range(value.type.rank - 1))
    return node.op != "attention_gradient" and node.outputs[0] in result


def columns(a: Assigner, node: Node) -> bool:
    """Rewrite a node that computes or reads values in blocks of columns; returns whether it did."""
    (x, *_) = node.inputs or (None,)
    if x is None or not any(v in a.inside for v in (*node.inputs, *node.outputs)):
        return False
    name = node.output.name
    if node.op == "matmul":
        (linear if is_linear(node, a.block) else weight_gradient)(a, node)
    elif node.op == "reduce_sum":
        (sums,) = a.emit("reduce_sum", (blocks(a, x),), {"axes": (0, 2, 3), "keepdims": False}, f"{name}_blocks")
        (a.row_major[node.output],) = a.emit("reshape", (sums,), {"shape": node.output.shape}, name)
    elif node.op == "reshape":
        a.columns[node.output] = blocks(a, x)
    elif node.op == "attention_gradient":
        rows = prod(as_int(d) or 1 for d in node.output.shape[:-1])
        attrs = replace(node.of(AttentionGradientAttrs), columns=(rows // parts_of(rows), a.block))
        inputs = tuple(None if v is None else a.as_row_major(v) for v in node.inputs)
        (a.columns[node.output],) = a.emit(node.op, inputs, attrs, f"{name}_columns")
    else:
        inputs = tuple(None if v is None else blocks(a, v) if v in a.inside else narrow(a, v) for v in node.inputs)
        (a.columns[node.output],) = a.emit(node.op, inputs, node.attrs, f"{name}_columns")
    return True


def linear(a: Assigner, node: Node) -> None:
    """Emit a product of a matrix, whose columns are in blocks, with weights, as a 1x1 convolution over its rows."""
    x, w = node.operands(2)
    source, name = blocks(a, x), node.output.name
    sizes = (x.shape[-1], node.output.shape[-1], source.shape[0], source.shape[2])
    depth, filters, parts, rows = (as_int(d) or 1 for d in sizes)
    problem = DirectProblem(
        images=parts,
        height=rows,
        width=1,
        window=(1, 1),
        stride=1,
        channels=depth,
        block=a.block,
        filters=filters,
        source=4 * depth * rows,
        copied=False,
        known=True,
    )
    _, blocking = decide(
        lambda: key_of_nodes("panels", [node], a.target),
        ranked((problem,), (True,), a.target),
        lambda way: Setting("panels", (("width", way[1].width),)),
        lambda way: way[0],
    )
    width = blocking.width
    attrs = {"width": width, "transpose": node.of(MatmulAttrs).transpose_b}
    (panels,) = a.emit("lowered.pack_matmul", (a.as_row_major(w),), attrs, f"{w.name}_packed")
    shape = (panels.shape[0], depth // a.block, 1, 1, a.block, width)
    (packed,) = a.emit("reshape", (panels,), {"shape": shape}, f"{w.name}_panels")
    kinds = {
        "pads": (0, 0, 0, 0),
        "strides": (1, 1),
        "dilations": (1, 1),
        "channels": filters,
        "out_block": a.block,
        "flat": True,
    }
    (a.columns[node.output],) = a.emit("lowered.conv_blocked", (source, packed), kinds, f"{name}_columns")


def weight_gradient(a: Assigner, node: Node) -> None:
    """Emit a gradient of weights, a sum over the rows of two matrices in blocks of columns, as the gradient of a 1x1
    convolution's filters, a sum over pixels."""
    left, right = node.operands(2)
    kinds = {"strides": (1, 1), "dilations": (1, 1), "window": (1, 1), "data": "narrow"}
    operands, name = (blocks(a, right), blocks(a, left)), node.output.name
    (result,) = a.emit("lowered.conv_weight", operands, kinds, f"{name}_blocks")
    (transposed,) = a.emit("transpose", (result,), {"perm": (1, 4, 0, 5, 2, 3)}, f"{name}_turned")
    (a.row_major[node.output],) = a.emit("reshape", (transposed,), {"shape": node.output.shape}, name)


def blocks(a: Assigner, value: Value) -> Value:
    """Emit a value `[..., C]` in blocks of columns, `[n, C/b, R/n, 1, b]`, once for all values that are reshapes of it
    with the same columns."""
    value = base(value, a.producers)
    if value not in a.columns:
        *shape, size = (as_int(d) or 1 for d in value.shape)
        count, rows = size // a.block, prod(shape)
        parts = parts_of(rows)
        split = {"shape": (parts, rows // parts, count, a.block)}
        (lines,) = a.emit("reshape", (a.as_row_major(value),), split, f"{value.name}_split")
        (transposed,) = a.emit("transpose", (lines,), {"perm": (0, 2, 1, 3)}, f"{value.name}_turned")
        maps = {"shape": (parts, count, rows // parts, 1, a.block)}
        (a.columns[value],) = a.emit("reshape", (transposed,), maps, f"{value.name}_columns")
    return a.columns[value]


def parts_of(rows: int) -> int:
    """The number of equal parts of rows, each of MAX_ROWS / 2 to MAX_ROWS rows; 1 if no number divides the rows so."""
    least, most = -(-rows // MAX_ROWS), 2 * rows // MAX_ROWS
    return next((n for n in range(max(least, 1), most + 1) if rows % n == 0), 1)


def narrow(a: Assigner, value: Value) -> Value:
    """Emit an operand of one number, or of one number per column, in the shape that broadcasts against blocks of
    columns."""
    if as_int(value.type.size) == 1:
        return a.as_row_major(value)
    shape = (1, (as_int(value.shape[-1]) or 1) // a.block, 1, 1, a.block)
    return a.emit("reshape", (a.as_row_major(value),), {"shape": shape}, f"{value.name}_columns")[0]
