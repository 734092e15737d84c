"""What the wheel holds beside the modules: their bytecode, valid wherever and whenever it is installed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_modules_are_built_with_their_bytecode(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="it builds the wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    package = tmp_path / "src/tilewright"
    shutil.copytree(ROOT / "src/tilewright/support", package / "support", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "src/tilewright/__init__.py", package / "__init__.py")
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", "built"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    modules = sorted((tmp_path / "built").rglob("*.py"))
    assert len(modules) > 10
    for module in modules:
        kept = Path(importlib.util.cache_from_source(module)).read_bytes()
        assert kept[:4] == importlib.util.MAGIC_NUMBER
        # PEP 552: by the source's digest, which is looked at: installers give files times of their own.
        assert int.from_bytes(kept[4:8], "little") == 3
        assert kept[8:16] == importlib.util.source_hash(module.read_bytes())
