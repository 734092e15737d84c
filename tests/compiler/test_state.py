"""Decoders whose keys and values stay in place: equal to the model that gets and gives them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.expr import Var
from tilewright.ir.graph import Graph
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.ops.sized import with_symbols
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.specs import CacheSpec
from tilewright.runtime.state import State
from tilewright.support.errors import ArtifactError, CallError, ModelError
from tilewright.transform.graph.state import with_state

HEADS, DEPTH, WIDTH = 3, 16, 48
ATOL = 2e-5
"""Scores reach 40: each is a sum that rounds to some 4e-6, and by so much of itself a weight is off, of values up to 7.
Both sides are f32: each is 7e-6 from float64's at most, where BLAS has other tiles."""
TEXT = """
graph @decoder(
    %x: f32[{batch}, {n}, 48], %past_k: f32[{batch}, 3, past, 16], %past_v: f32[{batch}, 3, past, 16]
) params(%q: f32[48, 48], %k: f32[48, 48], %v: f32[48, 48]) where batch in 1.., n in 1.., past in 1.. {{
  %qp = matmul(%x, %q) : f32[{batch}, {n}, 48]
  %qr = reshape(%qp) {{shape = [${batch}, ${n}, $3, $16]}} : f32[{batch}, {n}, 3, 16]
  %qt = transpose(%qr) {{perm = [0, 2, 1, 3]}} : f32[{batch}, 3, {n}, 16]
  %kp = matmul(%x, %k) : f32[{batch}, {n}, 48]
  %kr = reshape(%kp) {{shape = [${batch}, ${n}, $3, $16]}} : f32[{batch}, {n}, 3, 16]
  %kt = transpose(%kr) {{perm = [0, 2, 1, 3]}} : f32[{batch}, 3, {n}, 16]
  %vp = matmul(%x, %v) : f32[{batch}, {n}, 48]
  %vr = reshape(%vp) {{shape = [${batch}, ${n}, $3, $16]}} : f32[{batch}, {n}, 3, 16]
  %vt = transpose(%vr) {{perm = [0, 2, 1, 3]}} : f32[{batch}, 3, {n}, 16]
  %present_k = concat(%past_k, %kt) {{axis = 2}} : f32[{batch}, 3, {n} + past, 16]
  %present_v = concat(%past_v, %vt) {{axis = 2}} : f32[{batch}, 3, {n} + past, 16]
  %turned = transpose(%present_k) {{perm = [0, 1, 3, 2]}} : f32[{batch}, 3, 16, {n} + past]
  %s = matmul(%qt, %turned) : f32[{batch}, 3, {n}, {n} + past]
  %p = softmax(%s) {{axis = 3}} : f32[{batch}, 3, {n}, {n} + past]
  %y = matmul(%p, %present_v) : f32[{batch}, 3, {n}, 16]
  return %y, %present_k, %present_v
}}
"""


def decoder(batch: int | str = "batch", n: int | str = "n") -> tuple[Graph, dict[str, Any]]:
    graph = parse_graph(TEXT.format(batch=batch, n=n))
    rng = np.random.default_rng(3)
    return graph, {name: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4 for name in "qkv"}


def steps(graph: Graph, weights: Any, batch: int, counts: tuple[int, ...]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Inputs and what the interpreter makes of them and of all before."""
    rng = np.random.default_rng(4)
    past = {f"past_{c}": np.zeros((batch, HEADS, 0, DEPTH), np.float32) for c in "kv"}
    for n in counts:
        x = rng.standard_normal((batch, n, WIDTH)).astype(np.float32)
        result = run_graph(graph, {"x": x, **past}, weights)
        past = {f"past_{c}": result[f"present_{c}"] for c in "kv"}
        yield x, result


@pytest.mark.costly(2)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_decoder_with_state_gives_what_it_gives_without(batch: int, threads: int) -> None:
    graph, weights = decoder()
    model = tw.compile((graph, weights), state="auto", threads=threads)
    assert isinstance(model, tw.Model)
    assert not any("concat" in s.label for s in model.manifest.run_steps)
    state = model.state(40, batch=batch)
    for x, expected in steps(graph, weights, batch, (5, 1, 1, 3, 1, 17, 1)):
        y = state(x)
        np.testing.assert_allclose(y, expected["y"], rtol=2e-5, atol=ATOL)
        for name, rows in state.arrays().items():
            np.testing.assert_allclose(rows, expected[name.replace("past", "present")], rtol=2e-5, atol=ATOL)
    assert state.length == 29


@pytest.mark.parametrize(("batch", "n"), [(1, 1), (2, 1), (1, 4)])
def test_known_sizes(batch: int, n: int) -> None:
    graph, weights = decoder(batch, n)
    model = tw.compile((graph, weights), state={"past_k": "present_k", "past_v": "present_v"})
    assert isinstance(model, tw.Model)
    state = model.state(12)
    for x, expected in steps(graph, weights, batch, (n,) * (12 // n)):
        np.testing.assert_allclose(state(x), expected["y"], rtol=2e-5, atol=ATOL)
    with pytest.raises(CallError, match="the state is full"):
        state(x)


def rounded(rows: Any) -> Any:
    """Rows of a cache as codes mean them: 127 levels of the greatest magnitude of each vector."""
    scale = np.abs(rows).max(-1, keepdims=True) * np.float32(1 / 127)
    return np.rint(rows / scale) * scale


@pytest.mark.parametrize(("batch", "n", "counts"), [(2, 1, (1,) * 6), (1, "n", (5, 1, 3))])
def test_caches_of_codes(batch: int, n: int | str, counts: tuple[int, ...]) -> None:
    graph, weights = decoder(batch, n)
    model = tw.compile((graph, weights), state="auto", cache="int8")
    assert isinstance(model, tw.Model)
    state = model.state(40)
    assert state.nbytes * 3 < 40 * 2 * batch * HEADS * DEPTH * 4
    if n == 1:  # keys and values are never written as numbers
        assert not any("attention" in s.label or s.label == "cast + mul" for s in model.manifest.run_steps)
    for x, expected in steps(graph, weights, batch, counts):
        y = state(x)
        q = (x @ weights["q"]).reshape(batch, -1, HEADS, DEPTH).transpose(0, 2, 1, 3)
        k, v = (rounded(expected[f"present_{c}"]) for c in "kv")
        scores = np.float64(q) @ k.swapaxes(-1, -2)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        want = shares / shares.sum(-1, keepdims=True) @ v
        np.testing.assert_allclose(y, want, atol=0.02)  # a level in the middle may fall to either side
        assert np.abs(y - want).mean() < 1e-4
    for name, rows in state.arrays().items():
        np.testing.assert_allclose(rows, rounded(expected[name.replace("past", "present")]), atol=0.1)
    other = state.copy()
    other.truncate(0)
    other.load(state.arrays())
    np.testing.assert_allclose(other(x), state(x), atol=1e-4)
    assert Manifest.from_json(model.manifest.to_json()).state == model.manifest.state


GROUPED = """
graph @grouped(%x: f32[2, 1, 64], %past_k: f32[2, 2, past, 16], %past_v: f32[2, 2, past, 16])
params(%q: f32[64, 96], %k: f32[64, 32], %v: f32[64, 32]) where past in 1.. {
  %qp = matmul(%x, %q) : f32[2, 1, 96]
  %qr = reshape(%qp) {shape = [$2, $1, $6, $16]} : f32[2, 1, 6, 16]
  %qt = transpose(%qr) {perm = [0, 2, 1, 3]} : f32[2, 6, 1, 16]
  %kp = matmul(%x, %k) : f32[2, 1, 32]
  %kr = reshape(%kp) {shape = [$2, $1, $2, $16]} : f32[2, 1, 2, 16]
  %kt = transpose(%kr) {perm = [0, 2, 1, 3]} : f32[2, 2, 1, 16]
  %vp = matmul(%x, %v) : f32[2, 1, 32]
  %vr = reshape(%vp) {shape = [$2, $1, $2, $16]} : f32[2, 1, 2, 16]
  %vt = transpose(%vr) {perm = [0, 2, 1, 3]} : f32[2, 2, 1, 16]
  %present_k = concat(%past_k, %kt) {axis = 2} : f32[2, 2, 1 + past, 16]
  %present_v = concat(%past_v, %vt) {axis = 2} : f32[2, 2, 1 + past, 16]
  %k1 = reshape(%present_k) {shape = [$2, $2, $1, $(1 + past), $16]} : f32[2, 2, 1, 1 + past, 16]
  %kn = broadcast(%k1) {shape = [$2, $2, $3, $(1 + past), $16]} : f32[2, 2, 3, 1 + past, 16]
  %kh = reshape(%kn) {shape = [$2, $6, $(1 + past), $16]} : f32[2, 6, 1 + past, 16]
  %v1 = reshape(%present_v) {shape = [$2, $2, $1, $(1 + past), $16]} : f32[2, 2, 1, 1 + past, 16]
  %vn = broadcast(%v1) {shape = [$2, $2, $3, $(1 + past), $16]} : f32[2, 2, 3, 1 + past, 16]
  %vh = reshape(%vn) {shape = [$2, $6, $(1 + past), $16]} : f32[2, 6, 1 + past, 16]
  %turned = transpose(%kh) {perm = [0, 1, 3, 2]} : f32[2, 6, 16, 1 + past]
  %s = matmul(%qt, %turned) : f32[2, 6, 1, 1 + past]
  %p = softmax(%s) {axis = 3} : f32[2, 6, 1, 1 + past]
  %y = matmul(%p, %vh) : f32[2, 6, 1, 16]
  return %y, %present_k, %present_v
}
"""


def test_caches_of_codes_that_several_heads_read() -> None:
    graph, rng = parse_graph(GROUPED), np.random.default_rng(5)
    weights = {n: rng.standard_normal((64, 96 if n == "q" else 32)).astype(np.float32) / 4 for n in "qkv"}
    model = tw.compile((graph, weights), state="auto", cache="int8")
    assert isinstance(model, tw.Model)
    labels = [s.label for s in model.manifest.run_steps]
    assert not any("attention" in label or "broadcast" in label or label in ("cast", "cast + mul") for label in labels)
    state = model.state(20)
    past = {f"past_{c}": np.zeros((2, 2, 0, 16), np.float32) for c in "kv"}
    for _ in range(6):
        x = rng.standard_normal((2, 1, 64)).astype(np.float32)
        result = run_graph(graph, {"x": x, **past}, weights)
        past = {f"past_{c}": result[f"present_{c}"] for c in "kv"}
        q = (x @ weights["q"]).reshape(2, 6, 1, 16)
        k, v = (np.repeat(rounded(result[f"present_{c}"]), 3, axis=1) for c in "kv")
        scores = np.float64(q) @ k.swapaxes(-1, -2)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        want, y = shares / shares.sum(-1, keepdims=True) @ v, state(x)
        np.testing.assert_allclose(y, want, atol=0.02)  # a level in the middle may fall to either side
        assert np.abs(y - want).mean() < 1e-4


def test_codes_need_caches() -> None:
    with pytest.raises(ModelError, match="no caches to keep as codes"):
        tw.compile(decoder(), cache="int8")


def a_state(capacity: int = 10) -> State:
    model = tw.compile(decoder(), state="auto")
    assert isinstance(model, tw.Model)
    return model.state(capacity, batch=1)


def rows(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((1, n, WIDTH)).astype(np.float32)


def test_nothing_is_written_but_the_new_rows() -> None:
    state = a_state()
    state.load({f"past_{c}": np.full((1, HEADS, 10, DEPTH), np.nan, np.float32) for c in "kv"})
    state.truncate(0)
    state(rows(3))
    state(rows(2))
    for memory in state._memory.values():
        assert np.isfinite(memory[:5]).all()
        assert np.isnan(memory[5:]).all()


def test_a_refused_call_changes_nothing() -> None:
    state = a_state()
    state(rows(8))
    before = {k: v.copy() for k, v in state.arrays().items()}
    for wrong in ((rows(3),), (), (rows(1), rows(1)), (rows(1).astype(np.float64),), (rows(1)[0],), (np.float32(1),)):
        with pytest.raises(CallError):
            state(*wrong)
    assert state.length == 8
    assert all(np.array_equal(v, before[k]) for k, v in state.arrays().items())
    state(rows(2))
    assert state.length == state.capacity


def test_rows_are_selected_back_copied_and_loaded() -> None:
    state = a_state()
    state(rows(4))
    first = np.array(state(rows(2, 1)))
    state.truncate(4)
    other = state.copy()
    np.testing.assert_array_equal(state(rows(2, 1)), first)
    np.testing.assert_array_equal(other(rows(2, 1)), first)
    other.truncate(0)
    assert (other.length, state.length) == (0, 6)
    with pytest.raises(CallError, match="not as many rows"):
        other.truncate(1)
    with pytest.raises(CallError, match="cache does not fit"):
        other.load({f"past_{c}": np.zeros((1, HEADS, 11, DEPTH), np.float32) for c in "kv"})
    with pytest.raises(CallError, match="other names"):
        other.load({"past_k": np.zeros((1, HEADS, 1, DEPTH), np.float32)})


def test_results_go_where_the_caller_wants_them() -> None:
    state = a_state()
    out = np.empty((1, HEADS, 2, DEPTH), np.float32)
    assert state(rows(2), out=out) is out
    state.truncate(0)
    np.testing.assert_array_equal(state(rows(2)), out)
    state.truncate(0)
    np.testing.assert_array_equal(state(x=rows(2)), out)
    with pytest.raises(CallError, match="input 'past_k': there is no such input"):
        state(rows(2), past_k=rows(2))
    assert state.length == 2


def test_a_stream_has_states_too() -> None:
    graph, weights = decoder()
    model = tw.compile((graph, weights), state="auto")
    assert isinstance(model, tw.Model)
    with model.stream() as stream:
        states = model.state(16, batch=1), stream.state(16, batch=1)
        for x, _ in steps(graph, weights, 1, (3, 1, 1)):
            np.testing.assert_array_equal(states[0](x), states[1](x))


def test_without_a_state_the_program_is_not_called() -> None:
    model = tw.compile(decoder(), state="auto")
    assert isinstance(model, tw.Model)
    for call in (lambda: model(rows(1)), lambda: model.run({"x": rows(1)}), lambda: model.profile(rows(1))):
        with pytest.raises(CallError, match="state"):
            call()
    for call in (model.ffi_function, lambda: model.versioned(rows(1)), lambda: model.empty_outputs(rows(1))):
        with pytest.raises(CallError, match="state"):
            call()
    ordinary = tw.compile(decoder())
    assert isinstance(ordinary, tw.Model)
    with pytest.raises(CallError, match="keeps no state"):
        ordinary.state(3)


@pytest.mark.parametrize("sizes", [{}, {"batch": 1, "n": 1}, {"batch": 0}, {"batch": 1.0}])
def test_sizes_of_a_state_are_checked(sizes: dict[str, Any]) -> None:
    model = tw.compile(decoder(), state="auto")
    assert isinstance(model, tw.Model)
    with pytest.raises(CallError):
        model.state(4, **sizes)
    with pytest.raises(CallError):
        model.state(0, batch=1)
    with pytest.raises(CallError, match=r"memory|range"):
        model.state(1 << 60, batch=1)


def test_a_saved_program_keeps_its_state(tmp_path: Path) -> None:
    model = tw.compile(decoder(), state="auto")
    assert isinstance(model, tw.Model)
    model.save(tmp_path / "decoder.tw")
    loaded = tw.load(tmp_path / "decoder.tw")
    a, b = model.state(9, batch=1), loaded.state(9, batch=1)
    for n in (3, 1):
        np.testing.assert_array_equal(a(rows(n)), b(rows(n)))


def test_a_manifest_that_lies_about_its_state_is_refused() -> None:
    model = tw.compile(decoder(), state="auto")
    m: Manifest = model.manifest
    assert m.state is not None
    lies = [
        replace(m.state, length="x"),
        replace(m.state, length="nothing"),
        replace(m.state, rows=((1, ("past",)),)),
        replace(m.state, rows=()),
        replace(m.state, rows=((0, ("n",)),)),
        replace(m.state, rows=((1, ("n",)), (1, ("capacity",)))),
        replace(m.state, caches=()),
        replace(m.state, caches=(m.state.caches[0],) * 2),
        replace(m.state, caches=(*m.state.caches, CacheSpec(m.state.length, "y", 0))),
        replace(m.state, caches=(*m.state.caches, CacheSpec("x", "y", 0))),
        replace(m.state, caches=m.state.caches[:1]),
        *(replace(m.state, caches=(replace(m.state.caches[0], axis=k), m.state.caches[1])) for k in (-1, 4)),
    ]
    for lie in lies:
        with pytest.raises(ArtifactError):
            replace(m, state=lie)
    for axis in range(4):
        replace(m, state=replace(m.state, caches=(replace(m.state.caches[0], axis=axis), m.state.caches[1])))


def test_caches_that_share_sizes_with_what_counts_them_are_refused() -> None:
    m = tw.compile(decoder(), state="auto").manifest
    for old, new in (("batch", "capacity"), ("batch", "past")):
        inputs = [
            replace(i, shape=tuple(new if d == old else d for d in i.shape)) if i.name == "past_k" else i
            for i in m.inputs
        ]
        with pytest.raises(ArtifactError, match="rows"):
            replace(m, inputs=tuple(inputs))
    with pytest.raises(ArtifactError, match="counts no rows"):
        replace(m, inputs=tuple(replace(i, shape=(3, 0)) if i.shape[1:] == (0,) else i for i in m.inputs))


@pytest.mark.parametrize("seed", range(3))
def test_a_saved_state_that_was_tampered_with_is_refused_or_works(seed: int) -> None:
    """Words of the section in other places, other numbers, other kinds of values: an error of ours, never another."""
    model = tw.compile(decoder(), state="auto")
    assert isinstance(model, tw.Model)
    text, rng = model.manifest.to_json(), np.random.default_rng(seed)
    section = json.loads(text)["state"]
    written = json.dumps(section, separators=(",", ":"))
    values: list[Any] = [None, -1, 0, 1 << 70, 1.5, "", "x", "n", "past", [], {}, True, [[1, ["n"]]], [["n", 1]]]
    for _ in range(200):
        changed = json.loads(written)
        where: Any = changed
        while True:
            keys = list(where) if isinstance(where, dict) else list(range(len(where)))
            key = keys[rng.integers(len(keys))]
            if rng.random() < 0.4 or not isinstance(where[key], dict | list) or not where[key]:
                break
            where = where[key]
        where[key] = values[rng.integers(len(values))]
        lie = text.replace(written, json.dumps(changed, separators=(",", ":")))
        with contextlib.suppress(ArtifactError, CallError):
            model._engine.manifest = Manifest.from_json(lie)
            model.state(10, batch=1)(rows(3))


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ({"x": "y"}, "no cache that grows"),
        ({"nothing": "present_k"}, "no input of this name"),
        ({"past_k": "nothing"}, "no output of this name"),
        ({"past_k": "present_v"}, "not the input with something after it"),
        ({"past_k": "y"}, "not the input with something after it: got matmul"),
    ],
)
def test_what_is_no_cache_is_named(pairs: dict[str, str], words: str) -> None:
    graph, _ = decoder()
    with pytest.raises(ModelError, match=words) as caught:
        with_state(graph, ["x", "past_k", "past_v"], ["y", "present_k", "present_v"], pairs)
    assert next(iter(pairs)) in str(caught.value)


def test_names_that_say_nothing_are_listed() -> None:
    graph, weights = decoder()
    named = parse_graph(str(graph).replace("past_", "old_"))
    with pytest.raises(ModelError, match="old_k"):
        tw.compile((named, weights), state="auto")


def test_what_else_reads_a_cache_sees_its_rows() -> None:
    text = """
    graph @sums(%x: f32[n, 4], %past: f32[past, 4]) where n in 1.., past in 1.. {
      %present = concat(%past, %x) {axis = 0} : f32[n + past, 4]
      %before = reduce_sum(%past) {axes = [0], keepdims = false} : f32[4]
      %all = reduce_sum(%present) {axes = [0], keepdims = false} : f32[4]
      return %before, %all, %present
    }
    """
    model = tw.compile(parse_graph(text), state="auto")
    assert isinstance(model, tw.Model)
    state = model.state(100)
    seen = np.zeros((0, 4), np.float32)
    for n in (1, 7, 2, 30):
        x = np.random.default_rng(n).integers(-9, 9, (n, 4)).astype(np.float32)
        before, everything = state(x)
        np.testing.assert_array_equal(before, seen.sum(0))
        seen = np.concatenate([seen, x])
        np.testing.assert_array_equal(everything, seen.sum(0))


def test_what_is_known_of_the_length_is_retained() -> None:
    past = Var("past", lo=1, hi=20, likely=(5, 9))
    graph, weights = decoder()
    model = tw.compile((with_symbols(graph, {Var("past", lo=1): past}), weights), state="auto")
    assert isinstance(model, tw.Model)
    assert "past in 0..20 likely 5 9" in model.show("graph")
    state = model.state(30, batch=1)
    state(rows(20))
    state(rows(1))
    with pytest.raises(CallError, match=r"past in 0\.\.20"):
        state(rows(1))
    assert state.length == 21
