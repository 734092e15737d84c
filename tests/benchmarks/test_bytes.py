"""The comparison of code between revisions: digests do not depend on symbols, and every kind of change is seen."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import built_cases, code_cases, code_probe, models
from benchmarks import bytes as bytes_tool
from benchmarks.bytes import Revision, Row, Worker, compare, differences
from benchmarks.code_cases import Case
from tilewright.targets.target import Target

STAGES = ("graph", "prepare", "run")
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
    ordinary = code_probe.canonical(_kernel("%x", "%y", "%x"))
    assert "ptr %parameter0" in ordinary and "%x.1" in ordinary
    assert code_probe.canonical(_kernel('%"a b"', "%x", '%"a b"')) == ordinary
    assert code_probe.canonical(_kernel("%y", "%x", "%x")) != ordinary
    assert code_probe.canonical(_kernel("%x", "%y", "%z")) != ordinary


@pytest.mark.parametrize(
    ("old", "new", "results"),
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
def test_differences(old: Row, new: Row, results: list[str]) -> None:
    assert differences(old, new) == results


def test_compare_counts_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare({"a": _row(conv="a"), "b": _row()}, {"a": _row(conv="b"), "b": _row()}) == 1
    assert capsys.readouterr().out.splitlines() == [
        "a: conv (1 of 1)",
        "1 of 2 rows equal, with 1 kernels, graphs and texts in all",
    ]


def test_cases_have_names_of_their_own() -> None:
    cases = code_cases.cases()
    assert len({c.name for c in cases}) == len(cases)
    assert len(code_cases.quick()) == len(set(code_cases.quick())) <= 75
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
        features = tuple(sorted((*like.features, *more)))
        now = Target.parse(name)
        assert replace(like, cpu=name, features=features, isa=replace(like.isa, dots=now.isa.dots)) == now


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the sources, to be changed."""
    import shutil

    return Path(shutil.copytree(models.ROOT / "src", tmp_path / "src"))


GRAPHS = ("graph after import", "weights after import", "interface", *(f"{x} after passes" for x in STAGES))
"""Labels of graphs in a row."""


def _ask(source: Path, case: Case, kind: str = "") -> Row:
    worker = Worker(source)
    try:
        return worker.ask(case, "x86-64-v3", kind)
    finally:
        worker.close()


def test_only_changes_of_code_are_seen(copied: Path) -> None:
    before = _ask(copied, Case("m64"))
    assert len(before["kernels"]) >= 5
    emitter = copied / "tilewright" / "codegen" / "llvm" / "emit.py"
    emitter.write_text(emitter.read_text() + "\n# other symbols, the same code\n")
    assert differences(before, _ask(copied, Case("m64"))) == []
    emitter.write_text(emitter.read_text().replace("captures(none) align", "align"))
    result = differences(before, _ask(copied, Case("m64")))
    kernels = {label for label, _ in before["kernels"]} - set(GRAPHS)
    assert "entry" not in result and len(result) == len(kernels)


def test_objects(copied: Path) -> None:
    case = Case("layer-softmax-128x128")
    text, created = _ask(copied, case), _ask(copied, case, "objects")
    assert created == _ask(models.ROOT / "src", case, "objects")
    assert created["entry"] != text["entry"] and created["machine"] == text["machine"]


def test_a_tree_that_cannot_be_probed_is_an_error(copied: Path) -> None:
    source = copied / "tilewright" / "parts" / "entry.py"
    source.write_text(
        source.read_text().replace("Model(program", "make(program").replace("import Model\n", "import Model as make\n")
    )
    with pytest.raises(SystemExit, match="status 1"):
        _ask(copied, Case("m64"))


def test_digests_of_a_commit_are_retained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bytes_tool, "FOLDER", tmp_path)
    monkeypatch.setattr(
        bytes_tool,
        "_in_workers",
        lambda _source, cases, _options, _step: iter([{f"{c.name} | t": _row(conv="a")} for c in cases]),
    )
    options = argparse.Namespace(kind="", repeat=False, targets=("t",), workers=1)
    clean, dirty = Revision(bytes_tool.present().commit, False), Revision("0" * 10, True)
    monkeypatch.setattr(bytes_tool, "present", lambda: dirty)
    for which in (clean, clean, dirty, dirty):
        bytes_tool.record(which, [Case("m64")], options)
    bytes_tool.record(clean, [Case("nat")], options)
    assert bytes_tool._read(clean.path()).keys() == {"m64 | t", "nat | t"}
    monkeypatch.setattr(code_probe, "VERSION", code_probe.VERSION + 1)
    bytes_tool.record(clean, [Case("m64")], options)
    said = [line.split(": ")[1].split(", ")[2].split(" in")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["1 compiled", "all kept from before", *["1 compiled"] * 4]


REVERSED = "replace(result := _was(*a), inputs=result.inputs[::-1])"
CHANGES = {
    "train/optimizers.py": ("eps: float = 1e-8", "eps: float = 1e-7"),
    "train/program.py": ("CLIP_EPSILON = 1e-6", "CLIP_EPSILON = 2e-6"),
    "ir/functions.py": ("np.tanh, lambda x, y, call: 1 - y * y", "np.tanh, lambda x, y, call: 2 - y * y"),
    "functions/backward.py": ("if v.dtype.is_float]", "if v.dtype.is_float][::-1]"),
    "transform/graph/state.py": ("", f"_was = with_state; with_state = lambda *a: {REVERSED}"),
    "transform/graph/ragged.py": ("", f"_was = with_ragged; with_ragged = lambda *a: {REVERSED}"),
    "transform/graph/recurrences.py": ("", "recognise_recurrences = lambda graph: graph"),
    "transform/regions/optimise.py": ("", "optimise_bodies = lambda graph, passes: graph"),
    "transform/graph/quantised.py": ("", "multiply_quantised = lambda graph, *around: graph"),
    "frontend/common/forest.py": ("", "_i32 = lambda values: np.ascontiguousarray(values[::-1]).view(np.int32)"),
    "frontend/stablehlo/rules/pointwise.py": ('"negate": "neg",', '"negate": "neg", "tanh": "sin",'),
    "formulas/printer.py": ("", "_was = nest_text; nest_text = lambda *a: _was(*a).replace(' +! ', ' max! ')"),
    "codegen/stablehlo/scalars.py": ('"sub": "subtract",', '"sub": "subtract", "tanh": "sine",'),
    "codegen/linalg/scalars.py": ('"abs": "absf",', '"abs": "absf", "tanh": "sin",'),
    "codegen/onnx/pointwise.py": ('"abs": "Abs",', '"abs": "Abs", "tanh": "Sinh",'),
    "codegen/c/emit.py": ("; ++{i})", "; {i} += 1)"),
    "runtime/call.py": ("LAYOUT.users, 1)", "LAYOUT.users, 2)"),
}  # fmt: skip
"""A change of the compiler by file: a text and another in its place, or a line at its end."""

IMPORT, PASSES = "graph after import", "graph after passes"
NOTICED = {
    "step-perceptron": IMPORT,
    "step-convolutions": IMPORT,
    "gradient": IMPORT,
    "state": "interface",
    "ragged": "interface",
    "scan": PASSES,
    "loop": PASSES,
    "branch": PASSES,
    "quantised": PASSES,
    "trees": IMPORT,
    "jax-policy": IMPORT,
    "attention": IMPORT,
    "radial-basis-backward": IMPORT,
    "export-pointwise": "text stablehlo, text linalg, text onnx",
    "kernel": "text c",
    "runtime": "text support_text",
}
"""Built cases, one of each kind, and the first that differs in them once all of `CHANGES` are made."""
UNTOUCHED = "shuffled"


def readable(name: str) -> bool:
    """Whether a case can be read here: StableHLO needs its parser."""
    return not name.startswith("jax-") or importlib.util.find_spec("jaxlib") is not None


def test_graphs_and_texts_of_every_kind_notice_changes(copied: Path) -> None:
    names = [*filter(readable, NOTICED), UNTOUCHED]
    before = _graphs(copied, names)
    assert _graphs(copied, ["kernel", "gradient"]) == {name: before[name] for name in ("kernel", "gradient")}
    for name, (old, new) in CHANGES.items():
        path = copied / "tilewright" / name
        text = path.read_text()
        assert old in text, name
        path.write_text(text.replace(old, new) if old else f"{text}\n{new}\n")
    now = _graphs(copied, names)
    for name in names[:-1]:
        labels = NOTICED[name]
        differing = [text.partition(" (")[0] for text in differences(before[name], now[name])]
        assert ", ".join(differing).startswith(labels), (name, differing)
    assert before[UNTOUCHED] == now[UNTOUCHED]


def _graphs(source: Path, names: Sequence[str]) -> dict[str, Row]:
    """The rows of built cases, without planning any kernel."""
    worker = Worker(source)
    try:
        return {name: worker.ask(Case(built_cases.PREFIX + name), "znver4", "graphs") for name in names}
    finally:
        worker.close()


def test_kernels_of_a_step_are_seen(copied: Path) -> None:
    case = Case(f"{built_cases.PREFIX}step-perceptron")
    before = _ask(copied, case)
    assert "error" not in before and len(before["kernels"]) > 10 and before["entry"]
    emitter = copied / "tilewright" / "codegen" / "llvm" / "emit.py"
    emitter.write_text(emitter.read_text().replace("captures(none) align", "align"))
    differing = differences(before, _ask(copied, case))
    assert differing and not any(text.startswith(("entry", "graph", "weights", "interface")) for text in differing)


def test_built_cases_compile() -> None:
    """Each of the others gives a row, so that none compares an error with an error."""
    rows = _graphs(models.ROOT / "src", sorted(filter(readable, built_cases.BUILT.keys() - {*NOTICED, UNTOUCHED})))
    assert rows and not [(name, row["error"]) for name, row in rows.items() if "error" in row]
