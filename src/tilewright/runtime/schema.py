"""Conversion of dataclasses to JSON data and strictly back: unknown, missing or mistyped fields are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class SchemaError(ValueError):
    """Data that does not fit its declared type; `path` is where."""

    def __init__(self, what: str, path: str) -> None:
        super().__init__(f"{path}: {what}")
        self.what = what
        self.path = path


_FLOATS = frozenset((float,))
_SCALARS = frozenset((bool, int, float, str, NoneType))


def encode(value: Any) -> Any:
    """JSON data (dict, list, str, int, float, bool, None) for a tree of dataclasses and tuples."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key_of(f): encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return list(value) if _SCALARS.issuperset(map(type, value)) else [encode(v) for v in value]
    if type(value) in _SCALARS:
        return value
    raise TypeError(f"cannot encode {type(value).__name__}")


def key_of(entry: Field[Any]) -> str:
    """The key of a dataclass's field in JSON data: its metadata's "key", which stays when the field is renamed."""
    return str(entry.metadata.get("key", entry.name))


def decode(kind: type[T], data: Any, path: str) -> T:
    """The dataclass `kind` for JSON data, checked field by field against its type hints. Raises SchemaError, which says
    where below `path`, if the data does not fit."""
    try:
        result: T = _decoder_of(kind)(data)
    except SchemaError as error:
        raise SchemaError(error.what, path + error.path) from None
    return result


# A decoder takes JSON data of one declared type; its errors' paths begin where it stands. They are made once for each
# type, because a process that loads a program waits for the some thousand values of its manifest.


def _decoder_of(kind: Any) -> Callable[[Any], Any]:
    return _decoder(kind)


@cache
def _decoder(hint: Any) -> Callable[[Any], Any]:
    if hint in (int, str, bool, NoneType):
        return _exact(hint)
    if hint is float:
        return _finite
    if is_dataclass(hint) and isinstance(hint, type):
        return _object(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _union(args)
    if origin is tuple:
        return _sequence(args[0]) if len(args) == 2 and args[1] is Ellipsis else _row(args)
    raise TypeError(f"cannot decode {hint!r}")


def _exact(kind: type) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        # bool is a subclass of int, so `isinstance` would let true pass for 1.
        if type(data) is not kind:
            raise SchemaError(f"expected {kind.__name__}, got {type(data).__name__}", "")
        return data

    return decode


def _finite(data: Any) -> float:
    # An int is no float here: equal values have one text.
    if type(data) is not float or not isfinite(data):
        raise SchemaError(f"expected a finite float, got {data if type(data) is float else type(data).__name__}", "")
    return data


def _object(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    decoders = {key_of(f): _decoder(hints[f.name]) for f in fields(kind)}
    attributes = {key_of(f): f.name for f in fields(kind)}
    needed = [key_of(f) for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]

    def checked(data: Any) -> Any:
        if not isinstance(data, dict):
            raise SchemaError(f"expected an object, got {type(data).__name__}", "")
        unknown = [str(k)[:80] for k in data if k not in decoders]
        if unknown:
            raise SchemaError(f"unknown fields {unknown[:10]}", "")
        for name in needed:
            if name not in data:
                raise SchemaError(f"field {name!r} is missing", "")
        values = {}
        for name, value in data.items():
            try:
                values[attributes[name]] = decoders[name](value)
            except SchemaError as error:
                raise SchemaError(error.what, f".{name}{error.path}") from None
        return kind(**values)

    names, least = decoders.keys(), set(needed)
    in_order = () if any(f.kw_only for f in fields(kind)) else tuple(decoders.items())

    def decode(data: Any) -> Any:
        if type(data) is dict and len(data) == len(in_order) and names == data.keys():
            try:
                return kind(*[decoder(data[name]) for name, decoder in in_order])
            except SchemaError:
                return checked(data)  # which says where
        if type(data) is dict and least <= data.keys() <= names:
            try:
                return kind(**{attributes[key]: decoders[key](value) for key, value in data.items()})
            except SchemaError:
                pass  # it is said where
        return checked(data)

    return decode


def _union(choices: tuple[Any, ...]) -> Callable[[Any], Any]:
    by_type = {list if get_origin(c) is tuple else dict if is_dataclass(c) else c: _decoder(c) for c in choices}
    names = " or ".join(getattr(c, "__name__", str(c)) for c in choices)

    def decode(data: Any) -> Any:
        decoder = by_type.get(type(data))
        if decoder is None:
            raise SchemaError(f"expected {names}, got {type(data).__name__}", "")
        return decoder(data)

    return decode


def _sequence(item: Any) -> Callable[[Any], Any]:
    decoder = _decoder(item)

    def decode(data: Any) -> Any:
        if not isinstance(data, list):
            raise SchemaError(f"expected a list, got {type(data).__name__}", "")
        if item is float and _FLOATS.issuperset(map(type, data)) and all(map(isfinite, data)):
            return tuple(data)
        try:
            return tuple([decoder(value) for value in data])
        except SchemaError:
            return _row_of([decoder] * len(data), data)  # which says where

    return decode


def _row(items: tuple[Any, ...]) -> Callable[[Any], Any]:
    decoders = [_decoder(item) for item in items]

    def decode(data: Any) -> Any:
        if not isinstance(data, list):
            raise SchemaError(f"expected a list, got {type(data).__name__}", "")
        if len(decoders) != len(data):
            raise SchemaError(f"expected {len(decoders)} entries, got {len(data)}", "")
        return _row_of(decoders, data)

    return decode


def _row_of(decoders: Sequence[Callable[[Any], Any]], data: Sequence[Any]) -> tuple[Any, ...]:
    values = []
    for k, (decoder, value) in enumerate(zip(decoders, data, strict=True)):
        try:
            values.append(decoder(value))
        except SchemaError as error:
            raise SchemaError(error.what, f"[{k}]{error.path}") from None
    return tuple(values)
