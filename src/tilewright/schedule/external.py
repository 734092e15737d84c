"""External functions: functions outside of the loop language that a stage calls, and their calls.

    void f(inputs..., outputs..., sizes...)         each array by its address, each size as an int64_t

In a program the call is a statement that names the function, with all of each array as a region:

    block E(): call f(E[0 : n], A[0 : n])

The names are registered in this process only: a text with such a call needs the registration of its function.
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
"""A size argument of an external function: a number, or (array, dimension), the extent of that dimension, where outputs
are counted after inputs."""


@dataclass(frozen=True, slots=True)
class External:
    """A function outside of the loop language.

    Args:
        name: the name in statements that call it.
        symbol: its name in C.
        sizes: its size arguments, after the arrays.
        llvm: LLVM text that defines it.
        shared: LLVM text of functions that `llvm` calls and several functions share: a program contains it once.
        address: its address in this process.
        python: a Python function that takes the arrays and writes the outputs; it is given all extents as sizes.
        owner: an object that keeps the code at the address alive.
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
        """The name by which code calls the function: its symbol, or a generated name for a Python function."""
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
    """The external function registered under this name; None if there is none."""
    return _REGISTRY.get(name)


def externals_in(stmt: Stmt) -> tuple[External, ...]:
    """The external functions that a statement calls, by first appearance."""
    results = (find_external(s.name) for s in walk(stmt) if isinstance(s, Intrinsic))
    return tuple(dict.fromkeys(x for x in results if x is not None))


def sizes_of(external: External, call: Intrinsic) -> tuple[Expr, ...]:
    """The sizes that the statement `call` passes to `external`. Raises CompileError if one refers to an array that the
    call does not pass."""
    arrays = (*call.inputs, *call.outputs)
    if external.python is not None:
        return tuple(extent for r in arrays for _, extent in r.ranges)
    try:
        return tuple(const(s) if isinstance(s, int) else arrays[s[0]].ranges[s[1]][1] for s in external.sizes)
    except IndexError:
        raise CompileError("is called with other arrays", where=f"external function {external.name!r}") from None


C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The pattern of names that C functions may have."""
