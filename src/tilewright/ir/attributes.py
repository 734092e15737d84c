"""Attributes of graph nodes: every operator declares a frozen dataclass of its own, with types and defaults.

    @dataclass(frozen=True, slots=True)
    class ConcatAttrs(Attrs):
        axis: int
        view: bool = False

A field is an int, float, bool, str, DType, Expr, ConstantArray, a `Literal` of those, None, a tuple, or a union. Values
are checked when an instance is created, and normalised: lists become tuples, NumPy's numbers Python's, arrays
`ConstantArray`s, and ints in float fields floats. Texts and keys leave out values that equal their default.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, is_const
from tilewright.support.classes import dataclass
from tilewright.support.errors import VerifyError

AttrValue = Any
"""The value of an attribute: int, float, bool, str, DType, Expr, ConstantArray, None, or a tuple of those."""

Dim = int | Expr
"""The size of a dimension, or an index into it, which may be symbolic."""

Dims = tuple[Dim, ...]
Ints = tuple[int, ...]

Number = bool | int | float
"""The value of a tensor's element, of whatever type."""

A = TypeVar("A", bound="Attrs")


class ConstantArray:
    """An array attribute, compared by dtype, shape and bits; read-only."""

    __slots__ = ("_hash", "array")

    def __init__(self, array: Any) -> None:
        self.array = np.ascontiguousarray(array).reshape(np.shape(array)).copy()
        self.array.flags.writeable = False
        self._hash = hash((self.array.dtype.str, self.array.shape, self.array.tobytes()))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ConstantArray)
            and self.array.dtype == other.array.dtype
            and self.array.shape == other.array.shape
            and self.array.tobytes() == other.array.tobytes()
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"ConstantArray({self.array.dtype}{list(self.array.shape)})"


Field = tuple[str, Any, Any]
"""A field of an attribute class: (name, type, default or MISSING)."""

_fields: dict[type[Attrs], tuple[Field, ...]] = {}


def fields_of(kind: type[Attrs]) -> tuple[Field, ...]:
    """The fields of an attribute class, sorted by name."""
    entry = _fields.get(kind)
    if entry is None:
        hints = get_type_hints(kind)
        fields = ((f.name, hints[f.name], f.default) for f in dataclasses.fields(kind))
        entry = _fields[kind] = tuple(sorted(fields, key=lambda field: field[0]))
    return entry


_checked: dict[type[Attrs], tuple[tuple[str, Any, frozenset[type]], ...]] = {}


def _checked_fields(kind: type[Attrs]) -> tuple[tuple[str, Any, frozenset[type]], ...]:
    """(name, type, classes) of each field of an attribute class: a value whose class is one of `classes` needs no
    further check."""
    entry = _checked.get(kind)
    if entry is None:
        entry = _checked[kind] = tuple((name, hint, _classes(_options(hint))) for name, hint, _ in fields_of(kind))
    return entry


def _classes(options: tuple[Any, ...]) -> frozenset[type]:
    scalars = (int, float, bool, str, types.NoneType, DType)
    return frozenset(o for o in options if o in scalars) if Any not in options else frozenset()


@dataclass(frozen=True, slots=True)
class Attrs:
    """The base class of the attributes of a node, itself used for operators that have none. Operators with attributes
    declare a subclass."""

    def __post_init__(self) -> None:
        for name, hint, kinds in _checked_fields(type(self)):
            value = supplied = getattr(self, name)
            if type(value) in kinds:
                continue
            value = _converted(supplied, hint)
            if not _fits(value, hint):
                raise VerifyError(
                    f"attribute {name!r} of {type(self).__name__} is of the wrong type",
                    expected=_hint_text(hint),
                    got=repr(supplied),
                )
            if value is not supplied:
                object.__setattr__(self, name, value)

    @classmethod
    def of(cls: type[A], values: Mapping[str, AttrValue], op: str) -> A:
        """The attributes of operator `op` from `values` by name. Raises VerifyError, which lists the known
        attributes."""
        known = {name: default for name, _, default in fields_of(cls)}
        unknown = sorted(values.keys() - known.keys())
        missing = [n for n, default in known.items() if default is dataclasses.MISSING and n not in values]
        if unknown or missing:
            what = f"has no attribute {unknown[0]!r}" if unknown else f"needs the attribute {missing[0]!r}"
            raise VerifyError(what, where=op, expected=", ".join(known) or "no attributes", got=", ".join(values))
        try:
            return cls(**values)
        except VerifyError as error:
            error.where = error.where or op
            raise

    def values(self) -> dict[str, AttrValue]:
        """All attributes by name."""
        return {name: getattr(self, name) for name, _, _ in fields_of(type(self))}

    def items(self) -> tuple[tuple[str, AttrValue], ...]:
        """(name, value) of each attribute that differs from its default, sorted by name, as texts and keys contain
        them."""
        pairs = ((name, getattr(self, name), default) for name, _, default in fields_of(type(self)))
        return tuple((name, value) for name, value, default in pairs if not _is_same(value, default))

    @property
    def algorithm(self) -> str:
        """A short name, for tables, of how the node is computed, if the operator's name does not say so; else ""."""
        return ""

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """The expressions among the values, also those inside of tuples."""
        return tuple(e for _, value in self.items() for e in _exprs_in(value))

    def mapped(self: A, change: Callable[[AttrValue], AttrValue]) -> A:
        """The attributes with `change` applied to every value."""
        return dataclasses.replace(self, **{name: change(value) for name, value in self.values().items()})


NO_ATTRS = Attrs()
"""The attributes of operators that have none."""


def same(a: AttrValue, b: AttrValue) -> bool:
    """Whether two values of attributes are equal; an expression equals itself, and a literal equals its number."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(b, Expr):
        a, b = b, a
    if isinstance(a, Expr):
        return a is b or (isinstance(b, int) and is_const(a, b))
    return bool(a == b)


def _exprs_in(value: AttrValue) -> Iterator[Expr]:
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, tuple):
        for v in value:
            yield from _exprs_in(v)


def _is_same(value: AttrValue, default: Any) -> bool:
    """Whether a value equals the default, including its type and the sign of zero."""
    return type(value) is type(default) and repr(value) == repr(default)


def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union type; a tuple of the type itself for others."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: AttrValue, hint: Any) -> bool:
    """Whether `value` is of the type `hint`. A bool is not an int here."""
    for option in _options(hint):
        origin = get_origin(option)
        if option is Any:
            return is_attribute(value)
        if origin is Literal:
            result = any(value == x and type(value) is type(x) for x in get_args(option))
        elif origin is tuple:
            result = isinstance(value, tuple) and _each_fits(value, get_args(option))
        elif option in (int, float, bool, str):
            result = type(value) is option
        else:
            result = isinstance(value, option)
        if result:
            return True
    return False


def _each_fits(values: tuple[AttrValue, ...], hints: tuple[Any, ...]) -> bool:
    if hints[-1] is Ellipsis:
        return all(_fits(v, hints[0]) for v in values)
    return len(values) == len(hints) and all(map(_fits, values, hints))


def is_attribute(value: AttrValue) -> bool:
    """Whether `value` is of a type that texts and keys can contain."""
    if isinstance(value, tuple):
        return all(map(is_attribute, value))
    return value is None or isinstance(value, int | float | bool | str | DType | Expr | ConstantArray)


def _converted(value: Any, hint: Any) -> AttrValue:
    """`value` in the normalised form of the type `hint`, without a check that it is of that type."""
    if isinstance(value, list | tuple):
        return tuple(map(_converted, value, _elements(hint, len(value))))
    options = _options(hint)
    if isinstance(value, np.ndarray) or (isinstance(value, np.generic) and ConstantArray in options):
        return ConstantArray(value)
    if isinstance(value, np.generic):
        value = value.item()
    return float(value) if type(value) is int and float in options and int not in options else value


def _elements(hint: Any, count: int) -> list[Any]:
    """The types that `hint` states for the elements of a tuple of `count`; Any for those that it does not state."""
    for option in _options(hint):
        if get_origin(option) is tuple:
            first, *rest = get_args(option)
            return [first] * count if rest == [Ellipsis] else [first, *rest, *[Any] * count][:count]
    return [Any] * count


def _hint_text(hint: Any) -> str:
    """The type `hint` as words of a message: `int`, `(int | Expr, ...)`, `"h" | "s"`."""
    texts = []
    for option in _options(hint):
        arguments = get_args(option)
        if get_origin(option) is Literal:
            texts += [repr(x) for x in arguments]
        elif get_origin(option) is tuple:
            texts.append(f"({', '.join('...' if a is Ellipsis else _hint_text(a) for a in arguments)})")
        else:
            texts.append("None" if option is types.NoneType else getattr(option, "__name__", str(option)))
    return " | ".join(texts)
