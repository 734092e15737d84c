"""Assign layouts: pack weights for the register tiles that will read them, block channels where that makes convolutions
faster.

    y = conv(x, w)        ->   xb = block_channels(x);  p = pack_conv(w);  yb = conv_blocked(xb, p);  y = unblock(yb)
    y = matmul(x, w)      ->   p = pack_matmul(w);  y = matmul_packed(x, p), or Strassen's method

On a GPU all channels are one block, and products by weights have joined rows (`along_depth.py`).

Conversions are made on demand and once; pointwise operators, pooling, global reductions, slices and concatenation work
on the blocked form directly, so between convolutions none remain. Packing depends on weights alone, hence moves to
`prepare`; weights that come with each call, as in training, are packed in the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from tilewright import ops
from tilewright.ir.graph import Graph, Node
from tilewright.ir.selection import Selection
from tilewright.ops import registry
from tilewright.ops.conv import ConvAttrs
from tilewright.support import plugins
from tilewright.support.classes import dataclass
from tilewright.support.errors import PluginError
from tilewright.targets.target import Target
from tilewright.transform.algorithm import record_of
from tilewright.transform.layout import along_depth, joined
from tilewright.transform.layout.assigner import Assigner
from tilewright.transform.layout.blocked import along_space, concat, pointwise, pool, reduce, slices
from tilewright.transform.layout.columns import columns, in_columns
from tilewright.transform.layout.conv import conv
from tilewright.transform.layout.conv_weight import conv_weight
from tilewright.transform.layout.depthwise import grouped, windows
from tilewright.transform.layout.integer import integer_conv
from tilewright.transform.layout.matmul import matmul
from tilewright.transform.layout.precision import attention
from tilewright.transform.layout.recurrence import recurrence
from tilewright.transform.layout.transposed import transposed
from tilewright.transform.select.surroundings import InBlocks


@dataclass(frozen=True, slots=True)
class Rule:
    """The layout rule of an operator. `rewrite` rewrites a node and returns whether it did; `blocks` says that the
    operator is faster on blocked channels, or is often followed by operators that are, so that its inputs should be
    blocked."""

    rewrite: Callable[[Assigner, Node], bool]
    blocks: bool = True


def convolution(a: Assigner, node: Node) -> bool:
    """The rule for convolutions: of integers, in groups, of volumes, or of maps by the algorithm noted on the node."""
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
    "conv_weight_gradient": Rule(conv_weight),
    "matmul": Rule(matmul, blocks=False),
    "lowered.attention": Rule(attention, blocks=False),
    "recurrence": Rule(recurrence, blocks=False),
    "concat": Rule(concat),
    "max_pool": Rule(pool),
    "max_pool_places": Rule(pool),
    "max_pool_spread": Rule(pool),
    "avg_pool": Rule(pool),
    "reduce_mean": Rule(reduce),
    "reduce_sum": Rule(reduce, blocks=False),
    "resize": Rule(along_space),
    "resample": Rule(along_space),
    "gather": Rule(along_space),
    "slice": Rule(slices, blocks=False),
}
POINTWISE = Rule(pointwise, blocks=False)
GPU_RULES = {"conv": Rule(along_depth.conv), "matmul": Rule(along_depth.matmul)} | {
    op: RULES[op] for op in RULES if RULES[op].rewrite in (concat, pool, reduce, along_space, slices)
}
"""The rules for GPUs, where all channels are one block."""


def register(op: str, rule: Rule) -> Rule:
    """Register `rule` as the layout rule of the operator `op`, and return it. Raises PluginError if the operator has
    one."""
    plugins.check_new("layout rule", [op], list(RULES))
    plugins.count(rule.rewrite)
    RULES[op] = rule
    return rule


@cache
def plugin_rules() -> dict[str, Rule]:
    """The layout rules of plug-ins for their operators. A plug-in whose rules are not `Rule`s is left out."""
    result: dict[str, Rule] = {}
    for plugin, operators in list(registry.plugin_operators().items()):
        wrong = [op for op, rule in operators.layouts.items() if not isinstance(rule, Rule)]
        if wrong:
            what = PluginError("a layout rule is something else", expected="a Rule", got=", ".join(wrong))
            registry.unload(plugin, what)
        else:
            result |= operators.layouts
    return result


def rules() -> dict[str, Rule]:
    """The layout rules by the name of the operator that they rewrite, including those of plug-ins."""
    return RULES | plugin_rules()


def blocking() -> frozenset[str]:
    """The names of the operators that are faster with inputs whose channels are in blocks."""
    return frozenset(name for name, rule in rules().items() if rule.blocks)


def following() -> frozenset[str]:
    """Operators that can work on blocked inputs."""
    return frozenset(rules()) - {
        "conv",
        "conv_transpose",
        "conv_weight_gradient",
        "matmul",
        "lowered.attention",
        "recurrence",
    }


def in_blocks() -> InBlocks:
    """The sets of operators that use blocked channels, for algorithm selection."""
    return InBlocks(blocking(), following())


def assign_layouts(graph: Graph, target: Target) -> Graph:
    """The graph with packed weights and blocked channels, by the algorithms that are noted on its nodes
    (`transform/select/`). Dead code elimination removes unused conversions later."""
    known = rules() if target.gpu is None else GPU_RULES
    a = Assigner(graph, target)
    if target.gpu is None:
        a.inside = in_columns(graph, a.block)
    else:
        a.readers = graph.consumers()
    for node in graph.nodes:
        a.visit(node)
        begin = len(a.builder.nodes)
        _assign(a, node, known)
        if getattr(node.attrs, "exactness", ""):
            a.builder.nodes[begin:] = [replace(n, selected=EXACT) for n in a.builder.nodes[begin:]]
    return a.finish()


EXACT = Selection()
"""The note on nodes that compute an f32 product which must be more accurate than the user's options require. It stays
on them up to the pass "store in 16 bits"."""


def _assign(a: Assigner, node: Node, known: Mapping[str, Rule]) -> None:
    """Rewrite a node by its algorithm's record or by its operator's rule, or copy it. The rules for GPUs come first, as
    they regard no algorithm."""
    rule = known.get(node.op)
    if rule is None and ops.get(node.op).kind == "pointwise":
        rule = POINTWISE
    record = None if rule is not None and a.target.gpu is not None else record_of(node)
    if record is not None and record.lower(a, node):
        return
    if columns(a, node) or joined.pointwise(a, node) or (rule is not None and rule.rewrite(a, node)):
        return
    a.keep(node)
