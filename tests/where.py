"""The tests that run a line: `python -m tests.where src/tilewright/transform/layout/columns.py:120-140`.

The answer comes from the map of lines that `make mutate` makes (`tests/mutate`), for the test files that are recorded
there; `--record` first records those of the mirrored folder, or others that follow it. Of files that are not recorded
the command names those that import the module.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mirror import ROOT, folder_of_tests
from tests.mutate.trial import MAP, Recorded, Tree


def importers(source: Path) -> Iterator[Path]:
    """The test files that import a module of `src/`, or something of it."""
    parts = source.relative_to(ROOT / "src").with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    room, _, last = module.rpartition(".")
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if last not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.ImportFrom(module=name, names=names):
                    if name == module or (name == room and any(alias.name == last for alias in names)):
                        yield path
                        break
                case ast.Import(names=names) if any(alias.name == module for alias in names):
                    yield path
                    break


def running(path: str, first: int, last: int, folder: Path = MAP) -> dict[str, float]:
    """The recorded tests that run one of these lines of a source file, with their seconds, the quickest first."""
    tests: dict[str, float] = {}
    for recorded in sorted(folder.rglob("*.json")):
        file = recorded.relative_to(folder).with_suffix("").as_posix()
        if (ROOT / file).exists():
            tests |= Recorded.read(file).covering(path, first, last)
    return dict(sorted(tests.items(), key=lambda test: test[1]))


def _lines(text: str) -> tuple[Path, int, int]:
    """The file and the lines of `FILE`, `FILE:LINE` or `FILE:FIRST-LAST`."""
    name, _, lines = text.partition(":")
    path = (ROOT / name).resolve()
    if not path.is_relative_to(ROOT / "src") or not path.is_file():
        raise SystemExit(f"where: {name} is no file of src/")
    first, _, last = lines.partition("-")
    try:
        numbers = (int(first), int(last or first)) if lines else (1, len(path.read_text().splitlines()))
    except ValueError:
        raise SystemExit(f"where: {lines!r} are no lines: expected LINE or FIRST-LAST") from None
    return path, *numbers


def _record(files: Sequence[str]) -> None:
    """Record test files, or all of folders."""
    with tempfile.TemporaryDirectory(prefix="tilewright-where-", ignore_cleanup_errors=True) as folder:
        tree = Tree(Path(folder))
        try:
            for name in files:
                path = ROOT / name
                for file in [path] if path.is_file() else sorted(path.rglob("test_*.py")):
                    print(f"recording {file.relative_to(ROOT)}", file=sys.stderr)
                    tree.record(file.relative_to(ROOT).as_posix())
        finally:
            tree.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.where", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("source", metavar="FILE[:LINE[-LINE]]", help="a file of src/, and lines of it")
    parser.add_argument("--record", nargs="*", metavar="TESTS", help="record these test files or folders first")
    options = parser.parse_args(arguments)
    path, first, last = _lines(options.source)
    mirrored = folder_of_tests(path)
    if options.record is not None:
        _record(options.record or [mirrored.relative_to(ROOT).as_posix()])
    tests = running(path.relative_to(ROOT).as_posix(), first, last)
    for name, seconds in tests.items():
        print(f"{seconds:8.2f} s  {name}")
    known = {name.partition("::")[0] for name in tests}
    print(f"tests of its folder: {mirrored.relative_to(ROOT)}")
    for file in importers(path):
        if file.relative_to(ROOT).as_posix() not in known:
            print(f"imports it, not known to run these lines: {file.relative_to(ROOT)}")
    if not tests:
        print("no recorded test runs these lines; --record records the folder's", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
