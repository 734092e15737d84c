"""Lower equal groups once: those of a network's equal layers, and those of repeated compiles of one model by a
tuner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from tilewright import ops
from tilewright.ir.graph import Value
from tilewright.transform.call import KernelCall
from tilewright.transform.graph.fuse import Group
from tilewright.transform.lower import lower_group

Lowered = dict[object, KernelCall]
"""Lowered functions, by keys of all that they depend on."""
MAX_GROUPS = 2048
"""The largest number of groups whose lowered functions are remembered: ten times those of ResNet-50."""
_known: ContextVar[Lowered | None] = ContextVar("lowered groups", default=None)


@contextmanager
def remembering(known: Lowered | None = None) -> Iterator[None]:
    """Inside this `with` block, groups that are equal up to names are lowered once, over all compiles that share
    `known`; without `known`, in this block or in an enclosing one. A tuner's compiles of ResNet-50, in which few
    kernels differ from those of the last one, take half the time (1.0 to 1.3 s of the processor without it, 0.5 to 0.9
    with it; Zen 4, beside other work, 2026-11-26)."""
    enclosing = _known.get()
    token = _known.set(known if known is not None else {} if enclosing is None else enclosing)
    try:
        yield
    finally:
        _known.reset(token)


def lower_once(group: Group, name: str) -> KernelCall:
    """The kernel of a group of nodes by `lower_group`, or the remembered one of an equal group, whose function is then
    reused: its parameters have the names in that group."""
    known = _known.get()
    if known is None:
        return lower_group(group, name)
    values = _values(group)
    content = (_structure(group, values), tuple(ops.get(node.op) for node in group.nodes))
    entry = known.get(content)
    if entry is None:
        if len(known) >= MAX_GROUPS:
            known.clear()
        entry = known[content] = lower_group(group, name)
        return entry
    func = entry.func if entry.func.name == name else replace(entry.func, name=name)
    if entry.group == group:
        return entry if func is entry.func else replace(entry, func=func)
    own = dict(zip(_values(entry.group), values, strict=True))
    return KernelCall(func, tuple(own[v] for v in entry.args), group.label, group)


def _values(group: Group) -> dict[Value, int]:
    """The values of a group, numbered by first appearance."""
    result: dict[Value, int] = {}
    for values in (group.inputs, *((*node.inputs, *node.outputs) for node in group.nodes), group.outputs):
        for value in values:
            if value is not None:
                result.setdefault(value, len(result))
    return result


def _structure(group: Group, values: dict[Value, int]) -> object:
    """A key of a group that does not depend on the names of its values."""
    nodes = tuple(
        (
            node.op,
            tuple(None if v is None else values[v] for v in node.inputs),
            tuple(values[v] for v in node.outputs),
            node.attrs,
            repr(node.attrs),  # 0.0 equals -0.0, and 1 True
            node.selected,
        )
        for node in group.nodes
    )
    ends = tuple(values[v] for v in group.inputs), tuple(values[v] for v in group.outputs)
    return nodes, ends, tuple(v.type for v in values)


__all__ = ["Lowered", "lower_once", "remembering"]
