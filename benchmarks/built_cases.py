"""Programs beyond the suites' models whose code `bytes.py` watches: learning steps, states, ragged batches, loops and
branches, models in 8 bits, functions of JAX, comprehensions, tree ensembles, exported texts, the runtime's own code.

Each case is a function of the target's name, compiled by whichever `tilewright` is imported, so little of it is named
here. It compiles its program (`code_probe.py` keeps the texts and stops what would load one), or gives texts by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

import tilewright as tw
from benchmarks import comprehension_suite, control_models, decoder_model, dynamic_models

PREFIX = "built-"
PROGRAMS = Path(__file__).resolve().parent.parent / "tests" / "jax" / "programs"

Texts = Mapping[str, str]
Build = Callable[[str], Texts | None]
Weights = Mapping[str, "np.ndarray[Any, Any]"]


def onnx_model(text: str, weights: Weights = {}, opset: int = 21) -> onnx.ModelProto:  # noqa: B006
    """A model in ONNX's own text format, with its weights."""
    head = f'<ir_version: 10, opset_import: ["" : {opset}, "ai.onnx.ml" : 3, "com.microsoft" : 1]>'
    model = parser.parse_model(f"{head}\n{text}")
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return model


def drawn(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """Random weights by name."""
    rng = np.random.default_rng(seed)
    return {name: (rng.standard_normal(shape) * 0.1).astype(np.float32) for name, shape in shapes.items()}


def _compiled(model: Callable[[], Any], **settings: Any) -> Build:
    def build(target: str) -> None:
        tw.compile(model(), target=target, **settings)

    return build


# ------------------------------------------------------------------------------------------------ learning

PERCEPTRON = """
perceptron (float[16, 12] x, int64[16] y) => (float loss) {
    h = Gemm(x, w1, b1)
    a = Tanh(h)
    logits = Gemm(a, w2, b2)
    loss = SoftmaxCrossEntropyLoss(logits, y)
}
"""
CONVOLUTIONS = """
convolutions (float[4, 3, 12, 12] x, float[4, 8] y) => (float loss) {
    c = Conv <pads = [1, 1, 1, 1]> (x, k1)
    r = Relu(c)
    d = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (r, k2)
    e = Relu(d)
    m = GlobalAveragePool(e)
    f = Flatten(m)
    n = LayerNormalization(f, scale, bias)
    g = Sub(n, y)
    s = Mul(g, g)
    loss = ReduceMean <keepdims = 0> (s)
}
"""


def perceptron() -> onnx.ModelProto:
    return onnx_model(PERCEPTRON, drawn(0, w1=(12, 32), b1=(32,), w2=(32, 5), b2=(5,)))


def convolutions() -> onnx.ModelProto:
    return onnx_model(CONVOLUTIONS, drawn(1, k1=(8, 3, 3, 3), k2=(8, 8, 3, 3), scale=(8,), bias=(8,)))


def _step(model: Callable[[], onnx.ModelProto], optimizer: str, **settings: Any) -> Build:
    def build(target: str) -> None:
        tw.compile_step(model(), optimizer=getattr(tw.train, optimizer)(1e-2), target=target, **settings)

    return build


def _derivative(mode: str) -> Build:
    """The perceptron's gradients (backward), or its derivative in a direction (forward)."""

    def build(target: str) -> None:
        read = _imported(perceptron())
        names = [value.name for value in read.graph.params]
        make = {"gradient": tw.gradient, "jvp": tw.jvp}[mode]
        loss: Any = "loss" if mode == "gradient" else ["loss"]
        tw.compile((make(read.graph, loss, names), read.weights), target=target)

    return build


def _imported(model: Any) -> Any:
    from tilewright.compiler import import_model

    return import_model(model)


# ------------------------------------------------------------------------------------------------ ONNX

BRANCH = """
branch (float[n, 16] x, bool wide) => (float[n, 16] y) {
    y = If (wide) <
        then_branch = wider () => (float[n, 16] a) { h = MatMul(x, up) r = Relu(h) a = MatMul(r, down) },
        else_branch = narrow () => (float[n, 16] b) { t = MatMul(x, same) b = Tanh(t) }
    >
}
"""
QUANTISED = """
quantised (float[1, 8, 14, 14] x) => (float[1, 8, 14, 14] y) {
    xq = QuantizeLinear(x, xs, xz)
    xd = DequantizeLinear(xq, xs, xz)
    wd = DequantizeLinear <axis = 0> (w, ws, wz)
    c = Conv <pads = [1, 1, 1, 1]> (xd, wd)
    r = Relu(c)
    rq = QuantizeLinear(r, rs, rz)
    rd = DequantizeLinear(rq, rs, rz)
    p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (rd)
    pq = QuantizeLinear(p, rs, rz)
    y = DequantizeLinear(pq, rs, rz)
}
"""
INTEGERS = """
integers (float[n, 32] x) => (float[n, 16] y, uint8[n, 16] z) {
    xq, xs, xz = DynamicQuantizeLinear(x)
    p = MatMulInteger(xq, w, xz)
    f = Cast <to = 1> (p)
    y = Mul(f, xs)
    z = QLinearMatMul(xq, xs, xz, w, ws, wz, zs, zz)
}
"""
POINTWISE = """
pointwise (float[n, 24] x, int32[n, 24] i, int32[n, 24] j) => (float[n, 24] y, int32[n, 24] k) {
    a = Erf(x)
    b = Softplus(a)
    c = Mish(b)
    t = Tanh(c)
    d = Sin(t)
    e = Log(b)
    f = Pow(b, d)
    g = Gelu(f)
    h = Add(g, e)
    y = Softmax(h)
    q = Div(i, j)
    k = Mod(q, j)
}
"""
RECURRENT = """
recurrent (float[t, n, 16] x) => (float[t, 1, n, 32] y, float[1, n, 32] h, float[t, n, 32] z) {
    y, h, c = LSTM <hidden_size = 32> (x, w, r, b)
    s = Squeeze(y, one)
    g = GRU <hidden_size = 32, linear_before_reset = 1> (s, gw, gr)
    z = Squeeze(g, one)
}
"""
SHUFFLED = """
shuffled (float[n, 6, 8, 8] x, int64[n, 4] i) => (float[n, 4, 16, 16] y, float[n, 3] v, int64[n, 3] k) {
    t = Transpose <perm = [0, 2, 3, 1]> (x)
    u = Transpose <perm = [0, 3, 1, 2]> (t)
    s = Slice(u, from, to, axes)
    r = Resize <mode = "linear"> (s, , scales)
    y = Elu(r)
    m = ReduceMean <keepdims = 0> (x, space)
    g = GatherElements <axis = 1> (m, i)
    v, k = TopK(g, three)
}
"""


def _narrow(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return rng.integers(-127, 128, shape).astype(np.int8)


def branch() -> onnx.ModelProto:
    return onnx_model(BRANCH, drawn(2, up=(16, 64), down=(64, 16), same=(16, 16)))


def quantised() -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    scales = {"xs": np.float32(0.02), "ws": np.full(8, 0.01, np.float32), "rs": np.float32(0.03)}
    zeros = {"xz": np.uint8(120), "wz": np.zeros(8, np.int8), "rz": np.uint8(0)}
    arrays = {name: np.asarray(value) for name, value in (scales | zeros).items()}
    return onnx_model(QUANTISED, {"w": _narrow(rng, 8, 8, 3, 3), **arrays})


def integers() -> onnx.ModelProto:
    numbers = {"ws": np.float32(0.01), "wz": np.int8(0), "zs": np.float32(0.05), "zz": np.uint8(128)}
    w = _narrow(np.random.default_rng(4), 32, 16)
    return onnx_model(INTEGERS, {"w": w, **{name: np.asarray(value) for name, value in numbers.items()}})


def recurrent() -> onnx.ModelProto:
    weights = drawn(5, w=(1, 128, 16), r=(1, 128, 32), b=(1, 256), gw=(1, 96, 32), gr=(1, 96, 32))
    return onnx_model(RECURRENT, {**weights, "one": np.array([1])})


def shuffled() -> onnx.ModelProto:
    lists = {"from": [1], "to": [5], "axes": [1], "space": [2, 3], "three": [3]}
    arrays = {name: np.array(value) for name, value in lists.items()}
    return onnx_model(SHUFFLED, {**arrays, "scales": np.array([1, 1, 2, 2], np.float32)})


def trees(post: str) -> onnx.ModelProto:
    """Four trees of depth three over five features, for three targets."""
    rng, nodes = np.random.default_rng(6), list(range(15))
    inner = [node < 7 for node in nodes]
    every = range(4)
    targets = [tree % 3 for tree in every for node in nodes if not inner[node]]
    attributes: dict[str, Any] = {
        "nodes_treeids": [tree for tree in every for _ in nodes],
        "nodes_nodeids": nodes * 4,
        "nodes_featureids": [int(rng.integers(5)) if inner[node] else 0 for _ in every for node in nodes],
        "nodes_modes": ["BRANCH_LEQ" if inner[node] else "LEAF" for _ in every for node in nodes],
        "nodes_values": [float(rng.normal()) if inner[node] else 0.0 for _ in every for node in nodes],
        "nodes_truenodeids": [2 * node + 1 if inner[node] else 0 for _ in every for node in nodes],
        "nodes_falsenodeids": [2 * node + 2 if inner[node] else 0 for _ in every for node in nodes],
        "post_transform": post,
    }
    kind = "class" if post != "NONE" else "target"
    attributes |= {
        f"{kind}_treeids": [tree for tree in every for node in nodes if not inner[node]],
        f"{kind}_nodeids": [node for _ in every for node in nodes if not inner[node]],
        f"{kind}_ids": targets,
        f"{kind}_weights": [float(rng.normal()) for _ in targets],
    }
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 5])
    scores = helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["n", 3])
    outputs, names = [scores], ["scores"]
    if kind == "class":
        attributes["classlabels_int64s"] = [0, 1, 2]
        outputs.insert(0, helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["n"]))
        names.insert(0, "label")
    else:
        attributes["n_targets"] = 3
    op = "TreeEnsembleClassifier" if kind == "class" else "TreeEnsembleRegressor"
    node = helper.make_node(op, ["x"], names, domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph([node], "trees", [x], outputs)
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


# ------------------------------------------------------------------------------------------------ texts and functions


def _comprehension(name: str, backward: bool = False) -> Build:
    case = comprehension_suite.named(name)

    def build(target: str) -> None:
        function = tw.comprehension(case.text, target=target)
        (function.compiled_backward if backward else function.compiled)(*case.arrays())

    return build


def _exported(model: Callable[[], onnx.ModelProto]) -> Build:
    """A model as StableHLO, linalg and ONNX."""

    def build(_: str) -> Texts:
        from tilewright.codegen.linalg import linalg_text
        from tilewright.codegen.onnx import onnx_model
        from tilewright.codegen.stablehlo import stablehlo_text

        read = _imported(model())
        written = onnx_model(read.graph, read.weights)
        for tensor in written.graph.initializer:
            tensor.doc_string = ""
        return {
            "stablehlo": stablehlo_text(read.graph),
            "linalg": linalg_text(read.graph),
            "onnx": written.SerializeToString(deterministic=True).hex(),
        }

    return build


def _kernel(target: str) -> Texts:
    """A scheduled product as loops and C."""
    te = tw.te
    n = te.var("n")
    a, b = te.placeholder((n, 96), name="a"), te.placeholder((96, 64), name="b")
    k = te.reduce_axis((0, 96), name="k")
    c = te.compute((n, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    d = te.compute((n, 64), lambda i, j: te.tanh(c[i, j]), name="d")
    s = te.create_schedule(d)
    i, j = d.axis
    outer, _inner = s[d].split(i, factor=4)
    s[d].vectorize(j)
    s[c].compute_at(s[d], outer)
    built = tw.build(s, [a, b, d], target=target)
    return {what: built.source(what) for what in ("loops", "c")}


def _runtime(_: str) -> Texts:
    """The code that every process links: whatever `tilewright.runtime` calls a text."""
    from tilewright.runtime import native, threads

    texts = dict(_texts(native)) | dict(_texts(threads))
    if "support_text" not in texts or "pool_text" not in texts:
        raise SystemExit("tilewright.runtime has no support_text or no pool_text; built_cases.py expects both")
    return texts


def _texts(module: Any) -> Iterator[tuple[str, str]]:
    for name, value in vars(module).items():
        if name.endswith("_text") and callable(value) and name not in ("compile_text",):
            yield name, value()


BUILT: Mapping[str, Build] = {
    "step-perceptron": _step(perceptron, "Adam"),
    "step-convolutions": _step(convolutions, "SGD", clip=1.0),
    "step-bf16": _step(perceptron, "AdamW", precision="bf16"),
    "gradient": _derivative("gradient"),
    "jvp": _derivative("jvp"),
    "state": _compiled(functools.partial(decoder_model.decoder, 1, 64, 2, 100), state="auto"),
    "ragged": _compiled(functools.partial(dynamic_models.bert, 1, 128, 100), ragged=("batch", "seq")),
    "scan": _compiled(functools.partial(control_models.recurrence, 32, 16)),
    "loop": _compiled(functools.partial(control_models.decoder, layers=1)),
    "nonmaxsuppression": _compiled(functools.partial(control_models.detector, 32, 8)),
    "branch": _compiled(branch),
    "quantised": _compiled(quantised),
    "integers": _compiled(integers),
    "recurrent": _compiled(recurrent),
    "shuffled": _compiled(shuffled),
    "trees": _compiled(functools.partial(trees, "NONE")),
    "trees-softmax": _compiled(functools.partial(trees, "SOFTMAX")),
    **{f"jax-{name}": _compiled(functools.partial(str, PROGRAMS / f"{name}.mlir")) for name in
       ("images", "indices", "integers", "loops", "policy")},
    "attention": _comprehension("attention, bias"),
    "nearest": _comprehension("nearest"),
    "prefix-sums": _comprehension("prefix sums, a loop"),
    "radial-basis-backward": _comprehension("radial basis", backward=True),
    "export-pointwise": _exported(functools.partial(onnx_model, POINTWISE)),
    "export-convolutions": _exported(convolutions),
    "export-encoder": _exported(functools.partial(dynamic_models.bert, 1, 64, 100)),
    "kernel": _kernel,
    "runtime": _runtime,
}  # fmt: skip
"""By name."""


def build(name: str, target: str) -> Texts | None:
    """Compile a case, or make its texts. `name` begins with PREFIX."""
    return BUILT[name.removeprefix(PREFIX)](target)
