"""One compile with symbols computes what compiles for each size do: random graphs, random ranges, the ends of these.

`make test` runs a few graphs; `make fuzz` runs TILEWRIGHT_DYNAMIC_CASES (2,000) with five sizes each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
CASES = int(os.environ.get("TILEWRIGHT_DYNAMIC_CASES", "2000")) if LONG else 8
SIZES = 5 if LONG else 3
CLOSE = 1e-4
"""The largest difference, relative to the largest output: a static compile may take transforms that a symbolic one does
not, each of which may err by 2.5e-5."""


@dataclass
class Drawn:
    """A model under construction; values are names."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(kind, list(inputs), [name], **attributes))
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        fan_in = max(1, int(np.prod(shape[1:] if len(shape) == 4 else shape[:-1])))
        self.weights[name] = (self.rng.standard_normal(shape) / fan_in**0.5).astype(np.float32)
        return name

    def ints(self, *values: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.array(values, np.int64)
        return name

    def pick(self, *values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]


def rows(d: Drawn, x: str, width: int) -> str:
    """Some operators over [..., n, width], to [..., n, any]."""
    for _ in range(int(d.rng.integers(2, 6))):
        match d.pick("linear", "linear", "pointwise", "softmax", "norm", "mean", "pairs", "residual", "twice", "part"):
            case "linear":
                new = d.pick(1, 7, 16, 33, 64)
                x, width = d.op("Add", d.op("MatMul", x, d.weight(width, new)), d.weight(new)), new
            case "pointwise":
                x = d.op(d.pick("Relu", "Tanh", "Sigmoid", "Erf"), x)
            case "softmax":
                x = d.op("Softmax", x, axis=-1)
            case "norm":
                x = d.op("LayerNormalization", x, d.weight(width), d.weight(width), axis=-1)
            case "mean":  # over all rows, which comes back to each
                x = d.op("Add", x, d.op("ReduceMean", x, d.ints(-2), keepdims=1))
            case "pairs":
                scores = d.op("MatMul", x, d.op("Transpose", x, perm=[0, 2, 1]))
                x = d.op("MatMul", d.op("Softmax", scores, axis=-1), x)
            case "residual":
                x = d.op("Add", x, d.op("MatMul", d.op("Relu", x), d.weight(width, width)))
            case "twice":
                x, width = d.op("Concat", x, d.op("Tanh", x), axis=2), 2 * width
            case "part":
                new = max(1, width // 2)
                x, width = d.op("Slice", x, d.ints(0), d.ints(new), d.ints(2)), new
    return x


def maps(d: Drawn, x: str, channels: int) -> str:
    """Some operators over [1, channels, h, w]."""
    for _ in range(int(d.rng.integers(1, 4))):
        match d.pick("conv", "conv", "pool", "pointwise", "average"):
            case "conv":
                new, window = d.pick(3, 16, 32), d.pick(1, 3, 3, 5)
                stride, pad = d.pick(1, 1, 2), window // 2
                x = d.op("Conv", x, d.weight(new, channels, window, window), pads=[pad] * 4, strides=[stride] * 2)
                channels = new
            case "pool":
                x = d.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[d.pick(1, 2)] * 2)
            case "pointwise":
                x = d.op(d.pick("Relu", "Sigmoid"), x)
            case "average":
                x = d.op("Add", x, d.op("GlobalAveragePool", x))
    return x


def described(d: Drawn, hi: int, *, empty: bool = False) -> tuple[Any, list[int]]:
    """The description of a symbol, and sizes to call with: the ends of its range, 0 if it may be `empty`, and some
    between."""
    by = d.pick(1, 1, 1, 4)
    top = hi // by * by
    likely = [int(v) * by for v in d.rng.integers(1, top // by + 1, d.pick(0, 0, 3))]
    between = [int(v) * by for v in d.rng.integers(1, top // by + 1, SIZES - 2)]
    least = 0 if empty else by
    return tw.dim(least, top, multiple=by, likely=likely), [least, top, *between]


@pytest.mark.daily(2)
@pytest.mark.costly(2)
@pytest.mark.parametrize("seed", range(CASES) if LONG else (*range(CASES), 73))
def test_as_compiled_for_each_size(seed: int) -> None:
    d = Drawn(np.random.default_rng(seed))
    if d.pick(True, True, False):
        batch, width = d.pick(1, 3), d.pick(8, 17, 48)
        shape: list[int | str] = [batch, "n", width]
        y = rows(d, "x", width)
        known, sizes = described(d, 70, empty=seed % 3 == 0)
        said, calls = {"n": known}, [{"n": n} for n in sizes]
    else:
        channels = d.pick(3, 16)
        shape = [1, channels, "h", "w"]
        y = maps(d, "x", channels)
        (high, heights), (wide, widths) = described(d, 40), described(d, 40)
        said, calls = {"h": high, "w": wide}, [{"h": h, "w": w} for h, w in zip(heights, widths[::-1], strict=True)]
    m = model(d.nodes, [info("x", shape)], [y], d.weights)
    compiled = tw.compile(m, dims=said, fallback="never")
    for call in calls:
        x = d.rng.standard_normal([call.get(s, s) if isinstance(s, str) else s for s in shape]).astype(np.float32)
        want = tw.compile(m, dims=call, fallback="never")(x)
        result = compiled(x)
        assert result.shape == want.shape
        np.testing.assert_allclose(
            result, want, rtol=0, atol=CLOSE * float(np.abs(want).max(initial=0)), err_msg=str(call)
        )


@pytest.mark.daily(4)
@pytest.mark.parametrize("most", [1, 9, 40])
@pytest.mark.parametrize("shape", [["n"], [1, "n"], ["n", 5]])
def test_ranges_that_begin_at_nothing(most: int, shape: list[int | str]) -> None:
    """Few enough elements for one block of vectors, or none: the loop over blocks has one iteration at most."""
    nodes = [node("Abs", ["x"], ["y"]), node("Softmax", ["y"], ["z"], axis=-1)]
    compiled = tw.compile(model(nodes, [info("x", shape)], ["y", "z"], {}), dims={"n": tw.dim(0, most)})
    for n in (0, 1, most):
        x = np.linspace(-2, 3, n * (5 if 5 in shape else 1), dtype=np.float32)
        x = x.reshape([n if s == "n" else s for s in shape])
        y, z = compiled(x)
        np.testing.assert_array_equal(y, abs(x))
        whole = np.exp(abs(x) - np.max(abs(x), -1, keepdims=True, initial=0))
        np.testing.assert_allclose(z, whole / whole.sum(-1, keepdims=True), rtol=1e-5)


def test_products_of_sizes_do_not_overflow() -> None:
    """An array without elements may have any other size: what the model needs for it is refused, not wrapped round."""
    nodes = [node("MatMul", ["x", "y"], ["s"]), node("Softmax", ["s"], ["z"], axis=-1)]
    m = model(nodes, [info("x", ["n", "k"]), info("y", ["k", "m"])], ["z"], {})
    compiled = tw.compile(m, dims={"k": tw.dim(0, 64)})
    result = compiled(np.ones((5, 3), np.float32), np.ones((3, 2), np.float32))
    np.testing.assert_allclose(result, np.full((5, 2), 0.5), rtol=1e-6)
    huge = (1 << 31) - 1
    with pytest.raises(tw.errors.CallError, match="too large"):
        compiled(np.zeros((huge, 0), np.float32), np.zeros((0, huge), np.float32))
