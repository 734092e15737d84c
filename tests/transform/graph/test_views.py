"""Concatenations and slices that are views: who is one, and that what is computed in place is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import conv, tensor
from tilewright import ops
from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.graph import Graph, GraphBuilder, Value
from tilewright.ir.verify import verify_graph
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import VerifyError
from tilewright.transform.graph.canonical import canonicalise
from tilewright.transform.graph.fuse import MAX_INPUTS
from tilewright.transform.graph.views import place_views, verify_views
from tilewright.transform.work import polynomial

T = Var("t", lo=0, hi=64)
H = Var("height", lo=4, hi=64, multiple=4)


def cut(b: GraphBuilder, x: Value, begin: Any, size: Any, axis: int = 0, name: str = "cut") -> Value:
    begins: list[Expr] = [const(0)] * x.type.rank
    sizes = list(x.shape)
    begins[axis] = const(begin) if isinstance(begin, int) else begin
    sizes[axis] = const(size) if isinstance(size, int) else size
    return ops.emit1(b, "slice", x, name=name, begin=tuple(begins), size=tuple(sizes), step=(1,) * x.type.rank)


def whole(b: GraphBuilder, x: Value, like: str = "sigmoid") -> Value:
    """A kernel of its own: a sum over the rows that is no pointwise epilogue of anything."""
    return ops.emit1(b, like, ops.emit1(b, "matmul", x, b.param("w", tensor(x.shape[-1], x.shape[-1]))))


def every_kind_of_part(b: GraphBuilder) -> tuple[Value, ...]:
    """Computed, computed and used elsewhere, the same twice, an input, an output."""
    x = b.input("x", tensor(3, 5))
    y, z, out = whole(b, x, "tanh"), whole(b, x, "relu"), whole(b, x, "sigmoid")
    joined = ops.emit1(b, "concat", y, z, y, x, out, axis=0)
    return (whole(b, joined, "tanh"), out, ops.emit1(b, "add", whole(b, z), y))


def chain(b: GraphBuilder) -> tuple[Value, ...]:
    """Each layer's result is appended to all before it."""
    row = ops.emit1(b, "relu", b.input("x", tensor(1, 3, 7)))
    for _ in range(4):
        new = cut(b, ops.emit1(b, "softmax", row, axis=2), 0, 2, axis=1)
        row = ops.emit1(b, "concat", row, ops.emit1(b, "mul", new, new), axis=1)
    return (ops.emit1(b, "softmax", row, axis=1),)


def symbolic(b: GraphBuilder) -> tuple[Value, ...]:
    """Parts whose places depend on a symbol, cut out again."""
    x = b.input("x", tensor(T, 6))
    y = ops.emit1(b, "concat", whole(b, x, "tanh"), whole(b, b.input("z", tensor(2, 6)), "relu"), whole(b, x), axis=0)
    last = cut(b, y, const(2) + T, T)
    return (y, whole(b, last), ops.emit1(b, "add", last, x), whole(b, cut(b, y, T, 2), "tanh"))


def reshaped(b: GraphBuilder) -> tuple[Value, ...]:
    """A part seen with another shape, slices seen with another shape, slices of slices and of an input."""
    x = b.input("x", tensor(4, 6))
    y = ops.emit1(b, "reshape", whole(b, x), shape=(1, 8, 3))
    z = ops.emit1(b, "relu", ops.emit1(b, "reshape", cut(b, x, 1, 2), shape=(1, 4, 3)))
    joined = ops.emit1(b, "concat", z, y, axis=1)
    inner = cut(b, cut(b, joined, 2, 8, axis=1), 1, 4, axis=1)
    return (ops.emit1(b, "softmax", ops.emit1(b, "reshape", inner, shape=(2, 6)), axis=1), cut(b, x, 0, 1))


def in_place(b: GraphBuilder) -> tuple[Value, ...]:
    """Pointwise work that could be written over operands that are parts, were these not read afterwards."""
    x = b.input("x", tensor(4, 16))
    y = whole(b, x, "tanh")
    top, bottom = cut(b, y, 0, 2), cut(b, y, 2, 2)
    z = whole(b, ops.emit1(b, "mul", top, bottom))
    joined = ops.emit1(b, "concat", ops.emit1(b, "add", z, bottom), ops.emit1(b, "sub", bottom, top), axis=0)
    rows = whole(b, joined)
    scaled = ops.emit1(b, "mul", rows, cut(b, rows, 1, 1))  # over `rows`, the row that scales would change on the way
    return (whole(b, ops.emit1(b, "tanh", joined)), whole(b, joined, "relu"), whole(b, scaled))


def nothing_to_place(b: GraphBuilder) -> tuple[Value, ...]:
    """Inner axes, and parts that are all decided elsewhere."""
    x = b.input("x", tensor(2, 6))
    y = whole(b, x)
    return (ops.emit1(b, "concat", y, x, axis=1), ops.emit1(b, "concat", x, x, axis=0), cut(b, y, 1, 3, axis=1), y)


def blocks(b: GraphBuilder) -> tuple[Value, ...]:
    """Channels in blocks: split in halves, one half convolved, all put together (as in YOLO)."""
    y = ops.emit1(b, "relu", conv(b, b.input("x", tensor(1, 3, 7, 9)), b.param("w0", tensor(32, 3, 3, 3))))
    half_vectors = [cut(b, y, k, 16, axis=1) for k in (0, 16)]
    deeper = ops.emit1(b, "relu", conv(b, half_vectors[1], b.param("w1", tensor(16, 16, 3, 3))))
    joined = ops.emit1(b, "concat", *half_vectors, ops.emit1(b, "add", deeper, half_vectors[1]), axis=1)
    return (conv(b, joined, b.param("w2", tensor(8, 48, 1, 1)), pad=0),)


CASES: dict[str, Callable[[GraphBuilder], tuple[Value, ...]]] = {
    f.__name__: f for f in (every_kind_of_part, chain, symbolic, reshaped, in_place, nothing_to_place, blocks)
}


def graph_of(name: str) -> Graph:
    b = GraphBuilder(name)
    return b.finish(CASES[name](b))


def arrays(graph: Graph, t: int) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(t)

    def make(value: Value) -> Any:
        return rng.standard_normal([t if d is T else int(str(d)) for d in value.shape]).astype(np.float32)

    return {v.name: make(v) for v in graph.inputs}, {v.name: make(v) for v in graph.params}


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_what_is_computed_in_place_is_right(name: str, threads: int) -> None:
    graph = graph_of(name)
    params = arrays(graph, 1)[1]
    model = tw.compile((graph, params), threads=threads)
    for t in (0, 1, 5, 64) if graph.symbols else (1,):
        inputs = arrays(graph, t)[0]
        expected = run_graph(graph, inputs, params)
        for a, b in zip(model.run(inputs).values(), expected.values(), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * float(np.abs(b).max(initial=1.0)))
    profiled = model.profile(*inputs.values(), repeat=1)  # its own table of addresses
    assert len(profiled.kernels) == len(model.manifest.run_steps)


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", CASES)
def test_where_everything_lies(name: str, golden: Callable[..., None]) -> None:
    """The overlays, when memory is in use and at which offset the parts begin."""
    graph = graph_of(name)
    manifest = tw.compile_program((graph, arrays(graph, 1)[1]), target="x86-64-v3").manifest
    temps = [
        f"{k}: {t.nbytes} bytes, steps {t.first} to {t.last}, over {t.alias}" for k, t in enumerate(manifest.run_temps)
    ]
    steps = [f"{s.label}: slots {s.slots} {[str(x) for x in s.shifts]}" for s in manifest.run_steps]
    golden("\n".join([*temps, "", *steps]))


@pytest.mark.parametrize("name", CASES)
def test_placing_keeps_the_meaning(name: str) -> None:
    graph = graph_of(name)
    inputs, params = arrays(graph, 3)
    for passed in (place_views(graph), canonicalise(graph), place_views(canonicalise(graph))):
        verify_graph(passed)
        verify_views(passed)
        expected = run_graph(graph, inputs, params).values()
        for a, b in zip(run_graph(passed, inputs, params).values(), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def views(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes if ops.is_view(n)]


def test_who_is_a_view() -> None:
    placed = place_views(graph_of("every_kind_of_part"))
    assert views(placed) == []  # three of five parts would be copied one by one
    placed = place_views(graph_of("chain"))
    assert views(placed).count("concat") == 4 and not [n for n in placed.nodes if n.op == "identity"]
    assert views(place_views(graph_of("symbolic"))) == ["concat", "slice", "slice"]
    assert views(place_views(graph_of("nothing_to_place"))) == []
    labels = [s.label for s in tw.compile((graph_of("blocks"), arrays(graph_of("blocks"), 1)[1])).manifest.run_steps]
    assert not [label for label in labels if "concat" in label or "slice" in label or label.startswith("block")]


def test_an_output_of_which_a_third_is_copied_is_in_place() -> None:
    """A step's new parameters are such an output, some of which stay as they were: no work follows that a copy of all
    could do."""
    b = GraphBuilder("g")
    x = b.input("x", tensor(16, 4))
    parts = [
        ops.emit1(b, "tanh", cut(b, x, 0, 8)),
        cut(b, x, 8, 4),
        ops.emit1(b, "exp", cut(b, x, 0, 8)),
        cut(b, x, 12, 4),
    ]
    assert "concat" in views(place_views(b.finish((ops.emit1(b, "concat", *parts, axis=0),))))


def test_pieces_whose_size_is_no_polynomial_are_copied() -> None:
    """Rows of a size that is rounded down: where the second one begins cannot be written in a manifest."""
    b = GraphBuilder("g")
    pooled = ops.emit1(b, "slice", b.input("x", tensor(1, 2, T)), begin=(0, 0, 0), size=(1, 2, T // 4), step=(1, 1, 4))
    row = cut(b, ops.emit1(b, "tanh", pooled), 1, 1, axis=1)
    graph = b.finish((ops.emit1(b, "softmax", row, axis=2),))
    x = np.random.default_rng(0).standard_normal((1, 2, 13)).astype(np.float32)
    want = run_graph(graph, {"x": x}, {})
    np.testing.assert_allclose(tw.compile((graph, {}))(x), want[graph.outputs[0].name], rtol=1e-5)


@pytest.mark.parametrize(("height", "count"), [(H, 1), (H.renamed("h"), 1), (Var("height", lo=0), 0)])
def test_half_parts_of_a_size_that_two_divides_are_in_place(height: Var, count: int) -> None:
    """Parts of a map as in a U-Net: where it is not known to be even, no kernel can write where the second part
    begins."""
    b = GraphBuilder("g")
    x = b.input("x", tensor(1, 2, height, 5))
    y = ops.emit1(b, "max_pool", x, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1))
    joined = ops.emit1(b, "concat", y, ops.emit1(b, "softmax", y, axis=3), axis=1)
    graph = b.finish((ops.emit1(b, "softmax", joined, axis=1),))
    assert views(place_views(graph)).count("concat") == count
    model = tw.compile((graph, {}))
    for n in (4, 12, 40):
        a = np.random.default_rng(n).standard_normal((1, 2, n, 5)).astype(np.float32)
        (want,) = run_graph(graph, {"x": a}, {}).values()
        np.testing.assert_allclose(model(a), want, rtol=1e-5)


@pytest.mark.parametrize(
    ("size", "want"),
    [
        (H // 2, ((2, ("height/4",)),)),  # a half is no whole coefficient
        (3 * (H // 4) * T + H, ((1, ("height",)), (3, ("height/4", "t")))),
        (8 * (H // 2), ((4, ("height",)),)),
        (H // 2 // 2 * 8 * T - 3, ((-3, ()), (2, ("height", "t")))),
        (8 * (H // 8), None),  # 4 does not tell
        ((H + 2) // 4, None),
        ((H + 8) // 4 * 4, ((8, ()), (1, ("height",)))),
        (T // 2 * 0, ()),
    ],
)
def test_divisions_without_a_rest_are_polynomials(size: Expr, want: object) -> None:
    assert polynomial(size) == want


def test_parts_of_maps_stand_where_no_whole_number_of_pixels_of_the_input_ends() -> None:
    """Parts of maps as in a DenseNet: three channels of a quarter by a quarter begin at 3 / 4 of the pixels' bytes."""
    b, width = GraphBuilder("g"), Var("width", lo=4, hi=64, multiple=4)
    x = b.input("x", tensor(1, 3, H, width))
    quarter = {"kernel": (4, 4), "strides": (4, 4), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    y = ops.emit1(b, "max_pool", x, **quarter)
    joined = ops.emit1(b, "concat", y, ops.emit1(b, "softmax", y, axis=3), axis=1)
    graph = b.finish((ops.emit1(b, "softmax", joined, axis=1),))
    assert views(place_views(graph)).count("concat") == 1
    model = tw.compile((graph, {}))
    shifts = [s for step in model.manifest.run_steps for s in step.shifts]
    assert ((12, ("height/4", "width/4")),) in shifts
    for h, w in ((4, 4), (12, 20), (64, 4)):
        a = np.random.default_rng(h).standard_normal((1, 3, h, w)).astype(np.float32)
        (want,) = run_graph(graph, {"x": a}, {}).values()
        np.testing.assert_allclose(model(a), want, rtol=1e-5)
        assert str(h) in str(model.profile(a, repeat=2).symbols)


def test_slices_that_follow_each_other_are_joined() -> None:
    b = GraphBuilder()
    x, y = b.input("x", tensor(1, 9, 4)), b.input("y", tensor(1, 2, 4))
    parts = [cut(b, x, begin, size, axis=1) for begin, size in ((0, 3), (3, 5), (8, 1), (2, 3), (5, 2), (0, 1))]
    graph = b.finish(
        (ops.emit1(b, "concat", *parts[:3], axis=1), ops.emit1(b, "concat", *parts[:3], y, *parts[3:], axis=1))
    )
    joined = canonicalise(graph)
    first, second = (joined.producers()[v] for v in joined.outputs)
    assert (first.op, first.inputs) == ("identity", (x,))
    assert second.inputs[:2] == (x, y) and len(second.inputs) == 4
    assert second.inputs[2] is not None and [str(d) for d in second.inputs[2].shape] == ["1", "5", "4"]


@pytest.mark.parametrize(("axis", "message"), [(1, "no single pieces"), (0, "without memory of its own")])
def test_the_verifier_refuses_other_views(axis: int, message: str) -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(2, 3))
    parts = (x, x) if message.startswith("without") else (ops.emit1(b, "exp", x),) * 2
    with pytest.raises(VerifyError, match=message):
        verify_views(b.finish((ops.emit1(b, "concat", *parts, axis=axis, view=True),)))


def test_the_verifier_refuses_views_with_steps() -> None:
    b = GraphBuilder()
    x = ops.emit1(b, "exp", b.input("x", tensor(6)))
    with pytest.raises(VerifyError, match="with steps"):
        verify_views(b.finish((ops.emit1(b, "slice", x, begin=(0,), size=(3,), step=(2,), view=True),)))


def test_several_parts_are_transposed_in_place() -> None:
    """Where no other work would join the kernel that copies them; of a few parts, pointwise work does."""

    def joined(count: int) -> list[str]:
        b = GraphBuilder("g")
        parts = [ops.emit1(b, "transpose", b.input(f"x{k}", tensor(3, 5)), perm=(1, 0)) for k in range(count)]
        parts.append(whole(b, b.input("y", tensor(2, 3))))
        return views(place_views(b.finish((ops.emit1(b, "neg", ops.emit1(b, "concat", *parts, axis=0)),))))

    assert joined(4) == []
    assert joined(MAX_INPUTS) == ["concat"]


def test_only_concatenations_and_slices_are_views() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(2, 3))
    with pytest.raises(VerifyError, match="add: has no attribute 'view'"):
        ops.emit1(b, "add", x, x, view=True)


def test_the_verifier_refuses_a_part_with_two_places() -> None:
    b = GraphBuilder()
    part = ops.emit1(b, "exp", b.input("x", tensor(2, 3)))
    graph = b.finish((ops.emit1(b, "concat", part, ops.emit1(b, "reshape", part, shape=(2, 3)), axis=0, view=True),))
    with pytest.raises(VerifyError, match="stands elsewhere"):
        verify_views(graph)
