"""The definition of notes, and the table of all notes, which parser, printer, verifier and documents use.

A note is a frozen dataclass: a fact or a wish about one loop, block or function, which one pass writes and another
reads. Its name in text is the class's in small letters (`PrefetchTile` is `@prefetch_tile`). A field holds a number, a
truth value, text, the name of a buffer, one of several literals, a tuple of those, None, or an operator's attributes.
Notes that several write or read are in `ir/notes.py`; one of a single writer and a single reader stands with the lower
of these, so that it is two files in all. `register` adds each, those of a plug-in as well.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from tilewright.ir.attributes import Attrs
from tilewright.support.classes import dataclass
from tilewright.support.errors import VerifyError

BufferName = NewType("BufferName", str)
"""The name of a buffer of the function: keys see which buffer it is and not what it is called."""


@dataclass(frozen=True, slots=True)
class AtLeast:
    """An annotation of an integer field: the field's least value."""

    least: int


Count = Annotated[int, AtLeast(1)]
"""The type of a field that counts things or bytes: an integer of at least 1."""


@dataclass(frozen=True, slots=True)
class Note:
    """The base class of all notes. A note derives from the subclass for the place where it stands."""

    place: ClassVar[str] = ""

    def conflicts(self) -> Iterator[str]:
        """Messages about fields that contradict each other; each field has been checked by itself before."""
        return iter(())


@dataclass(frozen=True, slots=True)
class LoopNote(Note):
    """A note on a `For`."""

    place: ClassVar[str] = "loop"


@dataclass(frozen=True, slots=True)
class BlockNote(Note):
    """A note on a `Block`."""

    place: ClassVar[str] = "block"


@dataclass(frozen=True, slots=True)
class FuncNote(Note):
    """A note on a `PrimFunc`."""

    place: ClassVar[str] = "function"


N = TypeVar("N", bound=Note)

NOTES: dict[str, type[Note]] = {}
"""The classes of notes by their names in text, as far as their modules were imported."""


def all_notes() -> dict[str, type[Note]]:
    """The classes of all notes, by their names in text; imports all modules that define notes."""
    import_module("tilewright.compiler")
    return NOTES


def register(kind: type[N]) -> type[N]:
    """Make a class of notes known (a decorator). Raises TypeError if another class has its name, if it derives from the
    class of no place, or if text cannot hold the type of a field."""
    name = note_name(kind)
    if name in NOTES:
        raise TypeError(f"there is a note {name!r} already: {NOTES[name].__qualname__}")
    if not kind.place:
        raise TypeError(f"{kind.__qualname__} derives from none of LoopNote, BlockNote and FuncNote")
    signature(kind)  # refuses fields of other types
    NOTES[name] = kind
    return kind


def note_name(kind: type[Note]) -> str:
    """The name in text of a class of notes: `prefetch_tile` for `PrefetchTile`."""
    return re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


# Notes on a place


def find(notes: Sequence[Note], kind: type[N]) -> N | None:
    """The note of class `kind` among `notes`; None if there is none."""
    return next((note for note in notes if isinstance(note, kind)), None)


def with_note(notes: tuple[N, ...], note: N) -> tuple[N, ...]:
    """`notes` with `note` added, which replaces a note of its class; sorted by name."""
    return tuple(sorted((*without(notes, type(note)), note), key=lambda n: note_name(type(n))))


def without(notes: tuple[N, ...], kind: type[Note]) -> tuple[N, ...]:
    """`notes` without the note of class `kind`."""
    return tuple(note for note in notes if not isinstance(note, kind))


# Fields


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a note: its type, and its default (`dataclasses.MISSING`: it is required)."""

    name: str
    type: Any
    default: object

    def __str__(self) -> str:
        optional = "" if self.default is dataclasses.MISSING else "?"
        return f"{self.name}{optional}: {described(self.type)}"


def fields_of(kind: type[Note]) -> tuple[Field, ...]:
    """The fields of a class of notes, in order."""
    entry = _FIELDS.get(kind)
    if entry is None:
        hints = get_type_hints(kind, include_extras=True)
        entry = _FIELDS[kind] = tuple(Field(f.name, hints[f.name], f.default) for f in dataclasses.fields(kind))
    return entry


_FIELDS: dict[type[Note], tuple[Field, ...]] = {}
"""The cached results of `fields_of`, since type hints take long to evaluate."""


def stated_fields(note: Note) -> dict[str, Any]:
    """The fields of a note whose values differ from their defaults, by name."""
    values = {f.name: (getattr(note, f.name), f.default) for f in fields_of(type(note))}
    return {name: value for name, (value, default) in values.items() if not _same(value, default)}


def _same(a: object, b: object) -> bool:
    return a == b and type(a) is type(b)


def renamed(note: N, new: Callable[[str], str]) -> N:
    """`note` with `new` applied to the names of buffers in it."""
    result: dict[str, Any] = {}
    for f in fields_of(type(note)):
        value = getattr(note, f.name)
        if value is not None and _names_buffers(f.type):
            result[f.name] = tuple(map(new, value)) if isinstance(value, tuple) else new(value)
    return dataclasses.replace(note, **result) if result else note


def _names_buffers(t: Any) -> bool:
    return t is BufferName or any(map(_names_buffers, get_args(t)))


def signature(kind: type[Note]) -> str:
    """A class of notes as text for users: `unroll(times: int >= 1)`; the name of a field that may be left out ends in
    "?"."""
    fields = ", ".join(map(str, fields_of(kind)))
    return f"{note_name(kind)}({fields})" if fields else note_name(kind)


_WORDS = {
    int: "int",
    bool: "bool",
    str: "str",
    type(None): "none",
    BufferName: "buffer",
    Attrs: "{attribute = value, ...}",
}


def described(t: Any) -> str:
    """The type `t` of a field in words: "int >= 1", "[buffer, ...]", "1 or 2"."""
    origin, arguments = get_origin(t), get_args(t)
    if origin is Annotated:
        return f"{described(arguments[0])} >= {arguments[1].least}"
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return f"[{described(arguments[0])}, ...]"
    if origin in (Union, types.UnionType):
        return " or ".join(described(a) for a in arguments if a is not type(None))
    if t not in _WORDS:
        raise TypeError(f"a note cannot hold a {t}")
    return _WORDS[t]


def accepts(t: Any, value: object) -> bool:
    """Whether a field of type `t` may hold `value`."""
    origin, arguments = get_origin(t), get_args(t)
    if origin is Annotated:
        return accepts(arguments[0], value) and value >= arguments[1].least
    if origin is Literal:
        return any(_same(value, a) for a in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(accepts(arguments[0], v) for v in value)
    if origin in (Union, types.UnionType):
        return any(accepts(a, value) for a in arguments)
    ordinary = str if t is BufferName else t
    return isinstance(value, ordinary) and (ordinary is bool or not isinstance(value, bool))


# Checking and making


def problems(notes: Sequence[Note], place: type[Note]) -> Iterator[VerifyError]:
    """Yield the problems of the notes on a loop, block or function (`place`): unknown notes, notes that belong
    elsewhere, fields of wrong types, two notes of one class, or not sorted by name."""
    for note in notes:
        yield from _problems(note, place)
    names = [note_name(type(note)) for note in notes]
    if names != sorted(set(names)):
        yield VerifyError("notes are not sorted by name, each there once", got=", ".join(names))


def _problems(note: Note, place: type[Note]) -> Iterator[VerifyError]:
    kind, name = type(note), note_name(type(note))
    if NOTES.get(name) is not kind:
        yield unknown(name, place)
        return
    if not issubclass(kind, place):
        yield VerifyError(f"the note {name!r} belongs to a {kind.place}, not to a {place.place}", expected=known(place))
        return
    wrong = [f for f in fields_of(kind) if not accepts(f.type, getattr(note, f.name))]
    for f in wrong:
        what = f"{f.name!r} of the note {name!r} is no {described(f.type)}"
        yield VerifyError(what, expected=signature(kind), got=repr(getattr(note, f.name)))
    for conflict in () if wrong else note.conflicts():
        yield VerifyError(f"in the note {name!r} {conflict}", expected=signature(kind))


def check(note: Note, place: type[N]) -> N:
    """Return `note` if it may stand on a loop, block or function (`place`). Raises VerifyError otherwise."""
    for problem in _problems(note, place):
        raise problem
    assert isinstance(note, place)
    return note


def make(name: str, place: type[N], values: Sequence[object] = (), named: Mapping[str, object] | None = None) -> N:
    """Create the note called `name`, of the class `place`, from its fields, `values` in order and `named` by name.
    Raises VerifyError if there is no such note, or if the fields do not fit."""
    kind = NOTES.get(name) or all_notes().get(name)
    if kind is None:
        raise unknown(name, place)
    fields, named = [f.name for f in fields_of(kind)], named or {}
    if len(values) > len(fields):
        raise VerifyError(f"too many fields for the note {name!r}", expected=signature(kind), got=len(values))
    chosen = dict(zip(fields, values, strict=False))
    for field in named:
        if field not in fields or field in chosen:
            what = "is given twice" if field in chosen else "is no field"
            raise VerifyError(
                f"{field!r} {what} of the note {name!r}", expected=signature(kind), hint=similar_name(field, fields)
            )
    chosen |= named
    missing = [f.name for f in fields_of(kind) if f.default is dataclasses.MISSING and f.name not in chosen]
    if missing:
        raise VerifyError(f"the note {name!r} lacks {', '.join(missing)}", expected=signature(kind))
    return check(kind(**chosen), place)


def known(place: type[Note]) -> str:
    """The names of all notes for `place`, as words of a message."""
    names = sorted(name for name, kind in all_notes().items() if issubclass(kind, place))
    return f"one of {', '.join(names)}" if names else "none"


def unknown(name: str, place: type[Note]) -> VerifyError:
    """The error for a name that no note has."""
    what = f"no note for a {place.place} is called {name!r}"
    return VerifyError(what, expected=known(place), hint=similar_name(name, all_notes()))


def similar_name(name: str, names: Sequence[str] | Mapping[str, object]) -> str | None:
    """The hint `did you mean ...?` with the most similar of `names`; None if none is similar."""
    from difflib import get_close_matches  # which only errors need

    result = get_close_matches(name, list(names), 1)
    return f"did you mean {result[0]!r}?" if result else None
