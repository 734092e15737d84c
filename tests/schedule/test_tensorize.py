"""tensorize: matching, the program after it, native code with the instructions, and what is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.schedule.checks import check_schedule, matmul, refused, scheduled
from tests.schedule.native import run_native
from tests.schedule.programs import assert_same
from tilewright import te
from tilewright.codegen.c.emit import emit_c
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.dtype import f32, i8, i32, u8
from tilewright.ir.loops import PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.schedule import Schedule
from tilewright.schedule.intrinsics import TensorIntrin, describe, find_intrinsic, is_known, register
from tilewright.support.errors import ScheduleError
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops


def tile_matmul(s: Schedule) -> None:
    i, j, k = s.loops("C")
    (i_0, i_1), (j_0, j_1), (k_0, k_1) = (s.split(x, factor=4) for x in (i, j, k))
    s.reorder(i_0, j_0, k_0, i_1, j_1, k_1)
    s.decompose_reduction("C", k_0)
    s.tensorize(i_1, "dot_4x4x4_f32")


def quantized(m: int = 4, n: int = 32, k: int = 8, packed: bool = True) -> PrimFunc:
    """u8 x i8 -> i32, the weights packed as the instruction wants them: [n/16, k/4, 16, 4]."""
    a = te.placeholder((m, k), "u8", name="A")
    b = te.placeholder((n // 16, k // 4, 16, 4), "i8", name="B") if packed else te.placeholder((n, k), "i8", name="B")
    r = te.reduce_axis(k, "k")

    def weight(j, x):
        return b[j // 16, x // 4, j % 16, x % 4] if packed else b[j, x]

    c = te.compute((m, n), lambda i, j: te.sum(te.cast(a[i, r], "i32") * te.cast(weight(j, r.var), "i32"), r), name="C")
    return te.create_prim_func([a, b, c], "quantized")


def tile_quantized(s: Schedule) -> None:
    i, j, k = s.loops("C")
    j_0, j_1 = s.split(j, factor=16)
    k_0, k_1 = s.split(k, factor=4)
    s.reorder(i, j_0, k_0, j_1, k_1)
    s.decompose_reduction("C", k_0)
    s.tensorize(j_1, "vnni_16x4_u8i8i32")


def test_dot(golden):
    golden(scheduled(matmul(8, 12, 8), tile_matmul))


def test_dot_of_the_innermost_loops_of_a_block():
    func = matmul(8, 8, 8)
    s = Schedule(func)
    s.tile("i", "j", 4, 4)
    s.split("k", factor=4)
    s.reorder("i_0", "j_0", "k_0", "j_1_1", "k_1", "i_1_1")
    s.decompose_reduction("C", "k_0")
    s.tensorize(s.block("C"), "dot_4x4x4_f32")
    check_schedule(func, s)


def test_vnni(golden):
    golden(scheduled(quantized(), tile_quantized))


@pytest.mark.parametrize(
    ("func", "apply", "instruction"),
    [
        (matmul(16, 16, 16), tile_matmul, "vfmadd"),
        (quantized(), tile_quantized, "vpdpbusd"),
    ],
    ids=["dot", "vnni"],
)
def test_native_code_uses_the_instruction(func, apply, instruction):
    # any machine: the instruction is looked for where the processor has it
    s = Schedule(func)
    apply(s)
    assert_same(func, s.func, random.Random(1), lambda f, a: run_native(f, a, 3))
    target = Target.host()
    flat = lower_loops(s.func, target)
    if instruction == "vpdpbusd" and not target.has("avx512vnni"):
        pytest.skip("this processor has no AVX-512 VNNI")
    if instruction == "vfmadd" and not target.has("fma"):
        pytest.skip("this processor has no FMA")
    assert instruction in assembly(emit_llvm(flat, target), target)


def test_targets_without_the_instruction_expand_it():
    func = quantized()
    s = Schedule(func)
    tile_quantized(s)
    target = Target.parse("x86-64-v3")
    flat = lower_loops(s.func, target)
    assert "vpdpbusd" not in emit_llvm(flat, target)
    text = emit_c(lower_loops(s.func, target))
    assert "vnni" not in text.split("{", 1)[0] and "for (" in text


def _known() -> tuple[str, ...]:
    from tilewright.targets.target import known

    return known()


def test_extreme_values():
    """The instruction does not saturate: 255 * -128 * 4 goes in whole."""
    func = quantized(1, 16, 4)
    s = Schedule(func)
    tile_quantized(s)
    arrays = {
        "A": np.full((1, 4), 255, np.uint8),
        "B": np.full((1, 1, 16, 4), -128, np.int8),
        "C": np.zeros((1, 16), np.int32),
    }
    other = {k: v.copy() for k, v in arrays.items()}
    interpret(s.func, arrays)
    run_native(s.func, other)
    assert (arrays["C"] == 255 * -128 * 4).all()
    assert (other["C"] == arrays["C"]).all()


def test_an_intrinsic_of_the_users_own():
    own = register(TensorIntrin("own_2x8", describe("own_2x8", {"i": 2, "j": 8}, "", (f32, f32, f32), _OUTER)))
    assert find_intrinsic("own_2x8") is own
    a, b = te.placeholder((4,), name="A"), te.placeholder((16,), name="B")
    c = te.placeholder((4, 16), name="C")
    d = te.compute((4, 16), lambda i, j: c[i, j] + a[i] * b[j], name="D")
    func = te.create_prim_func([a, b, c, d], "outer")
    s = Schedule(func)
    s.tile("i", "j", 2, 8)
    with pytest.raises(ScheduleError, match="does not compute what the intrinsic does"):
        s.tensorize(s.loop("i_1"), "own_2x8")


@pytest.mark.parametrize("order", ["ijk", "ikj", "jik", "jki", "kij", "kji"])
def test_loops_are_matched_in_any_order(order):
    """Sizes and kinds tell which loop of a block is which one of the description, in whatever order they stand."""
    sizes, kinds = {"i": 2, "j": 4, "k": 3}, {"i": "spatial", "j": "spatial", "k": "reduce"}
    if not is_known("dot_2x4x3"):
        register(TensorIntrin("dot_2x4x3", describe("dot_2x4x3", sizes, "k", (f32, f32, f32), _MATMUL)))
    loops = "\n".join(f"for {v} in 0..{sizes[v]} {{" for v in order)
    iters = ", ".join(f"v{v} = {kinds[v]}({sizes[v]}): {v}" for v in order)
    body = f"block C ({iters}) {{\ninit {{\nC[vi, vj] = 0.0\n}}\nC[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]\n}}"
    func = parse_func(f"func @f(A: f32[2, 3], B: f32[3, 4], C: f32[2, 4]) {{\n{loops}\n{body}\n}}\n}}\n}}\n}}\n")
    s = Schedule(func)
    s.decompose_reduction("C", order[0])
    s.tensorize(order[0], "dot_2x4x3")
    assert "dot_2x4x3" in str(s.func)
    assert_same(func, s.func, random.Random(1), lambda f, arrays: run_native(f, arrays, 1))


@pytest.mark.parametrize("transposed", [False, True])
def test_operands_change_places_only_where_that_changes_nothing(transposed):
    """`x - 2 y` is no `2 y - x`; the product inside may be written either way."""
    x, y = te.placeholder((4,), name="x"), te.placeholder((4,), name="y")
    te.intrinsic("test_x_less_2y", te.compute((4,), lambda i: x[i] - y[i] * 2.0, name="z"), [x, y])
    a, b = te.placeholder((4,), name="A"), te.placeholder((4,), name="B")
    c = te.compute((4,), lambda i: 2.0 * b[i] - a[i] if transposed else a[i] - 2.0 * b[i], name="C")
    func = te.create_prim_func([a, b, c])
    s = Schedule(func)
    if transposed:
        with pytest.raises(ScheduleError, match="does not compute what the intrinsic does"):
            s.tensorize("i", "test_x_less_2y")
        return
    s.tensorize("i", "test_x_less_2y")
    assert_same(func, s.func, random.Random(1), lambda f, arrays: run_native(f, arrays, 1))


def test_strided_operands_are_not_passed_to_the_intrinsics_function():
    """The intrinsic's function reads rows of elements that follow one another; every second one is left to the
    loops."""
    a, b = te.placeholder((4, 4), name="A"), te.placeholder((4, 4, 2), name="B")
    k = te.reduce_axis(4, "k")
    c = te.compute((4, 4), lambda i, j: te.sum(a[i, k] * b[k, j, 1], k), name="C")
    func = te.create_prim_func([a, b, c], "strided")
    s = Schedule(func)
    tile_matmul(s)
    target = Target.parse("x86-64-v3")
    assert "dot_4x4x4_f32" in str(s.func)
    assert "call void" not in emit_llvm(lower_loops(s.func, target), target)
    assert_same(func, s.func, random.Random(1), lambda f, arrays: run_native(f, arrays, 1))


@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("tile", [2, 4, 8, 12])
def test_tiles_move_to_where_they_are_read(first, tile):
    """The operands of an iteration come from the tiles that it touches, whole ones, and from no others."""
    from_x = te.placeholder((4,), name="x")
    te.intrinsic("test_twice_4", te.compute((4,), lambda i: from_x[i] * 2.0, name="y"), [from_x])
    x = te.placeholder((3, 32), name="X")
    y = te.compute((3, 32), lambda i, j: x[i, j] * 2.0, name="Y")
    z = te.compute((3, 32 - first), lambda i, j: y[i, j + first] + 1.0, name="Z")
    func = te.create_prim_func([x, z], "tiles")
    s = Schedule(func)
    _, inner = s.split(s.loops("Y")[1], factor=4)
    s.tensorize(inner, "test_twice_4")
    outer, _ = s.split(s.loops("Z")[1], factor=tile)
    s.compute_at("Y", outer)
    rows, tiles = (s.extent(loop) for loop in s.loops("Y")[2:])
    assert rows == 1
    assert tiles is not None and tiles <= (tile + 3 + 3) // 4
    assert_same(func, s.func, random.Random(1), lambda f, arrays: run_native(f, arrays, 1))


_MATMUL = {"A": "ik", "B": "kj", "C": "ij"}
_OUTER = {"A": "i", "B": "j", "C": "ij"}


def test_descriptions_are_checked():
    with pytest.raises(ScheduleError, match="must have extents that are numbers of at least 2"):
        TensorIntrin("bad", describe("bad", {"i": 1, "k": 4}, "k", (u8, i8, i32), {"A": "k", "B": "ik", "C": "i"}))
    with pytest.raises(ScheduleError, match="must be loops around one block"):
        TensorIntrin("bad", matmul())
    with pytest.raises(ScheduleError, match="there is another intrinsic"):
        register(TensorIntrin("dot_4x4x4_f32", find_intrinsic("vnni_16x4_u8i8i32").description))
    with pytest.raises(ScheduleError, match="no intrinsic is called 'x'"):
        find_intrinsic("x")


def _tiled(s: Schedule, factors: tuple[int, int, int], decompose: bool = True) -> None:
    i, j, k = s.loops("C")
    parts = [s.split(x, factor=f) for x, f in zip((i, j, k), factors, strict=True)]
    s.reorder(*(p[0] for p in parts), *(p[1] for p in parts))
    if decompose:
        s.decompose_reduction("C", parts[2][0])


_IDLE = """func @idle(A: f32[4, 4], B: f32[4, 4], C: f32[4, 4]) {
  for i in 0..4 {
    for j in 0..4 {
      for r in 0..2 {
        for k in 0..4 {
          block C (vi = spatial(4): i, vj = spatial(4): j, vk = reduce(4): k) {
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
          }
        }
      }
    }
  }
}"""

REFUSALS = {
    "wrong-tile": (lambda: matmul(8, 8, 8), lambda s: [_tiled(s, (4, 4, 2)), s.tensorize(s.loop("i_1_1"), DOT)]),
    "with-init": (lambda: matmul(8, 8, 8), lambda s: [_tiled(s, (4, 4, 4), False), s.tensorize(s.loop("i_1_1"), DOT)]),
    "partial-tiles": (lambda: matmul(6, 8, 8), lambda s: [_tiled(s, (4, 4, 4)), s.tensorize(s.loop("i_1_1"), DOT)]),
    "not-tiled": (lambda: matmul(8, 8, 8), lambda s: [s.decompose_reduction("C", "k"), s.tensorize(s.loop("k"), DOT)]),
    "vectorized": (
        lambda: matmul(8, 8, 8),
        lambda s: [_tiled(s, (4, 4, 4)), s.vectorize("j_1_1"), s.tensorize(s.loop("i_1_1"), DOT)],
    ),
    "other-types": (lambda: quantized(4, 16, 4), lambda s: [_tiled(s, (4, 4, 4)), s.tensorize(s.loop("i_1"), DOT)]),
    "not-contiguous": (
        lambda: quantized(packed=False),
        tile_quantized,
    ),
    "two-blocks": (
        lambda: matmul(8, 8, 8),
        lambda s: [_tiled(s, (4, 4, 4), False), s.reverse_compute_at("D", "j_0"), s.tensorize(s.loop("j_0"), DOT)],
    ),
    "idle-loop": (
        lambda: parse_func(_IDLE),
        lambda s: s.tensorize(s.loop("i"), DOT),
    ),
    "unknown": (lambda: matmul(8, 8, 8), lambda s: s.tensorize(s.loop("k"), "nothing")),
}
DOT = "dot_4x4x4_f32"


@pytest.mark.parametrize("case", [c for c in REFUSALS if c != "unknown"])
def test_refused(case, golden):
    make, apply = REFUSALS[case]
    golden(refused(make(), apply))
