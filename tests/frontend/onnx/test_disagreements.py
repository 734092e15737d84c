"""Where ONNX's text, its reference and the runtimes disagree: what docs/disagreements.md says is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw

Array = np.ndarray[Any, Any]
F = np.float32


def model(nodes: list[Any], inputs: dict[str, Array], weights: dict[str, Array], opset: int, outputs: int = 1) -> Any:
    graph = helper.make_graph(
        nodes,
        "disagreement",
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for k, v in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(f"y{k or ''}") for k in range(outputs)],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    created = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    created.ir_version = 10
    return created


def run(op: str, x: Array, weights: dict[str, Array], opset: int, names: str = "", **attributes: Any) -> Array:
    """The first output of a node that reads `x` and the weights (their names, or `names` with blanks between)."""
    read = ["x", *(names.split(" ") if names else weights)]
    node = helper.make_node(op, [n.strip("-") for n in read], ["y"], **attributes)
    return np.asarray(tw.compile(model([node], {"x": x}, weights, opset), fallback="never")(x))


def scattered(x: Array, w: Array, strides: list[int], dilations: list[int], extra: list[int]) -> Array:
    """The whole result of a transposed convolution of one channel, by its definition."""
    spans = [
        (n - 1) * s + d * (k - 1) + 1 + e
        for n, s, d, k, e in zip(x.shape, strides, dilations, w.shape, extra, strict=True)
    ]
    y = np.zeros(spans, F)
    for at in np.ndindex(*x.shape):
        for tap in np.ndindex(*w.shape):
            place = tuple(a * s + t * d for a, s, t, d in zip(at, strides, tap, dilations, strict=True))
            y[place] += x[at] * w[tap]
    return y


@pytest.mark.daily(5)
@pytest.mark.parametrize("auto", ["NOTSET", "VALID", "SAME_LOWER", "SAME_UPPER"])
@pytest.mark.parametrize("opset", [1, 11, 22])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions_cut_the_odd_one_at_the_beginning(auto: str, opset: int, rank: int) -> None:
    rng = np.random.default_rng(rank)
    sizes, kernel, strides = [3, 4, 2][:rank], [3, 2, 3][:rank], [2, 3, 2][:rank]
    dilations, extra = [1, 2, 1][:rank], [1, 0, 1][:rank]
    x, w = rng.integers(-3, 4, sizes).astype(F), rng.integers(-3, 4, kernel).astype(F)
    whole = scattered(x, w, strides, dilations, extra)
    for less in (0, 1, 2, 3):
        shape = [n - less for n in whole.shape]
        got = run(
            "ConvTranspose",
            x[None, None],
            {"w": w[None, None]},
            opset,
            output_shape=shape,
            auto_pad=auto,
            strides=strides,
            dilations=dilations,
            output_padding=extra,
        )
        first = less // 2 if auto == "SAME_UPPER" else less - less // 2
        want = whole[tuple(slice(first, first + n) for n in shape)]
        np.testing.assert_array_equal(got[0, 0], want)


def test_transposed_convolutions_give_what_there_is() -> None:
    """A kernel shorter than its stride with auto_pad SAME: no zeros are put after."""
    x, w = np.array([[[1, 2, 3]]], F), np.array([[[5]]], F)
    got = run("ConvTranspose", x, {"w": w}, 22, strides=[3], auto_pad="SAME_UPPER")
    np.testing.assert_array_equal(got, [[[5, 0, 0, 10, 0, 0, 15]]])


@pytest.mark.parametrize("scale, want", [(0.6, [1, 3, 5, 6]), (0.75, [1, 3, 4, 5, 7, 8]), (1.5, None), (0.5, None)])
def test_nearest_elements_of_operator_set_10(scale: float, want: list[int] | None) -> None:
    x = np.arange(1, 9, dtype=F).reshape(1, 1, 1, 8)
    places = np.arange(int(8 * scale)) / np.float64(F(scale))
    at = np.ceil(places) if scale < 1 else np.floor(places)
    expected = x[0, 0, 0, np.minimum(at, 7).astype(int)] if want is None else want
    scales = np.array([1, 1, 1, scale], F)
    np.testing.assert_array_equal(run("Resize", x, {"s": scales}, 10, mode="nearest").ravel(), expected)
    node = helper.make_node("Resize", ["x", "s"], ["y"], mode="nearest")
    computed = tw.compile(model([node], {"x": x, "s": scales}, {}, 10), fallback="never")
    np.testing.assert_array_equal(np.asarray(computed(x, scales)).ravel(), expected)


@pytest.mark.daily(4)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("opset", [13, 19])
def test_resized_integers_are_rounded_once(mode: str, kind: type, opset: int) -> None:
    limits = np.iinfo(np.int8 if kind is np.int32 else kind)
    x = np.random.default_rng(0).integers(limits.min, limits.max + 1, (1, 1, 5, 4)).astype(kind)
    sizes = np.array([1, 1, 7, 9])
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode)
    created = model([node], {"x": x}, {"sizes": sizes}, opset)
    reference = ReferenceEvaluator(created).run(None, {"x": x})[0]
    np.testing.assert_array_equal(np.asarray(tw.compile(created, fallback="never")(x)), reference)
    computed = tw.compile(model([node], {"x": x, "sizes": sizes}, {}, opset), fallback="never")
    np.testing.assert_array_equal(np.asarray(computed(x, sizes)), reference)


def test_resizing_to_the_same_size_does_nothing() -> None:
    x = np.arange(6, dtype=F).reshape(1, 1, 2, 3)
    scales = np.array([1, 1, 1.2, 1.1], F)
    np.testing.assert_array_equal(run("Resize", x, {"s": scales}, 19, "- s", mode="linear"), x)


@pytest.mark.parametrize("corners, want", [(0, [3.0, 6.6617207527]), (1, [2.90625, 6.2637524605])])
def test_cubic_samples_at_the_border(corners: int, want: list[float]) -> None:
    """The samples of PyTorch 2.13, ONNX Runtime 1.32 and OpenVINO 2026.4; ONNX's reference moves the place itself."""
    x = np.arange(9, dtype=F).reshape(1, 1, 3, 3)
    grid = np.array([-1.5, 0, 1.2, 0.3], F).reshape(1, 1, 2, 2)
    for opset, mode in ((16, "bicubic"), (20, "cubic")):
        got = run("GridSample", x, {"g": grid}, opset, mode=mode, padding_mode="border", align_corners=corners)
        np.testing.assert_allclose(got.ravel(), want, rtol=1e-5)


@pytest.mark.daily(4)
@pytest.mark.parametrize("scale", [np.float16, np.float32])
@pytest.mark.parametrize("opset", [21, 23, 25])
@pytest.mark.parametrize("precision", [None, TensorProto.FLOAT, TensorProto.FLOAT16])
def test_quantised_by_a_division_as_precise_as_the_scale(scale: type, opset: int, precision: int | None) -> None:
    if opset < 23 and precision is not None:
        pytest.skip("operator set 21 has no precision")
    x = (np.random.default_rng(0).standard_normal(200) * 60).astype(scale)
    s, z = np.array(0.1, scale), np.array(3, np.int16)
    inputs = None if precision is None else np.float16 if precision == TensorProto.FLOAT16 else np.float32
    work = inputs or (scale if opset >= 23 else np.float32)
    want = np.rint((x.astype(work) / s.astype(work)).astype(F)).astype(np.int16) + 3
    more = {} if precision is None else {"precision": precision}
    np.testing.assert_array_equal(run("QuantizeLinear", x, {"s": s, "z": z}, opset, **more), want)


@pytest.mark.daily(4)
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("opset", [1, 8, 12, 22])
def test_maxima_of_windows_leave_nan_out(kind: type, opset: int) -> None:
    if opset < 8 and kind is not np.float32:
        pytest.skip("as before, of other types")
    nan, least = np.nan, -np.inf
    x = np.array([[[1, nan, 3, 2, nan, nan, -1, least, nan]]], kind)
    want = [1, 3, 3, 2, least, -1, -1, least]
    np.testing.assert_array_equal(run("MaxPool", x, {}, opset, kernel_shape=[2]).ravel(), want)
    if opset >= 8:
        node = helper.make_node("MaxPool", ["x"], ["y", "y1"], kernel_shape=[2])
        both = tw.compile(model([node], {"x": x}, {}, opset, outputs=2), fallback="never")(x)
        np.testing.assert_array_equal(np.asarray(both[0]).ravel(), want)
        np.testing.assert_array_equal(np.asarray(both[1]).ravel(), [0, 2, 2, 3, 4, 6, 6, 7])


@pytest.mark.parametrize(
    "shape, kernel, stride", [((1, 17, 33, 40), 3, 2), ((1, 3, 28, 28), 5, 1), ((2, 16, 9, 31), 2, 2)]
)
def test_maxima_of_images_leave_nan_out(shape: tuple[int, ...], kernel: int, stride: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape).astype(F)
    x[rng.random(shape) < 0.6] = np.nan
    got = run("MaxPool", x, {}, 22, kernel_shape=[kernel] * 2, strides=[stride] * 2)
    windows = np.lib.stride_tricks.sliding_window_view(np.where(np.isnan(x), -np.inf, x), (kernel, kernel), (2, 3))
    np.testing.assert_array_equal(got, windows[:, :, ::stride, ::stride].max(axis=(-1, -2)))


@pytest.mark.parametrize("op", ["AveragePool", "LpPool", "GlobalMaxPool", "ReduceMax", "ReduceMin"])
def test_other_reductions_keep_nan(op: str) -> None:
    x = np.array([[[1, np.nan, 3, 2]]], F)
    more: dict[str, Any] = {"kernel_shape": [4]} if op in ("AveragePool", "LpPool") else {}
    assert np.isnan(run(op, x, {}, 13, **more)).all()


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(1, 1, 2, 2), (2, 3, 4, 1), (1, 1, 2, 3, 4), (2, 1, 1, 3, 2)])
def test_affine_grids_of_one_and_of_several(size: tuple[int, ...], corners: int) -> None:
    """ONNX's function, which a batch of one is squeezed out of, is not what is read."""
    rank = len(size) - 2
    theta = np.random.default_rng(0).standard_normal((size[0], rank, rank + 1)).astype(F)
    node = helper.make_node("AffineGrid", ["x", "size"], ["y"], align_corners=corners)
    created = model([node], {"x": theta}, {"size": np.array(size)}, 20)
    got = np.asarray(tw.compile(created, fallback="never")(theta))
    lines = [np.linspace(-1, 1, n) if corners or n == 1 else (2 * np.arange(n) + 1) / n - 1 for n in size[2:]]
    lines = [np.zeros(1) if line.size == 1 else line for line in lines]
    places = np.meshgrid(*lines, indexing="ij")[::-1]
    points = np.stack([*places, np.ones_like(places[0])], -1)
    np.testing.assert_allclose(got, np.einsum("...k,njk->n...j", points, theta), atol=1e-5)


def test_quantised_softmax_over_several_dimensions() -> None:
    x = np.random.default_rng(0).integers(0, 256, (2, 3, 5), dtype=np.uint8)
    scales = {
        "a": np.array(0.05, F),
        "b": np.array(12, np.uint8),
        "c": np.array(1 / 256, F),
        "d": np.array(0, np.uint8),
    }
    node = helper.make_node("QLinearSoftmax", ["x", *scales], ["y"], domain="com.microsoft", axis=1, opset=12)
    created = model([node], {"x": x}, scales, 12)
    created.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    real = np.exp((x.astype(F) - 12) * F(0.05)).reshape(2, 15)
    want = np.clip(np.rint(real / real.sum(axis=1, keepdims=True) * 256), 0, 255).reshape(x.shape)
    np.testing.assert_array_equal(np.asarray(tw.compile(created, fallback="never")(x)), want)


LIMIT, INF, NAN = float(np.finfo(F).max), np.inf, np.nan


@pytest.mark.parametrize("opset", [6, 11, 13])
@pytest.mark.parametrize("low, high, want", [(None, None, [-LIMIT, LIMIT, 1]), (0, None, [0, LIMIT, 1])])
def test_bounds_that_are_not_there_are_finite(opset: int, low: float | None, high: float | None, want: Any) -> None:
    x = np.array([-INF, INF, 1], F)
    values = {} if low is None else {"min": low}
    weights = {} if opset < 11 else {k: np.array(v, F) for k, v in values.items()}
    got = run("Clip", x, weights, opset, **(values if opset < 11 else {}))
    np.testing.assert_array_equal(got, np.array(want, F))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("low, high, want", [(-1, NAN, [-1, INF, NAN, 1]), (NAN, 1, [-INF, 1, NAN, 1])])
def test_bounds_that_are_nan_are_none(known: bool, low: float, high: float, want: list[float]) -> None:
    x, bounds = np.array([-INF, INF, NAN, 1], F), {"low": np.array(low, F), "high": np.array(high, F)}
    node = helper.make_node("Clip", ["x", "low", "high"], ["y"])
    built = model([node], {"x": x} | ({} if known else bounds), bounds if known else {}, 13)
    got = tw.compile(built, fallback="never")(x, *([] if known else bounds.values()))
    np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.parametrize("open_inputs", [(), ("starts", "ends"), ("starts", "ends", "steps")])
def test_slices_to_the_front_begin_with_the_first_element(open_inputs: tuple[str, ...]) -> None:
    x = np.arange(4, dtype=F)
    for start, end, step, want in (
        (-100, -200, -2, [0]),
        (-5, -100, -1, [0]),
        (3, -9, -2, [3, 1]),
        (5, -(2**63), -(2**63), [3]),
    ):
        values = {"starts": [start], "ends": [end], "axes": [0], "steps": [step]}
        arrays = {k: np.array(v) for k, v in values.items()}
        inputs = {"x": x} | {k: arrays[k] for k in open_inputs}
        built = model(
            [helper.make_node("Slice", ["x", *values], ["y"])],
            inputs,
            {k: v for k, v in arrays.items() if k not in open_inputs},
            13,
        )
        np.testing.assert_array_equal(np.asarray(tw.compile(built, fallback="never")(*inputs.values())), want)


@pytest.mark.daily(2)
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("channels", [1, 4])
def test_samples_at_nan(mode: str, channels: int) -> None:
    """PyTorch 2.13 takes them at the first element where places are moved into the image, nearest ones outside."""
    x = np.arange(1, 1 + 9 * channels, dtype=F).reshape(1, channels, 3, 3)
    grid = np.array([NAN, 0, 0, NAN, -INF, 0], F).reshape(1, 1, 3, 2)
    for padding in ("border", "reflection", "zeros"):
        got = run("GridSample", x, {"g": grid}, 20, mode=mode, padding_mode=padding)[0, 0, 0]
        outside = [0.0, 0.0, 0.0] if mode == "nearest" else [NAN, NAN, NAN]
        np.testing.assert_array_equal(got, outside if padding == "zeros" else [4, 2, 4])


def test_resized_to_nothing() -> None:
    x = np.ones((1, 1, 3, 1), F)
    got = run("Resize", x, {"s": np.array([1, 1, 2, 0.5], F)}, 13, "- s", mode="cubic")
    assert got.shape == (1, 1, 6, 0)


def test_the_mask_of_dropout_has_the_type_of_its_set() -> None:
    x = np.ones((2, 3), F)
    for opset, kind in ((7, F), (10, np.bool_)):
        built = model([helper.make_node("Dropout", ["x"], ["y", "y1"])], {"x": x}, {}, opset, outputs=2)
        assert np.asarray(tw.compile(built, fallback="never")(x)[1]).dtype == kind


@pytest.mark.parametrize("padding", [[1], [-1]])
def test_output_paddings_that_make_no_sense(padding: list[int]) -> None:
    with pytest.raises(tw.Error, match="output_padding"):
        run("ConvTranspose", np.ones((1, 1, 3), F), {"w": np.ones((1, 1, 2), F)}, 22, output_padding=padding)


@pytest.mark.daily(2)
@pytest.mark.parametrize("steps", [3, 20])
@pytest.mark.parametrize("gate", ["Sigmoid", "HardSigmoid"])
def test_coupled_gates(steps: int, gate: str) -> None:
    """`input_forget`: the forget gate is 1 - the input gate."""
    rng, hidden = np.random.default_rng(0), 3
    x = rng.standard_normal((steps, 2, 4)).astype(F)
    shapes = {"w": (1, 12, 4), "r": (1, 12, 3), "b": (1, 24), "h": (1, 2, 3), "c": (1, 2, 3), "p": (1, 9)}
    values = {k: rng.standard_normal(v).astype(F) for k, v in shapes.items()}
    names = "w r b - h c p"
    got = run("LSTM", x, values, 14, names, hidden_size=hidden, input_forget=1, activations=[gate, "Tanh", "Tanh"])
    w, r, b, h, c, p = (v[0] for v in values.values())

    def sigmoid(v: Array) -> Array:
        return np.clip(0.2 * v + 0.5, 0, 1) if gate == "HardSigmoid" else 1 / (1 + np.exp(-v))

    for t in range(steps):
        i, o, _, g = np.split(x[t] @ w.T + h @ r.T + b[:12] + b[12:], 4, axis=1)
        i = sigmoid(i + p[:3] * c)
        c = i * np.tanh(g) + (1 - i) * c
        h = sigmoid(o + p[3:6] * c) * np.tanh(c)
        np.testing.assert_allclose(got[t, 0], h, atol=1e-5)


@pytest.mark.parametrize("sizes", [(5, 7), (4, 3, 5)])
def test_the_first_maximum_is_that_of_rows_in_both_orders(sizes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 3, (2, 2, *sizes)).astype(F)
    node = helper.make_node("MaxPool", ["x"], ["y", "y1"], kernel_shape=[3] * len(sizes), storage_order=1)
    got = np.asarray(tw.compile(model([node], {"x": x}, {}, 12, outputs=2), fallback="never")(x)[1])
    windows = np.lib.stride_tricks.sliding_window_view(x, [3] * len(sizes), tuple(range(2, x.ndim)))
    for at in np.ndindex(*got.shape):
        tap = np.unravel_index(windows[at].argmax(), [3] * len(sizes))
        place = [a + t for a, t in zip(at[2:], tap, strict=True)]
        block = (at[0] * 2 + at[1]) * np.prod(sizes)
        assert got[at] == block + np.ravel_multi_index(place, sizes, order="F")


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    "op, opset, mode", [("Upsample", 9, "linear"), ("Resize", 10, "nearest"), ("Resize", 13, "cubic")]
)
def test_open_sizes_scaled_by_fractions(op: str, opset: int, mode: str) -> None:
    """An open size gives the numbers of a known one."""
    scales = np.array([1, 1, 1.5, 2.5], F)
    names = ["x", "s"] if opset < 11 else ["x", "", "s"]
    built = model(
        [helper.make_node(op, names, ["y"], mode=mode)], {"x": np.zeros((1, 2, 3, 4), F)}, {"s": scales}, opset
    )
    for axis in (2, 3):
        built.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"size{axis}"
    compiled = tw.compile(built, fallback="never")
    for sizes in ((3, 4), (7, 5)):
        x = np.random.default_rng(0).standard_normal((1, 2, *sizes)).astype(F)
        want = run(op, x, {"s": scales}, opset, names="s" if opset < 11 else "- s", mode=mode)
        np.testing.assert_allclose(np.asarray(compiled(x)), want, atol=1e-5)


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "uint32", "int4", "uint4"])
@pytest.mark.parametrize("threads", [1, 2])
def test_floats_that_integers_cannot_hold_wrap(name: str, threads: int) -> None:
    to = getattr(TensorProto, name.upper())
    numbers = [0.0, -0.5, -1.0, 7.9, 8.0, 127.9, 128.0, -129.5, 255.7, 256.0, 300.0, 65535.6, -65537.0, 1e5, -2e9, 2e9]
    x = np.array(numbers * 5, F)[1:-2]
    proto = model([helper.make_node("Cast", ["x"], ["y"], to=to)], {"x": x}, {}, 21)
    got = np.asarray(tw.compile(proto, threads=threads, fallback="never")(x))
    whole = np.trunc(x).astype(np.int64)
    bits = int(name.lstrip("uint"))
    wrapped = whole & ((1 << bits) - 1)
    wrapped -= (wrapped >> (bits - 1) << bits) * (not name.startswith("u"))
    np.testing.assert_array_equal(got.astype(np.int64), wrapped)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("size", [1, 3, 8, 19, 67])
def test_nan_is_quantised_to_zero_in_each_place(kind: type, size: int) -> None:
    zero = {"s": np.array(0.5, np.float32), "z": np.array(3, kind)}
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    for place in range(size):
        x = np.where(np.arange(size) == place, np.nan, np.inf).astype(np.float32)
        np.testing.assert_array_equal(run("QuantizeLinear", x, zero, 21), np.where(np.isnan(x), 0, most))
        np.testing.assert_array_equal(run("QuantizeLinear", -x, zero, 21), np.where(np.isnan(x), 0, least))
    assert not run("QuantizeLinear", np.full(size, np.nan, np.float32), zero, 21).any()
