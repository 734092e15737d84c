"""Groups that are lowered once for many compiles of one model, as a tuner makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tilewright import ops
from tilewright.transform.call import KernelCall
from tilewright.transform.graph.fuse import Group
from tilewright.transform.lower import lower_group

Lowered = dict[object, KernelCall]
"""What was lowered, by all that it depends on."""
MOST = 2048
"""Groups that are remembered: ten times those of ResNet-50."""
_known: ContextVar[Lowered | None] = ContextVar("lowered groups", default=None)


@contextmanager
def remembering(known: Lowered) -> Iterator[None]:
    """Within it groups of the same nodes under the same name are lowered once, in one compile or another. A tuner's
    compiles of ResNet-50, in which few kernels differ from those of the last one, take half the time (1.0 to 1.3 s of
    the processor without it, 0.5 to 0.9 with it; Zen 4, beside other work, 2026-11-26)."""
    token = _known.set(known)
    try:
        yield
    finally:
        _known.reset(token)


def lower_once(group: Group, name: str) -> KernelCall:
    """`lower_group`, or what it made of an equal group where that is remembered."""
    known = _known.get()
    if known is None:
        return lower_group(group, name)
    content = (group, name, tuple(ops.get(node.op) for node in group.nodes))
    found = known.get(content)
    if found is None:
        if len(known) >= MOST:
            known.clear()
        found = known[content] = lower_group(group, name)
    return found


__all__ = ["Lowered", "lower_once", "remembering"]
