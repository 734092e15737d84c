"""Deformable convolutions, determinants, mel weights, optimisers, inverse real transforms: against ONNX's reference and
NumPy, on awkward shapes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.frontend.onnx import import_onnx
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import UnsupportedError

Array = np.ndarray[Any, Any]
F = np.float32
RNG = np.random.default_rng(17)


def f(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(F)


def same(m: onnx.ModelProto, feeds: dict[str, Array], tolerance: float = 2e-5) -> None:
    got = tw.compile(m).run(feeds)
    for o, want in zip(m.graph.output, ReferenceEvaluator(m).run(None, feeds), strict=True):
        assert got[o.name].dtype == want.dtype and got[o.name].shape == want.shape
        np.testing.assert_allclose(got[o.name], want, rtol=tolerance, atol=tolerance)


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("group", "sets", "attrs"),
    [
        (1, 1, {"pads": [1, 1, 1, 1]}),
        (2, 2, {"strides": [2, 1], "pads": [0, 2, 1, 0]}),
        (1, 4, {"dilations": [1, 2]}),
    ],
)
def test_deformable_convolutions(group: int, sets: int, attrs: dict[str, Any], masked: bool) -> None:
    x, w = f(2, 4, 7, 8), f(6, 4 // group, 3, 2)
    strides, pads, dilations = (
        attrs.get(k, d) for k, d in (("strides", [1, 1]), ("pads", [0] * 4), ("dilations", [1, 1]))
    )
    rows, columns = (
        (x.shape[2 + k] + pads[k] + pads[2 + k] - dilations[k] * (w.shape[2 + k] - 1) - 1) // strides[k] + 1
        for k in (0, 1)
    )
    offset = (2 * RNG.standard_normal((2, sets * 12, rows, columns))).astype(F)
    names, weights = ["x", "w", "offset", "b"], {"w": w, "b": f(6)}
    inputs = [info("x", x.shape), info("offset", offset.shape)]
    feeds = {"x": x, "offset": offset}
    if masked:
        feeds["mask"] = RNG.random((2, sets * 6, rows, columns)).astype(F)
        inputs.append(info("mask", feeds["mask"].shape))
        names.append("mask")
    n = node("DeformConv", names, ["y"], group=group, offset_group=sets, kernel_shape=[3, 2], **attrs)
    same(model([n], inputs, ["y"], weights, opset=19), feeds)


@pytest.mark.costly(2)
@pytest.mark.parametrize(("mode", "half"), [("avg", "half_pixel"), ("max", "output_half_pixel")])
def test_regions_whose_samples_depend_on_their_size(mode: str, half: str) -> None:
    """`sampling_ratio` 0 is a sample a pixel; the last region is far larger than the image."""
    attrs = {"mode": mode, "coordinate_transformation_mode": half, "output_height": 2, "output_width": 3}
    region = node("RoiAlign", ["x", "rois", "entries"], ["y"], sampling_ratio=0, spatial_scale=0.5, **attrs)
    inputs = [info("x", ["n", 2, "h", "w"]), info("rois", ["r", 4]), info("entries", ["r"], T.INT64)]
    m = model([region], inputs, ["y"], opset=16)
    compiled = tw.compile(m, fallback="never", dims={"r": tw.dim(0, 9)})
    rois = np.array([[1, 1, 4, 3], [-3, 2, 9, 8], [2, 2, 2.5, 2.5], [-40, -90, 30, 90]], F)
    for size in ((5, 7), (1, 3)):
        feeds = {"x": f(2, 2, *size), "rois": rois, "entries": np.array([0, 1, 1, 0])}
        want = ReferenceEvaluator(m).run(None, feeds)[0]
        np.testing.assert_allclose(compiled(*feeds.values()), want, rtol=1e-3, atol=1e-5)
    none = compiled(feeds["x"], rois[:0], np.zeros(0, np.int64))
    assert np.asarray(none).shape == (0, 2, 2, 3)


@pytest.mark.daily(2)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_small_determinants(size: int) -> None:
    x = f(3, 2, size, size)
    got = tw.compile(model([node("Det", ["x"], ["y"])], [info("x", ["n", 2, size, size])], ["y"]))(x)
    np.testing.assert_allclose(got, np.linalg.det(x.astype(np.float64)), rtol=1e-4, atol=1e-5)


def test_large_determinants_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="Det of large matrices"):
        import_onnx(model([node("Det", ["x"], ["y"])], [info("x", [5, 5])], ["y"]))


@pytest.mark.parametrize(
    ("bins", "length", "rate", "low", "high"), [(8, 16, 8192, 0.0, 4096.0), (20, 512, 16000, 60.0, 7600.0)]
)
def test_mel_weights(bins: int, length: int, rate: int, low: float, high: float) -> None:
    arguments = {
        "bins": np.int64(bins),
        "length": np.int64(length),
        "rate": np.int64(rate),
        "low": F(low),
        "high": F(high),
    }
    weights = {k: np.array(v) for k, v in arguments.items()}
    nodes = [node("MelWeightMatrix", list(arguments), ["m"]), node("MatMul", ["x", "m"], ["y"])]
    same(model(nodes, [info("x", [3, length // 2 + 1])], ["y"], weights), {"x": f(3, length // 2 + 1)}, 1e-4)


@pytest.mark.daily(3)
@pytest.mark.parametrize("length", [None, 6, 7, 12])
@pytest.mark.parametrize("opset", [17, 20])
def test_inverse_real_transforms(length: int | None, opset: int) -> None:
    x = f(2, 6, 3, 2)
    weights = {} if length is None else {"length": np.array(length)}
    names = ["x", "length" if length else ""]
    attrs: dict[str, Any] = {"inverse": 1, "onesided": 1}
    if opset == 17:
        attrs["axis"] = 1
    else:
        weights["axis"] = np.array(1)
        names.append("axis")
    got = tw.compile(model([node("DFT", names, ["y"], **attrs)], [info("x", x.shape)], ["y"], weights, opset=opset))(x)
    want = np.fft.irfft(x[..., 0] + 1j * x[..., 1], length or 10, axis=1)
    np.testing.assert_allclose(got, want[..., None], rtol=1e-4, atol=1e-5)


OPTIMIZERS: dict[str, tuple[int, dict[str, Any]]] = {
    "Adagrad": (1, {"norm_coefficient": 0.01, "epsilon": 1e-5, "decay_factor": 0.1}),
    "Adam": (2, {"norm_coefficient": 0.01, "alpha": 0.8, "beta": 0.95, "epsilon": 1e-4, "norm_coefficient_post": 0.02}),
    "Momentum": (1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.5, "mode": "standard"}),
    "Momentum nesterov": (1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.5, "mode": "nesterov"}),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("time", [0, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_two_tensors(name: str, time: int) -> None:
    states, attrs = OPTIMIZERS[name]
    tensors = {f"{kind}{k}": f(3, 2 + k) for kind in ["x", "g", "s", "t"][: 2 + states] for k in range(2)}
    tensors |= {k: np.abs(v) for k, v in tensors.items() if k[0] in "st"}
    feeds = {"r": np.array(0.1, F), "time": np.array(time), **tensors}
    inputs = [info("r", []), info("time", [], T.INT64), *(info(k, v.shape) for k, v in tensors.items())]
    outputs = [f"{kind}{k}" for kind in ["nx", "ns", "nt"][: 1 + states] for k in range(2)]
    n = node(name.split()[0], list(feeds), outputs, domain="ai.onnx.preview.training", **attrs)
    m = model([n], inputs, outputs, **{"ai.onnx.preview.training": 1})
    same(m, feeds)


def test_space_to_depth_by_columns() -> None:
    x = f(2, 3, 4, 6)
    m = model([node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode="CRD")], [info("x", x.shape)], ["y"], opset=28)
    want = x.reshape(2, 3, 2, 2, 3, 2).transpose(0, 1, 3, 5, 2, 4).reshape(2, 12, 2, 3)
    np.testing.assert_array_equal(tw.compile(m)(x), want)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_hardmax_of_several_dimensions(axis: int) -> None:
    """Before operator set 13 the dimensions from the axis on are one."""
    x = f(3, 4, 5)
    got = tw.compile(model([node("Hardmax", ["x"], ["y"], axis=axis)], [info("x", x.shape)], ["y"], opset=11))(x)
    flat = x.reshape(int(np.prod(x.shape[:axis])), -1)
    want = np.zeros_like(flat)
    want[np.arange(len(flat)), flat.argmax(1)] = 1
    np.testing.assert_array_equal(got, want.reshape(x.shape))


@pytest.mark.parametrize("attrs", [{}, {"keepdims": 0}, {"select_last_index": 1}], ids=str)
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_no_place_along_an_empty_dimension(op: str, attrs: dict[str, int]) -> None:
    """NumPy, and so the reference, and ONNX Runtime refuse, too; a size that comes with a call, at the call."""
    file = model([node(op, ["x"], ["y"], axis=1, **attrs)], [info("x", ["m", "n"])], ["y"])
    compiled = tw.compile(file, dims={"m": tw.dim(0), "n": tw.dim(0)}, fallback="never")
    for rows in (0, 3):
        x = RNG.integers(0, 3, (rows, 7)).astype(F)
        np.testing.assert_array_equal(compiled(x), ReferenceEvaluator(file).run(None, {"x": x})[0])
        with pytest.raises(tw.Error, match=f"{op}: no element can be chosen along an empty dimension"):
            compiled(x[:, :0])
    with pytest.raises(tw.Error, match="no element can be chosen along an empty dimension: got dimension 1"):
        tw.compile(file, dims={"n": 0}, fallback="never")


def _negation(name: str, opset: int) -> onnx.FunctionProto:
    body = [onnx.helper.make_node("Neg", ["x"], ["y"])]
    return onnx.helper.make_function("", name, ["x"], ["y"], body, [onnx.helper.make_opsetid("", opset)])


@pytest.mark.parametrize("overload", ["", "a"])
@pytest.mark.parametrize(("opset", "is_operator"), [(20, True), (17, False)])
def test_a_function_with_the_name_of_an_operator(opset: int, is_operator: bool, overload: str) -> None:
    """The operator counts where the model's version of ONNX has it, as in ONNX Runtime and the reference, whatever the
    overload."""
    m = model([node("Gelu", "x", "y")], [info("x", [3])], ["y"], functions=[_negation("Gelu", opset)])
    m.opset_import[0].version = opset
    m.functions[0].overload = m.graph.node[0].overload = overload
    x = np.array([-1, 0.5, 2], F)
    want = [-0.158655, 0.345731, 1.954500] if is_operator else -x
    np.testing.assert_allclose(tw.compile(m)(x), want, rtol=1e-5)
    assert len(m.functions) == 1


def test_a_function_of_a_domain_of_any_version() -> None:
    """Also of one that is no 32-bit integer, which ONNX's table of operators does not take."""
    function = _negation("Relu", 17)
    function.domain = "com.example"
    m = model([node("Relu", "x", "y", domain="com.example")], [info("x", [3])], ["y"], functions=[function])
    m.opset_import.append(onnx.helper.make_opsetid("com.example", 1 << 62))
    x = np.array([-1, 0.5, 2], F)
    np.testing.assert_array_equal(tw.compile(m)(x), -x)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e5m2fnuz"])
def test_f64_next_to_ties_is_rounded_as_numpy_rounds(name: str) -> None:
    """Once to f16, and by way of f32 to the other types."""
    t = np.dtype(getattr(ml_dtypes, name, name))
    with np.errstate(invalid="ignore"):
        codes = np.arange(1 << 8 * t.itemsize, dtype=f"u{t.itemsize}").view(t).astype(np.float64)
    codes = np.unique(codes[np.isfinite(codes)])
    middle = (codes[1:] + codes[:-1]) / 2
    x = np.concatenate([middle, middle * (1 + 1e-12), middle * (1 - 1e-12)])
    kinds = [onnx.helper.np_dtype_to_tensor_dtype(k) for k in (t, np.dtype(np.float64))]
    m = model([node("Cast", "x", "z", to=kinds[0]), node("Cast", "z", "y", to=kinds[1])], [info("x", ["n"])], ["y"])
    m.graph.input[0].type.tensor_type.elem_type = kinds[1]
    del m.opset_import[:]
    m.opset_import.append(onnx.helper.make_opsetid("", 19))
    want = x.astype(t).astype(np.float64)
    imported = import_onnx(m)
    np.testing.assert_array_equal(run_graph(imported.graph, {"x": x}, imported.weights)["y"], want)
    np.testing.assert_array_equal(tw.compile(m)(x), want)
    assert np.array_equal(want, x.astype(F).astype(t).astype(np.float64)) == (name != "float16")


@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_tensors(places: Any) -> None:
    """A constant and an initializer: numbers of a few places, which lie in rows or one after the other."""
    values, indices = (onnx.numpy_helper.from_array(np.array(v), "s") for v in (np.array([5, 7], F), places))
    sparse = onnx.helper.make_sparse_tensor(values, indices, [2, 3])
    nodes = [node("Constant", [], ["c"], sparse_value=sparse), node("Sub", "cx", "a"), node("Mul", "as", "y")]
    m = model(nodes, [info("x", [])], ["y"])
    m.graph.sparse_initializer.append(sparse)
    assert [n.op for n in import_onnx(m).graph.nodes] == ["constant", "sub", "mul"]
    np.testing.assert_array_equal(tw.compile(m)(np.array(1, F)), [[0, 20, 0], [0, 0, 42]])


def test_sparse_tensors_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they stand: in the graph, in constants, in branches, in functions."""

    def zeros(name: str) -> Any:
        values, places = (
            onnx.numpy_helper.from_array(np.array([5], F), name),
            onnx.numpy_helper.from_array(np.array([1])),
        )
        return onnx.helper.make_sparse_tensor(values, places, [2, 2])

    def constant(name: str) -> Any:
        return node("Constant", [], [name], sparse_value=zeros(name))

    branch = onnx.helper.make_graph([node("Add", "cs", "r")], "branch", [], [info("r", [2, 2])])
    branch.sparse_initializer.append(zeros("s"))
    other = onnx.helper.make_graph([constant("o")], "other", [], [info("o", [2, 2])])
    ids = [onnx.helper.make_opsetid("", 17)]
    function = onnx.helper.make_function("own", "F", ["x"], ["y"], [constant("f"), node("Mul", "xf", "y")], ids)
    nodes = [
        constant("c"),
        node("If", ["b"], ["i"], then_branch=branch, else_branch=other),
        node("F", "i", "y", domain="own"),
    ]
    condition = onnx.helper.make_tensor_value_info("b", onnx.TensorProto.BOOL, [])
    m = model(nodes, [condition], ["y"], functions=[function], own=1)
    before = m.SerializeToString()
    np.testing.assert_array_equal(tw.compile(m)(np.array(True)), [[0, 50], [0, 0]])
    np.testing.assert_array_equal(tw.compile(m)(np.array(False)), [[0, 25], [0, 0]])
    assert m.SerializeToString() == before
    monkeypatch.setattr("tilewright.frontend.onnx.sparse.MAX_DENSE", 63)  # four of 16 bytes
    with pytest.raises(tw.Error, match=r"too large together: expected at most 63 bytes, got 64"):
        tw.compile(m)


@pytest.mark.parametrize("stated", [True, False])
def test_a_sparse_tensor_may_be_the_attribute_of_a_function(stated: bool) -> None:
    """The call states it, or else the function."""

    def sparse(number: float) -> Any:
        values, places = (onnx.numpy_helper.from_array(a, "s") for a in (np.array([number], F), np.array([1])))
        return onnx.helper.make_sparse_tensor(values, places, [2, 2])

    constant, call = node("Constant", [], ["c"]), node("F", "x", "y", domain="own")
    constant.attribute.add(name="sparse_value", ref_attr_name="w", type=onnx.AttributeProto.SPARSE_TENSOR)
    own = onnx.helper.make_attribute("w", sparse(7))
    ids, body = [onnx.helper.make_opsetid("", 17)], [constant, node("Add", "xc", "y")]
    function = onnx.helper.make_function("own", "F", ["x"], ["y"], body, ids, attribute_protos=[own])
    if stated:
        call.attribute.append(onnx.helper.make_attribute("w", sparse(5)))
    m = model([call], [info("x", [2, 2])], ["y"], functions=[function], own=1)
    np.testing.assert_array_equal(tw.compile(m)(np.ones((2, 2), F)), [[1, 6 if stated else 8], [1, 1]])


def test_a_sparse_tensor_without_elements_that_numpy_refuses() -> None:
    values, places = (onnx.numpy_helper.from_array(a, "s") for a in (np.zeros(0, F), np.zeros(0, np.int64)))
    m = model([node("Add", "xs", "y")], [info("x", [1])], ["y"])
    m.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=places, dims=[2**62, 0, 2**62]))
    with pytest.raises(tw.Error, match="too big"):
        tw.compile(m)


@pytest.mark.parametrize(
    ("numbers", "places"),
    [
        ([5, 7], [1, -1]),
        ([5, 7], [1, 6]),
        ([5], [0, 1]),
        ([5], [[[1]]]),
        ([[5, 7]], [0, 1]),
        ([5], [True] + [False] * 5),
    ],
)
def test_sparse_tensors_whose_places_do_not_fit(numbers: Any, places: Any) -> None:
    """Places outside, fewer or more of them than values, and such as are no integers."""
    values, indices = (onnx.numpy_helper.from_array(v, "s") for v in (np.array(numbers, F), np.array(places)))
    m = model([node("Add", "xs", "y")], [info("x", [2, 3])], ["y"])
    m.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices, dims=[2, 3]))
    with pytest.raises(tw.Error, match="indices do not fit"):
        tw.compile(m)
