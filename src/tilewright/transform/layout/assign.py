"""Assign layouts: pack weights for the register tiles that will read them, block channels where convolutions want it.

    y = conv(x, w)        ->   xb = block_channels(x);  p = pack_conv(w);  yb = conv_blocked(xb, p);  y = unblock(yb)
    y = matmul(x, w)      ->   p = pack_matmul(w);  y = matmul_packed(x, p), or Strassen's method

Conversions are made on demand and once; pointwise operators, pooling, global reductions, slices and concatenation work
on the blocked form directly, so between convolutions none remain. Packing depends on weights alone, hence moves to
`prepare`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright import ops
from tilewright.ir.graph import Graph, Node
from tilewright.ops.conv import ConvAttrs
from tilewright.targets.target import Target
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.blocked import along_space, concat, pointwise, pool, reduce, slices
from tilewright.transform.layout.conv import conv
from tilewright.transform.layout.depthwise import grouped, windows
from tilewright.transform.layout.integer import integer_conv
from tilewright.transform.layout.matmul import matmul
from tilewright.transform.layout.precision import attention
from tilewright.transform.layout.transposed import transposed


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of an operator. `rewrite` is true when the node was rewritten; `blocks` says that the operator is
    faster on blocked channels or leads to them, so that its inputs are wanted in blocks."""

    rewrite: Callable[[Assigner, Node], bool]
    blocks: bool = True


def convolution(a: Assigner, node: Node) -> bool:
    """Of integers, in groups, of volumes, or of maps by the algorithm that is noted."""
    if node.output.dtype.is_int:
        return integer_conv(a, node)
    if node.of(ConvAttrs).groups != 1:
        return grouped(a, node)
    if node.output.type.rank == 5:
        return windows(a, node)
    return conv(a, node)


RULES = {
    "conv": Rule(convolution),
    "conv_transpose": Rule(transposed),
    "matmul": Rule(matmul, blocks=False),
    "lowered.attention": Rule(attention, blocks=False),
    "concat": Rule(concat),
    "max_pool": Rule(pool),
    "avg_pool": Rule(pool),
    "reduce_mean": Rule(reduce),
    "resize": Rule(along_space),
    "resample": Rule(along_space),
    "gather": Rule(along_space),
    "slice": Rule(slices, blocks=False),
}
POINTWISE = Rule(pointwise, blocks=False)


BLOCKING = frozenset(name for name, rule in RULES.items() if rule.blocks)
"""Operators that want their inputs in blocks."""

FOLLOWING = frozenset(RULES) - {"conv", "conv_transpose", "matmul", "lowered.attention"}
"""Operators that work on blocks if they are given blocks."""


def assign_layouts(graph: Graph, target: Target) -> Graph:
    """The graph with packed weights and blocked channels, by the algorithms that are noted on its nodes
    (`transform/select/`); dead conversions are left to dead code elimination."""
    a = Assigner(graph, target)
    for node in graph.nodes:
        a.visit(node)
        rule = RULES.get(node.op)
        if rule is None and ops.get(node.op).kind == "pointwise":
            rule = POINTWISE
        if rule is None or not rule.rewrite(a, node):
            a.keep(node)
    return a.finish()
