"""The documents are executed: each Python block of README.md and docs/**/*.md runs, block after block in one namespace.

A fenced block marked `output` that follows holds what the Python block before it prints, exactly;
`pytest tests/docs --update-golden` rewrites it. `<!-- no-test: reason -->` on the line before a block leaves it out;
`<!-- needs: torch -->` there ends the test of the page where that package is missing (`make test` has no PyTorch; `make
torch` runs the pages again). Weight stores that a page makes stand in its temporary folder.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import re
import tokenize
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
        if 'backend="tilewright"' in "\n".join(block.lines):
            from tests.dynamo.torch_backend import register

            register()
        if block.mark == "python":
            out = io.StringIO()
            # Blank lines before the code make tracebacks show the page's line numbers.
            code = compile("\n" * block.start + "\n".join(block.lines), str(page), "exec", dont_inherit=True)
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


LINKED = [*PAGES, *sorted((ROOT / "benchmarks").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def broken_links(page: Path, text: str) -> list[str]:
    """Links of a page to files that are not there, or to headings that the page they lead to lacks."""
    broken = []
    for link in LINK.findall(text):
        target, _, heading = link.partition("#")
        path = page.parent / target if target else page
        if "://" in link:
            continue
        if not path.exists() or (heading and heading not in anchors(path.read_text())):
            broken.append(link)
    return broken


def anchors(text: str) -> set[str]:
    """The names by which links reach a page's headings: small letters, hyphens for spaces, nothing else."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


NAMED = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:py|md|txt|toml)|(?:[\w-]+/)+)`")
BUILT = ("build/",)
"""Where files stand that commands make."""
PACKAGE = ROOT / "src" / "tilewright"


def missing_files(text: str, *roots: Path) -> list[str]:
    """Files and folders between backticks that are under none of the roots; a lone name may be in any folder."""
    present = names_of_files()
    return [
        name
        for name in NAMED.findall(text)
        if not any((root / name).exists() for root in roots)
        and not name.startswith(BUILT)
        and name.rstrip("/") not in present
    ]


@functools.cache
def names_of_files() -> frozenset[str]:
    folders = (ROOT / name for name in ("src", "tests", "benchmarks", "examples", "docs"))
    return frozenset(path.name for folder in folders for path in folder.rglob("*"))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "README.md"], ids=name_of)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    assert missing_files(page.read_text(), ROOT, PACKAGE, page.parent) == []


def prose(source: str) -> str:
    """The docstrings and comments of a file."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join(t.string for t in tokens if t.string.startswith(('"""', "#")))


def test_files_that_docstrings_name_are_there() -> None:
    """Docstrings and comments of the sources: paths from the package or its room, and names of files beside them."""
    missing = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        roots = (ROOT, PACKAGE, PACKAGE / path.relative_to(PACKAGE).parts[0], path.parent)

        def absent(text: str, roots: tuple[Path, ...] = roots) -> list[str]:
            named = {name for name in NAMED.findall(text) if name.endswith(".py")}
            return [name for name in named if not any((root / name).exists() for root in roots)]

        # To tell prose from other text takes most of the time: where all names are there, it does not matter.
        if absent(source) and absent(prose(source)):
            missing[name_of(path)] = absent(prose(source))
    assert missing == {}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "README.md"], ids=name_of)
def test_commands_that_a_page_names_are_there(page: Path) -> None:
    """Targets of make, and modules that are run."""
    text = page.read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:`|^)make ([a-z0-9-]+)", text, re.M))
    assert named <= targets, f"{page}: no such targets: {named - targets}"
    for module in re.findall(r"python -m ((?:benchmarks|tests|examples)[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page}: no module {module}"


def test_targets_of_make_stand_once() -> None:
    targets = re.findall(r"^([a-z0-9-]+):(?!=)", (ROOT / "Makefile").read_text(), re.M)
    phony = re.findall(r"^(.+)\.PHONY", (ROOT / "Makefile").read_text(), re.M)
    assert sorted(set(targets)) == sorted(targets) and phony == []


@pytest.mark.parametrize(("library", "stamp"), [("torch", "TORCH_STAMP"), ("jax", "JAX_STAMP")])
def test_tests_that_need_an_extra_run_in_a_target_that_installs_it(library: str, stamp: str) -> None:
    """`make test` has neither extra and skips them, so a file that no other target names would never run."""
    recipes = re.findall(r"^[a-z0-9-]+:(?!=)([^\n#]*).*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    named = [p for needs, recipe in recipes if f"$({stamp})" in needs for p in re.findall(r"\btests/[\w/.*]+", recipe)]
    paths = [path for pattern in named for path in ROOT.glob(pattern)]
    run = {file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])}
    needs_it = re.compile(rf"importorskip\(\s*\"{library}(?:lib)?[\".]|^\s*(?:import|from) {library}\b", re.M)
    assert run
    assert [f for f in (ROOT / "tests").rglob("test_*.py") if needs_it.search(f.read_text()) and f not in run] == []


def test_what_is_missing_is_located() -> None:
    page = ROOT / "docs" / "tour.md"
    assert broken_links(page, "[a](ir.md) [b](none.md) [c](tour.md#layers) [d](#none) [e](https://a.b/c)") == [
        "none.md",
        "#none",
    ]
    text = "`ir/loops.py`, `loops.py`, `ir/none.py`, `none.py`, `transform/loops/`, `transform/none/`, `build/none.txt`"
    assert missing_files(text, ROOT, PACKAGE) == ["ir/none.py", "none.py", "transform/none/"]


DECISIONS = ROOT / "docs" / "decisions"
PARTS = ["Context", "Decision", "What was measured", "How to measure again", "Where in the code"]


def test_each_decision_is_listed_once_under_its_title() -> None:
    listed = re.findall(r"^- \[(.+)\]\(([\w-]+\.md)\)$", (DECISIONS / "README.md").read_text(), re.M)
    titles = {p.name: p.read_text().splitlines()[0].removeprefix("# ") for p in DECISIONS.glob("*.md")}
    del titles["README.md"]
    assert sorted(listed) == sorted((title, name) for name, title in titles.items())


@pytest.mark.parametrize("page", sorted(DECISIONS.glob("[a-z0-9]*.md")), ids=lambda p: p.stem)
def test_a_decision_says_what_how_and_where(page: Path) -> None:
    parts = re.split(r"^## (.+)$", page.read_text(), flags=re.M)
    assert parts[1::2] == PARTS
    assert all(part.strip() for part in parts[2::2]), "a part is empty"


def test_the_glossary_has_each_word_once_in_order() -> None:
    entries = re.findall(
        r"^- \*\*(.+?)\*\*[^\n]*(?:\n  [^\n]*)*", text := (ROOT / "docs" / "glossary.md").read_text(), re.M
    )
    assert len(entries) > 50
    assert [e.lower() for e in entries] == sorted({e.lower() for e in entries})
    assert not re.findall(r"^- .*\n  .*\n  ", text, re.M), "an entry has more than two lines"


def test_the_tour_shows_the_table_of_flags() -> None:
    assert flags.markdown() in (ROOT / "docs" / "tour.md").read_text(), "put flags.markdown() into docs/tour.md"


def test_blocks_are_located() -> None:
    text = (
        "a\n```python\nx = 1\n```\n<!-- no-test: why -->\n```python\ny\n```\n<!-- needs: torch -->\n```output\n1\n```\n"
    )
    assert [(b.mark, b.lines, b.skipped, b.needs) for b in blocks_of(text)] == [
        ("python", ["x = 1"], False, None),
        ("python", ["y"], True, None),
        ("output", ["1"], False, "torch"),
    ]
