"""Functions that no plan was written for, each as a comprehension and as PyTorch says it; for products of several
tensors also as einsum's string. `bench_comprehension.py` times them.
"""

# ruff: noqa: E501
# A case a line: a table of formulas.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One function.

    Args:
        name: for tables.
        text: the comprehension.
        shapes: of its inputs, in order.
        torch: the same on tensors of PyTorch; `t` is the module.
        einsum: the same for `opt_einsum`, where it can say it.
        kinds: element types of inputs that are no f32; of integers also the end of their range.
        constants: numbers in the text.
    """

    name: str
    text: str
    shapes: Mapping[str, Shape]
    torch: Callable[..., Any]
    einsum: str = ""
    kinds: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """The inputs, the same ones each time."""
        rng = np.random.default_rng(len(self.text))
        created = []
        for name, shape in self.shapes.items():
            kind, end = self.kinds.get(name, ("float32", 0))
            if end:
                created.append(rng.integers(0, end, shape).astype(kind))
            else:
                created.append(rng.standard_normal(shape).astype(kind))
        return created


def _product(name: str, einsum: str, text: str, **shapes: Shape) -> Case:
    operands = einsum.split("->")[0].split(",")
    twice = len(operands) > len(shapes)  # the last operand is the first input again
    return Case(name, text, shapes, lambda t, *x: t.einsum(einsum, *x, *x[: int(twice)]), einsum)


def _windows(t: Any, x: Any, k: int) -> Any:
    """The last two dimensions' windows of k x k."""
    return x.unfold(-2, k, 1).unfold(-2, k, 1)


def _bilateral(t: Any, x: Any) -> Any:
    centre = x[2:-2, 2:-2]
    inner = _windows(t, x, 5)
    weight = t.exp(-((inner - centre[..., None, None]) ** 2))
    return (weight * inner).sum((-1, -2)) / weight.sum((-1, -2))


def _attention(t: Any, q: Any, k: Any, v: Any, *, bias: Any = None, causal: bool = False) -> Any:
    scores = q @ k.transpose(-1, -2) / 8.0
    if bias is not None:
        scores = scores + bias
    if causal:
        n = scores.shape[-1]
        scores = scores.masked_fill(t.ones(n, n, dtype=t.bool).triu(1), float("-inf"))
    return t.softmax(scores, -1) @ v


def _cosine_attention(t: Any, q: Any, k: Any, v: Any) -> Any:
    q, k = (x * t.rsqrt((x * x).sum(-1, keepdim=True)) for x in (q, k))
    return t.softmax(q @ k.transpose(-1, -2) * 10.0, -1) @ v


def _shifts(t: Any, a: Any, b: Any) -> Any:
    h, w = a.shape[1:]
    return t.stack([t.stack([(a * b[:, y : y + h, x : x + w]).sum(0) for x in range(5)]) for y in range(5)])


PRODUCTS = (
    _product("mttkrp 64", "ijk,jr,kr->ir", "C[i, r] +! X[i, j, k] * A[j, r] * B[k, r]", X=(64, 64, 64), A=(64, 32), B=(64, 32)),
    _product("mttkrp middle", "ijk,ir,kr->jr", "C[j, r] +! X[i, j, k] * A[i, r] * B[k, r]", X=(50, 70, 90), A=(50, 16), B=(90, 16)),
    _product("mttkrp order 4", "ijkl,jr,kr,lr->ir", "C[i, r] +! X[i, j, k, l] * A[j, r] * B[k, r] * D[l, r]", X=(24, 24, 24, 24), A=(24, 16), B=(24, 16), D=(24, 16)),
    _product("tucker", "ijk,ia,jb,kc->abc", "C[a, b, c] +! X[i, j, k] * A[i, a] * B[j, b] * D[k, c]", X=(40, 40, 40), A=(40, 12), B=(40, 12), D=(40, 12)),
    _product("chain of three", "ij,jk,kl->il", "D[i, l] +! A[i, j] * B[j, k] * C[k, l]", A=(96, 160), B=(160, 64), C=(64, 96)),
    _product("bilinear", "ni,oij,nj->no", "Y[n, o] +! X[n, i] * W[o, i, j] * Z[n, j]", X=(32, 64), W=(48, 64, 64), Z=(32, 64)),
    _product("quadratic form", "ni,ij,nj->n", "Q[n] +! X[n, i] * M[i, j] * X[n, j]", X=(128, 96), M=(96, 96)),
    _product("weighted gram", "ni,n,nj->ij", "G[i, j] +! X[n, i] * W[n] * X[n, j]", X=(1000, 60), W=(1000,)),
    _product("gram of columns", "ki,kj->ij", "C[i, j] +! A[k, i] * B[k, j]", A=(300, 130), B=(300, 90)),
    _product("product of rows", "ik,jk->ij", "C[i, j] +! A[i, k] * B[j, k]", A=(150, 200), B=(170, 200)),
    _product("two sums", "abc,dbc->ad", "C[a, d] +! A[a, b, c] * B[d, b, c]", A=(60, 30, 20), B=(50, 30, 20)),
    _product("coupled cluster", "aebf,fdec->abcd", "C[a, b, c, d] +! A[a, e, b, f] * B[f, d, e, c]", A=(20, 20, 20, 20), B=(20, 20, 20, 20)),
    _product("heads behind rows", "qhd,khd->hqk", "S[h, q, k] +! Q[q, h, d] * K[k, h, d]", Q=(100, 6, 48), K=(120, 6, 48)),
    _product("batch in the middle", "ibk,kbj->bij", "C[b, i, j] +! A[i, b, k] * B[k, b, j]", A=(50, 10, 70), B=(70, 10, 60)),
    _product("rows by vectors", "bij,bj->bi", "Y[b, i] +! A[b, i, j] * X[b, j]", A=(20, 100, 120), X=(20, 120)),
    _product("trace of products", "nij,nji->n", "T[n] +! A[n, i, j] * B[n, j, i]", A=(20, 60, 60), B=(20, 60, 60)),
)  # fmt: skip

METRICS = (
    Case("max-plus", "C[i, j] max! A[i, k] + B[k, j]", {"A": (120, 140), "B": (140, 130)}, lambda t, a, b: (a[:, :, None] + b[None]).amax(1)),
    Case("min-plus of rows", "C[i, j] min! A[i, k] + B[j, k]", {"A": (120, 140), "B": (130, 140)}, lambda t, a, b: (a[:, None] + b[None]).amin(-1)),
    Case("manhattan", "D[i, j] +! abs(A[i, k] - B[j, k])", {"A": (150, 64), "B": (140, 64)}, lambda t, a, b: t.cdist(a, b, p=1)),
    Case("squared distance", "D[i, j] +! (A[i, k] - B[j, k]) ** 2", {"A": (150, 64), "B": (140, 64)}, lambda t, a, b: ((a[:, None] - b[None]) ** 2).sum(-1)),
    Case("chebyshev", "D[i, j] max! abs(A[i, k] - B[j, k])", {"A": (150, 64), "B": (140, 64)}, lambda t, a, b: t.cdist(a, b, p=float("inf"))),
    Case("hamming", "D[i, j] +! i32(A[i, k] != B[j, k])", {"A": (120, 64), "B": (130, 64)}, lambda t, a, b: (a[:, None] != b[None]).to(t.int32).sum(-1, dtype=t.int32), kinds={"A": ("int32", 4), "B": ("int32", 4)}),
    Case("radial basis", "K[i, j] = exp(-sum((A[i, k] - B[j, k]) ** 2))", {"A": (200, 16), "B": (180, 16)}, lambda t, a, b: t.exp(-((a[:, None] - b[None]) ** 2).sum(-1))),
    Case("nearest", "D[i, j] = sum((A[i, k] - B[j, k]) ** 2)\nN[i] argmin! D[i, j]", {"A": (200, 32), "B": (256, 32)}, lambda t, a, b: ((a[:, None] - b[None]) ** 2).sum(-1).argmin(-1)),
    Case("soft maximum of sums", "M[i, j] = max(A[i, k] + B[k, j])\nC[i, j] = M[i, j] + log(sum(exp(A[i, k] + B[k, j] - M[i, j])))", {"A": (64, 48), "B": (48, 64)}, lambda t, a, b: t.logsumexp(a[:, :, None] + b[None], 1)),
)  # fmt: skip

STENCILS = (
    Case("heat, 5 points", "Y[i, j] = X[i + 1, j + 1] + 0.1 * (X[i, j + 1] + X[i + 2, j + 1] + X[i + 1, j] + X[i + 1, j + 2] - 4 * X[i + 1, j + 1])", {"X": (402, 502)}, lambda t, x: x[1:-1, 1:-1] + 0.1 * (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, 1:-1])),
    Case("laplace, 7 points", "Y[i, j, k] = X[i, j + 1, k + 1] + X[i + 2, j + 1, k + 1] + X[i + 1, j, k + 1] + X[i + 1, j + 2, k + 1] + X[i + 1, j + 1, k] + X[i + 1, j + 1, k + 2] - 6 * X[i + 1, j + 1, k + 1]", {"X": (50, 60, 70)}, lambda t, x: x[:-2, 1:-1, 1:-1] + x[2:, 1:-1, 1:-1] + x[1:-1, :-2, 1:-1] + x[1:-1, 2:, 1:-1] + x[1:-1, 1:-1, :-2] + x[1:-1, 1:-1, 2:] - 6 * x[1:-1, 1:-1, 1:-1]),
    Case("correlation 7x7", "Y[h, w] +! X[h + r, w + s] * K[r, s]", {"X": (206, 306), "K": (7, 7)}, lambda t, x, k: t.nn.functional.conv2d(x[None, None], k[None, None])[0, 0]),
    Case("filter, 64 taps", "Y[c, i] +! X[c, i + k] * W[k]", {"X": (8, 4159), "W": (64,)}, lambda t, x, w: t.nn.functional.conv1d(x[:, None], w[None, None])[:, 0]),
    Case("sobel", "G[i, j] = X[i, j + 2] + 2 * X[i + 1, j + 2] + X[i + 2, j + 2] - X[i, j] - 2 * X[i + 1, j] - X[i + 2, j]\nH[i, j] = X[i + 2, j] + 2 * X[i + 2, j + 1] + X[i + 2, j + 2] - X[i, j] - 2 * X[i, j + 1] - X[i, j + 2]\nY[i, j] = sqrt(G[i, j] * G[i, j] + H[i, j] * H[i, j])", {"X": (302, 402)}, lambda t, x: t.sqrt((x[:-2, 2:] + 2 * x[1:-1, 2:] + x[2:, 2:] - x[:-2, :-2] - 2 * x[1:-1, :-2] - x[2:, :-2]) ** 2 + (x[2:, :-2] + 2 * x[2:, 1:-1] + x[2:, 2:] - x[:-2, :-2] - 2 * x[:-2, 1:-1] - x[:-2, 2:]) ** 2)),
    Case("dilation 5x5", "Y[h, w] max! X[h + r, w + s] + S[r, s]", {"X": (204, 304), "S": (5, 5)}, lambda t, x, s: (_windows(t, x, 5) + s).amax((-1, -2))),
    Case("bilateral 5x5", "Y[h, w] = sum(exp(-(X[h + r, w + s] - X[h + 2, w + 2]) ** 2) * X[h + r, w + s]) / sum(exp(-(X[h + r, w + s] - X[h + 2, w + 2]) ** 2)) where r in 0:5, s in 0:5, h in 0:X.shape[0] - 4, w in 0:X.shape[1] - 4", {"X": (104, 204)}, _bilateral),
    Case("stereo costs", "V[d, h, w] +! L[c, h, w] * R[c, h, w + d] where d in 0:32, w in 0:L.shape[2]", {"L": (16, 40, 100), "R": (16, 40, 131)}, lambda t, l, r: t.einsum("chw,chwd->dhw", l, r.unfold(-1, 100, 1).permute(0, 1, 3, 2))),
    Case("flow correlation", "V[y, x, h, w] +! A[c, h, w] * B[c, h + y, w + x] where y in 0:5, x in 0:5, h in 0:A.shape[1], w in 0:A.shape[2]", {"A": (32, 40, 60), "B": (32, 44, 64)}, _shifts),
    Case("locally connected", "Y[o, h, w] +! X[c, h + r, w + s] * W[h, w, o, c, r, s]", {"X": (8, 22, 22), "W": (20, 20, 12, 8, 3, 3)}, lambda t, x, w: t.einsum("chwrs,hwocrs->ohw", _windows(t, x, 3), w)),
)  # fmt: skip

SEQUENCES = (
    Case("attention, bias", "S[h, i, j] = sum(Q[h, i, d] * K[h, j, d]) / 8 + B[h, i, j]\nP[h, i, j] = exp(S[h, i, j] - max(S[h, i, l]))\nO[h, i, d] = sum(P[h, i, j] * V[h, j, d]) / sum(P[h, i, l])", {"Q": (8, 100, 64), "K": (8, 100, 64), "B": (8, 100, 100), "V": (8, 100, 64)}, lambda t, q, k, b, v: _attention(t, q, k, v, bias=b)),
    Case("attention, distance", "S[h, i, j] = sum(Q[h, i, d] * K[h, j, d]) / 8 - A[h] * f32(abs(i - j))\nP[h, i, j] = exp(S[h, i, j] - max(S[h, i, l]))\nO[h, i, d] = sum(P[h, i, j] * V[h, j, d]) / sum(P[h, i, l])", {"Q": (8, 100, 64), "K": (8, 100, 64), "A": (8,), "V": (8, 100, 64)}, lambda t, q, k, a, v: _attention(t, q, k, v, bias=-a[:, None, None] * (t.arange(100)[:, None] - t.arange(100)).abs())),
    Case("attention, cosine", "N[h, i] = rsqrt(sum(Q[h, i, d] * Q[h, i, d]))\nM[h, j] = rsqrt(sum(K[h, j, d] * K[h, j, d]))\nS[h, i, j] = 10 * sum(Q[h, i, d] * K[h, j, d]) * N[h, i] * M[h, j]\nP[h, i, j] = exp(S[h, i, j] - max(S[h, i, l]))\nO[h, i, d] = sum(P[h, i, j] * V[h, j, d]) / sum(P[h, i, l])", {"Q": (8, 100, 64), "K": (8, 100, 64), "V": (8, 100, 64)}, _cosine_attention),
    Case("additive scores", "S[i, j] +! tanh(Q[i, d] + K[j, d]) * V[d]", {"Q": (60, 64), "K": (80, 64), "V": (64,)}, lambda t, q, k, v: t.tanh(q[:, None] + k[None]) @ v),
    Case("causal linear attention", "O[t, e] +! Q[t, d] * K[s, d] * V[s, e] where s <= t", {"Q": (128, 48), "K": (128, 48), "V": (128, 48)}, lambda t, q, k, v: (q @ k.T).tril() @ v),
    Case("moving mean, a loop", "Y[b, t] +! X[b, s] * D[t - s + 127] where s in 0:128, t in 0:128", {"X": (64, 128), "D": (255,)}, lambda t, x, d: x @ d.unfold(0, 128, 1).flip(1).T),
    Case("prefix sums, a loop", "Y[n, i] +! X[n, j] where j <= i, i in 0:256", {"X": (64, 256)}, lambda t, x: x.cumsum(-1)),
    Case("bag of embeddings", "Y[b, d] +! T[I[b, l], d] * W[b, l]", {"T": (5000, 64), "I": (64, 20), "W": (64, 20)}, lambda t, x, i, w: t.nn.functional.embedding_bag(i, x, per_sample_weights=w, mode="sum"), kinds={"I": ("int64", 5000)}),
    Case("graph messages", "Y[n, d] max! X[N[n, k], d] * W[n, k]", {"X": (1000, 48), "N": (1000, 8), "W": (1000, 8)}, lambda t, x, n, w: (x[n] * w[..., None]).amax(1), kinds={"N": ("int64", 1000)}),
    Case("group variance", "M[n, g] = sum(X[n, g, c, s]) / 512\nV[n, g] = sum((X[n, g, c, s] - M[n, g]) ** 2) / 512", {"X": (8, 16, 8, 64)}, lambda t, x: x.var((-1, -2), unbiased=False)),
    Case("softmax over channels", "E[n, c, s] = exp(X[n, c, s] - max(X[n, k, s]))\nY[n, c, s] = E[n, c, s] / sum(E[n, k, s])", {"X": (8, 40, 300)}, lambda t, x: t.softmax(x, 1)),
)  # fmt: skip

SUITE = (*PRODUCTS, *METRICS, *STENCILS, *SEQUENCES)
"""In the order of the table."""


def named(name: str) -> Case:
    """The case of this name."""
    return next(c for c in SUITE if c.name == name)
