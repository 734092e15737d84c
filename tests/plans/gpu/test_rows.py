"""Rows by warps and blocks: the emulator and the interpreter against what was not scheduled."""

from __future__ import annotations

import pytest

from tests.codegen.ptx.cases import ROWS, check, emit, function, tensor
from tilewright.ir.expr import Var
from tilewright.ir.loops import PrimFunc
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.gpu.row_stages import rows_of


def softmax(*shape: int | Var) -> PrimFunc:
    return function(lambda b: (emit(b, "softmax", b.input("x", tensor(*shape)), axis=-1),))


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((5, 64), id="a warp a row"),
        pytest.param((ROWS, 100), id="symbolic rows, odd columns"),
        pytest.param((2, 1, 2048), id="a block a row"),
        pytest.param((2, 1500), id="columns that fill no block"),
    ],
)
def test_softmax(shape: tuple[int | Var, ...]) -> None:
    check(softmax(*shape), "gpu rows", tolerance=1e-5, loops=shape[-1] == 64)


@pytest.mark.parametrize("op", ["reduce_mean", "reduce_max"])
def test_reductions_over_two_dimensions(op: str) -> None:
    func = function(lambda b: (emit(b, op, b.input("x", tensor(3, 5, 6, 7)), axes=(2, 3), keepdims=False),))
    check(func, "gpu rows", tolerance=1e-5)


def test_a_row_of_everything() -> None:
    func = function(lambda b: (emit(b, "reduce_sum", b.input("x", tensor(5, 333)), axes=(0, 1), keepdims=False),))
    check(func, "gpu rows", tolerance=1e-4)


def test_a_vector_times_a_matrix() -> None:
    """A warp a column, whose weights follow each other."""
    func = function(
        lambda b: (emit(b, "matmul", b.input("x", tensor(1, 96)), b.input("w", tensor(11, 96)), transpose_b=True),)
    )
    check(func, "gpu rows", tolerance=1e-5)


def test_labels() -> None:
    rows = rows_of([s.block for s in analyse(softmax(5, 64)).stages])
    assert rows is not None
    assert [str(e) for e in (*rows.rows, *rows.columns)] == ["5", "64"]
    assert [(s.operator, s.columns) for s in rows.stages] == [
        ("larger", True), ("", True), ("add", True), ("", False), ("", True),
    ]  # fmt: skip
