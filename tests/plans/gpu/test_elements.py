"""Plans that give each element a thread: the emulator and the interpreter against what was not scheduled."""

from __future__ import annotations

from tests.codegen.ptx.cases import ROWS, check, emit, function, tensor

CONV = {"strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 1), "groups": 6}


def test_pointwise_with_symbolic_rows() -> None:
    func = function(
        lambda b: (emit(b, "tanh", emit(b, "add", b.input("x", tensor(ROWS, 40)), b.input("y", tensor(40)))),)
    )
    check(func, "gpu pointwise", rows=7)


def test_a_transposition() -> None:
    func = function(lambda b: (emit(b, "transpose", b.input("x", tensor(3, 34, 18)), perm=(2, 0, 1)),))
    check(func, "gpu pointwise")


def test_a_depthwise_convolution_of_odd_sizes() -> None:
    """Indices of four dimensions that are joined and split again."""
    func = function(
        lambda b: (
            emit(
                b,
                "relu",
                emit(b, "conv", b.input("x", tensor(ROWS, 6, 9, 7)), b.input("w", tensor(6, 1, 3, 3)), **CONV),
            ),
        )
    )
    check(func, "gpu nests", rows=2)


def test_a_short_sum() -> None:
    func = function(lambda b: (emit(b, "reduce_sum", b.input("x", tensor(5, 5)), axes=(0, 1), keepdims=False),))
    check(func, "gpu nests", tolerance=1e-4)
