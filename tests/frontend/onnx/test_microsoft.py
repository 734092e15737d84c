"""Operators of com.microsoft against ONNX Runtime, on random shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tests.frontend.onnx.build import node

ort = pytest.importorskip("onnxruntime", reason="the peer is an extra: tilewright[test] has it")

Array = np.ndarray[Any, Any]
F = np.float32
RNG = np.random.default_rng(12)


def f(*shape: int, scale: float = 1.0) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(F)


def i8(*shape: int) -> Array:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def i7(*shape: int) -> Array:
    """Weights of 7 bits: on a processor with AVX2 and no VNNI, ONNX Runtime adds two products of u8 and i8 in 16 bits,
    which saturate for larger ones (its `reduce_range`)."""
    return RNG.integers(-64, 64, shape).astype(np.int8)


def u8(*shape: int) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i32(*values: int) -> Array:
    return np.array(values, np.int32)


def number(value: float, t: Any = F) -> Array:
    return np.array(value, t)


class Case:
    """A node: positional inputs (None: absent), the first of which stays an input of the model, the rest constants
    unless `free` says how many are inputs; how many of the outputs are compared; attributes."""

    def __init__(
        self,
        op: str,
        *arguments: Array | None,
        free: int = 1,
        outputs: int = 1,
        compared: int = 9,
        off: int = 0,
        **attrs: Any,
    ) -> None:
        self.op, self.arguments, self.free, self.outputs, self.off, self.attrs = (
            op,
            arguments,
            free,
            outputs,
            off,
            attrs,
        )
        self.compared = compared

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        names = ["" if a is None else f"x{k}" for k, a in enumerate(self.arguments)]
        feeds = {name: a for name, a in list(zip(names, self.arguments, strict=True))[: self.free] if a is not None}
        rest = [numpy_helper.from_array(a, name) for name, a in zip(names, self.arguments, strict=True) if a is not None
                and name not in feeds]  # fmt: skip
        n = node(self.op, names, [f"y{k}" for k in range(self.outputs)], domain="com.microsoft", **self.attrs)
        inputs = [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for k, a in feeds.items()
        ]
        results = [helper.make_empty_tensor_value_info(f"y{k}") for k in range(self.outputs)]
        graph = helper.make_graph([n], "g", inputs, results, rest)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


X = f(2, 5, 24)
HEADS = {"num_heads": 4}
SCALE, LEVEL = number(0.07), number(3, np.uint8)
QKV = (f(24, 72, scale=0.3), f(72))


def nbits(bits: int, rows: int, columns: int, block: int, *zero: Any) -> tuple[Array | None, ...]:
    blocks = -(-columns // block)
    return (f(3, columns), u8(rows, blocks, block * bits // 8), f(rows * blocks, scale=0.1), *zero)


def cosines(length: int, half: int) -> tuple[Array, Array]:
    angle = RNG.uniform(0, 6, (length, half))
    return np.cos(angle).astype(F), np.sin(angle).astype(F)


def grouped(
    past: int,
    new: int,
    *,
    batch: int = 2,
    heads: int = 4,
    groups: int = 2,
    d: int = 16,
    shorter: int = 0,
    total: int = 0,
    **attrs: Any,
) -> Case:
    """Group query attention; the first sequence may be shorter, and what its cache then holds after is undefined. With
    `total`, the length of the longest sequence, the cache has room for more."""
    shared, total = total > 0, total or past + new
    cache = (f(batch, groups, past, d), f(batch, groups, past, d)) if past else (None, None)
    tables = cosines(32, d // 2) if attrs.get("do_rotary") else (None, None)
    inputs = (f(batch, new, heads * d), f(batch, new, groups * d), f(batch, new, groups * d), *cache)
    lengths = np.full(batch, total - 1, np.int32)
    lengths[0] -= shorter
    return Case(
        "GroupQueryAttention", *inputs, lengths, number(total, np.int32), *tables,
        free=5, outputs=3, compared=1 if shorter or shared else 3, num_heads=heads, kv_num_heads=groups, **attrs,
    )  # fmt: skip


CASES: dict[str, Callable[[], Case]] = {
    "gelu": lambda: Case("Gelu", X),
    "fast gelu": lambda: Case("FastGelu", X, f(24)),
    "fast gelu without bias": lambda: Case("FastGelu", X),
    "bias gelu": lambda: Case("BiasGelu", X, f(24)),
    "quick gelu": lambda: Case("QuickGelu", X, alpha=1.3),
    "skip layer norm": lambda: Case("SkipLayerNormalization", X, f(2, 5, 24), f(24), f(24), f(24), epsilon=1e-5),
    "skip layer norm of one skip": lambda: Case("SkipLayerNormalization", X, f(1, 5, 24), f(24), free=2),
    "skip rms norm": lambda: Case("SkipSimplifiedLayerNormalization", X, f(2, 5, 24), f(24), f(24), epsilon=1e-3),
    "embeddings": lambda: Case(
        "EmbedLayerNormalization",
        RNG.integers(0, 9, (2, 5)).astype(np.int32),
        RNG.integers(0, 2, (2, 5)).astype(np.int32),
        f(9, 24),
        f(7, 24),
        f(2, 24),
        f(24),
        f(24),
        (RNG.random((2, 5)) < 0.7).astype(np.int32),
        free=2,
        outputs=2,
    ),
    "embeddings at places": lambda: Case(
        "EmbedLayerNormalization",
        RNG.integers(0, 9, (2, 5)).astype(np.int32),
        None,
        f(9, 24),
        f(7, 24),
        None,
        f(24),
        f(24),
        None,
        RNG.integers(0, 7, (2, 5)).astype(np.int32),
        outputs=2,
        epsilon=1e-6,
    ),
    "fused matmul": lambda: Case("FusedMatMul", f(3, 6, 4), f(3, 5, 6), transA=1, transB=1, alpha=0.3, free=2),
    "fused matmul of batches": lambda: Case("FusedMatMul", f(6, 3, 4), f(3, 4, 5), transBatchA=1, free=2),
    "fused gemm": lambda: Case(
        "FusedGemm", f(3, 4), f(5, 4), f(5), transB=1, alpha=2.0, activation="LeakyRelu", activation_alpha=0.2
    ),
    "fused conv": lambda: Case(
        "FusedConv",
        f(2, 3, 9, 8),
        f(6, 3, 3, 3),
        f(6),
        kernel_shape=[3, 3],
        pads=[1, 1, 1, 1],
        strides=[2, 1],
        activation="Clip",
        activation_params=[-0.5, 0.9],
    ),
    "fused conv and sum": lambda: Case(
        "FusedConv", f(2, 4, 7, 7), f(6, 2, 3, 3), f(6), f(2, 6, 5, 5), group=2, activation="Relu"
    ),
    "rotary 3-D": lambda: Case("RotaryEmbedding", X, RNG.integers(0, 9, (2, 5)), *cosines(9, 3), num_heads=4),
    "rotary 4-D": lambda: Case("RotaryEmbedding", f(2, 3, 5, 8), np.array([2]), *cosines(9, 4), interleaved=1),
    "rotary of a part": lambda: Case(
        "RotaryEmbedding", X, np.array([1]), *cosines(9, 2), num_heads=4, rotary_embedding_dim=4
    ),
    "4 bits": lambda: Case("MatMulNBits", *nbits(4, 7, 64, 32), K=64, N=7, bits=4, block_size=32),
    "4 bits with a rest": lambda: Case(
        "MatMulNBits", *nbits(4, 7, 50, 16, u8(7 * 2)), K=50, N=7, bits=4, block_size=16
    ),
    "4 bits with numbers": lambda: Case("MatMulNBits", *nbits(4, 5, 64, 16, f(20)), K=64, N=5, bits=4, block_size=16),
    "8 bits": lambda: Case("MatMulNBits", *nbits(8, 7, 64, 32, u8(14)), K=64, N=7, bits=8, block_size=32),
    "bits and bias": lambda: Case(
        "MatMulNBits", *nbits(4, 7, 64, 32, None, None, f(7)), K=64, N=7, bits=4, block_size=32
    ),
    "attention": lambda: Case("Attention", X, *QKV, **HEADS),
    "attention of lengths": lambda: Case("Attention", X, *QKV, i32(3, 5), free=4, **HEADS),
    "attention of keys": lambda: Case("Attention", X, *QKV, (RNG.random((2, 5)) < 0.7).astype(np.int32), **HEADS),
    "attention of rows": lambda: Case("Attention", X, *QKV, (RNG.random((2, 5, 5)) < 0.7).astype(np.int32), **HEADS),
    "causal attention": lambda: Case("Attention", X, *QKV, unidirectional=1, scale=0.3, **HEADS),
    "attention and a cache": lambda: Case(
        "Attention", X, *QKV, None, f(2, 2, 4, 3, 6), outputs=2, unidirectional=1, **HEADS
    ),
    "attention and an addend": lambda: Case("Attention", X, *QKV, None, None, f(2, 4, 5, 5), **HEADS),
    "attention of other widths": lambda: Case(
        "Attention", X, f(24, 56, scale=0.3), f(56), qkv_hidden_sizes=[16, 16, 24], **HEADS
    ),
    "heads": lambda: Case("MultiHeadAttention", X, f(2, 7, 24), f(2, 7, 32), f(80), free=3, **HEADS),
    "heads and masks": lambda: Case(
        "MultiHeadAttention",
        X,
        f(2, 7, 24),
        f(2, 7, 24),
        None,
        (RNG.random((2, 7)) < 0.7).astype(np.int32),
        f(1, 4, 5, 7),
        free=3,
        **HEADS,
    ),
    "heads and caches": lambda: Case(
        "MultiHeadAttention",
        X,
        f(2, 5, 24),
        f(2, 5, 24),
        None,
        None,
        None,
        f(2, 4, 3, 6),
        f(2, 4, 3, 6),
        free=3,
        outputs=3,
        **HEADS,
    ),
    "heads apart": lambda: Case("MultiHeadAttention", X, f(2, 4, 7, 6), f(2, 4, 7, 6), free=3, **HEADS),
    "a prompt": lambda: grouped(0, 6),
    "a prompt, rotated": lambda: grouped(0, 6, do_rotary=1),
    "a token": lambda: grouped(5, 1, do_rotary=1),
    "a token, interleaved": lambda: grouped(5, 1, do_rotary=1, rotary_interleaved=1, scale=0.2),
    "a token of a window": lambda: grouped(7, 1, local_window_size=3),
    "tokens of sequences of several lengths": lambda: grouped(7, 1, do_rotary=1, shorter=3),
    "a prompt with shorter sequences": lambda: grouped(0, 6, shorter=2, do_rotary=1),
    "a prompt into a cache with room": lambda: grouped(9, 6, shorter=2, total=6, do_rotary=1),
    "a token into a cache with room": lambda: grouped(9, 1, shorter=3, total=6, do_rotary=1),
    "tokens into a cache with room": lambda: grouped(9, 3, batch=1, total=7, local_window_size=2),
    "a soft cap": lambda: grouped(0, 4, softcap=2.0),
    "quantised sum": lambda: Case(
        "QLinearAdd",
        u8(3, 4),
        SCALE,
        LEVEL,
        u8(4),
        number(0.05),
        number(9, np.uint8),
        number(0.11),
        number(40, np.uint8),
        free=1,
        off=1,
    ),
    "quantised product": lambda: Case(
        "QLinearMul",
        i8(3, 4),
        SCALE,
        number(-3, np.int8),
        i8(4),
        number(0.05),
        number(9, np.int8),
        number(0.6),
        number(4, np.int8),
        off=1,
    ),
    "quantised sigmoid": lambda: Case(
        "QLinearSigmoid", u8(3, 40), SCALE, number(120, np.uint8), number(1 / 256), number(0, np.uint8), off=1
    ),
    "quantised leaky relu": lambda: Case(
        "QLinearLeakyRelu", i8(3, 40), SCALE, number(2, np.int8), SCALE, number(-30, np.int8), alpha=0.2, off=1
    ),
    "quantised mean": lambda: Case(
        "QLinearGlobalAveragePool", u8(2, 3, 5, 4), SCALE, LEVEL, number(0.05), LEVEL, off=1
    ),
    "quantised mean, channels last": lambda: Case(
        "QLinearGlobalAveragePool", u8(2, 5, 4, 3), SCALE, LEVEL, number(0.05), LEVEL, channels_last=1, off=1
    ),
    "quantised pool": lambda: Case(
        "QLinearAveragePool", u8(2, 3, 6, 7), SCALE, LEVEL, SCALE, LEVEL, kernel_shape=[3, 2], strides=[2, 1], off=1
    ),
    "quantised pool, half way between two codes": lambda: Case(
        "QLinearAveragePool",
        u8(2, 3, 6, 7),
        number(0.5),
        number(7, np.uint8),
        number(0.5),
        number(11, np.uint8),
        kernel_shape=[2, 2],
    ),
    "quantised concat": lambda: Case(
        "QLinearConcat",
        SCALE,
        LEVEL,
        u8(2, 3),
        number(0.05),
        number(7, np.uint8),
        u8(2, 4),
        SCALE,
        LEVEL,
        free=3,
        axis=1,
        off=1,
    ),
    "quantised softmax": lambda: Case(
        "QLinearSoftmax", u8(3, 9), number(0.02), LEVEL, number(1 / 256), number(0, np.uint8), axis=-1, opset=13, off=1
    ),
    "quantised gemm": lambda: Case(
        "QGemm",
        u8(3, 8),
        SCALE,
        LEVEL,
        i7(5, 8),
        number(0.02),
        number(4, np.int8),
        RNG.integers(-99, 99, 5).astype(np.int32),
        number(0.3),
        number(100, np.uint8),
        transB=1,
        off=1,
    ),
    "gemm to numbers": lambda: Case("QGemm", u8(3, 8), SCALE, LEVEL, i7(8, 5), number(0.02), number(4, np.int8)),
    "integers to numbers": lambda: Case(
        "MatMulIntegerToFloat", u8(3, 8), i7(8, 5), SCALE, np.abs(f(5)), LEVEL, i8(5), f(5)
    ),
    "dynamic": lambda: Case("DynamicQuantizeMatMul", f(2, 3, 8), i7(8, 5), number(0.02), number(4, np.int8), f(5)),
    "distances": lambda: Case("CDist", f(5, 7), f(4, 7), metric="euclidean"),
    "squared distances": lambda: Case("CDist", f(5, 7), f(4, 7), free=2, metric="sqeuclidean"),
    "quantised attention": lambda: Case(
        "QAttention",
        u8(2, 5, 24),
        i7(24, 72),
        f(72),
        number(0.02),
        number(0.01),
        i32(3, 5),
        number(120, np.uint8),
        number(3, np.int8),
        **HEADS,
    ),
    "rows of 4 bits": lambda: Case(
        "GatherBlockQuantized",
        u8(9, 32),
        RNG.integers(0, 9, (2, 3)),
        f(9, 4),
        u8(9, 2),
        free=2,
        block_size=16,
        bits=4,
        quantize_axis=1,
    ),
    "rows of 8 bits": lambda: Case(
        "GatherBlockQuantized", u8(9, 40), RNG.integers(0, 9, (2, 3)), f(9, 3), free=2, block_size=16, bits=8
    ),
    "rows of int4": lambda: Case(
        "GatherBlockQuantized",
        RNG.integers(-8, 8, (9, 32)).astype(ml_dtypes.int4),
        RNG.integers(0, 9, 4),
        f(9, 2),
        RNG.integers(-8, 8, (9, 2)).astype(ml_dtypes.int4),
        free=0,
        block_size=16,
        bits=4,
    ),
    "quantise": lambda: Case("QuantizeLinear", X, np.abs(f(24)) + F(0.1), u8(24), axis=2),
    "dequantise": lambda: Case("DequantizeLinear", i8(3, 4), np.abs(f(4)), i8(4), axis=1),
}


@pytest.mark.daily(5)
@pytest.mark.parametrize("name", CASES)
def test_same_as_onnxruntime(name: str) -> None:
    case = CASES[name]()
    proto, feeds = case.model()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    got = tw.compile(proto).run(feeds)
    for output, want in list(zip(session.get_outputs(), wanted, strict=True))[: case.compared]:
        result = got[output.name]
        assert result.dtype == want.dtype and result.shape == want.shape, (result.dtype, result.shape, want.shape)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(result, want, rtol=2e-5, atol=2e-5)
        else:  # a level at the middle between two may fall to either
            assert np.abs(result.astype(int) - want.astype(int)).max() <= case.off


def test_a_prompt_and_tokens_share_a_cache_with_room() -> None:
    """One program for prompts and tokens of any length: whether a call is a prompt is seen where it is made."""
    heads, groups, d = 4, 2, 16
    nodes = [
        node("Shape", ["mask"], ["shape"]),
        node("Gather", ["shape", "one"], ["most"]),
        node("Cast", ["most"], ["total"], to=onnx.TensorProto.INT32),
        node("ReduceSum", ["mask", "axis"], ["counts"], keepdims=0),
        node("Sub", ["counts", "one"], ["last"]),
        node("Cast", ["last"], ["lengths"], to=onnx.TensorProto.INT32),
        node(
            "GroupQueryAttention", ["q", "k", "v", "pk", "pv", "lengths", "total", "cos", "sin"], ["y", "nk", "nv"],
            domain="com.microsoft", num_heads=heads, kv_num_heads=groups, do_rotary=1,
        ),
    ]  # fmt: skip
    shapes: dict[str, list[Any]] = {
        "q": ["b", "s", heads * d],
        "k": ["b", "s", groups * d],
        "v": ["b", "s", groups * d],
    }
    shapes.update(mask=["b", "total"], pk=["b", groups, "room", d], pv=["b", groups, "room", d])
    inputs = [helper.make_tensor_value_info(k, 7 if k == "mask" else 1, shape) for k, shape in shapes.items()]
    constants = {
        "one": np.array(1),
        "axis": np.array([1]),
        **dict(zip(("cos", "sin"), cosines(32, d // 2), strict=True)),
    }
    weights = [numpy_helper.from_array(a, k) for k, a in constants.items()]
    results = [helper.make_empty_tensor_value_info(k) for k in ("y", "nk", "nv")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, results, weights), opset_imports=opsets, ir_version=8
    )
    ours, theirs = tw.compile(model, fallback="never"), ort.InferenceSession(model.SerializeToString())
    cache = [np.zeros((2, groups, 12, d), F) for _ in range(2)]
    for new, lengths in ((5, (5, 3)), (1, (6, 4)), (1, (7, 5))):
        mask = (np.arange(max(lengths))[None] < np.array(lengths)[:, None]).astype(np.int64)
        feeds = dict(
            zip(shapes, (f(2, new, heads * d), *(f(2, new, groups * d) for _ in "kv"), mask, *cache), strict=True)
        )
        expected, got = theirs.run(None, feeds), ours(*feeds.values())
        np.testing.assert_allclose(got[0], expected[0], rtol=2e-5, atol=2e-5)
        for b, length in enumerate(lengths):
            for a, e in zip(got[1:], expected[1:], strict=True):
                np.testing.assert_allclose(a[b, :, :length], e[b, :, :length], rtol=2e-5, atol=2e-5)
        cache = list(expected[1:])
