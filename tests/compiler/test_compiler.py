"""The pipeline as a whole: the same bytes every time, kernels from the cache, errors that name the thing."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import ALL, BATCH, numbers, tensor
from tilewright import kernels, ops
from tilewright.compiler import compile_graph
from tilewright.ir.graph import GraphBuilder
from tilewright.ir.target import Target
from tilewright.ops.interpret import run_graph
from tilewright.runtime.program import Program

TARGET = Target.parse("znver4")

DIGEST = """
import sys
from tests.compiler.test_compiler import digest_of
print(digest_of(sys.argv[1]))
"""


def program(name: str) -> Program:
    graph = ALL[name]()
    return compile_graph(graph, numbers(graph, 1)[1], TARGET)


def digest_of(name: str) -> str:
    """A digest of manifest and code, compiled without the cache."""
    made = program(name)
    digest = hashlib.sha256(made.manifest.to_json().encode())
    for key in sorted(made.objects):
        digest.update(key.encode() + made.objects[key])
    return digest.hexdigest()


def test_two_processes_make_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
        command = [sys.executable, "-c", DIGEST, "residual"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
        digests.add(done.stdout.strip())
    assert len(digests) == 1 and len(digests.pop()) == 64


def test_kernels_come_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    first = program("mlp")
    monkeypatch.setattr(kernels, "compile_llvm", lambda *_: pytest.fail("compiled although it is in the cache"))
    monkeypatch.setattr(kernels, "plan", lambda *_: pytest.fail("planned although it is in the cache"))
    second = program("mlp")
    assert first.objects == second.objects and first.manifest == second.manifest


def test_the_structure_key_is_that_of_the_structure() -> None:
    graph = ALL["mlp"]()
    weights = numbers(graph, 1)[1]
    other = {name: array + 1 for name, array in weights.items()}
    one, two = (compile_graph(graph, w, TARGET).manifest for w in (weights, other))
    assert one.structure_key == two.structure_key != program("attention").manifest.structure_key


def test_one_compile_serves_every_batch() -> None:
    graph = ALL["full blocks"]()
    params = numbers(graph, 1)[1]
    model = tw.compile((graph, params))
    for batch in (1, 2, 3, 7, 16):
        inputs = numbers(graph, batch)[0]
        for got, expected in zip(model.run(inputs).values(), run_graph(graph, inputs, params).values(), strict=True):
            # Layers err by up to 2e-5 of their output's scale (docs/accuracy.md).
            scale = max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5 * scale)


def test_constants_are_no_weights() -> None:
    b = GraphBuilder("constants")
    x = b.input("x", tensor(BATCH, 3))
    offset = ops.emit1(b, "constant", name="offset", value=np.arange(3, dtype=np.float32))
    y = ops.emit1(b, "mul", ops.emit1(b, "add", x, offset), b.param("w", tensor(3)))
    model = tw.compile((b.finish((y,)), {"w": np.ones(3, np.float32)}))
    assert list(model.weights) == ["w"]
    model.update({"w": np.full(3, 2, np.float32)})
    np.testing.assert_array_equal(model(np.zeros((1, 3), np.float32)), [[0, 2, 4]])


def test_texts_of_every_stage() -> None:
    graph = ALL["residual"]()
    model = tw.compile((graph, numbers(graph, 1)[1]))
    for what, word in (
        ("graph", "conv_blocked"),
        ("loops", "vectorized"),
        ("schedule", "plan convolution"),
        ("llvm", "define void"),
        ("asm", "ret"),
        ("memory", "arena"),
    ):
        assert word in model.show(what), what


def test_a_graph_with_parameters_needs_their_values() -> None:
    with pytest.raises(tw.Error, match="values"):
        tw.compile(ALL["mlp"]())
