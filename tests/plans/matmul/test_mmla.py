"""Instructions of two rows by two columns: packing, product and schedule against NumPy, code for Neoverse V1."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.ops.oracle import check
from tests.targets.hot_loops import MIN_ACCUMULATORS, hot_loops
from tilewright import ops
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.compiler import graph_passes
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import DType, bf16, f32, i8, i32, u8
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.plans import plan
from tilewright.plans.matmul.mmla import panel_multiple
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.options import Options, Precision
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

V1 = Target.parse("neoverse-v1")
RNG = np.random.default_rng(0)
KINDS = {"smmla": (i8, i8, 8), "usmmla": (u8, i8, 8), "bfmmla": (bf16, bf16, 4)}
SIZES = [(7, 13, 5), (12, 64, 24), (13, 40, 22), (26, 9, 33)]


def values(t: DType, shape: tuple[int, ...]) -> np.ndarray:
    if t is bf16:
        return RNG.integers(-9, 10, shape).astype(ml_dtypes.bfloat16)  # whose sums are exact in any order
    return RNG.integers(0 if t is u8 else -128, 256 if t is u8 else 128, shape).astype(t.numpy)


def product(m: int | None, k: int, n: int, kind: str) -> Graph:
    a, b, group = KINDS[kind]
    builder = GraphBuilder("product")
    rows: Expr = Var("n") if m is None else const(m)
    x = builder.input("x", TensorType(a, (rows, const(k))))
    w = builder.param("w", TensorType(b, (const(k), const(n))))
    whole = ops.emit1(builder, "pad", w, before=(0, 0), after=(-k % group, 0), mode="constant", value=0)
    attrs = {"width": 2, "group": group, "transpose": False, "panels": panel_multiple(n)}
    packed = ops.emit1(builder, "lowered.pack_dot", whole, **attrs)
    return builder.finish((ops.emit1(builder, "lowered.matmul_mmla", x, packed, columns=n),))


def test_products_are_what_their_reference_says() -> None:
    for m, k in ((1, 16), (3, 16), (4, 13)):
        w, x = values(i8, (16, 5)), values(i8, (2, m, k))
        (packed,) = check("lowered.pack_dot", w, width=2, group=8, transpose=False, panels=2)
        (y,) = check("lowered.matmul_mmla", x, packed, columns=5)
        np.testing.assert_array_equal(y, x.astype(np.int64) @ w[:k].astype(np.int64))


@pytest.mark.daily(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m,k,n", SIZES)
def test_the_schedule(kind: str, m: int, k: int, n: int) -> None:
    """The loops for such an instruction, on any machine."""
    a, b, group = KINDS[kind]
    part = next(g for g in fuse(product(m, k, n, kind)) if any("mmla" in node.op for node in g.nodes))
    planned = plan(lower_group(part, "kernel").func, V1)
    assert planned.plan == "mmla"
    func = lower_loops(planned.func, V1)
    x, w, out = values(a, (m, k)), values(b, (k, n)), np.zeros((m, n), (f32 if a is bf16 else i32).numpy)
    padded = np.pad(w, ((0, -k % group), (0, 0)))
    attrs = {"width": 2, "group": group, "transpose": False, "panels": panel_multiple(n)}
    (packed,) = ops.get("lowered.pack_dot").reference([padded], ops.attributes("lowered.pack_dot", attrs))
    known = {"x": x, "pack_dot": packed, "matmul": out}
    shapes = [tuple(as_int(d) or 0 for d in param.shape) for param in func.params]
    arrays = [known.get(p.name, np.zeros(shape, p.dtype.numpy)) for p, shape in zip(func.params, shapes, strict=True)]
    interpret(func, arrays)
    np.testing.assert_array_equal(out, x.astype(np.float64) @ w.astype(np.float64))


def both_computed(transpose: bool, kind: DType) -> Graph:
    """A product of two inputs of 8 bits, in batches, with a zero point each."""
    builder, other = GraphBuilder("product"), (2, 3, 48, 61) if transpose else (2, 3, 61, 48)
    numbers = builder.input("x", TensorType(kind, tuple(map(const, (2, 3, 23, 61)))))
    factors = builder.input("w", TensorType(i8, tuple(map(const, other))))
    moved = []
    for value, point in ((numbers, 3), (factors, -2)):
        zero = ops.emit1(builder, "constant", value=ConstantArray(np.int32(point)))
        moved.append(ops.emit1(builder, "sub", ops.emit1(builder, "cast", value, dtype=i32), zero))
    return builder.finish((ops.emit1(builder, "matmul", *moved, transpose_a=False, transpose_b=transpose),))


@pytest.mark.daily(2)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("kind", [i8, u8], ids=str)
def test_both_factors_are_computed(kind: DType, transpose: bool) -> None:
    graph = both_computed(transpose, kind)
    x, w = values(kind, (2, 3, 23, 61)), values(i8, as_shape(graph.inputs[1].shape))
    right = (w.astype(np.float64) + 2).swapaxes(-1, -2) if transpose else w.astype(np.float64) + 2
    np.testing.assert_array_equal(tw.compile(graph)(x, w), (x.astype(np.float64) - 3) @ right)
    assert "lowered.matmul_mmla(" in laid_out(graph, V1, Options())


def as_shape(shape: tuple[Expr, ...]) -> tuple[int, ...]:
    return tuple(as_int(d) or 0 for d in shape)


def laid_out(graph: Graph, target: Target, options: Options) -> str:
    for name, function in graph_passes(target, options):
        graph = function(graph)
        if name == "assign layouts":
            break
    return str(graph)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_rows(kind: str) -> None:
    """Code for this machine, whichever that is: Neoverse V1 in an emulator has the instructions."""
    a, b, _ = KINDS[kind]
    w = values(b, (21, 30))
    model = tw.compile((product(None, 21, 30, kind), {"w": w}))
    for rows in (0, 1, 2, 5, 12, 23):
        x = values(a, (rows, 21))
        np.testing.assert_array_equal(model(x), x.astype(np.float64) @ w.astype(np.float64))


@pytest.mark.parametrize("target", [V1, Target.parse("neoverse-v1-sve")], ids=["NEON", "SVE"])
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_fill_the_registers(kind: str, target: Target) -> None:
    part = next(g for g in fuse(product(64, 256, 256, kind)) if any("mmla" in node.op for node in g.nodes))
    func = lower_loops(plan(lower_group(part, "kernel").func, target).func, target)
    loop = max(hot_loops(assembly(emit_llvm(func, target), target)), key=lambda loop: loop.adds)
    assert loop.kinds == (kind,) and loop.stack == 0
    assert loop.accumulators == loop.adds >= MIN_ACCUMULATORS


def linear(rows: int | None, kind: DType) -> Graph:
    builder = GraphBuilder("linear")
    x = builder.input("x", TensorType(kind, (Var("n") if rows is None else const(rows), const(256))))
    w = builder.param("w", TensorType(kind, (const(256), const(128))))
    return builder.finish((ops.emit1(builder, "matmul", x, w, transpose_a=False, transpose_b=False),))


@pytest.mark.parametrize(
    "target,rows,kind,precision,chosen",
    [
        ("neoverse-v1", 64, f32, "int8", "matmul_mmla"),
        ("neoverse-v1", 64, f32, "bf16", "matmul_mmla"),
        ("neoverse-v1", 64, bf16, "fp32", "matmul_mmla"),
        ("neoverse-v1", 1, f32, "int8", "matmul_dot"),
        ("neoverse-v1-sve", 64, f32, "int8", "matmul_mmla"),
        ("neoverse-v1", 1, f32, "bf16", "matmul_dot"),
        ("neoverse-n1", 64, f32, "int8", "matmul_dot"),
        ("znver4", 64, f32, "int8", "matmul_dot"),
    ],
)
def test_estimates_choose(target: str, rows: int, kind: DType, precision: Precision, chosen: str) -> None:
    assert f"lowered.{chosen}(" in laid_out(linear(rows, kind), Target.parse(target), Options(precision))
