"""The table of scalar functions: each row agrees with itself, and a row is all that a function needs."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import subprocess
import sys

import numpy as np
import pytest

from tilewright.ir.dtype import f64
from tilewright.ir.expr import Const, Expr, Op, Var, call
from tilewright.ir.functions import FUNCTIONS, by_name_in, names_in
from tilewright.ir.scalar_ops import OPS

INSIDE = (-0.6, 0.2, 0.7)
POINTS = {"arccosh": (1.3, 2.5, 7.0), "arcsin": INSIDE, "arccos": INSIDE, "arctanh": INSIDE}
POSITIVE = (0.3, 1.7, 4.0)


def value(e: Expr, x: float) -> float:
    """An expression of one variable by the operators' meanings in NumPy."""
    match e:
        case Var():
            return x
        case Const(number):
            return float(number)
        case Op(name, args):
            return float(OPS[name].numpy(*(np.float64(value(a, x)) for a in args)))
    raise AssertionError(e)


@pytest.mark.parametrize("name", [row.name for row in FUNCTIONS.values() if row.slope is not None])
def test_the_slope_is_that_of_the_meaning(name: str) -> None:
    row, x = FUNCTIONS[name], Var("x", f64)
    assert row.slope is not None
    slope = row.slope(x, call(name, x), call)
    for point in POINTS.get(name, POSITIVE):
        sign, h = -1.0 if name == "exp_nonpositive" else 1.0, 1e-6
        at = sign * point
        numeric = (row.numpy(np.float64(at + h)) - row.numpy(np.float64(at - h))) / (2 * h)
        np.testing.assert_allclose(value(slope, at), numeric, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("name", "symbol"), sorted(names_in("c").items()))
def test_the_c_library_means_the_same(name: str, symbol: str) -> None:
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), symbol)
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
    for point in POINTS.get(name, (*POSITIVE, 2.5)):
        np.testing.assert_allclose(function(point), FUNCTIONS[name].numpy(np.float64(point)), rtol=1e-14)


@pytest.mark.parametrize("language", ["onnx", "aten", "stablehlo", "mlir", "c"])
def test_names_are_of_one_function_each(language: str) -> None:
    names = [name for row in FUNCTIONS.values() if not row.inner for name in getattr(row, language).split()]
    assert len(set(names)) == len(names) > 10
    known = by_name_in(language)
    assert all(known[name] == ours for ours, name in names_in(language).items() if not FUNCTIONS[ours].inner)


LOG10 = """
import math
import numpy as np
from tilewright.ir.functions import FUNCTIONS, ScalarFunction
FUNCTIONS["log10"] = ScalarFunction(
    "log10", np.log10, lambda x, y, call: 1 / math.log(10) / x, lambda x, call: call("log", x) * (1 / math.log(10)),
    onnx="Log10", stablehlo="chlo.log10", mlir="log10", c="log10", weight=18, ulp=2.0,
)
import onnx
from onnx import TensorProto, helper
import tilewright as tw
from tilewright import te
from tilewright.codegen.onnx.pointwise import RULES
from tilewright.ops import parse_graph

x = np.float32([0.01, 1.0, 30.0, 1e20])
graph = parse_graph("graph @g(%x: f32[4]) { %y = log10(%x) : f32[4] return %y }")
np.testing.assert_allclose(np.asarray(tw.compile((graph, {}))(x)), np.log10(x), rtol=1e-6, atol=1e-7)
wide = parse_graph("graph @g(%x: f64[4]) { %y = log10(%x) : f64[4] return %y }")
z = x.astype(np.float64)
np.testing.assert_allclose(np.asarray(tw.compile((wide, {}))(z)), np.log10(z), rtol=1e-13, atol=1e-15)
value = helper.make_tensor_value_info
node = helper.make_node("Log10", ["x"], ["y"])
model = helper.make_model(
    helper.make_graph([node], "m", [value("x", TensorProto.FLOAT, [4])], [value("y", TensorProto.FLOAT, [4])])
)
np.testing.assert_allclose(np.asarray(tw.compile(model)(x)), np.log10(x), rtol=1e-6, atol=1e-7)
assert "log10" in RULES and callable(te.log10)
function = tw.comprehension("y[i] = log10(x[i])")
np.testing.assert_allclose(np.asarray(function(x)), np.log10(x), rtol=1e-6, atol=1e-7)
from tilewright.arith.derivative import RULES as SLOPES
assert "log10" in SLOPES
"""


def test_a_function_is_a_row() -> None:
    """One row makes an operator of graphs, te and comprehensions, a rule of importers and exporters, a derivative and
    code in both precisions."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", LOG10], capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
