"""Recurrent layers with packed weights: all cells, tiles, borders of panels and batches, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Var, as_expr
from tilewright.ir.graph import GraphBuilder, TensorType, Value
from tilewright.ops.recurrent import cell as formula
from tilewright.support.errors import ShapeError
from tilewright.targets.target import Target
from tilewright.transform.layout.recurrence import WIDEST, recurrent_tile

SIGMOID, TANH = ("sigmoid", ()), ("tanh", ())
FUNCTIONS = {"lstm": (SIGMOID, TANH, TANH), "gru": (SIGMOID, TANH), "rnn": (TANH,)}


class Layer:
    """A recurrence with random operands; `symbolic` dimensions are (time, batch)."""

    def __init__(
        self,
        cell: str,
        time: int,
        batch: int,
        hidden: int,
        kind: str = "float32",
        *,
        lengths: bool = False,
        **attrs: Any,
    ) -> None:
        rng = np.random.default_rng(time * 100 + batch)
        width = len(formula(cell).gates) * hidden

        def random(*shape: int) -> Any:
            return rng.standard_normal(shape).astype(kind)

        self.attrs = {"cell": cell, "activations": FUNCTIONS[cell], **attrs}
        linear = attrs.get("linear_before_reset")
        self.arrays: list[Any] = [
            random(time, batch, width),
            random(hidden, width) / np.sqrt(hidden).astype(kind),
            random(batch, hidden),
            random(batch, hidden) if cell == "lstm" else None,
            rng.integers(0, time + 1, batch) if lengths else None,
            random(3 * hidden) if cell == "lstm" and attrs.get("clip") else None,
            random(hidden) if linear else None,
        ]

    def check(self, *, threads: int = 1, symbolic: bool = False, target: Target | None = None) -> None:
        want = ops.get("recurrence").reference(self.arrays, ops.attributes("recurrence", self.attrs))
        b = GraphBuilder("layer")
        time, batch = (Var("t", lo=1), Var("b", lo=1)) if symbolic else self.arrays[0].shape[:2]
        shapes = [
            (time, batch, self.arrays[0].shape[2]),
            self.arrays[1].shape,
            *[(batch, self.arrays[1].shape[0])] * 2,
            (batch,),
            *(None if a is None else a.shape for a in self.arrays[5:]),
        ]
        values: list[Value | None] = []
        for k, (a, shape) in enumerate(zip(self.arrays, shapes, strict=True)):
            if a is None:
                values.append(None)
                continue
            created = b.param if k in (1, 5, 6) else b.input
            values.append(created(f"x{k}", TensorType(dtype(a.dtype), tuple(as_expr(d) for d in shape or ()))))
        graph = b.finish(ops.emit(b, "recurrence", *values, **self.attrs))
        weights = {f"x{k}": a for k, a in enumerate(self.arrays) if k in (1, 5, 6) and a is not None}
        model = tw.compile((graph, weights), threads=threads, target=target)
        assert "lowered.recurrence" in str(model.show("graph"))
        got = model(*(a for k, a in enumerate(self.arrays) if k not in (1, 5, 6) and a is not None))
        for w, g in zip(want, got, strict=True):
            # Sums of rounded products, then functions whose slopes are at most one; steps add up to some.
            np.testing.assert_allclose(g, w, rtol=0, atol=2e-5 if w.dtype == np.float32 else 1e-12)


CELLS = [("lstm", {}), ("gru", {"linear_before_reset": True}), ("gru", {}), ("rnn", {})]


@pytest.mark.daily(2)
@pytest.mark.parametrize(("cell", "attrs"), CELLS)
def test_any_batch_and_any_width(cell: str, attrs: dict[str, Any]) -> None:
    for time, batch, hidden in ((3, 1, 1), (1, 7, 33), (4, 2, 64), (3, 13, 40), (2, 5, 17)):
        Layer(cell, time, batch, hidden, **attrs).check()


@pytest.mark.parametrize(("cell", "attrs"), CELLS[:2])
def test_what_is_retained_for_the_way_back(cell: str, attrs: dict[str, Any]) -> None:
    for time, batch, hidden in ((3, 1, 1), (1, 7, 33), (3, 13, 40)):
        Layer(cell, time, batch, hidden, keeps=True, **attrs).check()
    Layer(cell, 4, 5, 16, keeps=True, reverse=True, **attrs).check(threads=2)


@pytest.mark.parametrize(("cell", "attrs"), CELLS[2:])
def test_cells_that_keep_nothing_more(cell: str, attrs: dict[str, Any]) -> None:
    with pytest.raises(ShapeError, match="keep more than their states"):
        Layer(cell, 2, 3, 4, keeps=True, **attrs).check()


@pytest.mark.daily(2)
@pytest.mark.parametrize(("cell", "attrs"), CELLS)
def test_lengths_clips_peepholes_and_from_the_end(cell: str, attrs: dict[str, Any]) -> None:
    Layer(cell, 5, 6, 20, lengths=True, reverse=True, clip=0.7, **attrs).check()
    Layer(cell, 4, 9, 24, "float64", lengths=True, **attrs).check()


@pytest.mark.daily(2)
@pytest.mark.parametrize(("cell", "attrs"), CELLS)
def test_unknown_time_and_batch_and_threads(cell: str, attrs: dict[str, Any]) -> None:
    layer = Layer(cell, 3, 11, 24, lengths=True, **attrs)
    layer.check(symbolic=True)
    layer.check(threads=2)
    layer.check(target=Target.on_host("x86-64-v3"))


def test_nothing_to_do() -> None:
    Layer("lstm", 2, 0, 8).check()
    Layer("gru", 0, 3, 8).check()


def test_a_nan_stays_in_its_row() -> None:
    layer = Layer("lstm", 3, 5, 20)
    layer.arrays[0][1, 2, 3] = np.nan
    layer.check()


@pytest.mark.parametrize("name", ["znver4", "x86-64-v3", "neoverse-v1"])
def test_sums_of_a_tile_fit_in_registers(name: str) -> None:
    target = Target.parse(name)
    for gates in (1, 3, 4):
        for batch in range(1, 70):
            tile = recurrent_tile(as_expr(batch), 256, gates, 4, target)
            assert tile.rows * gates * tile.width <= target.registers * 3 // 4 * target.lanes(4)
            assert batch <= tile.rows * tile.tiles < batch + 8
            widest = tile.width >= min(WIDEST * target.lanes(4), 256)
            assert widest or 2 * tile.rows * gates * tile.width > target.registers * 3 // 4 * target.lanes(4)
