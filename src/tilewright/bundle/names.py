"""Names of a program that C, C++ and Rust all take."""

from __future__ import annotations

import re

from tilewright.codegen.c.names import RESERVED, Identifiers

_CPP = (
    "alignas alignof and asm bitand bitor catch class compl concept consteval constexpr constinit const_cast decltype "
    "delete dynamic_cast explicit export friend module mutable namespace new noexcept not nullptr operator or private "
    "protected public reinterpret_cast requires static_assert static_cast template this thread_local throw try "
    "typeid typename using virtual wchar_t xor"
)
_RUST = (
    "as async await box crate dyn fn gen impl in let loop match mod move mut pub ref self Self super trait type unsafe "
    "use where yield abstract become final macro override priv typeof unsized"
)
_OURS = "constants activations workspace weights state extents model data"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Names:
    """Assigns unique identifiers to arguments, and upper-case ones to constants."""

    def __init__(self, program: str) -> None:
        self._arguments = Identifiers({*RESERVED, *_CPP.split(), *_RUST.split(), *_OURS.split(), program})
        self._numbers = Identifiers(())

    def take(self, name: str) -> str:
        """An identifier for the argument `name`, valid in all languages, that no other argument has."""
        return self._arguments.take(name)

    def constant(self, name: str) -> str:
        """An identifier for a constant about `name`, in upper case, that no other constant has."""
        return self._numbers.take(name).upper()


def is_name(name: str) -> bool:
    """Whether a name is a valid identifier in all languages of a bundle."""
    return _NAME.fullmatch(name) is not None and name not in {*RESERVED, *_CPP.split(), *_RUST.split()}


def as_name(text: str) -> str:
    """A text changed into an identifier that is valid in all languages of a bundle."""
    result = re.sub(r"[^A-Za-z0-9_]", "_", text) or "model"
    result = f"m_{result}" if result[0].isdigit() else result
    return result if is_name(result) else f"{result}_model"
