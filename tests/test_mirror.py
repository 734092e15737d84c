"""Whether `tests/` mirrors `src/tilewright/`, and `python -m tests.where`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import mirror, where
from tests.mirror import ACROSS, ELSEWHERE, ROOT, SOURCE, TESTS
from tests.mutate import trial


def test_every_folder_of_the_source_has_tests() -> None:
    tested = set(mirror.test_folders())
    missing = [name for name in mirror.source_folders() if mirror.mirrored(name) not in tested]
    assert missing == [], "a folder of the source has no folder of tests, and ELSEWHERE in tests/mirror.py says nothing"


def test_every_folder_of_the_tests_mirrors_one() -> None:
    folders = [name for name in mirror.test_folders() if name.split("/")[0] not in ACROSS]
    others = [name for name in folders if not (SOURCE / name).is_dir()]
    assert others == [], "a folder of tests mirrors no folder of the source, and ACROSS in tests/mirror.py says nothing"


def test_nothing_is_said_of_folders_that_are_not_there() -> None:
    assert [name for name in ELSEWHERE if not (SOURCE / name).is_dir()] == []
    assert [name for name in ELSEWHERE if (TESTS / name).is_dir() and any((TESTS / name).glob("test_*.py"))] == []
    assert [name for name in ACROSS if not (TESTS / name).is_dir()] == []


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("transform/layout/columns.py", "transform/layout"),
        ("transform/regions/flatten.py", "frontend/onnx"),
        ("algorithms/winograd/plan/tiles.py", "algorithms/winograd"),
        ("builder.py", "builder"),
        ("compiler.py", "compiler"),
    ],
)
def test_where_a_files_tests_are(source: str, tests: str) -> None:
    assert mirror.folder_of_tests(SOURCE / source) == TESTS / tests


def test_importers_are_known() -> None:
    files = {path.relative_to(TESTS).as_posix() for path in where.importers(SOURCE / "arith" / "interval.py")}
    assert any(file.startswith("arith/") for file in files)
    assert Path(__file__).relative_to(TESTS).as_posix() not in files


def test_lines_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a map of one test file, of which two tests run line 3 of a source file and one runs line 5."""
    source, file = "src/tilewright/arith/interval.py", "tests/arith/test_interval.py"
    monkeypatch.setattr(trial, "MAP", tmp_path)
    monkeypatch.setattr(where, "MAP", tmp_path)
    monkeypatch.setattr(where.running, "__defaults__", (tmp_path,))
    (tmp_path / file).parent.mkdir(parents=True)
    data = {
        "tests": [[f"{file}::test_slow", 2.0], [f"{file}::test_quick", 0.5]],
        "lines": {source: {"3": [0, 1], "5": [0]}},
        "outside": {},
        "sources": {source: trial._digest(ROOT / source)},
    }
    existing = next((TESTS / "arith").glob("test_*.py")).relative_to(ROOT).as_posix()
    (tmp_path / f"{existing}.json").write_text(json.dumps(data))
    assert where.running(source, 3, 3) == {f"{file}::test_quick": 0.5, f"{file}::test_slow": 2.0}
    assert where.running(source, 4, 5) == {f"{file}::test_slow": 2.0}
    assert where.running(source, 6, 9) == {}
    assert where.main([f"{source}:5"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"    2.00 s  {file}::test_slow"


@pytest.mark.parametrize(
    ("name", "message"),
    [("tests/conftest.py", "no file of src/"), ("src/tilewright/compiler.py:a", "no lines"), ("src/no.py", "no file")],
)
def test_wrong_questions(name: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        where.main([name])
