"""Gradients of scatters. The gradient of an element flows to all that were combined there, the element of the data and
its updates, as for a sum, a product or a maximum; overwritten elements get none."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph import Value
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.scatter import ScatterAttrs, ScatterElementsAttrs
from tilewright.support.classes import dataclass

Result = Sequence[Value | None]


@dataclass(frozen=True, slots=True)
class Scatter:
    """Emits the scatter of a node once more, and the gather that reads the elements at its places."""

    b: Backward

    @property
    def _axis(self) -> dict[str, int]:
        attrs = self.b.node.attrs
        return {"axis": attrs.axis} if isinstance(attrs, ScatterElementsAttrs) else {}

    def put(self, data: Value, updates: Value, reduction: str) -> Value:
        return self.b.emit(self.b.node.op, data, self.b.x(1), updates, **self._axis, reduction=reduction)

    def take(self, data: Value) -> Value:
        """For each update, the element of `data` at its place."""
        op = "gather_elements" if self._axis else "gather_nd"
        return self.b.emit(op, data, self.b.x(1), **self._axis)


@gradient("scatter_elements", "scatter_nd")
def scatter(b: Backward) -> Result:
    s, reduction = Scatter(b), b.of(ScatterAttrs).reduction
    by_data, by_updates = {"add": _sum, "none": _overwritten, "mul": _product}.get(reduction, _extreme)(s)
    return [by_data, None, by_updates]


def _sum(s: Scatter) -> tuple[Value, Value]:
    return s.b.g, s.take(s.b.g)


def _overwritten(s: Scatter) -> tuple[Value, Value]:
    b = s.b
    return s.put(b.g, b.zeros(b.x(2).shape, b.g), "none"), s.take(b.g)


def _extreme(s: Scatter) -> tuple[Value, Value]:
    """The gradients by data and updates of a scattered maximum or minimum; equal extremes share evenly."""
    b, selected = s.b, s.take(s.b.y)
    pairs = ((b.x(0), b.y), (b.x(2), selected))
    old, new = (b.emit("cast", b.emit("eq", *pair), dtype=b.g.dtype) for pair in pairs)
    share = b.div(b.g, s.put(old, new, "add"))
    return b.mul(old, share), b.mul(new, s.take(share))


def _product(s: Scatter) -> tuple[Value, Value]:
    """The gradients by data and updates of a scattered product: for each factor the product of the others, computed
    from the product of the factors that are not zero, and 0 where another factor is zero."""
    b, values = s.b, (s.b.x(0), s.b.x(2))
    zero = [b.emit("eq", v, b.like(0, v)) for v in values]
    units = [b.emit("select", z, b.like(1, v), v) for z, v in zip(zero, values, strict=True)]
    flags = [b.emit("cast", z, dtype=b.g.dtype) for z in zero]
    flow, count = b.mul(b.g, s.put(units[0], units[1], "mul")), s.put(flags[0], flags[1], "add")
    results = []
    for unit, flag, there, zeros in zip(units, flags, (flow, s.take(flow)), (count, s.take(count)), strict=True):
        alone = b.emit("eq", zeros, flag)
        results.append(b.emit("select", alone, b.div(there, unit), b.like(0, there)))
    return results[0], results[1]
