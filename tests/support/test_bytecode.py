"""Bytecode: modules without it are noticed. The wheel has none, and modules in few bytes, so that it stays small."""

from __future__ import annotations

import base64
import csv
import dis
import hashlib
import importlib
import shlex
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from types import CodeType

import pytest

from tests.dense import dense
from tests.wheel import pack
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
    """Each module deflated by zlib, with its entries in archive and RECORD. Of 3,273,377 such bytes `make wheel` made
    2,888,003, and its bar is 3,000,000: 3,400,000 here, less a reserve."""
    size = 0
    for path in PACKAGE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            name = len(str(path.relative_to(PACKAGE.parent)))
            size += len(zlib.compress(path.read_bytes(), 9)) + 30 + 46 + 2 * name + 45
    assert size < 3_380_000


def test_an_archive_is_packed_anew(tmp_path: Path) -> None:
    members = {"package/__init__.py": b"", "package/part.py": b"number = 1\n" * 99, "package/tool.sh": b"# exit\n"}
    with zipfile.ZipFile(tmp_path / "built.whl", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.getinfo("package/tool.sh").external_attr = 0o100755 << 16
    pack(tmp_path / "built.whl", tmp_path / "packed.whl", lambda data: zlib.compress(data, 9)[2:-4])
    with zipfile.ZipFile(tmp_path / "built.whl") as old, zipfile.ZipFile(tmp_path / "packed.whl") as new:
        assert new.testzip() is None and new.namelist() == list(members)
        assert all(new.read(name) == content for name, content in members.items())
        attributes = [[(i.date_time, i.external_attr, i.CRC) for i in a.infolist()] for a in (old, new)]
        assert attributes[0] == attributes[1] and attributes[1][-1][1] == 0o100755 << 16
    assert (tmp_path / "packed.whl").stat().st_size < (tmp_path / "built.whl").stat().st_size


def test_the_record_has_the_digests_of_what_is_packed(tmp_path: Path) -> None:
    record = 'package/part.py,sha256=old,9\n"package/a,b.txt",sha256=old,3\nit-1.dist-info/RECORD,,\n'
    members = {
        "package/part.py": "if 1:\n    x = 2  # two\n",
        "package/a,b.txt": "# text\n",
        "it-1.dist-info/RECORD": record,
    }
    with zipfile.ZipFile(tmp_path / "built.whl", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    pack(tmp_path / "built.whl", tmp_path / "packed.whl", lambda data: zlib.compress(data, 9)[2:-4])
    with zipfile.ZipFile(tmp_path / "packed.whl") as new:
        assert new.testzip() is None and new.read("package/part.py") == b"if 1:\n x = 2\n"
        assert new.read("package/a,b.txt") == b"# text\n"
        rows = list(csv.reader(new.read("it-1.dist-info/RECORD").decode().splitlines()))
        assert rows.pop() == ["it-1.dist-info/RECORD", "", ""]
        for name, digest, size in rows:
            content = new.read(name)
            raw = base64.urlsafe_b64decode(digest.removeprefix("sha256=") + "=")
            assert raw == hashlib.sha256(content).digest() and int(size) == len(content)
        assert [row[0] for row in rows] == ["package/part.py", "package/a,b.txt"]


SOURCE = '''\
"""One.

    indented
"""
def f(
    a,  # first
      b,
):
    """Adds.

    Args:
        a: "# no comment"
    """
    # a line by itself
    limit = a
    """The limit,
    as a note."""
    text = """
    stays  # as it is
        {a}
"""
    more = f"""
    {a:
    >3}
        stays"""
    if a:
        return "#", \\
            b
    def inner():
        """Not shown."""
        return text
    return inner() + more
class _Hidden:
    """Not shown."""
    def method(self):
        """All
        of it."""
    def __call__(self):
        """Not
        shown."""
        return 1
'''


def test_modules_in_fewer_bytes() -> None:
    assert dense(SOURCE).split("\n") == [
        *('"""One.', "", "    indented", '"""', "def f(", "a,", "b,", "):", ' """Adds.', "", "Args:"),
        *(
            '    a: "# no comment"',
            '"""',
            "",
            " limit = a",
            "",
            "",
            ' text = """',
            "    stays  # as it is",
            "        {a}",
            '"""',
        ),
        *(' more = f"""', "    {a:", "    >3}", '        stays"""', " if a:", '  return "#", \\', "   b"),
        *(" def inner():", "", "  return text", " return inner() + more", "class _Hidden:", "", " def method(self):"),
        *('  """All', 'of it."""', " def __call__(self):", "", "", "  return 1", ""),
    ]


@pytest.mark.parametrize(
    "name", ["bundle/c.py", "codegen/llvm/cast.py", "bundle/web.py", "runtime/glue.py", "cli/main.py"]
)
def test_a_module_in_fewer_bytes_is_the_same(name: str) -> None:
    """Bytecode, with its lines, but for docstrings, which are as `inspect` shows them."""
    source = (PACKAGE / name).read_text()
    old, new = (_code(compile(text, name, "exec", optimize=2)) for text in (source, dense(source)))
    assert new == old and len(dense(source)) < len(source)


def _code(code: CodeType) -> list[object]:
    steps = [i for i in dis.get_instructions(code) if i.opname != "NOP"]  # which Python leaves where a string was
    jumps = {*dis.hasjrel, *dis.hasjabs}
    words = [(i.opname, None if i.opcode in jumps else i.arg, i.positions and i.positions.lineno) for i in steps]
    own = [words, code.co_names, code.co_varnames]
    return [own, *(_code(c) if isinstance(c, CodeType) else c for c in code.co_consts)]
