"""Comprehensions against NumPy: what may be written, and what comes of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ops import parse_graph

RNG = np.random.default_rng(18)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def close(got: Any, want: Any, tolerance: float = 3e-5) -> None:
    got = np.asarray(got)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def windows(x: np.ndarray, size: int, stride: int = 1) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), (-2, -1))[..., ::stride, ::stride, :, :]


@pytest.mark.parametrize("shape", [(1, 1, 1), (33, 17, 29), (5, 1, 8), (0, 3, 4), (3, 0, 4)])
def test_matrix_product(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = normal(m, k), normal(k, n)
    close(tw.comprehension("C[m, n] +! A[m, k] * B[k, n]")(a, b), a @ b)


def test_convolution_with_stride_and_dilation() -> None:
    x, w = normal(3, 12, 13), normal(5, 3, 3, 3)
    conv = tw.comprehension("O[o, h, w] +! I[c, 2 * h + r, 2 * w + s] * W[o, c, r, s]")
    close(conv(x, w), np.einsum("chwrs,ocrs->ohw", windows(x, 3, 2), w))
    dilated = tw.comprehension("O[i] +! I[i + 2 * r] * W[r]")
    signal, taps = normal(20), normal(4)
    close(dilated(signal, taps), [sum(signal[i + 2 * r] * taps[r] for r in range(4)) for i in range(14)])


def test_padding_clamping_wrapping() -> None:
    x = normal(9)
    close(tw.comprehension("Y[i] = pad(X[i - 2], 7) - X[i]")(x), np.r_[7, 7, x[:-2]] - x)
    close(tw.comprehension("Y[i] = clamp(X[i - 2]) - X[i]")(x), np.r_[x[0], x[0], x[:-2]] - x)
    close(tw.comprehension("Y[i] = wrap(X[i - 2]) - X[i]")(x), np.roll(x, 2) - x)
    close(tw.comprehension("Y[i] = (X[i - 1] if i > 0 else 0) + X[i]")(x), np.r_[0, x[:-1]] + x)


def test_reductions() -> None:
    x = normal(7, 33)
    x[2, 5] = np.nan
    for sign, want in [("+!", x.sum(1)), ("max!", x.max(1)), ("min!", x.min(1)), ("argmax!", x.argmax(1))]:
        close(tw.comprehension(f"Y[i] {sign} X[i, j]")(x), want)
    close(tw.comprehension("Y[i] *! X[i, j]")(x[:, :9]), x[:, :9].prod(1))
    close(tw.comprehension("Y[i] any! X[i, j] > 2")(x), (x > 2).any(1))
    close(tw.comprehension("Y[i] all! X[i, j] < 2")(x), (x < 2).all(1))
    close(tw.comprehension("y argmin! X[3, j] where j in 4:20")(x), x[3, 4:20].argmin() + 4)
    close(tw.comprehension("y argmin! X[3, j] where X[3, j] > 99")(x), -1)
    close(tw.comprehension("C[i, j] min! A[i, k] + B[k, j]")(x, x.T.copy()), (x[:, :, None] + x.T[None]).min(1))


def test_conditions_and_ranges() -> None:
    x = normal(6, 6)
    close(tw.comprehension("Y[i] +! X[i, j] where j <= i")(x), np.tril(x).sum(1))
    close(tw.comprehension("Y[i] = X[i, 0] where i in 2:5")(x), x[2:5, 0])
    close(tw.comprehension("Y[i] +! X[i, j] where j in 1:X.shape[1] - 1")(x), x[:, 1:-1].sum(1))
    close(tw.comprehension("Y[i] = N where i in 0:N", N=3)(), [3, 3, 3])
    close(tw.comprehension("Y[i, j] = f32(1 if i == j else 0) where i in 0:3, j in 0:3")(), np.eye(3))


def test_gathers_are_moved_inside() -> None:
    table, i = normal(5, 4), np.array([0, 4, 5, -1, 99], np.int32)
    close(tw.comprehension("Y[n, d] = T[I[n], d]")(table, i), table[np.clip(i, 0, 4)])
    close(tw.comprehension("Y[n] +! T[I[n], d]")(table[:0], i), np.zeros(5))


def test_several_statements_and_results() -> None:
    x = normal(5, 8)
    mean, spread = tw.comprehension("""
        X: f32[N, D]
        M[n] = sum(X[n, d]) / f32(D)         # a reduction inside of an expression
        V[n] = sum((X[n, d] - M[n]) ** 2.0)
            where d in 0:D
        S[n] = sqrt(V[n] / f32(D))
        return M, S
    """)(x)
    close(mean, x.mean(1))
    close(spread, x.std(1))


def test_attention_in_four_statements() -> None:
    q, k, v = normal(2, 9, 4), normal(2, 11, 4), normal(2, 11, 4)
    attention = tw.comprehension("""
        S[h, i, j] = sum(Q[h, i, d] * K[h, j, d]) * 0.5
        P[h, i, j] = exp(S[h, i, j] - max(S[h, i, l]))
        O[h, i, d] = sum(P[h, i, j] * V[h, j, d]) / sum(P[h, i, l])
    """)
    s = np.einsum("hid,hjd->hij", q, k) * 0.5
    p = np.exp(s - s.max(-1, keepdims=True))
    close(attention(q, k, v), np.einsum("hij,hjd->hid", p / p.sum(-1, keepdims=True), v))
    assert attention.inputs == ("Q", "K", "V")
    assert attention.outputs == ("O",)


def test_python_function() -> None:
    @tw.comprehension
    def layer(A: f32[M, K], B: f32[K, N], bias, slope=0.1):  # type: ignore[no-untyped-def] # noqa: F821
        """A product, a bias and a leaky relu."""
        C[m, n] = sum(A[m, k] * B[k, n] for k in range(A.shape[1])) + bias[n]  # noqa: F821
        Y[m, n] = C[m, n] if C[m, n] > 0 else slope * C[m, n]  # noqa: F821
        return Y  # noqa: F821

    a, b, c = normal(5, 7), normal(7, 3), normal(3)
    want = a @ b + c
    close(layer(a, b, c), np.where(want > 0, want, 0.1 * want))
    close(layer(a, B=b, bias=c), np.where(want > 0, want, 0.1 * want))
    assert layer.inputs == ("A", "B", "bias")


def test_element_types_are_never_converted_silently() -> None:
    a, b = RNG.integers(-128, 128, (5, 300), np.int8), RNG.integers(-128, 128, (300, 4), np.int8)
    narrow, wide = (f"C[m, n] +! {x}" for x in ("A[m, k] * B[k, n]", "i32(A[m, k]) * i32(B[k, n])"))
    assert np.array_equal(tw.comprehension(narrow)(a, b), np.add.reduce(a[:, :, None] * b[None], 1, dtype=np.int8))
    assert np.array_equal(tw.comprehension(wide)(a, b), a.astype(np.int32) @ b.astype(np.int32))
    half = normal(4, 2000, dtype=np.float16)
    got = tw.comprehension("Y[i] +! X[i, j]")(half)
    assert got.dtype == np.float16  # summed in f32, rounded once
    assert np.array_equal(got, half.astype(np.float32).sum(1).astype(np.float16))


def test_symbolic_sizes_are_compiled_once() -> None:
    product = tw.comprehension("C[m, n] +! A[m, k] * B[k, n]", dynamic=["M"])
    b = normal(6, 5)
    for m in (1, 4, 31):
        a = normal(m, 6)
        close(product(a, b), a @ b)
    models = {id(m) for m in product._models.values()}
    assert len(models) == 1
    windowed = tw.comprehension("O[h] +! I[h + r] * W[r]", dynamic={"I_0": 3})
    w = normal(3)
    for n in (3, 9):
        x = normal(n)
        close(windowed(x, w), np.correlate(x, w, "valid"))
    with pytest.raises(tw.Error, match="I_0"):
        windowed(normal(2), w)
    with pytest.raises(tw.Error, match="there is no size 'Q'"):
        tw.comprehension("Y[i] = X[i]", dynamic=["Q"])


def test_explain() -> None:
    text = tw.comprehension("O[h] +! I[2 * h + r] * W[r] where r > 0").explain()
    assert text.splitlines() == [
        "(I: [I_0], W: [W_0]) -> (O: [(I_0 - W_0) // 2 + 1])",
        "for h in 0:(I_0 - W_0) // 2 + 1    # I.shape[0]",
        "  O[h] = 0",
        "  for r in 0:W_0    # W.shape[0]",
        "    if r > 0",
        "      O[h] = O[h] + I[2 * h + r] * W[r]",
    ]


def test_graph_text_parses_back() -> None:
    function = tw.comprehension("Y[i] = max(pad(X[i - 1], -inf), -X[i]) ** 2.0 * -(1.5) - (X[i] - (2 - X[i]))")
    graph = function.graph([TensorType(f32, (const(5),))])
    assert str(parse_graph(str(graph))) == str(graph)
    assert parse_graph(str(graph)) == graph


def test_in_a_graph_with_other_operators() -> None:
    from tilewright.ops.registry import emit1

    builder = GraphBuilder("g")
    n = Var("n", lo=1)
    x = builder.input("x", TensorType(f32, (n, const(6))))
    w = builder.param("w", TensorType(f32, (const(6), const(4))))
    (y,) = tw.comprehension("C[m, n] +! A[m, k] * B[k, n]").emit(builder, x, w)
    model = tw.compile((builder.finish((emit1(builder, "relu", y),)), {"w": (weight := normal(6, 4))}))
    a = normal(3, 6)
    close(model(a), np.maximum(a @ weight, 0))


def test_hostile_graph_text_is_refused() -> None:
    text = """graph @g(%x: f32[4]) {
  %y = comprehension_map(%x) {extents = [4], text = "y[i0] = x0[i0 + 1]"} : f32[4]
  return %y
}"""
    graph = parse_graph(text)
    with pytest.raises(tw.Error, match="not proved to be read inside"):
        tw.compile(graph)


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "ij->ji", "ii->i", "ii", "ij,ij", "i,j->ij", "...i,ij->...j", "bi,bj"]
)
def test_einsum(equation: str) -> None:
    sizes = {"i": 4, "j": 5, "k": 3, "b": 2}
    terms = equation.partition("->")[0].split(",")
    arrays = [normal(*([2, 3] if "..." in t else []), *(sizes[c] for c in t.replace("...", ""))) for t in terms]
    close(tw.comprehension(equation)(*arrays), np.einsum(equation, *arrays))


def test_einsum_broadcasts_under_an_ellipsis() -> None:
    a, b = normal(1, 3, 4, 5), normal(2, 1, 5, 6)
    close(tw.comprehension("...ij,...jk->...ik")(a, b), a @ b)


def test_einops() -> None:
    x = normal(2, 3, 4, 6)
    close(tw.comprehension("b c (h p) (w q) -> b (c p q) h w", p=2, q=3)(x),
          x.reshape(2, 3, 2, 2, 2, 3).transpose(0, 1, 3, 5, 2, 4).reshape(2, 18, 2, 2))  # fmt: skip
    close(tw.comprehension("b c (h p) (w q) -> b c h w", reduce="max", p=2, q=2)(x),
          x.reshape(2, 3, 2, 2, 3, 2).max((3, 5)))  # fmt: skip
    close(tw.comprehension("b c h w -> b c", reduce="mean")(x), x.mean((2, 3)))
    close(tw.comprehension("b ... -> ... b")(x), np.moveaxis(x, 0, -1))
    close(tw.comprehension("b c h w -> b 1 c h (w r)", r=2)(x), np.repeat(x[:, None], 2, -1))
    close(tw.comprehension("b c i k, b c k j -> b c i j")(x, x.swapaxes(2, 3).copy()), x @ x.swapaxes(2, 3))
    close(tw.comprehension(" -> a", a=3)(np.float32(2)), [2, 2, 2])


def test_einx() -> None:
    x = normal(4, 6)
    close(tw.comprehension("a [b]")(x), x.sum(1))
    close(tw.comprehension("a ([b] c)", reduce="max", c=2)(x), x.reshape(4, 3, 2).max(1))
    close(tw.comprehension("a [b], [b] c -> a c")(x, x.T.copy()), x @ x.T)
    close(tw.comprehension("a, b -> a b")(x[0], x[1, :3]), np.outer(x[0], x[1, :3]))


def test_calls_are_checked() -> None:
    f = tw.comprehension("C[m, n] +! A[m, k] * B[k, n]")
    with pytest.raises(tw.Error, match="wrong number of arrays"):
        f(normal(2, 3))
    with pytest.raises(tw.Error, match="there is no input 'D'"):
        f(normal(2, 3), D=normal(3, 2))
    with pytest.raises(tw.Error, match="not an array"):
        f("a", "b")
    out = np.empty((2, 4), np.float32)
    a, b = normal(2, 3), normal(3, 4)
    assert f(a, b, out=out) is out
    close(out, a @ b)
    scale = tw.comprehension("Y[i] = a[] * X[i]")
    close(scale(2, a[0]), 2 * a[0])


def test_the_function_is_located_whatever_was_imported_before() -> None:
    """No module of the package has its name."""
    code = "import tilewright.functions.comprehension, tilewright as tw; assert callable(tw.comprehension)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ranges_that_begin_at_a_symbol() -> None:
    f = tw.comprehension("x: f32[I, K]; y[i] +! x[i, k] where k in K//2:K", dynamic=True)
    for columns in (8, 5):
        x = np.arange(2 * columns, dtype=np.float32).reshape(2, columns)
        np.testing.assert_array_equal(f(x), x[:, columns // 2 :].sum(1))
