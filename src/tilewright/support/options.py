"""Checks of a public function's arguments, before it does any work."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

from tilewright.support.errors import Error, ModelError


def check_option(
    name: str, value: Any, kinds: type | tuple[type, ...], expected: str, error: type[Error] = ModelError
) -> None:
    """Raise `error`, with the description `expected`, unless `value`, the argument called `name`, is of one of the
    types `kinds`."""
    if not isinstance(value, kinds):
        raise error("the argument makes no sense", where=name, expected=expected, got=described(value))


def check_several(name: str, value: Any, expected: str, error: type[Error] = ModelError) -> None:
    """Raise `error`, with the description `expected`, unless `value`, the argument `name`, is iterable; a string is not
    accepted."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise error("the argument makes no sense", where=name, expected=expected, got=described(value))


def check_choice(name: str, value: Any, choices: Sequence[str], error: type[Error] = ModelError) -> None:
    """Raise `error` unless the argument `name` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise error(f"no such setting of {name}", expected=", ".join(choices), got=described(value))


def check_path(path: Any, error: type[Error]) -> None:
    """Raise `error` unless `path` is a string or a path object. Numbers are refused, as Python would treat them as file
    descriptors."""
    if not is_path(path):
        raise error("no path of a file", expected="a string or pathlib.Path", got=described(path))


def is_path(path: Any) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(path, str | os.PathLike)


def described(value: Any) -> str:
    """A value as short text for messages."""
    try:
        text = repr(value)
    except Exception:  # objects of other libraries
        text = ""
    return text if 0 < len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"


__all__ = ["check_choice", "check_option", "check_path", "check_several", "described", "is_path"]
