"""Bytecode: modules without it are noticed, and the wheel has none, so that it stays small."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tilewright.support import bytecode

PACKAGE = Path(bytecode.__file__).parents[1]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package of two modules without bytecode."""
    name = f"uncompiled_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    for module in ("__init__.py", "part.py"):
        (tmp_path / name / module).write_text("number = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return name


def test_a_package_that_python_could_not_compile(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # as in a folder that cannot be written
    importlib.import_module(f"{package}.part")
    assert bytecode.missing(package) == (package, f"{package}.part")
    subprocess.run(shlex.split(bytecode.command(package)), check=True)
    assert bytecode.missing(package) == ()


def test_a_package_that_python_compiles_as_it_goes(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    importlib.import_module(f"{package}.part")
    assert bytecode.missing(package) == ()


def test_the_wheel_is_small() -> None:
    """Under 3 MiB: each module deflated as a wheel does it, with its entries in the archive and in RECORD."""
    size = 0
    for path in PACKAGE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            name = len(str(path.relative_to(PACKAGE.parent)))
            size += len(zlib.compress(path.read_bytes(), 6)) + 30 + 46 + 2 * name + 45
    assert size < 3 << 20
