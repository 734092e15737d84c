"""Matrix products: all forms, odd sizes, 1 and 0, symbolic rows, against NumPy in float64; what their tiles are."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import tensor
from tilewright import ops, te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Expr, Op, Var, as_int, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ir.loops import For, If
from tilewright.ir.notes import BufferName, Prefetch, PrefetchTile, find
from tilewright.ir.rewrite import walk
from tilewright.ops import parse_func
from tilewright.plans import Planned, plan
from tilewright.plans.framework.decision_key import Key
from tilewright.plans.framework.decisions import deciding
from tilewright.plans.matmul.tiles import (
    MAX_ROWS,
    MAX_STEPS,
    SHORT_ROWS,
    MatmulTile,
    Product,
    estimate,
    matmul_tile,
    multiplies_in_place,
    prefetch_distance,
    sharing_rows,
    strip_rows,
    tiles,
    unrolled_steps,
)
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.layout.assign import assign_layouts
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

ROWS = Var("rows", lo=0, hi=4096)
TARGETS = ("x86-64-v3", "znver4", "skylake-avx512", "neoverse-n1")
TOLERANCE = {"float64": 1e-13, "float32": 2e-6, "float16": 2e-3}
"""The tolerance relative to the output's scale, for sums of 512 products at most; integers are exact."""

Array = np.ndarray[Any, Any]


def no_key() -> Key:
    raise AssertionError("nothing is forced")


def values(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    if np.dtype(kind).kind == "i":
        return rng.integers(-9, 10, shape).astype(kind)
    return rng.standard_normal(shape).astype(kind)


def check(got: Array, a: Array, b: Array) -> None:
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert got.shape == expected.shape and got.dtype == a.dtype
    # Errors of a longer sum grow with the root of its length (Higham and Mary, 2019).
    longer = max(1.0, a.shape[-1] / 512) ** 0.5
    scale = longer * float(np.abs(expected).max(initial=0))
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE.get(a.dtype.name, 0) * max(scale, 1e-30))


def multiply(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], kind: str = "float32", param: bool = True, **attrs: bool
) -> None:
    """Compiles a product of constant shapes and checks it."""
    rng = np.random.default_rng(7)
    a, b = values(rng, a_shape, kind), values(rng, b_shape, kind)
    builder = GraphBuilder("product")
    types = [TensorType(dtype(v.dtype), tuple(const(d) for d in v.shape)) for v in (a, b)]
    x = builder.input("a", types[0])
    y = builder.param("b", types[1]) if param else builder.input("b", types[1])
    graph = builder.finish((ops.emit1(builder, "matmul", x, y, **attrs),))
    model = tw.compile((graph, {"b": b} if param else {}))
    (got,) = model.run({"a": a} if param else {"a": a, "b": b}).values()
    swap = [np.swapaxes(v, -1, -2) if attrs.get(f"transpose_{n}") else v for n, v in (("a", a), ("b", b))]
    check(got, *swap)


SIZES = [
    *((1, 1, 1), (1, 17, 33), (2, 3, 100), (5, 64, 8), (6, 31, 49), (7, 1, 20), (13, 50, 1), (128, 5, 96)),
    *((31, 100, 66), (1, 300, 257), (19, 256, 16), (40, 64, 6), (9, 33, 3)),
]


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("param", [True, False], ids=["weights", "activations"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(size: tuple[int, int, int], param: bool) -> None:
    m, k, n = size
    multiply((m, k), (k, n), param=param)


@pytest.mark.parametrize("param", [True, False], ids=["weights", "activations"])
@pytest.mark.parametrize("size", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)], ids=str)
def test_nothing(size: tuple[int, int, int], param: bool) -> None:
    m, k, n = size
    multiply((m, k), (k, n), param=param)


@pytest.mark.costly(4)
@pytest.mark.parametrize("param", [True, False], ids=["weights", "activations"])
@pytest.mark.parametrize("first", [False, True], ids=["x", "xT"])
@pytest.mark.parametrize("second", [False, True], ids=["w", "wT"])
@pytest.mark.parametrize("m,n", [(11, 37), (1, 40), (9, 1), (32, 17)])
def test_transposed(first: bool, second: bool, param: bool, m: int, n: int) -> None:
    shape_a, shape_b = ((23, m) if first else (m, 23)), ((n, 23) if second else (23, n))
    multiply(shape_a, shape_b, param=param, transpose_a=first, transpose_b=second)


@pytest.mark.daily(4)
@pytest.mark.parametrize("param", [True, False], ids=["weights", "activations"])
@pytest.mark.parametrize(
    "a,b",
    [
        ((3, 10, 12), (3, 12, 20)),
        ((2, 3, 7, 12), (3, 12, 40)),
        ((2, 3, 7, 12), (12, 20)),
        ((9, 12), (5, 12, 50)),
        ((2, 1, 9, 12), (1, 3, 12, 33)),
        ((4, 2, 12), (4, 12, 1)),
        ((3, 16, 12), (3, 12, 150)),  # few rows by several panels as they lie
        ((2, 33, 12), (2, 12, 150)),  # more rows
    ],
    ids=str,
)
def test_batches(a: tuple[int, ...], b: tuple[int, ...], param: bool) -> None:
    multiply(a, b, param=param)


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize(
    "a,b",
    [
        ((40, 64), (40, 64)),  # one panel
        ((23, 64), (23, 17)),  # exchanged: vectors of 64 columns rather than of 17
        ((23, 17), (23, 17)),
        ((19, 10), (19, 100)),  # few rows, several panels
        ((70, 96), (70, 160)),
        ((19, 33), (19, 50)),
        ((2, 3, 21, 32), (2, 3, 21, 5)),
        ((3, 21, 32), (1, 21, 5)),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_transposed_rows(a: tuple[int, ...], b: tuple[int, ...], kind: str) -> None:
    """Gradients of weights: both operands come with each call, the left one with its depth first."""
    multiply(a, b, kind, param=False, transpose_a=True)


@pytest.mark.parametrize(
    "size,transposed,place",
    [
        ((64, 64, 1 << 14), True, True),  # rows of one panel, however many
        ((64, 17, 256), True, True),
        ((2048, 16, 2048), True, False),  # few products for a line of turned rows
        ((512, 512, 512), True, True),
        ((1024, 1024, 512), True, False),  # rows that share the sets of the first level
        ((128, 128, 1 << 14), True, False),  # panels beyond the second level
        ((10, 1024, 128), True, True),
        ((10, 4096, 256), True, False),
        ((256, 17, 64), False, True),
        ((256, 8, 64), False, False),
        ((256, 128, 64), False, False),
        ((32, 512, 512), False, True),  # few rows: packing would read more than they do
        ((33, 128, 64), False, False),
        ((8, 15, 64), False, False),
    ],
    ids=str,
)
def test_operands_that_change_are_read_where_they_lie(
    size: tuple[int, int, int], transposed: bool, place: bool
) -> None:
    rows, columns, depth = size
    assert multiplies_in_place(rows, columns, depth, 4, Target.parse("znver4"), transposed=transposed) == place
    if transposed and place and rows > SHORT_ROWS:  # tiles of few registers
        assert not multiplies_in_place(rows, columns, depth, 4, Target.parse("x86-64-v3"), transposed=True)


@pytest.mark.parametrize(
    "size,place",
    [
        ((64, 64, 2048), True),
        ((64, 64, 4096), False),  # one panel, but an operand beyond what stays in the second level
        ((64, 17, 1 << 14), True),  # so few vectors wait for nothing else
        ((128, 128, 1024), True),
        ((192, 192, 1024), True),
        ((224, 224, 1000), False),
        ((256, 256, 512), True),
        ((256, 256, 1024), False),
        ((512, 512, 128), False),  # rows too distant
    ],
    ids=str,
)
def test_operands_are_close_to_where_products_wait_for_lines(size: tuple[int, int, int], place: bool) -> None:
    assert multiplies_in_place(*size, 4, Target.parse("emeraldrapids"), transposed=True) == place
    assert multiplies_in_place(*size, 4, Target.parse("znver4"), transposed=True)


@pytest.mark.costly(2)
@pytest.mark.parametrize("kind", ["float64", "float16", "int32", "int64"])
@pytest.mark.parametrize("size", [(9, 40, 37), (1, 33, 20), (1, 32, 20)], ids=str)
def test_types(kind: str, size: tuple[int, int, int]) -> None:
    m, k, n = size
    multiply((m, k), (k, n), kind)
    multiply((m, k), (k, n), kind, param=False)


@pytest.mark.daily(4)
@pytest.mark.parametrize("k,n", [(17, 64), (64, 6), (5, 1), (160, 33), (252, 820)])
def test_any_number_of_rows(k: int, n: int) -> None:
    rng = np.random.default_rng(3)
    builder = GraphBuilder("product")
    y = ops.emit1(builder, "matmul", builder.input("x", tensor(ROWS, k)), builder.param("w", tensor(k, n)))
    w, bias = values(rng, (k, n), "float32"), values(rng, (n,), "float32")
    graph = builder.finish((ops.emit1(builder, "add", y, builder.param("bias", tensor(n))),))
    model = tw.compile((graph, {"w": w, "bias": bias}))
    for rows in range(71):
        x = values(rng, (rows, k), "float32")
        (got,) = model.run({"x": x}).values()
        check(got - bias, x, w)


def test_rows_of_heads_without_packing() -> None:
    """[rows, heads, depth] by weights of all heads: rows are symbolic outside, few inside."""
    rng = np.random.default_rng(5)
    builder = GraphBuilder("product")
    x = builder.input("x", tensor(ROWS, 2, 35))
    model = tw.compile(
        (
            builder.finish((ops.emit1(builder, "matmul", x, builder.param("w", tensor(35, 50))),)),
            {"w": (w := values(rng, (35, 50), "float32"))},
        )
    )
    for rows in (0, 1, 2, 9):
        inputs = values(rng, (rows, 2, 35), "float32")
        (got,) = model.run({"x": inputs}).values()
        check(got, inputs, w)


def test_what_follows_in_more_dimensions() -> None:
    """A product that is spread over more dimensions after it is another plan's work."""
    x, w = te.placeholder((2,), name="x"), te.placeholder((2, 8), name="w")
    k = te.reduce_axis(2, "k")
    y = te.compute((8,), lambda j: te.sum(x[k.var] * w[k.var, j], axis=k), name="y")
    spread = te.compute((3, 8), lambda i, j: y[j] + 1.0, name="spread")
    func = te.create_prim_func([x, w, spread])
    arrays = [np.array([1, 2], np.float32), np.arange(16, dtype=np.float32).reshape(2, 8), np.zeros((3, 8), np.float32)]
    interpret(lower_loops(plan(func, Target.host()).func, Target.host()), arrays)
    np.testing.assert_array_equal(arrays[2], np.tile(arrays[0] @ arrays[1] + 1, (3, 1)))


CPU = "emeraldrapids"


@pytest.mark.parametrize("rows", [9, 11, 13])
def test_panels_that_tiles_prefetch_come_from_afar_once(rows: int) -> None:
    """Two tiles of half the rows read each panel twice; what the first one waits for is no less for it."""
    target = Target.parse("emeraldrapids")
    product = Product(rows, 512, 512, working_set=5e6)
    assert product.level(target) == "l3" and sharing_rows(MatmulTile(rows, 32), product, 0, target) == rows
    result = [t for t in tiles(rows, 32, 512, 512, 4, target) if t.panels == 1]
    from_memory = product.weights / target.l3_bandwidth
    assert all(estimate(t, product, target).memory >= from_memory for t in result)
    assert min(result, key=lambda t: estimate(t, product, target).cycles).rows == rows


@pytest.mark.parametrize("depth", [1024, 3072])
def test_rows_that_share_sets_of_the_first_level(depth: int) -> None:
    """All begin at one place of a cache way: a Zen 4 has room for six, a core of an Intel server does not mind."""
    most = {cpu: max(t.rows for t in tiles(14, 16, 512, depth, 4, Target.parse(cpu))) for cpu in ("znver4", CPU)}
    assert most == {"znver4": 6, CPU: 14}
    for rows in (11, 12, 13):
        assert matmul_tile(no_key, const(rows), 512, depth, dtype(np.float32), Target.parse(CPU)).rows == rows


@pytest.mark.parametrize("rows", [12, 24])
def test_panels_from_the_last_level_are_prefetched(rows: int) -> None:
    """By tiles of rows one panel at a time, which took up to 1.4 times as long with two panels at once."""
    target, product = Target.parse(CPU), Product(rows, 1024, 2048)
    assert product.level(target) == "l3"
    shared, waited = MatmulTile(12, 32), MatmulTile(12, 16, 2)
    assert estimate(shared, product, target).cycles < 0.97 * estimate(waited, product, target).cycles


@pytest.mark.parametrize(("name", "level"), [("znver4", 2), ("znver5", 1)])
@pytest.mark.parametrize("rows", [20, ROWS], ids=str)
def test_the_level_that_shared_panels_are_prefetched_into(name: str, level: int, rows: Any) -> None:
    target = Target.parse(name)
    planned = plan(product(rows, 1024, 2048, target), target)
    notes = [note for s in walk(planned.func.body) if isinstance(s, For) and (note := find(s.notes, Prefetch))]
    assert {note.level for note in notes if note.rows is not None} == {level}


def test_panels_from_the_second_level_are_waited_for_by_a_small_number_of_tiles() -> None:
    """Eight rows are one tile: two of four rows keep a panel in the first level, but the first one waits for it."""
    target = Target.parse(CPU)
    assert Product(8, 1024, 256).level(target) == "l2"
    assert matmul_tile(no_key, const(8), 1024, 256, dtype(np.float32), target).rows == 8


def test_strips_of_rows() -> None:
    target = Target.parse("x86-64-v3")
    assert strip_rows(MatmulTile(6, 16), Product(1600, 1024, 1024), target) == 402
    assert strip_rows(MatmulTile(6, 16), Product(1600, 256, 1024), target) == 30
    assert strip_rows(MatmulTile(6, 16), Product(200, 256, 1024), target) == 30
    assert strip_rows(MatmulTile(6, 16), Product(96, 256, 1024), target) == 0, "all rows stay in the second level"
    # A rest of few rows is a smaller part of longer strips; panels that stay near cost little for it.
    assert strip_rows(MatmulTile(6, 16), Product(1600, 256, 1024), target, symbolic=True) == 60
    assert strip_rows(MatmulTile(6, 16), Product(1600, 32, 1024), target, symbolic=True) == 30
    multiply((1600, 1024), (1024, 20))


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    ("rows", "columns", "depth", "strip"),
    [
        (281, 512, 2, 6),
        (36, 2044, 2, 6),
        (64, 512, 8, 6),  # four rows are left of ten tiles
        (25, 2044, 2, 0),  # one row is left of four
        (2000, 128, 64, 510),  # panels leave the first level: strips for the second
        (40, 270, 3, 0),  # results that stay near
    ],
)
def test_results_of_a_small_number_of_steps_are_written_in_whole_rows(
    rows: int, columns: int, depth: int, strip: int
) -> None:
    """Where all panels stay in the first level of cache and the results do not."""
    target = Target.parse("haswell")
    assert strip_rows(MatmulTile(6, 16), Product(rows, columns, depth), target) == strip
    multiply((rows, depth), (depth, columns))


def test_a_small_last_strip_goes_into_a_small_number_of_others() -> None:
    target = Target.parse("x86-64-v3")
    is_short, several, much = (Product(rows, 256, 1024) for rows in (9 * 30 + 6, 30 * 30 + 6, 9 * 30 + 15))
    assert [strip_rows(MatmulTile(6, 16), p, target) for p in (is_short, several, much)] == [36, 30, 30]
    for rows in (384, 390):  # On a machine with half a megabyte in the second level: strips of 48 and 42 rows.
        multiply((rows, 768), (768, 40))


def test_strips_of_a_symbolic_number_of_rows() -> None:
    """Twice as long as those of a known number where panels come from afar; right for fewer rows than one has, whole
    ones and a rest of each."""
    target = Target.parse("x86-64-v3")
    assert "strip=60" in plan(product(ROWS, 1024, 256, target), target).describe()
    short, unbounded = Var("few", lo=1, hi=96), Var("unbounded", lo=1)
    for symbol in (short, unbounded):
        assert "strip=0" in plan(product(symbol, 1024, 256, target), target).describe()
    rng = np.random.default_rng(3)
    builder = GraphBuilder("product")
    y = ops.emit1(builder, "matmul", builder.input("a", tensor(ROWS, 1536)), builder.param("b", tensor(1536, 40)))
    b = values(rng, (1536, 40), "float32")
    model = tw.compile((builder.finish((y,)), {"b": b}))
    strip = re.search(r"strip=([1-9]\d*)", model.show("schedule"))
    assert strip is not None, "a machine whose second level holds all rows"
    size = int(strip[1])
    for rows in (1, 7, size - 1, size, size + 1, size + 14, 2 * size, 2 * size + 5):
        a = values(rng, (rows, 1536), "float32")
        check(model(a), a, b)


# -- the plan --------------------------------------------------------------------------------------------------------


def product(rows: Any, k: int, n: int, target: Target, function: str | None = None, kind: str = "float32") -> Any:
    """The unscheduled product, weights packed, with a function after it."""
    builder = GraphBuilder("product")
    x, w = (TensorType(dtype(kind), tensor(*shape).shape) for shape in ((rows, k), (k, n)))
    y = ops.emit1(builder, "matmul", builder.input("x", x), builder.param("w", w))
    y = y if function is None else ops.emit1(builder, function, y)
    graph: Graph = assign_layouts(builder.finish((y,)), target)
    return lower_group(
        next(g for g in fuse(graph) if "lowered.matmul_packed" in [n.op for n in g.nodes]), "kernel"
    ).func


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", TARGETS)
def test_one_row_is_a_version_of_its_own(name: str) -> None:
    target = Target.parse(name)
    func = product(ROWS, 20, 100, target)
    planned = plan(func, target)
    assert "variant rows == 1" in planned.describe()
    assert parse_func(str(planned.func)) == planned.func
    flat = lower_loops(planned.func, target)
    rng = np.random.default_rng(0)
    for rows in (1, 3):
        x, w = values(rng, (rows, 20), "float32"), np.zeros([d.value for d in func.params[1].shape], np.float32)
        w[...] = rng.standard_normal(w.shape)
        results = []
        for version in (func, planned.func, flat):
            out = np.full((rows, 100), np.nan, np.float32)
            interpret(version, [x, w, out])
            results.append(out)
        np.testing.assert_allclose(results[1], results[0], rtol=0, atol=1e-5)
        np.testing.assert_allclose(results[2], results[0], rtol=0, atol=1e-5)


@pytest.mark.daily(3)
@pytest.mark.parametrize(("name", "fewer"), [("x86-64-v3", [1, 2, 3]), ("znver4", [1]), ("skylake-avx512", [1, 2, 3])])
def test_a_small_number_of_rows_are_versions_where_they_leave_multiply_adds_waiting(
    name: str, fewer: list[int]
) -> None:
    target = Target.parse(name)

    def versions(symbol: Var, planned: Planned | None = None) -> list[int]:
        planned = planned or plan(product(symbol, 256, 256, target), target)
        return [n for n in range(8) if f"variant {symbol.name} == {n}\n" in planned.describe()]

    func = product(ROWS, 256, 256, target)
    planned = plan(func, target)
    assert versions(ROWS, planned) == fewer
    assert versions(Var("likely", lo=1, hi=4096, likely=(8, 40))) == [1]
    assert versions(Var("even", lo=0, hi=4096, multiple=2)) == [n for n in fewer if n % 2 == 0]
    assert set(versions(Var("some", lo=3, hi=4096))) <= {3}
    flat = lower_loops(planned.func, target)
    rng = np.random.default_rng(0)
    w = rng.standard_normal([d.value for d in func.params[1].shape]).astype(np.float32)
    for rows in (2, 3, 4, 9):
        x, got = values(rng, (rows, 256), "float32"), np.full((rows, 256), np.nan, np.float32)
        interpret(flat, [x, w, got])
        want = np.einsum("rk,pkc->rpc", np.float64(x), np.float64(w)).reshape(rows, 256)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [(1, 64, 64), (1, 256, 6), (2, 32, 16), (3, 24, 40), (1, 12, 130)], ids=str)
@pytest.mark.parametrize("name", ["x86-64-v3", "skylake-avx512"])
def test_sums_of_a_small_number_of_elements_are_several(name: str, size: tuple[int, int, int]) -> None:
    """Where a tile has too few multiply-adds in flight to hide their latency, it has a sum of its own for every
    so-many-th step."""
    target = Target.parse(name)
    rows, k, n = size
    func = product(rows, k, n, target, "relu")
    with deciding() as record:
        planned = plan(func, target)
    assert parse_func(str(planned.func)) == planned.func
    (result,) = (d.space for d in record.decisions)
    names = {tuple(name for name, _ in setting.knobs) for setting in result if setting.kind == "contraction"}
    assert len(names) == 1 and all(result.neighbours(setting) for setting in result)
    flat = lower_loops(planned.func, target)
    text = assembly(emit_llvm(flat, target), target)
    products = [line for line in text.splitlines() if "vfmadd" in line]
    assert len({line.split(",")[-1] for line in products}) >= 6
    assert not spilled(products, frame(text))
    rng = np.random.default_rng(0)
    x, w = values(rng, (rows, k), "float32"), values(rng, (k, n), "float32")
    packed = np.zeros([d.value for d in func.params[1].shape], np.float32)
    width = packed.shape[-1]
    for column in range(n):
        packed[column // width, :, column % width] = w[:, column]
    got = np.full((rows, n), np.nan, np.float32)
    interpret(flat, [x, packed, got])
    np.testing.assert_allclose(got, np.maximum(x @ w, 0), rtol=0, atol=1e-5)


@pytest.mark.costly(2)
@pytest.mark.parametrize("rows", [1, 6, 128, ROWS], ids=str)
@pytest.mark.parametrize("name", ["x86-64-v3", "znver4", "skylake-avx512"])
def test_the_hot_loop_stays_in_registers(name: str, rows: Any) -> None:
    target = Target.parse(name)
    func = product(rows, 64, 256, target)
    text = assembly(emit_llvm(lower_loops(plan(func, target).func, target), target), target)
    steps = [line for line in text.splitlines() if "vfmadd" in line]
    assert len(steps) >= 4 and not spilled(steps, frame(text))
    if as_int(rows) == 1:  # enough multiply-adds in flight to hide their latency
        width = "%zmm" if target.vector_bits == 512 else "%ymm"
        assert len({line.split(",")[-1] for line in steps if width in line}) >= 8


@pytest.mark.daily(2)
@pytest.mark.costly(2)
@pytest.mark.parametrize("shape", [(384, 768, 96), (64, 512, 512), (30, 373, 512)], ids=str)
@pytest.mark.parametrize("name", ["x86-64-v3", "znver4", "skylake-avx512"])
def test_accumulators_stay_in_registers_in_batches_of_any_size(name: str, shape: tuple[int, int, int]) -> None:
    """With a loop over the batch around it a tile has fewer registers: none of them may be spilled in a step."""
    target = Target.parse(name)
    rows, k, n = shape
    builder = GraphBuilder("product")
    y = ops.emit1(builder, "matmul", builder.input("x", tensor(ROWS, rows, k)), builder.param("w", tensor(k, n)))
    y = ops.emit1(builder, "tanh", ops.emit1(builder, "add", y, builder.param("bias", tensor(n))))
    graph = assign_layouts(builder.finish((y,)), target)
    func = lower_group(next(g for g in fuse(graph) if g.nodes[0].op == "lowered.matmul_packed"), "kernel").func
    text = assembly(emit_llvm(lower_loops(plan(func, target).func, target), target), target)
    hot = [body for body in innermost(text) if sum("vfmadd" in line for line in body) >= 8]
    assert hot and all(spilled(body, frame(text)) <= 2 for body in hot)


def innermost(text: str) -> list[list[str]]:
    """The bodies of the innermost loops: what stands between a label and a jump back to it, no other label inside."""
    bodies, label, body = [], "", []
    for line in text.splitlines():
        if line.startswith(".LBB"):
            label, body = line.split(":")[0], []
        elif re.match(r"\s+j\w+\s+" + re.escape(label) + r"$", line) and label:
            bodies.append(body)
            label, body = "", []
        else:
            body.append(line)
    return bodies


def frame(text: str) -> str:
    """The registers that point to the stack, by their letters: rbp is one only where it is the frame's pointer."""
    return "sb" if re.search(r"movq\s+%rsp, %rbp", text) else "s"


def spilled(body: list[str], frame: str) -> int:
    """Vectors that a loop's body loads from the stack or stores there, by the registers that point to it."""
    stack = rf"\(%r[{frame}]p\)"
    return sum(bool(re.search(rf"{stack}.*[xyz]mm|[xyz]mm.*{stack}", line)) for line in body)


@pytest.mark.parametrize("name", TARGETS)
def test_tiles_fit_the_registers_and_the_work(name: str) -> None:
    target = Target.parse(name)
    lanes = target.lanes(4)
    for rows, columns, depth in ((1, 64, 17), (1, 4096, 4096), (7, 512, 512), (128, 3072, 768), (1024, 1024, 1024)):
        tile = matmul_tile(no_key, const(rows), columns, depth, dtype(np.float32), target)
        vectors = tile.width // lanes * tile.panels
        assert tile.rows * vectors + (vectors if tile.rows > 1 else 0) < target.registers
        assert tile.rows <= rows and (tile.panels - 1) * tile.width < columns
        best = estimate(tile, Product(rows, columns, depth), target).cycles
        least = rows * columns * depth / lanes / target.fma_per_cycle
        assert best >= least
        if rows >= 128:
            assert best < 1.35 * least
    symbolic = matmul_tile(no_key, ROWS, 512, 512, dtype(np.float32), target)
    assert symbolic.rows <= MAX_ROWS


@pytest.mark.parametrize("name", ["x86-64-v4", "znver4", "znver5"])
def test_one_row_of_a_small_number_of_columns_takes_narrow_panels(name: str) -> None:
    """All widths take as long by estimate; what is pointwise after one panel is done beside the next one."""
    rows = {n: matmul_tile(no_key, const(n), 64, 64, dtype(np.float32), Target.parse(name)).width for n in (1, 8)}
    assert rows[1] == 16 and rows[8] > 16


def test_a_small_number_of_columns_take_half_a_vector_where_that_is_faster() -> None:
    """A core with one multiply-add of full vectors a cycle starts two of half the width; another gains nothing."""
    zen4 = Target.parse("znver4")
    two = zen4.adjusted(fma_per_cycle=2.0)

    def width(columns: int | Expr, target: Target, narrow: bool = True) -> int:
        return matmul_tile(no_key, ROWS, columns, 64, dtype(np.float32), target, narrow=narrow).width

    assert width(6, zen4) == 8
    assert width(9, zen4) == width(6, zen4, narrow=False) == width(6, two) == 16
    assert width(3, Target.parse("x86-64-v3")) == 8
    assert width(Var("m", lo=1, hi=4), zen4) == 8
    half, whole = (estimate(MatmulTile(8, n), Product(64, 6, 64), zen4).cycles for n in (8, 16))
    assert half < 0.75 * whole


@pytest.mark.parametrize("name", ["znver4", "x86-64-v3"])
def test_panels_of_half_a_vector_are_multiplied_as_such(name: str) -> None:
    target = Target.parse(name)
    builder = GraphBuilder("product")
    y = ops.emit1(builder, "matmul", builder.input("x", tensor(16, 64)), builder.param("w", tensor(64, 6)))
    graph = assign_layouts(builder.finish((y,)), target)
    func = lower_group(next(g for g in fuse(graph) if g.nodes[0].op == "lowered.matmul_packed"), "kernel").func
    text = assembly(emit_llvm(lower_loops(plan(func, target).func, target), target), target)
    products = [line for line in text.splitlines() if "vfmadd" in line]
    assert products and all("%ymm" in line and "%zmm" not in line for line in products)


def test_one_row_takes_several_panels_from_memory() -> None:
    target = Target.parse("x86-64-v3")
    large = Product(1, 4096, 4096)
    options = tiles(1, 16, 4096, 4096, 4, target)
    assert min(options, key=lambda t: estimate(t, large, target).cycles).panels == 4
    assert strip_rows(MatmulTile(6, 16), Product(128, 3072, 768), target) == 0


def test_several_panels_that_no_one_asks_for_wait_for_weights_in_memory() -> None:
    """Only rows of single panels prefetch the next one, so three narrow panels at once are for what is near."""
    target = Target.parse("znver4")
    assert matmul_tile(no_key, ROWS, 512, 512, dtype(np.float32), target).panels == 1
    separate, together = MatmulTile(8, 32), MatmulTile(8, 16, 3)
    from_memory, cached = Product(64, 512, 512), Product(64, 512, 128)
    assert estimate(separate, from_memory, target).cycles < estimate(together, from_memory, target).cycles
    assert estimate(together, cached, target).cycles < estimate(separate, cached, target).cycles


@pytest.mark.parametrize(("cpu", "panels", "size"), [("x86-64-v3", 4, 8192), ("znver4", 2, 8192), ("znver4", 2, 2048)])
def test_one_row_reads_the_number_of_streams_as_the_core_follows(cpu: str, panels: int, size: int) -> None:
    """From memory; no more from the last level either."""
    target = Target.parse(cpu).adjusted(l3=64 << 20)
    assert target.streams == panels
    assert matmul_tile(no_key, const(1), size, size, dtype(np.float32), target).panels == panels
    cached = estimate(MatmulTile(1, 32, 4), Product(1, 128, 64), target).cycles
    assert cached <= estimate(MatmulTile(1, 32, 2), Product(1, 128, 64), target).cycles, "in a near cache all are alike"


def test_weights_that_no_one_prefetches_are_waited_for_in_the_first_pass() -> None:
    """Tiles of a row each pass twice over the panels of two rows, the first time from the last level."""
    target = Target.parse("znver4").adjusted(l2=1 << 20, l3=64 << 20)
    cached, from_memory = Product(2, 256, 512), Product(2, 256, 512, working_set=4 << 20)
    twice, once = MatmulTile(1, 64), MatmulTile(2, 64, 2)
    assert estimate(twice, from_memory, target).cycles > estimate(twice, cached, target).cycles
    assert estimate(once, from_memory, target).cycles < estimate(twice, from_memory, target).cycles
    assert sharing_rows(MatmulTile(8, 32), Product(64, 256, 512), 0, target) == 0
    assert sharing_rows(MatmulTile(8, 32), Product(64, 256, 512, working_set=4 << 20), 0, target) == 64


@pytest.mark.parametrize("rows", [3, 4, 6])
def test_an_operand_from_the_second_level_is_read_once_by_a_small_number_of_rows(rows: int) -> None:
    """A panel of unpacked rows that stays in the first level arrives there in the first pass, which waits for it."""
    target = Target.parse("emeraldrapids")
    product = Product(rows, 128, 96, count=9)
    assert product.level(target) == "l2"
    best = min(tiles(rows, 16, 128, 96, 4, target), key=lambda t: estimate(t, product, target).cycles)
    assert best.rows == rows
    assert estimate(MatmulTile(2, 64), product, target).memory > 0


@pytest.mark.parametrize(("size", "short_count", "level"), [(1024, 9, 1), (4096, 4, None)])
def test_short_symbolic_numbers_of_rows_prefetch_as_known_ones(size: int, short_count: int, level: int | None) -> None:
    """From the last level of cache and from memory."""
    target = Target.parse("emeraldrapids").adjusted(l2=1 << 20, l3=32 << 20)
    planned = plan(product(ROWS, size, size, target), target)
    notes = [find(loop.notes, Prefetch) for loop in walk(planned.func.body) if isinstance(loop, For)]
    shared = [note for note in notes if note is not None and note.rows is not None]
    assert shared and {(note.fewer_than, note.distance, note.prefetch_level) for note in shared} == {
        (short_count, 4096, level)
    }


def test_a_small_number_of_rows_of_a_strip_are_all_there_are() -> None:
    """Up to six rows prefetch their own panel into the first level in versions of their own, in strips as without."""
    target = Target.parse("znver5")
    planned = plan(product(Var("n", lo=1, hi=512), 1024, 1024, target), target)
    assert planned.chosen.knob("strip"), "more than one strip of so many rows"
    versions: set[int] = set()
    for test in (s for s in walk(lower_loops(planned.func, target).body) if isinstance(s, If)):
        own = [find(s.notes, Prefetch) for s in walk(test.then) if isinstance(s, For)]
        if any(note is not None and note.level == 1 and note.rows is None for note in own):
            assert type(test.condition) is Op and test.condition.name == "eq"
            versions.add(as_int(test.condition.args[1]) or 0)
    assert versions == {1, 2, 3, 4, 5, 6}


def test_who_asks_for_the_next_panel() -> None:
    target = Target.parse("x86-64-v3")
    large = Product(128, 4096, 4096)
    assert sharing_rows(MatmulTile(6, 16), large, 0, target) == 128
    assert sharing_rows(MatmulTile(6, 16), large, 42, target) == 42
    symbolic = [sharing_rows(MatmulTile(6, 16), large, strip, target, symbolic=True) for strip in (0, 30, 402)]
    assert symbolic == [96, 30, 96], "as many as a small strip has: else a part of the panel is nobody's"
    assert sharing_rows(MatmulTile(1, 16, 4), Product(1, 4096, 4096), 0, target) == 0
    assert sharing_rows(MatmulTile(6, 16), Product(64, 64, 64), 0, target) == 0, "panels stay near"
    asked = [prefetch_distance(MatmulTile(rows, 16), Product(rows, 4096, 4096), target) for rows in (2, 4, 6)]
    assert asked[0] == asked[2] == 0 < asked[1]
    asked = [prefetch_distance(MatmulTile(rows, 16), Product(rows, 1024, 1024), target) for rows in (2, 3, 4, 5)]
    assert asked[0] == asked[3] == 0 < asked[1] == asked[2], "from the last level three rows ask too"
    assert prefetch_distance(MatmulTile(2, 16), Product(2, 64, 64), target) == 0, "panels stay near"


@pytest.mark.parametrize(("rows", "size", "asked"), [(64, 1024, True), (ROWS, 1024, True), (64, 128, False)], ids=str)
def test_tiles_ask_for_the_outputs_that_come_from_memory(rows: Any, size: int, asked: bool) -> None:
    target = Target.parse("znver4")
    planned = plan(product(rows, size, size, target), target).func
    notes = [value for stmt in walk(planned.body) if isinstance(stmt, For) for value in stmt.notes]
    assert (PrefetchTile((BufferName(planned.params[-1].name),)) in notes) == asked


@pytest.mark.costly(2)
@pytest.mark.parametrize("rows", [2, 3, 5])
@pytest.mark.parametrize(("depth", "columns"), [(515, 515), (1100, 517)])
def test_a_small_number_of_rows_ask_for_their_own_panel(rows: int, depth: int, columns: int) -> None:
    multiply((rows, depth), (depth, columns))


@pytest.mark.parametrize(("rows", "depth", "columns"), [(6, 256, 832), (13, 252, 820), (64, 253, 810)])
def test_rows_that_ask_for_the_next_panel(rows: int, depth: int, columns: int) -> None:
    multiply((rows, depth), (depth, columns))


@pytest.mark.costly(2)
@pytest.mark.parametrize("depth", [1, 7, 8, 9, 13, 33])
@pytest.mark.parametrize("rows", [1, 5])
def test_steps_beside_the_unrolled_ones(rows: int, depth: int) -> None:
    multiply((rows, depth), (depth, 40))
    assert unrolled_steps(12, depth) == (4 if depth >= 8 else 1)
    assert unrolled_steps(2, None) == MAX_STEPS and unrolled_steps(100, None) == 1


@pytest.mark.parametrize(("name", "delayed"), [("znver4", True), ("x86-64-v3", False)])
@pytest.mark.parametrize("function", ["tanh", "relu"])
def test_functions_of_a_tile_wait_for_the_next_ones_products(name: str, delayed: bool, function: str) -> None:
    """Where registers are left for them, and tables; a few operations are not worth the way through memory."""
    target = Target.parse(name)
    planned = plan(product(64, 64, 64, target, function), target)
    deferred = delayed and function == "tanh"
    assert bool(planned.chosen.knob("defer")) == deferred
    assert ("alloc matmul_raw" in str(lower_loops(planned.func, target))) == deferred


def test_functions_without_tables_stay_after_their_tile() -> None:
    target = Target.parse("znver4")
    assert not plan(product(64, 64, 64, target, "tanh", "float64"), target).chosen.knob("defer")


@pytest.mark.daily(3)
@pytest.mark.costly(4)
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 31, ROWS])
@pytest.mark.parametrize(("depth", "columns"), [(17, 64), (64, 48), (5, 100), (64, 200)])
def test_layers_with_functions(rows: Any, depth: int, columns: int) -> None:
    rng = np.random.default_rng(depth)
    builder = GraphBuilder("layer")
    x, w = builder.input("x", tensor(rows, depth)), builder.param("w", tensor(depth, columns))
    y = ops.emit1(builder, "tanh", ops.emit1(builder, "matmul", x, w))
    weights = values(rng, (depth, columns), "float32")
    model = tw.compile((builder.finish((y,)), {"w": weights}))
    for count in [rows] if isinstance(rows, int) else [0, 1, 3, 4, 8, 13]:
        a = values(rng, (count, depth), "float32")
        (got,) = model.run({"x": a}).values()
        np.testing.assert_allclose(got, np.tanh(a.astype(np.float64) @ weights), rtol=0, atol=4e-6)


@pytest.mark.parametrize("width", [26, 60, 48])
def test_a_vector_with_idle_lanes_takes_a_whole_register(width: int) -> None:
    target = Target.parse("znver4")
    vectors = -(-width // target.lanes(4))
    for tile in tiles(200, width, width, 300, 4, target):
        assert tile.rows * tile.panels * vectors < target.registers, tile
