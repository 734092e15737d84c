"""The sizes at which symbolic ones are estimated, and the choices for them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
from tests.algorithms.winograd.test_operators import convolution
from tests.frontend.onnx.build import info, model, node
from tests.plans.programs import shown
from tilewright import te
from tilewright.algorithms.winograd.plan.tiles import WinogradProblem, mean
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.compiler import compile_program
from tilewright.ir.expr import Var, ceildiv, const
from tilewright.plans import candidates, named, scheduled_by
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.symbolic import SYMBOLIC_SIDES, instances_of, maps_of, sides_of, values_of
from tilewright.targets.target import Target

USUAL = (1, 2, 6, 15, 39, 96)


def test_values_of_an_extent() -> None:
    n, m = Var("n", lo=1, hi=20), Var("m", lo=1, likely=(8, 32, 33))
    assert values_of(const(7), USUAL) == (7,)
    assert values_of(const(0), USUAL) == (1,)
    assert values_of(n, USUAL) == (1, 2, 6, 15)
    assert values_of(Var("n", lo=100), USUAL) == (100,)
    assert values_of(Var("n", lo=3, hi=5), USUAL) == (3, 4, 5)
    assert values_of(Var("n", lo=50, hi=3000), USUAL) == (50, 387, 3000)
    assert values_of(Var("n", lo=1, hi=2), USUAL) == (1, 2)
    assert values_of(Var("n", lo=0, hi=0), USUAL) == (1,)
    assert values_of(m, USUAL) == (8, 32, 33)
    assert values_of(ceildiv(m, 16), USUAL) == (1, 2, 3)
    assert values_of(m * 2, USUAL) == (16, 64, 66)
    assert values_of(Var("n", lo=1, hi=4), USUAL) == (1, 2, 3, 4)
    assert values_of(Var("n", lo=64, hi=128, multiple=64), USUAL) == (64, 128)


def test_sides_of_maps() -> None:
    """A range is estimated at the middles of its thirds, what is known or likely by itself."""
    assert sides_of(const(9)) == (9,)
    assert sides_of(Var("h", lo=1)) == SYMBOLIC_SIDES
    assert sides_of(Var("h", lo=1, likely=(8, 32))) == (8, 32)
    assert sides_of(Var("h", lo=1, hi=64)) == (12, 32, 54)
    assert sides_of(Var("h", lo=5, hi=5)) == (5,)
    assert sides_of(Var("h", lo=0, hi=2)) == (1, 2)
    short = Var("h", lo=8, hi=16, multiple=2)
    assert sides_of(short // 2) == (4, 5, 6, 7, 8) and sides_of(short // 4) == (2, 3, 4)
    assert instances_of([const(3)]) == ({},)
    assert [(n[short], n[m]) for m in [Var("w", lo=1, hi=2)] for n in instances_of([short * 2, m])] == [
        *((const(8), const(1)), (const(10), const(2)), (const(12), const(1)), (const(14), const(2))),
        (const(16), const(1)),
    ]
    assert maps_of(Var("h", lo=1, hi=64), const(7)) == ((12, 7), (32, 7), (54, 7))


def test_the_mean_over_maps_is_geometric_and_over_images_the_usual_one() -> None:
    def problems(*sizes: tuple[int, int, int]) -> list[WinogradProblem]:
        return [WinogradProblem(n, h, w, 16, 16, 3) for n, h, w in sizes]

    assert mean([300.0], problems((3, 4, 4))) == 100.0
    assert mean([100.0, 600.0], problems((1, 4, 4), (3, 4, 4))) == 150.0
    # Twice as slow a pixel on one map, half as slow on another: as good as the same on both.
    assert mean([200.0, 200.0], problems((1, 4, 4), (1, 8, 8))) == pytest.approx(
        mean([100.0, 400.0], problems((1, 4, 4), (1, 8, 8)))
    )
    assert mean([100.0, 400.0], problems((1, 2, 8), (1, 8, 2))) == pytest.approx(200.0)


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize(
    ("least", "most", "likely", "fast", "plan"),
    [
        (32, None, (), "exact", "convolution"),
        (32, None, (), "auto", "winograd"),
        (32, 640, (), "auto", "winograd"),
        (32, 6400, (224,), "auto", "winograd"),
        (32, 32, (), "auto", "winograd"),
    ],
)
def test_convolutions_over_maps_of_unknown_size(
    least: int, most: int | None, likely: tuple[int, ...], fast: str, plan: str
) -> None:
    """Transforms, or tiles in registers; not a plan that computes each pixel on its own: 50 times slower."""
    w = np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype(np.float32)
    conv = node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    m = model([conv], [info("x", [1, 32, "h", "w_"])], ["y"], {"w": w})
    said = tw.dim(least, most, multiple=32, likely=likely)
    text = tw.compile(m, dims={"h": said, "w_": said}, fast=fast).show("schedule")
    assert f"plan {plan}" in text and "plan rows" not in text


def _kernel(compiled: tw.Model, name: str, what: str) -> str:
    """The text of the kernel of an operator."""
    return _of_kernel(compiled.show(what), name)


def _of_kernel(text: str, name: str) -> str:
    return next(t for t in f"\n{text}".split("\n// ") if t.startswith(name))


def test_transposed_convolutions_copy_no_map_that_has_no_padding() -> None:
    """Twice as many lines as there are, an even number, are as many positions of a phase as there are lines. Strips of
    wide maps have few lines, so that they stay near."""
    w = np.random.default_rng(0).standard_normal((32, 16, 2, 2)).astype(np.float32)
    nodes = [
        node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", ["p", "w"], ["y"], strides=[2, 2]),
    ]
    m = model(nodes, [info("x", [1, 32, "h", "w_"])], ["y"], {"w": w})
    strips = []
    for likely in (64, 2048):
        said = tw.dim(32, 2048, multiple=32, likely=[likely])
        compiled = tw.compile(m, dims={"h": said, "w_": said})
        assert not re.search(r"\bpad\b", _kernel(compiled, "conv_transposed", "loops"))
        match = re.search(r"lines=(\d+)", _kernel(compiled, "conv_transposed", "schedule"))
        assert match is not None
        strips.append(int(match[1]))
    assert strips[0] > strips[1] == max(1, Target.host().l2 // 2 // (4 * 1025 * 32))


@pytest.mark.daily(3)
@pytest.mark.parametrize(("likely", "lines"), [(4, 1), (32, 4), (512, 8)])
def test_lines_that_are_padded_together(likely: int, lines: int) -> None:
    """Some of a map of any height, but of a low one no more than leave each thread its strips."""
    w = np.random.default_rng(0).standard_normal((16, 3, 3, 3)).astype(np.float32)
    m = model([node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], [info("x", [1, 3, "h", "w_"])], ["y"], {"w": w})
    said = tw.dim(1, 640, likely=[likely])
    compiled = tw.compile(m, dims={"h": said, "w_": said}, fast="exact")
    assert f",strip={lines}," in _kernel(compiled, "conv_blocked", "schedule")
    for h, width in ((1, 5), (3, 2), (17, 30), (40, 1)):
        x = np.random.default_rng(h).standard_normal((1, 3, h, width)).astype(np.float32)
        np.testing.assert_allclose(compiled(x), convolution(x, w, (1, 1, 1, 1)), rtol=1e-4, atol=1e-4)


def test_sizes_of_calls_are_counted() -> None:
    m = model([node("Relu", ["x"], ["y"])], [info("x", ["n", 3, "m"])], ["y"], {})
    compiled = tw.compile(m)
    x = np.zeros((4, 3, 2), np.float32)
    with compiled.record_shapes() as seen:
        compiled(x)
        compiled.run({"x": x[:2]})
        compiled(x, out=np.empty_like(x))
        with pytest.raises(tw.Error):
            compiled(x[0])
    compiled(x)
    assert seen == {"n": {4: 2, 2: 1}, "m": {2: 3}}


def test_rows_that_are_a_quotient_have_versions_for_their_remainders() -> None:
    """A quarter of the frames are rows of a product: what its tiles leave over is known outside the tile."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 64)).astype(np.float32)
    nodes = [
        node("MaxPool", ["x"], ["p"], kernel_shape=[3], strides=[4], pads=[1, 1]),
        node("Transpose", ["p"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["t", "w"], ["y"]),
    ]
    network, dims = model(nodes, [info("x", [1, 16, "f"])], ["y"], {"w": w}), {"f": tw.dim(1, 400)}
    loops = _of_kernel(shown(compile_program(network, dims=dims, target="x86-64-v3"), "loops"), "matmul_packed")
    assert "// 4 % " in loops
    assert all("if" not in line or "_rows == " in line or "== 1" in line for line in loops.splitlines())
    compiled = tw.compile(network, dims=dims)
    for frames in (1, 3, 8, 29, 57, 400):
        x = rng.standard_normal((1, 16, frames)).astype(np.float32)
        padded = np.pad(x, [(0, 0), (0, 0), (1, 4)], constant_values=-np.inf)
        pooled = np.stack([padded[0, :, k : k + 3].max(axis=1) for k in range(0, (frames - 1) // 4 * 4 + 1, 4)])
        np.testing.assert_allclose(compiled(x)[0], pooled @ w, rtol=1e-5, atol=1e-5)


@pytest.mark.costly(2)
@pytest.mark.parametrize("ends", [(1, 2), (2, 5), (2, 8), (5, 14), (0, 1)], ids=str)
@pytest.mark.parametrize("target", ["x86-64-v3", "znver4"])
def test_a_tile_may_have_all_rows_that_there_can_be(target: str, ends: tuple[int, int]) -> None:
    """No setting of the plan for products is refused because the rows, a symbol, are fewer than those of its tile."""
    n = te.var("n", lo=ends[0], hi=ends[1])
    x, w = te.placeholder((n, 64), name="X"), te.placeholder((8, 64, 16), name="W")
    r = te.reduce_axis(64, "r")
    y = te.compute((n, 128), lambda i, j: te.sum(x[i, r] * w[j // 16, r, j % 16], r), name="Y")
    machine = Target.parse(target)
    structure = analyse(te.create_prim_func([x, w, y], "product"))
    settings = [c for c in candidates(structure, machine) if c.plan == "contraction"]
    tallest = {c.knob("rows"): c for c in reversed(settings)}
    assert max(tallest) >= min(ends[1], 4)
    for candidate in tallest.values():
        schedule, _ = scheduled_by(named("contraction"), structure, candidate, machine)
        assert not schedule.refused
    rng = np.random.default_rng(0)
    b = rng.integers(-3, 4, (8, 64, 16)).astype(np.float32)
    for rows in range(max(1, ends[0]), ends[1] + 1):
        a, got = rng.integers(-3, 4, (rows, 64)).astype(np.float32), np.empty((rows, 128), np.float32)
        schedule, _ = scheduled_by(named("contraction"), structure, tallest[max(tallest)], machine)
        interpret(schedule.func, {"X": a, "W": b, "Y": got}, symbols={"n": rows})
        np.testing.assert_array_equal(got, a @ b.transpose(1, 0, 2).reshape(64, 128))


@pytest.mark.parametrize("target", ["x86-64-v3", "znver4"])
def test_panels_of_a_symbolic_number_come_one_at_a_time(target: str) -> None:
    """Each step of the sums would ask whether the other panels are there, so that they would not stay in registers."""
    inputs = [info("x", [6, "n", 16]), info("z", [6, 16, "n"])]
    proto = model([node("MatMul", ["x", "z"], ["y"])], inputs, ["y"], {})
    dims = {"n": tw.dim(8, 100)}
    program = compile_program(proto, dims=dims, target=target, records=None)
    assert "panels=1," in _of_kernel(shown(program, "schedule"), "matmul_packed").splitlines()[1]
    loops = _of_kernel(shown(program, "loops"), "matmul_packed")
    sums = [part.split("}")[0] for part in re.split(r"for k\w* in 0\.\.16", loops)[1:]]
    assert sums and not any("if " in part for part in sums)
    if target == "x86-64-v3":
        compiled = tw.Model(program)
        for n in (8, 9, 31, 32, 33, 64, 65, 100):
            x, z = (np.random.default_rng(n).standard_normal((6, n, 16)).astype(np.float32) for _ in range(2))
            got = compiled(x, np.ascontiguousarray(z.swapaxes(1, 2)))
            np.testing.assert_allclose(got, x @ z.swapaxes(1, 2), rtol=1e-4, atol=1e-5)
