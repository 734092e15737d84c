"""ONNX out, an operator at a time: ONNX Runtime and what comes in again agree with the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.codegen.onnx.test_onnx_out import OPERATORS, agree
from tests.codegen.stablehlo.test_mlir_out import ATTRS
from tilewright import ops
from tilewright.codegen.onnx.layers import SEVERAL
from tilewright.codegen.onnx.pointwise import RULES
from tilewright.ir.dtype import boolean, dtype, f32, i32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import GraphBuilder, TensorType, Value
from tilewright.ops.pointwise import BODIES
from tilewright.support.errors import Error

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def emitted(op: str, arrays: Sequence[Any], attrs: dict[str, Any]) -> tuple[GraphBuilder, Sequence[Value]]:
    """The operator on inputs of these arrays' types, of which some may be absent."""
    b = GraphBuilder("g")
    inputs = [
        None if a is None else b.input(f"x{k}", TensorType(dtype(a.dtype), tuple(map(as_expr, a.shape))))
        for k, a in enumerate(arrays)
    ]
    return b, ops.emit(b, op, *inputs, **attrs)


def check(op: str, arrays: Sequence[Any], attrs: dict[str, Any]) -> None:
    b, results = emitted(op, arrays, attrs)
    with np.errstate(all="ignore"):
        agree(b.finish(tuple(results)), {}, {f"x{k}": a for k, a in enumerate(arrays) if a is not None})


FLOATS = np.array([-2.5, -1.0, -0.5, -0.0, 0.5, 0.9, 1.0, 2.5, 3.0, np.nan, np.inf, -np.inf], np.float32)
INTEGERS = np.array([7, -7, 5, -6, 1, 0], np.int32)
DIVISORS = np.array([2, 3, -2, -3, 4, 5], np.int32)
BITS = np.array([0, 1, 0x80000001, 0xFFFFFFFF, 77, 6], np.uint32)
TRUTHS = np.array([True, True, False, False])
POINTWISE = [n for n in sorted(RULES) if n in BODIES and n not in ("cast", "select", "shl", "shr", "detect_inf")]


@pytest.mark.parametrize("op", POINTWISE)
def test_pointwise(op: str) -> None:
    """On floats if it takes them, else on integers, else on booleans."""
    wide = np.where(np.isfinite(FLOATS), FLOATS, np.float32(0.25))
    operands: list[tuple[Any, Any, Any]] = [
        (FLOATS, wide[::-1].copy(), wide),
        (INTEGERS, DIVISORS, INTEGERS),
        (TRUTHS, np.array([True, False, True, False]), TRUTHS),
    ]
    met = 0
    for kinds in operands:
        for arity in (1, 2):
            try:
                emitted(op, kinds[:arity], ATTRS.get(op, {}))
            except Error:
                continue
            if kinds is operands[1] and met:
                continue
            met += 1
            check(op, kinds[:arity], ATTRS.get(op, {}))
    assert met


IMAGE = normal(1, 2, 5, 6)
WINDOW = {"strides": (2, 1), "dilations": (1, 1), "pads": (1, 0, 0, 1)}
POOL = WINDOW | {"kernel": (2, 3)}
RESIZE = {"axis": 2, "size": 8, "scale": 1.6, "mode": "linear", "coordinates": "half_pixel", "rounding": "floor"}
BOXES = np.array([[0.0, 0.0, 3.0, 3.0], [1.0, 0.5, 4.0, 4.0]], np.float32)
CORNERS = np.array([[[0, 0, 2, 2], [0.1, 0, 2, 2], [3, 3, 5, 5]]], np.float32)

HALF = np.float16
TRANSPOSED = {"transpose_a": True, "transpose_b": True}

CASES: dict[str, tuple[Sequence[Any], dict[str, Any]]] = {
    "cast": ([FLOATS[:8] * 3], {"dtype": i32}),
    "cast to bool": ([FLOATS[:8]], {"dtype": boolean}),
    "select": ([TRUTHS, normal(4), normal(4)], {}),
    "shl": ([BITS, np.array([1, 2, 3, 4, 31, 0], np.uint32)], {}),
    "shr": ([BITS, np.array([1, 2, 3, 4, 31, 0], np.uint32)], {}),
    "detect_inf": ([FLOATS], {"positive": True, "negative": False}),
    "detect_inf of the others": ([FLOATS], {"positive": False, "negative": True}),
    "eye": ([], {"rows": 3, "columns": 4, "k": 1, "dtype": f32}),
    "matmul": ([normal(3, 2), normal(4, 3)], TRANSPOSED),
    "matmul of halves": ([normal(3, 2).astype(HALF), normal(4, 3).astype(HALF)], TRANSPOSED | {"dtype": f32}),
    "matmul of bytes": ([np.arange(6, dtype=np.uint8).reshape(2, 3), np.arange(6, dtype=np.int8).reshape(3, 2)], {}),
    "reduce_sum": ([normal(2, 3)], {"axes": (1,), "keepdims": True}),
    "reduce_sum of nothing": ([normal(2, 3)], {"axes": (), "keepdims": True}),
    "reduce_prod": ([normal(2, 3)], {"axes": (0,), "keepdims": False}),
    "reduce_min": ([normal(2, 3)], {"axes": (0, 1), "keepdims": False}),
    "argmin": ([np.array([[1.0, 0.0, 0.0]], np.float32)], {"axis": 1, "keepdims": True, "select_last_index": True}),
    "transpose": ([normal(2, 3, 4)], {"perm": (2, 0, 1)}),
    "reshape": ([normal(2, 3, 4)], {"shape": (4, 6)}),
    "gather": ([normal(5, 3), np.array([[4, 0], [-1, 2]], np.int8)], {"axis": 0}),
    "gather_elements": ([normal(3, 4), np.array([[1, 0], [2, 2], [0, 1]])], {"axis": 1}),
    "gather_nd": ([normal(2, 3, 4), np.array([[[1], [0]], [[2], [2]]], np.int32)], {"batch_dims": 1}),
    "scatter_elements": ([normal(3, 4), np.array([[1, 0, 2]]), normal(1, 3)], {"axis": 1, "reduction": "none"}),
    "scatter_elements that adds": (
        [normal(3, 4), np.array([[1, 1]], np.int32), normal(1, 2)],
        {"axis": 0, "reduction": "add"},
    ),
    "scatter_nd": ([normal(4, 3), np.array([[2], [0]], np.int32), normal(2, 3)], {"reduction": "none"}),
    "scatter_nd of products": ([normal(4, 3), np.array([[2], [2]]), normal(2, 3)], {"reduction": "mul"}),
    "one_hot": ([np.array([1, 0, -1, 7]), np.array([-1.0, 2.0], np.float32)], {"axis": 0, "depth": 3}),
    "reverse_sequence": ([normal(4, 3, 2), np.array([2, 4, 1], np.int32)], {"batch_axis": 1, "time_axis": 0}),
    "conv": ([IMAGE, normal(4, 1, 2, 3)], WINDOW | {"groups": 2}),
    "conv_transpose": ([IMAGE, normal(2, 3, 2, 3)], WINDOW | {"groups": 1, "output_padding": (1, 0)}),
    "max_pool": ([IMAGE], POOL),
    "max_pool_indices": ([IMAGE], POOL | {"pads": (0, 0, 0, 0)}),
    "avg_pool": ([IMAGE], POOL),
    "lp_pool": ([IMAGE], POOL | {"p": 2}),
    "lrn": ([normal(1, 6, 3, 3)], {"size": 3, "alpha": 0.5, "beta": 0.75, "bias": 2.0}),
    "resize": ([IMAGE], RESIZE),
    "resize by a scale": ([IMAGE], RESIZE | {"scale": 1.7}),
    "resize to the nearest": ([IMAGE], RESIZE | {"mode": "nearest", "coordinates": "asymmetric"}),
    "resize of a part": (
        [IMAGE],
        RESIZE | {"coordinates": "tf_crop_and_resize", "roi": (0.2, 0.9), "extrapolation": 7.0},
    ),
    "resize by cubic curves": ([IMAGE], RESIZE | {"mode": "cubic", "cubic_a": -0.5, "exclude_outside": True}),
    "resize to less": ([IMAGE], RESIZE | {"size": 3, "scale": 0.6, "antialias": True}),
    "grid_sample": (
        [IMAGE, RNG.uniform(-1.3, 1.3, (1, 3, 2, 2)).astype(np.float32)],
        {"mode": "linear", "padding": "border", "align_corners": True},
    ),
    "roi_align": (
        [IMAGE, BOXES, np.zeros(2, np.int32)],
        {"height": 2, "width": 3, "samples": 2, "scale": 1.0, "mode": "avg", "half_pixel": True},
    ),
    "roi_align of whole pixels": (
        [IMAGE, BOXES, np.zeros(2, np.int64)],
        {"height": 3, "width": 2, "samples": 1, "scale": 0.5, "mode": "avg", "half_pixel": False},
    ),
    "roi_align of a sample a pixel": (
        [IMAGE, np.array([[0, 0, 3.5, 1.5]], np.float32), np.zeros(1, np.int64), np.array([[2, 1]])],
        {"height": 2, "width": 2, "samples": 2, "scale": 1.0, "mode": "avg", "half_pixel": True},
    ),
    "roi_max_pool": (
        [IMAGE, np.array([[0, 0, 1, 2, 3]], np.float32)],
        {"height": 2, "width": 2, "scale": 1.0},
    ),
    "affine": ([IMAGE], {"alpha": 0.5, "beta": 1.5}),
    "scaled_tanh": ([IMAGE], {"alpha": 0.5, "beta": 1.5}),
    "col2im": (
        [normal(1, 8, 12)],
        {"image": (4, 5), "block": (2, 2), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)},
    ),
    "dft": ([normal(1, 6, 1)], {"axis": 1, "inverse": False, "onesided": False}),
    "dft of one side": ([normal(1, 6, 1)], {"axis": 1, "inverse": False, "onesided": True}),
    "dft back": ([normal(1, 6, 2)], {"axis": 1, "inverse": True, "onesided": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    arrays, attrs = CASES[name]
    check(name.split(" ")[0], arrays, attrs)


@pytest.mark.parametrize("selected", [True, False])
def test_branches(selected: bool) -> None:
    """A branch reads the values around it; a value that it gives back as it is, too."""
    graph = ops.parse_graph("""
graph @g(%c: bool[], %x: f32[3], %y: f32[3]) {
  %z, %w = cond(%c, %x, %y) {
    orelse = graph @orelse(%x: f32[3], %y: f32[3]) { %d = sub(%x, %y) : f32[3] return %d, %y },
    then = graph @then(%x: f32[3], %y: f32[3]) { %s = add(%x, %y) : f32[3] %e = exp(%s) : f32[3] return %e, %s }
  } : f32[3], f32[3]
  %r = mul(%z, %w) : f32[3]
  return %r, %w
}""")
    agree(graph, {}, {"c": np.array(selected), "x": normal(3), "y": normal(3)})


ELSEWHERE = {"loop", "recurrence", "head", "nonzero", "suppress", "log1p", "expm1"}
ELSEWHERE |= {"stop_gradient", "surrogate", "require"}
"""Met by models and tests in `test_onnx_out.py`."""


def test_every_operator_that_has_words_is_met() -> None:
    met = {*POINTWISE, *(name.split(" ")[0] for name in CASES), "cond", *ELSEWHERE}
    met |= {n for n in RULES.keys() | SEVERAL.keys() if f"= {n}(" in OPERATORS}
    assert RULES.keys() | SEVERAL.keys() == met | {"constant", "identity"}
