"""Notes: every one prints and parses back, what is misspelled or ill-typed is refused, and no code names one as
text."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright
from tests.generators import OneAttr, examples, kind_of, notes_of
from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Var
from tilewright.ir.key import key
from tilewright.ir.loops import Block, For, PrimFunc
from tilewright.ir.notes import (
    NOTES,
    BlockNote,
    BufferName,
    FuncNote,
    LoopNote,
    MayAlias,
    Note,
    Origin,
    Prefetch,
    SingleThread,
    Streaming,
    Unroll,
    Workspaces,
    all_notes,
    find,
    markdown,
    register,
    with_note,
    without,
)
from tilewright.ir.notetable import check, described, fields_of, make, note_name, signature
from tilewright.ir.notetable import stated_fields as fields_passed
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import map_stmt
from tilewright.ir.verify import verify_func
from tilewright.schedule import Schedule, parse_trace
from tilewright.support.errors import ParseError, ScheduleError, VerifyError

ROOT = Path(__file__).resolve().parents[2]
FUNC = parse_func("func @f(A: f32[8], w: f32[8]) { for i in 0..8 { block B (v = spatial(8): i) { A[v] = w[v] } } }")


@dataclass(frozen=True, slots=True)
class Everything(BlockNote):
    """A note of a plug-in with a field of every type."""

    number: int
    text: str
    yes: bool
    flags: tuple[bool, ...]
    choice: Literal["a b", "c"]
    names: tuple[BufferName, ...] = ()
    maybe: str | None = "none"


@pytest.fixture
def plugin() -> Iterator[None]:
    register(Everything)
    yield
    del NOTES["everything"]


def noted(*notes: Note) -> PrimFunc:
    """A function with these notes, each where it belongs."""

    def place(s: Any) -> Any:
        kind = LoopNote if isinstance(s, For) else BlockNote if isinstance(s, Block) else None
        mine = [note for note in notes if kind is not None and isinstance(note, kind)]
        return replace(s, notes=tuple(mine)) if mine else None

    func = FUNC.with_body(map_stmt(FUNC.body, place))
    return replace(func, notes=tuple(note for note in notes if isinstance(note, FuncNote)))


# Laws


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", sorted(all_notes()))
@given(data=st.data())
@examples(25)
def test_every_note_prints_and_parses_back(name: str, data: Any) -> None:
    func = noted(data.draw(notes_of(NOTES[name], ["A", "w"])))
    if name != note_name(Workspaces):  # of which there are not more than parameters
        verify_func(func)
    assert parse_func(str(func), kind_of) == func
    assert f"@{name}" in str(func)
    assert key(func) != key(FUNC)


@given(data=st.data())
def test_notes_of_plugins_print_and_parse_back(data: Any) -> None:
    register(Everything)
    try:
        func = noted(data.draw(notes_of(Everything, ["A", "w"])))
        verify_func(func)
        assert parse_func(str(func)) == func
    finally:
        del NOTES["everything"]


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", sorted(name for name in all_notes() if issubclass(NOTES[name], LoopNote)))
@given(data=st.data())
@examples(10)
def test_a_schedule_with_a_note_replays_from_its_text(name: str, data: Any) -> None:
    s = Schedule(FUNC)
    s.annotate("i", data.draw(notes_of(NOTES[name], ["A", "w"])))
    assert parse_trace(str(s.trace)).replay(FUNC).func == s.func
    assert s.trace == parse_trace(str(s.trace)).replay(FUNC).trace


def test_keys_see_buffers_and_not_their_names() -> None:
    def with_names(a: str, w: str, asked: str) -> str:
        return key(
            parse_func(
                f"func @f({a}: f32[8], {w}: f32[8]) {{ for i in 0..8 @prefetch(buffers=[{asked}], nbytes=64) "
                f"{{ {a}[i] = {w}[i] }} }}"
            )
        )

    assert with_names("A", "w", "w") == with_names("X", "Y", "Y") != with_names("A", "w", "A")
    assert with_names("A", "w", "neither") != with_names("A", "w", "w")


def test_a_place_has_one_note_of_a_class_in_order_of_names() -> None:
    notes = with_note(with_note((), Unroll(2)), Streaming())
    assert [note_name(type(n)) for n in notes] == ["streaming", "unroll"]
    assert with_note(notes, Unroll(4)) == (Streaming(), Unroll(4))
    assert without(notes, Streaming) == (Unroll(2),)
    assert find(notes, Unroll) == Unroll(2) and find(notes, Prefetch) is None
    text = str(noted()).replace("0..8 {", "0..8 @unroll(times=2) @streaming {")
    assert parse_func(text) == noted(Streaming(), Unroll(2))


def test_origins_name_operators_that_the_reader_knows() -> None:
    func = noted(Origin("lowered.conv", "product", OneAttr((1, "a"))), Unroll(2))
    text = str(func)
    assert '@origin(op=lowered.conv, stage=product, attrs={value = [1, "a"]}) {' in text
    assert parse_func(text, lambda _: OneAttr) == func
    with pytest.raises(ParseError, match=r"the attributes of the operator 'lowered\.conv' are not known"):
        parse_func(text)
    with pytest.raises(ParseError, match=r"1:[0-9]+: has no attribute 'value'"):
        parse_func(text.replace("\n", " "), lambda _: Attrs)


def test_functions_of_other_operators_have_other_keys() -> None:
    mine = [noted(Origin("add", "add")), noted(Origin("sub", "add")), noted(Origin("add", "sub")), noted()]
    mine += [noted(Origin("add", "add", OneAttr(n))) for n in (0, 1, False)]
    assert len({key(func) for func in mine}) == len(mine)


def test_defaults_are_not_printed() -> None:
    note = Prefetch((BufferName("w"),), 64, level=2, lines=3)
    assert "@prefetch(buffers=[w], nbytes=64, lines=3) {" in str(noted(note))
    assert fields_passed(note) == {"buffers": ("w",), "nbytes": 64, "lines": 3}


# Errors


@pytest.mark.parametrize(
    ("note", "message"),
    [
        (
            "@unrol(times=4)",
            "<text>:1:48: no note for a loop is called 'unrol': expected one of "
            f"{', '.join(sorted(n for n, kind in all_notes().items() if kind.place == 'loop'))}\n"
            "hint: did you mean 'unroll'?",
        ),
        ("@unroll(times=0)", "'times' of the note 'unroll' is no int >= 1: expected unroll(times: int >= 1), got 0"),
        ("@unroll(times=true)", "'times' of the note 'unroll' is no int >= 1"),
        ("@unroll(times=4.0)", "'times' of the note 'unroll' is no int >= 1"),
        ("@unroll", "the note 'unroll' lacks times: expected unroll(times: int >= 1)"),
        ("@unroll(time=4)", "'time' is no field of the note 'unroll': expected unroll(times: int >= 1)\nhint: did you"),
        ("@unroll(times=4, times=4)", "'times' is given twice"),
        ("@unroll(times=4) @unroll(times=4)", "a second note 'unroll'"),
        ("@streaming(1)", "expected a field's name, got '1'"),
        ("@prefetch(buffers=w, nbytes=4)", "'buffers' of the note 'prefetch' is no [buffer, ...]"),
        ("@prefetch(buffers=[w, 3], nbytes=4)", "'buffers' of the note 'prefetch' is no [buffer, ...]"),
        ("@prefetch(buffers=[w], nbytes=4, level=3)", "'level' of the note 'prefetch' is no 1 or 2"),
        ("@prefetch(buffers=[w], nbytes=4, strip=3)", "in the note 'prefetch' 'strip' needs 'rows'"),
        ("@prefetch(buffers=[w], nbytes=4, rows=3, fewer_than=2)", "in the note 'prefetch' 'fewer_than' needs 'strip'"),
        (
            "@prefetch(buffers=[w], nbytes=4, rows=3, strip=3, distance=8)",
            "in the note 'prefetch' 'distance' needs 'fewer_than'",
        ),
        (
            "@prefetch(buffers=[w], nbytes=4, rows=3, strip=3, prefetch_level=1)",
            "in the note 'prefetch' 'prefetch_level' needs 'distance'",
        ),
        ("@prefetch(buffers=[w], nbytes=4, turn=A)", "'turn' and 'turns' go together"),
        ("@prefetch(buffers=[w], nbytes=4, rows=2, tiles=2)", "rows and tiles say different things about who shares"),
        ("@single_thread", "the note 'single_thread' belongs to a function, not to a loop"),
        ("with (unroll = 4)", "expected '{', got 'with'"),
        ("thread(blockIdx.w)", "no hardware index is called 'blockIdx.w': expected one of blockIdx.x"),
    ],
)
def test_text(note: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_func(f"func @f(A: f32[8], w: f32[8]) {{ for i in 0..8 {note} {{ A[i] = w[i] }} }}")
    assert message in str(caught.value)


def test_scopes_in_text() -> None:
    with pytest.raises(
        ParseError, match="no scope is called 'loca': expected one of global, padded, local, warp, shared"
    ):
        parse_func("func @f(A: f32[8] in loca) { }")


@pytest.mark.parametrize(
    ("func", "problem"),
    [
        (replace(FUNC, notes=(Unroll(2),)), "notes: the note 'unroll' belongs to a loop, not to a function"),  # type: ignore[arg-type]
        (replace(FUNC, notes=(Workspaces(3),)), "notes: more workspaces than parameters: expected <= 2, got 3"),
        (noted(Unroll(0)), "loop 'i': 'times' of the note 'unroll' is no int >= 1: expected unroll(times: int >= 1)"),
        (noted(Prefetch("w", 64)), "'buffers' of the note 'prefetch' is no [buffer, ...]"),  # type: ignore[arg-type]
        (noted(Origin("add", "add", 3)), "'attrs' of the note 'origin' is no {attribute = value, ...}"),  # type: ignore[arg-type]
        (
            noted(Origin("reshape", "reshape", OneAttr(Var("m", lo=1)))),
            "block 'B', an attribute of its operator: the variable 'm' is not defined here",
        ),
        (noted(Unroll(2), Streaming()), "loop 'i': notes are not sorted by name, each there once"),
        (noted(MayAlias(), MayAlias()), "notes are not sorted by name, each there once: got may_alias, may_alias"),
        (
            noted(Everything(1, "", True, (), "c")),
            "block 'B': no note for a block is called 'everything': expected one of origin",
        ),
        (
            replace(FUNC, params=(replace(FUNC.params[0], scope="odd"), FUNC.params[1])),  # type: ignore[arg-type]
            "buffer 'A': has an unknown scope: expected one of global, padded, local, warp, shared, tiles",
        ),
        (
            FUNC.with_body(replace(FUNC.body, kind="thread", thread="warp")),  # type: ignore[type-var]
            "loop 'i': an unknown hardware index: expected one of blockIdx.x",
        ),
    ],
)
def test_verifier(func: PrimFunc, problem: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_func(func)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("prefetchh", 4),
            "cannot annotate: no note for a loop is called 'prefetchh': expected one of ",
        ),
        (("unroll", "4"), "cannot annotate: 'times' of the note 'unroll' is no int >= 1"),
        (("unroll", 4, 4), "too many fields for the note 'unroll': expected unroll(times: int >= 1), got 2"),
        ((Unroll(-1),), "cannot annotate: 'times' of the note 'unroll' is no int >= 1"),
        ((SingleThread(),), "the note 'single_thread' belongs to a function, not to a loop"),
    ],
)
def test_schedules(arguments: tuple[Any, ...], message: str) -> None:
    s = Schedule(FUNC)
    with pytest.raises(ScheduleError) as caught:
        s.annotate(s.loop("i"), *arguments)
    assert message in str(caught.value)
    assert s.func == FUNC


def test_names_and_positions_do_in_text() -> None:
    a, b, c = Schedule(FUNC), Schedule(FUNC), Schedule(FUNC)
    a.annotate(a.loop("i"), "unroll", 4)
    b.annotate(b.loop("i"), "unroll", times=4)
    c.annotate(c.loop("i"), Unroll(4))
    assert a.func == b.func == c.func and a.trace == b.trace == c.trace
    with pytest.raises(VerifyError, match="'times' is given twice of the note 'unroll'"):
        make("unroll", LoopNote, (4,), {"times": 4})


def test_sampled_numbers_in_notes_are_numbers() -> None:
    sampled, passed_one = Schedule(FUNC), Schedule(FUNC)
    sampled.annotate(sampled.loop("i"), "unroll", times=sampled.sample_categorical([4]))
    passed_one.annotate(passed_one.loop("i"), Unroll(4))
    assert "times=v0" in str(sampled.trace)
    assert sampled.func == passed_one.func and key(sampled.func) == key(passed_one.func)


def test_plugins_may_add_notes(plugin: None) -> None:
    s = Schedule(FUNC)
    s.annotate(s.block("B"), Everything(-3, "a text", True, (False,), "c"))
    assert '@everything(number=-3, text="a text", yes=true, flags=[false], choice=c) {' in str(s.func)
    with pytest.raises(TypeError, match="there is a note 'everything' already"):
        register(Everything)


def test_registration_refuses_what_text_cannot_hold() -> None:
    @dataclass(frozen=True, slots=True)
    class Odd(LoopNote):
        value: complex

    @dataclass(frozen=True, slots=True)
    class Nowhere(Note):
        pass

    with pytest.raises(TypeError, match="a note cannot hold a <class 'complex'>"):
        register(Odd)
    with pytest.raises(TypeError, match="derives from none of LoopNote"):
        register(Nowhere)
    assert "odd" not in NOTES and "nowhere" not in NOTES


# The table


def test_documents_show_the_table() -> None:
    assert markdown() in (ROOT / "docs" / "ir.md").read_text(), "put notes.markdown() into docs/ir.md"


def test_a_text_may_name_a_note_whose_writer_was_not_imported() -> None:
    text = "func @f(A: f32[8]) { for i in 0..8 @last_tile(rows=7) { A[i] = 0.0 } }"
    code = "\n".join(
        [
            "import sys; from tilewright.ir.parser import parse_func",
            "assert not any(m.startswith('tilewright.plans') for m in sys.modules)",
            f"print(parse_func({text!r}))",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "@last_tile(rows=7)" in done.stdout


@pytest.mark.parametrize("name", sorted(all_notes()))
def test_docstrings_say_who_writes_and_reads_and_what_fields_mean(name: str) -> None:
    kind = NOTES[name]
    text = kind.__doc__ or ""
    assert "Written by" in text and re.search(r"read\b", text)
    for path in re.findall(r"`(\w+(?:/\w+)*\.py)`", text):
        assert (Path(tilewright.__file__).parent / path).exists(), path
    for field in fields_of(kind):
        assert f"{field.name}: " in text and described(field.type) in signature(kind)


OTHER_MEANINGS = {
    ("plans/matmul/contraction.py", "defer"): "a knob",
    ("plans/rows/plan.py", "pipeline"): "a knob",
    ("ops/sorting_digits.py", "origin"): "a variable",
}


def test_no_other_room_names_a_note_as_text() -> None:
    """A string that is a note's name, or begins with it like a field ("prefetch_rows"), stands in `ir/` alone."""
    root = Path(tilewright.__file__).parent
    names = rf"({'|'.join(all_notes())})|prefetch(_\w*)?|share_\w+"
    named, quoted = re.compile(names), re.compile(rf"[\"'}}]({names})[\"'{{]")
    match = {
        (str(path.relative_to(root)), node.value)
        for room in ("plans", "transform", "schedule", "codegen", "ops", "te")
        for path in (root / room).rglob("*.py")
        if quoted.search(path.read_text())
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and named.fullmatch(node.value)
    }
    assert match == set(OTHER_MEANINGS)


def test_a_checked_note_is_the_note_itself() -> None:
    note = Unroll(2)
    assert check(note, LoopNote) is note
