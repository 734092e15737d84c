"""Overlays in other values' memory: nothing that is in use at the same time overlaps, steps give the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.train.test_recompute import chain
from tilewright import assemble
from tilewright.arith import simplify
from tilewright.ir.dtype import f32, f64, i64
from tilewright.ir.expr import Expr, Var, as_expr, as_int, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ir.rewrite import substitute
from tilewright.ops.interpret import run_graph
from tilewright.ops.registry import emit1
from tilewright.train.entry import compile_step
from tilewright.train.step import Step
from tilewright.transform.graph import overlays
from tilewright.transform.graph.overlays import _Block, _Overlays, _segments, _Use

HOST = 0


def value(name: str, elements: int, width: int = 4) -> Value:
    return Value(name, TensorType({4: f32, 8: f64}[width], (as_expr(elements),)))


@st.composite
def overlayings(draw: st.DrawFn) -> _Overlays:
    """A host of which parts come into use one after the other, and blocks that live at any time."""
    steps = draw(st.integers(2, 14))
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    touched, begin = [], 0
    for size in sizes:
        first = draw(st.integers(0, steps - 1))
        touched.append(_Use(begin * 32, (begin + size) * 32, first, first))
        begin += size
    touched.append(_Use(0, begin * 32, steps - 1, steps - 1))
    first = min(u.first for u in touched)
    blocks = {HOST: _Block(first, steps - 1, begin * 32, steps - 1, values=[value("host", begin * 8)])}
    for k in range(1, draw(st.integers(1, 10))):
        first = draw(st.integers(0, steps - 1))
        last = draw(st.integers(first, steps - 1))
        width, elements = draw(st.sampled_from((4, 4, 4, 8))), draw(st.integers(1, 400))
        blocks[k] = _Block(first, last, elements * width, last, values=[value(f"v{k}", elements, width)])
    return _Overlays(steps, blocks, {HOST: _segments(touched)})


@settings(max_examples=150, deadline=None)
@given(overlayings())
def test_nothing_overlaps(overlaying: _Overlays) -> None:
    """A host is asked again and again, until it saves no more."""
    known, uses = dict(overlaying.blocks), list(overlaying.uses[HOST])
    lives = {b.values[0]: b for b in known.values()}
    before, result = max(overlaying.live()), overlaying.occupy(HOST)
    while result:
        for overlay, place in result.items():
            block = lives.pop(overlay)
            assert place.base == known[HOST].values[0] and overlay.dtype == f32
            at = (as_int(place.offset) or 0) * 4
            assert at % 64 == 0 and at + block.nbytes <= known[HOST].nbytes
            for u in uses:
                separate = block.last < u.first or u.last < block.first
                assert separate or at + block.nbytes <= u.begin or u.end <= at
            uses.append(_Use(at, at + block.nbytes, block.first, block.last))
        assert max(overlaying.live()) < before
        before, result = max(overlaying.live()), overlaying.occupy(HOST)


N = Var("n", lo=1, hi=50)


def at(e: Expr, n: int) -> int:
    result = as_int(substitute(e, {N: const(n)}))
    assert result is not None
    return result


@st.composite
def symbolic_lodgings(draw: st.DrawFn) -> tuple[_Overlays, list[tuple[Expr, Expr, _Use]]]:
    """Overlays with sizes by a symbol, estimated at its largest value; parts with their ends."""
    steps = draw(st.integers(3, 12))
    size = st.tuples(st.integers(0, 3), st.integers(0, 40)).filter(any).map(lambda s: (N * s[0] + s[1]) * 64)
    end: Expr = const(0)
    ends, parts = {0: end}, []
    for each in draw(st.lists(size, min_size=1, max_size=5)):
        first = draw(st.integers(0, steps - 1))
        begin, end = end, simplify(end + each)
        ends[at(end, 50)] = end
        parts.append((begin, end, _Use(at(begin, 50), at(end, 50), first, steps - 1)))
    uses = [u for _, _, u in parts]
    whole = Value("host", TensorType(f32, (simplify(end // 4),)))
    host = _Block(min(u.first for u in uses), steps - 1, at(end, 50), steps - 1, values=[whole], size=end)
    blocks = {HOST: host}
    for k in range(1, draw(st.integers(2, 9))):
        first, nbytes = draw(st.integers(0, steps - 1)), draw(size)
        own = Value(f"v{k}", TensorType(f32, (simplify(nbytes // 4),)))
        last = draw(st.integers(first, steps - 1))
        blocks[k] = _Block(first, last, at(nbytes, 50), last, values=[own], size=simplify(nbytes))
    return _Overlays(steps, blocks, {HOST: uses}, {HOST: ends}), parts


@settings(max_examples=150, deadline=None)
@given(symbolic_lodgings())
def test_nothing_overlaps_for_any_size(created: tuple[_Overlays, list[tuple[Expr, Expr, _Use]]]) -> None:
    overlaying, parts = created
    known = dict(overlaying.blocks)
    result = overlaying.occupy(HOST)
    lives = {b.values[0]: b for b in known.values()}
    uses = [(begin, end, u.first, u.last) for begin, end, u in parts]
    for overlay, place in result.items():
        block = lives[overlay]
        begin = simplify(place.offset * 4)
        end = simplify(begin + block.bytes)
        for n in (1, 2, 3, 17, 49, 50):
            assert at(begin, n) % 64 == 0 and at(begin, n) >= 0 and at(end, n) <= at(known[HOST].bytes, n)
            for other, stop, first, last in uses:
                separate = block.last < first or last < block.first
                assert separate or at(end, n) <= at(other, n) or at(stop, n) <= at(begin, n)
        uses.append((begin, end, block.first, block.last))


def concatenated(rows: Expr) -> Graph:
    """Rows that wait for others, which are made from them in many steps, to stand before them."""
    b = GraphBuilder("late")
    x = b.input("x", TensorType(f32, (rows, as_expr(64))))
    early = deferred = emit1(b, "cumsum", x, axis=0, exclusive=False, reverse=False)
    for _ in range(5):
        deferred = emit1(b, "cumsum", deferred, axis=1, exclusive=False, reverse=True)
    both = emit1(b, "concat", early, deferred, axis=0)
    return b.finish((emit1(b, "cumsum", both, axis=1, exclusive=False, reverse=False),))


def test_symbolic_sizes_have_overlays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    graph = concatenated(Var("rows", lo=1, hi=20_000))
    dynamic = tw.compile(graph)
    for rows in (1, 3, 5000, 20_000):
        x = np.random.default_rng(rows).normal(size=(rows, 64)).astype(np.float32)
        static = tw.compile(concatenated(as_expr(rows)))
        np.testing.assert_array_equal(np.asarray(dynamic(x)), np.asarray(static(x)))
        if rows >= 5000:
            assert dynamic.memory(rows=rows).arena == static.memory().arena
    monkeypatch.setattr(assemble, "with_overlays", lambda calls, leading, where, storage, outputs: where)
    assert tw.compile(graph).memory(rows=5000).arena > dynamic.memory(rows=5000).arena


def test_parts_that_may_change_places_have_no_order() -> None:
    n, m = (Var(name, lo=1, hi=9) for name in "nm")
    assert overlays._in_order({0: [const(0)], 81: [n * 9], 90: [m * 10]}) is None
    assert overlays._in_order({0: [const(0)], 81: [n * 9], 90: [n * 10]}) is not None
    assert overlays._in_order({81: [n * 9, m * 9]}) is None
    even = Var("n", lo=2, hi=64, multiple=2)
    assert overlays._in_order({64: [even, even // 2 * 2]}) is not None


def test_a_part_that_is_written_last_takes_overlays() -> None:
    """Two parts of 6400 bytes, the second written first: what dies between the two stands in the first."""
    host = _Block(2, 5, 12800, 5, values=[value("host", 3200)])
    early, deferred = (
        _Block(f, n, 6400, n, values=[value(name, 1600)]) for f, n, name in ((0, 3, "early"), (1, 4, "late"))
    )
    uses = [_Use(0, 6400, 4, 5), _Use(6400, 12800, 2, 5)]
    overlaying = _Overlays(6, {HOST: host, 1: early, 2: deferred}, {HOST: uses})
    assert overlaying.live() == [6400, 12800, 25600, 25600, 19200, 12800]
    assert {v.name: str(p.offset) for v, p in overlaying.occupy(HOST).items()} == {"early": "0"}
    assert overlaying.live() == [12800, 19200, 19200, 19200, 19200, 12800]


def wide_chain(layers: int = 8, rows: int = 512, width: int = 256) -> tuple[Graph, dict[str, Any]]:
    """Layers whose weights have as many bytes as activations have."""
    return chain(layers, rows, width, scale=16)


def after(step: Step, count: int = 3) -> Any:
    for k in range(count):
        step(np.random.default_rng(k).normal(size=(512, 256)).astype(np.float32))
    return np.concatenate([np.ravel(v) for v in step.weights.values()])


def test_activations_stand_among_the_gradients_and_the_new_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    model = wide_chain()
    hosted = compile_step(model, clip=1.0)
    monkeypatch.setattr(assemble, "with_overlays", lambda *inputs: overlays.with_overlays(*inputs[:4]))
    inner = compile_step(model, clip=1.0)
    monkeypatch.setattr(assemble, "with_overlays", lambda calls, leading, where, storage, outputs: where)
    ordinary = compile_step(model, clip=1.0)
    gradients = 8 * 256 * 256 * 4
    arenas = [step.model.memory().arena for step in (hosted, inner, ordinary)]
    assert gradients // 2 <= arenas[2] - arenas[1] <= gradients
    assert gradients // 2 <= arenas[1] - arenas[0] <= 3 * gradients
    expected = after(ordinary)
    for step in (hosted, inner):
        np.testing.assert_array_equal(after(step), expected)


def test_outputs_take_overlays_only_where_memory_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[range] = []

    def watched(*arguments: Any) -> Any:
        seen.append(arguments[4])
        return overlays.with_overlays(*arguments)

    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    monkeypatch.setattr(assemble, "with_overlays", watched)
    graph, weights = chain(2, 8)
    compile_step((graph, weights), memory=None)
    compile_step((graph, weights))
    assert [len(hosts) > 0 for hosts in seen] == [False, True]


def test_small_values_take_no_overlays() -> None:
    small = _Block(2, 5, overlays.MIN_HOST_BYTES - 1, 5, values=[value("host", 1)])
    overlaying = _Overlays(6, {HOST: small}, {HOST: [_Use(0, 64, 4, 5), _Use(64, overlays.MIN_HOST_BYTES - 1, 2, 5)]})
    assert not [*overlaying.hosts()]


def test_updates_are_written_over_what_they_change() -> None:
    """Zeros that a gradient is scattered into are no second copy; data that is read again is kept."""

    def compiled(reloaded: bool) -> tuple[int, Any]:
        b = GraphBuilder("g")
        x = b.input("x", TensorType(f32, (as_expr(4096),)))
        places = b.input("places", TensorType(i64, (as_expr(64), as_expr(1))))
        updates = b.input("updates", TensorType(f32, (as_expr(64),)))
        data = emit1(b, "cumsum", x, axis=0, exclusive=False, reverse=False)
        result = emit1(b, "scatter_nd", data, places, updates, reduction="add")
        y = emit1(
            b, "cumsum", emit1(b, "mul", result, data) if reloaded else result, axis=0, exclusive=False, reverse=False
        )
        graph = b.finish((y,))
        rng = np.random.default_rng(0)
        arguments = {
            "x": rng.normal(size=4096).astype(np.float32),
            "places": rng.integers(0, 4096, (64, 1)),
            "updates": rng.normal(size=64).astype(np.float32),
        }
        model = tw.compile(graph)
        got = np.asarray(model(*arguments.values()))
        want = next(iter(run_graph(graph, arguments, {}).values()))
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * float(np.abs(want).max()))
        return model.memory().arena, got

    assert compiled(False)[0] == 4096 * 4
    assert compiled(True)[0] >= 2 * 4096 * 4
