"""The key of what is kept: each input counts, alone; so does every source file that can change what is made."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, replace
from math import isinf
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import pytest

import tilewright
from tilewright import identity as module
from tilewright.identity import RELATED, UNRELATED, identity, marked_digest, source_digest, stored_digest
from tilewright.targets.nvidia import A100
from tilewright.targets.target import Target

PACKAGE = Path(tilewright.__file__).parent
TARGET = Target.parse("znver4")
PARAMETERS = ["workload", "target", "options", "decisions", "extensions"]
LOOKED_UP = ["code_version", "llvm_version"]
"""Inputs that are looked up rather than given."""

CHANGES: dict[str, Callable[[], str]] = {
    "workload": lambda: identity("x", TARGET),
    "target": lambda: identity("w", Target.parse("neoverse-v1")),
    "target's threads": lambda: identity("w", replace(TARGET, threads=2)),
    "options": lambda: identity("w", TARGET, options="bf16"),
    "decisions": lambda: identity("w", TARGET, decisions=["a"]),
    "another decision": lambda: identity("w", TARGET, decisions=["b"]),
    "two decisions": lambda: identity("w", TARGET, decisions=["a", "b"]),
    "decisions in one": lambda: identity("w", TARGET, decisions=["a, b"]),
    "extensions": lambda: identity("w", TARGET, extensions=["a"]),
    "all in one place": lambda: identity("w bf16 a", TARGET),
}


def test_each_input_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"nothing": identity("w", TARGET), **{name: change() for name, change in CHANGES.items()}}
    monkeypatch.setenv("TILEWRIGHT_SKETCHES", "never")
    keys["sketches"] = identity("w", TARGET)
    monkeypatch.undo()
    for name in LOOKED_UP:
        with monkeypatch.context() as patched:
            patched.setattr(module, name, lambda: "another")
            keys[name] = identity("w", TARGET)
    assert len(set(keys.values())) == len(keys)
    assert all(re.fullmatch("[0-9a-f]{32}", k) for k in keys.values())
    assert identity("w", TARGET) == keys["nothing"] == identity("w", replace(TARGET, cores=64))


def test_the_inputs_are_these() -> None:
    """A change that adds an input adds a change above, and a line to the module's list."""
    assert list(inspect.signature(identity).parameters) == PARAMETERS
    assert {name.split("'")[0] for name in CHANGES} >= set(PARAMETERS)
    listed = re.findall(r"^    (\w+) {2,}", module.__doc__ or "", re.MULTILINE)
    assert listed == [
        *PARAMETERS,
        "sketches",
        *(name.removesuffix("_version").replace("code", "compiler") for name in LOOKED_UP),
    ]


def test_fields_of_a_target_are_in_its_fingerprint() -> None:
    """All of its parts, but those that no code depends on."""
    without = [name for name, other in changed(TARGET) if other.fingerprint == TARGET.fingerprint]
    assert without == ["ceilings.frequency", "costs.origins", "cores"]


def changed(part: Any) -> Iterator[tuple[str, Any]]:
    """A target, or a part of one, with each field of its own and of its parts changed in turn."""
    for field in fields(part):
        match getattr(part, field.name):
            case bool() as value:
                yield field.name, replace(part, **{field.name: not value})
            case tuple() as value:
                yield field.name, replace(part, **{field.name: (*value, "other")})
            case float() as value if isinf(value):
                yield field.name, replace(part, **{field.name: 0.0})
            case str() | int() | float() as value:
                yield field.name, replace(part, **{field.name: value + ("x" if isinstance(value, str) else 1)})
            case None:
                yield field.name, replace(part, **{field.name: A100})
            case inner:
                for name, other in changed(inner):
                    yield f"{field.name}.{name}", replace(part, **{field.name: other})


def test_llvm_is_named_with_its_version() -> None:
    version = module.llvm_version()
    assert llvmlite.__version__ in version and ".".join(map(str, llvm.llvm_version_info)) in version


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package's sources."""
    folder = tmp_path_factory.mktemp("sources") / "tilewright"
    return Path(shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("codegen/llvm/emit.py", True),
        ("compiler.py", True),
        ("runtime/manifest.py", True),
        ("runtime/engine.py", False),
        ("frontend/__init__.py", False),
        ("cli/main.py", False),
    ],
)
def test_sources_that_count(name: str, counts: bool, copied: Path) -> None:
    text = (copied / name).read_text()
    before = source_digest(copied)
    assert before == module.code_version()
    (copied / name).write_text(text + "# more\n")
    assert (source_digest(copied) != before) == counts
    (copied / name).write_text(text)


def test_names_of_sources_count(tmp_path: Path) -> None:
    (tmp_path / "ir").mkdir()
    (tmp_path / "ir" / "a.py").write_text("x = 1\n")
    before = source_digest(tmp_path)
    (tmp_path / "ir" / "a.py").rename(tmp_path / "ir" / "b.py")
    assert source_digest(tmp_path) != before


def test_changed_sources_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where a change leaves a file's size and its time of writing as they were; not where nothing has changed."""
    read: list[str] = []

    def counting(root: Path, unrelated: Collection[str], files: module.Files) -> str:
        read.append(source_digest(root, unrelated, files))
        return read[-1]

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "source_digest", counting)
    root = tmp_path / "package"
    (root / "ir").mkdir(parents=True)
    source = root / "ir" / "a.py"
    source.write_text("x = 1\n")
    stored_digest(root)
    assert stored_digest(root) == read[1], "files that changed just now are always read"

    monkeypatch.setattr(module, "_RECENT", 0)
    assert [stored_digest(root) for _ in range(3)] == [read[0]] * 3 and len(read) == 3
    before = source.stat()
    time.sleep(0.05)  # more than a step of the file system's clock
    source.write_text("x = 2\n")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert stored_digest(root) == read[3] != read[0]
    for entry in (tmp_path / "cache").rglob("source-*"):
        entry.write_bytes(entry.read_bytes()[:-1] + b"z")
    assert stored_digest(root) == read[4] == read[3], "a broken entry is read as absent"


def test_marks_tell_changed_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without reading a file, of folders too whose text changes nothing that is made of a graph."""
    (tmp_path / "frontend").mkdir()
    source = tmp_path / "frontend" / "a.py"
    source.write_text("x = 1\n")
    assert marked_digest(tmp_path) == source_digest(tmp_path, ()), "files that changed just now are read"
    read: list[Path] = []
    monkeypatch.setattr(module, "source_digest", lambda root, *_: read.append(root))
    monkeypatch.setattr(module, "_RECENT", 0)
    before, then = marked_digest(tmp_path), source.stat()
    time.sleep(0.05)  # more than a step of the file system's clock
    source.write_text("x = 2\n")
    os.utime(source, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert marked_digest(tmp_path) == marked_digest(tmp_path) != before
    assert not read


HARMLESS = {
    "cli.main": "the command line, which `python -m tilewright` starts",
    "frontend.onnx.left": "the arrays of a file's tensors, which are weights, not code",
    "frontend.read": "reads models: what it makes, a graph, is in the key",
    "measure.calibration": "the host's ceilings, which are the target's",
    "measure.outer": "the host's outer levels of memory, which are the target's",
    "native.assembler": "what exports bring along; they are not kept",
    "native.elf": "checks an object that a user's stage brings, which is not kept",
    "native.link": "makes LLVM text that a user's stage brings executable here; that is not kept",
    "native.shared": "how exports are written; they are not kept",
    "records.collecting": "notes what is decided, and decides nothing",
    "records.lookup": "which records answer, and the answers are in the key",
    "records.places": "where they are",
    "runtime.compilers": "compilers of plug-ins: what they make is a constant of the graph, which is in the key",
    "runtime.interop": "arrays that a user's stage is called with",
    "runtime.kernel": "calls of a schedule's function, which is not kept",
    "runtime.native": "the runtime's own code, kept by its own text",
    "runtime.program": "holds what was made; its text is not kept",
    "runtime.runner": "calls",
    "runtime.threads": "checks the number of threads, which is the target's",
    "support.background": "when something is compiled, not what",
    "support.classes": "how classes are made, which are those of the standard library",
    "support.collection": "when memory is freed, not what is compiled",
    "support.digest": "BLAKE2b, as the standard library has it",
    "support.copies": "which process compiles something, not what",
    "support.discover": "which folders of algorithms there are, whose text counts",
    "support.depth": "how deep functions may call each other, not what they give",
    "support.cache": "what keeps, and checks every entry",
    "support.errors": "what is raised",
    "support.flags": "what is printed, how much is checked, and which target is this machine, which is in the key",
    "support.log": "what is printed",
    "support.machine": "the host, which is the target",
    "support.plugins": "what it loads is in the key by its digest",
    "support.sources": "the list of the files whose digest is in the key",
    "support.progress": "what a user sees of a compile while it runs",
    "support.options": "what callers may say; what they say is in the key",
}
"""Modules of the unrelated folders that the compiler imports, and why they do not count."""


def _imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, wherever in it, less those that only type checkers read."""
    tree = ast.parse(path.read_text())
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    members = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in skipped and node.module is not None:
            name = node.module
            members |= {f"{name}.{a.name}" if _is_module(f"{name}.{a.name}") else name for a in node.names}
        elif isinstance(node, ast.Import) and node not in skipped:
            members |= {a.name for a in node.names}
    return {name.removeprefix("tilewright.") for name in members if name.startswith("tilewright.")}


def _is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def test_what_the_compiler_imports_counts_or_is_known_not_to() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert set(UNRELATED) < folders and all((PACKAGE / name).is_file() for name in RELATED)
    needed: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] not in UNRELATED:
            needed |= {name for name in _imports(path) if name.split(".")[0] in UNRELATED}
    assert needed - {name.removesuffix(".py").replace("/", ".") for name in RELATED} == set(HARMLESS)
