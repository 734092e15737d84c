"""The pipeline as a whole: the same bytes every time, kernels from the cache, errors that name the thing."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import ALL, BATCH, numbers, tensor
from tilewright import compiler, kernels, ops
from tilewright.compiler import compile_graph
from tilewright.ir.expr import Var
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ir.interface import Interface
from tilewright.ops.interpret import run_graph
from tilewright.programs import ProgramCache
from tilewright.runtime.artifact import pack_blobs, unpack_blobs
from tilewright.runtime.program import Program
from tilewright.support import copies
from tilewright.support.cache import ObjectCache
from tilewright.support.errors import ModelError
from tilewright.targets.target import Target
from tilewright.transform.graph.options import Options

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
    created = program(name)
    digest = hashlib.sha256(created.manifest.to_json().encode())
    for key in sorted(created.objects):
        digest.update(key.encode() + created.objects[key])
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


def test_kernels_that_copies_of_the_process_compile_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    alone = digest_of("residual")
    copied: list[int] = []

    def share(count: int, own: Any, copied_job: Any, processes: int) -> dict[int, bytes]:
        assert processes == 3
        created = copies.share(count, lambda k: time.sleep(0.2) or own(k), copied_job, processes)
        copied.extend(created)
        return created

    monkeypatch.setattr(kernels, "share", share)
    monkeypatch.setenv("TILEWRIGHT_PROCESSES", "2")
    assert digest_of("residual") == alone and not copied, "on two cores a small program is compiled without a copy"
    monkeypatch.setenv("TILEWRIGHT_PROCESSES", "3")
    assert digest_of("residual") == alone
    assert copied


def test_kernels_come_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ProgramCache, "get", lambda *_: None)
    first = program("mlp")
    monkeypatch.setattr(kernels, "compile_llvm", lambda *_: pytest.fail("compiled although it is in the cache"))
    monkeypatch.setattr(kernels, "plan", lambda *_: pytest.fail("planned although it is in the cache"))
    second = program("mlp")
    assert first.objects == second.objects and first.manifest == second.manifest


@pytest.mark.daily(2)
@pytest.mark.costly(2)
@pytest.mark.parametrize("name", ALL)
def test_programs_come_from_the_cache(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    first = program(name)
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "graph_passes", lambda *_: pytest.fail("compiled although it is in the cache"))
        second = program(name)
        assert second.texts["graph"] == str(first.texts["graph"]())  # type: ignore[operator]
    assert first.objects == second.objects and first.manifest == second.manifest
    assert first.weights.keys() == second.weights.keys()
    assert first.texts.keys() == second.texts.keys()
    assert second.texts["loops"]() == first.texts["loops"]()  # type: ignore[operator]


def test_a_retained_program_takes_the_weights_and_constants_of_its_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    for number in (1.0, 2.0):
        model = tw.compile(constants(number), name="same")
        model.update({"w": np.full(3, 2, np.float32)})
        np.testing.assert_array_equal(model(np.zeros((1, 3), np.float32)), [[0, 2 * number, 4 * number]])


CHANGES: dict[str, dict[str, Any]] = {
    "options": {"options": Options(fast="exact")},
    "target": {"target": Target.parse("x86-64-v3")},
    "interface": {"interface": Interface(("image",), ("logits", "value"))},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_program_is_not_selected_for_another(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    graph = ALL["mlp"]()
    arguments: dict[str, Any] = {"graph": graph, "weights": numbers(graph, 1)[1], "target": TARGET}
    compile_graph(**arguments)
    fresh: list[str] = []
    monkeypatch.setattr(ProgramCache, "put", lambda *_: fresh.append(change))
    compile_graph(**arguments)
    assert not fresh
    produced = compile_graph(**{**arguments, **CHANGES[change]}).manifest
    assert fresh == [change]
    if change == "interface":
        assert [i.name for i in produced.inputs] == ["image"] and [o.name for o in produced.outputs] == [
            "logits",
            "value",
        ]


def test_names_of_a_retained_program_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    for names in (("x", "w", "n"), ("obs", "policy", "batch"), ("x", "w", "n")):
        x, w, n = names
        b = GraphBuilder("named")
        y = ops.emit1(b, "mul", b.input(x, tensor(Var(n, lo=1, hi=64), 3)), b.param(w, tensor(3)), name="y")
        manifest = compile_graph(b.finish((y,)), {w: np.ones(3, np.float32)}, TARGET).manifest
        assert (manifest.inputs[0].name, manifest.params[0].name, manifest.symbols[0].name) == names


def test_a_damaged_program_is_recreated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    first = program("mlp")
    store = ObjectCache()
    (key,) = [p.name for p in store.folder.glob("*/program-*")]
    whole = store.get(key)
    assert whole is not None
    blobs = unpack_blobs(memoryview(whole))
    foreign = blobs["manifest"].replace(b'"abi_version":', b'"abi_version":9')
    for entry in (b"", whole[:7], whole[:-1], b"".join(pack_blobs({"manifest": b"{}"})), b"\xff" * 64,
                  b"".join(pack_blobs({**blobs, "manifest": foreign}))):  # fmt: skip
        store.put(key, entry)
        recomputed = program("mlp")
        assert recomputed.manifest == first.manifest and recomputed.objects == first.objects
        assert store.get(key) == whole


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


def constants(number: float) -> tuple[Graph, dict[str, np.ndarray]]:
    """(x + number * (0, 1, 2)) * w"""
    b = GraphBuilder("constants")
    x = b.input("x", tensor(BATCH, 3))
    offset = ops.emit1(b, "constant", name="offset", value=number * np.arange(3, dtype=np.float32))
    y = ops.emit1(b, "mul", ops.emit1(b, "add", x, offset), b.param("w", tensor(3)))
    return b.finish((y,)), {"w": np.ones(3, np.float32)}


def test_constants_are_no_weights() -> None:
    model = tw.compile(constants(1.0))
    assert list(model.weights) == ["w"]
    model.update({"w": np.full(3, 2, np.float32)})
    np.testing.assert_array_equal(model(np.zeros((1, 3), np.float32)), [[0, 2, 4]])


def test_texts_of_every_stage() -> None:
    graph = ALL["residual"]()
    model = tw.compile((graph, numbers(graph, 1)[1]))
    for what, word in (
        ("graph", "lowered.conv_blocked"),
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


def test_options_are_checked_and_named() -> None:
    graph = GraphBuilder("g")
    x = graph.input("x", tensor(2, 4))
    model = graph.finish((ops.emit1(graph, "relu", x),))
    assert tw.compile(model, fast="exact").manifest.fast == "exact"
    with pytest.raises(TypeError, match="winograd"):
        tw.compile(model, winograd="exact")  # type: ignore[call-overload]
    with pytest.raises(ModelError, match="no such setting of fast"):
        tw.compile(model, fast="f7")


def test_a_kernel_may_be_deep() -> None:
    """Forty-seven hyperbolic tangents in a chain are one kernel of a thousand operations inside each other."""
    builder = GraphBuilder("g")
    x = y = builder.input("x", tensor(2, 4))
    for _ in range(47):
        y = ops.emit1(builder, "tanh", y)
    model = tw.compile(builder.finish((y,)))
    limit = sys.getrecursionlimit()
    array = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
    want = array.astype(np.float64)
    for _ in range(47):
        want = np.tanh(want)
    np.testing.assert_allclose(model(array), want, rtol=1e-5)
    assert sys.getrecursionlimit() == limit and x.name == "x"


def test_names_of_several_nodes() -> None:
    builder = GraphBuilder("g")
    assert [builder.fresh("a") for _ in range(3)] == ["a", "a_1", "a_2"]
    builder.reserved.add("a_3")
    assert builder.fresh("a") == "a_4"
    builder.reserved -= {"a_1", "a_4"}  # as when what was tried is taken back
    assert builder.fresh("a") == "a_1"
    assert [builder.fresh("a_1"), builder.fresh("a")] == ["a_1_1", "a_4"]
    builder.reserved.discard("a")  # as for a name that is used
    assert builder.fresh("a") == "a"
