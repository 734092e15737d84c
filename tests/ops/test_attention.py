"""Attention: its stages and its loops in the interpreter, and native code, against NumPy in double precision.

Tolerance: 2e-6 of the output's scale in f32 (sums of up to 300 products and a softmax), 2e-3 in f16.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import by_expression, reference, type_of
from tilewright import ops
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, as_int, const
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.lowered.attention import ORDERS
from tilewright.plans import plan
from tilewright.plans.attention.tiles import Sizes, tiles
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.trace import parse_trace
from tilewright.support.errors import ScheduleError, ShapeError
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import Group
from tilewright.transform.lower import lower_group

RNG = np.random.default_rng(0)
DOT = "dot_16x2_bf16"


def attributes(**arguments: Any) -> dict[str, Any]:
    ordinary = {"order": "ssss", "heads": 2, "groups": 2, "first": (0, 0, 0), "scale": 0.125, "causal": False}
    return {**ordinary, "fill": 0.0, "guard": False, **arguments}


def operands(
    batch: int, rows: int, keys: int, heads: int, depth: int, order: str = "ssss", dtype: Any = np.float32
) -> list[Any]:
    def one(length: int, letter: str) -> np.ndarray:
        sizes = (batch, length, heads, depth)
        return RNG.standard_normal([sizes[k] for k in ORDERS[letter]]).astype(dtype)

    return [one(n, o) for n, o in zip((rows, keys, keys), order[:3], strict=True)]


def exact(arrays: list[Any], attrs: dict[str, Any]) -> np.ndarray:
    wide = [a if a is None or a.dtype == bool else a.astype(np.float64) for a in arrays]
    return reference("lowered.attention", wide, attrs)[0]


def native(arrays: list[Any], attrs: dict[str, Any]) -> np.ndarray:
    builder = GraphBuilder("one")
    values = [None if a is None else builder.input(f"x{k}", type_of(a)) for k, a in enumerate(arrays)]
    model = tw.compile((builder.finish(ops.emit(builder, "lowered.attention", *values, **attrs)), {}))
    return np.asarray(model(*[a for a in arrays if a is not None]))


def assert_close_to(got: np.ndarray, want: np.ndarray, tolerance: float = 2e-6) -> None:
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    scale = np.nanmax(np.abs(want), initial=1e-6)
    assert np.nanmax(np.abs(got - want), initial=0.0) <= tolerance * scale


def func_of(arrays: list[Any], attrs: dict[str, Any]) -> PrimFunc:
    """The unscheduled function of one attention."""
    builder = GraphBuilder("one")
    values = [None if a is None else builder.input(f"x{k}", type_of(a)) for k, a in enumerate(arrays)]
    graph = builder.finish(ops.emit(builder, "lowered.attention", *values, **attrs))
    present = tuple(v for v in values if v is not None)
    return lower_group(Group(graph.nodes, present, graph.outputs), "attention").func


def tiled(arrays: list[Any], attrs: dict[str, Any], **sizes: int) -> np.ndarray:
    """The result by the plan's loops with these sizes, which it would not choose for so little."""
    s = scheduled(arrays, attrs, **sizes)
    out = np.ones([as_int(d) for d in s.func.params[-1].shape]).astype(arrays[0].dtype)
    tw.build(s)(*(a for a in arrays if a is not None), out)
    return out


def scheduled(arrays: list[Any], attrs: dict[str, Any], **sizes: int) -> Schedule:
    """The plan's loops with these sizes."""
    s = Schedule(func_of(arrays, attrs))
    width = max(2 * Target.host().lanes(4), 16)  # a dot instruction has 16 lanes
    s.implement("attention", **{"rows": 4, "width": width, "keys": 64, "tiles": 2, "steps": 1, "side": 1, **sizes})
    return s


@pytest.mark.daily(4)
@pytest.mark.parametrize(
    "rows,keys", [(1, 1), (1, 129), (7, 7), (64, 64), (129, 129), (300, 64), (5, 300), (5, 1), (4, 0), (1, 0)]
)
def test_lengths(rows: int, keys: int) -> None:
    arrays = [*operands(2, rows, keys, 2, 24), RNG.standard_normal((2, 1, rows, keys)).astype(np.float32)]
    assert_close_to(native(arrays, attributes()), exact(arrays, attributes()))


@pytest.mark.daily(3)
@pytest.mark.parametrize("keys", [64, 129, 300])
def test_blocks_of_keys_give_the_same(keys: int) -> None:
    arrays = operands(1, 20, keys, 2, 16)
    assert_close_to(tiled(arrays, attributes(), keys=64), exact(arrays, attributes()))


@pytest.mark.daily(2)
@pytest.mark.parametrize("rows,keys,depth,side", [(9, 64, 16, 16), (9, 70, 24, 8), (5, 33, 20, 4), (20, 96, 48, 4)])
def test_squares_of_keys_are_transposed(rows: int, keys: int, depth: int, side: int) -> None:
    """In a routine: keys past the last one are never read, a depth that fills no panel of values is filled up."""
    arrays = operands(2, rows, keys, 2, depth)
    side = min(side, Target.host().lanes(4))
    assert_close_to(tiled(arrays, attributes(), side=side, keys=96), exact(arrays, attributes()))


@pytest.mark.daily(3)
@pytest.mark.costly(4)
@pytest.mark.parametrize("order", ["ssss", "hhhh", "shhs", "hsss", "stts", "tthh", "htst"])
@pytest.mark.parametrize("keys,depth", [(11, 1), (11, 5), (11, 20), (16, 32)])
def test_orders_and_depths(order: str, keys: int, depth: int) -> None:
    for rows in (2, 9):
        arrays = operands(2, rows, keys, 2, depth, order)
        attrs = attributes(order=order)
        assert_close_to(native(arrays, attrs), exact(arrays, attrs))


@pytest.mark.daily(3)
@pytest.mark.costly(12)
@pytest.mark.parametrize("order", ["ssss", "hsss"])
@pytest.mark.parametrize("rows,together,at_once", [(1, 1, 16), (3, 3, 8), (7, 4, 4), (8, 4, 4), (13, 6, 4), (6, 1, 1)])
@pytest.mark.parametrize("keys,depth", [(1, 16), (7, 1), (33, 48), (50, 130), (129, 200), (64, 256)])
def test_rows_that_read_keys_where_they_are(
    rows: int, together: int, at_once: int, keys: int, depth: int, order: str
) -> None:
    """Depths in parts of a panel, with a rest, and of less than one; tiles that leave rows, blocks that leave keys."""
    arrays = [*operands(2, rows, keys, 2, depth, order), RNG.standard_normal((rows, keys)).astype(np.float32)]
    lanes = Target.host().lanes(4)
    sizes = {"rows": together, "width": lanes, "keys": 256, "tiles": 0, "steps": min(at_once, lanes)}
    assert_close_to(tiled(arrays, attributes(order=order), **sizes), exact(arrays, attributes(order=order)))
    arrays[3] = RNG.random((rows, keys)) < 0.5
    attrs = attributes(order=order, guard=True, causal=True, fill=float("-inf"))
    assert_close_to(tiled(arrays, attrs, **sizes), exact(arrays, attrs))


def masks(rows: int, keys: int) -> list[np.ndarray]:
    additive = np.where(RNG.random((2, 1, rows, keys)) < 0.3, -np.inf, 0).astype(np.float32)
    additive[1, 0, rows - 1] = -np.inf
    return [additive, RNG.random((rows, keys)) < 0.5, RNG.standard_normal((2, 2, 1, keys)).astype(np.float32)]


@pytest.mark.daily(3)
@pytest.mark.costly(4)
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("rows,keys,blocks", [(2, 70, False), (7, 70, False), (7, 80, False), (7, 70, True)])
def test_masks(which: int, blocks: bool, rows: int, keys: int) -> None:
    """Rows that see no key are NaN, as in the reference; zero with `guard`, the substitute's share if there is one."""
    arrays = [*operands(2, rows, keys, 2, 16), masks(rows, keys)[which]]
    run = partial(tiled, keys=32 if Target.host().lanes(4) == 16 else 16, tiles=1) if blocks else native
    for case in ({"causal": True}, {"fill": -1e9}, {"fill": float("-inf"), "guard": True}):
        attrs = attributes(**case)
        assert_close_to(run(arrays, attrs), exact(arrays, attrs))
    attrs = attributes(guard=True)
    more = [*arrays, np.full((1,), 1.5, np.float32), np.full((1,), 0.25, np.float32)]
    assert_close_to(run(more, attrs), exact(more, attrs))


@pytest.mark.costly(2)
@pytest.mark.parametrize("rows", [1, 2, 7, 16])
@pytest.mark.parametrize("keys_nan", [False, True])
def test_rows_without_keys_are_zero_and_what_is_no_number_stays(rows: int, keys_nan: bool) -> None:
    arrays = [*operands(2, rows, 20, 2, 16), RNG.random((rows, 20)) < 0.5]
    arrays[3][0], arrays[3][-1, 3] = rows == 1, True
    arrays[0][0, -1, 0, 2] = np.nan
    arrays[0][1, 0, 1] = np.inf
    attrs = attributes(guard=True, keeps_nan=keys_nan, fill=float("-inf"))
    with np.errstate(all="ignore"):
        wanted = exact(arrays, attrs)
        assert_close_to(native(arrays, attrs), wanted)
    assert np.isnan(wanted).any() == keys_nan


@pytest.mark.parametrize("keys,depth", [(20, 4), (32, 16)])
def test_infinite_scores_are_not_a_number(keys: int, depth: int) -> None:
    q, k, v = operands(1, 8, keys, 1, depth)
    q[0, 3], k[0, 5], q[0, 6, 0, 2] = np.inf, 1.0, np.nan
    attrs = attributes(heads=1, groups=1)
    with np.errstate(all="ignore"):
        assert_close_to(native([q, k, v], attrs), exact([q, k, v], attrs))


@pytest.mark.parametrize("length", [10, 32])
def test_heads_in_groups_and_parts_of_one_array(length: int) -> None:
    whole = RNG.standard_normal((2, length, 8, 16)).astype(np.float32)
    attrs = attributes(heads=4, groups=2, first=(0, 4, 6))
    assert_close_to(native([whole] * 3, attrs), exact([whole] * 3, attrs))


@pytest.mark.parametrize("dtype,tolerance", [(np.float16, 2e-3), (np.float64, 1e-14)])
@pytest.mark.parametrize("keys,depth", [(33, 12), (48, 16)])
def test_element_types(dtype: Any, tolerance: float, keys: int, depth: int) -> None:
    arrays = operands(1, 9, keys, 2, depth, dtype=dtype)
    assert_close_to(native(arrays, attributes()).astype(np.float64), exact(arrays, attributes()), tolerance)


def test_stages_and_loops_in_the_interpreter() -> None:
    arrays = [*operands(1, 3, 9, 2, 5), RNG.random((3, 9)) < 0.7]
    attrs = attributes(fill=-1e4)
    (got,) = by_expression("lowered.attention", arrays, attrs)
    assert_close_to(got, exact(arrays, attrs))
    got = np.ones_like(got)
    interpret(scheduled(arrays, attrs, rows=2, width=4, keys=4, tiles=1).func, [*arrays, got])
    assert_close_to(got, exact(arrays, attrs))


def test_rows_that_read_keys_where_they_are_write_nothing_where_there_are_none() -> None:
    """Without keys no panel is the last one, whose scores past the last key are minus infinity."""
    keys = Var("t", lo=0)
    builder = GraphBuilder("one")
    values = [
        builder.input(f"x{k}", TensorType(f32, (const(1), n, const(2), const(16))))
        for k, n in enumerate((const(3), keys, keys))
    ]
    graph = builder.finish(ops.emit(builder, "lowered.attention", *values, **attributes(causal=True)))
    s = Schedule(lower_group(Group(graph.nodes, graph.inputs, graph.outputs), "attention").func)
    s.implement("attention", rows=3, width=16, keys=64, tiles=0, steps=4, side=1)
    for length in (0, 1, 16, 35):
        arrays = operands(1, 3, length, 2, 16)
        got = np.full_like(arrays[0], 7)
        interpret(s.func, [*arrays, got], symbols={"t": length})
        assert_close_to(got, exact(arrays, attributes(causal=True)))


def test_symbolic_lengths_serve_all() -> None:
    batch, rows, keys = (Var(n, lo=0) for n in ("b", "s", "t"))
    builder = GraphBuilder("one")
    types = [TensorType(f32, (batch, n, const(2), const(16))) for n in (rows, keys, keys)]
    values = [builder.input(f"x{k}", t) for k, t in enumerate(types)]
    attrs = attributes(causal=True)
    model = tw.compile((builder.finish(ops.emit(builder, "lowered.attention", *values, **attrs)), {}))
    for b, s, t in ((1, 1, 1), (2, 7, 7), (1, 64, 64), (0, 3, 3), (1, 1, 129), (1, 30, 530), (1, 1, 0), (1, 20, 0)):
        arrays = operands(b, s, t, 2, 16)
        assert_close_to(np.asarray(model(*arrays)), exact(arrays, attrs))


@pytest.mark.parametrize("names", [("queries", "keys", "values"), ("weights", "scores", "y")])
@pytest.mark.parametrize("keys", [16, 24, "keys", "scores"])
def test_operands_and_symbols_may_have_the_names_of_stages(names: tuple[str, ...], keys: int | str) -> None:
    arrays = operands(2, 5, keys if isinstance(keys, int) else 9, 2, 16)
    length = const(keys) if isinstance(keys, int) else Var(keys, lo=1)
    builder = GraphBuilder("one")
    types = [TensorType(f32, (const(2), n, const(2), const(16))) for n in (const(5), length, length)]
    values = [builder.input(name, t) for name, t in zip(names, types, strict=True)]
    attrs = attributes()
    model = tw.compile((builder.finish(ops.emit(builder, "lowered.attention", *values, **attrs)), {}))
    assert_close_to(np.asarray(model(*arrays)), exact(arrays, attrs))


@pytest.mark.parametrize("name", ["x86-64-v3", "znver4", "generic-aarch64"])
def test_tiles_fit_the_registers(name: str) -> None:
    target = Target.parse(name)
    for rows in (3, 13, 64, 128, 129, 384):
        for tile in tiles(Sizes(const(rows), const(128), 64, 64, 12, 4), target):
            vectors = tile.width // target.lanes(4)
            if not tile.tiles:
                assert tile.rows * tile.steps + min(tile.rows, tile.steps) <= target.registers
                continue
            assert tile.side in (4, 8, 16) and target.lanes(4) % tile.side == 0
            assert 1 <= tile.rows * vectors + vectors + 1 <= target.registers


def test_text_keeps_every_attribute() -> None:
    builder = GraphBuilder("one")
    arrays = [*operands(1, 4, 6, 2, 8), np.ones((4, 6), bool)]
    values = [builder.input(f"x{k}", type_of(a)) for k, a in enumerate(arrays)]
    attrs = attributes(fill=float("-inf"))
    graph = builder.finish(ops.emit(builder, "lowered.attention", *values, **attrs))
    assert ops.parse_graph(str(graph)) == graph


def test_two_threads_share_the_heads() -> None:
    rows = Var("s", lo=0)
    builder = GraphBuilder("one")
    types = [TensorType(f32, (const(2), rows, const(3), const(16)))] * 3
    values = [builder.input(f"x{k}", t) for k, t in enumerate(types)]
    attrs = attributes(heads=3, groups=3)
    model = tw.compile((builder.finish(ops.emit(builder, "lowered.attention", *values, **attrs)), {}), threads=2)
    for n in (3, 50):
        arrays = operands(2, n, n, 3, 16)
        assert_close_to(np.asarray(model(*arrays)), exact(arrays, attrs))


@pytest.mark.daily(2)
@pytest.mark.parametrize("rows,keys", [(1, 40), (2, 33), (5, 31), (9, 20), (12, 20)])
def test_keys_of_a_cache(rows: int, keys: int) -> None:
    """The cache holds three layers of two batch entries; the second layer is meant."""
    arrays = [*operands(2, rows, rows, 4, 16), RNG.standard_normal((rows, keys + rows)).astype(np.float32), None, None]
    arrays += [RNG.standard_normal((6, 4, keys, 16)).astype(np.float32) for _ in range(2)]
    attrs = attributes(heads=4, groups=4, past_first=2, causal=True)
    assert_close_to(native(arrays, attrs), exact(arrays, attrs))


def test_what_the_loops_refuse() -> None:
    arrays = operands(1, 4, 6, 2, 8)
    for wrong, message in (
        ({"rows": 0}, "at least 1"),
        ({"keys": 33}, "whole panels"),
        ({"side": 16}, "divides the width and the depth"),
        ({"colour": 1}, "rows, width, keys, tiles, steps, side"),
    ):
        with pytest.raises(ScheduleError, match=message):
            scheduled(arrays, attributes(), **wrong)
    s = scheduled(arrays, attributes())
    with pytest.raises(ScheduleError, match="and nothing beside"):
        s.implement("attention", rows=4, width=32, keys=64, tiles=2, steps=1, side=1)
    with pytest.raises(ScheduleError, match="no routine is called 'atention'"):
        s.implement("atention")


def test_traces_replay() -> None:
    arrays = operands(1, 9, 6, 2, 8)
    s = scheduled(arrays, attributes())
    reloaded = parse_trace(str(s.trace)).replay(func_of(arrays, attributes()))
    assert str(reloaded.func) == str(s.func) and str(reloaded.trace) == str(s.trace)


def test_the_decision_and_other_settings_of_it() -> None:
    """Every setting of the space gives the same result; the knobs have neighbours; the estimates are ordered."""
    arrays = operands(1, 30, 70, 2, 16)
    with deciding() as record:
        native(arrays, attributes())
    (decision,) = (d for d in record.decisions if "lowered.attention(" in d.key.text)
    assert {k.name for k in decision.space.knobs("attention")} == {"rows", "width", "keys", "tiles", "steps", "side"}
    own = [e for s, e in zip(decision.space, decision.estimates, strict=True) if s.kind == "attention"]
    assert decision.why == "estimate" and own == sorted(own) and min(own) > 0
    for label in RNG.choice(list(decision.space.labels), 6, replace=False):
        with forcing({decision.key.name: str(label)}):
            assert_close_to(native(arrays, attributes()), exact(arrays, attributes()))


def test_scale_and_substitute_that_are_numbers_of_the_graph() -> None:
    arrays, settings = (
        [*operands(1, 9, 12, 2, 8), RNG.random((9, 12)) < 0.1],
        attributes(guard=True, fill=float("-inf")),
    )
    b = GraphBuilder("one")
    values = [b.input(f"x{k}", type_of(a)) for k, a in enumerate(arrays)]
    scale, substitute = (ops.emit1(b, "constant", value=np.array([x], np.float32)) for x in (2.0, 0.25))
    graph = b.finish(ops.emit(b, "lowered.attention", *values, scale, substitute, **settings))
    with deciding() as record:
        model = tw.compile((graph, {}))
    assert [d.selected.kind for d in record.decisions] == ["attention"]
    more = [*arrays, np.array([2.0], np.float32), np.array([0.25], np.float32)]
    assert_close_to(np.asarray(model(*arrays)), exact(more, settings))


def steps(rows: int, keys: int, groups: int = 4, **arguments: Any) -> set[str]:
    """The primitives of the plan's choice for vectors of eight, which does no more than was ordered."""
    q, k, v = (operands(2, n, n, h, 16)[0] for n, h in ((rows, 4), (keys, groups), (keys, groups)))
    planned = plan(func_of([q, k, v], attributes(heads=4, groups=groups, **arguments)), Target.parse("x86-64-v3"))
    assert planned.plan == "attention" and not planned.rejected and not planned.schedule.refused
    return {i.primitive for i in planned.schedule.trace.instructions}


def test_whole_rows_of_scores_are_a_schedule_of_the_stages() -> None:
    for primitives in (steps(9, 32), steps(30, 80, causal=True), steps(40, 64, groups=2)):
        assert "implement" not in primitives and {"compute_at", "transform_layout"} <= primitives
    for primitives in (steps(1, 32), steps(9, 20), steps(30, 4000), steps(9, 20, dot=DOT)):
        assert "implement" in primitives


def packed(rows: int, starts: list[int], order: str = "ssss", heads: int = 2, depth: int = 16) -> list[Any]:
    """Rows of several sequences."""
    return [*operands(1, rows, rows, heads, depth, order), *[None] * 5, np.array(starts, np.int64)]


SEQUENCES = [(97, [0]), (97, [0, 1, 2]), (97, [0, 7, 40]), (97, [0, 30, 31, 90]), (5, [0, 1, 2, 3, 4]), (64, [0, 32])]


@pytest.mark.daily(3)
@pytest.mark.costly(5)
@pytest.mark.parametrize(("rows", "starts"), SEQUENCES)
@pytest.mark.parametrize("more", [{}, {"causal": True}, {"order": "hsth"}, {"dot": DOT}, {"groups": 1}])
def test_packed_sequences_see_themselves(rows: int, starts: list[int], more: dict[str, Any]) -> None:
    attrs = attributes(**more)
    arrays = packed(rows, starts, attrs["order"])
    want = exact(arrays, attrs)
    tolerance = 2e-2 if "dot" in more else 2e-6
    assert_close_to(native(arrays, attrs), want, tolerance)
    assert_close_to(tiled(arrays, attrs, keys=32), want, tolerance)
    if rows < 64:  # the interpreter takes all pairs of rows one by one
        (got,) = by_expression("lowered.attention", arrays, attrs)
        assert_close_to(got, want, tolerance)
    for first, end in zip(starts, [*starts[1:], rows], strict=True):
        axes = [ORDERS[o].index(1) for o in attrs["order"]]
        alone = [a.take(range(first, end), axis) for a, axis in zip(arrays[:3], axes, strict=False)]
        own = exact(alone, attrs)
        assert_close_to(want.take(range(first, end), axes[3]), own, 1e-12)


@pytest.mark.daily(2)
@pytest.mark.costly(18)
@pytest.mark.parametrize(("rows", "starts"), SEQUENCES)
@pytest.mark.parametrize("more", [{}, {"causal": True}, {"order": "hsth"}, {"dot": DOT}, {"groups": 1}])
def test_rows_of_packed_sequences_read_keys_where_they_are(rows: int, starts: list[int], more: dict[str, Any]) -> None:
    """Compiling one of them takes six seconds."""
    attrs = attributes(**more)
    arrays = packed(rows, starts, attrs["order"])
    tolerance = 2e-2 if "dot" in more else 2e-6
    assert_close_to(tiled(arrays, attrs, rows=3, tiles=0, steps=4), exact(arrays, attrs), tolerance)


@pytest.mark.daily(2)
@pytest.mark.parametrize("starts", [[-5, 1000, 3], [9, 0, 4], [1 << 62, -(1 << 62)], [3, 3, 3]])
def test_starts_that_make_no_sense_read_nothing_outside(starts: list[int]) -> None:
    native(packed(11, starts), attributes())


def test_packed_sequences_refuse_what_does_not_go_with_them() -> None:
    arrays = packed(8, [0, 3])
    for k, other in ((3, np.ones((8, 8), bool)), (8, np.zeros((2, 1), np.int64)), (8, np.zeros(2, np.int32))):
        wrong = [other if j == k else a for j, a in enumerate(arrays)]
        with pytest.raises(ShapeError, match="sequences"):
            native(wrong, attributes())
