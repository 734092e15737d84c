"""The documents are executed: each Python block of README.md and docs/**/*.md runs, block after block in one namespace.

A fenced block marked `output` that follows holds what the Python block before it prints, exactly;
`pytest tests/docs --update-golden` rewrites it. `<!-- no-test: reason -->` on the line before a block leaves it out;
`<!-- needs: torch -->` there ends the test of the page where that package is missing (`make test` has no PyTorch; `make
torch` runs the pages again). Weight stores that a page makes stand in its temporary folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilewright.support import flags

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NO_TEST = re.compile(r"<!-- no-test: \S.*-->")
NEEDS = re.compile(r"<!-- needs: (\w+) -->")


@dataclass
class Block:
    """A fenced block: its language or mark, its first line's number (0-based), its lines, whether it is left out, and
    the package that it and what follows need."""

    mark: str
    start: int
    lines: list[str]
    skipped: bool
    needs: str | None = None


def blocks_of(text: str) -> list[Block]:
    blocks: list[Block] = []
    current: Block | None = None
    before = ""
    for number, line in enumerate(text.splitlines()):
        if current is not None:
            if line.strip() == "```":
                blocks.append(current)
                current = None
            else:
                current.lines.append(line)
        elif line.startswith("```"):
            needs = NEEDS.fullmatch(before.strip())
            skipped = bool(NO_TEST.fullmatch(before.strip()))
            current = Block(line[3:].strip(), number + 1, [], skipped, needs and needs[1])
        before = line
    assert current is None, "a fenced block is not closed"
    return blocks


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_STORE_DIR", str(tmp_path / "stores"))
    text = page.read_text()
    namespace: dict[str, object] = {"__name__": "__docs__"}
    printed: str | None = None
    corrections: list[tuple[Block, list[str]]] = []
    for block in blocks_of(text):
        if block.skipped:
            continue
        if block.needs and importlib.util.find_spec(block.needs) is None:
            pytest.skip(f"from line {block.start} on this page needs {block.needs}")
        if block.mark == "python":
            out = io.StringIO()
            # Blank lines before the code make tracebacks show the page's line numbers.
            code = compile("\n" * block.start + "\n".join(block.lines), str(page), "exec")
            with contextlib.redirect_stdout(out):
                exec(code, namespace)
            printed = out.getvalue()
        elif block.mark == "output":
            assert printed is not None, f"{page}:{block.start}: an output block without a Python block before it"
            lines = [line.rstrip() for line in printed.rstrip().splitlines()]
            if request.config.getoption("--update-golden"):
                corrections.append((block, lines))
            else:
                assert lines == block.lines, f"{page}:{block.start}: the page shows other output"
    if corrections:
        rewritten = text.splitlines()
        for block, lines in reversed(corrections):
            rewritten[block.start : block.start + len(block.lines)] = lines
        page.write_text("\n".join(rewritten) + "\n")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: link to {target}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "README.md"], ids=name_of)
def test_commands_and_files_are_there(page: Path) -> None:
    """Targets of make, modules that are run, and files of the source that a page names."""
    text = page.read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:`|^)make ([a-z0-9-]+)", text, re.M))
    assert named <= targets, f"{page}: no such targets: {named - targets}"
    for module in re.findall(r"python -m ((?:benchmarks|tests|examples)[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page}: no module {module}"
    roots = (ROOT, ROOT / "src" / "tilewright", page.parent)
    for name in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        assert any((root / name).exists() for root in roots), f"{page}: no file {name}"


def test_the_tour_shows_the_table_of_flags() -> None:
    assert flags.markdown() in (ROOT / "docs" / "tour.md").read_text(), "put flags.markdown() into docs/tour.md"


def test_blocks_are_found() -> None:
    text = (
        "a\n```python\nx = 1\n```\n<!-- no-test: why -->\n```python\ny\n```\n<!-- needs: torch -->\n```output\n1\n```\n"
    )
    assert [(b.mark, b.lines, b.skipped, b.needs) for b in blocks_of(text)] == [
        ("python", ["x = 1"], False, None),
        ("python", ["y"], True, None),
        ("output", ["1"], False, "torch"),
    ]
