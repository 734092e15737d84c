"""A constant array is data: the code that reads it does not grow with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import assert_same, check
from tilewright import ops
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Op
from tilewright.ir.graph import Graph
from tilewright.ir.rewrite import walk_expr
from tilewright.transform.graph import extra
from tilewright.transform.graph.extra import GraphPass
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.rewrite import Rule, rewrite

RNG = np.random.default_rng(11)


def table(kind: str, *shape: int) -> Any:
    """Numbers of a type that follow no rule."""
    low, high = (0, 2) if kind == "bool" else (0, 8) if kind.startswith("u") else (-7, 8)
    return RNG.integers(low, high, shape).astype(dtype(kind).numpy)


def compiled(array: Any) -> tw.Model:
    """A model that gives `array` where its input is not 0, and 0 elsewhere. A pass puts the array there when the
    constants of models have become parameters already."""

    def with_constant(graph: Graph, target: object) -> Graph:
        def selected(m: Any) -> Any:
            values = [m.emit("constant", value=ConstantArray(a)) for a in (array, array.dtype.type(0))]
            return m.emit("select", m["x"], *values)

        return rewrite(graph, [Rule(op("cast", "x"), selected)])

    extra.register(GraphPass("mine", with_constant, ("before", "tabulate")))
    kind, shape = dtype(array.dtype).name, ", ".join(map(str, array.shape))
    text = f"graph @g(%x: bool[n, {shape}]) where n in 0.. {{\n%y = cast(%x) {{dtype = {kind}}} : {kind}[n, {shape}]\n"
    try:
        return tw.compile((ops.parse_graph(text + "return %y\n}"), {}))
    finally:
        extra.unregister("mine")


@pytest.mark.daily(4)
@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16", "i64", "i8", "u8", "i4", "bool"])
@pytest.mark.parametrize("shape", [(3,), (5, 67)], ids=str)
def test_tables_are_read(kind: str, shape: tuple[int, ...]) -> None:
    array = table(kind, *shape)
    check("constant", value=ConstantArray(array))
    model = compiled(array)
    chosen = RNG.integers(0, 2, (3, *shape)).astype(bool)
    assert_same(model(chosen), np.where(chosen, array, array.dtype.type(0)))


def test_code_has_one_size() -> None:
    """The expression has no selects, and the code a table and as many lines for 4,096 elements as for 512."""
    sizes = {}
    for count in (512, 4096):
        array = table("f32", count)
        attrs = ops.attributes("constant", {"value": ConstantArray(array)})
        (tensor,) = ops.get("constant").compute([], attrs, ops.get("constant").infer([], attrs))  # type: ignore[misc]
        calls = [e for e in walk_expr(tensor.op.bodies[0]) if isinstance(e, Op)]
        assert [e.name for e in calls] == ["lookup"], "one entry of a table, whatever its size"
        sizes[count] = compiled(array).show("llvm").count("\n")
    assert sizes[512] == sizes[4096]
