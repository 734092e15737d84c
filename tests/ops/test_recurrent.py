"""The formulas of cells against their equations in NumPy, written out as textbooks have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.oracle import check, reference, type_of
from tilewright.ir.graph import GraphBuilder
from tilewright.ops import emit
from tilewright.ops.cells import without_cells
from tilewright.ops.interpret import run_graph
from tilewright.ops.recurrent import GRU, LINEAR_GRU, LSTM, RNN, Cell, program, standard
from tilewright.ops.steps import Program

Array = np.ndarray[Any, Any]
TIME, BATCH, H = 3, 2, 4
RNG = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm(x: Array, h: Array, c: Array, r: Array, p: Array, bound: float) -> list[Array]:
    """The new h and c; what the backward pass reads: input, output, forget, cell, the old c, tanh of the new one."""
    input_, output, forget, cell = np.split(x + h @ r, 4, axis=1)
    to_input, to_output, to_forget = np.split(p, 3)

    def clipped(v: Array) -> Array:
        return np.clip(v, -bound, bound)

    i, f = sigmoid(clipped(input_ + to_input * c)), sigmoid(clipped(forget + to_forget * c))
    g = np.tanh(clipped(cell))
    new = f * c + i * g
    o = sigmoid(clipped(output + to_output * new))
    return [o * np.tanh(new), new, i, o, f, g, c, np.tanh(new)]


def gru(x: Array, h: Array, r: Array, bias: Array, linear: bool) -> list[Array]:
    """The new h, and update, reset, candidate and the product that reset scales."""
    (zx, rx, nx), (zr, rr, nr) = np.split(x, 3, axis=1), np.split(r, 3, axis=1)
    z, reset = sigmoid(zx + h @ zr), sigmoid(rx + h @ rr)
    product = h @ nr + bias
    n = np.tanh(nx + (reset * product if linear else (reset * h) @ nr))
    return [(1 - z) * n + z * h, z, reset, n, product]


@pytest.mark.parametrize("bound", [0.6, 100.0])
def test_lstm(bound: float) -> None:
    x, r, h, c, p = normal(TIME, BATCH, 4 * H), normal(H, 4 * H), normal(BATCH, H), normal(BATCH, H), normal(3 * H)
    attrs = {"cell": "lstm", "activations": standard("lstm"), "clip": bound, "keeps": True}
    y, last, cell, retained = reference("recurrence", [x, r, h, c, None, p], attrs)
    for t in range(TIME):
        h, c, *parts = lstm(x[t], h, c, r, p, bound)
        np.testing.assert_allclose(y[t], h, rtol=1e-12)
        np.testing.assert_allclose(retained[t], parts, rtol=1e-12)
    np.testing.assert_allclose((last, cell), (h, c), rtol=1e-12)


@pytest.mark.parametrize("linear", [False, True])
def test_gru(linear: bool) -> None:
    x, r, h, bias = normal(TIME, BATCH, 3 * H), normal(H, 3 * H), normal(BATCH, H), normal(H) * linear
    attrs = {"cell": "gru", "activations": standard("gru"), "linear_before_reset": linear, "keeps": linear}
    y, last, *retained = reference("recurrence", [x, r, h, None, None, None, bias if linear else None], attrs)
    for t in range(TIME):
        h, *parts = gru(x[t], h, r, bias, linear)
        np.testing.assert_allclose(y[t], h, rtol=1e-12)
        for stored in retained:
            np.testing.assert_allclose(stored[t], parts, rtol=1e-12)
    np.testing.assert_allclose(last, h, rtol=1e-12)


def test_rnn() -> None:
    x, r, h = normal(TIME, BATCH, H), normal(H, H), normal(BATCH, H)
    y, _ = reference("recurrence", [x, r, h], {"cell": "rnn", "activations": standard("rnn"), "reverse": True})
    for t in range(TIME)[::-1]:
        h = np.tanh(x[t] + h @ r)
        np.testing.assert_allclose(y[t], h, rtol=1e-12)


@pytest.mark.parametrize("absent", [(), (1,), (2,), (1, 2)])
def test_a_step_with_and_without_states(absent: tuple[int, ...]) -> None:
    """One step as an operator, and as the operators that exporters write."""
    inputs = [normal(3 * BATCH, 4 * H), normal(BATCH, 4 * H), normal(BATCH, H)]
    arrays: list[Array | None] = [None if k in absent else a for k, a in enumerate(inputs)]
    product, c = (0 * a if k in absent else a for k, a in zip((1, 2), inputs[1:], strict=True))
    h, new, *_ = lstm(inputs[0][BATCH : 2 * BATCH], product, c, np.eye(4 * H), np.zeros(3 * H), 0.9)
    attrs: dict[str, Any] = {"batch": BATCH, "step": 1, "activations": standard("lstm"), "clip": 0.9}
    np.testing.assert_allclose(check("lstm_cell", *arrays, **attrs), (h, new), rtol=1e-12)
    b = GraphBuilder("step")
    values = [None if a is None else b.input(f"x{k}", type_of(a)) for k, a in enumerate(arrays)]
    graph = b.finish(emit(b, "lstm_cell", *values, names=("h", "c"), **attrs))
    written = without_cells(graph)
    assert written.outputs == graph.outputs and all(n.op != "lstm_cell" for n in written.nodes)
    result = run_graph(written, {f"x{k}": a for k, a in enumerate(arrays) if a is not None})
    np.testing.assert_allclose((result["h"], result["c"]), (h, new), rtol=1e-12)


@pytest.mark.parametrize("cell", [LSTM, GRU, LINEAR_GRU, RNN])
def test_a_state_is_not_read_once_it_is_assigned(cell: Cell) -> None:
    """Loops store c where it is assigned: after that, values that were computed of the old one are gone."""
    steps: Program = program(cell, tuple((name, ()) for name in cell.functions))
    for state, result in enumerate(steps.results[1:], steps.shares + 1):
        old = {state}
        for number, (_, operands, _) in enumerate(steps.steps, steps.arguments):
            assert number <= result or not old & set(operands)
            if number < result and old & set(operands):
                old.add(number)
