"""Dot instructions: packing and product against NumPy, and the instructions in the code for targets that have them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import check, reference
from tilewright import ops
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.dtype import DType, bf16, dtype, f32, i8, i16, u8
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.plans import plan
from tilewright.plans.matmul.dots import panel_multiple
from tilewright.schedule.dot_intrinsics import find_dot, named_dot
from tilewright.targets import x86
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

RNG = np.random.default_rng(0)
KINDS = [(bf16, bf16, 16, 2), (i16, i8, 8, 2), (i16, i16, 8, 2), (u8, i8, 16, 4), (u8, i8, 8, 4)]
INSTRUCTIONS = [
    ("znver4", "vdpbf16ps", 16),
    ("znver4", "vpdpwssd", 16),
    ("znver4", "vpdpwssd", 16),
    ("znver4", "vpdpbusd", 16),
    ("alderlake", "vpdpbusd", 8),
]
"""On which target which instruction, and how many are in a tile at least."""


def values(t: DType, shape: tuple[int, ...]) -> np.ndarray:
    if t is bf16:
        return RNG.standard_normal(shape).astype(ml_dtypes.bfloat16)
    low = 0 if t is u8 else -128 if t is i8 else -255
    return RNG.integers(low, 256 if low in (0, -255) else 128, shape).astype(t.numpy)


def product(m: int, k: int, n: int, a: DType, b: DType, lanes: int, group: int) -> Graph:
    builder = GraphBuilder("product")
    x = builder.input("x", TensorType(a, (const(m), const(k))))
    w = builder.param("w", TensorType(b, (const(k), const(n))))
    count = panel_multiple(n, lanes)
    packed = ops.emit1(builder, "lowered.pack_dot", w, width=lanes, group=group, transpose=False, panels=count)
    return builder.finish((ops.emit1(builder, "lowered.matmul_dot", x, packed, columns=n),))


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k[0]}-{k[1]}-{k[2]}")
def test_packing_and_product_are_what_their_references_say(kind: tuple[DType, DType, int, int]) -> None:
    a, b, lanes, group = kind
    for transpose in (False, True):
        w = values(b, (8, 19))
        (packed,) = check(
            "lowered.pack_dot", w.T if transpose else w, width=lanes, group=group, transpose=transpose, panels=2
        )
        x = values(a, (3, 8))
        (y,) = check("lowered.matmul_dot", x, packed, columns=19)
        assert np.abs(y - x.astype(np.float64) @ w.astype(np.float64)).max() < 1e-4


@pytest.mark.daily(4)
@pytest.mark.costly(3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k[0]}-{k[1]}-{k[2]}")
@pytest.mark.parametrize("m,k,n", [(1, 8, 5), (1, 64, 200), (7, 12, 17), (13, 40, 100), (30, 24, 48)])
def test_native_code(kind: tuple[DType, DType, int, int], m: int, k: int, n: int) -> None:
    a, b, lanes, group = kind
    x, w = values(a, (m, k)), values(b, (k, n))
    got = np.asarray(tw.compile((product(m, k, n, a, b, lanes, group), {"w": w}))(x))
    want = x.astype(np.float64) @ w.astype(np.float64)
    if a is bf16:
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.costly(3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k[0]}-{k[1]}-{k[2]}")
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("k,n", [(8, 16), (128, 96), (132, 40)])
def test_weights_are_packed_by_vectors(kind: tuple[DType, DType, int, int], transpose: bool, k: int, n: int) -> None:
    """All groups of a step are one vector, whose runs in the weights are loaded and joined."""
    _, b, lanes, group = kind
    builder = GraphBuilder("pack")
    shape = (n, k) if transpose else (k, n)
    w = builder.input("w", TensorType(f32 if b is bf16 else b, tuple(map(const, shape))))
    count = panel_multiple(n, lanes)
    packed = ops.emit1(builder, "lowered.pack_dot", w, width=lanes, group=group, transpose=transpose, panels=count)
    graph = builder.finish((ops.emit1(builder, "cast", packed, dtype=b) if b is bf16 else packed,))
    data = values(b, shape).astype(np.float32 if b is bf16 else b.numpy)
    attrs = {"width": lanes, "group": group, "transpose": transpose, "panels": count}
    (want,) = reference("lowered.pack_dot", [data], attrs)
    np.testing.assert_array_equal(np.asarray(tw.compile((graph, {}))(data)), want.astype(b.numpy))
    if n % lanes == 0:
        (fused,) = fuse(graph)
        target = Target.parse("znver4")
        text = emit_llvm(lower_loops(plan(lower_group(fused, "pack").func, target).func, target), target)
        loads = {line.split("load ")[1].split(", ptr")[0] for line in text.splitlines() if "= load " in line}
        assert loads and all(" x " in t for t in loads) and "gather" not in text


@pytest.mark.parametrize("kind,expected", list(zip(KINDS, INSTRUCTIONS, strict=True)))
def test_the_hot_loop_is_instructions_on_registers(
    kind: tuple[DType, DType, int, int], expected: tuple[str, str, int]
) -> None:
    a, b, _, group = kind
    name, instruction, count = expected
    target = Target.parse(name)
    graph = product(28, 32, 96, a, b, target.lanes(4), group)
    func = lower_group(next(g for g in fuse(graph) if g.nodes[-1].op == "lowered.matmul_dot"), "kernel").func
    text = assembly(emit_llvm(lower_loops(plan(func, target).func, target), target), target)
    assert instruction in text
    loop = [line for line in text.splitlines() if "vpdp" in line or "vdpbf" in line]
    assert len(loop) >= count and not any("(%rsp)" in line or "(%rbp)" in line for line in loop)
    assert "callq\ttw.intrin" not in text


def test_every_target_finds_what_it_has() -> None:
    assert find_dot(bf16, bf16, Target.parse("x86-64-v3")) is None
    result = find_dot(i16, i8, Target.parse("x86-64-v3"))
    assert result is not None and result.lanes == 8
    assert find_dot(u8, i8, Target.parse("znver4")) is named_dot("vnni_16x4_u8i8i32")
    assert find_dot(u8, i8, Target.parse("alderlake")) is named_dot("vnni_8x4_u8i8i32")
    assert all(find_dot(d.a, d.b, Target.parse("generic-aarch64")) is None for d in x86.DOTS)


def test_refusals() -> None:
    w = np.zeros((7, 8), np.int8)
    with pytest.raises(tw.Error, match="no multiple of the group"):
        attrs = ops.attributes("lowered.pack_dot", {"width": 8, "group": 2, "transpose": False, "panels": 1})
        ops.infer("lowered.pack_dot", [TensorType(dtype(w.dtype), (const(7), const(8)))], attrs)
