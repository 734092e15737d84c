"""Names of a program as C identifiers, each used once."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilewright.codegen.c.expr import MATH_NAMES
from tilewright.ir.c_functions import LIBRARY
from tilewright.ir.text import DTYPE

RESERVED = MATH_NAMES.union(
    LIBRARY,
    "auto break case char const continue default do double else enum extern float for goto if inline int long "
    "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "bool true false NAN INFINITY main malloc free abort memcpy memmove memset size_t ldexp frexp signbit sched_yield "
    "y0 y1 yn j0 j1 jn allocate".split(" "),
)
"""Names that no identifier of a program gets: C's keywords, and functions that emitted code may call."""

_HELPER = re.compile(rf"([a-z]+_)?({DTYPE})(_to_({DTYPE}))?")
"""The pattern of names of helper functions: `min_f32`, `f32_to_i8`, `bits_f32_to_i32`."""


class Identifiers:
    """Assigns unique identifiers; `used_names` are the reserved and assigned ones."""

    def __init__(self, used_names: Iterable[str] = RESERVED) -> None:
        self.used_names = set(used_names)

    def take(self, name: str) -> str:
        """A C identifier for a name, not used before."""
        base = re.sub(r"[^A-Za-z0-9_]", "_", name) or "_"
        result = f"_{base}" if base[0].isdigit() else base
        while result in self.used_names or _HELPER.fullmatch(result):
            result += "_"
        self.used_names.add(result)
        return result
