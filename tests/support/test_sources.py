"""The listing of a package's Python files."""

from __future__ import annotations

import gc
from pathlib import Path

import tilewright
from tilewright.support.sources import SIZE, own_files, own_files_in, python_files

PACKAGE = Path(tilewright.__file__).parent


def test_own_files_are_those_that_pathlib_sees() -> None:
    expected = {path.relative_to(PACKAGE).as_posix(): path.stat().st_size for path in PACKAGE.rglob("*.py")}
    assert {name: mark[SIZE] for name, mark in own_files()} == expected
    inside = {name: size for name, size in expected.items() if name.startswith("runtime/")}
    assert {name: mark[SIZE] for name, mark in own_files_in("runtime/")} == inside
    assert len(own_files()) == len(expected)


def test_collections_leave_marks_out() -> None:
    own_files()
    for _ in range(2):  # a pair is left out once its parts are
        gc.collect()
    assert not any(gc.is_tracked(file) or gc.is_tracked(file[1]) for file in own_files())


def test_byte_code_and_other_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "b.txt").write_text("1")
    for folder in ("inner", "inner/deep", "inner/__pycache__"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "c.py").write_text("22")
    files = [(name, mark[SIZE]) for name, mark in python_files(str(tmp_path))]
    assert files == [("a.py", 1), ("inner/c.py", 2), ("inner/deep/c.py", 2)]
    assert [name for name, _ in python_files(str(tmp_path), "inner/deep/")] == ["inner/deep/c.py"]
