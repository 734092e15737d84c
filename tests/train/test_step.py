"""A learning step against the same formulas in NumPy, in f64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ops.registry import emit1
from tilewright.train import schedules
from tilewright.train.arena import ALIGN, Arena
from tilewright.train.entry import compile_step
from tilewright.train.optimizers import SGD, Adam, AdamW, Lion, Optimizer, RMSprop
from tilewright.train.step import Step

Array = np.ndarray[Any, Any]
ROWS, INPUTS, HIDDEN = 5, 3, 7


def of(*shape: int) -> TensorType:
    return TensorType(f32, tuple(as_expr(d) for d in shape))


def network(rows: int = ROWS) -> Graph:
    """The mean square of tanh(x w + b) v - y."""
    builder = GraphBuilder("network")
    x, y = builder.input("x", of(rows, INPUTS)), builder.input("y", of(rows, 1))
    w, b = builder.param("w", of(INPUTS, HIDDEN)), builder.param("b", of(HIDDEN))
    v = builder.param("v", of(HIDDEN, 1))

    def put(op: str, *values: Value, **attrs: Any) -> Value:
        return emit1(builder, op, *values, **attrs)

    h = put("tanh", put("add", put("matmul", x, w), b))
    d = put("sub", put("matmul", h, v), y)
    loss = put("reduce_mean", put("mul", d, d), axes=(0, 1), keepdims=False)
    error = put("reduce_max", put("abs", d), axes=(0, 1), keepdims=False)
    return builder.finish((loss, error))


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {"w": (INPUTS, HIDDEN), "b": (HIDDEN,), "v": (HIDDEN, 1)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def batch(seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(ROWS, INPUTS)).astype(np.float32), rng.normal(size=(ROWS, 1)).astype(np.float32)


def by_hand(p: dict[str, Array], x: Array, y: Array) -> tuple[float, dict[str, Array]]:
    """The loss and its gradients."""
    h = np.tanh(x @ p["w"] + p["b"])
    d = h @ p["v"] - y
    g = 2 * d / d.size
    back = (g @ p["v"].T) * (1 - h * h)
    return float((d * d).mean()), {"w": x.T @ back, "b": back.sum(axis=0), "v": h.T @ g}


def reference(optimizer: Optimizer, steps: int, clip: float | None = None) -> tuple[list[float], dict[str, Array]]:
    """The losses of some steps and the parameters in the end, by formulas of the papers in f64."""
    p = {name: value.astype(np.float64) for name, value in weights().items()}
    state: dict[str, list[Array]] = {name: [np.zeros_like(v) for _ in range(3)] for name, v in p.items()}
    losses = []
    for t in range(1, steps + 1):
        x, y = (a.astype(np.float64) for a in batch(t))
        loss, gradients = by_hand(p, x, y)
        losses.append(loss)
        if clip is not None:
            norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
            gradients = {name: g * min(1, clip / (norm + 1e-6)) for name, g in gradients.items()}
        for name, g in gradients.items():
            p[name] = moved(optimizer, t, p[name], g, state[name])
    return losses, p


def moved(o: Any, t: int, p: Array, g: Array, state: list[Array]) -> Array:
    decay = o.weight_decay
    if isinstance(o, Lion):
        direction = np.sign(o.betas[0] * state[0] + (1 - o.betas[0]) * g)
        state[0] = o.betas[1] * state[0] + (1 - o.betas[1]) * g
        return p * (1 - o.lr * decay) - o.lr * direction
    if isinstance(o, Adam) and o.decoupled:
        p = p * (1 - o.lr * decay)
    else:
        g = g + decay * p
    if isinstance(o, SGD):
        state[0] = o.momentum * state[0] + (g if t == 1 else (1 - o.dampening) * g)
        return p - o.lr * (g + o.momentum * state[0] if o.nesterov else state[0])
    if isinstance(o, RMSprop):
        state[0] = o.alpha * state[0] + (1 - o.alpha) * g * g
        if not o.momentum:
            return p - o.lr * g / (np.sqrt(state[0]) + o.eps)
        state[1] = o.alpha * state[1] + (1 - o.alpha) * g
        state[2] = o.momentum * state[2] + g / (np.sqrt(state[0] - state[1] ** 2) + o.eps)
        return p - o.lr * state[2]
    state[0] = o.betas[0] * state[0] + (1 - o.betas[0]) * g
    state[1] = o.betas[1] * state[1] + (1 - o.betas[1]) * g * g
    state[2] = np.maximum(state[2], state[1]) if o.amsgrad else state[1]
    first, second = (1 - beta**t for beta in o.betas)
    return p - o.lr / first * state[0] / (np.sqrt(state[2] / second) + o.eps)


OPTIMIZERS: list[Optimizer] = [
    SGD(0.1),
    SGD(0.1, momentum=0.9, weight_decay=0.01),
    SGD(0.1, momentum=0.9, nesterov=True),
    Adam(0.01, weight_decay=0.01),
    AdamW(0.01, weight_decay=0.1),
    RMSprop(0.01, weight_decay=0.01),
    RMSprop(0.01, momentum=0.9, centered=True),
    Adam(0.01, amsgrad=True),
    SGD(0.1, momentum=0.9, dampening=0.5),
    Lion(0.01, weight_decay=0.1),
]


def step_of(optimizer: Optimizer, **options: Any) -> Step:
    return compile_step((network(), weights()), optimizer=optimizer, **options)


@pytest.mark.daily(3)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: str(o))
def test_optimizers(optimizer: Optimizer) -> None:
    step = step_of(optimizer)
    losses, parameters = reference(optimizer, 30)
    result = [step(*batch(t)) for t in range(1, 31)]
    np.testing.assert_allclose([f["loss"] for f in result], losses, rtol=2e-5)
    for name, value in step.parameters.items():
        np.testing.assert_allclose(value, parameters[name], rtol=0, atol=2e-5, err_msg=name)


def test_clipping_and_metrics() -> None:
    step = step_of(Adam(0.05), clip=0.1)
    _, parameters = reference(Adam(0.05), 10, clip=0.1)
    for t in range(1, 11):
        p = {name: value.astype(np.float64) for name, value in step.state_dict().items()}
        result = step(*batch(t))
        x, y = batch(t)
        _, gradients = by_hand(p, x, y)
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        error = np.abs(np.tanh(x @ p["w"] + p["b"]) @ p["v"] - y).max()
        assert result["gradient_norm"] == pytest.approx(norm, rel=1e-5)
        assert result[step.metrics[1]] == pytest.approx(error, rel=1e-5)
    for name, value in step.parameters.items():
        np.testing.assert_allclose(value, parameters[name], rtol=0, atol=2e-5)


def test_the_rate_can_change() -> None:
    step, other = step_of(SGD(0.1)), step_of(SGD(0.1))
    step.lr = 0.0
    step(*batch(1))
    for name, value in weights().items():
        np.testing.assert_array_equal(step.parameters[name], value)
    step.lr = 0.1
    step(*batch(1))
    other(*batch(1))
    for name, value in other.parameters.items():
        np.testing.assert_array_equal(step.parameters[name], value)


def test_some_parameters_stay() -> None:
    step = step_of(Adam(0.1), trained=["w", "v"])
    step(*batch(1))
    assert list(step.parameters) == ["w", "v"]
    with pytest.raises(tw.Error, match="no parameter has this name"):
        step_of(Adam(0.1), trained=["nobody"])


def test_groups_have_optimisers_of_their_own() -> None:
    """Parameters of a group move as they do where all have its optimiser, for one step."""
    step = step_of(Adam(0.05), groups={"b": Adam(0.01), "[wu]": Adam(0.0)})
    slow, fast = step_of(Adam(0.01)), step_of(Adam(0.05))
    for other in (step, slow, fast):
        other(*batch(1))
    assert step.rates == [0.05, 0.01, 0.0]
    np.testing.assert_array_equal(step.parameters["v"], fast.parameters["v"])
    np.testing.assert_array_equal(step.parameters["b"], slow.parameters["b"])
    np.testing.assert_array_equal(step.parameters["w"], weights()["w"])
    with pytest.raises(tw.Error, match="no parameter matches"):
        step_of(Adam(0.1), groups={"z*": Adam(0.2)})
    with pytest.raises(tw.Error, match="keep the same state"):
        step_of(Adam(0.1), groups={"b": SGD(0.2)})


def test_schedules_scale_the_rates() -> None:
    factor = schedules.warmup(2, schedules.cosine(4))
    step, other = step_of(SGD(0.1), schedule=factor), step_of(SGD(0.1))
    for t in range(5):
        other.lr = 0.1 * factor(t)
        step(*batch(t))
        other(*batch(t))
    for name, value in other.parameters.items():
        np.testing.assert_array_equal(step.parameters[name], value)


def test_schedules_are_those_of_the_field() -> None:
    assert [schedules.linear(4, last=0.2)(t) for t in (0, 2, 4, 9)] == pytest.approx([1, 0.6, 0.2, 0.2])
    assert [schedules.cosine(4, 0.5)(t) for t in (0, 2, 4, 9)] == pytest.approx([1, 0.75, 0.5, 0.5])
    assert [schedules.steps([3, 5])(t) for t in (2, 3, 5)] == pytest.approx([1, 0.1, 0.01])
    assert [schedules.exponential(0.5)(t) for t in (0, 2)] == [1, 0.25]
    assert [schedules.warmup(4)(t) for t in (0, 1, 4, 5)] == [0, 0.25, 1, 1]
    assert schedules.constant()(7) == 1
    with pytest.raises(tw.Error, match="at least one update"):
        schedules.cosine(0)


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), AdamW(0.01, weight_decay=0.1)], ids=["sgd", "adamw"])
def test_accumulated_batches_are_one(optimizer: Optimizer) -> None:
    """Three batches of five rows make the update of one batch of their fifteen, whose mean theirs is."""
    whole = compile_step((network(3 * ROWS), weights()), optimizer=optimizer, clip=0.5)
    step = step_of(optimizer, clip=0.5, accumulate=3)
    for k in range(4):
        parts = [batch(3 * k + j) for j in range(3)]
        for j, part in enumerate(parts):
            before = step.state_dict()
            result = step(*part)
            if j < 2:
                np.testing.assert_array_equal(step.parameters["w"], before["w"])
        expected = whole(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        assert result["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-5)
        assert step.updates == k + 1
    for name, value in whole.parameters.items():
        np.testing.assert_allclose(step.parameters[name], value, rtol=0, atol=1e-5)


def test_accumulated_batches_are_saved(tmp_path: Path) -> None:
    whole, first, second = (step_of(Adam(0.05), accumulate=3) for _ in range(3))
    for t in range(1, 9):
        whole(*batch(t))
    for t in range(1, 6):
        first(*batch(t))
    first.save(tmp_path / "step.safetensors")
    second.load(tmp_path / "step.safetensors")
    for t in range(6, 9):
        second(*batch(t))
    for name, value in whole.parameters.items():
        np.testing.assert_array_equal(second.parameters[name], value)
    with pytest.raises(tw.Error, match="at least one batch"):
        step_of(Adam(0.05), accumulate=0)


def test_what_the_loss_does_not_depend_on_is_not_decayed() -> None:
    graph = network()
    builder = GraphBuilder("more", list(graph.inputs), list(graph.params), list(graph.nodes))
    unused = builder.param("unused", of(4))
    metric = emit1(builder, "reduce_sum", unused, axes=(0,), keepdims=False)
    inputs = weights() | {"unused": np.ones(4, np.float32)}
    step = compile_step((builder.finish((*graph.outputs, metric)), inputs), optimizer=AdamW(0.1, weight_decay=0.5))
    step(*batch(1))
    assert "unused" not in step.parameters
    np.testing.assert_array_equal(step.state_dict()["unused"], 1)


def test_saved_and_loaded_it_goes_on_bit_by_bit(tmp_path: Path) -> None:
    whole, first, second = (step_of(Adam(0.05)) for _ in range(3))
    for t in range(1, 21):
        whole(*batch(t))
    for t in range(1, 11):
        first(*batch(t))
    first.save(tmp_path / "step.safetensors")
    second.load(tmp_path / "step.safetensors")
    assert second.count == 10
    for t in range(11, 21):
        second(*batch(t))
    for name, value in whole.parameters.items():
        np.testing.assert_array_equal(second.parameters[name], value)


def test_files_of_others_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "step.safetensors"
    step_of(SGD(0.1)).save(path)
    step = step_of(Adam(0.05))
    for content in (path.read_bytes(), b"", b"\xff" * 64, path.read_bytes()[:-8]):
        path.write_bytes(content)
        with pytest.raises(tw.Error):
            step.load(path)
    assert step.count == 0
    for name, value in weights().items():
        np.testing.assert_array_equal(step.parameters[name], value)


def test_a_batch_that_is_not_finite() -> None:
    x, y = batch(1)
    x[2, 1] = np.nan
    for mode in ("raise", "skip"):
        step = step_of(Adam(0.1), on_nonfinite=mode)
        if mode == "raise":
            with pytest.raises(tw.Error, match="not finite"):
                step(x, y)
        else:
            assert np.isnan(step(x, y)["loss"])
        assert step.count == 0
        for name, value in weights().items():
            np.testing.assert_array_equal(step.parameters[name], value)
    step = step_of(Adam(0.1), on_nonfinite="keep")
    step(x, y)
    assert step.count == 1 and np.isnan(step.parameters["w"]).any()
    with pytest.raises(tw.Error, match="on_nonfinite"):
        step_of(Adam(0.1), on_nonfinite="sometimes")


def test_what_does_not_fit_is_refused() -> None:
    step = step_of(Adam(0.1))
    x, y = batch(1)
    for wrong in ((x[:4], y), (x.astype(np.float64), y), (x,)):
        with pytest.raises(tw.Error):
            step(*wrong)
    with pytest.raises(tw.Error, match="names are not those"):
        step.load_state_dict({"w": weights()["w"]})
    with pytest.raises(tw.Error, match="shape is another"):
        step.load_state_dict({**weights(), "b": np.zeros(3)})
    for name, value in weights().items():
        np.testing.assert_array_equal(step.parameters[name], value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"clip": -1.0}, "clip"),
        ({"clip": float("nan")}, "clip"),
        ({"accumulate": 1.5}, "accumulate"),
        ({"optimizer": object()}, "no optimiser of a step"),
        ({"groups": {"b": object()}}, "no optimiser of a step"),
    ],
)
def test_settings_that_no_step_has(wrong: Any, said: str) -> None:
    with pytest.raises(tw.Error, match=said):
        compile_step((network(), weights()), **{"optimizer": SGD(0.1), **wrong})


def test_the_loss_must_be_one_number() -> None:
    graph = network()
    rows = Graph(graph.name, graph.inputs, graph.params, graph.nodes[:2], (graph.nodes[1].output,))
    with pytest.raises(tw.Error, match="the loss must be one number"):
        compile_step((rows, weights()))


def test_actors_follow_the_learner(tmp_path: Path) -> None:
    """A policy in the same process and one on a store take what the step has learnt from the step's own memory."""
    graph = network()
    builder = GraphBuilder("policy", [graph.inputs[0]], list(graph.params), list(graph.nodes[:4]))
    policy = tw.compile((builder.finish((graph.nodes[3].output,)), weights()))
    step = step_of(Adam(0.1))
    with (
        tw.Publisher("learner", policy, directory=tmp_path) as publisher,
        tw.attach("learner", directory=tmp_path) as actor,
    ):
        for t in range(3):
            step(*batch(t))
            assert all(np.shares_memory(step.weights[n], step.parameters[n]) for n in step.parameters)
            policy.update(step.weights)
            publisher.publish(step.weights)
            x, _ = batch(9)
            p = step.state_dict()
            expected = np.tanh(x @ p["w"] + p["b"]) @ p["v"]
            np.testing.assert_allclose(policy(x), expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(actor(x), expected, rtol=1e-5, atol=1e-6)


def test_parameters_are_aligned_views() -> None:
    step = step_of(Adam(0.1))
    for _ in range(2):
        for value in step.parameters.values():
            assert value.ctypes.data % 64 == 0
        step(*batch(1))
    retained = step.state_dict()
    step(*batch(1))
    assert not np.array_equal(retained["w"], step.parameters["w"])


def test_arena() -> None:
    arena = Arena(("a", "b", "c"), ((3, 5), (), (ALIGN,)), ("m",))
    assert arena.starts == (0, 16, 32)
    assert arena.size == 2 * 48
    memory = arena.empty()
    memory[:] = np.arange(96)
    assert arena.views(memory)["b"] == 16
    np.testing.assert_array_equal(arena.views(memory, 1)["c"], np.arange(80, 96))


def test_an_onnx_model_gives_its_loss() -> None:
    """The loss is the model's first output; the second one is a metric, and the scale, which is no parameter to be
    trained, stays."""
    rng = np.random.default_rng(0)
    w, scale = rng.normal(size=(3, 1)).astype(np.float32), np.float32([2.0])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Mul", ["xw", "scale"], ["guess"]),
        helper.make_node("Sub", ["guess", "y"], ["off"]),
        helper.make_node("Mul", ["off", "off"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["error"], keepdims=0),
        helper.make_node("ReduceMean", ["guess"], ["mean"], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [8, 3]), ("y", [8, 1]))]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, []) for n in ("error", "mean")]
    held = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(scale, "scale")]
    graph = helper.make_graph(nodes, "line", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    step = compile_step(model, optimizer=SGD(0.05), trained=["w"])
    x, y = rng.normal(size=(8, 3)).astype(np.float32), rng.normal(size=(8, 1)).astype(np.float32)
    for _ in range(3):
        result = step(x, y)
        off = scale * (x @ w) - y
        assert result["loss"] == pytest.approx(float((off**2).mean()), rel=1e-5)
        assert result["mean"] == pytest.approx(float((scale * (x @ w)).mean()), rel=1e-5, abs=1e-6)
        w = w - np.float32(0.05) * (2 * scale * x.T @ off / 8)
        np.testing.assert_allclose(step.parameters["w"], w, rtol=1e-5, atol=1e-6)
