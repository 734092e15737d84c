"""Gradients of every source operator against central differences in f64, on the operators' NumPy references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.frontend.read import import_model
from tilewright.ir.dtype import DType, boolean, f32, f64, i32, i64
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ops import parse_graph
from tilewright.ops.attention_gradient import AttentionGradientAttrs
from tilewright.ops.gradients.registry import NONE, RULES, find
from tilewright.ops.interpret import run_graph
from tilewright.ops.registry import emit
from tilewright.train.gradient import gradient

Array = np.ndarray[Any, Any]
STEP = 1e-6
TOLERANCE = 2e-6
"""Relative to the largest gradient: differences of so many digits in f64, and the curvature of what is tested."""


def interpret(graph: Graph, inputs: dict[str, Array]) -> list[Array]:
    """The outputs in order; one may stand there twice."""
    result = run_graph(graph, inputs)
    return [result[v.name] for v in graph.outputs]


def graph_of(op: str, inputs: Sequence[Array | None], attrs: dict[str, Any]) -> Graph:
    """The sum of an operator's floating point outputs, each element with a weight of its own. None: no such operand."""
    builder = GraphBuilder("g")
    values = [
        None if a is None else builder.input(f"x{k}", TensorType(ops_dtype(a), tuple(as_expr(d) for d in a.shape)))
        for k, a in enumerate(inputs)
    ]
    outputs = emit(builder, op, *values, **attrs)
    total: Value | None = None
    for k, y in enumerate(y for y in outputs if y.dtype.is_float):
        shape = tuple(int(str(d)) for d in y.shape)
        numbers = np.random.default_rng(k).uniform(0.5, 1.5, shape).astype(y.dtype.numpy)
        (weight,) = emit(builder, "constant", value=numbers)
        (weighted,) = emit(builder, "mul", y, weight)
        (part,) = emit(builder, "reduce_sum", weighted, axes=tuple(range(len(shape))), keepdims=False)
        total = part if total is None else emit(builder, "add", total, part)[0]
    assert total is not None
    return builder.finish((total,))


def ops_dtype(array: Array) -> DType:
    return {"f": f64, "i": i64, "b": boolean}[array.dtype.kind] if array.dtype != np.float32 else f32


def check(op: str, inputs: Sequence[Array | None], tolerance: float = TOLERANCE, **attrs: Any) -> None:
    graph = graph_of(op, inputs, attrs)
    names = [f"x{k}" for k, a in enumerate(inputs) if a is not None and a.dtype.kind == "f"]
    match = gradient(graph, graph.outputs[0].name, names)
    arguments = {f"x{k}": a for k, a in enumerate(inputs) if a is not None}
    _, *gradients = interpret(match, arguments)
    for name, result in zip(names, gradients, strict=True):
        expected = differences(graph, arguments, name)
        assert result.shape == expected.shape
        scale = max(np.abs(expected).max(initial=0), 1)
        np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * scale, err_msg=f"{op} by {name}")


def differences(graph: Graph, arguments: dict[str, Array], name: str) -> Array:
    result = np.zeros(arguments[name].shape)
    for place in np.ndindex(result.shape):
        values = []
        for step in (STEP, -STEP):
            moved = arguments[name].copy()
            moved[place] += step
            values.append(float(interpret(graph, {**arguments, name: moved})[0]))
        result[place] = (values[0] - values[1]) / (2 * STEP)
    return result


rng = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return np.asarray(rng.normal(size=shape))


def positive(*shape: int) -> Array:
    return np.asarray(rng.uniform(0.3, 2.0, size=shape))


def inside(*shape: int) -> Array:
    return np.asarray(rng.uniform(-0.8, 0.8, size=shape))


UNARY: dict[str, Callable[..., Array]] = {
    "log": positive, "log2": positive, "log1p": positive, "sqrt": positive, "rsqrt": positive, "reciprocal": positive,
    "arccosh": lambda *s: positive(*s) + 1, "arcsin": inside, "arccos": inside, "arctanh": inside, "tan": inside,
}  # fmt: skip
FLAT = [
    "neg", "abs", "exp", "exp2", "expm1", "sin", "cos", "sinh", "cosh", "tanh", "arctan", "arcsinh", "sigmoid", "erf",
    "relu", "softplus", "softsign", "mish", "hard_swish", "identity", *UNARY,
]  # fmt: skip
WITH: list[tuple[str, dict[str, Any]]] = [
    ("gelu", {"approximate": "none"}),
    ("gelu", {"approximate": "tanh"}),
    ("leaky_relu", {"alpha": 0.1}),
    ("elu", {"alpha": 1.3}),
    ("selu", {"alpha": 1.6, "gamma": 1.05}),
    ("celu", {"alpha": 0.7}),
    ("swish", {"alpha": 1.2}),
    ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    ("affine", {"alpha": 0.2, "beta": 0.5}),
    ("scaled_tanh", {"alpha": 1.5, "beta": 0.5}),
    ("thresholded_relu", {"alpha": 0.4}),
    ("shrink", {"lambd": 0.5, "bias": 0.1}),
    ("clip", {"min": -0.5, "max": 0.7}),
]


@pytest.mark.parametrize("op", FLAT)
def test_unary(op: str) -> None:
    check(op, [UNARY.get(op, normal)(3, 5)])


@pytest.mark.parametrize(("op", "attrs"), WITH)
def test_activations(op: str, attrs: dict[str, Any]) -> None:
    check(op, [normal(3, 5)], **attrs)


BENT = [(op, {}) for op in ("abs", "relu", "softplus", "softsign", "mish", "hard_swish", "sigmoid", "tanh", "erf")]


@pytest.mark.parametrize(("op", "attrs"), [*BENT, *WITH])
def test_on_both_sides_of_every_bend(op: str, attrs: dict[str, Any]) -> None:
    """Points at distances of a quarter: bends of a function are not closer."""
    check(op, [np.arange(-7.135, 7.2, 0.24)], **attrs)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "max", "min", "atan2", "fmod"])
def test_binary_with_broadcasting(op: str) -> None:
    check(op, [normal(2, 1, 4), positive(3, 1)])


def test_pow() -> None:
    check("pow", [positive(3, 4), normal(4)])


def test_select() -> None:
    check("select", [rng.random((3, 4)) < 0.5, normal(3, 4), normal(1, 4)])
    check("prelu", [normal(2, 3, 4), positive(3, 1)])


@pytest.mark.parametrize("op", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min"])
@pytest.mark.parametrize(("axes", "keepdims"), [((1,), True), ((0, 2), False), ((0, 1, 2), False)])
def test_reductions(op: str, axes: tuple[int, ...], keepdims: bool) -> None:
    check(op, [normal(2, 3, 4)], axes=axes, keepdims=keepdims)


def test_products_and_sums_along_an_axis() -> None:
    x = normal(3, 4)
    x[1, 2] = 0
    check("reduce_prod", [x], axes=(1,), keepdims=False)
    for exclusive in (False, True):
        for reverse in (False, True):
            check("cumsum", [normal(3, 4)], axis=1, exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax(op: str) -> None:
    check(op, [normal(3, 5)], axis=1)
    check(op, [normal(3, 5, 2)], axis=-2)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms(op: str) -> None:
    check(op, [normal(3, 5)], axis=-1, epsilon=1e-3)
    check(op, [normal(2, 3, 5), normal(3, 5), *([normal(5)] if op == "layer_norm" else [])], axis=1, epsilon=1e-3)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_matmul(ta: bool, tb: bool) -> None:
    def shaped(*shape: int, swap: bool) -> Array:
        x = normal(*shape)
        return np.ascontiguousarray(np.swapaxes(x, -1, -2)) if swap else x

    for lead_a, lead_b in (((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,))):
        a, b = shaped(*lead_a, 3, 4, swap=ta), shaped(*lead_b, 4, 5, swap=tb)
        check("matmul", [a, b], transpose_a=ta, transpose_b=tb)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bjk->bki", "ij,kl->", "ijk->j", "ij,ij,i->j"])
def test_einsum(equation: str) -> None:
    sizes = dict(zip("bijkl", (2, 3, 4, 5, 2), strict=True))
    terms = equation.split("->")[0].split(",")
    check("einsum", [normal(*(sizes[c] for c in t)) for t in terms], equation=equation)


CONVOLUTIONS = [
    ((1, 2, 6, 5), (3, 2, 3, 2), {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 0, 1, 1), "groups": 1}),
    ((2, 2, 7, 6), (2, 2, 3, 3), {"strides": (2, 3), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}),
    ((1, 4, 8, 7), (6, 2, 2, 3), {"strides": (2, 1), "dilations": (2, 2), "pads": (0, 1, 2, 1), "groups": 2}),
    ((2, 3, 6, 6), (3, 1, 3, 3), {"strides": (1, 2), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 3}),
    ((2, 2, 9), (3, 2, 3), {"strides": (2,), "dilations": (1,), "pads": (1, 1), "groups": 1}),
    ((1, 2, 4, 4, 3), (2, 2, 2, 2, 2), {"strides": (2, 1, 1), "dilations": (1, 1, 1), "pads": (0,) * 6, "groups": 1}),
]


@pytest.mark.daily(3)
@pytest.mark.parametrize(("x", "w", "attrs"), CONVOLUTIONS)
def test_convolutions(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    check("conv", [normal(*x), normal(*w)], **attrs)


@pytest.mark.daily(3)
@pytest.mark.parametrize(("x", "w", "attrs"), CONVOLUTIONS)
def test_transposed_convolutions(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    weight = (x[1], w[0] // attrs["groups"], *w[2:])
    extra = tuple(s - 1 for s in attrs["strides"])
    check("conv_transpose", [normal(*x), normal(*weight)], **attrs, output_padding=extra)


def test_convolutions_twice() -> None:
    """The gradient by a weight is an operator with gradients of its own."""
    attrs = {"strides": (2, 1), "dilations": (1, 2), "pads": (1, 0, 2, 1), "window": (3, 2)}
    check("conv_weight_gradient", [normal(2, 2, 7, 6), normal(2, 3, 4, 5)], **attrs)


ATTENTION: dict[str, Any] = {"scale": 0.5, "causal": False, "fill": 0.0, "guard": False}
SPARSE = np.array([[True, False, True, True], [False, False, True, False], [True, True, True, True]])


@pytest.mark.parametrize(
    "mask,attrs",
    [
        (None, {}),
        (None, {"causal": True}),
        (normal(2, 1, 3, 4), {}),
        (SPARSE, {"fill": -0.5}),
        (SPARSE, {"fill": float("-inf")}),
        (SPARSE & (np.arange(3) > 0)[:, None], {"fill": float("-inf"), "guard": True}),
    ],
    ids=["plain", "causal", "added", "a number", "hidden", "a row that sees nothing"],
)
def test_attention(mask: Any, attrs: dict[str, Any]) -> None:
    """By queries, keys and values, in whatever order and heads; a mask that is added is no operand of the gradient."""
    arguments = {**ATTENTION, **attrs, "order": "shts", "heads": 4, "groups": 2, "first": (1, 0, 1)}
    operands = [normal(2, 3, 5, 2), normal(2, 2, 4, 2), normal(4, 2, 3, 3)]
    graph = graph_of("lowered.attention", [*operands, *([] if mask is None else [mask])], arguments)
    got = gradient(graph, graph.outputs[0].name, ["x0", "x1", "x2"])
    arrays = {f"x{k}": a for k, a in enumerate((*operands, *([] if mask is None else [mask])))}
    _, *gradients = interpret(got, arrays)
    for name, result in zip(("x0", "x1", "x2"), gradients, strict=True):
        expected = differences(graph, arrays, name)
        np.testing.assert_allclose(result, expected, rtol=0, atol=TOLERANCE * max(np.abs(expected).max(), 1))


@pytest.mark.parametrize("order", ["tttt", "ssst"])
@pytest.mark.parametrize(
    "first", [(0, 2, 4), (4, 2, 0), (0, 1, 4)], ids=["in order", "turned", "heads that are shared"]
)
def test_attention_within_one_array(first: tuple[int, int, int], order: str) -> None:
    """Queries, keys and values are heads of one projection, some of them twice; each once, in order, they have one
    gradient."""
    attrs = {**ATTENTION, "order": order, "heads": 2, "groups": 2, "first": first}
    shape = (3, 2, 6, 2)
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(f64, tuple(as_expr(d) for d in shape)))
    (y,) = emit(builder, "lowered.attention", x, x, x, **attrs)
    weights = emit(builder, "constant", value=normal(*map(int, map(str, y.shape))))[0]
    total = emit(builder, "reduce_sum", emit(builder, "mul", y, weights)[0], axes=(0, 1, 2, 3), keepdims=False)[0]
    graph, arguments = builder.finish((total,)), {"x": normal(*shape)}
    expected = differences(graph, arguments, "x")
    backward = gradient(graph, total.name, ["x"])
    (node,) = (n for n in backward.nodes if n.op == "attention_gradient")
    assert node.of(AttentionGradientAttrs).joined is ((order, first) == ("ssst", (0, 2, 4)))
    result = interpret(backward, arguments)[1]
    np.testing.assert_allclose(result, expected, rtol=0, atol=TOLERANCE * max(np.abs(expected).max(), 1))


def test_attention_twice() -> None:
    """The gradient of attention has one, too, from its stages."""
    attrs = {**ATTENTION, "order": "ssss", "heads": 1, "groups": 1, "first": (0, 0, 0)}
    check(
        "attention_gradient", [normal(1, 3, 1, 2), normal(1, 2, 1, 2), normal(1, 2, 1, 2), normal(1, 3, 1, 2)], **attrs
    )
    check("attention_gradient", [normal(1, 2, 1, 2) for _ in range(4)], **attrs, joined=True)


def test_pools() -> None:
    attrs: dict[str, Any] = {"kernel": (3, 2), "strides": (2, 1), "dilations": (1, 1), "pads": (1, 0, 1, 1)}
    check("max_pool", [normal(2, 2, 7, 5)], **attrs)
    for included in (False, True):
        check("avg_pool", [normal(2, 2, 7, 5)], **attrs, count_include_pad=included)


def test_shapes() -> None:
    x = normal(2, 3, 4)
    check("reshape", [x], shape=(4, 6))
    check("transpose", [x], perm=(2, 0, 1))
    check("broadcast", [normal(3, 1)], shape=(2, 3, 4))
    check("tile", [normal(2, 3)], repeats=(3, 2))
    check("concat", [x, normal(2, 1, 4), x], axis=1)
    check("pad", [x], before=(0, 1, 2), after=(1, 0, 0), mode="constant", value=3.0)
    check("trilu", [normal(3, 4)], k=1, upper=True)
    check("slice", [x], begin=(0, 1, 0), size=(2, 2, 3), step=(1, 1, 1))
    check("slice", [normal(5, 9)], begin=(4, 1), size=(2, 3), step=(-2, 3))


SIGMOID, TANH = ("sigmoid", ()), ("tanh", ())


@pytest.mark.daily(2)
@pytest.mark.costly(2)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [1, 4])
def test_recurrences(steps: int, reverse: bool) -> None:
    """Through time: by the inputs' gates, the recurrent weights, the first states, and a GRU's late bias."""
    lstm = {"cell": "lstm", "activations": (SIGMOID, TANH, TANH), "reverse": reverse}
    check("recurrence", [normal(steps, 2, 12), normal(3, 12), normal(2, 3), normal(2, 3)], **lstm)
    check("recurrence", [normal(steps, 2, 12), normal(3, 12), normal(2, 3)], **lstm)
    gru = {"cell": "gru", "activations": (SIGMOID, TANH), "reverse": reverse, "linear_before_reset": True}
    check("recurrence", [normal(steps, 2, 9), normal(3, 9), normal(2, 3), None, None, None, normal(3)], **gru)
    check("recurrence", [normal(steps, 2, 9), normal(3, 9), normal(2, 3)], **gru)
    check(
        "recurrence",
        [normal(steps, 2, 3), normal(3, 3), normal(2, 3)],
        cell="rnn",
        activations=(TANH,),
        reverse=reverse,
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_what_recurrences_keep(reverse: bool) -> None:
    """Gates and what else the backward pass needs have gradients of their own, which second gradients ask for."""
    lstm = {"cell": "lstm", "activations": (SIGMOID, TANH, TANH), "reverse": reverse, "keeps": True}
    check("recurrence", [normal(3, 2, 12), normal(3, 12), normal(2, 3), normal(2, 3)], **lstm)
    gru = {"cell": "gru", "activations": (SIGMOID, TANH), "reverse": reverse, "keeps": True}
    gru |= {"linear_before_reset": True}
    check("recurrence", [normal(3, 2, 9), normal(3, 9), normal(2, 3), None, None, None, normal(3)], **gru)


def test_a_normalisation_keeps_its_quotient_alone() -> None:
    """The divided values are computed once more from it, so that one map is kept and not two."""
    graph = parse_graph("""graph @g(%x: f64[16, 3]) {
      %mean = reduce_mean(%x) {axes = [0], keepdims = true} : f64[1, 3]
      %centred = sub(%x, %mean) : f64[16, 3]
      %squares = mul(%centred, %centred) : f64[16, 3]
      %variance = reduce_mean(%squares) {axes = [0], keepdims = true} : f64[1, 3]
      %deviation = sqrt(%variance) : f64[1, 3]
      %y = div(%centred, %deviation) : f64[16, 3]
      %cubes = mul(%y, %squares) : f64[16, 3]
      %loss = reduce_sum(%cubes) {axes = [0, 1], keepdims = false} : f64[]
      return %loss
    }""")
    result = gradient(graph, "loss", ["x"])
    following = [n for n in result.nodes if n.output.name.startswith(("d.", "centred.again"))]
    assert any(n.output.name == "centred.again" for n in following)
    assert all(v is None or v.name != "centred" for n in following for v in n.inputs)
    arguments = {"x": normal(16, 3)}
    np.testing.assert_allclose(interpret(result, arguments)[1], differences(graph, arguments, "x"), atol=1e-5)


def test_a_step_of_an_lstm() -> None:
    common = {"batch": 2, "step": 1, "activations": (SIGMOID, TANH, TANH)}
    for product, cell in ((None, None), (normal(2, 12), None), (normal(2, 12), normal(2, 3))):
        check("lstm_cell", [normal(6, 12), product, cell], **common)
    check("lstm_cell", [normal(6, 12), normal(2, 12), normal(2, 3)], clip=0.8, **common)
    common["activations"] = (("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))), ("softsign", ()), ("softplus", ()))
    check("lstm_cell", [normal(6, 12), normal(2, 12), normal(2, 3)], **common)


@pytest.mark.parametrize("reverse", [False, True])
def test_recurrences_of_other_functions(reverse: bool) -> None:
    """The slopes of these follow from their values, which are all that the forward pass stores."""
    relu, more = ("relu", ()), {"reverse": reverse}
    check("recurrence", [normal(3, 2, 3), normal(3, 3), normal(2, 3)], cell="rnn", activations=(relu,), **more)
    lstm = (SIGMOID, SIGMOID, ("exp", ()))
    check("recurrence", [normal(3, 2, 8), normal(2, 8), normal(2, 2)], cell="lstm", activations=lstm, **more)


WITHOUT_GRADIENTS: dict[str, tuple[str, list[Array | None], dict[str, Any]]] = {
    "peepholes": ("lstm", [None, normal(6)], {"activations": (SIGMOID, TANH, TANH)}),
    "lengths": ("lstm", [np.array([2])], {"activations": (SIGMOID, TANH, TANH)}),
    "bounds": ("lstm", [], {"activations": (SIGMOID, TANH, TANH), "clip": 1.0}),
    "functions": ("lstm", [], {"activations": (("softplus", ()), TANH, TANH)}),
    "bias inside": ("gru", [], {"activations": (SIGMOID, TANH)}),
}


@pytest.mark.parametrize("what", WITHOUT_GRADIENTS)
def test_recurrences_without_gradients(what: str) -> None:
    cell, more, attrs = WITHOUT_GRADIENTS[what]
    width = {"lstm": 8, "gru": 6}[cell]
    begun = [normal(1, 2), normal(1, 2) if cell == "lstm" else None]
    with pytest.raises(tw.Error, match="has no gradient yet"):
        check("recurrence", [normal(2, 1, width), normal(2, width), *begun, *more], cell=cell, **attrs)


def test_gathers_and_scatters() -> None:
    x = normal(4, 3)
    places = np.array([[0, 3], [3, 1], [-1, 0]])
    check("gather", [x, places], axis=0)
    check("gather", [x, np.array([2, 0, 2])], axis=1)
    check("gather", [x, np.array(1)], axis=0)
    check("gather_elements", [x, np.array([[0, 3, 1], [0, 0, 2]])], axis=0)
    check("gather_nd", [x, np.array([[0, 2], [3, 1], [0, 2]])])
    check("topk", [normal(3, 6)], axis=1, k=3, largest=True)
    for reduction in ("add", "none"):
        rows = np.array([[0, 3, 1], [1, 0, 2]])
        check("scatter_elements", [x, rows, normal(2, 3)], axis=0, reduction=reduction)
        check("scatter_nd", [x, np.array([[2], [0]]), normal(2, 3)], reduction=reduction)


@pytest.mark.parametrize("reduction", ["mul", "max", "min"])
def test_scatters_that_combine(reduction: str) -> None:
    """Several updates of one place; with one zero among them, and with several."""
    x, updates = normal(4, 3), normal(5, 3)
    if reduction == "mul":
        x[0, 0] = updates[1, 1] = updates[2, 1] = updates[3, 2] = 0
    rows = np.array([[0, 3, 1], [1, 0, 2], [0, 0, 1], [0, 2, -3], [0, 3, 0]])
    check("scatter_elements", [x, rows, updates], axis=0, reduction=reduction)
    check("scatter_nd", [x, np.array([[2], [0], [0], [0], [-1]]), updates], reduction=reduction)


def test_equal_extremes_of_a_scatter_share() -> None:
    graph = graph_of("scatter_elements", [np.ones(2), np.array([0, 0]), np.ones(2)], {"axis": 0, "reduction": "max"})
    weights = np.random.default_rng(0).uniform(0.5, 1.5, 2)
    result = gradient(graph, graph.outputs[0].name, ["x0", "x2"])
    inputs = {"x0": np.ones(2), "x1": np.array([0, 0]), "x2": np.array([1.0, 0.5])}
    by_data, by_updates = interpret(result, inputs)[1:]
    np.testing.assert_allclose(by_data, weights * [0.5, 1])
    np.testing.assert_allclose(by_updates, weights[0] * np.array([0.5, 0]))


IMAGE = (1, 2, 5, 4)
WINDOWS: dict[str, Any] = {"kernel": (2, 2), "strides": (1, 2), "dilations": (1, 1), "pads": (0, 0, 1, 0)}
BOXES = np.array([[0.13, 0.21, 4.37, 4.11], [1.3, 1.7, 5.2, 3.41]])
WITHOUT_RULES: list[tuple[str, list[Array], dict[str, Any]]] = [
    ("lrn", [normal(*IMAGE)], {"size": 3, "alpha": 0.1, "beta": 0.5, "bias": 1.0}),
    ("reverse_sequence", [normal(4, 3), np.array([2, 4, 1])], {"batch_axis": 1, "time_axis": 0}),
    *[("lp_pool", [normal(*IMAGE)], {**WINDOWS, "p": p}) for p in (1, 2, 3)],
    *[("pad", [normal(4, 3)], {"before": (1, 2), "after": (2, 0), "mode": m}) for m in ("reflect", "edge", "wrap")],
    ("gather_nd", [normal(2, 4, 3), np.array([[[1], [3]], [[0], [0]]])], {"batch_dims": 1}),
    ("avg_pool", [normal(*IMAGE)], {**WINDOWS, "strides": (2, 2), "pads": (0,) * 4, "ceil_mode": True}),
    ("einsum", [normal(3, 3, 2), normal(2, 4)], {"equation": "iij,jk->ik"}),
    ("einsum", [normal(3, 3)], {"equation": "ii->"}),
    *[
        (
            "resize",
            [normal(2, 5)],
            {"axis": 1, "size": n, "scale": n / 5, "mode": mode, "coordinates": c, "rounding": "floor"},
        )
        for mode, n, c in (("linear", 8, "half_pixel"), ("cubic", 7, "align_corners"), ("nearest", 3, "asymmetric"))
    ],
    *[
        (
            "grid_sample",
            [normal(1, 2, 4, 5), inside(1, 3, 2, 2)],
            {"mode": mode, "padding": pad, "align_corners": False},
        )
        for mode, pad in (("linear", "zeros"), ("linear", "reflection"), ("cubic", "border"))
    ],
    (
        "roi_align",
        [normal(1, 2, 6, 6), BOXES, np.array([0, 0])],
        {"height": 2, "width": 2, "samples": 2, "scale": 1.0, "mode": "avg", "half_pixel": True},
    ),
    ("dft", [normal(2, 6, 2)], {"axis": 1, "inverse": False, "onesided": False}),
    (
        "col2im",
        [normal(1, 8, 9)],
        {"image": (4, 4), "block": (2, 2), "dilations": (1, 1), "pads": (0,) * 4, "strides": (1, 1)},
    ),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), WITHOUT_RULES)
def test_expressions_are_differentiated_where_there_is_no_rule(
    op: str, inputs: list[Array], attrs: dict[str, Any]
) -> None:
    check(op, inputs, **attrs)


def test_cast() -> None:
    check("cast", [normal(3, 4)], dtype=f64)


def test_second_order() -> None:
    """Gradients are graphs of source operators, so that they have gradients."""
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(f64, (as_expr(4),)))
    (t,) = emit(builder, "tanh", x)
    (y,) = emit(builder, "reduce_sum", emit(builder, "mul", t, t)[0], axes=(0,), keepdims=False)
    first = gradient(builder.finish((y,)), y.name, ["x"])
    more = GraphBuilder(
        "g", list(first.inputs), [], list(first.nodes), {v.name for n in first.nodes for v in n.outputs}
    )
    (total,) = emit(more, "reduce_sum", first.outputs[1], axes=(0,), keepdims=False)
    second = gradient(more.finish((total,)), total.name, ["x"])
    at = normal(4)
    tanh = np.tanh(at)
    expected = 2 * (1 - tanh**2) ** 2 - 4 * tanh**2 * (1 - tanh**2)
    np.testing.assert_allclose(interpret(second, {"x": at})[-1], expected, rtol=1e-12)


CORNERS = [
    ("relu", {}, [0.0], [0.0]),
    ("abs", {}, [0.0], [0.0]),
    ("clip", {"min": -1.0, "max": 1.0}, [-1.0, 1.0, 2.0], [1.0, 1.0, 0.0]),
    ("leaky_relu", {"alpha": 0.25}, [0.0], [0.25]),
    ("hard_sigmoid", {"alpha": 0.5, "beta": 0.5}, [-1.0, 1.0], [0.0, 0.0]),
]


@pytest.mark.parametrize(("op", "attrs", "at", "expected"), CORNERS)
def test_corners_are_as_pytorch_takes_them(
    op: str, attrs: dict[str, Any], at: list[float], expected: list[float]
) -> None:
    graph = graph_of(op, [np.array(at)], attrs)
    weights = np.random.default_rng(0).uniform(0.5, 1.5, len(at))
    result = gradient(graph, graph.outputs[0].name, ["x0"])
    np.testing.assert_allclose(interpret(result, {"x0": np.array(at)})[1], np.array(expected) * weights, rtol=1e-12)


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_rows_without_a_norm_have_the_slope_of_the_bound(p: float) -> None:
    """x / epsilon where the norm is below epsilon. Elsewhere a zero moves no norm, but for p = 1, where |x| has slope
    zero at zero."""
    x = np.array([[0.0, 0.0, 0.0], [1e-180, -1e-180, 0.0], [3.0, 0.0, -4.0]])
    graph = graph_of("lp_normalize", [x], {"axes": (1,), "p": p, "epsilon": 1e-6})
    result = gradient(graph, graph.outputs[0].name, ["x0"])
    with np.errstate(all="ignore"):
        _, slopes = interpret(result, {"x0": x})
    weights = np.random.default_rng(0).uniform(0.5, 1.5, x.shape)
    size, sign = np.abs(x[2]), np.sign(x[2])
    norm = np.sum(size**p) ** (1 / p)
    of_norm = np.where(size > 0, sign * np.where(size > 0, size, 1) ** (p - 1), 0) * norm ** (1 - p)
    last = weights[2] / norm - of_norm * (weights[2] @ x[2]) / norm**2
    np.testing.assert_allclose(slopes, [*(weights[:2] / 1e-6), last], rtol=1e-12)


def test_what_is_not_chosen_stops_infinite_gradients() -> None:
    """The root of what is above zero: at zero, a slope of zero times infinity would be NaN."""
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(f64, (as_expr(3),)))
    zero = emit(builder, "constant", value=np.float64(0))[0]
    chosen = emit(builder, "select", emit(builder, "gt", x, zero)[0], x, zero)[0]
    total = emit(builder, "reduce_sum", emit(builder, "sqrt", chosen)[0], axes=(0,), keepdims=False)[0]
    graph = gradient(builder.finish((total,)), total.name, ["x"])
    with np.errstate(divide="ignore"):
        _, result = interpret(graph, {"x": np.array([4.0, 0.0, -1.0])})
    np.testing.assert_allclose(result, [1 / 4, 0, 0])


def test_a_root_of_squares_has_no_slope_at_zero() -> None:
    """NaN, as PyTorch has it of the operators; its norms are zero there (test_torch_forms.py, test_norms_of_files)."""
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(f64, (as_expr(2), as_expr(2))))
    squares = emit(builder, "reduce_sum", emit(builder, "mul", x, x)[0], axes=(1,), keepdims=False)[0]
    total = emit(builder, "reduce_sum", emit(builder, "sqrt", squares)[0], axes=(0,), keepdims=False)[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        _, result = interpret(
            gradient(builder.finish((total,)), total.name, ["x"]), {"x": np.array([[3.0, -4.0], [0.0, 0.0]])}
        )
    np.testing.assert_allclose(result, [[0.6, -0.8], [np.nan, np.nan]])


@pytest.mark.parametrize("op", ["ReduceL2", "LpNormalization"])
def test_norms_of_files(op: str) -> None:
    """Rows of zeros have a gradient of zero, others their own."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    attrs = {"axis": 1} if op == "LpNormalization" else {"axes": [1]}
    nodes = [helper.make_node(op, ["x"], ["y"], **attrs), helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)]
    inputs = [helper.make_tensor_value_info("x", kind, [2, 2])]
    model = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("loss", kind, [])])
    read = import_model(helper.make_model(model, opset_imports=[helper.make_opsetid("", 13)]))
    x = np.array([[3.0, -4.0], [0.0, 0.0]], np.float32)
    result = interpret(gradient(read.graph, read.graph.outputs[0].name, ["x"]), {"x": x})[-1]
    expected = [[0.6, -0.8], [0, 0]] if op == "ReduceL2" else [[28 / 125, 21 / 125], [0, 0]]
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_equals_share() -> None:
    for op in ("max", "min"):
        graph = graph_of(op, [np.ones(1), np.ones(1)], {})
        weight = np.random.default_rng(0).uniform(0.5, 1.5, 1)
        result = gradient(graph, graph.outputs[0].name, ["x0", "x1"])
        inputs = {"x0": np.ones(1), "x1": np.ones(1)}
        np.testing.assert_allclose(np.concatenate(interpret(result, inputs)[1:]), np.repeat(weight / 2, 2))


WITHOUT = frozenset("forest nonzero head search_sorted suppress unique_rows unique_sorted".split())
"""Source operators without a gradient: loop programs, and integers."""


def test_what_has_no_gradient_is_known() -> None:
    """An operator that comes has a gradient, or is named here."""
    source = [name for name in ops.registry.names() if ops.get(name).dialect == "source"]
    missing = {name for name in source if find(name) is None and name not in NONE}
    assert missing - WITHOUT == set()
    assert not {name for name in WITHOUT if name in source and find(name) is not None}


def test_gradients_can_be_stopped() -> None:
    """x * stop(x) has the gradient of a product with a constant."""
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(f32, (as_expr(3),)))
    (retained,) = emit(builder, "stop_gradient", x)
    (product,) = emit(builder, "mul", x, retained)
    (total,) = emit(builder, "reduce_sum", product, axes=(0,), keepdims=False)
    graph = gradient(builder.finish((total,)), total.name, ["x"])
    at = np.array([-2.0, 0.5, 3.0], np.float32)
    for _, candidate in (interpret(graph, {"x": at}), tw.Model(tw.compile_program((graph, {})))(at)):
        np.testing.assert_array_equal(candidate, at)


def test_what_stopped_gradients_lead_to_needs_none() -> None:
    """x times a number that is put together of the bits of stop(x), as in the derivative of erf in JAX 0.12: operators
    without a gradient after `stop_gradient` are no obstacle."""
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(f32, (as_expr(3),)))
    (retained,) = emit(builder, "stop_gradient", x)
    (bits,) = emit(builder, "cast", retained, dtype=i32, bits=True)
    (high,) = emit(builder, "bitand", bits, emit(builder, "constant", value=np.int32(-4096))[0])
    (rounded,) = emit(builder, "cast", high, dtype=f32, bits=True)
    (product,) = emit(builder, "mul", x, rounded)
    (total,) = emit(builder, "reduce_sum", product, axes=(0,), keepdims=False)
    graph = gradient(builder.finish((total,)), total.name, ["x"])
    at = np.array([-2.1, 0.3, 3.7], np.float32)
    np.testing.assert_array_equal(interpret(graph, {"x": at})[-1], (at.view(np.int32) & -4096).view(np.float32))


def test_bits_of_numbers() -> None:
    """A number that is put together of bits depends on it, so that zero would be wrong; what bits decide is flat."""
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(f32, (as_expr(4),)))
    (bits,) = emit(builder, "cast", x, dtype=i32, bits=True)
    (rest,) = emit(builder, "bitand", bits, emit(builder, "constant", value=np.int32(0x7FFFFF))[0])
    (copied,) = emit(builder, "cast", rest, dtype=f32, bits=True)
    (condition,) = emit(builder, "lt", bits, emit(builder, "constant", value=np.int32(0))[0])
    (chosen,) = emit(builder, "select", condition, emit(builder, "neg", x)[0], x)
    (flat,) = emit(builder, "reduce_sum", chosen, axes=(0,), keepdims=False)
    (created,) = emit(builder, "reduce_sum", copied, axes=(0,), keepdims=False)
    graph = builder.finish((flat, created))
    at = np.array([-2.0, -0.5, 0.5, 3.0], np.float32)
    np.testing.assert_array_equal(interpret(gradient(graph, flat.name, ["x"]), {"x": at})[-1], np.sign(at))
    with pytest.raises(tw.Error, match="another one's bits"):
        gradient(graph, created.name, ["x"])


def test_all_that_is_missing_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    for op in ("cholesky", "cumprod"):
        monkeypatch.delitem(RULES, op)
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(f32, (as_expr(4), as_expr(4))))
    (a,) = emit(builder, "cholesky", x)
    (b,) = emit(builder, "cumprod", a, axis=1, exclusive=False, reverse=False)
    (y,) = emit(builder, "reduce_sum", b, axes=(0, 1), keepdims=False)
    with pytest.raises(tw.Error, match=r"(?s)cumprod has no gradient.*cholesky has no gradient"):
        gradient(builder.finish((y,)), y.name, ["x"])


def test_names_are_checked() -> None:
    graph = graph_of("tanh", [normal(3)], {})
    with pytest.raises(tw.Error, match="no output"):
        gradient(graph, "nobody", ["x0"])
    with pytest.raises(tw.Error, match="no input or parameter"):
        gradient(graph, graph.outputs[0].name, ["nobody"])


def test_the_logarithm_of_a_probability_has_finite_gradients() -> None:
    """Where one of its two formulas overflows, the other one is taken and so is its gradient."""
    torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")

    class LogProbability(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return torch.special.log_ndtr(x).sum()

    x = torch.tensor([-50.0, -9.0, -1.0, 0.0, 0.999, 1.0, 1.5, 6.0, 40.0])
    exact = x.double().requires_grad_()  # autograd's own gradients in f32 are off by 6e-5 at -50
    (want,) = torch.autograd.grad(LogProbability()(exact), exact)
    read = import_model(LogProbability(), example=(x,), dynamic=None)
    whole = gradient(read.graph, read.graph.outputs[0].name, [read.graph.inputs[0].name])
    result = list(run_graph(whole, {read.graph.inputs[0].name: x.numpy()}, read.weights).values())
    np.testing.assert_allclose(result[-1], want.numpy(), rtol=1e-5, atol=1e-7)
