"""Products of f32 by pieces of bf16: operators against NumPy and double precision, the choice, the code for AMX, and
whole programs whose AMX instructions are emulated (`tests/codegen/llvm/amx_run.py`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.amx_run import amx, needs_compiler, products
from tests.ops.oracle import by_expression, check, reference
from tilewright import ops
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.compiler import graph_passes
from tilewright.ir.dtype import bf16, f32
from tilewright.ir.expr import Var, as_int, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ir.selection import Precision
from tilewright.ops import parse_graph
from tilewright.ops.lowered.split import LIMIT, TERMS, count_of, versions
from tilewright.plans import plan
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.targets import x86
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.options import Options
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

AMX = x86.processor("graniterapids", (*x86.V4_DOTS, "amx-tile", "amx-int8", "amx-bf16", "amx-fp16"))
COMPONENTWISE = {3: 1.02 * 2.0**-15, 6: 1.6 * 2.0**-24}
"""By number of terms: the error that leaving out small terms can cause, relative to the sum of the products'
magnitudes, whatever the numbers are."""


def linear(rows: int | None, depth: int, columns: int, lead: tuple[int, ...] = (), *, transpose: bool = True) -> Graph:
    """A product with a weight, a bias and an activation."""
    builder = GraphBuilder("linear")
    count = Var("n") if rows is None else const(rows)
    x = builder.input("x", TensorType(f32, (*map(const, lead), count, const(depth))))
    shape = (columns, depth) if transpose else (depth, columns)
    w = builder.param("w", TensorType(f32, tuple(map(const, shape))))
    y = ops.emit1(builder, "matmul", x, w, transpose_b=transpose)
    y = ops.emit1(builder, "add", y, builder.param("b", TensorType(f32, (const(columns),))))
    return builder.finish((ops.emit1(builder, "relu", y),))


def weights(columns: int, depth: int, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"w": (columns, depth), "b": (columns,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def passed(graph: Graph, target: Target, fast: str, precision: Precision = "fp32") -> Graph:
    for name, function in graph_passes(target, Options(fast=fast, precision=precision)):
        graph = function(graph)
        if name == "assign layouts":
            break
    return graph


def key_of(graph: Graph, target: Target, fast: str = "auto") -> str:
    """By which the algorithm of the graph's product is forced."""
    with deciding() as record:
        passed(graph, target, fast)
    return next(d.key.name for d in record.decisions if d.key.kind == "algorithm")


@pytest.mark.parametrize("count", [2, 3])
def test_pieces_are_what_their_reference_says(count: int) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((3, 5, 7)) * 10.0 ** rng.integers(-30, 30, (3, 5, 7))).astype(np.float32)
    (pieces,) = by_expression("lowered.pieces", [x], {"count": count, "first": False})
    (first,) = by_expression("lowered.pieces", [x], {"count": count, "first": True})
    assert pieces.shape == (3, 5, count, 7) and first.shape == (count, 3, 5, 7)
    np.testing.assert_array_equal(np.moveaxis(pieces, -2, 0), first)
    (want,) = reference("lowered.pieces", [x], {"count": count, "first": True})
    np.testing.assert_array_equal(first, want)
    left = np.abs(first.astype(np.float64).sum(0) - x)
    assert (left <= 2.0 ** (1 - 9 * count) * np.abs(x)).all()


@pytest.mark.parametrize("terms", TERMS)
def test_products_of_pieces(terms: int) -> None:
    rng = np.random.default_rng(terms)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 2, 30), (30, 5)))
    (pieces,) = reference("lowered.pieces", [x], {"count": count_of(terms), "first": False})
    deep = np.pad(w, ((0, 2), (0, 0)))
    (several,) = reference("lowered.pieces", [deep], {"count": count_of(terms), "first": True})
    attrs = {"width": 4, "group": 2, "panels": 1, "transpose": False}
    (panels,) = reference("lowered.pack_dot", [several], attrs)
    (y,) = check("lowered.matmul_pieces", pieces, panels, columns=5, rows=2, terms=terms)
    exact, size = x.astype(np.float64) @ w, np.abs(x).astype(np.float64) @ np.abs(w)
    assert (np.abs(y - exact) <= (COMPONENTWISE[terms] + 64 * 2.0**-24) * size).all()


def test_numbers_that_have_no_pieces_are_known() -> None:
    fine, inf, nan, most = np.float32(1.0), np.float32(np.inf), np.float32(np.nan), np.finfo(np.float32).max
    for numbers, bound, large in (
        ([1.0, 2.0], fine, 0),
        ([1.0, inf], fine, 1),
        ([nan, 1.0], fine, 1),
        ([1.0, 2.0], inf, 1),
        ([0.0, 0.0], nan, 1),
        ([most, 0.0], np.float32(1e-30), 1),
        ([1e-30], most, 1),
        ([1e30], np.float32(1e7), 0),
        ([1e31], np.float32(1e7), 1),
        ([], fine, 0),
    ):
        (got,) = check("lowered.too_large", np.asarray(numbers, np.float32), np.asarray(bound, np.float32))
        assert got == large, (numbers, bound)
    assert float(most) < 4 * LIMIT


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "fast", "chosen"),
    [
        (128, 768, 768, "auto", "split terms=3,least=16"),
        (128, 768, 768, "f4", "split terms=3,least=16"),
        (128, 768, 768, "f2", "split terms=6,least=16"),
        (128, 768, 768, "exact", "split terms=6,least=16"),
        (8, 768, 3072, "auto", "packed"),
        (16, 64, 64, "auto", "packed"),
        (None, 768, 768, "auto", "split terms=3,least=16"),
        (None, 64, 16, "auto", "packed"),
    ],
)
def test_estimates_choose(rows: int | None, depth: int, columns: int, fast: str, chosen: str) -> None:
    graph = linear(rows, depth, columns)
    with deciding() as record:
        text = str(passed(graph, AMX, fast))
    selected = [d.selected.label for d in record.decisions if d.key.kind == "algorithm"]
    assert (selected or ["packed"]) == [chosen] and ("lowered.matmul_x" in text) == (chosen != "packed")
    others = passed(graph, Target.parse("graniterapids"), fast)
    assert "matmul_x" not in str(others)


def test_the_choice_is_a_decision() -> None:
    graph = linear(128, 768, 768)
    for label in ("packed", "split terms=3,least=16", "split terms=6,least=16"):
        with forcing({key_of(graph, AMX): label}):
            assert f"terms = {label[12]}" in str(passed(graph, AMX, "auto")) if "terms" in label else True
    with (
        pytest.raises(tw.Error, match="no such setting"),
        forcing({key_of(graph, AMX, "exact"): "split terms=3,least=16"}),
    ):
        passed(graph, AMX, "exact")


def test_a_layer_norm_has_the_largest_of_its_rows() -> None:
    """In its own kernel, once for three products, whose rows are joined after."""
    builder = GraphBuilder("layer")
    x = builder.input("x", TensorType(f32, tuple(map(const, (1, 128, 768)))))
    scale = [builder.param(name, TensorType(f32, (const(768),))) for name in ("scale", "bias")]
    y = ops.emit1(builder, "layer_norm", x, *scale, axis=-1, epsilon=1e-5)
    matrices = [builder.param(name, TensorType(f32, (const(768), const(768)))) for name in "qkv"]
    graph = builder.finish(tuple(ops.emit1(builder, "matmul", y, w) for w in matrices))
    for _, function in graph_passes(AMX, Options()):
        graph = function(graph)
    labels = [g.label for g in fuse(graph)]
    assert labels.count("layer_norm + abs + reduce_max") == 1 and "abs + reduce_max" not in labels
    assert sum(label.startswith("matmul_x3") for label in labels) == 3


@pytest.mark.parametrize(("terms", "loads"), [(3, 8), (6, 16)])
def test_the_hot_loop_is_products_of_registers(terms: int, loads: int) -> None:
    """Four sums in registers; each term changes the pieces of one side alone. The last of six terms is a loop of its
    own, which loads the largest pieces of both sides again."""
    with forcing({key_of(linear(64, 256, 64), AMX): f"split terms={terms},least=16"}):
        graph = passed(linear(64, 256, 64), AMX, "auto")
    (group,) = [g for g in fuse(graph) if g.nodes[0].op == f"lowered.matmul_x{terms}"]
    assert group.label == f"matmul_x{terms} + add + relu"
    (node,) = [n for n in group.nodes if n.op == f"lowered.matmul_x{terms}"]
    split, ordinary = versions(node)
    assert split.node.op == "lowered.matmul_pieces" and ordinary.node.op == "matmul"
    planned = plan(lower_group(group, "kernel").func, AMX)
    text = assembly(emit_llvm(lower_loops(planned.func, AMX), AMX), AMX)
    counts = {word: text.count(f"\t{word}\t") for word in ("tdpbf16ps", "tileloadd", "tilezero")}
    assert counts == {"tdpbf16ps": 4 * terms, "tileloadd": loads, "tilezero": 4}


@pytest.mark.parametrize("terms", TERMS)
def test_the_schedule_computes_the_operator(terms: int) -> None:
    """The loops for AMX in the interpreter, on rows and a depth that fill no registers."""
    graph = linear(17, 20, 11)
    with forcing({key_of(graph, AMX): f"split terms={terms},least=16"}):
        graph = passed(graph, AMX, "auto")
    (group,) = [g for g in fuse(graph) if g.nodes[0].op == f"lowered.matmul_x{terms}"]
    func = lower_loops(plan(lower_group(group, "kernel").func, AMX).func, AMX)
    parameters = weights(11, 20)
    x = np.random.default_rng(2).standard_normal((17, 20)).astype(np.float32)
    count, deep = count_of(terms), np.pad(parameters["w"], ((0, 0), (0, 12)))
    (several,) = reference("lowered.pieces", [deep], {"count": count, "first": True})
    panels = next(n for n in graph.nodes if n.op == "lowered.pack_dot")
    arrays = {
        "x": x,
        "x_pieces": reference("lowered.pieces", [x], {"count": count, "first": False})[0],
        "w_panels": ops.get("lowered.pack_dot").reference([several], panels.attrs)[0],
        "b": parameters["b"],
        "large": np.zeros(0, np.float32),
    }
    result = np.zeros((17, 11), np.float32)
    lists = []
    for value, buffer in zip((*group.inputs, *group.outputs), func.params, strict=False):
        unread = np.zeros([as_int(d) or 0 for d in buffer.shape], buffer.dtype.numpy)
        lists.append(result if value in group.outputs else arrays.get(value.name, unread))
    lists += [np.zeros([as_int(d) or 0 for d in b.shape], b.dtype.numpy) for b in func.params[len(lists) :]]
    interpret(func, lists)
    exact = np.maximum(x.astype(np.float64) @ parameters["w"].T + parameters["b"], 0)
    size = np.abs(x).astype(np.float64) @ np.abs(parameters["w"].T)
    assert (np.abs(result - exact) <= (COMPONENTWISE[terms] + 20 * 2.0**-24) * size + 1e-6).all()


@needs_compiler
@pytest.mark.parametrize(("depth", "most"), [(256, 8e-8), (1152, 1.5e-7)])
def test_small_terms_are_summed_first(depth: int, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six terms at each step of the depth would have mean errors of 1.3e-7 and 2.7e-7, a chain of f32 sums 2.9e-7 and
    6.3e-7."""
    target, graph = amx(monkeypatch), linear(32, depth, 32)
    parameters = weights(32, depth) | {"b": np.zeros(32, np.float32)}
    with forcing({key_of(graph, target): "split terms=6,least=16"}):
        model = tw.compile((graph, parameters), target=target)
    x, before = np.random.default_rng(0).standard_normal((32, depth)).astype(np.float32), products()
    got = np.asarray(model(x))
    assert products() > before
    exact = np.maximum(x.astype(np.float64) @ parameters["w"].T, 0)
    assert np.sqrt(((got - exact) ** 2).mean() / (exact**2).mean()) <= most


SHAPES = [(64, 250, 96, ()), (None, 300, 64, ()), (5, 96, 160, (9,)), (32, 64, 48, (2,))]


@needs_compiler
@pytest.mark.costly(8)
@pytest.mark.parametrize(("terms", "most"), [(3, 1e-5), (6, 1e-6)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "depth", "columns", "lead"), SHAPES)
def test_programs(
    rows: int | None,
    depth: int,
    columns: int,
    lead: tuple[int, ...],
    threads: int,
    terms: int,
    most: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any number of rows, new weights: within their bounds; infinities and NaN as ever."""
    target, graph, rng = amx(monkeypatch), linear(rows, depth, columns, lead), np.random.default_rng(depth)
    with deciding() as record:
        passed(graph, target.adjusted(threads=threads), "auto")
    (decision,) = [d for d in record.decisions if d.key.kind == "algorithm"]
    (setting,) = [s for s in decision.space if s.kind == "split" and s.knob("terms") == terms]
    with forcing({decision.key.name: setting.label}):
        model = tw.compile((graph, weights(columns, depth)), target=target, threads=threads)
    for seed in (1, 2):
        parameters = weights(columns, depth, seed)
        model.update(parameters)
        for count in (1, 15, 16, 70) if rows is None else (rows,):
            x = rng.standard_normal((*lead, count, depth)).astype(np.float32)
            before = products()
            got = np.asarray(model(x))
            assert (products() > before) == (x.size // depth >= setting.knob("least"))
            exact = np.maximum(x.astype(np.float64) @ parameters["w"].T + parameters["b"], 0)
            assert np.abs(got - exact).max() <= most * np.abs(exact).max()
            x[..., 0, 3], x[..., -1, 5] = np.inf, np.nan
            before = products()
            with np.errstate(all="ignore"):
                want = np.maximum(x @ parameters["w"].T + parameters["b"], 0)
            np.testing.assert_allclose(np.asarray(model(x)), want, rtol=1e-4, atol=1e-4)
            assert products() == before


@needs_compiler
@pytest.mark.costly(4)
@pytest.mark.parametrize("seed", range(12))
def test_random_shapes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any depth and columns, rows that are known or not, both ways in which weights lie."""
    target, rng = amx(monkeypatch), np.random.default_rng(300 + seed)
    rows, depth, columns = (int(n) for n in rng.integers((16, 2, 2), (90, 140, 140)))
    known, terms, transpose = seed % 3 > 0, (3, 6)[seed % 2], bool(seed & 2)
    if not known:  # of these pieces are only offered where they are worth it
        rows, depth, columns = rows + 200, depth + 200, columns + 40
    graph = linear(rows if known else None, depth, columns, transpose=transpose)
    with deciding() as record:
        passed(graph, target, "auto")
    (decision,) = [d for d in record.decisions if d.key.kind == "algorithm"]
    (setting,) = [s for s in decision.space if s.kind == "split" and s.knob("terms") == terms]
    with forcing({decision.key.name: setting.label}):
        parameters = weights(columns, depth, seed)
        w = parameters["w"].T
        arrays = parameters | {"w": parameters["w"] if transpose else np.ascontiguousarray(w)}
        model = tw.compile((graph, arrays), target=target)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    before = products()
    got = np.asarray(model(x))
    assert products() > before
    wide = x.astype(np.float64)
    bound = (COMPONENTWISE[terms] + 2 * depth * 2.0**-24) * (np.abs(wide) @ np.abs(w)) + 1e-6
    assert (np.abs(got - np.maximum(wide @ w + parameters["b"], 0)) <= bound).all()


HARD = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        3e38,
        -3.4e38,
        3.3895e38,
        3.3962e38,
        1e-38,
        -1e-38,
        1.2e-38,
        1e-40,
        1e-45,
        2.0**-126,
    ]
    + [2.0**-110, 1e19, -1e19, 1e18, 1.0, -1.0, 1.00390625, 65535.0],
    np.float32,
)


@needs_compiler
@pytest.mark.costly(100)
@pytest.mark.parametrize("seed", range(100))
def test_hard_numbers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand products of hard numbers in either factor: where one is not finite or large, the bits of the
    ordinary product; else within the relative and the absolute bound."""
    target, rng, graph = amx(monkeypatch), np.random.default_rng(seed), linear(16, 40, 16)
    terms = 3 if seed % 2 else 6
    key = key_of(graph, target)
    models = []
    for label in ("packed", f"split terms={terms},least=16"):
        with forcing({key: label}):
            models.append(tw.compile((graph, weights(16, 40)), target=target))
    ordinary, split = models

    def numbers(*shape: int) -> np.ndarray:
        """Ordinary ones of any scale with hard ones among them, all finite ones of moderate size half of the time."""
        scale = np.float32(10.0) ** rng.integers(-38 if rng.random() < 0.3 else -3, 4)
        values = (rng.standard_normal(shape) * scale).astype(np.float32)
        hard = rng.random(shape) < rng.choice([0.0, 0.002, 0.02, 0.5])
        small = HARD[np.abs(np.nan_to_num(HARD, nan=np.inf, posinf=np.inf)) < 1e6]
        return np.where(hard, rng.choice(HARD if rng.random() < 0.5 else small, shape), values)

    split_calls = 0
    for _ in range(20):
        parameters = {"w": numbers(16, 40), "b": np.zeros(16, np.float32)}
        for model in models:
            model.update(parameters, finite=False)
        w = parameters["w"].astype(np.float64)
        for _ in range(50):
            x, before = numbers(16, 40), products()
            got = np.asarray(split(x))
            used = products() > before
            split_calls += used
            with np.errstate(all="ignore"):
                sizes = np.abs(x.astype(np.float64)), np.abs(w)
                fine = (
                    sizes[0].max() < LIMIT
                    and 40 * sizes[1].max() < LIMIT
                    and sizes[0].max() * sizes[1].max() * 40 < LIMIT
                )
            assert used == fine
            if not used:
                np.testing.assert_array_equal(got.view(np.uint32), np.asarray(ordinary(x)).view(np.uint32))
                continue
            exact = np.maximum(x.astype(np.float64) @ w.T, 0)
            bound = (COMPONENTWISE[terms] + 6 * 40 * 2.0**-24) * (sizes[0] @ sizes[1].T)
            bound += 40 * 2.0**-123 * (1 + sizes[0].max() + sizes[1].max())
            assert (np.abs(got - exact) <= bound).all()
    assert 50 < split_calls < 950


def test_refusals() -> None:
    pieces, panels = (
        TensorType(bf16, tuple(map(const, (5, 2, 40)))),
        TensorType(bf16, tuple(map(const, (2, 1, 32, 16, 2)))),
    )
    attrs = {"columns": 16, "rows": 16}
    with pytest.raises(tw.Error, match="do not fit the terms"):
        ops.infer(
            "lowered.matmul_pieces", [pieces, panels], ops.attributes("lowered.matmul_pieces", {**attrs, "terms": 6})
        )
    deep = TensorType(bf16, tuple(map(const, (5, 2, 65))))
    with pytest.raises(tw.Error, match="do not fit the rows"):
        ops.infer(
            "lowered.matmul_pieces", [deep, panels], ops.attributes("lowered.matmul_pieces", {**attrs, "terms": 3})
        )
    with pytest.raises(tw.Error, match="two or three pieces"):
        ops.infer("lowered.pieces", [pieces], ops.attributes("lowered.pieces", {"count": 2, "first": True}))


@pytest.mark.parametrize(("count", "first"), [(2, False), (3, True)])
@pytest.mark.parametrize("rows", [7, None])
def test_native_pieces(rows: int | None, count: int, first: bool) -> None:
    """All of a vector's together; any number of rows."""
    # any machine: whatever the host decides, its numbers are those of the reference
    builder, n = GraphBuilder("pieces"), Var("n") if rows is None else const(rows)
    x = builder.input("x", TensorType(f32, (n, const(37))))
    graph = builder.finish((ops.emit1(builder, "lowered.pieces", x, count=count, first=first),))
    (group,) = fuse(graph)
    assert plan(lower_group(group, "kernel").func, Target.host()).plan == "pieces"
    for threads in (1, 2):
        model = tw.compile((graph, {}), threads=threads)
        for m in (rows,) if rows else (1, 5, 40):
            numbers = np.random.default_rng(m).standard_normal((m, 37)).astype(np.float32)
            (want,) = reference("lowered.pieces", [numbers], {"count": count, "first": first})
            np.testing.assert_array_equal(np.asarray(model(numbers)), want)


@pytest.mark.daily(4)
@pytest.mark.parametrize("target", [Target.host(), AMX], ids=["host", "amx"])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("shape", [(64, 32), (160, 75), (2, 64, 40)])
def test_pieces_of_packed_weights_need_one_kernel(shape: tuple[int, ...], transpose: bool, target: Target) -> None:
    """One kernel, which reads the weight once: the panels of its pieces, with columns past the last as zeros."""
    # any machine: whatever the host decides, its numbers are those of the reference
    *batch, depth, columns = shape
    stored = (*batch, columns, depth) if transpose else shape
    builder, attrs = GraphBuilder("panels"), {"width": 16, "group": 2, "panels": 2, "transpose": transpose}
    w = builder.input("w", TensorType(f32, tuple(const(d) for d in stored)))
    packed = ops.emit1(builder, "lowered.pack_dot", w, **attrs)
    graph = builder.finish((ops.emit1(builder, "lowered.pieces", packed, count=3, first=True),))
    (group,) = fuse(graph)
    planned = plan(lower_group(group, "kernel").func, target)
    assert planned.plan == "pieces"
    numbers = np.random.default_rng(depth).standard_normal(stored).astype(np.float32)
    (several,) = reference("lowered.pieces", [numbers], {"count": 3, "first": True})
    (want,) = reference("lowered.pack_dot", [several], attrs)
    func = lower_loops(planned.func, target)
    result = np.zeros(want.shape, want.dtype)
    interpret(func, [numbers, result])
    np.testing.assert_array_equal(result, want)
    if target is not AMX:
        np.testing.assert_array_equal(np.asarray(tw.compile((graph, {}))(numbers)), want)
    else:
        assert str(planned.func).count("in 0..32 vectorized") == str(planned.func).count(" vectorized") == 1


BRANCH = """graph @main(%p: bool[], %x: f32[64, 256]) params(%w: f32[256, 256]) {
  %y = cond(%p, %x, %w) {orelse = graph @product(%x: f32[64, 256], %w: f32[256, 256]) {
    %y = matmul(%x, %w) : f32[64, 256]
    return %y
  }, then = graph @same(%x: f32[64, 256], %w: f32[256, 256]) {
    return %x
  }} : f32[64, 256]
  return %y
}"""


@needs_compiler
def test_a_branch_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch on data that selects a product's kernel is nested in the model's own branch, also in a file."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 256), (256, 256)))
    model = tw.compile((parse_graph(BRANCH), {"w": w}), target=amx(monkeypatch))
    model.save(tmp_path / "branch.tw")
    for loaded in (model, tw.load(tmp_path / "branch.tw")):
        before = products()
        np.testing.assert_array_equal(np.asarray(loaded(np.asarray(True), x)), x)
        assert products() == before
        got, exact = np.asarray(loaded(np.asarray(False), x)), x.astype(np.float64) @ w
        assert products() > before and np.abs(got - exact).max() <= 1e-5 * np.abs(exact).max()
