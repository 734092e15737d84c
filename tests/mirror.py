"""The mirror: `tests/` has the folders of `src/tilewright/`, and says where a folder's tests are if not in its own."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, TESTS = ROOT / "src" / "tilewright", ROOT / "tests"

ELSEWHERE = {
    "codegen/linalg": "codegen/stablehlo",  # one graph as both texts, side by side
    "frontend/onnx/rules": "frontend/onnx",
    "frontend/stablehlo/rules": "frontend/stablehlo",
    "frontend/torch/rules": "frontend/torch",
    "onnxruntime/capi": "onnxruntime",
    "plans/attention": "ops",  # test_attention*.py, against the operator's reference
    "plans/idioms": "plans",
    "plans/pointwise": "plans",
    "plans/rows": "plans",
    "plans/vta": "codegen/vta",  # plans and code on its simulator
    "runtime/weights": "runtime",
    "serve/protocol": "serve",
    "serve/protocol/generated": "serve",
    "transform/passes": "transform/graph",  # one list, one file of goldens
    "transform/regions": "frontend/onnx",  # test_control.py, by models with loops and branches
}
"""Folders of the source whose tests are in the folder of others, with the reason where it is not that of a part."""

ACROSS = {
    "benchmarks": "the tools of benchmarks/",
    "builder": "builder.py",
    "compiler": "compiler.py and what stands beside it: whole programs",
    "docs": "the documents, executed",
    "emulated": "operators and plans on emulated machines",
    "examples": "the examples",
    "fuzz": "long random runs",
    "jax": "JAX's own test cases",
    "laws": "laws by hypothesis, over several rooms",
    "machines": "decisions, as known machines make them",
    "models": "whole models against ONNX Runtime",
    "mutate": "whether tests notice mistakes",
    "onnx": "ONNX's backend tests",
    "plugins": "plug-ins, by processes that install one",
    "torch_opinfo": "PyTorch's list of its operators",
    "words": "the lint of words",
}
"""Folders of the tests that mirror no folder of the source, with what they test."""


def source_folders() -> list[str]:
    """The folders of the source that have modules, by their names from its root."""
    folders = {path.parent for path in SOURCE.rglob("*.py") if path.name != "__init__.py"} - {SOURCE}
    return sorted(folder.relative_to(SOURCE).as_posix() for folder in folders)


def test_folders() -> list[str]:
    """The folders of the tests that have test files."""
    folders = {path.parent for path in TESTS.rglob("test_*.py")} - {TESTS}
    return sorted(folder.relative_to(TESTS).as_posix() for folder in folders)


def mirrored(folder: str) -> str:
    """The folder of the tests of a folder of the source, as names from their roots: one folder for all tests of an
    algorithm."""
    room, *rest = folder.split("/")
    return ELSEWHERE.get(folder, "/".join((room, *rest[:1])) if room == "algorithms" else folder)


def folder_of_tests(source: Path) -> Path:
    """The folder of the tests of a source file."""
    folder = source.parent.relative_to(SOURCE).as_posix()
    if folder == ".":
        return TESTS / ("builder" if source.stem == "builder" else "compiler")
    return TESTS / mirrored(folder)
