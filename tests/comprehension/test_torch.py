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
