"""Files that were compiled before: the same programs without an import, and never another file's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright import compiler, model_files
from tilewright.compiler import compile_program
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import RULES, rule
from tilewright.ir.graph import Value
from tilewright.runtime.model import Model
from tilewright.support import plugins
from tilewright.support.cache import ObjectCache
from tilewright.support.errors import ModelError

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
STEPS = 3


def arrays(seed: int) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    numbers = {f"w{i}": r.standard_normal((8, 8)) for i in range(STEPS)}
    return {name: array.astype(np.float32) for name, array in numbers.items()}


def network(seed: int, **more: np.ndarray) -> onnx.ModelProto:
    """Products with weights, a constant of the file's nodes added to each."""
    nodes, x = [], "x"
    for i in range(STEPS):
        constant = onnx.numpy_helper.from_array(np.full((), seed + i, np.float32))
        nodes.append(node("Constant", [], [f"c{i}"], value=constant))
        nodes.append(node("MatMul", [x, f"w{i}"], [f"m{i}"]))
        nodes.append(node("Add", [f"m{i}", f"c{i}"], [f"a{i}"]))
        x = f"a{i}"
    return model(nodes, [info("x", ["n", 8])], [x], arrays(seed) | more)


def expected(seed: int, x: np.ndarray) -> np.ndarray:
    for i, w in enumerate(arrays(seed).values()):
        x = x @ w + np.float32(seed + i)
    return x


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    onnx.save(network(1), tmp_path / "network.onnx")
    return tmp_path / "network.onnx"


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that are imported from now on."""
    seen: list[Any] = []
    import_model = compiler.import_model

    def counted(model: Any, *rest: Any) -> Any:
        seen.append(model)
        return import_model(model, *rest)

    monkeypatch.setattr(compiler, "import_model", counted)
    return seen


def check(compiled: Any, seed: int) -> None:
    np.testing.assert_allclose(compiled(X), expected(seed, X), rtol=2e-5, atol=1e-5)


def test_a_file_is_imported_once(path: Path, imports: list[Any]) -> None:
    first = compile_program(path)
    second = compile_program(str(path))
    assert len(imports) == 1
    assert second.manifest == first.manifest and second.objects == first.objects
    assert second.private == first.private and second.weights.keys() == first.weights.keys()
    for name, array in first.weights.items():
        np.testing.assert_array_equal(second.weights[name], array, strict=True)
    check(Model(second), 1)


def test_texts_are_those_of_an_import(path: Path, imports: list[Any]) -> None:
    first, second = tw.compile(path), tw.compile(path)
    assert len(imports) == 1
    for text in ("graph", "loops", "stablehlo"):
        assert second.show(text) == first.show(text)
    assert second.weights.keys() == first.weights.keys()


def test_texts_of_a_file_that_has_changed_or_gone_are_its_own(path: Path) -> None:
    created = tw.compile(path)
    later, last = tw.compile(path), tw.compile(path)
    onnx.save(network(2), path)
    check(later, 1)
    assert later.show("stablehlo") == created.show("stablehlo")
    path.unlink()
    for text in ("loops", "stablehlo"):
        assert last.show(text) == created.show(text)


def test_a_file_with_other_numbers_of_the_same_size_is_another(path: Path, imports: list[Any]) -> None:
    check(tw.compile(path), 1)
    before = path.stat()
    onnx.save(network(2), path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    for seen in (2, 2):
        check(tw.compile(path), 2)
        assert len(imports) == seen


@pytest.mark.parametrize("change", [{"dims": {"n": 3}}, {"dims": {"n": tw.dim(1, 4)}}, {"name": "other"}])
def test_stated_sizes_and_names_are_in_the_key(change: Mapping[str, Any], path: Path, imports: list[Any]) -> None:
    tw.compile(path)
    created = tw.compile(path, **change)
    assert len(imports) == 2
    later = tw.compile(path, **change)
    assert len(imports) == 2 and later.show("graph") == created.show("graph")
    check(later, 1)


def test_other_options_and_targets_share_the_entry(path: Path) -> None:
    tw.compile(path)
    narrow = compile_program(path, target="x86-64-v3", threads=2)
    assert (
        compile_program(path, target="x86-64-v3", threads=2).objects == narrow.objects != compile_program(path).objects
    )


def test_a_file_whose_tensors_are_in_another_has_no_entry(path: Path, imports: list[Any]) -> None:
    for seed in (3, 4):
        onnx.save(network(seed), path, save_as_external_data=True, location="numbers", size_threshold=0)
        check(tw.compile(path), seed)
        (path.parent / "numbers").unlink()
    assert len(imports) == 2


def test_a_file_with_more_bytes_than_its_nodes_are_worth_has_no_entry(
    path: Path, imports: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "NODE", path.stat().st_size // 64)
    tw.compile(path)
    tw.compile(path)
    assert len(imports) == 2


@pytest.mark.parametrize("damage", [b"", b"{}", None])
def test_an_entry_that_is_none_is_replaced(damage: bytes | None, path: Path, imports: list[Any]) -> None:
    tw.compile(path)
    (entry,) = (p.name for p in ObjectCache().folder.rglob("file-*"))
    if damage is None:  # of a program that is gone
        for program in ObjectCache().folder.rglob("program-*"):
            program.unlink()
    else:
        ObjectCache().put(entry, damage)
    for seen in (2, 2):
        check(tw.compile(path), 1)
        assert len(imports) == seen


def test_the_version_of_the_import_is_in_the_key(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {model_files.ModelFile.of(path, None, None)}
    monkeypatch.setattr(model_files, "import_version", lambda: "another")
    keys.add(model_files.ModelFile.of(path, None, None))
    assert len({file.key for file in keys if file is not None}) == 2
    assert model_files.ModelFile.of(path.parent / "absent.onnx", None, None) is None


def test_passes_that_are_to_be_seen_run(path: Path, imports: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tw.compile(path)
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    tw.compile(path)
    assert len(imports) == 2


def test_a_path_that_is_too_long_is_no_model(path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        tw.compile(path.parent / ("x" * 300))


def test_a_constant_has_any_name(path: Path, imports: list[Any]) -> None:
    """A constant may have the name of an entry's description: its numbers must not say which program a file has."""
    constant = onnx.numpy_helper.from_array(np.arange(8, dtype=np.float32))
    nodes = [node("Constant", [], ["about"], value=constant), node("Add", ["x", "about"], ["y"])]
    onnx.save(model(nodes, [info("x", ["n", 8])], ["y"]), path)
    for _ in range(2):
        program = compile_program(path)
        assert "about" in program.weights and len(imports) == 1
        np.testing.assert_array_equal(Model(program)(X), X + np.arange(8, dtype=np.float32))


def test_rules_that_are_registered_by_hand_are_in_the_key(path: Path) -> None:
    squash = onnx.helper.make_node("Squash", ["x"], ["y"], domain="com.my")
    onnx.save(model([squash], [info("x", ["n", 8])], ["y"], **{"com.my": 1}), path)
    for op, numpy in (("tanh", np.tanh), ("exp", np.exp)):

        def squashed(n: Call, op: str = op) -> Value:
            return n.emit(op, n.value(0))

        rule("com.my.Squash")(squashed)
        try:
            for _ in range(2):
                np.testing.assert_allclose(tw.compile(path)(X), numpy(X), rtol=1e-5)
        finally:
            del RULES["com.my.Squash"]
            plugins.discount(squashed)
