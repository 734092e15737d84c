"""`tilewright quantize`: the file that it writes, the one for other runtimes, and what it says of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx

import tilewright as tw

from .conftest import Cli


def test_quantize_writes_files_that_agree(cli: Cli, layer: Path, tmp_path: Path) -> None:
    data = np.random.default_rng(1).standard_normal((50, 4)).astype(np.float32)
    np.save(tmp_path / "data.npy", data)
    options = ("--precision", "int8", "--max-drop", "0.2", "--onnx", tmp_path / "q.onnx", "--png", tmp_path / "q.png")
    code, text, _ = cli("quantize", layer, "--data", tmp_path / "data.npy", "-o", tmp_path / "q.tw", "--json", *options)
    report = json.loads(text)
    assert code == 0 and report["chosen"] == "int8" and report["samples"] == 9
    written = onnx.load(tmp_path / "q.onnx")
    assert "QuantizeLinear" in {n.op_type for n in written.graph.node}
    assert (tmp_path / "q.png").stat().st_size > 1000
    model = tw.load(tmp_path / "q.tw")
    exact = tw.compile(layer)(data)
    assert np.linalg.norm(model(data) - exact) < 0.1 * np.linalg.norm(exact)
    np.testing.assert_allclose(tw.compile(written)(data), model(data), rtol=0, atol=1e-5)


def test_quantize_prints_a_table(cli: Cli, layer: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((3, 4), np.float32))
    code, text, _ = cli("quantize", layer, "--data", tmp_path / "data.npz", "--precision", "int8", "--max-drop", "1")
    assert code == 0
    assert "us fp32" in text and "int8: " in text and layer.with_suffix(".tw").exists()


def test_quantize_refuses_in_one_line(cli: Cli, layer: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", z=np.ones((3, 4), np.float32))
    np.savez(tmp_path / "data.npz", x=np.ones((3, 4), np.float32))
    np.savez(tmp_path / "none.npz", x=np.ones((0, 4), np.float32))
    for data, options, said in (
        ("other.npz", (), "expected x, got z"),
        ("none.npz", (), "samples"),
        ("missing.npz", (), "missing.npz"),
        ("data.npz", ("--precision", "int3"), "int3"),
        ("data.npz", ("--method", "best"), "best"),
        ("data.npz", ("--onnx", layer), "write over"),
    ):
        code, text, errors = cli("quantize", layer, "--data", tmp_path / data, *options)
        assert code in (1, 2) and said in " ".join((text + errors).replace("│", " ").split()), (
            data,
            options,
            text,
            errors,
        )
        assert "Traceback" not in errors
    assert not layer.with_suffix(".tw").exists()
