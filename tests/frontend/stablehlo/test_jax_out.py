"""StableHLO out: XLA and IREE read it and agree, and what comes in again is what went out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from benchmarks import policy_suite
from benchmarks.onnx_builder import BATCH, Builder
from benchmarks.peers import mlir
from benchmarks.peers.mlir import by_xla
from tilewright.codegen.linalg import linalg_text
from tilewright.codegen.stablehlo import stablehlo_text
from tilewright.frontend.onnx import import_onnx
from tilewright.frontend.stablehlo import import_stablehlo
from tilewright.ir.dtype import BY_NAME
from tilewright.ir.graph import Graph
from tilewright.ir.interface import Imported
from tilewright.ir.key import key
from tilewright.ops import parse_graph
from tilewright.ops.index import AxisAttrs
from tilewright.ops.interpret import run_graph

jax = pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")

MODELS = {name: getattr(policy_suite, name) for name in "m64 m256 nat imp nl hok1 hok3 dz".split()}
RNG = np.random.default_rng(0)


def by_iree(text: str, arrays: list[Any], language: str = "stablehlo") -> list[np.ndarray[Any, Any]]:
    for module in ("compiler", "runtime"):
        pytest.importorskip(f"iree.{module}", reason=f"IREE is an extra: iree-base-{module}")
    return mlir.by_iree(text, arrays, language)


def feeds(graph: Graph) -> dict[str, Any]:
    def values(shape: list[int], t: Any) -> Any:
        return RNG.integers(0, 9, shape).astype(t) if t.kind in "iu" else RNG.normal(size=shape).astype(t)

    return {v.name: values([int(str(d)) for d in v.shape], v.dtype.numpy) for v in graph.inputs}


def agree(imported: Imported, run: Callable[..., Any], write: Callable[[Graph], str] = stablehlo_text) -> None:
    arguments = feeds(imported.graph)
    expected = list(run_graph(imported.graph, arguments, imported.weights).values())
    arrays = [*arguments.values(), *(imported.weights[p.name] for p in imported.graph.params)]
    for candidate, e in zip(run(write(imported.graph), arrays), expected, strict=True):
        assert candidate.shape == e.shape
        np.testing.assert_allclose(candidate, e, atol=1e-5 * max(1.0, float(np.abs(e).max())), rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_xla_agrees(name: str) -> None:
    agree(import_onnx(MODELS[name](), {"batch": 3}), by_xla)


@pytest.mark.parametrize("name", ["m64"])
def test_iree_agrees(name: str) -> None:
    agree(import_onnx(MODELS[name](), {"batch": 3}), by_iree)


@pytest.mark.parametrize("batch", [3, None])
def test_iree_agrees_on_linalg(batch: int | None) -> None:
    if batch is not None:
        source = import_onnx(policy_suite.m64(), {"batch": batch})
        agree(source, lambda text, arrays: by_iree(text, arrays, "none"), linalg_text)
        return
    source = import_onnx(tower())  # of a batch that is open, IREE makes m64 in 18 s
    x = RNG.normal(size=(5, 17)).astype(np.float32)
    result = by_iree(linalg_text(source.graph), [x, *(source.weights[p.name] for p in source.graph.params)], "none")
    for a, e in zip(result, run_graph(source.graph, {"obs": x}, source.weights).values(), strict=True):
        np.testing.assert_allclose(a, e, atol=1e-5)


def tower(width: int = 8) -> onnx.ModelProto:
    """Half of m64, narrower."""
    b = Builder("tower")
    x = b.op("Tanh", [b.linear(b.input("obs", [BATCH, 17]), "first", 17, width, gain=1.0)])
    b.output(b.linear(x, "last", width, 6), "action", [BATCH, 6])
    return b.build()


@pytest.mark.costly(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch", [3, None])
def test_in_out_in_has_the_same_key(name: str, batch: int | None) -> None:
    source = import_onnx(MODELS[name](), None if batch is None else {"batch": batch}).graph
    first = import_stablehlo(stablehlo_text(source)).graph
    reloaded = import_stablehlo(stablehlo_text(first)).graph
    assert key(first) == key(reloaded)


GATHERS = """
graph @gathers(%x: f32[2, 200, 8], %i: i32[4], %j: i64[3, 2], %k: i8[2], %u: u8[2, 1], %p: f32[1, 2, 9, 9]) {
  %a = gather(%x, %i) {axis = 1} : f32[2, 4, 8]
  %b = gather(%x, %j) {axis = 2} : f32[2, 200, 3, 2]
  %c = gather(%x, %k) {axis = 1} : f32[2, 2, 8]
  %d = gather(%x, %u) {axis = 0} : f32[2, 1, 200, 8]
  %e = resize(%p) {
    axis = 3, coordinates = "asymmetric", mode = "nearest", rounding = "floor", scale = 0.5, size = $4
  } : f32[1, 2, 9, 4]
  return %a, %b, %c, %d, %e
}
"""

TRANSPOSED = """
graph @transposed(%x: f32[2, 4, 5, 6], %i: i32[3, 2, 2]) params(%w: f32[4, 3, 3, 2]) {
  %a = conv_transpose(%x, %w) {
    dilations = [1, 2], groups = 1, output_padding = [1, 0], pads = [0, 1, 1, 0], strides = [2, 3]
  } : f32[2, 3, 11, 17]
  %c = gather_nd(%x, %i) {batch_dims = 0} : f32[3, 2, 5, 6]
  return %a, %c
}
"""
IN_GROUPS = """
graph @groups(%x: f32[2, 4, 5, 6], %j: i64[2, 3, 1]) params(%w: f32[4, 3, 3, 2]) {
  %b = conv_transpose(%x, %w) {
    dilations = [1, 1], groups = 2, output_padding = [0, 1], pads = [1, 0, 1, 0], strides = [2, 2]
  } : f32[2, 6, 9, 13]
  %d = gather_nd(%x, %j) {batch_dims = 1} : f32[2, 3, 5, 6]
  return %b, %d
}
"""


@pytest.mark.parametrize("text", [TRANSPOSED, IN_GROUPS])
def test_transposed_convolutions_and_gathers_by_vectors(text: str) -> None:
    source = parse_graph(text)
    first = import_stablehlo(stablehlo_text(source)).graph
    if text is TRANSPOSED:
        assert key(import_stablehlo(stablehlo_text(first)).graph) == key(first)
        assert first.nodes[0].op == "conv_transpose" and "transpose" not in {n.op for n in first.nodes}
    weights = {p.name: RNG.normal(size=(4, 3, 3, 2)).astype(np.float32) for p in source.params}
    arguments = {
        v.name: RNG.integers(-2, 2, [int(str(d)) for d in v.shape]).astype(v.dtype.numpy) for v in source.inputs
    }
    arrays = [*arguments.values(), *weights.values()]
    expected = run_graph(source, arguments, weights)
    repeated = run_graph(first, {v.name: a for v, a in zip(first.inputs, arrays, strict=True)}, {})
    for candidate in (by_xla(stablehlo_text(source), arrays), list(repeated.values())):
        for x, (name, e) in zip(candidate, expected.items(), strict=True):
            np.testing.assert_allclose(x, e, atol=1e-5, err_msg=name)


def test_gathers_come_back_as_they_went() -> None:
    """Along their axis, and without what StableHLO needs for positions that count from the end."""
    source = parse_graph(GATHERS)
    first = import_stablehlo(stablehlo_text(source)).graph
    assert key(import_stablehlo(stablehlo_text(first)).graph) == key(first)
    assert [n.of(AxisAttrs).axis for n in first.nodes if n.op == "gather"] == [1, 2, 1, 0, 3]
    assert not {"select", "add", "lt", "transpose"} & {n.op for n in first.nodes}
    arguments = feeds(source) | {"i": np.array([-1, 199, -200, 7], np.int32), "k": np.array([-1, -128], np.int8)}
    arguments["j"] = np.array([[-1, 0], [7, -8], [3, 4]])
    expected = run_graph(source, arguments, {})
    for candidate in (
        by_xla(stablehlo_text(source), [*arguments.values()]),
        list(run_graph(first, arguments, {}).values()),
    ):
        for x, (name, e) in zip(candidate, expected.items(), strict=True):
            np.testing.assert_array_equal(x, e, err_msg=name)


OPEN = """
graph @open(%x: bool[n, 9], %j: i64[n, 1, 5, 2], %y: f32[n, 7]) {
  %a = gather_nd(%x, %j) {batch_dims = 0} : bool[n, 1, 5]
  %b = range() {dtype = i64, size = $n, start = 0, step = 1} : i64[n]
  %c = range() {dtype = i64, size = $n, start = 3, step = 2} : i64[n]
  %d = gather(%y, %c) {axis = 0} : f32[n, 7]
  return %a, %b, %d
}
"""


def test_what_counts_and_what_is_selected_of_open_sizes_stays_as_it_is() -> None:
    first = import_stablehlo(stablehlo_text(parse_graph(OPEN))).graph
    assert key(import_stablehlo(stablehlo_text(first)).graph) == key(first)


def reshaped(rows: str, columns: int) -> str:
    """A module that says by a reshape that two of its sizes are equal."""
    return f"""
func.func @main(%x: tensor<?x{columns}xf32>, %y: tensor<?x3x2xf32>) -> tensor<?x{columns}xf32> {{
  %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x{columns}xf32>) -> tensor<i32>
  %1 = stablehlo.reshape %0 : (tensor<i32>) -> tensor<1xi32>
  %more = stablehlo.constant dense<{rows}> : tensor<1xi32>
  %2 = stablehlo.add %1, %more : tensor<1xi32>
  %3 = stablehlo.constant dense<{columns}> : tensor<1xi32>
  %4 = stablehlo.concatenate %2, %3, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %5 = stablehlo.dynamic_reshape %y, %4 : (tensor<?x3x2xf32>, tensor<2xi32>) -> tensor<?x{columns}xf32>
  return %5 : tensor<?x{columns}xf32>
}}"""


def test_a_reshape_says_that_sizes_are_equal() -> None:
    x, y = import_stablehlo(reshaped("0", 2)).graph.inputs
    assert [str(v.type) for v in (x, y)] == ["f32[arg1_dim0 * 3, 2]", "f32[arg1_dim0, 3, 2]"]


def test_a_reshape_of_sizes_that_do_not_say_what_the_other_is_is_refused() -> None:
    with pytest.raises(tw.Error, match=r"must be equal are not: expected arg1_dim0 \* 2, got batch \+ 1"):
        import_stablehlo(reshaped("1", 3))


OPERATORS = """
graph @many(%x: f32[2, 3, 8], %i: i32[4], %n: i32[5], %m: i32[5], %p: f32[1, 2, 9, 9]) params(%s: f32[8], %b: f32[8]) {
  %a = layer_norm(%x, %s, %b) {axis = 2, epsilon = 1e-05} : f32[2, 3, 8]
  %c = softmax(%a) {axis = 1} : f32[2, 3, 8]
  %d = log_softmax(%x) {axis = 2} : f32[2, 3, 8]
  %e = gather(%x, %i) {axis = 1} : f32[2, 4, 8]
  %f = slice(%x) {begin = [1, 0, 7], size = [1, 2, 3], step = [1, 1, -2]} : f32[1, 2, 3]
  %g = pad(%x) {after = [0, 1, 0], before = [0, 0, 2], mode = "constant", value = 1.5} : f32[2, 4, 10]
  %h = argmax(%x) {axis = 2, keepdims = false} : i64[2, 3]
  %j = floordiv(%n, %m) : i32[5]
  %k = mod(%n, %m) : i32[5]
  %l = avg_pool(%p) {dilations = [1, 1], kernel = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]} : f32[1, 2, 5, 5]
  %o = max_pool(%p) {dilations = [2, 1], kernel = [2, 3], pads = [0, 1, 0, 1], strides = [1, 1]} : f32[1, 2, 7, 9]
  %q = gelu(%x) : f32[2, 3, 8]
  %r = elu(%x) {alpha = 0.5} : f32[2, 3, 8]
  %t = reduce_mean(%x) {axes = [0, 2], keepdims = true} : f32[1, 3, 1]
  %u = trilu(%x) {k = 1, upper = true} : f32[2, 3, 8]
  %v = trunc(%x) : f32[2, 3, 8]
  %w = rms_norm(%x, %s) {axis = 1, epsilon = 0.001} : f32[2, 3, 8]
  %y = cast(%x) {dtype = i8} : i8[2, 3, 8]
  %z = resize(%p) {
    axis = 2, coordinates = "half_pixel", mode = "cubic", rounding = "floor", scale = 1.5, size = $13
  } : f32[1, 2, 13, 9]
  %aa = resize(%p) {
    axis = 3, coordinates = "asymmetric", mode = "nearest", rounding = "floor", scale = 0.5, size = $4
  } : f32[1, 2, 9, 4]
  %bb = lrn(%p) {alpha = 0.1, beta = 0.75, bias = 1.0, size = 2} : f32[1, 2, 9, 9]
  return %c, %d, %e, %f, %g, %h, %j, %k, %l, %o, %q, %r, %t, %u, %v, %w, %y, %z, %aa, %bb
}
"""


def test_operators_of_every_kind_agree() -> None:
    graph = parse_graph(OPERATORS)
    weights = {p.name: RNG.normal(size=8).astype(np.float32) for p in graph.params}
    arguments = feeds(graph) | {"i": np.array([0, -1, 2, 1], np.int32), "m": np.array([2, -3, 4, -5, 3], np.int32)}
    arguments["n"] = np.array([7, 7, -7, -7, 6], np.int32)
    expected = run_graph(graph, arguments, weights)
    result = by_xla(stablehlo_text(graph), [*arguments.values(), *weights.values()])
    for x, (name, e) in zip(result, expected.items(), strict=True):
        assert x.dtype == e.dtype, name
        np.testing.assert_allclose(x, e, atol=1e-5, rtol=1e-5, err_msg=name)


INTEGERS = ("floordiv", "mod", "truncdiv", "truncmod", "shl", "shr")


def corners(dtype: str) -> tuple[Any, Any]:
    """Pairs of a type's ends, of what is next to them, of the width and of small numbers."""
    info, kind = np.iinfo(dtype), np.dtype(dtype).type
    bits = info.bits
    each = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 11, bits - 1, bits, bits + 1]
    each += [-1, -2, -3, -7, -bits] if info.min < 0 else [info.max // 2, info.max // 2 + 1]
    a, b = np.meshgrid(np.array(each, kind), np.array(each, kind))
    return a.reshape(-1), b.reshape(-1)


@pytest.mark.parametrize("element", "i8 u8 i16 u16 i32 u32 i64 u64".split())
@pytest.mark.parametrize("way", ["xla", "iree", "linalg"])
def test_integers_divide_and_shift_as_the_interpreter_does(way: str, element: str) -> None:
    """By 0, by -1, by the width and more, by negative numbers: what StableHLO leaves open and `arith` undefined; also
    by each of these as a constant."""
    dtype = np.dtype(BY_NAME[element].numpy).name
    a, b = corners(dtype)
    constants = [0, int(b.min()), int(b.max()), np.iinfo(dtype).bits, *([-1] if b.min() < 0 else [2])]
    lines = [f"%{op} = {op}(%a, %b) : {element}[{len(a)}]" for op in INTEGERS]
    names = [*INTEGERS]
    for k, c in enumerate(constants):
        lines.append(f"%c{k} = constant() {{value = array {element}[] ({c})}} : {element}[]")
        for op in INTEGERS:
            names.append(f"{op}_by_{k}")
            lines.append(f"%{names[-1]} = {op}(%a, %c{k}) : {element}[{len(a)}]")
    body = "\n  ".join(lines)
    arguments = f"%a: {element}[{len(a)}], %b: {element}[{len(a)}]"
    returned = ", ".join(f"%{n}" for n in names)
    graph = parse_graph(f"graph @g({arguments}) {{\n  {body}\n  return {returned}\n}}\n")
    expected = run_graph(graph, {"a": a, "b": b}, {})
    text = linalg_text(graph) if way == "linalg" else stablehlo_text(graph)
    result = by_xla(text, [a, b]) if way == "xla" else by_iree(text, [a, b], "none" if way == "linalg" else "stablehlo")
    if way == "xla":
        reloaded = import_stablehlo(text).graph
        result += list(
            run_graph(reloaded, {v.name: x for v, x in zip(reloaded.inputs, (a, b), strict=True)}, {}).values()
        )
    for k, x in enumerate(result):
        name, e = list(expected.items())[k % len(expected)]
        np.testing.assert_array_equal(x.view(e.dtype), e, err_msg=name)


def test_what_has_no_words_is_listed() -> None:
    graph = parse_graph("""
graph @g(%x: f32[3, 4]) {
  %a = cumsum(%x) {axis = 0} : f32[3, 4]
  %b = cumprod(%x) {axis = 1} : f32[3, 4]
  return %a, %b
}""")
    with pytest.raises(tw.Error) as caught:
        stablehlo_text(graph)
    assert "cumsum" in str(caught.value) and "cumprod" in str(caught.value)


def test_show() -> None:
    model = tw.compile(policy_suite.m64())
    text = model.show("stablehlo")
    assert "tensor<?x17xf32>" in text and "stablehlo.dot_general" in text
    inputs = [RNG.normal(size=(5, 17)).astype(np.float32), *model.weights.values()]
    np.testing.assert_allclose(tw.compile(text)(*inputs)[0], model(inputs[0])[0], atol=1e-6)
