"""Let kernels store codes instead of dequantised numbers; each kernel that reads them dequantises them.

    A: q = cast(round(x / s)); y = cast(q) * s           A: q = cast(round(x / s))
    B: z = softmax(y)                             ->     B: y' = cast(q) * s; z = softmax(y')

Fusion puts everything after a product into its kernel, so that floats go to memory between two quantised layers where
bytes would do. Kernels that only dequantise are removed. This is done if all readers can take in the few operators:
reductions, kernels that only move elements, and epilogues of products. Targets without dot instructions multiply the
numbers, which each product would dequantise many times.

Floats of 16 bits that are widened are such codes on every target: convolutions widen them where they copy their input
into strips or transform its tiles, so that maps between two of them have 16 bits an element.

    A: z = unblock(cast(q) * s)     ->     A: z = cast(unblock(q)) * s

A kernel that exchanges dimensions moves codes. Of a map that is resized along two axes, the kernel for the second axis
recomputes the first, and reads codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright import ops
from tilewright.ir.dtype import FLOATS_OF_16_BITS, DType, i8, u8
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node, Value
from tilewright.schedule.dot_intrinsics import find_dot
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import Group
from tilewright.transform.graph.rematerialize import with_nodes

CODES: tuple[DType, ...] = (u8, i8)
DEQUANTISE = frozenset("cast sub add mul abs neg relu clip".split())
"""The operators of an instruction or two that may compute a number from its code."""
MAX_NODES = 5
"""The largest number of nodes that may compute a number from its code."""
MAX_FUNCTIONS = 12
"""The largest number of nodes between a code and a value that is computed from it by functions such as exp."""
MOVES = frozenset(("lowered.unblock_channels", "lowered.block_channels", "transpose"))
"""Operators that only move elements to other places."""
ANCHORS = frozenset(("lowered.conv_depthwise", "lowered.conv_transposed", "lowered.conv_pointwise_groups"))
"""Contractions whose kernels can include pointwise work on their data."""
OF_F32 = frozenset(("lowered.block_channels",))
"""Operators on layouts that are fast for 32-bit elements only; on narrower ones they took four times as long."""


@dataclass(frozen=True, slots=True)
class _Number:
    """A dequantised value: the code that it is computed from, and the nodes that compute it, in order, with their
    constants."""

    code: Value
    nodes: tuple[Node, ...]

    @property
    def is_dequantised(self) -> bool:
        """Whether the nodes between code and number only dequantise, which costs almost nothing."""
        return all(n.op in DEQUANTISE or n.op in ("constant", "resample") for n in self.nodes)


def store_codes(groups: Sequence[Group], target: Target, outputs: frozenset[Value]) -> list[Group]:
    """The groups, in their order, with codes instead of numbers between them. `outputs`: values that are also read
    outside."""
    multiplies = any(find_dot(t, i8, target) is not None for t in CODES)
    codes = (*FLOATS_OF_16_BITS, *CODES) if multiplies else FLOATS_OF_16_BITS
    results: list[Group | None] = list(groups)
    readers: dict[Value, list[int]] = {}
    for k, group in enumerate(groups):
        for v in group.inputs:
            readers.setdefault(v, []).append(k)
    for k in range(len(groups)):
        known = results[k]
        if known is None:
            continue
        group = _codes_moved(known, codes)
        value = group.outputs[-1]
        if value in outputs or value.dtype in codes or len(group.outputs) != 1 or not readers.get(value):
            continue
        number = _number(group, value, codes)
        if number is None and len(readers[value]) == 1:
            number = _number(group, value, CODES if multiplies else (), functions=True)
        if number is None:
            continue
        changed = {i: _reading(results[i], value, number) for i in readers[value]}
        if any(other is None for other in changed.values()):
            continue
        results[k] = _without(group, value, number)
        for i, other in changed.items():
            results[i] = other
            for v in other.inputs if other is not None else ():
                if i not in readers.setdefault(v, []):
                    readers[v].append(i)
    return [group for group in results if group is not None]


def _number(group: Group, value: Value, kinds: tuple[DType, ...], *, functions: bool = False) -> _Number | None:
    """The code of one of the types `kinds` from which a group computes `value`, with the nodes between; None if there
    is none. With `functions`, functions of many operations may be among them, whose results are worth storing."""
    makers = {v: n for n in group.nodes for v in n.outputs}
    resampled = makers.get(value)
    nodes: set[Value] = set()
    codes: set[Value] = set()
    asked, shape, most = [value], value.shape, MAX_FUNCTIONS if functions else MAX_NODES
    if resampled is not None and resampled.op == "resample" and resampled.inputs[0] is not None:
        nodes.add(value)
        asked, shape = [resampled.inputs[0]], resampled.inputs[0].shape
    while asked:
        v = asked.pop()
        if v in nodes or v in codes:
            continue
        node = makers.get(v)
        if v.dtype in kinds and v.shape == shape:
            codes.add(v)
        elif node is not None and node.op == "constant":
            nodes.add(v)
        elif node is None and as_int(v.type.size) == 1:
            continue
        elif (
            node is not None
            and (node.op in DEQUANTISE or (functions and ops.is_pointwise(node)))
            and len(nodes) < 2 * most
        ):
            nodes.add(v)
            asked += [u for u in node.inputs if u is not None]
        else:
            return None
    order = tuple(n for n in group.nodes if n.outputs[0] in nodes)
    if len(codes) != 1 or sum(n.op != "constant" for n in order) > most:
        return None
    return _Number(codes.pop(), order)


def _codes_moved(group: Group, kinds: tuple[DType, ...]) -> Group:
    """The group with its last operator, which moves elements, applied to codes before they are dequantised; the group
    unchanged if its last operator is another."""
    move = group.nodes[-1]
    source = move.inputs[0] if move.op in MOVES and group.outputs == move.outputs else None
    number = None if source is None else _number(group, source, kinds)
    if number is None or any(n.op == "resample" for n in number.nodes):
        return group
    used = [v for n in group.nodes for v in n.inputs if v is not None]
    inner = {v for n in number.nodes if n.op != "constant" for v in n.outputs}
    if any(used.count(v) != sum(n.inputs.count(v) for n in (*number.nodes, move)) for v in inner):
        return group  # others read the numbers as they were
    shape = move.output.shape

    def moved(v: Value) -> Value:
        return Value(f"{v.name}.moved", replace(v.type, shape=shape, layout=move.output.type.layout))

    code = moved(number.code)
    names = {number.code: code} | {v: move.output if v == source else moved(v) for v in inner}
    own = [replace(move, inputs=(number.code, *move.inputs[1:]), outputs=(code,))]
    own += [
        replace(n, inputs=tuple(v if v is None else names.get(v, v) for v in n.inputs), outputs=(names[n.outputs[0]],))
        for n in number.nodes
        if n.op != "constant"
    ]
    others = [n for n in group.nodes[:-1] if n.outputs[0] not in inner]
    return replace(group, nodes=(*others, *own))


def _reading(group: Group | None, value: Value, number: _Number) -> Group | None:
    """The group that reads the code of a number, `value`, and dequantises it, instead of reading the number; None if
    the group cannot include these nodes."""
    if group is None:
        return None
    result = group.outputs[-1]
    for node in group.nodes:
        if value not in node.inputs:
            continue
        kind, narrow = ops.get(node.op).kind, number.code.dtype in FLOATS_OF_16_BITS
        follows = kind == "pointwise" and node.output.shape == result.shape
        feeds = (node.op in ANCHORS or (narrow and ops.get(node.op).widens)) and node.inputs[0] == value
        if not (follows or feeds or kind in ("reduction", "injective")) or (narrow and node.op in OF_F32):
            return None
        if not (follows or number.is_dequantised):
            return None
        if ops.is_alias(node):
            return None
    return with_nodes(group, value, number.nodes)


def _without(group: Group, value: Value, number: _Number) -> Group | None:
    """The group whose last result is `number.code`, the code from which `value` is dequantised, without the nodes that
    dequantise it; None if the group does not compute the code."""
    makers = {v for n in group.nodes for v in n.outputs}
    if number.code not in makers:
        return None
    end = next(k for k, n in enumerate(group.nodes) if number.code in n.outputs)
    needed = {number.code}
    nodes: list[Node] = []
    for node in reversed(group.nodes[: end + 1]):
        if any(v in needed for v in node.outputs):
            nodes.insert(0, node)
            needed |= {v for v in node.inputs if v is not None}
    return replace(
        group, nodes=tuple(nodes), inputs=tuple(v for v in group.inputs if v in needed), outputs=(number.code,)
    )
