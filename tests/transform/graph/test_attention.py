"""Attention is recognised in the forms exporters write and means the same; what differs is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import ops
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import DType, bf16, boolean, f16, f32
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ir.verify import verify_graph
from tilewright.ops.interpret import run_graph
from tilewright.transform.graph.attention import recognise_attention
from tilewright.transform.graph.rewrite import eliminate_dead

BATCH, TOKENS, HEADS, DEPTH = Var("b", lo=0), 6, 2, 4
RNG = np.random.default_rng(0)


class Form:
    """A graph under construction; subject to one way of writing attention."""

    def __init__(self) -> None:
        self.b = GraphBuilder("form")
        self.shapes: dict[str, tuple[int, ...]] = {}

    def input(self, name: str, *shape: Any, dtype: Any = f32) -> Value:
        return self.b.input(name, TensorType(dtype, tuple(d if isinstance(d, Var) else const(d) for d in shape)))

    def number(self, value: float) -> Value:
        return self("constant", value=ConstantArray(np.float32(value)))

    def weight(self, name: str, *shape: int) -> Value:
        return self.b.param(name, TensorType(f32, tuple(map(const, shape))))

    def __call__(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        return ops.emit1(self.b, op, *inputs, **attrs)

    def heads(self, x: Value, perm: tuple[int, ...] = (0, 2, 1, 3)) -> Value:
        shape = (BATCH, const(TOKENS), const(HEADS), const(DEPTH))
        return self("transpose", self("reshape", x, shape=shape), perm=perm)

    def heads_of(self, name: str, batch: int) -> Value:
        return self("transpose", self.input(name, batch, TOKENS, HEADS, DEPTH), perm=(0, 2, 1, 3))

    def qkv(self, perm: tuple[int, ...] = (0, 2, 3, 1)) -> tuple[Value, Value, Value]:
        q, k, v = (self.input(n, BATCH, TOKENS, HEADS * DEPTH) for n in "qkv")
        return self.heads(q), self.heads(k, perm), self.heads(v)

    def merged(self, y: Value) -> Graph:
        moved = self("transpose", y, perm=(0, 2, 1, 3))
        shape = (BATCH, const(TOKENS), const(HEADS * DEPTH))
        return self.b.finish((self("reshape", moved, shape=shape),))


def scaled_and_masked(f: Form) -> Graph:
    q, k, v = f.qkv()
    scores = f("mul", f("matmul", q, k), f.number(0.5))
    mask = f.input("mask", BATCH, 1, 1, TOKENS)
    return f.merged(f("matmul", f("softmax", f("add", mask, scores), axis=3), v))


def divided_by_a_weight(f: Form) -> Graph:
    q, k, v = f.qkv((0, 2, 1, 3))
    scores = f("div", f("matmul", q, k, transpose_b=True), f.weight("root"))
    return f.merged(f("matmul", f("softmax", scores, axis=-1), v))


def times_a_weight_of_ones_as_sizes(f: Form) -> Graph:
    q, k, v = f.qkv()
    scores = f("mul", f.weight("factor", 1, 1, 1, 1), f("matmul", q, k))
    return f.merged(f("matmul", f("softmax", scores, axis=3), v))


def safe_softmax(f: Form) -> Graph:
    q, k, v = f.qkv((0, 2, 1, 3))
    flat = f("reshape", k, shape=(BATCH * HEADS, const(TOKENS), const(DEPTH)))
    moved = f("transpose", flat, perm=(0, 2, 1))
    k = f("reshape", moved, shape=(BATCH, const(HEADS), const(DEPTH), const(TOKENS)))
    root = f.weight("root")
    scores = f("add", f("matmul", f("mul", q, root), f("mul", k, root)), f.input("mask", TOKENS, TOKENS))
    p = f("softmax", scores, axis=3)
    return f.merged(f("matmul", f("select", f("isnan", p), f.weight("zero"), p), v))


def keys_with_one_more_dimension(f: Form) -> Graph:
    q, _, v = f.qkv()
    k = f.input("k5", BATCH, HEADS, TOKENS, DEPTH, 1)
    flat = f("reshape", k, shape=(BATCH * HEADS, const(TOKENS), const(DEPTH)))
    moved = f("transpose", flat, perm=(0, 2, 1))
    k = f("reshape", moved, shape=(BATCH, const(HEADS), const(DEPTH), const(TOKENS)))
    return f.merged(f("matmul", f("softmax", f("matmul", q, k), axis=3), v))


def rows_without_keys_are_zero(f: Form) -> Graph:
    q, k, v = f.qkv()
    p = f("softmax", f("add", f("matmul", q, k), f.input("mask", TOKENS, TOKENS)), axis=3)
    return f.merged(f("matmul", f("select", f("isnan", p), f.number(0.0), p), v))


def rows_without_keys_are_zero_and_others_stay(f: Form) -> Graph:
    q, k, v = f.qkv()
    scores = f("add", f("matmul", q, k), f.input("mask", TOKENS, TOKENS))
    p = f("softmax", scores, axis=3)
    empty = f("and", f("isnan", p), f("eq", scores, f.number(-np.inf)))
    return f.merged(f("matmul", f("select", empty, f.number(0.0), p), v))


def selected(f: Form) -> Graph:
    q, k, v = f.qkv()
    seen = f.input("seen", BATCH, 1, TOKENS, TOKENS, dtype=boolean)
    scores = f("select", seen, f("matmul", q, k), f.number(-1e9))
    return f.merged(f("matmul", f("softmax", scores, axis=3), v))


def hidden(f: Form) -> Graph:
    q, k, v = f.qkv()
    unseen = f.input("unseen", BATCH, 1, TOKENS, TOKENS, dtype=boolean)
    scores = f("select", unseen, f.number(-1e9), f("matmul", q, k))
    return f.merged(f("matmul", f("softmax", scores, axis=3), v))


def not_seen(f: Form) -> Graph:
    q, k, v = f.qkv()
    unseen = f("not", f.input("seen", TOKENS, TOKENS, dtype=boolean))
    scores = f("select", unseen, f.number(-1e9), f("matmul", q, k))
    return f.merged(f("matmul", f("softmax", scores, axis=3), v))


def parts_of_one_projection(f: Form) -> Graph:
    x = f.input("x", BATCH, TOKENS, 3 * HEADS * DEPTH)
    width = HEADS * DEPTH
    parts = [
        f("slice", x, begin=(const(0), const(0), const(k * width)), size=(BATCH, const(TOKENS), const(width)),
          step=(1, 1, 1))
        for k in range(3)
    ]  # fmt: skip
    q, k, v = (f.heads(p) for p in parts)
    return f.merged(f("matmul", f("softmax", f("matmul", q, f("transpose", k, perm=(0, 1, 3, 2))), axis=3), v))


def batch_and_heads_in_one(f: Form) -> Graph:
    q, k, v = (f.input(n, BATCH, TOKENS, DEPTH) for n in "qkv")
    p = f("softmax", f("matmul", q, f("transpose", k, perm=(0, 2, 1))), axis=2)
    return f.b.finish((f("matmul", p, v),))


def grouped_heads_of_keys_and_values(f: Form) -> Graph:
    q, k, v = f.qkv((0, 2, 1, 3))
    wide = f("reshape", f.input("wide", BATCH, TOKENS, 3 * HEADS * DEPTH), shape=(BATCH, TOKENS, 3 * HEADS, DEPTH))
    q = f("transpose", wide, perm=(0, 2, 1, 3))

    def repeated(x: Value) -> Value:
        split = f("reshape", x, shape=(BATCH, HEADS, 1, TOKENS, DEPTH))
        spread = f("broadcast", split, shape=(BATCH, HEADS, 3, TOKENS, DEPTH))
        return f("reshape", spread, shape=(BATCH, 3 * HEADS, TOKENS, DEPTH))

    scores = f("matmul", q, f("transpose", repeated(k), perm=(0, 1, 3, 2)))
    y = f("transpose", f("matmul", f("softmax", scores, axis=3), repeated(v)), perm=(0, 2, 1, 3))
    return f.b.finish((f("reshape", y, shape=(BATCH, TOKENS, 3 * HEADS * DEPTH)),))


def keys_alone_are_repeated(f: Form) -> Graph:
    q, k, v = f.qkv((0, 2, 1, 3))
    one = f("reshape", f("slice", k, begin=(0, 0, 0, 0), size=(BATCH, 1, TOKENS, DEPTH), step=(1, 1, 1, 1)),
            shape=(BATCH, 1, 1, TOKENS, DEPTH))  # fmt: skip
    spread = f("broadcast", one, shape=(BATCH, 1, HEADS, TOKENS, DEPTH))
    k = f("reshape", spread, shape=(BATCH, HEADS, TOKENS, DEPTH))
    return f.merged(f("matmul", f("softmax", f("matmul", q, k, transpose_b=True), axis=3), v))


def appended_to_a_cache(f: Form) -> Graph:
    q, k, v = f.qkv((0, 2, 1, 3))
    k, v = (f("concat", f.input(n, BATCH, HEADS, 5, DEPTH), x, axis=2) for n, x in (("past_k", k), ("past_v", v)))
    return f.merged(f("matmul", f("softmax", f("matmul", q, k, transpose_b=True), axis=3), v))


def appended_to_a_layer_of_a_cache(f: Form) -> Graph:
    """The third of four layers, of one sample."""
    q, k, v = (f.heads_of(n, 1) for n in "qkv")

    def longer(name: str, x: Value) -> Value:
        whole = f.input(name, 4, 1, HEADS, 5, DEPTH)
        part = f("slice", whole, begin=(2, 0, 0, 0, 0), size=(1, 1, HEADS, 5, DEPTH), step=(1,) * 5)
        return f("concat", f("reshape", part, shape=(1, HEADS, 5, DEPTH)), x, axis=2)

    k, v = longer("past_k", k), longer("past_v", v)
    y = f("matmul", f("softmax", f("matmul", q, k, transpose_b=True), axis=3), v)
    return f.b.finish((f("transpose", y, perm=(0, 2, 1, 3)),))


def heads_that_meet_on_the_way(f: Form) -> Graph:
    """The rows of all heads are turned at once, so that a head gets parts of the others."""
    q, k, v = f.qkv((0, 2, 1, 3))
    flat = f("reshape", k, shape=(BATCH, const(HEADS * TOKENS), const(DEPTH)))
    moved = f("transpose", flat, perm=(0, 2, 1))
    k = f("reshape", moved, shape=(BATCH, const(HEADS), const(DEPTH), const(TOKENS)))
    return f.merged(f("matmul", f("softmax", f("matmul", q, k), axis=3), v))


def of_sequences_first(f: Form, x: Value) -> Value:
    """[batch, heads, tokens, depth] of [tokens, batch, width], batch and heads as one on the way."""
    both = f("transpose", f("reshape", x, shape=(const(TOKENS), BATCH * HEADS, const(DEPTH))), perm=(1, 0, 2))
    return f("reshape", both, shape=(BATCH, const(HEADS), const(TOKENS), const(DEPTH)))


def attended_first(f: Form, q: Value, k: Value, v: Value) -> Graph:
    y = f("matmul", f("softmax", f("matmul", q, k, transpose_b=True), axis=3), v)
    moved = f("transpose", y, perm=(2, 0, 1, 3))
    return f.b.finish((f("reshape", moved, shape=(const(TOKENS), BATCH, const(HEADS * DEPTH))),))


def sequences_first(f: Form) -> Graph:
    q, k, v = (of_sequences_first(f, f.input(n, TOKENS, BATCH, HEADS * DEPTH)) for n in "qkv")
    return attended_first(f, q, k, v)


def stacked_projections(f: Form) -> Graph:
    """Projections as PyTorch's nn.MultiheadAttention makes them of one input."""
    width = const(HEADS * DEPTH)
    x = f.input("x", TOKENS, BATCH, 3 * HEADS * DEPTH)
    separate = f("reshape", x, shape=(const(1), const(TOKENS), BATCH, const(3), width))
    transposed = f("transpose", separate, perm=(3, 1, 2, 0, 4))
    three = f("reshape", transposed, shape=(const(3), const(TOKENS), BATCH, width))
    rows = (const(TOKENS), BATCH, width)

    def part(k: int) -> Value:
        zeros = tuple(const(n) for n in (k, 0, 0, 0))
        return f("reshape", f("slice", three, begin=zeros, size=(const(1), *rows), step=(1,) * 4), shape=rows)

    return attended_first(f, *(of_sequences_first(f, part(k)) for k in range(3)))


FORMS = [
    heads_that_meet_on_the_way,
    appended_to_a_cache,
    appended_to_a_layer_of_a_cache,
    scaled_and_masked,
    divided_by_a_weight,
    times_a_weight_of_ones_as_sizes,
    safe_softmax,
    keys_with_one_more_dimension,
    rows_without_keys_are_zero,
    rows_without_keys_are_zero_and_others_stay,
    selected,
    hidden,
    not_seen,
    parts_of_one_projection,
    batch_and_heads_in_one,
    grouped_heads_of_keys_and_values,
    keys_alone_are_repeated,
    sequences_first,
    stacked_projections,
]


LEFT = {
    keys_alone_are_repeated: {"transpose", "slice", "broadcast"},
    heads_that_meet_on_the_way: {"transpose"},
    keys_with_one_more_dimension: {"transpose"},
}
"""The operators that stay beside the one operator."""


def arrays(graph: Graph) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    def one(v: Value) -> np.ndarray:
        shape = [3 if d is BATCH else int(d.value) for d in v.shape]  # type: ignore[attr-defined]
        if v.dtype is boolean:
            return RNG.random(shape) < 0.5
        if v.name == "zero":
            return np.zeros(shape, np.float32)
        x = RNG.standard_normal(shape).astype(np.float32)
        if v.name == "mask" and len(shape) == 2:
            x[2], x[:, 1] = -np.inf, -np.inf
        return np.asarray(np.abs(x) + 1 if v.name == "root" else x)

    return {v.name: one(v) for v in graph.inputs}, {v.name: one(v) for v in graph.params}


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_forms(form: Callable[[Form], Graph]) -> None:
    graph = form(Form())
    result = eliminate_dead(recognise_attention(graph))
    verify_graph(result)
    kinds = [n.op for n in result.nodes]
    assert kinds.count("lowered.attention") == 1
    left = {"softmax", "matmul", "transpose", "slice", "broadcast"} & set(kinds)
    assert left == LEFT.get(form, set())
    inputs, params = arrays(graph)
    with np.errstate(all="ignore"):
        (want,), (got,) = (list(run_graph(g, inputs, params).values()) for g in (graph, result))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", [rows_without_keys_are_zero, rows_without_keys_are_zero_and_others_stay])
def test_what_is_no_number_beside_rows_without_keys(form: Callable[[Form], Graph]) -> None:
    graph = form(Form())
    inputs, params = arrays(graph)
    inputs["q"][0, 1], inputs["q"][1, 0] = np.nan, np.inf
    with np.errstate(all="ignore"):
        (want,), (got,) = (
            list(run_graph(g, inputs, params).values()) for g in (graph, eliminate_dead(recognise_attention(graph)))
        )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert np.isnan(got[:, :2]).any() == (form is rows_without_keys_are_zero_and_others_stay)
    assert not got[:, 2].any()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", [f16, bf16], ids=str)
def test_operands_of_16_bits_are_read_as_they_are(kind: DType, masked: bool) -> None:
    """An operator that is widened before and narrowed after is computed the same way without: in f32, and rounded
    once."""
    f = Form()
    arguments = [f.input(n, BATCH, TOKENS, HEADS * DEPTH, dtype=kind) for n in "qkv"]
    q, k, v = (f("cast", f.heads(x), dtype=f32) for x in arguments)
    scores = f("matmul", q, k, transpose_b=True)
    if masked:
        scores = f("add", scores, f("cast", f.input("m", TOKENS, TOKENS, dtype=kind), dtype=f32))
    graph = f.merged(f("cast", f("matmul", f("softmax", scores, axis=3), v), dtype=kind))
    result = eliminate_dead(recognise_attention(graph))
    verify_graph(result)
    assert {n.op for n in result.nodes} == {"reshape", "lowered.attention"}
    inputs = {v.name: x.astype(kind.numpy) for v, x in zip(graph.inputs, arrays(graph)[0].values(), strict=True)}
    (want,), (got,) = (list(run_graph(g, inputs, {}).values()) for g in (graph, result))
    # NumPy sums in another order where operands lie otherwise in memory: what is between two numbers may become either.
    separate = np.abs(got.view(np.int16).astype(int) - want.view(np.int16).astype(int))
    assert separate.max() <= 1 and (separate > 0).mean() < 0.02


@pytest.mark.parametrize("narrow", ["q", "qkv"])
def test_what_is_not_narrowed_after_stays_wide(narrow: str) -> None:
    """Operands of one type, and a result of that type, or neither."""
    f = Form()
    inputs = [f.input(n, BATCH, TOKENS, HEADS * DEPTH, dtype=f16 if n in narrow else f32) for n in "qkv"]
    q, k, v = (f("cast", f.heads(x), dtype=f32) if x.dtype is f16 else f.heads(x) for x in inputs)
    y = f("matmul", f("softmax", f("matmul", q, k, transpose_b=True), axis=3), v)
    graph = f.merged(f("cast", y, dtype=f16) if narrow == "q" else y)
    result = recognise_attention(graph)
    (node,) = (n for n in result.nodes if n.op == "lowered.attention")
    assert {x.dtype for x in node.inputs if x is not None} == {f32}


def probabilities_are_a_result(f: Form) -> Graph:
    q, k, v = f.qkv()
    p = f("softmax", f("matmul", q, k), axis=3)
    return f.b.finish((p, f("matmul", p, v)))


def softmax_over_another_axis(f: Form) -> Graph:
    q, k, v = f.qkv()
    return f.merged(f("matmul", f("softmax", f("matmul", q, k), axis=2), v))


def scaled_after_the_mask(f: Form) -> Graph:
    q, k, v = f.qkv()
    scores = f("mul", f("add", f("matmul", q, k), f.input("mask", TOKENS, TOKENS)), f.number(0.5))
    return f.merged(f("matmul", f("softmax", scores, axis=3), v))


def a_factor_for_each_head(f: Form) -> Graph:
    q, k, v = f.qkv()
    scores = f("mul", f("matmul", q, k), f.weight("factor", HEADS, 1, 1))
    return f.merged(f("matmul", f("softmax", scores, axis=3), v))


def values_of_one_sample(f: Form) -> Graph:
    q, k, _ = f.qkv()
    p = f("softmax", f("matmul", q, k), axis=3)
    return f.merged(f("matmul", p, f.input("one", 1, HEADS, TOKENS, DEPTH)))


def values_without_samples(f: Form) -> Graph:
    q, k, _ = f.qkv()
    p = f("softmax", f("matmul", q, k), axis=3)
    return f.merged(f("matmul", p, f.input("one", HEADS, TOKENS, DEPTH)))


def test_what_is_learned_stays_separate() -> None:
    """A graph that is to be differentiated keeps what attention as one operator has no gradient for."""

    def kinds(form: Callable[[Form], Graph], *names: str) -> list[str]:
        graph = form(Form())
        learned = {v for v in (*graph.inputs, *graph.params) if v.name in names}
        return [n.op for n in eliminate_dead(recognise_attention(graph, learned)).nodes]

    assert "lowered.attention" in kinds(scaled_and_masked)
    assert "lowered.attention" not in kinds(scaled_and_masked, "mask")
    assert "lowered.attention" not in kinds(divided_by_a_weight)
    assert "lowered.attention" not in kinds(safe_softmax)
    (past,) = [n for n in recognise_attention(appended_to_a_cache(Form()), set()).nodes if n.op == "lowered.attention"]
    assert len(past.inputs) == 3


@pytest.mark.parametrize(
    "form",
    [
        probabilities_are_a_result,
        softmax_over_another_axis,
        scaled_after_the_mask,
        a_factor_for_each_head,
        values_of_one_sample,
        values_without_samples,
    ],
)
def test_what_is_left_alone(form: Callable[[Form], Graph]) -> None:
    graph = form(Form())
    assert recognise_attention(graph) is graph
