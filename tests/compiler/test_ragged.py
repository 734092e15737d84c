"""Ragged batches: packed rows give what each sequence gives alone, and what a padded batch gives under a mask."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.graph import Graph
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.ragged import Ragged
from tilewright.support.errors import ArtifactError, CallError, Error, ModelError

WIDTH, HEADS, DEPTH, WORDS, LONGEST = 48, 3, 16, 50, 40
ENCODER = """
graph @encoder(%ids: i64[batch, seq], %extra: f32[batch, seq, 48]) params(
    %words: f32[50, 48], %places: f32[40, 48], %q: f32[48, 48], %k: f32[48, 48], %v: f32[48, 48], %g: f32[48],
    %pool: f32[48, 7]
) where batch in 1.., seq in 1..40 {
  %word = gather(%words, %ids) {axis = 0} : f32[batch, seq, 48]
  %place = slice(%places) {begin = [$0, $0], size = [$seq, $48], step = [1, 1]} : f32[seq, 48]
  %sum = add(%word, %place) : f32[batch, seq, 48]
  %both = add(%sum, %extra) : f32[batch, seq, 48]
  %x = rms_norm(%both, %g) {axis = 2, epsilon = 1e-5} : f32[batch, seq, 48]
  %qp = matmul(%x, %q) : f32[batch, seq, 48]
  %qr = reshape(%qp) {shape = [$batch, $seq, $3, $16]} : f32[batch, seq, 3, 16]
  %qt = transpose(%qr) {perm = [0, 2, 1, 3]} : f32[batch, 3, seq, 16]
  %kp = matmul(%x, %k) : f32[batch, seq, 48]
  %kr = reshape(%kp) {shape = [$batch, $seq, $3, $16]} : f32[batch, seq, 3, 16]
  %kt = transpose(%kr) {perm = [0, 2, 3, 1]} : f32[batch, 3, 16, seq]
  %vp = matmul(%x, %v) : f32[batch, seq, 48]
  %vr = reshape(%vp) {shape = [$batch, $seq, $3, $16]} : f32[batch, seq, 3, 16]
  %vt = transpose(%vr) {perm = [0, 2, 1, 3]} : f32[batch, 3, seq, 16]
  %s = matmul(%qt, %kt) : f32[batch, 3, seq, seq]
  %p = softmax(%s) {axis = 3} : f32[batch, 3, seq, seq]
  %o = matmul(%p, %vt) : f32[batch, 3, seq, 16]
  %ot = transpose(%o) {perm = [0, 2, 1, 3]} : f32[batch, seq, 3, 16]
  %back = reshape(%ot) {shape = [$batch, $seq, $48]} : f32[batch, seq, 48]
  %states = add(%x, %back) : f32[batch, seq, 48]
  %first = slice(%states) {begin = [$0, $0, $0], size = [$batch, $1, $48], step = [1, 1, 1]} : f32[batch, 1, 48]
  %flat = reshape(%first) {shape = [$batch, $48]} : f32[batch, 48]
  %logits = matmul(%flat, %pool) : f32[batch, 7]
  return %states, %logits
}
"""
LENGTHS = [[1], [40], [1, 1, 1], [5, 1, 17, 40, 9], [3, 30, 2], [16, 32, 8, 24], [40, 39, 38, 37, 1, 36]]


def encoder() -> tuple[Graph, dict[str, Any]]:
    graph = parse_graph(ENCODER)
    rng = np.random.default_rng(3)
    shapes = {v.name: tuple(int(d.value) for d in v.shape) for v in graph.params}
    return graph, {n: rng.standard_normal(s).astype(np.float32) / 3 for n, s in shapes.items()}


def sequences(lengths: list[int], seed: int = 0) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, WORDS, n) for n in lengths]
    return ids, [rng.standard_normal((n, WIDTH)).astype(np.float32) for n in lengths]


def packed_model(**options: Any) -> tw.Model:
    model = tw.compile(encoder(), ragged=("batch", "seq"), **options)
    assert isinstance(model, tw.Model)
    return model


@pytest.mark.daily(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_each_sequence_is_what_it_is_alone(threads: int) -> None:
    graph, weights = encoder()
    model = packed_model(threads=threads)
    for lengths in LENGTHS:
        ids, extra = sequences(lengths)
        states, logits = model(tw.ragged(ids), tw.ragged(extra))
        assert isinstance(states, Ragged)
        assert (len(states), logits.shape) == (len(lengths), (len(lengths), 7))
        for k in range(len(lengths)):
            alone = run_graph(graph, {"ids": ids[k][None], "extra": extra[k][None]}, weights)
            np.testing.assert_allclose(states[k], alone["states"][0], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(logits[k], alone["logits"][0], rtol=1e-5, atol=1e-5)


def test_packed_is_padded_under_a_mask() -> None:
    """Against the compiled padded model, whose mask hides what is after each sequence."""
    text = ENCODER.replace("%extra: f32[batch, seq, 48]", "%extra: f32[batch, seq, 48], %seen: bool[batch, 1, 1, seq]")
    text = text.replace(
        "%p = softmax(%s)",
        """%low = constant() {value = array f32[] (-inf)} : f32[]
  %hidden = select(%seen, %s, %low) : f32[batch, 3, seq, seq]
  %p = softmax(%hidden)""",
    )
    padded = tw.compile((parse_graph(text), encoder()[1]))
    model = packed_model()
    for lengths in LENGTHS:
        ids, extra = (tw.ragged(x) for x in sequences(lengths, 1))
        states, logits = model(ids, extra)
        seen = np.arange(max(lengths)) < np.array(lengths)[:, None]
        wide, others = padded(ids.padded(), extra.padded(), seen[:, None, None])
        np.testing.assert_allclose(states.rows, wide[seen], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(logits, others, rtol=1e-5, atol=1e-5)


def test_causal_sequences_number_their_rows() -> None:
    text = """
    graph @causal(%x: f32[b, n, 8]) where b in 1.., n in 1.. {
      %t = transpose(%x) {perm = [0, 2, 1]} : f32[b, 8, n]
      %s = matmul(%x, %t) : f32[b, n, n]
      %row = range() {dtype = i32, size = $n, start = 0, step = 1} : i32[n]
      %column = reshape(%row) {shape = [$n, $1]} : i32[n, 1]
      %seen = le(%row, %column) : bool[n, n]
      %low = constant() {value = array f32[] (-1e30)} : f32[]
      %h = select(%seen, %s, %low) : f32[b, n, n]
      %p = softmax(%h) {axis = 2} : f32[b, n, n]
      %o = matmul(%p, %x) : f32[b, n, 8]
      %f = cast(%column) {dtype = f32} : f32[n, 1]
      %y = add(%o, %f) : f32[b, n, 8]
      return %y
    }
    """
    graph = parse_graph(text)
    model = tw.compile(graph, ragged=("b", "n"))
    for lengths in LENGTHS:
        rng = np.random.default_rng(1)
        xs = [rng.standard_normal((n, 8)).astype(np.float32) for n in lengths]
        for x, y in zip(xs, model(xs), strict=True):
            np.testing.assert_allclose(y, run_graph(graph, {"x": x[None]}, {})["y"][0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("line", "type", "words"),
    [
        ("reduce_mean(%x) {axes = [1], keepdims = false}", "f32[b, 8]", "reduce_mean goes along rows"),
        ("cumsum(%x) {axis = 1, exclusive = false, reverse = false}", "f32[b, n, 8]", "cumsum is not known"),
        ("softmax(%x) {axis = 1}", "f32[b, n, 8]", "softmax goes along rows, of other things"),
        ("concat(%x, %x) {axis = 1}", "f32[b, 2*n, 8]", "concat goes along rows"),
        ("reduce_max(%x) {axes = [0], keepdims = false}", "f32[n, 8]", "reduce_max goes along rows or sequences"),
        (
            "slice(%x) {begin = [$0, $(n - 1), $0], size = [$b, $1, $8], step = [1, 1, 1]}",
            "f32[b, 1, 8]",
            "takes rows by their number",
        ),
        ("transpose(%x) {perm = [1, 0, 2]}", "f32[n, b, 8]", "rows of an output are not in order"),
        ("matmul(%t, %x)", "f32[b, 8, 8]", "matmul sums over rows of all sequences"),
        ("add(%x, %c)", "f32[b, n, 8]", "joins rows with one value a sequence"),
    ],
)
def test_what_relates_rows_otherwise_is_refused(line: str, type: str, words: str) -> None:
    graph = parse_graph(f"""
    graph @g(%x: f32[b, n, 8], %c: f32[b, 1, 8]) where b in 1.., n in 1.. {{
      %t = transpose(%x) {{perm = [0, 2, 1]}} : f32[b, 8, n]
      %y = {line} : {type}
      return %y
    }}
    """)
    with pytest.raises(ModelError, match=words) as caught:
        tw.compile(graph, ragged=("b", "n"))
    assert "'y'" in str(caught.value)


def test_a_dimension_that_is_not_there_is_named() -> None:
    with pytest.raises(ModelError, match=r"length: .*no such dimension"):
        tw.compile(encoder(), ragged=("batch", "length"))


def test_batches_that_do_not_fit_are_refused() -> None:
    model = packed_model()
    ids, extra = sequences([3, 5])
    good = tw.ragged(ids), tw.ragged(extra)
    model(*good)
    long_ids, long_extra = sequences([41])
    wrong: list[tuple[Any, ...]] = [
        (),
        (good[0],),
        (good[0], extra[0]),
        (good[0], tw.ragged(sequences([5, 3])[1])),
        (good[0].rows, good[1]),
        (ids, [e.astype(np.float64) for e in extra]),
        (long_ids, long_extra),
        ([ids[0], ids[0][:0]], [extra[0], extra[0][:0]]),
        (Ragged(good[0].rows[:-1], good[0].offsets), good[1]),
        (Ragged(good[0].rows, good[0].offsets[::-1].copy()), Ragged(good[1].rows, good[0].offsets[::-1].copy())),
        (Ragged(good[0].rows, good[0].offsets + 1), Ragged(good[1].rows, good[0].offsets + 1)),
    ]
    for case in wrong:
        with pytest.raises(CallError):
            model(*case)
    with pytest.raises(CallError, match="new arrays"):
        model(*good, out=np.empty(3))
    for arrays in ([], [np.float32(1)], [ids[0], extra[0]], [ids[0], ids[1].astype(np.int32)]):
        with pytest.raises(CallError):
            tw.ragged(arrays)


def test_the_doors_of_a_model(tmp_path: Path) -> None:
    model = packed_model()
    ids, extra = map(tw.ragged, sequences([3, 5]))
    states, logits = model(ids, extra)
    model.save(tmp_path / "encoder.tw")
    reloaded = tw.load(tmp_path / "encoder.tw").run({"ids": ids, "extra": extra})
    np.testing.assert_array_equal(reloaded["states"].rows, states.rows)
    (result, _), version = model.versioned(ids, extra)
    np.testing.assert_array_equal(result.rows, states.rows)
    assert version == 0
    for y, _ in (
        model(extra=extra, ids=ids),
        model(ids, extra=extra),
        model.call_async(ids, extra).result(60),
        model.stream()(ids, extra),
        model.stream().call_async(ids, extra=extra).result(60),
    ):
        np.testing.assert_array_equal(y.rows, states.rows)
    with pytest.raises(CallError, match="input 'mask': there is no such input"):
        model(ids, extra, mask=1)
    assert [s.shape for s in states] == [(3, WIDTH), (5, WIDTH)]
    assert states.padded().shape == (2, 5, WIDTH)
    np.testing.assert_array_equal(states.padded()[0, 3:], 0)
    np.testing.assert_array_equal(states[-1], states[1])
    with pytest.raises(IndexError):
        states[2]
    assert logits.shape == (2, 7)
    assert str(states) == "<Ragged of 2: float32[8, 48] in all>"


def test_a_manifest_that_lies_about_its_rows_is_refused() -> None:
    m = packed_model().manifest
    assert m.ragged is not None
    for lie in ({"starts": "ids"}, {"starts": "x"}, {"rows": "batch2"}, {"rows": "batch"}):
        with pytest.raises(ArtifactError):
            replace(m, ragged=replace(m.ragged, **lie))
    for value in (-1, 1.5, "x", [], None):
        data = json.loads(m.to_json())
        data["ragged"]["starts"] = value
        with pytest.raises(Error):
            Manifest.from_json(json.dumps(data))
