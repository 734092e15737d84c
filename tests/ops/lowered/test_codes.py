"""Products with weights of 4 bits: expression and reference against dequantised weights, native code against both."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.ops.oracle import check, reference
from tilewright import ops
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import DType, f32, i8, u8
from tilewright.ir.expr import const
from tilewright.ir.graph import GraphBuilder, TensorType, Value


@pytest.mark.parametrize("op", ["lowered.matmul_codes", "lowered.matmul_decoded"])
@pytest.mark.parametrize("shape", [(1, 32, 5, 4, 32), (3, 64, 9, 8, 32), (2, 24, 7, 4, 8)])
def test_codes_times_scales(op: str, shape: tuple[int, int, int, int, int]) -> None:
    rows, depth, columns, width, group = shape
    rng = np.random.default_rng(1)
    levels = rng.integers(0, 16, (depth, columns)).astype(np.uint8)
    scales = rng.random((depth // group, columns)).astype(np.float32)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    (codes,) = reference(
        "lowered.pack_matmul", [levels[0::2] | levels[1::2] << 4], {"width": width, "transpose": False}
    )
    (packed,) = reference("lowered.pack_matmul", [scales], {"width": width, "transpose": False})
    (got,) = check(op, x, codes, packed, columns=columns, zero=8.0)
    weights = (levels.astype(np.float64) - 8) * np.repeat(scales, group, axis=0)
    np.testing.assert_allclose(got, x @ weights, rtol=0, atol=2e-5)


def product(rows: int | str, depth: int, columns: int, w: np.ndarray, transpose: bool) -> object:
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=int(transpose))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [info("x", TensorProto.FLOAT, [rows, depth])],
        [info("y", TensorProto.FLOAT, [rows, columns])],
        [numpy_helper.from_array(np.ascontiguousarray(w.T) if transpose else w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def rounded(w: np.ndarray, precision: str) -> np.ndarray:
    """Weights as codes and scales mean them, in double precision."""
    depth, columns = w.shape
    group, levels = (32, 7) if precision == "int4w" and depth % 32 == 0 else (depth, 127)
    blocks = w.astype(np.float64).reshape(depth // group, group, columns)
    scale = np.maximum(np.abs(blocks).max(1, keepdims=True), 2.0**-100) / levels
    return (np.rint(blocks / scale) * scale).reshape(depth, columns)


@pytest.mark.costly(2)
@pytest.mark.parametrize("precision", ["int8w", "int4w"])
@pytest.mark.parametrize(
    "rows,sizes,depth,columns,transpose",
    [
        (1, (1,), 64, 70, False),
        (3, (3,), 96, 33, True),
        (9, (9,), 64, 40, False),
        (2, (2,), 40, 19, True),
        ("n", (1, 3, 4, 5, 17), 64, 48, False),
    ],
)
def test_compiled_products(
    precision: str, rows: int | str, sizes: tuple[int, ...], depth: int, columns: int, transpose: bool
) -> None:
    rng = np.random.default_rng(2)
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    w[:, 0] = 0
    w[0, 1] = 50
    model = tw.compile(product(rows, depth, columns, w, transpose), precision=precision)
    for n in sizes:
        x = rng.standard_normal((n, depth)).astype(np.float32)
        wanted = x @ rounded(w, precision)
        y = model(x)
        # A weight half-way between two levels may fall to either, as its scale is rounded.
        np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
        x[0, 0] = np.nan
        assert np.isnan(model(x)[0, 1:]).all()
    second = rng.standard_normal((depth, columns)).astype(np.float32)
    model.update({"w": np.ascontiguousarray(second.T) if transpose else second})
    x = rng.standard_normal((sizes[-1], depth)).astype(np.float32)
    wanted = x @ rounded(second, precision)
    np.testing.assert_allclose(model(x), wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize("rows,sizes", [(1, (1,)), (4, (4,)), ("n", (1, 3, 9)), (20, (20,))])
@pytest.mark.parametrize("zeros", [None, "packed", "f32"])
@pytest.mark.parametrize("depth", [64, 40])
def test_files_of_4_bits_stay_codes(rows: int | str, sizes: tuple[int, ...], zeros: str | None, depth: int) -> None:
    """`MatMulNBits`, against dequantised weights; a depth that ends within a block is padded in the file."""
    rng = np.random.default_rng(3)
    columns, block = 21, 32
    blocks = -(-depth // block)
    levels = rng.integers(0, 16, (columns, blocks * block)).astype(np.uint8)
    scales = rng.random((columns, blocks)).astype(np.float32) + 0.1
    arrays = {
        "b": (levels[:, 0::2] | levels[:, 1::2] << 4).reshape(columns, blocks, block // 2),
        "s": scales.reshape(-1),
    }
    zero = np.full((columns, blocks), 8)
    if zeros == "packed":
        zero = rng.integers(0, 16, (columns, blocks))
        padded = np.pad(zero, ((0, 0), (0, blocks % 2))).astype(np.uint8)
        arrays["z"] = (padded[:, 0::2] | padded[:, 1::2] << 4).reshape(-1)
    elif zeros == "f32":
        zero = rng.random((columns, blocks)).astype(np.float32) * 15
        arrays["z"] = zero.reshape(-1)
    node = helper.make_node(
        "MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", K=depth, N=columns, bits=4, block_size=block
    )
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [info("x", TensorProto.FLOAT, [rows, depth])],
        [info("y", TensorProto.FLOAT, [rows, columns])],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = tw.compile(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    weights = ((levels - np.repeat(zero, block, 1)) * np.repeat(scales, block, 1))[:, :depth].astype(np.float64)
    stays = depth % block == 0 and rows != 20
    kernels = " ".join(step.label for step in model.manifest.run_steps)
    assert ("codes" in kernels) == stays, kernels
    for n in sizes:
        x = rng.standard_normal((n, depth)).astype(np.float32)
        wanted = x @ weights.T
        np.testing.assert_allclose(model(x), wanted, rtol=0, atol=3e-6 * np.abs(x).max() * np.abs(weights).sum(1).max())


@pytest.mark.daily(2)
@pytest.mark.costly(3)
@pytest.mark.parametrize("seed", range(12))
def test_random_products(seed: int) -> None:
    """Any rows, depths and columns, in both types, with both ways in which weights lie."""
    rng = np.random.default_rng(100 + seed)
    rows, columns = int(rng.integers(1, 40)), int(rng.integers(2, 200))
    depth = int(rng.integers(1, 9)) * 32 if seed % 3 else int(rng.integers(2, 300))
    precision = ("int8w", "int4w")[seed % 2]
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    model = tw.compile(product("n" if seed % 4 == 3 else rows, depth, columns, w, bool(seed & 2)), precision=precision)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    wanted = x @ rounded(w, precision)
    np.testing.assert_allclose(model(x), wanted, rtol=0, atol=3e-5 * np.abs(wanted).max())


@pytest.mark.daily(3)
@pytest.mark.costly(6)
@pytest.mark.parametrize("rows", [1, 3, "n"])
@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8, TensorProto.UINT8])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_blocked_scales_stay_codes(rows: int | str, kind: int, transpose: bool, zeros: bool) -> None:
    """`DequantizeLinear` with blocks along the depth, against dequantised weights."""
    rng = np.random.default_rng(4)
    depth, columns, block = 96, 22, 32
    four, signed = kind in (TensorProto.INT4, TensorProto.UINT4), kind in (TensorProto.INT4, TensorProto.INT8)
    low, high = {(True, True): (-8, 8), (True, False): (0, 16), (False, True): (-128, 128)}.get(
        (four, signed), (0, 256)
    )
    levels = rng.integers(low, high, (depth, columns))
    scales = rng.random((depth // block, columns)).astype(np.float32) + 0.1
    zero = rng.integers(low, high, scales.shape) if zeros else np.zeros(scales.shape, int)
    weights = (levels - np.repeat(zero, block, 0)) * np.repeat(scales.astype(np.float64), block, 0)

    def oriented(a: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(a.T) if transpose else a

    initializers = [helper.make_tensor("w", kind, oriented(levels).shape, oriented(levels).reshape(-1).tolist())]
    initializers.append(numpy_helper.from_array(oriented(scales), "s"))
    names = ["w", "s"]
    if zeros:
        initializers.append(helper.make_tensor("z", kind, oriented(zero).shape, oriented(zero).reshape(-1).tolist()))
        names.append("z")
    nodes = [
        helper.make_node("DequantizeLinear", names, ["d"], axis=int(transpose), block_size=block),
        helper.make_node("Gemm", ["x", "d"], ["y"], transB=int(transpose)),
    ]
    info = helper.make_tensor_value_info
    inputs, outputs = (info(n, TensorProto.FLOAT, [rows, k]) for n, k in (("x", depth), ("y", columns)))
    graph = helper.make_graph(nodes, "g", [inputs], [outputs], initializers)
    model = tw.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    kernels = " ".join(step.label for step in model.manifest.run_steps)
    assert "codes" in kernels, kernels
    for n in (1, 3, 9) if rows == "n" else (rows,):
        x = rng.standard_normal((n, depth)).astype(np.float32)
        limit = 3e-6 * np.abs(x).max() * (np.abs(levels) + 256 * zeros).max() * scales.max() * depth
        np.testing.assert_allclose(model(x), x @ weights, rtol=0, atol=limit)


@pytest.mark.parametrize("kind", ["sub", "sub and add", "sub zeros", "cast"])
def test_codes_that_wrap(kind: str) -> None:
    """Differences of 8 bits, and casts to another sign, are what their type makes of them."""
    rng = np.random.default_rng(17)
    depth, columns, group = 64, 24, 32
    codes = rng.integers(0, 256, (depth // group, group, columns)).astype(np.uint8)
    scales = rng.random((depth // group, 1, columns)).astype(np.float32)
    zeros = rng.integers(0, 16, scales.shape).astype(np.uint8)
    builder = GraphBuilder("g")

    def shaped(array: np.ndarray, dtype: DType) -> TensorType:
        return TensorType(dtype, tuple(map(const, array.shape)))

    def number(value: int) -> Value:
        return ops.emit1(builder, "constant", value=ConstantArray(np.uint8(value)))

    x = builder.input("x", TensorType(f32, (const(2), const(depth))))
    c, s, z = (builder.param(n, shaped(a, t)) for n, a, t in (("c", codes, u8), ("s", scales, f32), ("z", zeros, u8)))
    if kind == "cast":
        levels, wanted = ops.emit1(builder, "cast", c, dtype=i8), codes.astype(np.int8)
    else:
        low, less = ops.emit1(builder, "bitand", c, number(15)), zeros if kind == "sub zeros" else np.uint8(8)
        levels = ops.emit1(builder, "sub", low, z if kind == "sub zeros" else number(8))
        wanted = (codes & 15) - less
        if kind == "sub and add":
            levels, wanted = ops.emit1(builder, "add", levels, number(1)), wanted + np.uint8(1)
    scaled = ops.emit1(builder, "mul", ops.emit1(builder, "cast", levels, dtype=f32), s)
    w = ops.emit1(builder, "reshape", scaled, shape=(const(depth), const(columns)))
    graph = builder.finish((ops.emit1(builder, "matmul", x, w),))
    model = tw.compile((graph, {"c": codes, "s": scales, "z": zeros}))
    rows = rng.standard_normal((2, depth)).astype(np.float32)
    product_of_rows = rows @ (wanted.astype(np.float32) * scales).reshape(depth, columns)
    np.testing.assert_allclose(model(rows), product_of_rows, rtol=0, atol=1e-5 * np.abs(product_of_rows).max())
