"""Decide where maps stay NCHW: which values no node needs in channel blocks, and the cost of changing a layout."""

from __future__ import annotations

from collections.abc import Set
from math import prod

from tilewright import ops
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.plans.convolution.tiles import side
from tilewright.plans.framework.cost import Cost, fetch_cycles, write_cycles
from tilewright.plans.idioms.tile_axes import shuffle_cycles
from tilewright.targets.target import Target
from tilewright.transform.graph.fixed import fixed_values
from tilewright.transform.problems import is_pointwise


def conversion(value: Value, target: Target) -> float:
    """The estimated cycles of changing the layout of a map for one image: square tiles are transposed in registers."""
    elements = prod(side(d) for d in value.shape[1:])
    nbytes = 4 * elements
    separate = max(2 * nbytes, target.l1)
    memory = fetch_cycles(nbytes, separate, target) + write_cycles(nbytes, separate, target)
    return Cost(compute=shuffle_cycles(elements, target), memory=memory).cycles


def row_major_uses(graph: Graph, blocking: Set[str]) -> dict[Value, bool]:
    """For each value that no node needs in channel blocks, whether some reader needs it as NCHW. Such a value reaches
    only outputs, operators on NCHW tensors, and 1x1 convolutions whose results are such values, directly or through
    pointwise operators. `blocking` are the operators that are faster with blocked inputs."""
    fixed, ends = fixed_values(graph), set(graph.outputs)
    users = graph.consumers()
    result: dict[Value, bool] = {}

    def use(value: Value, user: Node) -> bool | None:
        """Whether `user` needs the value as NCHW; None if it is faster with a blocked one."""
        if user.op == "conv" and user.of(ConvAttrs).groups == 1 and user.inputs[0] is value and is_pointwise(user):
            return False if user.output in result else None
        if user.op in blocking:
            return None
        if ops.get(user.op).kind == "pointwise":
            alone = all(v is None or v is value or v in fixed for v in user.inputs)
            return result.get(user.outputs[0]) if alone else None
        return True

    for node in reversed(graph.nodes):
        for value in node.outputs:
            uses = [use(value, user) for user in users.get(value, [])]
            if None not in uses:
                result[value] = value in ends or any(uses)
    return result
