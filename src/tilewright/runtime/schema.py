"""Dataclasses to plain JSON data and strictly back: unknown, missing or mistyped fields are refused by name."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class SchemaError(ValueError):
    """Data that does not fit its declared type; `path` is where."""

    def __init__(self, what: str, path: str) -> None:
        super().__init__(f"{path}: {what}")
        self.what = what
        self.path = path


def encode(value: Any) -> Any:
    """Plain data (dict, list, str, int, bool, None) for a tree of dataclasses and tuples."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [encode(v) for v in value]
    if value is None or type(value) in (bool, int, str):
        return value
    raise TypeError(f"cannot encode {type(value).__name__}")


def decode(kind: type[T], data: Any, path: str) -> T:
    """The dataclass `kind` for plain data, checked field by field against its type hints."""
    if not isinstance(data, dict):
        raise SchemaError(f"expected an object, got {type(data).__name__}", path)
    hints = _hints(kind)  # type: ignore[arg-type]
    unknown = [str(k)[:80] for k in data if k not in hints]
    if unknown:
        raise SchemaError(f"unknown fields {unknown[:10]}", path)
    values = {}
    for f in fields(kind):  # type: ignore[arg-type]
        if f.name in data:
            values[f.name] = _value(hints[f.name], data[f.name], f"{path}.{f.name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise SchemaError(f"field {f.name!r} is missing", path)
    return kind(**values)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(hint: Any, data: Any, path: str) -> Any:
    if hint in (int, str, bool, NoneType):
        # bool is a subclass of int, so `isinstance` would let true pass for 1.
        if type(data) is not hint:
            raise SchemaError(f"expected {hint.__name__}, got {type(data).__name__}", path)
        return data
    if is_dataclass(hint) and isinstance(hint, type):
        return decode(hint, data, path)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _union(args, data, path)
    if origin is tuple:
        return _tuple(args, data, path)
    raise TypeError(f"cannot decode {hint!r}")


def _union(choices: tuple[Any, ...], data: Any, path: str) -> Any:
    for choice in choices:
        if (get_origin(choice) is tuple and isinstance(data, list)) or type(data) is choice:
            return _value(choice, data, path)
    names = " or ".join(getattr(c, "__name__", str(c)) for c in choices)
    raise SchemaError(f"expected {names}, got {type(data).__name__}", path)


def _tuple(args: tuple[Any, ...], data: Any, path: str) -> Any:
    if not isinstance(data, list):
        raise SchemaError(f"expected a list, got {type(data).__name__}", path)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_value(args[0], item, f"{path}[{i}]") for i, item in enumerate(data))
    if len(args) != len(data):
        raise SchemaError(f"expected {len(args)} entries, got {len(data)}", path)
    return tuple(_value(a, item, f"{path}[{i}]") for i, (a, item) in enumerate(zip(args, data, strict=True)))
