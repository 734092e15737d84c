"""Kernels of `prepare` whose sizes are arguments: one function packs the filters of all convolutions of a kind.

    pack a: f32[64, 64, 3, 3]                pack w: f32[k, c, 3, 3]
    pack b: f32[128, 64, 3, 3]      ->       called on a with k = 64, c = 64, on b with k = 128, c = 64, ...
    pack c: f32[128, 128, 3, 3]

The numbers of filters and channels decide how often loops run, not their bodies. So a function for any number packs
tiles by the same instructions as one for known numbers, plus code for panels and blocks that are not full. It is larger
than one function for known sizes, and smaller than three: it is used if at least so many are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright import ops
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.graph import TensorType, Value
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.transform.call import KernelCall
from tilewright.transform.graph.fuse import Group
from tilewright.transform.remember import lower_once

SHARED_SIZES = 3
"""The least number of different sizes for which one function serves all of them. The function takes 2.1 times as long
to compile as one for known sizes (Winograd's filters; 1.8 for panels of filters; a Zen 3 core, 2026-11-29)."""
LARGEST = 1 << 20
"""The largest number of filters or channels of a convolution that a shared function accepts."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A group whose sizes are arguments.

    group  the group with symbols as sizes
    sizes  the symbols and their values in this call
    """

    group: Group
    sizes: tuple[tuple[Var, int], ...]


def lower_passed(group: Group, passed: Passed | None, name: str) -> KernelCall:
    """The kernel call of a group: of the function over symbols if `passed` has one, else of a function of its own,
    called `name`."""
    if passed is None:
        return lower_once(group, name)
    call = lower_once(passed.group, name)
    own = dict(zip(_ends(passed.group), _ends(group), strict=True))
    return KernelCall(call.func, tuple(own[v] for v in call.args), group.label, group, sizes=passed.sizes)


def passed_sizes(groups: Sequence[Group], target: Target) -> dict[int, Passed]:
    """The `Passed` of each group that shares a function with other groups, by the group's number."""
    kinds: dict[object, dict[int, Passed]] = {}
    for k, group in enumerate(groups):
        passed = _passed(group, target)
        if passed is not None:
            kinds.setdefault(passed.group, {})[k] = passed
    enough = (members for members in kinds.values() if len({p.sizes for p in members.values()}) >= SHARED_SIZES)
    return {k: passed for members in enough for k, passed in members.items()}


def _passed(group: Group, target: Target) -> Passed | None:
    """A group with symbols in place of filters and channels; None if its operator is not one that supports this."""
    channels_of = ops.get(group.nodes[0].op).channels
    if len(group.nodes) != 1 or channels_of is None:
        return None
    node, (weight,) = group.nodes[0], group.inputs
    sizes = [as_int(d) for d in weight.shape]
    known = [n for n in sizes if n is not None]
    if len(known) < len(sizes):
        return None
    filters, channels, *window = known
    # Rows of fewer elements than a tile has are moved otherwise.
    least = -(-(target.lanes(4) + 1) // prod(window))
    divisor = channels_of(node.attrs)
    if not least <= channels <= LARGEST or filters > LARGEST or channels % divisor:
        return None
    k = Var("filters", lo=1, hi=LARGEST)
    c = Var("channels", lo=least, hi=LARGEST, multiple=divisor)
    return Passed(_over(group, (k, c, *map(const, window))), ((k, filters), (c, channels)))


def _over(group: Group, shape: tuple[Expr, ...]) -> Group:
    """A copy of a group of one node with one input, in which the input has the shape `shape` and all values have fixed
    names."""
    (node,), (weight,) = group.nodes, group.inputs
    source = Value("weight", TensorType(weight.dtype, shape))
    (type,) = ops.get(node.op).infer([source.type], node.attrs)
    result = Value("packed", type)
    return Group((replace(node, inputs=(source,), outputs=(result,)),), (source,), (result,))


def _ends(group: Group) -> tuple[Value, ...]:
    return (*group.inputs, *group.outputs)


__all__ = ["Passed", "lower_passed", "passed_sizes"]
