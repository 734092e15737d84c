"""Knowledge of callers about symbolic dimensions: range, divisor, likely values."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.ir.dim import Dim, quantiles
from tilewright.ir.expr import Var
from tilewright.ir.key import key
from tilewright.ops import parse_graph


def relu(shape: list[int | str]) -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"])], [info("x", shape)], ["y"], {})


def test_a_dimension_says_what_it_knows() -> None:
    assert tw.dim(1, 512, likely=[32, 64, 32]) == Dim(1, 512, 1, (32, 32, 32, 32, 32, 64, 64, 64))
    assert tw.dim(32, 640, multiple=32) == Dim(32, 640, 32)
    assert str(tw.dim(8, multiple=8)) == "8.. % 8"
    assert tw.dim(likely={4: 0.0, 8: 0.5}).likely == (8,)


@pytest.mark.parametrize(("known", "size"), [(tw.dim(8, 8), 8), (tw.dim(5, 15, multiple=8), 8), (tw.dim(0, 0), 0)])
def test_a_range_of_one_value_is_that_value(known: Dim, size: int) -> None:
    compiled = tw.compile(relu(["n", 4]), dims={"n": known})
    assert f"%x: f32[{size}, 4]" in compiled.show("graph")
    assert compiled(np.ones((size, 4), np.float32)).shape == (size, 4)
    with pytest.raises(tw.errors.Error):
        compiled(np.ones((9, 4), np.float32))


def test_quantiles_of_a_histogram() -> None:
    assert quantiles({128: 1, 32: 1, 64: 1}) == (32, 64, 128)
    assert quantiles({10: 3.0, 20: 1.0, 99: 0.0}) == (10,) * 6 + (20,) * 2
    several = quantiles(dict.fromkeys(range(1, 801), 1.0))
    assert several == (50, 150, 250, 350, 450, 550, 650, 750)
    assert quantiles({}) == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"lo": -1}, "-1"),
        ({"lo": 5, "hi": 4}, "5..4"),
        ({"lo": 1, "hi": 31, "multiple": 32}, "1..31 % 32"),
        ({"multiple": 0}, "% 0"),
        ({"hi": 1 << 31}, "2147483648"),
        ({"hi": "8"}, "'8'"),
        ({"hi": 8, "likely": [9]}, "9"),
        ({"multiple": 8, "likely": [12]}, "12"),
        ({"likely": {4: -1.0}}, "-1.0"),
        ({"likely": {4: float("nan")}}, "nan"),
        ({"likely": ["4"]}, "'4'"),
    ],
)
def test_impossible_dimensions(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(tw.errors.ModelError) as caught:
        tw.dim(**arguments)  # type: ignore[arg-type]
    assert said in str(caught.value)


@pytest.mark.parametrize("said", ["8", 8.0, None])
def test_what_is_no_size(said: object) -> None:
    with pytest.raises(tw.errors.ModelError, match=f"no size of dimension 'n': expected a whole number.*{said}"):
        tw.compile(relu(["n", 3]), dims={"n": said})  # type: ignore[dict-item]


def test_printed_parsed_and_in_the_key() -> None:
    text = "graph @f(%x: f32[n, 4]) where n in 1..64 % 2{} {{\n  %y = relu(%x) : f32[n, 4]\n  return %y\n}}"
    ordinary, likely = (parse_graph(text.format(more)) for more in ("", " likely 8 32"))
    assert likely.symbols == (Var("n", lo=1, hi=64, multiple=2, likely=(8, 32)),)
    assert str(likely) == text.format(" likely 8 32")
    assert key(ordinary) != key(likely)


def test_sizes_outside_the_range_are_refused() -> None:
    compiled = tw.compile(relu(["n", 3]), dims={"n": tw.dim(2, 8, multiple=2, likely=[4])})
    for n in (2, 4, 8):
        x = np.linspace(-1, 1, 3 * n, dtype=np.float32).reshape(n, 3)
        np.testing.assert_array_equal(compiled(x), np.maximum(x, 0))
    for n in (0, 3, 10):
        with pytest.raises(tw.errors.CallError, match=r"n in 2\.\.8, a multiple of 2"):
            compiled(np.zeros((n, 3), np.float32))


def test_a_dimension_of_nothing() -> None:
    compiled = tw.compile(relu(["n", 3]), dims={"n": tw.dim(0, 8)})
    assert compiled(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_dimensions_that_the_model_does_not_have() -> None:
    with pytest.raises(tw.errors.ModelError, match="no dimension") as caught:
        tw.compile(relu(["n", 3]), dims={"m": tw.dim(1, 8)}, fallback="never")
    assert "m" in str(caught.value)
