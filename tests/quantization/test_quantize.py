"""`tw.quantize`: against a reference in NumPy of what QuantizeLinear and DequantizeLinear mean, and ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.quantization.compare import Pairs
from tilewright.quantization.ranges import METHODS
from tilewright.support.errors import CallError, Error

Array = np.ndarray[Any, Any]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(52)


def model_of(nodes: list[Any], weights: dict[str, Array], shape: list[Any], out: list[Any]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def dense(rng: np.random.Generator, inputs: int = 24, hidden: int = 32, outputs: int = 10) -> onnx.ModelProto:
    weights = {
        "w1": rng.standard_normal((inputs, hidden)).astype(np.float32) / np.sqrt(inputs),
        "b1": rng.standard_normal(hidden).astype(np.float32) / 10,
        "w2": rng.standard_normal((outputs, hidden)).astype(np.float32) / np.sqrt(hidden),
    }
    weights = {k: np.asarray(v, np.float32) for k, v in weights.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m"]),
        helper.make_node("Add", ["m", "b1"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Gemm", ["r", "w2"], ["y"], transB=1),
    ]
    return model_of(nodes, weights, ["batch", inputs], ["batch", outputs])


def network(rng: np.random.Generator) -> onnx.ModelProto:
    """Convolutions with batch normalisation, a residual, pooling and a product."""

    def normal(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    weights = {"w1": normal(8, 3, 3, 3), "w2": normal(8, 8, 3, 3), "w3": normal(5, 8 * 16), "b3": normal(5)}
    weights |= {"g": rng.random(8).astype(np.float32) + 0.5, "b": normal(8, 4)[:, 0].copy()}
    weights |= {"mu": normal(8, 9)[:, 0].copy(), "va": rng.random(8).astype(np.float32) + 0.5}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c1", "g", "b", "mu", "va"], ["n1"]),
        helper.make_node("Relu", ["n1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1] * 4),
        helper.make_node("Add", ["c2", "r1"], ["s"]),
        helper.make_node("Relu", ["s"], ["r2"]),
        helper.make_node("MaxPool", ["r2"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ]
    return model_of(nodes, weights, ["batch", 3, 8, 8], ["batch", 5])


def samples(rng: np.random.Generator, *shape: int, count: int = 4) -> list[Array]:
    return [rng.standard_normal(shape).astype(np.float32) for _ in range(count)]


def levels(x: Array, scale: float, zero: int) -> Array:
    """QuantizeLinear and DequantizeLinear of u8, as ONNX's operators say."""
    codes = np.clip(np.rint(x / np.float32(scale)) + zero, 0, 255)
    return ((codes - zero) * np.float32(scale)).astype(np.float32)


def test_a_product_is_what_the_operators_mean(rng: np.random.Generator) -> None:
    inputs = rng.standard_normal((64, 24)).astype(np.float32)
    w = rng.standard_normal((24, 10)).astype(np.float32)
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": w}, [64, 24], [64, 10])
    q = tw.quantize(model, calibrate=inputs, precision="int8", method="minmax", max_drop=1, correct_bias=False)
    low, high = min(inputs.min(), 0), max(inputs.max(), 0)
    scale = np.float32((float(high) - float(low)) / 255)
    zero = int(np.rint(-low / scale))
    per_column = np.abs(w).max(0, keepdims=True) / np.float32(127)
    weights = np.rint(w / per_column) * per_column
    wanted = levels(inputs, float(scale), zero).astype(np.float64) @ weights
    np.testing.assert_allclose(q(inputs), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
    assert [row.type for row in q.report.layers] == ["int8"]


@pytest.mark.daily(2)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_close_and_reported(method: str, rng: np.random.Generator) -> None:
    model, data = dense(rng), samples(rng, 64, 24)
    q = tw.quantize(model, calibrate=data, precision="int8", method=method, max_drop=1)
    exact = tw.compile(model)
    fresh = rng.standard_normal((64, 24)).astype(np.float32)
    error = np.linalg.norm(q(fresh) - exact(fresh)) / np.linalg.norm(exact(fresh))
    assert 0 < error < 0.06
    report = q.report
    assert (report.chosen, len(report.layers), report.samples) == ("int8", 2, 4)
    assert all(row.type == "int8" and 0 < row.error < 0.1 for row in report.layers)
    assert report.metric[0] == 1.0 and 0.9 < report.metric[1] < 1.0
    assert "int8: 2 of 2 layers" in str(report)
    assert [row["op"] for row in report.as_dict()["layers"]] == ["matmul", "matmul"]


def test_layers_with_large_errors_stay_in_f32(rng: np.random.Generator) -> None:
    model, data = network(rng), samples(rng, 4, 3, 8, 8)
    loose = tw.quantize(model, calibrate=data, precision="int8", max_drop=1).report
    tight = tw.quantize(model, calibrate=data, precision="int8", max_drop=0.8 * loose.drop).report
    none = tw.quantize(model, calibrate=data, precision="int8", max_drop=0).report
    assert 0 < sum(row.type == "fp32" for row in tight.layers) < 3 and tight.drop <= 0.8 * loose.drop
    assert all(row.reason for row in tight.layers if row.type == "fp32")
    assert none.chosen == "fp32" and none.drop == 0 and none.reason


@pytest.mark.parametrize("seconds,chosen", [((1.0, 1.0), "fp32"), ((1.0, 1.01), "fp32"), ((1.0, 0.5), "other")])
def test_auto_takes_what_is_faster_alone(
    seconds: tuple[float, float], chosen: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs of times decide: here they are given, for a test that times anything fails now and then."""
    pairs = Pairs((seconds[0],) * 8, (seconds[1],) * 8)
    monkeypatch.setattr("tilewright.quantization.entry.in_turns", lambda *_: pairs)
    model, data = network(rng), samples(rng, 4, 3, 8, 8)
    report = tw.quantize(model, calibrate=data, max_drop=0.02).report
    assert report.drop <= 0.02 and report.reason
    assert (report.chosen == "fp32") == (chosen == "fp32")


@pytest.mark.parametrize("seconds", [1.0, 1.01, 3.0])
def test_auto_is_the_program_of_f32_where_nothing_is_faster(
    seconds: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Object code and weights are those of `tw.compile`, byte for byte: such a model cannot be slower."""
    monkeypatch.setattr("tilewright.quantization.entry.in_turns", lambda *_: Pairs((1.0,) * 8, (seconds,) * 8))
    model, data = dense(rng), samples(rng, 4, 24, count=8)
    chosen, exact = tw.quantize(model, calibrate=data, max_drop=0.5), tw.compile(model)
    assert chosen.report.chosen == "fp32" and {mix.layers for mix in chosen.report.mixes} >= {2}
    assert dict(chosen.program.objects) == dict(exact.program.objects)
    assert chosen.program.weights.keys() == exact.program.weights.keys()
    for name, array in exact.program.weights.items():
        np.testing.assert_array_equal(chosen.program.weights[name], array)


def test_auto_takes_the_fastest_of_those_that_hold(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model after the first is faster than the one before it; those whose loss may be more are not timed."""
    timed: list[Any] = []

    def in_turns(first: tw.Model, second: tw.Model, _: Any) -> Pairs:
        timed.append(second)
        return Pairs((1.0,) * 8, (0.5 / len(timed),) * 8)

    monkeypatch.setattr("tilewright.quantization.entry.in_turns", in_turns)
    model, data = dense(rng), samples(rng, 4, 24, count=8)
    report = tw.quantize(model, calibrate=data, max_drop=0.004).report
    assert report.chosen == "bf16" and report.drop < report.drop_at_most <= 0.004  # of f32, fp16, bf16 the last
    report = tw.quantize(model, calibrate=data, max_drop=0.002).report
    assert report.chosen == "fp16" and report.drop_at_most <= 0.002


def test_pairs_are_faster_where_three_quarters_are() -> None:
    assert Pairs((4.0, 4.0, 4.0, 4.0), (1.0, 2.0, 2.0, 8.0)).faster == 2.0
    assert Pairs((4.0, 4.0, 4.0, 4.0), (1.0, 8.0, 8.0, 8.0)).faster == 0.5


def test_bf16_beyond_the_drop_is_refused_with_a_reason(rng: np.random.Generator) -> None:
    data = samples(rng, 4, 24)
    model = dense(rng)
    assert tw.quantize(model, calibrate=data, precision="bf16", max_drop=0.1).report.chosen == "bf16"
    report = tw.quantize(model, calibrate=data, precision="bf16", max_drop=0).report
    assert report.chosen == "fp32" and "bf16" in report.reason


def test_the_metric_of_the_caller_decides(rng: np.random.Generator) -> None:
    model, data = dense(rng), samples(rng, 4, 24)
    seen: list[Any] = []

    def metric(candidate: tw.Model) -> float:
        seen.append(candidate)
        return 0.5 if len(seen) == 1 else 0.4

    report = tw.quantize(model, calibrate=data, precision="int8", metric=metric, max_drop=0.05).report
    assert report.metric == (0.5, 0.5) and report.chosen == "fp32"
    assert all(isinstance(m, tw.Model) for m in seen)


def test_onnx_runtime_computes_the_file(rng: np.random.Generator, tmp_path: Path) -> None:
    model, data = network(rng), samples(rng, 4, 3, 8, 8)
    q = tw.quantize(model, calibrate=data, precision="int8", max_drop=1)
    written = onnx.load_from_string(q.report.onnx())
    onnx.checker.check_model(written, full_check=True)
    kinds = [n.op_type for n in written.graph.node]
    assert kinds.count("QuantizeLinear") == 3 and kinds.count("DequantizeLinear") == 6
    assert not {"Round", "Div", "Cast"} & set(kinds)
    assert {a.data_type for a in written.graph.initializer} >= {TensorProto.INT8}
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # else its sums saturate on AVX2
    session = onnxruntime.InferenceSession(written.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for x in data:
        (theirs,) = session.run(None, {"x": x})
        ours = q(x)
        # A sum in another order may round to the next code: one step of an activation, times a weight.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=0.02 * np.abs(theirs).max())
        assert np.mean(np.abs(ours - theirs) < 1e-5) > 0.8
    reloaded = tw.compile(written)
    np.testing.assert_allclose(reloaded(data[0]), q(data[0]), rtol=0, atol=1e-5)


def test_new_weights_are_quantised_when_they_arrive(rng: np.random.Generator, tmp_path: Path) -> None:
    first, second = dense(rng), dense(rng)
    data = samples(rng, 4, 24)
    q = tw.quantize(first, calibrate=data, precision="int8", max_drop=1, correct_bias=False)
    q.update({t.name: numpy_helper.to_array(t) for t in second.graph.initializer})
    exact = tw.compile(second)(data[0])
    error = np.linalg.norm(q(data[0]) - exact) / np.linalg.norm(exact)
    assert error < 0.05
    q.save(tmp_path / "q.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "q.tw")(data[0]), q(data[0]))


def test_bias_correction_takes_off_the_mean_error(rng: np.random.Generator) -> None:
    model, data = dense(rng), [np.abs(x) for x in samples(rng, 256, 24)]
    exact = tw.compile(model)

    def bias(correct: bool) -> float:
        q = tw.quantize(model, calibrate=data, precision="int8", max_drop=1, correct_bias=correct)
        return float(np.abs(np.mean([q(x) - exact(x) for x in data], axis=(0, 1))).max())

    assert bias(True) < 0.5 * bias(False)


@pytest.mark.parametrize("options", [{"precision": "int3"}, {"method": "best"}, {"max_drop": -1}, {"max_drop": "x"}])
def test_bad_options_are_refused(options: dict[str, Any], rng: np.random.Generator) -> None:
    with pytest.raises(Error):
        tw.quantize(dense(rng), calibrate=samples(rng, 4, 24), **options)


def test_a_model_without_layers_stays_as_it_is(rng: np.random.Generator) -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {}, [3], [3])
    report = tw.quantize(model, calibrate=[np.ones(3, np.float32)], precision="int8").report
    assert report.chosen == "fp32" and "no layer" in report.reason
    with pytest.raises(CallError):
        tw.quantize(model, calibrate=np.ones(4, np.float32), precision="int8")


def test_samples_that_tell_little_are_warned_of(rng: np.random.Generator) -> None:
    x = np.full((4, 24), 5.0, np.float32)
    report = tw.quantize(dense(rng), calibrate=x, precision="int8", max_drop=1).report
    assert len(report.warnings) == 2 and "single" in report.warnings[0] and "5.0" in report.warnings[1]
    assert str(report).count("warning:") == 2
    assert tw.quantize(dense(rng), calibrate=samples(rng, 4, 24), precision="int8", max_drop=1).report.warnings == ()


def test_outliers_of_channels_move_into_weights(rng: np.random.Generator) -> None:
    """One channel a hundred times as large as the others takes the levels of a scale for the tensor."""
    model = dense(rng)
    data = samples(rng, 32, 24)
    for x in data:
        x[:, 3] *= 100
    small = numpy_helper.to_array(model.graph.initializer[0]).copy()
    small[3] /= 100
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(small, "w1"))
    drops = {s: tw.quantize(model, calibrate=data, precision="int8", max_drop=1, smooth=s) for s in (False, True)}
    assert drops[True].report.drop < 0.5 * drops[False].report.drop
    exact = tw.compile(model)
    assert np.abs(drops[True](data[0]) - exact(data[0])).max() < 0.1 * np.abs(exact(data[0])).max()


def test_weights_of_4_bits_where_the_metric_allows(rng: np.random.Generator, tmp_path: Path) -> None:
    """A layer whose weights are rounded badly has 8 bits, or stays in f32; new weights are rounded the same way."""
    model, data = dense(rng, inputs=64, hidden=64), samples(rng, 2, 64)
    full = tw.quantize(model, calibrate=data, precision="int4w", max_drop=1).report
    assert {row.type for row in full.layers} == {"int4w"}
    limits = {"some": 0.7 * full.drop, "none": 1e-7}
    mixed = tw.quantize(model, calibrate=data, precision="int4w", max_drop=limits["some"])
    types = sorted(row.type for row in mixed.report.layers)
    assert mixed.report.drop <= limits["some"] and types in (["int4w", "int8w"], ["int8w", "int8w"])
    report = tw.quantize(model, calibrate=data, precision="int4w", max_drop=limits["none"]).report
    assert report.chosen == "fp32" and report.drop == 0 and "metric falls" in report.reason
    mixed.save(tmp_path / "m.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "m.tw")(data[0]), mixed(data[0]))


@pytest.mark.parametrize("moved", [False, True])
def test_what_is_added_to_a_block_are_the_numbers_of_the_norm(moved: bool, rng: np.random.Generator) -> None:
    """y = product(norm(x)) + norm(x), as transformers with norms after their sums: the product alone reads codes."""
    weights = {"g": rng.random(24).astype(np.float32) + 0.5, "b": rng.standard_normal(24).astype(np.float32)}
    weights["w"] = (rng.standard_normal((24, 24)) / 5).astype(np.float32)
    nodes = [helper.make_node("LayerNormalization", ["x", "g", "b"], ["m"])]
    nodes.append(helper.make_node("Transpose", ["m"], ["n"], perm=[1, 0, 2] if moved else [0, 1, 2]))
    nodes += [helper.make_node("MatMul", ["n", "w"], ["p"]), helper.make_node("Add", ["p", "n"], ["y"])]
    model, data = model_of(nodes, weights, [4, 16, 24], None), samples(rng, 4, 16, 24)
    q = tw.quantize(
        model, calibrate=data, precision="int8", method="minmax", max_drop=1, correct_bias=False, smooth=False
    )
    norms = []
    for x in data:
        centred = x - x.mean(-1, keepdims=True, dtype=np.float64)
        n = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weights["g"] + weights["b"]
        norms.append(n.swapaxes(0, 1) if moved else n)
    low, high = min(n.min() for n in norms), max(n.max() for n in norms)
    scale = np.float32((float(high) - float(low)) / 255)
    step = np.abs(weights["w"]).max(0) / np.float32(127)
    w = np.rint(weights["w"] / step) * step
    for x, n in zip(data, norms, strict=True):
        wanted = levels(n, float(scale), int(np.rint(-low / scale))).astype(np.float64) @ w + n
        np.testing.assert_allclose(q(x), wanted, rtol=0, atol=4e-6 * np.abs(wanted).max())
    (theirs,) = onnxruntime.InferenceSession(q.report.onnx()).run(None, {"x": data[0]})
    np.testing.assert_allclose(q(data[0]), theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())
