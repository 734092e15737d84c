"""Control flow that is decided when compiling: loops that count, branches with a known index."""

from __future__ import annotations

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.scope import Item
from tilewright.ir.graph import Value
from tilewright.support.errors import UnsupportedError

MAX_ITERATIONS = 4096
"""Iterations of a loop up to which its body is written out."""


@rule("while")
def loop(call: Call) -> list[Item]:
    """A loop whose condition is known in each iteration is written out."""
    condition, body = call.op.regions
    items = list(call.items)
    for _ in range(MAX_ITERATIONS):
        (alive,) = call.walk(condition, items, False)
        if alive.number is None:
            raise UnsupportedError("a loop whose end is computed from the data is not supported")
        if not alive.number:
            return items
        items = call.walk(body, items, False)
    raise UnsupportedError("a loop of so many iterations is not supported", expected=f"at most {MAX_ITERATIONS}")


@rule("case", "if")
def branch(call: Call) -> list[Item]:
    """One of several bodies; where only the data say which, all are computed and the results chosen."""
    regions = call.op.regions
    choice = call.item(0)
    if call.op.name.endswith("if"):
        if choice.number is not None:
            return call.walk(regions[0 if choice.number else 1], [], False)
        yes, no = (call.walk(r, [], False) for r in regions)
        return [_chosen(call, call.near(0), a, b) for a, b in zip(yes, no, strict=True)]
    last = len(regions) - 1
    if choice.number is not None:
        k = int(choice.number)
        return call.walk(regions[k if 0 <= k <= last else last], [], False)
    results = [call.walk(r, [], False) for r in regions]
    found = results[last]
    for k in range(last):
        mine = call.emit("eq", call.near(0), call.like(k, call.near(0)))
        found = [_chosen(call, mine, a, b) for a, b in zip(results[k], found, strict=True)]
    return found


def _chosen(call: Call, condition: Value, a: Item, b: Item) -> Item:
    y = call.emit("select", condition, call.near(a), call.near(b))
    return call.lazy(y, a.shape)
