"""Convolutions of one pixel over plain maps: groups that fill no blocks, and layers with nothing blocked around them.

A layer that is given a plain tensor and whose result is wanted plain needs no conversion in this form, which is worth
more than anything in how the product is computed.
"""

from __future__ import annotations

from collections.abc import Set
from math import prod

from tilewright import ops
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, Node, Value
from tilewright.plans.convolution.pixels import Shape, best
from tilewright.plans.framework.cost import Cost, fetch_cycles, write_cycles
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import cheapest
from tilewright.plans.idioms.transposes import shuffle_cycles
from tilewright.targets.target import Target
from tilewright.transform.layout.assigner import Assigner


def is_pointwise(node: Node) -> bool:
    """Whether every output pixel reads one input pixel, on maps of known size."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    size = [as_int(d) for d in (*x.shape[2:], *node.output.shape[2:])]
    return all(as_int(d) == 1 for d in w.shape[2:]) and not any(node.attr("pads")) and all(size)


def shape_of(node: Node) -> Shape:
    """One image and group of a convolution of one pixel."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    filters, depth, height, width = (as_int(d) or 1 for d in (*w.shape[:2], *node.output.shape[2:]))
    groups = node.attr("groups", 1)
    return Shape(filters // groups, height * width, depth, max(node.attr("strides")))


def pointwise(a: Assigner, node: Node) -> bool:
    """A product over the plain map for each group."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    _, width = best(shape_of(node), a.target)
    attrs = {"groups": node.attr("groups", 1), "width": width}
    (packed,) = a.emit("pack_pointwise", (a.as_plain(w),), attrs, f"{w.name}_packed")
    a.fixed.add(packed)
    attrs = {"channels": as_int(w.shape[0]), "strides": node.attr("strides")}
    (a.plain[node.output],) = a.emit("conv_pointwise_groups", (a.as_plain(x), packed), attrs, node.output.name)
    return True


def between_plain(a: Assigner, node: Node, blocked: float) -> bool:
    """Whether a convolution of one group shall work on plain maps, if in blocks it takes so many cycles an image."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    if x not in a.plain or node.output not in a.plain_use or not is_pointwise(node):
        return False
    changed = [x, *([node.output] if a.plain_use[node.output] else [])]
    plain, _ = best(shape_of(node), a.target)
    way = cheapest(
        lambda: key_of_nodes("layout", [node], a.target),
        {"blocked": blocked + sum(conversion(v, a.target) for v in changed), "plain": plain},
    )
    return way == "plain"


def conversion(value: Value, target: Target) -> float:
    """Cycles of changing the layout of an image: square tiles through registers."""
    elements = prod(as_int(d) or 1 for d in value.shape[1:])
    nbytes = 4 * elements
    apart = max(2 * nbytes, target.l1)
    memory = fetch_cycles(nbytes, apart, target) + write_cycles(nbytes, apart, target)
    return Cost(compute=shuffle_cycles(elements, target), memory=memory).cycles


def plain_uses(graph: Graph, blocking: Set[str]) -> dict[Value, bool]:
    """Values that nobody wants blocked, with whether somebody needs them plain at once: through pointwise operators
    they reach only outputs, operators on plain tensors, and convolutions of one pixel whose results are such values.
    `blocking` are the operators that want their inputs blocked."""
    fixed, ends = set(graph.params), set(graph.outputs)
    for node in graph.nodes:
        if all(v in fixed for v in node.inputs if v is not None):
            fixed.update(node.outputs)
    users = graph.consumers()
    found: dict[Value, bool] = {}

    def use(value: Value, user: Node) -> bool | None:
        """Whether plain is needed; None if blocked is wanted."""
        if user.op == "conv" and user.attr("groups", 1) == 1 and user.inputs[0] is value and is_pointwise(user):
            return False if user.output in found else None
        if user.op in blocking:
            return None
        if ops.get(user.op).kind == "pointwise":
            alone = all(v is None or v is value or v in fixed for v in user.inputs)
            return found.get(user.outputs[0]) if alone else None
        return True

    for node in reversed(graph.nodes):
        for value in node.outputs:
            uses = [use(value, user) for user in users.get(value, [])]
            if None not in uses:
                found[value] = value in ends or any(uses)
    return found
