"""Attention's gradient: its stages and its loops in the interpreter, and native code, against NumPy in double
precision. That the formula is the derivative of attention is told by central differences in tests/train.

Tolerance: 4e-6 of each gradient's scale in f32: two products, one after the other, of up to 150 terms each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import by_expression, reference, type_of
from tilewright import ops
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.expr import as_int
from tilewright.ir.graph import GraphBuilder
from tilewright.ir.loops import PrimFunc
from tilewright.ops.lowered.attention import ORDERS
from tilewright.plans.framework.decisions import deciding
from tilewright.schedule.schedule import Schedule
from tilewright.support.errors import ScheduleError, ShapeError
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import Group
from tilewright.transform.lower import lower_group

RNG = np.random.default_rng(0)
TOLERANCE = 4e-6
OP = "attention_gradient"


def attributes(**arguments: Any) -> dict[str, Any]:
    ordinary = {"order": "ssss", "heads": 2, "groups": 2, "first": (0, 0, 0), "scale": 0.25, "causal": False}
    return {**ordinary, "fill": 0.0, "guard": False, **arguments}


def operands(
    rows: int,
    keys: int,
    depth: int = 16,
    out: int = 16,
    batch: int = 2,
    held: tuple[int, int, int] = (2, 2, 2),
    **arguments: Any,
) -> tuple[list[Any], dict[str, Any]]:
    """q, k, v and g, of arrays that have so many heads each, with the attributes."""
    attrs = attributes(**arguments)
    shapes = [(rows, held[0], depth), (keys, held[1], depth), (keys, held[2], out), (rows, attrs["heads"], out)]
    arrays = []
    for letter, (length, heads, width) in zip(attrs["order"], shapes, strict=True):
        sizes = (batch, length, heads, width)
        arrays.append(RNG.standard_normal([sizes[k] for k in ORDERS[letter]]).astype(np.float32))
    return arrays, attrs


def chosen(rows: int, keys: int, none: bool = False) -> np.ndarray:
    """A mask that selects; with `none`, a row sees nothing."""
    mask = RNG.random((2, 1, rows, keys)) < 0.6
    mask[..., 0] = True
    if none:
        mask[0, 0, 1] = False
    return mask


def added(rows: int, keys: int) -> np.ndarray:
    return RNG.standard_normal((1, rows, keys)).astype(np.float32)


FORMS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "one of each": operands(1, 1),
    "whole tiles": operands(64, 64),
    "whole tiles of whole heads": operands(64, 96, 32, 64),
    "rows and keys that divide nothing": operands(29, 37),
    "depths that divide nothing": operands(12, 20, 5, 11),
    "more rows than a block": operands(150, 9),
    "more keys than rows": operands(7, 150),
    "orders": operands(13, 18, order="htst"),
    "heads first": operands(13, 18, order="hhhh"),
    "causal": operands(21, 21, causal=True),
    "causal, rows behind earlier keys": operands(9, 21, causal=True),
    "heads that share keys": operands(10, 12, held=(6, 2, 2), heads=6),
    "some of the heads": operands(10, 12, held=(5, 7, 4), first=(1, 5, 2)),
}


def one_array(rows: int, depth: int, **arguments: Any) -> tuple[list[Any], dict[str, Any]]:
    """q, k and v as the heads of one array, whose gradients stand side by side."""
    (q, *_, g), attrs = operands(rows, rows, depth, depth, held=(6, 6, 6), first=(0, 2, 4), joined=True, **arguments)
    return [q, q, q, g], attrs


FORMS |= {
    "side by side": one_array(13, 7),
    "side by side, in blocks": one_array(12, 16, columns=(12, 16)),
    "in blocks of parts of a sequence": one_array(12, 16, columns=(4, 8)),
    "in blocks of several sequences": one_array(13, 8, columns=(26, 8)),
}


def with_mask(form: tuple[list[Any], dict[str, Any]], mask: np.ndarray) -> tuple[list[Any], dict[str, Any]]:
    return [*form[0], mask], form[1]


FORMS |= {
    "added mask": with_mask(operands(13, 18), added(13, 18)),
    "a number where nothing is seen": with_mask(operands(13, 18, fill=-3.0), chosen(13, 18)),
    "hidden": with_mask(operands(13, 18, fill=float("-inf")), chosen(13, 18)),
    "a row that sees nothing": with_mask(operands(13, 18, fill=float("-inf"), guard=True), chosen(13, 18, True)),
    "a row that sees nothing, others stay": with_mask(
        operands(13, 18, fill=float("-inf"), guard=True, keeps_nan=True), chosen(13, 18, True)
    ),
    "a mask for all rows": with_mask(operands(13, 18, fill=float("-inf")), chosen(1, 18)),
}


def exact(arrays: list[Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
    return reference(OP, [a if a.dtype == bool else a.astype(np.float64) for a in arrays], attrs)


def native(arrays: list[Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
    builder = GraphBuilder("one")
    values = [builder.input(f"x{k}", type_of(a)) for k, a in enumerate(arrays)]
    result = tw.compile((builder.finish(ops.emit(builder, OP, *values, **attrs)), {}))(*arrays)
    return result if isinstance(result, tuple) else (result,)


def assert_close_to(got: Any, want: Any, tolerance: float = TOLERANCE) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(np.abs(b).max(), 1e-3))


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_native(form: tuple[list[Any], dict[str, Any]]) -> None:
    assert_close_to(native(*form), exact(*form))


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", ["rows and keys that divide nothing", "orders", "heads that share keys", "causal"])
def test_expression(name: str) -> None:
    assert_close_to(by_expression(OP, *FORMS[name]), exact(*FORMS[name]))


@pytest.mark.parametrize("name", ["a number where nothing is seen", "a row that sees nothing", "added mask"])
def test_expression_with_a_mask(name: str) -> None:
    assert_close_to(by_expression(OP, *FORMS[name]), exact(*FORMS[name]))


def func_of(arrays: list[Any], attrs: dict[str, Any]) -> PrimFunc:
    builder = GraphBuilder("one")
    values = [builder.input(f"x{k}", type_of(a)) for k, a in enumerate(arrays)]
    graph = builder.finish(ops.emit(builder, OP, *values, **attrs))
    return lower_group(Group(graph.nodes, tuple(values), graph.outputs), OP).func


@pytest.mark.daily(5)
@pytest.mark.costly(2)
@pytest.mark.parametrize("rows,tiles,vectors,side", [(1, 1, 1, 1), (5, 1, 1, 4), (4, 2, 2, 8), (3, 13, 1, 4)])
@pytest.mark.parametrize(
    "name", ["rows and keys that divide nothing", "a row that sees nothing", "depths that divide nothing"]
)
def test_sizes_of_tiles(name: str, rows: int, tiles: int, vectors: int, side: int) -> None:
    """Sizes that the plan would not choose for so little: several blocks or one, tiles that overhang, squares that do
    not divide the depths."""
    arrays, attrs = FORMS[name]
    s = Schedule(func_of(arrays, attrs))
    s.implement(OP, rows=rows, width=vectors * Target.host().lanes(4), tiles=tiles, steps=2, side=side)
    results = [np.ones([as_int(d) for d in p.shape], np.float32) for p in s.func.params[len(arrays) :]]
    tw.build(s)(*arrays, *results)
    assert_close_to(results, exact(arrays, attrs))


def test_loops_in_the_interpreter() -> None:
    arrays, attrs = operands(5, 7, 3, 4, batch=1)
    s = Schedule(func_of(arrays, attrs))
    s.implement(OP, rows=2, width=4, tiles=2, steps=1, side=2)
    results = [np.ones([as_int(d) for d in p.shape], np.float32) for p in s.func.params[len(arrays) :]]
    interpret(s.func, [*arrays, *results])
    assert_close_to(results, exact(arrays, attrs))


def test_gradients_that_do_not_fit_each_other() -> None:
    for form in (operands(5, 5, 8, 6, joined=True), operands(5, 6, joined=True)):
        with pytest.raises(ShapeError, match="side by side"):
            native(*form)
    for columns in ((4, 8), (5, 3)):
        with pytest.raises(ShapeError, match="fill blocks"):
            native(*one_array(5, 8, columns=columns))


def test_the_plan_is_selected() -> None:
    with deciding() as record:
        native(*FORMS["whole tiles"])
    assert [d.selected.label.split()[0] for d in record.decisions if "attention" in d.selected.label] == [OP]


def test_routine_refuses_other_functions() -> None:
    builder = GraphBuilder("one")
    x = builder.input("x", type_of(np.ones((2, 3), np.float32)))
    graph = builder.finish((ops.emit1(builder, "exp", x),))
    s = Schedule(lower_group(Group(graph.nodes, (x,), graph.outputs), "exp").func)
    with pytest.raises(ScheduleError, match="computes attention's gradient"):
        s.implement(OP, rows=2, width=4, tiles=2, steps=1, side=2)


def test_gradient_of_another_shape() -> None:
    arrays, attrs = operands(4, 4)
    with pytest.raises(ShapeError, match="the gradient has another type"):
        native([*arrays[:3], arrays[3][:, :3]], attrs)
