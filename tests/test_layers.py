"""Imports that import-linter does not see: those of the package itself, which stands above all of its rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "tilewright"
ABOVE = ("cli", "serve", "ort", "onnxruntime")
"""Rooms that may ask the package for its public names and its version."""
PACKAGE = re.compile(r"\btilewright\b(?!\.)")
"""The package's own name. A file without it imports modules of the package only, and need not be parsed."""


def imports_of_package(path: Path) -> Iterator[int]:
    """The lines in which a file imports the package rather than a module of it."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text if PACKAGE.search(text) else "")):
        match node:
            case ast.Import(names=names) if any(alias.name == "tilewright" for alias in names):
                yield node.lineno
            case ast.ImportFrom(module="tilewright", names=names):
                if not all((ROOT / a.name).is_dir() or (ROOT / f"{a.name}.py").exists() for a in names):
                    yield node.lineno


def test_no_room_imports_the_package() -> None:
    upward = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in ABOVE
        for line in imports_of_package(path)
    ]
    assert upward == []


def test_an_upward_import_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("import tilewright\nfrom tilewright import te\nfrom tilewright import compile as c\n")
    assert list(imports_of_package(path)) == [1, 3]
