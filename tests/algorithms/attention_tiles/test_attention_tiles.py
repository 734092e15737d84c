"""Attention in registers of matrices, whose instructions are emulated: against NumPy in double precision, in one
kernel, with the ordinary products where numbers have no pieces; its choice; its code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.amx_run import amx, needs_compiler, products
from tests.ops.oracle import by_expression, type_of
from tests.ops.test_attention import attributes, exact, func_of, masks, operands
from tests.ops.test_attention_pairs import assert_right
from tilewright import ops
from tilewright.algorithms.attention_tiles.offers import ERRORS
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.compiler import graph_passes
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, as_int, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.plans import plan
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.schedule.schedule import Schedule
from tilewright.support.errors import ScheduleError, ShapeError
from tilewright.targets import x86
from tilewright.targets.target import Target
from tilewright.transform.graph.options import Options
from tilewright.transform.loops import lower_loops

AMX = x86.processor("graniterapids", (*x86.V4_DOTS, "amx-tile", "amx-int8", "amx-bf16", "amx-fp16"))
DOT = "amx_16x16x32_bf16bf16"
HALF = "amx_16x16x32_f16f16"
SMALL = {"rows": 16, "width": 32, "keys": 64, "tiles": 2, "steps": 1, "side": 1}
WAYS = {"bf16": (), "x6 and x3": (6, 3), "x6": (6, 6)}


def scheduled(arrays: list[Any], attrs: dict[str, Any], **sizes: int) -> Schedule:
    s = Schedule(func_of(arrays, attrs))
    s.implement("attention", **{**SMALL, **sizes})
    return s


def graph_of(arrays: list[Any], attrs: dict[str, Any]) -> Graph:
    builder = GraphBuilder("one")
    values = [None if a is None else builder.input(f"x{k}", type_of(a)) for k, a in enumerate(arrays)]
    return builder.finish(ops.emit(builder, "lowered.attention", *values, **attrs))


def run(arrays: list[Any], attrs: dict[str, Any], **sizes: int) -> np.ndarray:
    """By the routine with these sizes; some products are of matrices."""
    s, before = scheduled(arrays, attrs, **sizes), products()
    out = np.ones([as_int(d) for d in s.func.params[-1].shape], np.float32)
    tw.build(s, unchecked=True)(*(a for a in arrays if a is not None), out)
    assert products() > before
    return out


def check(arrays: list[Any], more: dict[str, Any], terms: tuple[int, ...], **sizes: int) -> None:
    got = run(arrays, {**more, "dot": DOT, "terms": terms}, **sizes)
    if not terms:
        assert_right(got, arrays, more)
        return
    want = exact(arrays, more)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.nanmax(np.abs(got - want), initial=0.0) <= ERRORS[terms[0], terms[1]] * np.nanmax(np.abs(want))


def test_the_loops_in_the_interpreter() -> None:
    arrays = operands(1, 16, 9, 1, 2)
    attrs = attributes(heads=1, groups=1, dot=DOT, terms=(6, 3))
    out = np.ones((1, 16, 1, 2), np.float32)
    interpret(scheduled(arrays, attrs).func, [*arrays, out])
    want = exact(arrays, attributes(heads=1, groups=1))
    assert np.abs(out - want).max() <= ERRORS[6, 3] * np.abs(want).max()
    (stages,) = by_expression("lowered.attention", arrays, attrs)
    assert np.abs(stages - want).max() <= ERRORS[6, 3] * np.abs(want).max()
    arrays[1][0, 3, 0, 1] = np.inf
    with np.errstate(all="ignore"):
        (stages,) = by_expression("lowered.attention", arrays, attrs)
    np.testing.assert_array_equal(np.isnan(stages), np.isnan(exact(arrays, attributes(heads=1, groups=1))))


@pytest.mark.daily(2)
@needs_compiler
@pytest.mark.costly(4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("rows", "keys", "depth", "sizes"),
    [(37, 41, 32, {"rows": 32}), (20, 150, 40, {"rows": 16, "keys": 32})],
)
def test_lengths(
    rows: int, keys: int, depth: int, sizes: dict[str, int], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registers that are full and that are not; blocks of keys."""
    amx(monkeypatch)
    check(operands(2, rows, keys, 2, depth, "shhs"), attributes(order="shhs"), WAYS[way], **sizes)


@pytest.mark.daily(2)
@needs_compiler
@pytest.mark.parametrize(("rows", "keys", "causal"), [(37, 41, False), (64, 64, True)])
def test_factors_of_f16(rows: int, keys: int, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times nearer to the exact attention than bf16 at least, and not as near as pieces."""
    amx(monkeypatch)
    arrays, more = operands(2, rows, keys, 2, 32), attributes(causal=causal)
    want, errors = exact(arrays, more), {}
    for dot in (DOT, HALF):
        got = run(arrays, {**more, "dot": dot}, keys=32)
        errors[dot] = np.abs(got - want).max() / np.abs(want).max()
    assert 1e-5 < errors[HALF] < min(2e-3, errors[DOT] / 4)
    rounded = [a.astype(np.float16).astype(np.float32) for a in arrays]
    (stages,) = by_expression("lowered.attention", arrays, {**more, "dot": HALF})
    assert np.abs(stages - exact(rounded, more)).max() <= 2.0**-10 * np.abs(want).max()


@needs_compiler
def test_programs_of_f16(monkeypatch: pytest.MonkeyPatch) -> None:
    target, arrays = amx(monkeypatch), operands(1, 32, 40, 2, 16)
    graph = graph_of(arrays, attributes())
    with forcing({key_of(graph, target, precision="fp16"): "attention_tiles scores=1,outputs=1"}):
        model = tw.compile((graph, {}), target=target, precision="fp16")
    before, want = products(), exact(arrays, attributes())
    got = np.asarray(model(*arrays))
    assert products() > before
    assert 1e-6 < np.abs(got - want).max() / np.abs(want).max() < 2e-3


@needs_compiler
@pytest.mark.costly(3)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_masks(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    amx(monkeypatch)
    arrays = [*operands(2, 20, 70, 2, 16), masks(20, 70)[which]]
    more, terms, sizes = (
        ({"causal": True}, (6, 6), {"keys": 32}),
        ({"fill": float("-inf"), "guard": True}, (6, 3), {}),
        ({"fill": -1e9}, (), {}),
    )[which]
    check(arrays, attributes(**more), terms, **sizes)


@needs_compiler
@pytest.mark.costly(2)
def test_a_cache_shared_heads_and_a_substitute(monkeypatch: pytest.MonkeyPatch) -> None:
    amx(monkeypatch)
    rng = np.random.default_rng(3)
    arrays: list[Any] = [rng.standard_normal((1, 18, h, 16)).astype(np.float32) for h in (4, 2, 2)]
    past = [rng.standard_normal((1, 2, 25, 16)).astype(np.float32) for _ in range(2)]
    attrs = attributes(heads=4, groups=2, causal=True)
    check([*arrays, None, None, None, *past], attrs, (6, 6))
    numbers = [np.full((1,), n, np.float32) for n in (1.5, 0.25)]
    hidden = np.zeros((18, 18), bool)
    hidden[:, 3:9] = True
    hidden[7] = False
    attrs = attributes(heads=4, groups=2, fill=float("-inf"), guard=True)
    check([*arrays, hidden, *numbers], attrs, (6, 6), keys=32)


@pytest.mark.daily(2)
@needs_compiler
@pytest.mark.costly(2)
@pytest.mark.parametrize(
    ("operand", "value"),
    [(0, np.nan), (0, 1e20), (0, -np.inf), (1, np.inf), (1, 3e38), (2, -np.inf), (2, 1e-40), (2, np.nan)],
)
def test_numbers_without_pieces(value: float, operand: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any operand and place: as f32 has it, in the heads that they are in. NaN has pieces, which are NaN."""
    target, arrays = amx(monkeypatch), operands(1, 16, 20, 2, 8)
    graph = graph_of(arrays, attributes())
    arrays[operand][0, 5, 1, 3] = value
    with forcing({key_of(graph, target): "attention_tiles scores=6,outputs=6"}):
        model = tw.compile((graph, {}), target=target)
    before = products()
    got = np.asarray(model(*arrays))
    assert products() - before == (24 if abs(value) >= 1e30 else 48)
    assert [k.label for k in model.profile(*arrays).kernels] == ["attention x6/x6 tiles"]
    ordinary = np.asarray(tw.compile((graph, {}))(*arrays))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(ordinary))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(ordinary))
    fine = np.isfinite(ordinary)
    assert (np.abs(got - ordinary)[fine] <= 4e-6 * max(1.0, np.abs(ordinary[fine]).max())).all()


def key_of(graph: Graph, target: Target, **options: Any) -> str:
    with deciding() as record:
        passed(graph, target, **options)
    return next(d.key.name for d in record.decisions if d.key.kind == "algorithm")


def passed(graph: Graph, target: Target, **options: Any) -> Graph:
    for name, function in graph_passes(target, Options(**options)):
        graph = function(graph)
        if name == "assign layouts":
            break
    return graph


@pytest.mark.parametrize(
    ("rows", "options", "chosen"),
    [
        (384, {"fast": "f4"}, "attention_tiles scores=6,outputs=3"),
        (384, {"fast": "f2"}, None),
        (64, {}, "packed"),
        (128, {"precision": "bf16"}, "attention_tiles scores=1,outputs=1"),
        (128, {"precision": "fp16"}, "attention_tiles scores=1,outputs=1"),
        (384, {}, "attention_tiles scores=6,outputs=3"),
        (None, {}, "attention_tiles scores=6,outputs=3"),
        (8, {}, None),
    ],
)
def test_estimates_choose(rows: int | None, options: dict[str, Any], chosen: str | None) -> None:
    """For twelve heads of depth 64."""
    builder = GraphBuilder("one")
    size = Var("n", lo=1) if rows is None else const(rows)
    shape = (const(1), size, const(12), const(64))
    values = [builder.input(name, TensorType(f32, shape)) for name in "qkv"]
    attrs = attributes(heads=12, groups=12)
    graph = builder.finish(ops.emit(builder, "lowered.attention", *values, **attrs))
    with deciding() as record:
        text = str(passed(graph, AMX, **options))
    selected = [d.selected.label for d in record.decisions if d.key.kind == "algorithm"]
    assert selected == ([] if chosen is None else [chosen])
    dot = HALF if options.get("precision") == "fp16" else DOT
    assert (dot in text) == (chosen not in (None, "packed"))
    assert "amx" not in str(passed(graph, Target.parse("graniterapids"), **options))


def test_tables_name_the_algorithm() -> None:
    arrays = operands(1, 64, 64, 2, 64)
    for attrs, label in (
        ({}, "attention"),
        ({"dot": DOT}, "attention bf16"),
        ({"dot": HALF}, "attention f16"),
        ({"dot": DOT, "terms": (6, 3)}, "attention x6/x3 tiles"),
    ):
        (node,) = graph_of(arrays, attributes(**attrs)).nodes
        assert node.label == label


@pytest.mark.parametrize(("terms", "multiplied"), [((), 1 + 1), ((6, 3), 6 + 3)])
def test_its_code(terms: tuple[int, ...], multiplied: int) -> None:
    """One kernel: of each of both products four registers of sums by two steps of the depth, for each term."""
    arrays = operands(1, 64, 64, 2, 64)
    planned = plan(func_of(arrays, attributes(dot=DOT, terms=terms)), AMX)
    text = assembly(emit_llvm(lower_loops(planned.func, AMX), AMX), AMX)
    assert text.count("\ttdpbf16ps\t") == 4 * 2 * multiplied and text.count("\ttilezero\t") == 8
    assert text.count("\tldtilecfg\t") == text.count("\ttilerelease") == 1


def test_what_does_not_fit_is_refused() -> None:
    arrays = operands(1, 16, 32, 2, 8)
    with pytest.raises(ShapeError, match="attention of pieces"):
        func_of(arrays, attributes(terms=(6, 3)))
    with pytest.raises(ShapeError, match="attention of pieces"):
        func_of(arrays, attributes(dot=DOT, terms=(6,)))
    for sizes in ({"rows": 32}, {"rows": 8}, {"width": 16, "keys": 32}, {"tiles": 0}):
        with pytest.raises(ScheduleError, match=r"registers of matrices|whole panels"):
            scheduled(arrays, attributes(dot=DOT, terms=(6, 3)), **sizes)
