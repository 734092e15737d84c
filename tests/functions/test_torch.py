"""Comprehensions on PyTorch's tensors, and as custom operators."""

from __future__ import annotations

import pytest

import tilewright as tw

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")


def test_tensors_in_tensors_out() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    got = tw.comprehension("C[m, n] +! A[m, k] * B[k, n]")(a, b)
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, a @ b)
    half = torch.randn(3, 4, dtype=torch.bfloat16)
    torch.testing.assert_close(tw.comprehension("Y[i, j] = 2 * X[i, j]")(half), 2 * half)


def test_custom_operator() -> None:
    op = tw.comprehension("C[m, n] +! A[m, k] * B[k, n]; S[m] = sum(C[m, n]); return C, S").torch_op("tw_test::product")
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    torch.library.opcheck(op, (a, b), test_utils=("test_schema", "test_faketensor"))
    product, sums = op(a, b)
    torch.testing.assert_close(product, a @ b)
    torch.testing.assert_close(sums, (a @ b).sum(1))
    exported = torch.export.export(_Module(op), (a, b))
    torch.testing.assert_close(exported.module()(a, b), (a @ b).relu())
    with pytest.raises(tw.Error, match="not a name of an operator"):
        tw.comprehension("Y[i] = X[i]").torch_op("relu")


class _Module(torch.nn.Module):
    def __init__(self, op: object) -> None:
        super().__init__()
        self.op = op

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.op(a, b)[0].relu()


def test_gradients_are_autograds() -> None:
    """A custom operator in a model that is trained: eager, and traced by torch.compile."""
    text = """
        S[h, i, j] = sum(Q[h, i, d] * K[h, j, d]) * scale
        P[h, i, j] = exp(S[h, i, j] - max(S[h, i, l]))
        O[h, i, d] = sum(P[h, i, j] * V[h, j, d]) / sum(P[h, i, l])
    """
    op = tw.comprehension(text, scale=0.5).torch_op("tw_test::attention")
    inputs = [torch.randn(2, n, 4, requires_grad=True) for n in (5, 7, 7)]
    weights = torch.randn(2, 5, 4)
    want = torch.autograd.grad(
        (torch.nn.functional.scaled_dot_product_attention(*inputs, scale=0.5) * weights).sum(), inputs
    )
    for function in (op, torch.compile(lambda *x: op(*x), backend="aot_eager")):
        result = torch.autograd.grad((function(*inputs) * weights).sum(), inputs)
        for a, b in zip(result, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradient_of_a_convolution_and_of_a_gather() -> None:
    conv = tw.comprehension(
        "Y[n, f, h, w] +! pad(X[n, c, 2 * h + r - 1, 2 * w + s - 1], 0) * W[f, c, r, s]"
        " where h in 0:(X.shape[2] + 1) // 2, w in 0:(X.shape[3] + 1) // 2"
    ).torch_op("tw_test::conv")
    x, w = torch.randn(2, 3, 9, 8, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    expected = torch.nn.functional.conv2d(x, w, stride=2, padding=1)
    flow = torch.randn_like(expected)
    result = torch.autograd.grad(conv(x, w), (x, w), flow)
    for a, b in zip(result, torch.autograd.grad(expected, (x, w), flow), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    rows = tw.comprehension("Y[n, d] = T[I[n], d] * T[I[n], d]").torch_op("tw_test::rows")
    table, places = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 3, 3, 4])
    (got,) = torch.autograd.grad(rows(table, places).sum(), table)
    (want,) = torch.autograd.grad((table[places] ** 2).sum(), table)
    torch.testing.assert_close(got, want)
