"""The comparison of code between revisions: digests do not depend on symbols, and every kind of change is seen."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import bytes as bytes_tool
from benchmarks import code_cases, code_probe, models
from benchmarks.bytes import Revision, Row, Worker, compare, differences
from benchmarks.code_cases import Case
from tilewright.targets.target import Target

_A, _B = "0" * 32, "f" * 32


def _entry(first: str, second: str) -> str:
    """Calls of two kernels, their declarations sorted by symbol."""
    calls = [f"  call void @tw_{s}(ptr %slot0, i64 %tid)" for s in (first, second)]
    declarations = {first: "(ptr, i64)", second: "(ptr, ptr)"}
    return "\n".join([*calls, *(f"declare void @tw_{s}{declarations[s]}" for s in sorted(declarations)), ""])


def _row(entry: str = "e", machine: str = "m", **kernels: str) -> Row:
    """Kernels: a label, and the digests of its kernels, a letter each."""
    return {"machine": machine, "entry": entry, "kernels": [[k, d] for k, ds in kernels.items() for d in ds]}


def test_text_without_its_symbols() -> None:
    assert _entry(_A, _B) != _entry(_B, _A)
    assert code_probe.canonical(_entry(_A, _B)) == code_probe.canonical(_entry(_B, _A))
    assert "tw_kernel0(ptr, i64)" in code_probe.canonical(_entry(_B, _A))
    assert code_probe.canonical("call void @tw_barrier(ptr %barrier)") == "call void @tw_barrier(ptr %barrier)"


def _kernel(first: str, second: str, at: str) -> str:
    return f"define void @{_A}(ptr align 4 {first}, ptr {second}) {{\n  %x.1 = load float, ptr {at}\n  ret void\n}}\n"


def test_parameters_are_numbered() -> None:
    plain = code_probe.canonical(_kernel("%x", "%y", "%x"))
    assert "ptr %parameter0" in plain and "%x.1" in plain
    assert code_probe.canonical(_kernel('%"a b"', "%x", '%"a b"')) == plain
    assert code_probe.canonical(_kernel("%y", "%x", "%x")) != plain
    assert code_probe.canonical(_kernel("%x", "%y", "%z")) != plain


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (_row(conv="ab"), _row(conv="ba"), []),
        (_row(conv="ab", add="c"), _row(conv="ax", add="c"), ["conv (1 of 2)"]),
        (_row(conv="aa"), _row(conv="a"), ["conv (1 of 2, now 1)"]),
        (_row(conv="a"), _row(conv="a", add="c"), ["add (new)"]),
        (_row(conv="a", add="c"), _row(add="c"), ["conv (gone)"]),
        (_row("e", conv="a"), _row("f", conv="a"), ["entry"]),
        (_row(machine="m"), _row(machine="n"), ["machine: m -> n"]),
        ({"error": "E: no"}, {"error": "E: no"}, []),
        ({"error": "E: no"}, _row(), ["before: E: no; now: compiled"]),
    ],
)
def test_differences(old: Row, new: Row, found: list[str]) -> None:
    assert differences(old, new) == found


def test_compare_counts_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare({"a": _row(conv="a"), "b": _row()}, {"a": _row(conv="b"), "b": _row()}) == 1
    assert capsys.readouterr().out.splitlines() == ["a: conv (1 of 1)", "1 of 2 rows equal, with 1 kernels in all"]


def test_cases_have_names_of_their_own() -> None:
    cases = code_cases.cases()
    assert len({c.name for c in cases}) == len(cases)
    assert len(code_cases.quick()) == len(set(code_cases.quick())) <= 40
    assert Case("az6", None, 2, "bf16", "exact").name == "az6@batch 2t bf16 exact"
    assert Case("az6", 8).dims == {"batch": 8} and Case("az6", None).dims == {} == Case("layer-x").dims


def test_an_older_tree_gets_the_same_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees before targets had families kept names with triple and features in a table."""
    from tilewright.targets import target

    for name, (older, more) in code_probe.LATER_TARGETS.items():
        known = {older: ("triple", ("fp-armv8",))}
        monkeypatch.setattr(target, "_KNOWN", known, raising=False)
        assert code_probe.target_of(name) == Target.parse(name)
        assert known[name] == ("triple", ("fp-armv8", *more))
        like = Target.parse(older)
        assert replace(like, cpu=name, features=tuple(sorted((*like.features, *more)))) == Target.parse(name)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the sources, to be changed."""
    import shutil

    return Path(shutil.copytree(models.ROOT / "src", tmp_path / "src"))


def _ask(source: Path, case: Case, objects: bool = False) -> Row:
    worker = Worker(source)
    try:
        return worker.ask(case, "x86-64-v3", objects)
    finally:
        worker.close()


def test_only_changes_of_code_are_seen(copied: Path) -> None:
    before = _ask(copied, Case("m64"))
    assert len(before["kernels"]) >= 5
    emitter = copied / "tilewright" / "codegen" / "llvm" / "emit.py"
    emitter.write_text(emitter.read_text() + "\n# other symbols, the same code\n")
    assert differences(before, _ask(copied, Case("m64"))) == []
    emitter.write_text(emitter.read_text().replace("captures(none) align", "align"))
    found = differences(before, _ask(copied, Case("m64")))
    assert "entry" not in found and len(found) == len({label for label, _ in before["kernels"]})


def test_objects(copied: Path) -> None:
    case = Case("layer-softmax-128x128")
    text, made = _ask(copied, case), _ask(copied, case, objects=True)
    assert made == _ask(models.ROOT / "src", case, objects=True)
    assert made["entry"] != text["entry"] and made["machine"] == text["machine"]


def test_a_tree_that_cannot_be_probed_is_an_error(copied: Path) -> None:
    source = copied / "tilewright" / "parts" / "entry.py"
    source.write_text(
        source.read_text().replace("Model(program", "make(program").replace("import Model\n", "import Model as make\n")
    )
    with pytest.raises(SystemExit, match="status 1"):
        _ask(copied, Case("m64"))


def test_digests_of_a_commit_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bytes_tool, "FOLDER", tmp_path)
    monkeypatch.setattr(
        bytes_tool,
        "_in_workers",
        lambda _source, cases, _options, _step: iter([{f"{c.name} | t": _row(conv="a")} for c in cases]),
    )
    options = argparse.Namespace(objects=False, again=False, targets=("t",), workers=1)
    clean, dirty = Revision(bytes_tool.present().commit, False), Revision("0" * 10, True)
    monkeypatch.setattr(bytes_tool, "present", lambda: dirty)
    for which in (clean, clean, dirty, dirty):
        bytes_tool.record(which, [Case("m64")], options)
    bytes_tool.record(clean, [Case("nat")], options)
    assert bytes_tool._read(clean.path(False)).keys() == {"m64 | t", "nat | t"}
    monkeypatch.setattr(code_probe, "VERSION", code_probe.VERSION + 1)
    bytes_tool.record(clean, [Case("m64")], options)
    said = [line.split(": ")[1].split(", ")[2].split(" in")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["1 compiled", "all kept from before", *["1 compiled"] * 4]
