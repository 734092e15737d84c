"""Lower a group of graph nodes to one unscheduled loop program, whose blocks note the operators that they compute."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tilewright import ops, te
from tilewright.ir.expr import Expr
from tilewright.ir.graph import Node, Value
from tilewright.ir.loops import PrimFunc
from tilewright.ir.notes import Origin
from tilewright.plans.framework.variants import by_size
from tilewright.transform.call import KernelCall
from tilewright.transform.fold_stages import fold_stages
from tilewright.transform.graph.fuse import Group
from tilewright.transform.join import join_dimensions


def lower_group(group: Group, name: str) -> KernelCall:
    """Express every node of `group` as tensor expressions over placeholders and lower them to loops; returns an
    uncompiled call of the function `name`."""
    args = (*group.inputs, *group.outputs)
    nodes = [n for n in group.nodes if n.op != "constant"]
    op = ops.get(nodes[-1].op)
    if op.loops is not None:
        (node,) = nodes
        types = [None if v is None else v.type for v in node.inputs]
        func = op.loops(types, node.attrs, tuple(v.type for v in node.outputs))
        # A value read twice is two parameters, as the function has them.
        present = tuple(v for v in node.inputs if v is not None)
        return KernelCall(replace(func, name=name), (*present, *node.outputs), group.label, group)
    versions = _versions(group.nodes)
    functions = [_function(nodes, group.inputs, args, name) for _, nodes in versions]
    joined = [join_dimensions(func) for func in functions]
    if len({tuple(b.shape for b in func.params) for func in joined}) == 1:  # versions have the same parameters
        functions = joined
    func = (
        functions[0] if len(functions) == 1 else by_size([(v[0], f) for v, f in zip(versions, functions, strict=True)])
    )
    return KernelCall(func, args, group.label, group)


def _versions(nodes: Sequence[Node]) -> tuple[tuple[Expr | None, tuple[Node, ...]], ...]:
    """(condition, nodes) for each version of the nodes: one node among them may have several; (None, nodes) if none
    has."""
    for k, node in enumerate(nodes):
        result = ops.get(node.op).versions
        if result is not None:
            return tuple((v.condition, (*nodes[:k], v.node, *nodes[k + 1 :])) for v in result(node))
    return ((None, tuple(nodes)),)


def _function(nodes: Sequence[Node], inputs: Sequence[Value], args: Sequence[Value], name: str) -> PrimFunc:
    """The unscheduled function `name` that computes `nodes` from `inputs`; its parameters are `args`."""
    tensors: dict[Value, te.Tensor] = {v: te.placeholder(v.shape, v.dtype, identifier(v.name)) for v in inputs}
    origins: dict[te.ComputeOp, Origin] = {}
    for node in nodes:
        computed = _compute(node, tensors)
        # Stages of the nodes before have their origins already.
        for stage in te.all_stages(te.stages_of(computed)):
            assert isinstance(stage, te.ComputeOp), f"{node.op} calls a function from outside"
            origins.setdefault(stage, Origin(node.op, stage.name, node.attrs))
        tensors.update(zip(node.outputs, computed, strict=True))
    return fold_stages(te.create_prim_func([tensors[v] for v in args], name, origins))


def _compute(node: Node, tensors: dict[Value, te.Tensor]) -> tuple[te.Tensor, ...]:
    op = ops.get(node.op)
    assert op.compute is not None, f"{node.op} states neither a tensor expression nor loops"
    inputs = [None if v is None else tensors[v] for v in node.inputs]
    return op.compute(inputs, node.attrs, tuple(v.type for v in node.outputs))


def identifier(name: str) -> str:
    """An identifier of the loop language made from a value's name."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_")[-40:] or "t"
    return text if not text[0].isdigit() else f"t{text}"
