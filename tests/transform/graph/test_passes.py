"""Graph passes keep a graph's meaning, and do what they are for."""

from __future__ import annotations

import numpy as np
import pytest

from tests.transform.graph.graphs import ALL, BATCH, conv, numbers, tensor
from tilewright import ops
from tilewright.compiler import compile_graph, graph_passes
from tilewright.ir.dtype import i8, i32
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ir.verify import verify_graph
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.runtime.model import Model
from tilewright.targets.target import Target
from tilewright.transform.graph.canonical import eliminate_common
from tilewright.transform.graph.fixed import depends_on_weights, fixed_values
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.materialize import materialize_outputs
from tilewright.transform.graph.memory import places
from tilewright.transform.graph.scales import fold_scales
from tilewright.transform.graph.split import split_prepare
from tilewright.transform.regions import captures

TARGETS = ["znver4", "haswell"]


def passed(graph: Graph, target: Target) -> Graph:
    for _, function in graph_passes(target):
        graph = function(graph)
        verify_graph(graph)
    return graph


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_pass_keeps_the_meaning(name: str, batch: int, target: str) -> None:
    graph = ALL[name]()
    inputs, params = numbers(graph, batch)
    expected = list(run_graph(graph, inputs, params).values())
    for title, function in graph_passes(Target.parse(target)):
        graph = function(graph)
        got = run_graph(graph, inputs, params).values()
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4, err_msg=title)


@pytest.mark.parametrize("name", ALL)
def test_prepare_then_run_is_the_graph(name: str) -> None:
    graph = ALL[name]()
    inputs, params = numbers(graph, 2)
    expected = list(run_graph(graph, inputs, params).values())
    split = split_prepare(passed(graph, Target.parse("znver4")))
    assert not any(all(v in split.run.params for v in n.inputs if v is not None) for n in split.run.nodes if n.inputs)
    created = run_graph(split.prepare, {}, params)
    packed = dict(zip((v.name for v in split.prepare.outputs), created.values(), strict=True))
    got = run_graph(split.run, inputs, {**params, **packed}).values()
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_a_passed_graph_prints_and_parses(name: str) -> None:
    graph = passed(ALL[name](), Target.parse("znver4"))
    assert parse_graph(str(graph)) == graph


@pytest.mark.parametrize("name", ALL)
def test_groups_cover_the_graph_in_order(name: str) -> None:
    graph = split_prepare(passed(ALL[name](), Target.parse("znver4"))).run
    groups = fuse(graph)
    known = {*graph.inputs, *graph.params}
    for group in groups:
        assert set(group.inputs) <= known, group.label
        known.update(group.outputs)
    assert set(graph.outputs) <= known
    nodes = [n for group in groups for n in group.nodes if n.op != "constant"]
    assert sorted(map(id, nodes)) == sorted(id(n) for n in graph.nodes if n.op != "constant")


def test_weights_and_what_is_created_of_them_alone_are_fixed() -> None:
    b = GraphBuilder("case")
    x, w, v = b.input("x", tensor(3, 3)), b.param("w", tensor(3, 3)), b.param("v", tensor(3, 3))
    both, mixed = ops.emit1(b, "add", w, v), ops.emit1(b, "add", x, w)
    above, later = ops.emit1(b, "exp", both), ops.emit1(b, "mul", both, mixed)
    graph = b.finish((above, later))
    assert fixed_values(graph) == {w, v, both, above}
    assert {n.output for n in split_prepare(graph).prepare.nodes} == {both, above}
    assert depends_on_weights((w, None), {w}) and depends_on_weights((), set())
    assert not depends_on_weights((w, x), {w})


def test_an_epilogue_joins_its_convolution() -> None:
    graph = split_prepare(passed(ALL["full blocks"](), Target.parse("znver4"))).run
    labels = [g.label for g in fuse(graph)]
    assert "conv_blocked + add + relu" in labels
    assert any(label.startswith("conv_") and label.endswith(" + add + add + relu") for label in labels)


def test_scales_leave_no_multiplication_in_run() -> None:
    run = split_prepare(passed(ALL["residual"](), Target.parse("znver4"))).run
    assert not [n for n in run.nodes if n.op == "mul"]


def test_blocked_layout_is_converted_at_the_edges_only() -> None:
    run = split_prepare(passed(ALL["full blocks"](), Target.parse("znver4"))).run
    assert not [n for n in run.nodes if n.op == "lowered.block_channels"]
    assert (
        len([n for n in run.nodes if n.op == "lowered.unblock_channels"]) == 2
    )  # the pooled row and the second output


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("target", TARGETS)
def test_pointwise_work_on_a_single_element_keeps_its_shape(target: str, images: int) -> None:
    b = GraphBuilder()
    x, w, bias = (
        b.input("x", tensor(images, 4, 3, 3)),
        b.param("w", tensor(1, 4, 3, 3)),
        b.param("b", tensor(1, 1, 1, 1)),
    )
    y = conv(b, x, w, pad=0)
    graph = b.finish((ops.emit1(b, "sigmoid", ops.emit1(b, "add", y, bias)),))
    inputs, params = numbers(graph, images)
    (want,) = run_graph(graph, inputs, params).values()
    (got,) = run_graph(passed(graph, Target.parse(target)), inputs, params).values()
    assert got.shape == want.shape == (images, 1, 1, 1)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_scale_that_is_used_twice_is_not_folded() -> None:
    b = GraphBuilder()
    x, w, s = b.input("x", tensor(BATCH, 4, 5, 5)), b.param("w", tensor(4, 4, 3, 3)), b.param("s", tensor(4, 1, 1))
    y = conv(b, x, w)
    graph = b.finish((ops.emit1(b, "mul", y, s), y))
    assert fold_scales(graph) is graph
    scaled = ops.emit1(b, "mul", ops.emit1(b, "add", y, s), s)
    graph = b.finish((ops.emit1(b, "neg", scaled), y))
    assert fold_scales(graph) is graph


def test_a_factor_of_integer_sums_is_not_folded() -> None:
    """The sums are wider than the weights, which the factor would not fit into."""
    b = GraphBuilder()
    x, w = (
        b.input("x", TensorType(i8, tensor(1, 4, 5, 5).shape)),
        b.param("w", TensorType(i8, tensor(4, 4, 3, 3).shape)),
    )
    y = ops.emit1(b, "mul", conv(b, x, w), b.param("s", TensorType(i32, tensor(4, 1, 1).shape)))
    graph = b.finish((ops.emit1(b, "neg", y),))
    assert fold_scales(graph) is graph


def test_common_computations_are_done_once_but_outputs_keep_their_names() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(BATCH, 4))
    first, second, third = (ops.emit1(b, "tanh", x) for _ in range(3))
    graph = eliminate_common(b.finish((ops.emit1(b, "add", first, second), third)))
    assert [n.op for n in graph.nodes] == ["tanh", "tanh", "add"]


def test_zeros_of_two_signs_are_two_numbers() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(2))
    pads = [ops.emit1(b, "pad", x, after=(1,), before=(0,), mode="constant", value=v) for v in (0.0, -0.0, 0.0)]
    graph = eliminate_common(b.finish(tuple(ops.emit1(b, "neg", p) for p in pads)))
    assert [n.op for n in graph.nodes].count("pad") == 2


def test_outputs_have_memory_of_their_own() -> None:
    b = GraphBuilder()
    x = b.input("x", tensor(2, 6))
    y = ops.emit1(b, "relu", x)
    views = tuple(ops.emit1(b, "reshape", v, shape=(3, 4)) for v in (x, y, y))
    graph = materialize_outputs(b.finish((x, *views)))
    where = places(graph.nodes)

    def root(v: object) -> object:
        while v in where:
            v = where[v].base  # type: ignore[index]
        return v

    roots = [root(v) for v in graph.outputs]
    assert len(set(roots)) == 4 and x not in roots


def test_numbers_that_loops_read_are_in_memory() -> None:
    """Shaped as such a program takes it, a number is a constant that no pass before had seen."""
    graph = parse_graph("""
    graph @g(%x: f32[4], %i: i64[1]) {
      %c = constant() {value = array f32[] (2.5)} : f32[]
      %d = reshape(%c) {shape = [$1]} : f32[1]
      %y = scatter_elements(%x, %i, %d) {axis = 0, reduction = "add"} : f32[4]
      return %y
    }""")
    model = Model(compile_graph(graph, {}, Target.host(), records=None))
    np.testing.assert_array_equal(model(np.zeros(4, np.float32), np.array([2])), [0, 0, 2.5, 0])


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resizing_between_convolutions_stays_blocked(mode: str) -> None:
    b = GraphBuilder("upsampling")
    w = b.param("w", tensor(16, 16, 3, 3))
    y = conv(b, b.input("x", tensor(1, 16, 5, 6)), w)
    defaults = {"cubic_a": -0.75, "exclude_outside": False, "antialias": False, "extrapolation": 0.0}
    for axis, size in ((2, 10), (3, 12)):
        attrs = {"axis": axis, "scale": 2.0, "size": size, "mode": mode, "rounding": "floor", **defaults}
        y = ops.emit1(b, "resize", y, coordinates="asymmetric", **attrs)
    graph = b.finish((conv(b, y, w),))
    after = passed(graph, Target.parse("haswell"))
    assert sum(n.op == "lowered.unblock_channels" for n in after.nodes) == 1
    inputs, params = numbers(graph, 1)
    (want,), (got,) = (run_graph(g, inputs, params).values() for g in (graph, after))
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize(
    ("channels", "begin", "size", "blocked"),
    [
        (32, (0, 8, 0, 0), (1, 24, 5, 6), True),
        (32, (0, 16, 1, 2), (1, 16, 3, 4), True),
        (20, (0, 8, 0, 0), (1, 12, 5, 6), True),
        (20, (0, 0, 0, 0), (1, 12, 5, 6), False),
        (32, (0, 4, 0, 0), (1, 8, 5, 6), False),
        (20, (0, 16, 0, 0), (1, 1, 5, 6), False),
    ],
)
def test_slices_between_convolutions_stay_blocked(
    channels: int, begin: tuple[int, ...], size: tuple[int, ...], blocked: bool
) -> None:
    b = GraphBuilder("slices")
    y = conv(b, b.input("x", tensor(1, 16, 5, 6)), b.param("w", tensor(channels, 16, 3, 3)))
    y = ops.emit1(b, "slice", y, begin=begin, size=size, step=(1, 1, 1, 1))
    graph = b.finish((conv(b, ops.emit1(b, "relu", y), b.param("v", tensor(24, size[1], 3, 3))),))
    after = passed(graph, Target.parse("haswell"))
    (part,) = (n for n in after.nodes if n.op == "slice")
    assert (part.output.type.rank == 5) == blocked
    inputs, params = numbers(graph, 1)
    (want,), (got,) = (run_graph(g, inputs, params).values() for g in (graph, after))
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


def test_channels_that_nothing_reads_are_not_computed() -> None:
    b = GraphBuilder("slices")
    y = conv(b, b.input("x", tensor(1, 16, 5, 6)), b.param("w", tensor(32, 16, 3, 3)))
    y = ops.emit1(b, "slice", y, begin=(0, 8, 0, 0), size=(1, 16, 5, 6), step=(1, 1, 1, 1))
    graph = b.finish((conv(b, ops.emit1(b, "relu", y), b.param("v", tensor(24, 16, 3, 3))),))
    after = passed(graph, Target.parse("haswell"))
    (part,) = (n for n in after.nodes if n.op == "slice")
    assert part.inputs == (after.params[0],) and part.output.shape[0] == 16
    inputs, params = numbers(graph, 1)
    (want,), (got,) = (run_graph(g, inputs, params).values() for g in (graph, after))
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("channels", [16, 20, 1])
def test_an_element_a_channel_is_blocked_before_it_is_broadcast(channels: int) -> None:
    """The backward pass of batch norm has such an element; a single channel is no block."""
    b = GraphBuilder("g")
    x = b.input("x", tensor(2, 8, 6, 6))
    y = conv(b, x, b.param("w", tensor(channels, 8, 3, 3)))
    mean = ops.emit1(b, "broadcast", b.input("mean", tensor(1, channels, 1, 1)), shape=y.shape)
    z = ops.emit1(b, "mul", ops.emit1(b, "relu", y), mean)
    graph = b.finish((conv(b, z, b.param("w2", tensor(8, channels, 3, 3))),))
    result = passed(graph, Target.parse("haswell"))
    sizes = {n.inputs[0].shape for n in result.nodes if n.op == "lowered.block_channels" and n.inputs[0] is not None}
    assert y.shape not in sizes
    inputs, params = numbers(graph, 1)
    (want,), (got,) = (list(run_graph(g, inputs, params).values()) for g in (graph, result))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_groups_of_rows_that_leave_in_several_places_make_no_circle() -> None:
    graph = parse_graph("""
graph @main(%x: f32[10], %i: i32[]) {
  %zero = constant() {value = array i32[] (0)} : i32[]
  %nine = constant() {value = array i32[] (9)} : i32[]
  %next = add(%i, %nine) : i32[]
  %low = ge(%next, %zero) : bool[]
  %high = le(%next, %nine) : bool[]
  %both = "and"(%low, %high) : bool[]
  %row = broadcast(%both) {shape = [$1]} : bool[1]
  %inside = reduce_min(%row) {axes = [0], keepdims = false} : bool[]
  %place = broadcast(%next) {shape = [$1]} : i32[1]
  %chosen = gather(%x, %place) {axis = 0} : f32[1]
  %value = reshape(%chosen) {shape = []} : f32[]
  %other = constant() {value = array f32[] (1.0)} : f32[]
  %y = select(%inside, %value, %other) : f32[]
  return %y
}
""")
    ready = {*graph.inputs}
    for group in fuse(graph):
        assert all(v in ready for v in group.inputs), group.label
        ready.update(group.outputs)


def test_groups_of_rows_lead_to_each_other_in_one_direction_only() -> None:
    """The product `f` joins the sum of `e` only if no way from `e` leads through the other group to `u`: this one leads
    over nodes after `f`."""
    graph = parse_graph("""
graph @main(%x: f32[64, 6], %p: f32[1], %c: f32[64, 1]) {
  %e = exp(%p) : f32[1]
  %l = log(%x) : f32[64, 6]
  %s = reduce_sum(%l) {axes = [1], keepdims = false} : f32[64]
  %m = reshape(%s) {shape = [$64, $1]} : f32[64, 1]
  %t = reduce_sum(%m) {axes = [0, 1], keepdims = true} : f32[1, 1]
  %u = reshape(%t) {shape = [$1]} : f32[1]
  %r = reduce_sum(%e) {axes = [0], keepdims = true} : f32[1]
  %f = mul(%e, %u) : f32[1]
  %v = mul(%e, %c) : f32[64, 1]
  %w = reshape(%v) {shape = [$64]} : f32[64]
  %y = mul(%s, %w) : f32[64]
  return %r, %f, %y
}
""")
    ready = {*graph.inputs}
    for group in fuse(graph):
        assert all(v in ready for v in group.inputs), group.label
        ready.update(group.outputs)


def test_what_a_call_brings_is_packed_right_before_it_is_multiplied() -> None:
    graph = parse_graph("""graph @g(%x: f32[8, 16], %w0: f32[16, 16], %w1: f32[16, 16]) {
      %p0 = lowered.pack_matmul(%w0) {transpose = false, width = 16} : f32[1, 16, 16]
      %p1 = lowered.pack_matmul(%w1) {transpose = false, width = 16} : f32[1, 16, 16]
      %a = lowered.matmul_packed(%x, %p0) {columns = 16} : f32[8, 16]
      %b = tanh(%a) : f32[8, 16]
      %y = lowered.matmul_packed(%b, %p1) {columns = 16} : f32[8, 16]
      return %y
    }""")
    labels = [group.label for group in fuse(graph)]
    assert labels == ["pack_matmul", "matmul_packed + tanh", "pack_matmul", "matmul_packed"]


def test_values_of_rows_join_what_reduces_the_rows() -> None:
    """A computation of one value a row stands in the loop over rows, and so does what reads it for each element;
    with another number of values for each row it does not."""
    b = GraphBuilder("case")
    x, other, wide = b.input("x", tensor(6, 5)), b.input("other", tensor(6, 1)), b.input("wide", tensor(6, 7))
    mean = ops.emit1(b, "reduce_mean", ops.emit1(b, "mul", x, x), axes=(1,), keepdims=True)
    scale = ops.emit1(b, "sqrt", ops.emit1(b, "add", mean, other))
    y = ops.emit1(b, "div", x, scale)
    (group,) = fuse(b.finish((y,)))
    assert [n.op for n in group.nodes] == ["mul", "reduce_mean", "add", "sqrt", "div"]
    groups = fuse(b.finish((y, ops.emit1(b, "add", scale, wide))))
    assert [[n.op for n in g.nodes] for g in groups] == [[n.op for n in group.nodes], ["add"]]


def test_what_a_body_captures_is_fixed_where_it_is_created_of_weights() -> None:
    """A captured value of weights alone, or of weights and constants, is fixed; one of data is not, nor of constants
    alone."""
    b = GraphBuilder("case")
    x, w = b.input("x", tensor(3, 3)), b.param("w", tensor(3, 3))
    two = ops.emit1(b, "constant", value=np.float32(2.0))
    scaled, bent = ops.emit1(b, "mul", w, two), ops.emit1(b, "exp", x)
    mixed, number = ops.emit1(b, "add", w, bent), ops.emit1(b, "exp", two)
    graph = b.finish((scaled, mixed, number))
    assert captures.fixed_values(graph, graph.params) == {w, scaled}
    assert captures.fixed_values(graph, [w, x]) == {w, x, scaled, bent, mixed}


def test_pointwise_work_that_one_kernel_reads_is_in_it() -> None:
    """The other operand of a sum is computed beside the first; not what another kernel reads, too."""

    def labels(seen: str) -> list[str]:
        graph = ops.parse_graph(f"""
            graph @g(%x: f32[4, 8]) {{
              %a = exp(%x) : f32[4, 8]
              %b = tanh(%x) : f32[4, 8]
              %c = mul(%b, %x) : f32[4, 8]
              %y = add(%a, %c) : f32[4, 8]
              return {seen}
            }}""")
        return [group.label for group in fuse(graph)]

    assert labels("%y") == ["exp + tanh + mul + add"]
    assert labels("%y, %c") == ["tanh + mul", "exp + add"]


def test_functions_stay_outside_of_large_products() -> None:
    """The slope of an activation is a part of the product after which it is a factor if it is cheap, or small."""

    def labels(rows: int, slope: str) -> list[str]:
        graph = ops.parse_graph(f"""
            graph @g(%x: f32[{rows}, 8], %w: f32[16, 8, 64], %h: f32[{rows}, 1024]) {{
              %p = lowered.matmul_packed(%x, %w) {{columns = 1024}} : f32[{rows}, 1024]
              %e = {slope}(%h) : f32[{rows}, 1024]
              %s = mul(%e, %e) : f32[{rows}, 1024]
              %y = mul(%p, %s) : f32[{rows}, 1024]
              return %y
            }}""")
        return [group.label for group in fuse(graph)]

    assert labels(128, "erf") == ["erf + mul", "matmul_packed + mul"]
    assert labels(16, "erf") == ["matmul_packed + erf + mul + mul"]
    assert labels(128, "abs") == ["matmul_packed + abs + mul + mul"]
