"""PTX of kernels, golden, and what is refused. What the text computes: tests/plans/gpu, by the emulator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tilewright as tw
from tests.codegen.ptx.cases import H100, ROWS, Build, emit, function, lowered, tensor
from tilewright import te
from tilewright.builder import BuiltFunction
from tilewright.codegen.ptx.device import emit_ptx
from tilewright.codegen.ptx.emit import emit_module
from tilewright.plans.gpu import attention, products
from tilewright.support.errors import CompileError
from tilewright.targets.target import Target


def bound(threads: int = 64, grid: str = "blockIdx.x") -> BuiltFunction:
    n = te.var("n")
    a, b = te.placeholder((n,), name="A"), te.placeholder((n,), name="B")
    c = te.compute((n,), lambda i: a[i] + b[i], name="C")
    s = te.create_schedule(c)
    outer, inner = s[c].split(c.axis[0], threads)
    s[c].bind(outer, grid)
    s[c].bind(inner, "threadIdx.x")
    return tw.build(s, [a, b, c], name="add", target="nvidia-sm_90")


def test_a_sum_of_vectors(golden: Callable[..., None]) -> None:
    golden(bound().source("ptx"), "ptx")


def test_a_pointwise_group(golden: Callable[..., None]) -> None:
    """Four neighbours a thread, in one load."""
    func = function(
        lambda b: (emit(b, "tanh", emit(b, "add", b.input("x", tensor(ROWS, 64)), b.input("y", tensor(64)))),)
    )
    golden(emit_ptx(lowered(func, "gpu pointwise"), H100)[0], "ptx")


def _conv(b):  # type: ignore[no-untyped-def]
    x, w = b.input("x", tensor(ROWS, 8, 8, 8)), b.input("w", tensor(16, 8, 3, 3))
    return (emit(b, "relu", emit(b, "conv", x, w, strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), groups=1)),)


def _innermost(b):  # type: ignore[no-untyped-def]
    """A convolution whose factors are copied 16 bytes at once, with zeros beside the map."""
    x, w = b.input("x", tensor(ROWS, 1, 8, 8, 32, t="f16")), b.input("w", tensor(16, 1, 3, 3, 32, t="f16"))
    more = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "groups": 1}
    return (emit(b, "relu", emit(b, "lowered.conv_last", x, w, **more)),)


@pytest.mark.parametrize(
    ("name", "plan", "build"),
    [
        (
            "transposition",
            "gpu pointwise",
            lambda b: (emit(b, "transpose", b.input("x", tensor(32, 48)), perm=(1, 0)),),
        ),
        ("softmax", "gpu rows", lambda b: (emit(b, "softmax", b.input("x", tensor(ROWS, 128)), axis=-1),)),
        (
            "mean",
            "gpu rows",
            lambda b: (emit(b, "reduce_mean", b.input("x", tensor(64, 4096)), axes=(1,), keepdims=False),),
        ),
        (
            "tf32",
            "gpu product",
            lambda b: (emit(b, "matmul", b.input("x", tensor(16, 32)), b.input("w", tensor(32, 64))),),
        ),
        (
            "bf16",
            "gpu product",
            lambda b: (
                emit(
                    b,
                    "matmul",
                    b.input("x", tensor(16, 64, t="bf16")),
                    b.input("w", tensor(64, 64, t="bf16")),
                    transpose_b=True,
                ),
            ),
        ),
        ("convolution", "gpu product", _conv),
        ("innermost", "gpu product", _innermost),
    ],
    ids=lambda x: x if isinstance(x, str) and " " not in x else "",
)
def test_kernels(name: str, plan: str, build: Build, golden: Callable[..., None]) -> None:
    golden(emit_ptx(lowered(function(build, name), plan), H100)[0], "ptx")


def test_attention(golden: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A warp, whose scores become factors of the second product without leaving their registers."""
    monkeypatch.setattr(attention, "WARPS", (1,))
    monkeypatch.setattr(attention, "KEYS", (16,))
    scores = {"first": (0, 0, 0), "scale": 0.25, "causal": False, "fill": 0.0, "guard": False}

    def build(b):  # type: ignore[no-untyped-def]
        inputs = (b.input(name, tensor(1, ROWS, 1, 16, t="f16")) for name in "qkv")
        return (emit(b, "lowered.attention", *inputs, order="ssss", heads=1, groups=1, **scores),)

    golden(emit_ptx(lowered(function(build, "attention"), "gpu attention"), H100)[0], "ptx")


def test_four_warps_together(golden: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """`wgmma`, which is text for the assembler, with descriptors of both factors."""
    monkeypatch.setattr(products, "TILES", ())
    target = Target.parse("nvidia-sm_90a")

    def build(b):  # type: ignore[no-untyped-def]
        x, w = b.input("x", tensor(64, 128, t="bf16")), b.input("w", tensor(64, 128, t="bf16"))
        return (emit(b, "matmul", x, w, transpose_b=True),)

    golden(emit_ptx(lowered(function(build, "together"), "gpu product", target), target)[0], "ptx")


def test_launches() -> None:
    (launch,) = emit_module(bound().flat, H100).launches
    assert (launch.kernel, launch.block, launch.buffers, launch.symbols) == ("add", (64, 1, 1), (0, 1, 2), (0,))
    assert str(launch.grid[0]) == "(n + 63) // 64" and (launch.shared, launch.stated) == (0, 0)


def test_what_no_kernel_can_be() -> None:
    with pytest.raises(CompileError, match=r"too many threads.*1024.*2048"):
        bound(2048).source("ptx")
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    c = te.compute((n,), lambda i: a[i] * 2.0, name="C")
    with pytest.raises(CompileError, match="no hardware index runs through a loop"):
        tw.build(te.create_schedule(c), [a, c], target="nvidia-sm_90").source("ptx")
    with pytest.raises(CompileError, match="no GPU"):
        emit_module(bound().flat, Target.parse("x86-64-v3"))
