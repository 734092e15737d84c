"""Symbolic sizes of `torch.export` (SymPy expressions) as our expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

import sympy
import torch

from tilewright.ir.dim import Dim, DimSizes
from tilewright.ir.expr import Expr, as_expr, as_int, maximum, minimum
from tilewright.ops.dims import dim
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, UnsupportedError


def _fold(f: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        result = args[0]
        for a in args[1:]:
            result = f(result, a)
        return result

    return run


def _power(base: Any, exponent: Any) -> Any:
    number = as_int(exponent)
    if number is None or not 0 <= number <= 8:
        raise UnsupportedError("a symbolic size is raised to a power that is not supported", got=exponent)
    result = as_expr(1)
    for _ in range(number):
        result = result * base
    return result


# Names of SymPy's and PyTorch's functions of sizes, which are not negative, so that flooring is truncating.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": _fold(lambda a, b: a + b),
    "Mul": _fold(lambda a, b: a * b),
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: (a + (b - 1)) // b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "ModularIndexing": lambda a, b, c: (a // b) % c,
    "Max": _fold(maximum),
    "Min": _fold(minimum),
}


def _linear(size: Any) -> tuple[Any, int, int] | None:
    """(symbol, factor, offset) of a size `factor * symbol + offset` that is always a multiple of the factor; None for
    others."""
    if len(size.free_symbols) != 1:
        return None
    (symbol,) = size.free_symbols
    factor, rest = sympy.div(size, symbol) if size.is_polynomial(symbol) else (size, size)
    if not (factor.is_Integer and rest.is_Integer and factor > 0 and rest % factor == 0):
        return None
    return symbol, int(factor), int(rest)


@dataclass(slots=True)
class Sizes:
    """The variables of one program by the name of their SymPy symbol.

    `ranges` are the program's range constraints, `fixed` what callers say of symbols by our names for them, `least`
    is the smallest size that the program serves.
    """

    ranges: Mapping[Any, Any]
    fixed: DimSizes
    least: int = 1
    known: dict[str, Expr] = field(default_factory=dict)
    named: dict[str, Expr] = field(default_factory=dict)

    def declare(self, size: Any, name: str) -> None:
        """Give a size its name: a symbol, or a multiple of one that no size is alone (`torch.export.Dim("n") * 32`).
        Two sizes of one name are one variable. Others are said by what has a name already.

        Raises ModelError where the caller states a number that is no such multiple.
        """
        found = _linear(size)
        if found is None or str(found[0]) in self.known:
            return
        symbol, factor, offset = found
        if name not in self.named:
            self.named[name] = self._variable(symbol, name, factor, offset)
        self.known[str(symbol)] = self.named[name] // factor - offset // factor

    def _variable(self, symbol: Any, name: str, factor: int, offset: int) -> Expr:
        low, high = self._range(symbol)
        low, high = factor * low + offset, None if high is None else factor * high + offset
        said = self.fixed.get(name, Dim())
        if isinstance(said, Dim):
            ends = [end for end in (said.hi, high) if end is not None]
            needs = Dim(low, multiple=factor) if low > 1 or factor > 1 else None
            return replace(said, hi=min(ends, default=None)).var(name, needs)
        if said % factor:
            raise ModelError(f"{name} cannot be this size", expected=f"a multiple of {factor}", got=said)
        return as_expr(said)

    def _range(self, symbol: Any) -> tuple[int, int | None]:
        given = self.ranges.get(symbol)
        if given is None:
            return self.least, None
        low, high = (int(v) if isinstance(v, sympy.Integer) else None for v in (given.lower, given.upper))
        # Export reasons about sizes of 2 and more unless it is told of 1; the graph that it makes mostly serves 1 too.
        low = self.least if low is None or low <= 2 else low
        return low, None if high is None or high >= (1 << 31) - 1 else high

    def expr(self, size: int | torch.SymInt | Any) -> Expr:
        """A size of PyTorch. Raises UnsupportedError for one that depends on data."""
        if isinstance(size, int):
            return as_expr(size)
        node = size.node.expr if isinstance(size, torch.SymInt) else size
        return dim(self._expr(node))

    def _expr(self, e: Any) -> Expr:
        if isinstance(e, sympy.Integer | int):
            return as_expr(int(e))
        if isinstance(e, sympy.Symbol):
            found = self.known.get(str(e))
            if found is None:
                raise UnsupportedError("a size that depends on the data is not supported", got=e)
            return found
        f = _FUNCTIONS.get(type(e).__name__)
        if f is None:
            raise UnsupportedError(f"a symbolic size is computed by {type(e).__name__}, which is not supported", got=e)
        result: Expr = f(*(self._expr(a) for a in e.args))
        return result
