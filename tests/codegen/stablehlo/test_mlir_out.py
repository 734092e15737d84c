"""StableHLO and linalg out, as texts: every operator that has words there, with known and with symbolic sizes.

They hold the writers still, in an environment that has neither XLA nor IREE. Whether such texts are right is what
`tests/frontend/stablehlo/test_jax_out.py` asks those (`make jax`), of fewer operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.codegen.linalg import linalg_text
from tilewright.codegen.stablehlo import stablehlo_text
from tilewright.codegen.stablehlo.writer import literal
from tilewright.ir.dtype import BY_NAME, DType, bf16, boolean, f16, f32, i8, i32, i64, u8, u32
from tilewright.ir.expr import Expr, Var, as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ops.pointwise import BODIES
from tilewright.ops.registry import emit1
from tilewright.support.errors import Error, UnsupportedError

WRITERS: dict[str, Callable[[Graph], str]] = {"stablehlo": stablehlo_text, "linalg": linalg_text}
N = Var("n", lo=1)

ATTRS: dict[str, dict[str, Any]] = {
    "leaky_relu": {"alpha": 0.125},
    "elu": {"alpha": 0.5},
    "celu": {"alpha": 0.5},
    "selu": {"alpha": 0.5, "gamma": 1.5},
    "swish": {"alpha": 1.5},
    "hard_sigmoid": {"alpha": 0.25, "beta": 0.5},
    "affine": {"alpha": 0.25, "beta": 0.5},
    "scaled_tanh": {"alpha": 1.5, "beta": 0.5},
    "thresholded_relu": {"alpha": 0.75},
    "shrink": {"lambd": 2, "bias": 1},
    "clip": {"min": 1, "max": 3},
}


def tensor(b: GraphBuilder, name: str, dtype: DType, *shape: Expr | int) -> Value:
    return b.input(name, TensorType(dtype, tuple(map(as_expr, shape))))


def pointwise(op: str, dtype: DType) -> Graph | None:
    """The operator on as many operands as it takes; None where it does not take this type."""
    for arity in (1, 2, 3):
        b = GraphBuilder("g")
        try:
            y = emit1(b, op, *(tensor(b, f"x{k}", dtype, 2) for k in range(arity)), **ATTRS.get(op, {}))
        except Error:
            continue
        return b.finish((y,))
    return None


def body(write: Callable[[Graph], str], graph: Graph) -> str:
    """The lines of the function, or why there are none."""
    try:
        return "\n".join(line.strip() for line in write(graph).splitlines()[2:-2])
    except UnsupportedError as error:
        return "\n".join(f"refused: {e.headline()}" for e in error.each())


@pytest.mark.parametrize("dtype", [f32, f16, i32, u8, boolean], ids=str)
@pytest.mark.parametrize("language", WRITERS)
def test_pointwise(language: str, dtype: DType, golden: Callable[..., None]) -> None:
    # Special functions are series of hundreds of terms, of the same few operators.
    ordinary = [op for op in sorted(BODIES) if BODIES[op].__module__ == "tilewright.ops.pointwise"]
    graphs = {op: pointwise(op, dtype) for op in ordinary}
    golden("\n\n".join(f"{op}\n{body(WRITERS[language], g)}" for op, g in graphs.items() if g is not None))


Make = Callable[[GraphBuilder], Value]
KNOWN: dict[str, Make] = {
    "matmul": lambda b: emit1(b, "matmul", tensor(b, "x", f32, 2, 3), tensor(b, "y", f32, 3, 4)),
    "matmul of turned factors": lambda b: emit1(
        b, "matmul", tensor(b, "x", f32, 3, 2), tensor(b, "y", f32, 4, 3), transpose_a=True, transpose_b=True
    ),
    "matmul of halves": lambda b: emit1(
        b, "matmul", tensor(b, "x", f16, 2, 3), tensor(b, "y", f16, 3, 4), dtype=f32
    ),
    "matmul of rows of any rank": lambda b: emit1(
        b, "matmul", tensor(b, "x", f32, 5, 2, 3), tensor(b, "y", f32, 4, 3), transpose_b=True
    ),
    "matmul with a spread matrix": lambda b: emit1(
        b, "matmul", tensor(b, "x", f32, 5, 3, 2), tensor(b, "y", f32, 3, 4), transpose_a=True
    ),
    "matmul of many": lambda b: emit1(b, "matmul", tensor(b, "x", f32, 5, 1, 2, 3), tensor(b, "y", f32, 6, 3, 4)),
    "conv": lambda b: emit1(
        b, "conv", tensor(b, "x", f32, 1, 4, 7, 9), tensor(b, "w", f32, 6, 2, 3, 2),
        strides=(2, 1), pads=(1, 0, 2, 3), dilations=(1, 2), groups=2,
    ),
    "reduce_sum": lambda b: emit1(b, "reduce_sum", tensor(b, "x", f16, 2, 3, 4), axes=(2, 0), keepdims=True),
    "reduce_prod": lambda b: emit1(b, "reduce_prod", tensor(b, "x", i32, 2, 3), axes=(1,), keepdims=False),
    "reduce_mean": lambda b: emit1(b, "reduce_mean", tensor(b, "x", f32, 2, 3, 4), axes=(1, 2), keepdims=False),
    "reduce_max": lambda b: emit1(b, "reduce_max", tensor(b, "x", u8, 2, 3), axes=(0,), keepdims=True),
    "reduce_min": lambda b: emit1(b, "reduce_min", tensor(b, "x", f32, 2, 3), axes=(0, 1), keepdims=False),
    "argmax": lambda b: emit1(b, "argmax", tensor(b, "x", f32, 2, 3), axis=-1, keepdims=True),
    "argmin of the last": lambda b: emit1(
        b, "argmin", tensor(b, "x", i32, 2, 3), axis=0, keepdims=False, select_last_index=True
    ),
    "softmax": lambda b: emit1(b, "softmax", tensor(b, "x", f16, 2, 3), axis=-1),
    "log_softmax": lambda b: emit1(b, "log_softmax", tensor(b, "x", f32, 2, 3), axis=0),
    "layer_norm": lambda b: emit1(
        b, "layer_norm", tensor(b, "x", f16, 2, 3, 4), tensor(b, "s", f16, 4), tensor(b, "b", f16, 4),
        axis=-1, epsilon=0.5,
    ),
    "rms_norm": lambda b: emit1(b, "rms_norm", tensor(b, "x", f32, 2, 3, 4), tensor(b, "s", f32, 3, 4),
                                axis=1, epsilon=0.5),
    "max_pool": lambda b: emit1(
        b, "max_pool", tensor(b, "x", f32, 1, 2, 9, 9), kernel=(2, 3), strides=(1, 2), pads=(0, 1, 1, 1),
        dilations=(2, 1),
    ),
    "avg_pool": lambda b: emit1(
        b, "avg_pool", tensor(b, "x", f32, 1, 2, 8, 8), kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0),
        dilations=(1, 1),
    ),
    "avg_pool of the inside": lambda b: emit1(
        b, "avg_pool", tensor(b, "x", f32, 1, 2, 8, 8), kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1),
        dilations=(1, 1),
    ),
    "avg_pool of all": lambda b: emit1(
        b, "avg_pool", tensor(b, "x", f32, 1, 2, 8, 8), kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1),
        dilations=(1, 1), count_include_pad=True,
    ),
    "max_pool rounded up": lambda b: emit1(
        b, "max_pool", tensor(b, "x", f32, 1, 2, 8, 8), kernel=(3, 3), strides=(2, 2), pads=(0, 0, 0, 0),
        dilations=(1, 1), ceil_mode=True,
    ),
    "gather": lambda b: emit1(b, "gather", tensor(b, "x", f32, 3, 4, 5), tensor(b, "i", i32, 2, 6), axis=1),
    "gather by bytes": lambda b: emit1(b, "gather", tensor(b, "x", f32, 3, 4), tensor(b, "i", u8, 2), axis=-1),
    "slice": lambda b: emit1(b, "slice", tensor(b, "x", f32, 4, 6, 8), begin=(1, 0, 7), size=(2, 3, 2),
                             step=(1, 2, -3)),
    "pad": lambda b: emit1(b, "pad", tensor(b, "x", f32, 2, 3), before=(0, 1), after=(2, 0), mode="constant",
                           value=1.5),
    "pad by mirrors": lambda b: emit1(b, "pad", tensor(b, "x", f32, 2, 3), before=(0, 1), after=(0, 0),
                                      mode="reflect"),
    "range": lambda b: emit1(b, "range", start=2, step=3, size=4, dtype=i32),
    "range of halves": lambda b: emit1(b, "range", start=0.5, step=-0.25, size=4, dtype=f32),
    "trilu": lambda b: emit1(b, "trilu", tensor(b, "x", f32, 2, 3, 4), k=1, upper=True),
    "trilu below": lambda b: emit1(b, "trilu", tensor(b, "x", i32, 3, 4), k=-1, upper=False),
    "cast": lambda b: emit1(b, "cast", tensor(b, "x", f32, 2), dtype=i8),
    "cast to bool": lambda b: emit1(b, "cast", tensor(b, "x", f32, 2), dtype=boolean),
    "cast of bool": lambda b: emit1(b, "cast", tensor(b, "x", boolean, 2), dtype=i64),
    "cast of bytes": lambda b: emit1(b, "cast", tensor(b, "x", u8, 2), dtype=f32),
    "cast of bytes to words": lambda b: emit1(b, "cast", tensor(b, "x", u8, 2), dtype=i32),
    "cast of words": lambda b: emit1(b, "cast", tensor(b, "x", i64, 2), dtype=i8),
    "cast between floats": lambda b: emit1(b, "cast", tensor(b, "x", f32, 2), dtype=bf16),
    "cast to wider floats": lambda b: emit1(b, "cast", tensor(b, "x", f16, 2), dtype=f32),
    "cast to bytes": lambda b: emit1(b, "cast", tensor(b, "x", f32, 2), dtype=u8),
    "cast of bits": lambda b: emit1(b, "cast", tensor(b, "x", f32, 2), dtype=i32, bits=True),
    "cast of bits to a sign": lambda b: emit1(b, "cast", tensor(b, "x", u32, 2), dtype=i32, bits=True),
    "select": lambda b: emit1(b, "select", tensor(b, "c", boolean, 2, 1), tensor(b, "x", f32, 3),
                              tensor(b, "y", f32, 2, 3)),
    "concat": lambda b: emit1(b, "concat", tensor(b, "x", f32, 2, 3), tensor(b, "y", f32, 2, 1), axis=-1),
    "transpose": lambda b: emit1(b, "transpose", tensor(b, "x", f32, 2, 3, 4), perm=(2, 0, 1)),
    "transpose of nothing": lambda b: emit1(b, "transpose", tensor(b, "x", f32, 2, 3), perm=(0, 1)),
    "reshape": lambda b: emit1(b, "reshape", tensor(b, "x", f32, 2, 6), shape=(3, 4)),
    "broadcast": lambda b: emit1(b, "broadcast", tensor(b, "x", f32, 3, 1), shape=(2, 3, 4)),
    "constant": lambda b: emit1(b, "constant", value=np.array([[1.0, -0.5]], np.float32)),
    "cumsum": lambda b: emit1(b, "cumsum", tensor(b, "x", f32, 3), axis=0),
    "a sum over a triangle": lambda b: emit1(
        b, "comprehension_reduce", tensor(b, "x", f32, 3, 3), text="y[i0] +! x0[i0, i1] where i1 <= i0", extents=(3, 3),
    ),
}  # fmt: skip
SYMBOLIC: dict[str, Make] = {
    "add": lambda b: emit1(b, "add", tensor(b, "x", f32, N, 3), tensor(b, "y", f32, 3)),
    "matmul": lambda b: emit1(b, "matmul", tensor(b, "x", f32, N, 2, 3), tensor(b, "y", f32, N, 3, 4)),
    "softmax": lambda b: emit1(b, "softmax", tensor(b, "x", f32, 2, N), axis=1),
    "reduce_mean": lambda b: emit1(b, "reduce_mean", tensor(b, "x", f32, 2, N), axes=(1,), keepdims=False),
    "gather": lambda b: emit1(b, "gather", tensor(b, "x", f32, N, 4), tensor(b, "i", i32, 2), axis=0),
    "gather of parts": lambda b: emit1(b, "gather", tensor(b, "x", f32, 3, N), tensor(b, "i", i32, 2), axis=0),
    "slice": lambda b: emit1(b, "slice", tensor(b, "x", f32, N + 1, 4), begin=(1, 3), size=(N, 4), step=(1, -1)),
    "pad": lambda b: emit1(b, "pad", tensor(b, "x", f32, N, 4), before=(N - 1, 1), after=(0, 2), mode="constant"),
    "range": lambda b: emit1(b, "range", start=N, step=2, size=N + 2, dtype=i64),
    "reshape": lambda b: emit1(b, "reshape", tensor(b, "x", f32, N, 4), shape=(N * 2, 2)),
    "broadcast": lambda b: emit1(b, "broadcast", tensor(b, "x", f32, N), shape=(2, N)),
    "transpose": lambda b: emit1(b, "transpose", tensor(b, "x", f32, N, 4), perm=(1, 0)),
    "concat": lambda b: emit1(b, "concat", tensor(b, "x", f32, N, 4), tensor(b, "y", f32, 3, 4), axis=0),
    "conv": lambda b: emit1(
        b, "conv", tensor(b, "x", f32, N, 3, 8, 8), tensor(b, "w", f32, 4, 3, 3, 3),
        strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("cases", [KNOWN, SYMBOLIC], ids=["known", "symbolic"])
@pytest.mark.parametrize("language", WRITERS)
def test_operators(language: str, cases: dict[str, Make], golden: Callable[..., None]) -> None:
    result = []
    for name, make in cases.items():
        b = GraphBuilder("g")
        if cases is SYMBOLIC and name in ("range", "slice"):  # sizes are read off an input
            tensor(b, "like", f32, N)
        y = make(b)
        result.append(f"{name}\n{body(WRITERS[language], b.finish((y,)))}")
    golden("\n\n".join(result))


@pytest.mark.parametrize("language", WRITERS)
def test_a_module(language: str, golden: Callable[..., None]) -> None:
    """Inputs, weights, a symbolic size, several results, one of which is an argument."""
    b = GraphBuilder("two layers")
    x = tensor(b, "obs", f32, N, 3)
    w, bias = b.param("w", TensorType(f32, (as_expr(3), as_expr(4)))), b.param("b", TensorType(f32, (as_expr(4),)))
    y = emit1(b, "relu", emit1(b, "add", emit1(b, "matmul", x, w), bias))
    golden(WRITERS[language](b.finish((y, x))))


@pytest.mark.parametrize("language", WRITERS)
def test_all_that_has_no_words_is_listed(language: str) -> None:
    b = GraphBuilder("g")
    x = tensor(b, "x", f32, 3)
    first, second = emit1(b, "cumsum", x, axis=0), emit1(b, "cumprod", x, axis=0)
    after = emit1(b, "relu", first)  # what needs it is not counted again
    if language == "linalg":
        return  # it has loops for these
    with pytest.raises(UnsupportedError) as caught:
        WRITERS[language](b.finish((after, second)))
    assert [e.where for e in caught.value.each()] == ["operator cumsum", "operator cumprod"]


@pytest.mark.parametrize("language", WRITERS)
def test_sizes_that_no_argument_has_are_refused(language: str) -> None:
    b = GraphBuilder("g")
    y = SYMBOLIC["slice"](b)
    with pytest.raises(UnsupportedError, match=r"cannot be (said|written).*got n"):
        WRITERS[language](b.finish((y,)))


@pytest.mark.parametrize(
    ("array", "dtype", "text"),
    [
        ([], "f32", "dense<>"),
        ([True, True], "bool", "dense<true>"),
        ([[True], [False]], "bool", "dense<[[true], [false]]>"),
        (2.5, "f32", "dense<0x40200000>"),
        ([1.0], "f32", "dense<0x3F800000>"),
        ([1.0, 2.0], "f32", 'dense<"0x0000803F00000040">'),
        ([-1, 2], "i8", 'dense<"0xFF02">'),
        (-7, "i32", "dense<-7>"),
        (1.0, "f16", "dense<0x3C00>"),
        ([[1, 1]], "i4", "dense<1>"),
        ([[1, -2], [3, 4]], "i4", "dense<[[1, -2], [3, 4]]>"),
    ],
)
def test_literals(array: Any, dtype: str, text: str) -> None:
    t = BY_NAME[dtype]
    assert literal(np.asarray(array, t.numpy), t) == text
