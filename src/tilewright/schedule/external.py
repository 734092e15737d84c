"""External functions: what a stage calls that is not written as loops, and how it is called.

    void f(inputs..., outputs..., sizes...)         each array by its address, each size as an int64_t

In a program the call is a statement that names the function, with all of each array as a region:

    block E(): call f(E[0 : n], A[0 : n])

The names are known in this process alone: a text with such a call means something only beside what registered them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

from tilewright.ir.expr import Expr, const
from tilewright.ir.loops import Intrinsic, Stmt
from tilewright.ir.rewrite import walk
from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError

Size = int | tuple[int, int]
"""A number that the function is given, or which dimension of which array (the inputs, then the outputs)."""


@dataclass(frozen=True, slots=True)
class External:
    """A function from outside.

    Args:
        name: by which statements call it.
        symbol: its name in C.
        sizes: what it takes after the arrays.
        llvm: LLVM text that defines it.
        shared: LLVM text of what `llvm` calls, which several functions share: a program has it once.
        address: where it is in this process.
        python: a Python function that takes the arrays and writes the outputs; it is given all extents as sizes.
        owner: what keeps the code at the address alive.
    """

    name: str
    symbol: str
    sizes: tuple[Size, ...] = ()
    llvm: str | None = None
    address: int | None = None
    python: Callable[..., Any] | None = None
    shared: str | None = None
    owner: object = field(default=None, compare=False, repr=False)

    @property
    def linked(self) -> str:
        """The name by which code calls it: that of a Python function is ours to choose."""
        return self.symbol if self.python is None else f"tw_external_{self.name}"


_REGISTRY: dict[str, External] = {}


def register_external(external: External) -> External:
    """Register an external function, and return it. If its name belongs to a function of other content it gets a number
    after its name."""
    count, result = 0, external
    while _REGISTRY.setdefault(result.name, result) != result:
        count += 1
        result = replace(external, name=f"{external.name}_{count}")
    return result


def find_external(name: str) -> External | None:
    """The external function of this name."""
    return _REGISTRY.get(name)


def externals_in(stmt: Stmt) -> tuple[External, ...]:
    """The external functions that a statement calls, by first appearance."""
    results = (find_external(s.name) for s in walk(stmt) if isinstance(s, Intrinsic))
    return tuple(dict.fromkeys(x for x in results if x is not None))


def sizes_of(external: External, call: Intrinsic) -> tuple[Expr, ...]:
    """The sizes that a call passes. Raises CompileError where an array is not there."""
    arrays = (*call.inputs, *call.outputs)
    if external.python is not None:
        return tuple(extent for r in arrays for _, extent in r.ranges)
    try:
        return tuple(const(s) if isinstance(s, int) else arrays[s[0]].ranges[s[1]][1] for s in external.sizes)
    except IndexError:
        raise CompileError("is called with other arrays", where=f"external function {external.name!r}") from None


C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that C has for functions."""
