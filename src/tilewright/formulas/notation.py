"""Strings of einsum, einops and einx as statements over elementary axes.

    "ij,jk->ik"                  einsum: a letter is an axis; without "->" the letters that stand once, in order
    "b c (h p) -> b h (c p)"     einops: names are axes, parentheses join axes to one dimension
    "b i k, b k j -> b i j"      several operands are multiplied, and what is missing on the right is summed
    "a [b]", "a [b], [b] c"      einx: what is in brackets is reduced over; without "->" the rest is the result

Arrays are reshaped to elementary axes, which takes no time, and the statement is over those. A string without a space
inside of its terms is einsum's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from tilewright.formulas.source import At, Source
from tilewright.formulas.syntax import SIGNS
from tilewright.support.classes import dataclass
from tilewright.support.errors import ComprehensionError

MAX_AXES = 32
"""The largest number of axes in one string."""

_TOKEN = re.compile(r"(?P<space>\s+)|(?P<name>[A-Za-z_]\w*)|(?P<number>\d+)|(?P<sign>->|\.\.\.|[()\[\],])")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """An elementary axis of a string: a name, a number (an axis of that size) or an ellipsis. `bracketed`: it is in
    brackets, as einx writes axes to be reduced over."""

    name: str
    at: At
    bracketed: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """The elementary axes that one dimension of an array is made of, the first one outermost."""

    axes: tuple[Axis, ...]
    at: At


Term = tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """The meaning of a string for arrays of given shapes: reshape the inputs to `shapes`, compute the statement `text`,
    and reshape the result to `result`."""

    text: str
    shapes: tuple[Shape, ...]
    result: Shape


@dataclass(frozen=True, slots=True)
class Notation:
    """A parsed string of einsum, einops or einx. `reduce` is the name of the reduction, None if it is not stated."""

    source: Source
    terms: tuple[Term, ...]
    result: Term
    reduce: str | None
    sizes: Mapping[str, int]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(f"x{k}" for k in range(len(self.terms)))

    def statement(self, shapes: Sequence[Shape]) -> Statement:
        """The statement for inputs of these shapes. Raises ComprehensionError for shapes that do not fit."""
        return _Reading(self, shapes).statement()


def is_notation(text: str) -> bool:
    """Whether a text is a string of einsum, einops or einx rather than statements, which assign something."""
    if "=" in text or "!" in text:
        return False
    return "->" in text or (re.fullmatch(r"[\sA-Za-z0-9_,.()\[\]]+", text) is not None and not re.search(r"\w\[", text))


def notation_of(text: str, reduce: str | None, sizes: Mapping[str, bool | int | float]) -> Notation | None:
    """The parsed string `text` of einsum, einops or einx; None if it is none. `reduce` is the reduction, such as "sum",
    and `sizes` are the extents of axes that the caller states. Raises ComprehensionError if one of the three is
    invalid."""
    if not text.strip() or not is_notation(text):
        return None
    source = Source(text)
    known = ("sum", "prod", "max", "min", "mean", "any", "all", None)
    if reduce not in known:
        expected = ", ".join(map(str, known[:-1]))
        raise ComprehensionError("reduce= is not known", expected=expected, got=repr(reduce))
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
            raise ComprehensionError(
                f"the size of axis {name!r} is no size", expected="a whole number", got=repr(value)
            )
    left, arrow, right = text.partition("->")
    letters = all(re.fullmatch(r"(\s*[A-Za-z.]*\s*)", part) for part in (*left.split(","), right))
    read = _letters if letters else _names
    terms = tuple(read(source, part, at) for part, at in _parts(left, ","))
    if sum(len(g.axes) for term in terms for g in term) > MAX_AXES:
        source.fail("there are too many axes", (0, len(left)), expected=f"at most {MAX_AXES}")
    if arrow and "->" in right:
        source.fail("there are two arrows", (text.rindex("->"), text.rindex("->") + 2))
    result = read(source, right, len(left) + 2) if arrow else _implicit(source, terms, letters)
    notation = Notation(source, terms, result, reduce, {n: int(v) for n, v in sizes.items()})
    _check(notation)
    return notation


def _parts(text: str, sign: str) -> list[tuple[str, int]]:
    """The parts of `text` between occurrences of `sign`, each with its offset."""
    result, at = [], 0
    for part in text.split(sign):
        result.append((part, at))
        at += len(part) + 1
    return result


def _letters(source: Source, text: str, offset: int) -> Term:
    """Parse a term of einsum, `text`, which is at `offset` in the source: each letter is an axis. Raises its error for
    a dot that is no part of an ellipsis."""
    groups: list[Group] = []
    for match in re.finditer(r"\.\.\.|[A-Za-z]|\.", text):
        at = (offset + match.start(), offset + match.end())
        if match.group() == ".":
            source.fail("an ellipsis has three dots", at)
        groups.append(Group((Axis(match.group(), at),), at))
    return tuple(groups)


def _names(source: Source, text: str, offset: int) -> Term:
    """Parse `text`, a term of einops or einx at `offset` in the source, in which names are axes and parentheses join
    axes; returns its axes and groups. Raises ComprehensionError if it is malformed."""
    groups: list[Group] = []
    joined: list[Axis] | None = None
    opened, bracketed, at = 0, False, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            source.fail(f"unexpected character {text[at]!r}", (offset + at, offset + at + 1))
        place = (offset + match.start(), offset + match.end())
        at = match.end()
        word = match.group()
        if match.lastgroup == "space":
            continue
        if word == "(" and joined is None:
            joined, opened = [], place[0]
        elif word == ")" and joined is not None:
            groups.append(Group(tuple(joined), (opened, place[1])))
            joined = None
        elif word in ("[", "]") and bracketed == (word == "]"):
            bracketed = word == "["
        elif match.lastgroup in ("name", "number") or word == "...":
            axis = Axis(word, place, bracketed)
            if joined is None:
                groups.append(Group((axis,), place))
            else:
                joined.append(axis)
        else:
            source.fail(f"unexpected {word!r}", place, expected="names, (names) and [names]")
    if joined is not None or bracketed:
        source.fail("a parenthesis or bracket is not closed", (offset + opened, offset + len(text)))
    return tuple(groups)


def _implicit(source: Source, terms: Sequence[Term], letters: bool) -> Term:
    """The term of the result for a string without an arrow: in einsum (`letters`), the letters that occur once, sorted;
    else the axes that no bracket reduces."""
    axes = [a for term in terms for g in term for a in g.axes]
    if letters:
        once = sorted({a.name for a in axes if a.name != "..." and sum(b.name == a.name for b in axes) == 1})
        dots = ["..."] if any(a.name == "..." for a in axes) else []
        return tuple(Group((Axis(n, axes[0].at),), axes[0].at) for n in (*dots, *once))
    if not any(a.bracketed for a in axes):
        source.fail("there is no result", (0, len(source.text)), hint="write -> and its axes, or reduce over [axes]")
    seen: set[str] = set()
    retained: list[Group] = []
    for g in (g for term in terms for g in term):
        left = tuple(a for a in g.axes if not a.bracketed and (a.name.isdigit() or a.name not in seen))
        seen |= {a.name for a in left}
        if left:
            retained.append(Group(left, g.at))
    return tuple(retained)


def _check(notation: Notation) -> None:
    """Raise ComprehensionError if an axis of the result has an unknown size, stands twice in it, or is reduced over."""
    source = notation.source
    axes = [a for term in notation.terms for g in term for a in g.axes]
    known = {a.name for a in axes}
    seen: set[str] = set()
    for a in (a for g in notation.result for a in g.axes):
        if a.name in seen and not a.name.isdigit():
            source.fail(f"axis {a.name!r} stands twice in the result", a.at)
        seen.add(a.name)
        if a.name not in known and a.name not in notation.sizes and not a.name.isdigit():
            source.fail(f"the size of axis {a.name!r} is not known", a.at, hint=f"give it: {a.name}=3")
        if a.bracketed and a.name in known:
            source.fail(f"axis {a.name!r} is reduced over and in the result", a.at)
    for a in axes:
        if a.bracketed and a.name in seen and not a.name.isdigit():
            source.fail(f"axis {a.name!r} is reduced over and in the result", a.at)
    missing = [a for a in axes if a.name not in seen and a.name != "1"]
    einsum = all(len(g.axes) == 1 and len(g.axes[0].name) == 1 for term in notation.terms for g in term)
    if missing and len(notation.terms) == 1 and notation.reduce is None:
        stated = all(a.bracketed for a in missing) or (einsum and " " not in source.text.partition("->")[0].strip())
        if not stated:
            a = missing[0]
            source.fail(f"axis {a.name!r} is not in the result", a.at, hint='reduce="sum", or another reduction')
    if len(notation.terms) > 1 and notation.reduce not in (None, "sum"):
        source.fail("products are summed", (0, 1), got=f"reduce={notation.reduce!r}")
    for name in notation.sizes:
        if name not in known | seen:
            raise source.error(f"there is no axis {name!r}", (0, len(source.text)), expected=", ".join(sorted(known)))


class _Reading:
    """A parsed string applied to arrays of given shapes: finds the sizes of all elementary axes."""

    def __init__(self, notation: Notation, shapes: Sequence[Shape]) -> None:
        self.notation = notation
        self.source = notation.source
        self.sizes: dict[str, int] = dict(notation.sizes)
        if len(shapes) != len(notation.terms):
            self.source.fail("wrong number of arrays", (0, 1), expected=len(notation.terms), got=len(shapes))
        self.shapes = [tuple(s) for s in shapes]
        dots = [self.hidden(t, s) for t, s in zip(notation.terms, self.shapes, strict=True)]
        self.longest = max(dots, default=0)
        self.terms = [self.expanded(t, n) for t, n in zip(notation.terms, dots, strict=True)]
        self.result = self.expanded(notation.result, self.longest)
        self.parts: list[list[tuple[str, int]]] = []

    def hidden(self, term: Term, shape: Shape) -> int:
        """The number of dimensions of an array of `shape` that the ellipsis in `term` stands for."""
        dots = [a for g in term for a in g.axes if a.name == "..."]
        named = len(term) - len(dots)
        if len(dots) > 1 or any(len(g.axes) > 1 and a.name == "..." for g in term for a in g.axes):
            self.source.fail("an ellipsis stands once, and not in parentheses", dots[-1].at)
        if len(shape) < named or (not dots and len(shape) != named):
            at = (term[0].at[0], term[-1].at[1]) if term else (0, 1)
            expected = f"{named} dimensions{' or more' if dots else ''}"
            self.source.fail("an array does not fit its term", at, expected=expected, got=f"shape {shape}")
        return len(shape) - named if dots else 0

    def expanded(self, term: Term, count: int) -> Term:
        """`term` with its ellipsis replaced by `count` axes, which are named by their distance from the right."""
        results: list[Group] = []
        for g in term:
            if any(a.name == "..." for a in g.axes):
                results += [Group((Axis(f"...{count - k}", g.at),), g.at) for k in range(count)]
            else:
                results.append(g)
        return tuple(results)

    def statement(self) -> Statement:
        for term, shape in zip(self.terms, self.shapes, strict=True):
            for g, size in zip(term, shape, strict=True):
                self.measure(g, size)
        for term, shape in zip(self.terms, self.shapes, strict=True):
            self.parts.append([p for g, size in zip(term, shape, strict=True) for p in self.split(g, size)])
        labels: dict[str, str] = {}
        reads = []
        for k, parts in enumerate(self.parts):
            places = ["0" if n == "" else labels.setdefault(n, f"i{len(labels)}") for n, _ in parts]
            reads.append(f"x{k}[{', '.join(places)}]")
        retained = [a.name for g in self.result for a in g.axes if not a.name.isdigit()]
        ranges = [
            f"{labels.setdefault(n, f'i{len(labels)}')} in 0:{self.size_of(n)}"
            for n in dict.fromkeys((*retained, *labels))
        ]
        text = self.text(reads, [labels[n] for n in retained], [l for n, l in labels.items() if n not in retained])
        where = f" where {', '.join(ranges)}" if ranges else ""
        shapes = tuple(tuple(n for _, n in parts) for parts in self.parts)
        result = tuple(math.prod(self.size_of(a.name) for a in g.axes) for g in self.result)
        return Statement(text + where, shapes, result)

    def text(self, reads: list[str], left: list[str], reduced: list[str]) -> str:
        target, product = f"y[{', '.join(left)}]", " * ".join(reads)
        reduce = self.notation.reduce or "sum"
        if not reduced:
            return f"{target} = {product}"
        if reduce == "mean":
            count = math.prod(
                self.size_of(n) for n in {n for parts in self.parts for n, _ in parts if n} - self.result_axes()
            )
            return f"{target} = sum({product}) / {float(count)}"
        return f"{target} {SIGNS[reduce]} {product}"  # type: ignore[index]

    def result_axes(self) -> set[str]:
        return {a.name for g in self.result for a in g.axes}

    def size_of(self, name: str) -> int:
        return int(name) if name.isdigit() else self.sizes[name]

    def measure(self, g: Group, size: int) -> None:
        """Compute the size of the only axis of a dimension whose size is not known yet, from `size`, the extent of the
        dimension."""
        unknown = [a for a in g.axes if not a.name.isdigit() and a.name not in self.sizes]
        if len(unknown) > 1:
            names = " and ".join(a.name for a in unknown)
            self.source.fail(f"the sizes of {names} are not known", g.at, hint=f"give one: {unknown[-1].name}=2")
        known = math.prod(self.size_of(a.name) for a in g.axes if a not in unknown)
        if unknown:
            if known == 0 or size % known:
                self.source.fail(f"{size} elements do not divide into rows of {known}", g.at)
            self.sizes[unknown[0].name] = size // known
        elif known != size:
            if len(g.axes) == 1 and g.axes[0].name.startswith("...") and 1 in (size, known):
                self.sizes[g.axes[0].name] = max(size, known) if 0 not in (size, known) else 0
                return
            name = g.axes[0].name if len(g.axes) == 1 else "a dimension"
            self.source.fail(f"axis {name!r} has two sizes", g.at, expected=known, got=size)

    def split(self, g: Group, size: int) -> list[tuple[str, int]]:
        """The axes of a dimension of extent `size`, each with its size. An axis without a name ("") is broadcast, and
        read at 0."""
        if len(g.axes) == 1 and g.axes[0].name.startswith("...") and size == 1 != self.size_of(g.axes[0].name):
            return [("", 1)]  # it is broadcast
        results = []
        for a in g.axes:
            if a.name.isdigit():
                if int(a.name) != 1:
                    self.source.fail("an axis without a name must be of size 1", a.at, hint="give it a name")
                results.append(("", 1))
            else:
                results.append((a.name, self.sizes[a.name]))
        return results
