"""Gradients through a stage, against differences in f64 on the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.expr import as_int
from tilewright.support.errors import UnsupportedError
from tilewright.te.adjoint import Flow, adjoint

STEP = 1e-5
Array = np.ndarray[Any, Any]


def a(*shape: int) -> Any:
    return te.placeholder(shape, "f64", name="A")


def b(*shape: int) -> Any:
    return te.placeholder(shape, "f64", name="B")


I = te.placeholder((4,), "i64", name="I")
PLACES = np.array([2, 0, 2, 9])
"""Where `I` leads; the last is after what it is asked for, where the nearest is taken."""


def clamped(k: Any, size: int) -> Any:
    return te.maximum(te.minimum(I[k], size - 1), 0)


def product_of_matrices() -> tuple[Any, list[Any]]:
    x, y, k = a(3, 4), b(4, 2), te.reduce_axis(4, "k")
    return te.compute((3, 2), lambda i, j: te.sum(x[i, k] * y[k, j], k), name="Y"), [x, y]


def convolution() -> tuple[Any, list[Any]]:
    x, y, r = a(9), b(3), te.reduce_axis(3, "r")
    return te.compute((4,), lambda h: te.sum(x[h * 2 + r] * y[r], r), name="Y"), [x, y]


def reduced(how: Callable[..., Any], where: bool = False) -> Callable[[], tuple[Any, list[Any]]]:
    def make() -> tuple[Any, list[Any]]:
        x, y, k = a(3, 5), b(5), te.reduce_axis(5, "k")
        arguments = {"where": k <= 3} if where else {}
        return te.compute((3,), lambda i: how(x[i, k] * y[k], k, **arguments), name="Y"), [x, y]

    return make


def triangle() -> tuple[Any, list[Any]]:
    x, k = a(4, 4), te.reduce_axis(4, "k")
    return te.compute((4,), lambda i: te.sum(x[i, k] * x[k, i], k, where=k <= i), name="Y"), [x]


def chosen_by_data() -> tuple[Any, list[Any]]:
    x, y, k = a(3, 5), b(5), te.reduce_axis(5, "k")
    return te.compute((3,), lambda i: te.sum(x[i, k] * x[i, k], k, where=y[k] > 0.0), name="Y"), [x, y]


def product_of_those_chosen() -> tuple[Any, list[Any]]:
    x, y, k = a(3, 4), b(4), te.reduce_axis(4, "k")
    return te.compute((3,), lambda i: te.prod(x[i, k], k, where=y[k] > 0.0), name="Y"), [x, y]


def one_element_several_times() -> tuple[Any, list[Any]]:
    x, k = a(3), te.reduce_axis(7, "k")
    return te.compute((3,), lambda i: te.sum(x[i] * x[i], k), name="Y"), [x]


def all_of_two_axes() -> tuple[Any, list[Any]]:
    x, k, j = a(3, 4), te.reduce_axis(4, "k"), te.reduce_axis(3, "j")
    return te.compute((2,), lambda i: te.sum(x[j, k] * te.cast(i + 1, "f64"), [j, k]), name="Y"), [x]


def outer_product() -> tuple[Any, list[Any]]:
    x, y = a(3), b(4)
    return te.compute((3, 4), lambda i, j: te.exp(x[i]) * y[j] - x[i], name="Y"), [x, y]


def reversed_and_sliced() -> tuple[Any, list[Any]]:
    x = a(4, 6)
    return te.compute((5, 3), lambda i, j: te.if_then_else(j >= 1, x[3 - j, i + 1], x[i // 2, 0]), name="Y"), [x]


def elements_by_places() -> tuple[Any, list[Any]]:
    x, y = a(5), b(4)
    return te.compute((4,), lambda i: x[clamped(i, 5)] * y[i], name="Y"), [x, y]


def rows_by_places() -> tuple[Any, list[Any]]:
    x, k = a(5, 3), te.reduce_axis(3, "k")
    return te.compute((4, 2), lambda i, j: te.sum(x[clamped(i, 5), k] * te.cast(j + 1, "f64"), k), name="Y"), [x]


def parts_of_rows_by_places() -> tuple[Any, list[Any]]:
    x = a(5, 3)
    return te.compute((4, 2), lambda i, j: x[clamped(i, 5), j] * x[clamped(i, 5), j + 1], name="Y"), [x]


def columns_by_places() -> tuple[Any, list[Any]]:
    x = a(3, 5)
    return te.compute((4, 3), lambda i, j: x[j, clamped(i, 5)] * x[j, clamped(i, 5)], name="Y"), [x]


STAGES: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    "sum": reduced(te.sum),
    "sum of some": reduced(te.sum, where=True),
    "prod": reduced(te.prod),
    "prod of some": reduced(te.prod, where=True),
    "max": reduced(te.max),
    "max of some": reduced(te.max, where=True),
    "min": reduced(te.min),
    **{
        f.__name__: f
        for f in (
            product_of_matrices, convolution, triangle, chosen_by_data, product_of_those_chosen,
            one_element_several_times, all_of_two_axes, outer_product, reversed_and_sliced, elements_by_places,
            rows_by_places, parts_of_rows_by_places, columns_by_places,
        )
    },
}  # fmt: skip


def values(outputs: Sequence[Any], inputs: Sequence[Any], arrays: Sequence[Array]) -> list[Array]:
    """Stages of inputs in the interpreter."""
    results = [np.zeros([as_int(d) for d in t.shape], t.dtype.numpy) for t in outputs]
    interpret(te.create_prim_func([*inputs, *outputs], "f"), [*(x.copy() for x in arrays), *results])
    return results


def back(flow: Flow, inputs: Sequence[Any], arrays: Sequence[Array]) -> Array:
    """All that flows back to a tensor, updates added where they belong."""
    shape = [as_int(d) or 0 for d in flow.tensor.shape]
    if flow.places is None:
        return values([flow.values], inputs, arrays)[0]
    updates, places = values([flow.values, flow.places], inputs, arrays)
    depth = places.shape[-1]
    total = np.zeros(shape)
    rows = updates.reshape(-1, *shape[depth:])
    for place, row in zip(places.reshape(-1, depth), rows, strict=True):
        total[tuple(place)] += row
    return total


@pytest.mark.parametrize("name", STAGES)
def test_what_flows_back(name: str) -> None:
    result, wanted = STAGES[name]()
    rng = np.random.default_rng(3)
    shape = [as_int(d) or 0 for d in result.shape]
    seed = te.placeholder(shape, "f64", name="seed")
    arrays = [rng.uniform(0.5, 2.0, [as_int(d) for d in t.shape]) * rng.choice([-1, 1]) for t in wanted]
    if name in ("chosen_by_data", "product_of_those_chosen"):
        arrays[1] *= np.resize([1.0, -1.0], arrays[1].shape)
    if name.startswith("prod"):
        arrays[0][0, 1] = 0.0
    uses_places = "places" in name
    inputs, arguments = [*wanted, *[I] * uses_places], [*arrays, *[PLACES] * uses_places]
    flowing = rng.standard_normal(shape)
    got = [np.zeros_like(x) for x in arrays]
    for flow in adjoint(result, seed, wanted):
        which = [t is flow.tensor for t in wanted].index(True)
        assert (flow.places is not None) == (uses_places and which == 0)
        got[which] += back(flow, [*inputs, seed], [*arguments, flowing])
    for which, x in enumerate(arrays):
        for at in np.ndindex(x.shape):
            ends = []
            for sign in (1, -1):
                moved = x.copy()
                moved[at] += sign * STEP
                ends.append(values([result], inputs, [*arguments[:which], moved, *arguments[which + 1 :]])[0])
            slope = float((flowing * (ends[0] - ends[1])).sum()) / (2 * STEP)
            assert got[which][at] == pytest.approx(slope, rel=1e-6, abs=1e-7), (which, at)


def test_equal_extrema_share() -> None:
    x, k = a(2, 4), te.reduce_axis(4, "k")
    top = te.compute((2,), lambda i: te.max(x[i, k], k), name="Y")
    seed = te.placeholder((2,), "f64", name="seed")
    (flow,) = adjoint(top, seed, [x])
    rows = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    np.testing.assert_array_equal(back(flow, [x, seed], [rows, np.array([2.0, 4.0])]), [[0, 1, 1, 0], [1, 1, 1, 1]])


def test_sixteen_bits_flow_back_in_f32() -> None:
    x, y = (te.placeholder((8,), "f16", name=n) for n in "AB")
    z = te.compute((8,), lambda i: x[i] * y[i], name="Y")
    seed = te.placeholder((8,), "f16", name="seed")
    assert [(f.tensor is t, f.values.dtype.name) for f, t in zip(adjoint(z, seed, [x, y]), (x, y), strict=True)] == [
        (True, "f32"),
        (True, "f32"),
    ]


def test_only_what_is_asked_for_and_can_be_asked() -> None:
    x, y = a(4), b(4)
    z = te.compute((4,), lambda i: x[i] * y[i] + te.cast(I[i], "f64"), name="Y")
    seed = te.placeholder((4,), "f64", name="seed")
    assert [f.tensor.name for f in adjoint(z, seed, [y, I])] == ["B"] and adjoint(z, seed, []) == []


def test_what_has_no_gradient() -> None:
    x, k = a(4, 4), te.reduce_axis(4, "k")
    p, _ = te.compute((4, 4), lambda i, j: (x[i, j], x[j, i]), name="P")
    own = te.comm_reducer(lambda u, v: u * 0.5 + v, lambda t: te.const(0, t), "own")
    r = te.compute((4,), lambda i: own(x[i, k], k), name="R")
    other = te.comm_reducer(lambda u, v: u + v, lambda t: te.const(1, t), "from one")
    s = te.compute((4,), lambda i: other(x[i, k], k), name="S")
    for stage, message in ((p, "several results"), (r, "own has no gradient"), (s, "from one has no gradient")):
        seed = te.placeholder(stage.shape, "f64", name="seed")
        with pytest.raises(UnsupportedError, match=message):
            adjoint(stage, seed, [x])
