"""TFLite files: codes of LiteRT's reference kernels, recorded by `record.py`; damaged files are one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.tflite.cases import EXACT, ROUNDED, allowed, model_and_input
from tests.frontend.tflite.record import RECORDED, SEED
from tests.frontend.tflite.writer import Writer
from tilewright.frontend.tflite import import_tflite
from tilewright.frontend.tflite.fixed import factors
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import Error, ModelError, UnsupportedError


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    with np.load(RECORDED, allow_pickle=False) as arrays:
        return dict(arrays)


def computed(name: str) -> Any:
    data, x = model_and_input(name, SEED)
    imported = import_tflite(data)
    (y,) = run_graph(imported.graph, {imported.graph.inputs[0].name: x}, imported.weights).values()
    return y


@pytest.mark.parametrize("name", EXACT)
def test_codes_are_those_of_the_reference_kernels(name: str, recorded: dict[str, Any]) -> None:
    y, want = computed(name), recorded[f"{name}.{SEED}"]
    assert y.dtype == want.dtype
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("name", ROUNDED)
def test_functions_are_within_a_step(name: str, recorded: dict[str, Any]) -> None:
    y, want = computed(name), recorded[f"{name}.{SEED}"]
    assert np.abs(y.astype(np.float64) - want).max() <= allowed(name, want.dtype)


@pytest.mark.parametrize("name", ["network", "add"])
def test_compiled_code_computes_them(name: str, recorded: dict[str, Any], tmp_path: Path) -> None:
    data, x = model_and_input(name, SEED)
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    np.testing.assert_array_equal(tw.compile(path)(x), recorded[f"{name}.{SEED}"])


def test_weights_of_floats_can_be_replaced(recorded: dict[str, Any]) -> None:
    imported = import_tflite(model_and_input("floats", 0)[0])
    assert [p.name for p in imported.graph.params] == ["t1"] and imported.weights["t1"].shape == (4, 3, 3, 3)


@pytest.mark.parametrize("number", [0.5, 0.999999999999, 1e-12, 3.75, 0.0123456789, 1.0, 2.0**-31])
def test_factors_are_numbers_to_31_bits(number: float) -> None:
    (mantissa,), (exponent,) = factors([number])
    assert mantissa < 1 << 31 and abs(float(mantissa) * 2.0 ** (float(exponent) - 31) - number) <= 2.0**-31 * max(
        number, 1
    )


def test_the_mean_of_no_codes_is_the_zero_point() -> None:
    """The factor between the scales is divided by the number of elements, which is 0."""
    w = Writer()
    x = w.input((3, 0, 5), "int8", 0.031, -9)
    y = w.tensor((3, 5), "int8", 0.05, 20)
    w.add("MEAN", [x, w.constant(np.int32([1]))], y, (0, "?", False))
    with np.errstate(all="raise"):
        imported = import_tflite(w.file(y))
    feed = {imported.graph.inputs[0].name: np.zeros((3, 0, 5), np.int8)}
    (mean,) = run_graph(imported.graph, feed, imported.weights).values()
    np.testing.assert_array_equal(mean, np.full((3, 5), 20, np.int8))


def test_factors_that_are_too_large_are_refused() -> None:
    w = Writer()
    x = w.input((2, 2), "int8", 1e30)
    w.add("QUANTIZE", [x], w.tensor((2, 2), "int8", 1e-5))
    with pytest.raises(ModelError, match="too far"):
        import_tflite(w.file(1))


def test_damaged_files_are_one_error() -> None:
    data, _ = model_and_input("network", 0)
    rng = np.random.default_rng(5)
    for n in range(0, len(data), 97):
        with pytest.raises(Error):
            import_tflite(data[:n])
    for _ in range(150):
        bad = bytearray(data)
        for _ in range(3):
            bad[int(rng.integers(0, len(bad)))] = int(rng.integers(0, 256))
        try:
            import_tflite(bytes(bad))
        except Error:
            continue


def test_what_is_not_read_is_said(tmp_path: Path) -> None:
    w = Writer()
    x = w.input((2, 2), "int8", 0.1)
    w.add("RESHAPE", [x], w.tensor((4,), "int8", 0.2))
    with pytest.raises(UnsupportedError, match="another scale"):
        import_tflite(w.file(1))
    with pytest.raises(ModelError, match="cannot be read"):
        import_tflite(tmp_path / "none.tflite")
    with pytest.raises(ModelError, match="no TFLite file"):
        import_tflite(b"0123456789")
    with pytest.raises(ModelError, match="states"):
        import_tflite(model_and_input("add", 0)[0], {"n": 3})
