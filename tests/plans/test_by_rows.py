"""Products of symbolic rows that keep their weights twice: when each way is taken, and that both are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import check
from tests.transform.graph.graphs import tensor
from tilewright import ops
from tilewright.arith import simplify
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ir.rewrite import substitute
from tilewright.ir.selection import Packed, StrassenByRows
from tilewright.ops.lowered.by_rows import versions
from tilewright.plans.framework.cost import Cost
from tilewright.plans.framework.decisions import deciding
from tilewright.plans.matmul.tiles import Product
from tilewright.targets.target import Target
from tilewright.transform.graph.options import Options
from tilewright.transform.layout.assign import assign_layouts
from tilewright.transform.select import choose, product
from tilewright.transform.select.choose import choose_algorithms

LIKELY = (6, 10, 20, 40, 60)


def layer(rows: Var, depth: int, columns: int, turned: bool = False) -> Graph:
    """A product of the rows of one sequence with bias, skip and ReLU."""
    b = GraphBuilder("layer")
    x, skip = b.input("x", tensor(1, rows, depth)), b.input("skip", tensor(1, rows, columns))
    w = b.param("w", tensor(*((columns, depth) if turned else (depth, columns))))
    y = ops.emit1(b, "matmul", x, w, transpose_b=turned)
    y = ops.emit1(b, "add", ops.emit1(b, "add", y, b.param("bias", tensor(columns))), skip)
    return b.finish((ops.emit1(b, "relu", y),))


def operators(graph: Graph, target: Target, fast: str = "strassen") -> list[str]:
    return [node.op for node in assign_layouts(choose_algorithms(graph, target, Options(fast=fast)), target).nodes]


def pays_for(monkeypatch: pytest.MonkeyPatch, least: int, most: int, gain: float = 2.0) -> None:
    """Let the estimate say that Strassen's method takes 1 / `gain` of the time for these numbers of rows."""

    def compared(product: Product, *_: Any) -> tuple[Cost, Cost]:
        plain = float(product.rows)
        return Cost(compute=plain), Cost(compute=plain / gain if least <= product.rows <= most else 2 * plain)

    monkeypatch.setattr(product, "compared", compared)


def test_it_is_taken_where_it_gains_over_all_likely_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    target, rows = Target.parse("znver4"), Var("n", lo=1, hi=100, likely=LIKELY)
    pays_for(monkeypatch, 15, 50)
    (node,) = (n for n in choose_algorithms(layer(rows, 64, 64), target, Options(fast="strassen")).nodes if n.algorithm)
    assert isinstance(node.algorithm, StrassenByRows)
    least, most = node.algorithm.rows  # of the likely numbers those of 20 and 40, and what lies around them
    assert 15 <= least <= 18 and 45 <= most <= 50
    assert "lowered.matmul_by_rows" in operators(layer(rows, 64, 64), target)
    for fast in ("exact", "auto", "f4"):  # without a norm before it rows may be anybody's
        assert "lowered.matmul_by_rows" not in operators(layer(rows, 64, 64), target, fast)
    pays_for(monkeypatch, 15, 50, gain=1.08)  # of 60 rows in 136 one in thirteen: less than two layouts are worth
    assert "lowered.matmul_by_rows" not in operators(layer(rows, 64, 64), target)
    pays_for(monkeypatch, 101, 200)
    assert "lowered.matmul_by_rows" not in operators(layer(rows, 64, 64), target)


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 40, 41, 99])
def test_the_range_says_which_way_a_call_goes(rows: int) -> None:
    n = Var("n", lo=1, hi=100)
    b = GraphBuilder("g")
    x, w, sums = b.input("x", tensor(n, 8)), b.param("w", tensor(1, 8, 16)), b.param("s", tensor(1, 7, 4, 8))
    y = ops.emit1(b, "lowered.matmul_by_rows", x, w, sums, columns=16, least=16, most=40)
    fast, plain = versions(b.finish((y,)).nodes[-1])
    assert fast.condition is not None and plain.condition is None
    assert fast.node.inputs == (x, sums) and plain.node.inputs == (x, w)
    assert (fast.node.op, plain.node.op) == ("lowered.matmul_strassen", "lowered.matmul_packed")
    numbers: dict[Var, Expr] = {n: const(rows)}
    assert bool(as_int(simplify(substitute(fast.condition, numbers)))) == (16 <= rows <= 40)


def test_expression_and_reference_are_those_of_the_product() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 10, (1, 5, 8)).astype(np.float32), rng.integers(-9, 10, (2, 8, 4)).astype(np.float32)
    sums = np.zeros((1, 7, 4, 4), np.float32)
    (got,) = check("lowered.matmul_by_rows", x, w, sums, columns=7, least=2, most=9)
    np.testing.assert_array_equal(got, (x @ w.transpose(1, 0, 2).reshape(8, 8))[..., :7])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["host", "x86-64-v3"])
@pytest.mark.parametrize(("depth", "columns", "turned"), [(48, 64, False), (31, 192, True), (3, 128, False)])
def test_all_numbers_of_rows_are_right_and_weights_stay_live(
    depth: int, columns: int, turned: bool, name: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways are called, new weights reach both layouts, and a saved file has both."""
    target = Target.parse(name)
    if not set(target.features) <= set(Target.host().features):
        pytest.skip("this machine lacks its features")
    monkeypatch.setattr(choose, "product_algorithm", lambda *_: StrassenByRows((9, 70)))
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    graph = layer(Var("n", lo=1, hi=100, likely=LIKELY), depth, columns, turned)
    rng = np.random.default_rng(depth)
    w, bias = rng.standard_normal((depth, columns)).astype(np.float32), rng.standard_normal(columns).astype(np.float32)
    weights = {"w": np.ascontiguousarray(w.T) if turned else w, "bias": bias}
    compiled = tw.compile((graph, weights), target=target, threads=threads)
    assert "lowered.matmul_by_rows" in compiled.show("graph")
    assert "strassen" in compiled.show("schedule") and "contraction" in compiled.show("schedule")
    compiled.save(tmp_path / "layer.tw")
    loaded = tw.load(tmp_path / "layer.tw", threads=threads)
    for factor in (1.0, 2.0):
        loaded.update({"w": np.float32(factor) * weights["w"], "bias": bias})
        for rows in (1, 2, 3, 8, 9, 10, 13, 20, 33, 40, 57, 64, 69, 70, 71, 99, 100):
            x, skip = (rng.standard_normal((1, rows, size)).astype(np.float32) for size in (depth, columns))
            want = np.maximum(factor * (x.astype(np.float64) @ w) + bias + skip, 0)
            np.testing.assert_allclose(np.asarray(loaded(x, skip)), want, rtol=0, atol=4e-6 * np.abs(want).max())


def test_forced_to_be_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a decision among two settings, so that a record or a search may take the product as it is."""
    pays_for(monkeypatch, 2, 100)
    target = Target.parse("znver4")
    graph = layer(Var("n", lo=1, hi=100, likely=LIKELY), 64, 64)
    with deciding() as record:
        assert "lowered.matmul_by_rows" in operators(graph, target)
    (name,) = (d.key.name for d in record.made if d.key.kind == "algorithm")
    with deciding({name: "packed"}):
        (node,) = (n for n in choose_algorithms(graph, target, Options(fast="strassen")).nodes if n.algorithm)
    assert node.algorithm == Packed()
