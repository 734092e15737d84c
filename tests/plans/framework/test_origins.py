"""Plans know what a function is about from its blocks' origins; what is legal they find in its structure."""

from __future__ import annotations

import pytest

from tests.plans.test_plans import ZEN4, Build, conv, graph_of, kernels, matmul
from tests.transform.graph.graphs import tensor
from tilewright import ops
from tilewright.algorithms.strassen.plan import product as strassen
from tilewright.algorithms.winograd.operators.convolution import CONV_WINOGRAD, PACK_WINOGRAD
from tilewright.algorithms.winograd.plan import convolution as winograd
from tilewright.ir.graph import GraphBuilder, Value
from tilewright.ir.loops import Block, PrimFunc, Stmt
from tilewright.ir.rewrite import map_stmt
from tilewright.ops.lowered.packed import CONV_BLOCKED
from tilewright.plans.convolution import direct, pixels, transposed, windows
from tilewright.plans.framework.analysis import Structure, analyse
from tilewright.plans.framework.base import Plan
from tilewright.plans.matmul import contraction
from tilewright.targets.target import Target


def tall(b: GraphBuilder) -> Value:
    """A convolution that Winograd's transforms compute."""
    x, w = b.input("x", tensor(1, 64, 28, 28)), b.param("w", tensor(64, 64, 3, 3))
    return ops.emit1(b, "conv", x, w, pads=(1,) * 4, strides=(1, 1), dilations=(1, 1), groups=1)


def grouped(b: GraphBuilder) -> Value:
    x, w = b.input("x", tensor(1, 64, 9, 9)), b.param("w", tensor(64, 32, 3, 3))
    return ops.emit1(b, "conv", x, w, pads=(1,) * 4, strides=(1, 1), dilations=(1, 1), groups=2)


def upward(b: GraphBuilder) -> Value:
    x, w = b.input("x", tensor(1, 32, 9, 9)), b.param("w", tensor(32, 16, 4, 4))
    attrs = {"pads": (1,) * 4, "strides": (2, 2), "dilations": (1, 1), "groups": 1, "output_padding": (0, 0)}
    return ops.emit1(b, "conv_transpose", x, w, **attrs)


def pixelwise(b: GraphBuilder) -> Value:
    x, w = b.input("x", tensor(1, 12, 9, 9)), b.param("w", tensor(12, 6, 1, 1))
    return ops.emit1(b, "conv", x, w, pads=(0,) * 4, strides=(1, 1), dilations=(1, 1), groups=2)


def seven_products(b: GraphBuilder) -> Value:
    x, w = b.input("x", tensor(64, 32)), b.param("w", tensor(2, 7, 16, 32))
    return ops.emit1(b, "relu", ops.emit1(b, "lowered.matmul_strassen", x, w, columns=128))


def quarters(b: GraphBuilder) -> Value:
    return ops.emit1(b, "lowered.strassen_sums", b.input("w", tensor(64, 32)), transpose=False)


ASKING: list[tuple[Plan, Build]] = [
    (winograd.PLAN, tall),
    (winograd.FILTERS, tall),
    (strassen.PLAN, seven_products),
    (strassen.WEIGHTS, quarters),
    (direct.PLAN, conv(3, 20, 9, window=5, stride=2, pad=2)),
    (windows.PLAN, grouped),
    (transposed.PLAN, upward),
    (pixels.PLAN, pixelwise),
]


def structures(build: Build, target: Target = ZEN4) -> list[Structure]:
    return [analyse(kernel.func) for kernel in kernels(graph_of(build), target)]


def without_origins(func: PrimFunc) -> PrimFunc:
    """The function as a user would have written it."""

    def on(s: Stmt) -> Stmt | None:
        return Block(s.name, s.iters, s.body, s.init, s.predicate) if isinstance(s, Block) else None

    return func.with_body(map_stmt(func.body, on))


@pytest.mark.parametrize(("plan", "build"), ASKING, ids=[plan.name for plan, _ in ASKING])
def test_a_plan_takes_its_operator_and_no_loops_that_look_like_it(plan: Plan, build: Build) -> None:
    (mine,) = [candidate for candidate in structures(build) if plan.fits(candidate, ZEN4)]
    assert not plan.fits(analyse(without_origins(mine.func)), ZEN4)


def test_products_are_selected_by_their_structure() -> None:
    used_names = [candidate for candidate in structures(matmul(15, 20, 100)) if contraction.PLAN.fits(candidate, ZEN4)]
    assert used_names and all(
        contraction.PLAN.fits(analyse(without_origins(candidate.func)), ZEN4) for candidate in used_names
    )


def test_operators_have_their_attributes_and_stages() -> None:
    (result,) = [s for s in structures(tall) if s.operator(CONV_WINOGRAD)]
    operator = result.operator(CONV_WINOGRAD)
    assert operator is not None and (operator.attrs.window, operator.attrs.channels) == (3, 64)
    assert [s.name for s in operator.stages[:6]] == [
        "strip",
        "input_rows",
        "input_columns",
        "product",
        "output_rows",
        "output_columns",
    ]
    assert result.anchors == (operator.stage("product"),)
    assert result.operator(PACK_WINOGRAD) is None and result.operator(CONV_BLOCKED) is None
    with pytest.raises(StopIteration):
        operator.stage("pack")
