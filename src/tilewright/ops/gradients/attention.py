"""The gradient of the operator `attention`, which a learning step contains if it was fused before differentiation
(`train/rewritten.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import as_int, is_const
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, dims
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.lowered.attention import ORDERS, AttentionAttrs

Result = Sequence[Value | None]


@gradient("lowered.attention")
def attention(b: Backward) -> Result:
    """The gradients by queries, keys and values, by one operator that recomputes the scores. Mask and scale get no
    gradient: attention is only fused before differentiation where they need none."""
    attrs = b.of(AttentionAttrs)
    mask = b.x(3) if b.has(3) else None
    inputs = (*(b.x(k) for k in range(3)), b.g, *(() if mask is None else (mask,)))
    if _side_by_side(b, attrs):
        (columns,) = b.emit_all("attention_gradient", *inputs, **attrs.scores, joined=True)
        return [b.emit("reshape", columns, shape=b.x(0).shape), None, None]
    flows = b.emit_all("attention_gradient", *inputs, **attrs.scores)
    parts: dict[Value, list[tuple[int, Value]]] = {}  # q, k and v may be heads of one array
    for k, flow in enumerate(flows):
        parts.setdefault(b.x(k), []).append((k, flow))
    results: list[Value | None] = [None, None, None]
    for value, flowing in parts.items():
        results[flowing[0][0]] = _whole(b, value, flowing, attrs)
    return results


def _side_by_side(b: Backward, attrs: AttentionAttrs) -> bool:
    """Whether queries, keys and values are one array's heads, in this order and each used once, for each sequence
    position."""
    q, k, v = (b.x(n) for n in range(3))
    one = q == k == v and attrs.order[:3] == "sss" and as_int(q.shape[2]) == attrs.heads + 2 * attrs.groups
    return one and attrs.first == (0, attrs.heads, attrs.heads + attrs.groups)


def _whole(b: Backward, value: Value, flows: Sequence[tuple[int, Value]], attrs: AttentionAttrs) -> Value:
    """The gradient of `value`, an operand of attention, from the gradients `flows` of the inputs that read it, (number
    of the input, gradient): zeros for heads that no input uses, sums for heads that several inputs use."""
    first, (order, *others) = flows[0][0], dict.fromkeys(attrs.order[k] for k, _ in flows)
    assert not others, first  # one array lies in one order
    axis = ORDERS[order][2]
    at, total = 0, as_int(value.shape[axis])
    ordered = sorted(flows, key=lambda flow: attrs.first[flow[0]])
    pieces: list[Value] = []
    for k, flow in ordered:
        if attrs.first[k] != at:
            break
        pieces.append(flow)
        at += as_int(flow.shape[axis]) or 0
    if at == total and len(pieces) == len(flows):  # each head once
        return pieces[0] if len(pieces) == 1 else b.emit("concat", *pieces, axis=axis)
    results = [_padded(b, flow, axis, attrs.first[k], value) for k, flow in ordered]
    total_flow = results[0]
    for flow in results[1:]:
        total_flow = b.add(total_flow, flow)
    return total_flow


def _padded(b: Backward, flow: Value, axis: int, before: int, value: Value) -> Value:
    """The gradient of `value` from the gradient `flow` of its elements from number `before` on along `axis`, padded
    with zeros for the other elements."""
    after = dims([value.shape[axis] - before - flow.shape[axis]])[0]

    def zeros(count: object) -> list[Value]:
        shape = dims([count if k == axis else d for k, d in enumerate(value.shape)])
        return [] if is_const(dim(count), 0) else [b.zeros(shape, flow)]

    pieces = [*zeros(before), flow, *zeros(after)]
    return b.emit("concat", *pieces, axis=axis) if len(pieces) > 1 else flow
