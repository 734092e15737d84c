"""Products by pieces of bf16 of two factors that a call computes: each is split and, the second, packed in the call."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.amx_run import amx, needs_compiler, products
from tests.plans.matmul.test_split import AMX, COMPONENTWISE, key_of, passed
from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.plans.framework.decisions import deciding, forcing

BATCHES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "matrices": ((), ()),
    "one for all": ((2, 3), ()),
    "each its own": ((2, 3), (2, 3)),
}


def both(
    rows: int | None,
    depth: int,
    columns: int,
    lead: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    *,
    swapped: bool = False,
    transposed: bool = False,
) -> Graph:
    """ReLU of a product of two inputs, either with its last two dimensions exchanged."""
    builder = GraphBuilder("both")
    count = Var("n") if rows is None else const(rows)
    left, right = (count, const(depth)), (const(depth), const(columns))
    shapes = [(*map(const, lead[0]), *(left[::-1] if swapped else left))]
    shapes.append((*map(const, lead[1]), *(right[::-1] if transposed else right)))
    x, w = (builder.input(name, TensorType(f32, shape)) for name, shape in zip("xw", shapes, strict=True))
    y = ops.emit1(builder, "matmul", x, w, transpose_a=swapped, transpose_b=transposed)
    return builder.finish((ops.emit1(builder, "relu", y),))


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@needs_compiler
@pytest.mark.costly(3)
@pytest.mark.parametrize("terms", [3, 6])
@pytest.mark.parametrize("lead", BATCHES)
@pytest.mark.parametrize(("swapped", "transposed"), [(False, False), (True, True)])
def test_products(lead: str, terms: int, swapped: bool, transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, depth and columns that fill no registers; an infinity takes the ordinary product."""
    batches, target = BATCHES[lead], amx(monkeypatch)
    if swapped and lead == "one for all":
        return  # its rows are not joined
    graph = both(20, 40, 23, batches, swapped=swapped, transposed=transposed)
    with forcing({key_of(graph, target): f"split terms={terms},least=16"}):
        model = tw.compile((graph, {}), target=target)
    x, w = numbers(1, *batches[0], 20, 40), numbers(2, *batches[1], 40, 23)
    for value in (1.0, np.inf, np.nan):
        x[..., 3, 5] = value
        operands = [np.swapaxes(x, -1, -2) if swapped else x, np.swapaxes(w, -1, -2) if transposed else w]
        before = products()
        got = np.asarray(model(*map(np.ascontiguousarray, operands)))
        assert (products() > before) == (value == 1.0)
        with np.errstate(all="ignore"):
            exact = np.maximum(x.astype(np.float64) @ w, 0)
            bound = (COMPONENTWISE[terms] + 80 * 2.0**-24) * (np.abs(x).astype(np.float64) @ np.abs(w))
            distance = np.abs(got - exact)
        finite = np.isfinite(exact)
        assert (distance[finite] <= bound[finite] + 1e-6).all()
        np.testing.assert_array_equal(got[~finite], exact[~finite])


@pytest.mark.parametrize(
    ("sizes", "lead", "fast", "terms"),
    [
        ((512, 768, 768), "matrices", "auto", 3),
        ((1024, 1024, 1024), "matrices", "exact", 6),
        ((512, 512, 512), "each its own", "auto", 3),
        ((16, 64, 64), "each its own", "auto", 0),
        ((None, 512, 512), "matrices", "auto", 3),
    ],
)
def test_estimates_choose(sizes: tuple[int | None, int, int], lead: str, fast: str, terms: int) -> None:
    rows, depth, columns = sizes
    with deciding() as record:
        text = str(passed(both(rows, depth, columns, BATCHES[lead]), AMX, fast))
    assert [d.key.kind for d in record.decisions].count("algorithm") == 1
    assert (f"lowered.matmul_x{terms}" in text) == bool(terms) and ("matmul_x" in text) == bool(terms)


def test_a_value_is_split_once() -> None:
    """However many products read it, by either side."""
    builder = GraphBuilder("shared")
    x, w, v = (builder.input(name, TensorType(f32, (const(512), const(512)))) for name in "xwv")
    h = ops.emit1(builder, "tanh", x)
    outputs = [
        ops.emit1(builder, "matmul", h, w),
        ops.emit1(builder, "matmul", h, v),
        ops.emit1(builder, "matmul", v, w),
    ]
    graph = passed(builder.finish(tuple(outputs)), AMX, "auto")
    graph = dict(tw.compiler.graph_passes(AMX))["canonicalise"](graph)
    split = [n for n in graph.nodes if n.op == "lowered.pieces"]
    assert str(graph).count("lowered.matmul_x3(") == 3
    assert len(split) == len({(n.inputs, n.attrs) for n in split}) == 4  # h, w and v as right factors, v as a left one
    assert sum(n.op == "lowered.pack_dot" for n in graph.nodes) == 2


@needs_compiler
def test_rows_whose_number_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    target, graph = amx(monkeypatch), both(None, 256, 256)
    with deciding() as record:
        passed(graph, target, "auto")
    (decision,) = [d for d in record.decisions if d.key.kind == "algorithm"]
    (setting,) = [s for s in decision.space if s.kind == "split" and s.knob("terms") == 3]
    least = setting.knob("least")
    with forcing({decision.key.name: setting.label}):
        model = tw.compile((graph, {}), target=target)
    w = numbers(3, 256, 256)
    for rows in (1, least, least + 1):
        x, before = numbers(rows, rows, 256), products()
        got, exact = np.asarray(model(x, w)), np.maximum(x.astype(np.float64) @ w, 0)
        assert np.abs(got - exact).max() <= 1e-5 * exact.max()
        assert (products() > before) == (rows >= least)
