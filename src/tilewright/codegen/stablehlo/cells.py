"""The step of an LSTM in StableHLO: slices of its gates, and the arithmetic of its states element by element."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.stablehlo.rules import between, several
from tilewright.codegen.stablehlo.scalars import elementwise
from tilewright.codegen.stablehlo.writer import Ref, Writer
from tilewright.ir.expr import Expr, Var, as_expr
from tilewright.ir.graph import Node
from tilewright.ops.cells import LstmCellAttrs, lstm_states
from tilewright.ops.steps import of_expressions


@several("lstm_cell")
def lstm_cell(w: Writer, node: Node, inputs: Sequence[Ref | None]) -> tuple[Ref, Ref]:
    """The new states h and c [B, H] of gates [steps * B, 4 H], the state's product [B, 4 H] and the state c [B, H], of
    which the last two may be missing."""
    attrs = node.of(LstmCellAttrs)
    gates, product, c = (*inputs, None, None)[:3]
    assert gates is not None
    batch, hidden = node.outputs[0].shape
    first, t = as_expr(attrs.batch) * attrs.step, gates.dtype
    row = between(w, gates, [first, as_expr(0)], [first + batch, hidden * 4], [1, 1], (batch, hidden * 4))
    arguments: dict[Var, Ref] = {}

    def element(name: str, x: Ref) -> Var:
        result = Var(name, t)
        arguments[result] = x
        return result

    def gate(k: int) -> Expr:
        bounds = [as_expr(0), hidden * k], [batch, hidden * (k + 1)]
        value: Expr = element(f"gate{k}", between(w, row, *bounds, [1, 1], (batch, hidden)))
        if product is not None:
            value = value + element(f"product{k}", between(w, product, *bounds, [1, 1], (batch, hidden)))
        return value

    old = None if c is None else element("c", c)
    cells: list[Ref] = []

    def memory(new: Expr) -> Expr:
        cells.append(elementwise(w, new, arguments, (batch, hidden)))
        return element("new", cells[0])

    state, _ = lstm_states(attrs, [gate(k) for k in range(4)], old, of_expressions(t), memory)
    return elementwise(w, state, arguments, (batch, hidden)), cells[0]
