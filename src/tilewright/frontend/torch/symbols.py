"""Symbolic sizes of `torch.export` (SymPy expressions) as Tilewright's expressions."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from fractions import Fraction
from functools import reduce
from pathlib import Path
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tilewright.arith import prove
from tilewright.ir.dim import Dim, DimSizes
from tilewright.ir.expr import Expr, Var, all_of, any_of, as_expr, as_int, equal, maximum, minimum, not_equal
from tilewright.ir.graph import GraphBuilder
from tilewright.ir.rewrite import substitute
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


def _nearest(a: Any, b: Any) -> Any:
    """The integer nearest to a / b; of two the even one."""
    above, rest = (2 * a + b) // (2 * b), (2 * a + b) % (2 * b)
    return above - (1 - minimum(rest, 1)) * (above % 2)


_ROUNDINGS: dict[str, Callable[[Any, Any], Any]] = {
    "FloorToInt": lambda a, b: a // b,
    "CeilToInt": lambda a, b: -(-a // b),
    "TruncToInt": lambda a, b: maximum(a // b, 0) + minimum(-(-a // b), 0),
    "RoundToInt": _nearest,
}
"""Integers of a fraction by PyTorch's names for them."""

_QUOTIENTS = ("IntTrueDiv", "FloatTrueDiv", "ToFloat")
"""PyTorch's SymPy functions of sizes whose results are floats."""

_TORCH = Path(torch.__file__).parent

_MAX_DENOMINATOR = 1 << 20
"""The largest denominator of a fraction that replaces a float in a condition, so that products with sizes fit 64
bits."""

_RELATIONS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Equality": equal,
    "Unequality": not_equal,
    "LessThan": operator.le,
    "StrictLessThan": operator.lt,
    "GreaterThan": operator.ge,
    "StrictGreaterThan": operator.gt,
}


def guards_of(program: torch.export.ExportedProgram) -> list[Any]:
    """The guards, conditions on sizes that PyTorch assumed while it traced a program, as SymPy expressions. A program
    that was loaded from a file has none, as files only hold the ranges of symbols.

    Some guards say that a float computed from sizes equals its traced value, as for the argument `scale=1 /
    x.shape[0]`. Such a guard is replaced by equations of its sizes with the traced ones, and so is one with rounded
    floats, or with a function that `Sizes.condition` does not support.
    """
    env = _shape_env(program)
    if env is None:
        return []
    stated = [g.expr for g in env.guards if not (_about_ones(g.expr) and _is_of_operators(g))]
    return [g for guard in stated for g in _as_sizes(guard, traced_sizes(env))]


@contextlib.contextmanager
def guards_of_operators(program: torch.export.ExportedProgram) -> Iterator[None]:
    """Within the context, of the guards that PyTorch adds keep only those that operators cause: a decomposition also
    repeats the program's own guards, in another form and with another location."""
    env = _shape_env(program)
    before = 0 if env is None else len(env.guards)
    try:
        yield
    finally:
        if env is not None:
            env.guards[before:] = filter(_is_of_operators, env.guards[before:])


def _shape_env(program: torch.export.ExportedProgram) -> ShapeEnv | None:
    """The ShapeEnv in which a program was traced; None if it was loaded from a file, or has no tensors."""
    held = (node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    modes = (getattr(value, "fake_mode", None) for value in held)
    return next((mode.shape_env for mode in modes if mode is not None and mode.shape_env is not None), None)


def own_guards(env: ShapeEnv) -> list[Any]:
    """The conditions on sizes that the module's own code evaluated, as SymPy expressions, without those that fix a size
    to a number, which operators cause."""
    return [g.expr for g in env.guards if not _is_of_operators(g) and not _is_number(g.expr)]


def traced_sizes(env: ShapeEnv) -> Mapping[Any, Any]:
    """PyTorch's symbol -> the size with which the program was traced."""
    result: Mapping[Any, Any] = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
    return result


def _is_of_operators(guard: Any) -> bool:
    """Whether PyTorch's code, rather than the module's, caused `guard`, by its location. Dynamo, which interprets the
    module, and `Module`, which calls code without a file, count as the module's code; this package's modes, which see
    each operator, count as PyTorch's."""
    file = getattr(guard.sloc.framework_loc, "filename", "")
    if file and Path(file).parent == Path(__file__).parent:
        return True
    place = Path(file).relative_to(_TORCH).as_posix() if file and Path(file).is_relative_to(_TORCH) else ""
    return bool(place) and not place.startswith("_dynamo/") and place != "nn/modules/module.py"


def _is_number(guard: Any) -> bool:
    return isinstance(guard, sympy.Eq) and any(x.is_number for x in guard.args)


def _as_sizes(guard: Any, traced: Mapping[Any, Any]) -> list[Any]:
    number = isinstance(guard, sympy.Eq) and isinstance(guard.args[1], sympy.Float)
    parts = list(sympy.preorder_traversal(guard))
    exact = not number and all(map(_has_expression, parts)) and not any(map(_is_rounded, parts))
    if exact or not guard.free_symbols <= traced.keys():
        return [guard]
    return [sympy.Eq(s, traced[s], evaluate=False) for s in sorted(guard.free_symbols, key=str)]


def _has_expression(e: Any) -> bool:
    """Whether `Sizes.condition` supports the function at the root of `e`: it does not for `x.shape[0] ** 0.5 > 5`."""
    if type(e).__name__ in ("Max", "Min") and any(map(_is_float, e.args)):
        return False
    known = {*_FUNCTIONS, *_RELATIONS, *_QUOTIENTS, *_ROUNDINGS, "And", "Or"}
    return e.is_number or e.is_Symbol or isinstance(e, BooleanAtom) or type(e).__name__ in known


def _is_rounded(e: Any) -> bool:
    """Whether `e`, a float computed from sizes, is rounded, so that a condition on exact fractions may differ: `0.1 * 3
    > 0.3`. A quotient of exact numbers is not, since its comparisons with whole numbers agree."""
    if type(e).__name__ in _QUOTIENTS[:2]:
        return bool(_quotients(e.args[1], _QUOTIENTS[:2]))
    floats = [part for part in e.args if isinstance(part, sympy.Float)]
    uneven = any(Fraction(float(x)).denominator > _MAX_DENOMINATOR for x in floats)
    return type(e).__name__ in ("Add", "Mul") and (uneven or bool(_quotients(e, _QUOTIENTS[:2])))


def holds(guards: Iterable[Any], sizes: Mapping[Any, int]) -> bool:
    """Whether none of the conditions `guards` is false for `sizes` (symbol -> number). Conditions on other symbols are
    ignored."""
    return not any(g.subs(sizes) == sympy.false for g in guards)


def _quotients(e: Any, names: Sequence[str] = _QUOTIENTS) -> set[Any]:
    """The SymPy classes among `names` that occur in the expression `e`."""
    return {type(part) for part in sympy.preorder_traversal(e) if type(part).__name__ in names}


def _is_float(e: Any) -> bool:
    sums = type(e).__name__ in ("Add", "Mul") and any(map(_is_float, e.args))
    return sums or isinstance(e, sympy.Float) or type(e).__name__ in (*_QUOTIENTS, "FloatPow")


def _about_ones(guard: Any) -> bool:
    """Whether `guard` only says that a size is not 0 or 1, or that two sizes differ."""
    if not isinstance(guard, sympy.core.relational.Relational):
        return False
    a, b = guard.args
    if isinstance(b, sympy.Float) or _is_float(a):
        return False
    if isinstance(guard, sympy.Ne):
        remainder = any(type(e).__name__ in ("Mod", "PythonMod") for e in (a, b))
        return not remainder and (not b.is_number or b in (0, 1))
    return (isinstance(guard, sympy.Ge) and b in (1, 2)) or (isinstance(guard, sympy.Gt) and b in (0, 1))


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

    `ranges`: the program's range constraints; `fixed`: sizes and ranges that the caller states, by Tilewright's names
    of symbols; `least`: the smallest size that the program serves.
    """

    ranges: Mapping[Any, Any]
    fixed: DimSizes
    least: int = 1
    known: dict[str, Expr] = field(default_factory=dict)
    named: dict[str, Expr] = field(default_factory=dict)

    def join(self, names: Sequence[str]) -> str:
        """The name of a size that has several `names`, of which the caller states some: the first of these. Its range
        becomes what is common to all that are stated. Raises ModelError if nothing is."""
        stated = [name for name in names if name in self.fixed]
        ranges = [Dim(said, said) if isinstance(said, int) else said for said in map(self.fixed.__getitem__, stated)]
        common = reduce(Dim.within, ranges)
        least = -(-common.lo // common.multiple) * common.multiple
        if common.hi is not None and least > common.hi:
            what = f"{', '.join(stated)} are one size of the model, and their ranges have none in common"
            raise ModelError(what, got=", ".join(map(str, ranges)))
        one = common if len(stated) > 1 else ranges[0]
        rest = {name: said for name, said in self.fixed.items() if name not in stated}
        self.fixed = {**rest, stated[0]: common.lo if common.lo == common.hi else one}
        return stated[0]

    def declare(self, size: Any, name: str) -> None:
        """Name a size: a symbol, or a multiple of a symbol that is no size by itself (`torch.export.Dim("n") * 32`).
        Sizes of one name share one variable. Other expressions are composed of named symbols.

        Raises ModelError where the caller states a number that is no such multiple.
        """
        result = _linear(size)
        if result is None or str(result[0]) in self.known:
            return
        symbol, factor, offset = result
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
        supplied = self.ranges.get(symbol)
        if supplied is None:
            return self.least, None
        low, high = (int(v) if isinstance(v, sympy.Integer) else None for v in (supplied.lower, supplied.upper))
        # Export reasons about sizes of 2 and more unless it is told of 1; the graph that it makes mostly serves 1 too.
        low = self.least if low is None or low <= 2 else low
        return low, None if high is None or high >= (1 << 31) - 1 else high

    def assume(self, guards: Iterable[Any], builder: GraphBuilder) -> None:
        """Assume PyTorch's guards, conditions on sizes, in `builder`, as far as they are supported. Those that a size
        is neither 0 nor 1 are left out: every trace has them, and programs mostly serve these sizes, too."""
        for guard in guards:
            with contextlib.suppress(UnsupportedError):
                builder.assume(as_expr(self.condition(guard)), "a guard of torch.export")

    def replace(self, table: Mapping[Var, Expr]) -> None:
        """Replace symbols in all recorded sizes by the expressions in `table`, such as symbols with smaller ranges."""
        for sizes in (self.named, self.known):
            sizes.update({name: dim(substitute(size, table)) for name, size in sizes.items()})

    def condition(self, e: Any) -> Any:
        """A SymPy condition on sizes as expression. Raises UnsupportedError."""
        name = type(e).__name__
        if isinstance(e, BooleanAtom):
            return bool(e)
        if name in _RELATIONS:
            (a, b), (c, d) = map(self._ratio, e.args)
            return _RELATIONS[name](a * d, c * b)
        if name in ("And", "Or"):
            return (all_of if name == "And" else any_of)(as_expr(self.condition(a)) for a in e.args)
        raise UnsupportedError(f"a condition on sizes by {name} is not supported", got=e)

    def _ratio(self, e: Any) -> tuple[Expr, Expr]:
        """(numerator, positive denominator) of a number computed from sizes: guards may compare floats, as for `if
        x.shape[0] / 3 > 1.2`. Raises UnsupportedError for other functions."""
        name = type(e).__name__
        if isinstance(e, sympy.Float):
            fraction = Fraction(float(e)).limit_denominator(_MAX_DENOMINATOR)
            if float(fraction) != float(e) or abs(fraction) > _MAX_DENOMINATOR:
                raise UnsupportedError("a condition on sizes by such a number is not supported", got=e)
            return as_expr(fraction.numerator), as_expr(fraction.denominator)
        if name == "ToFloat":
            return self._ratio(e.args[0])
        if name in ("IntTrueDiv", "FloatTrueDiv"):
            (a, b), (c, d) = map(self._ratio, e.args)
            if not prove(c > 0):
                raise UnsupportedError("a condition on sizes by this quotient is not supported", got=e)
            return a * d, b * c
        if name in ("Add", "Mul") and e.has(sympy.Float, *_quotients(e)):
            (a, b), *others = map(self._ratio, e.args)
            for c, d in others:
                a, b = (a * d + c * b, b * d) if name == "Add" else (a * c, b * d)
            return a, b
        return as_expr(self._expr(e)), as_expr(1)

    def expr(self, size: int | torch.SymInt | Any) -> Expr:
        """A size of PyTorch's as expression. Raises UnsupportedError for one that depends on data."""
        if isinstance(size, int):
            return as_expr(size)
        node = size.node.expr if isinstance(size, torch.SymInt) else size
        return dim(self._expr(node))

    def _expr(self, e: Any) -> Expr:
        if isinstance(e, sympy.Integer | int):
            return as_expr(int(e))
        if isinstance(e, sympy.Symbol):
            entry = self.known.get(str(e))
            if entry is None:
                raise UnsupportedError("a size that depends on the data is not supported", got=e)
            return entry
        name = type(e).__name__
        if name in _ROUNDINGS and not any(map(_is_rounded, sympy.preorder_traversal(e))):
            return as_expr(_ROUNDINGS[name](*self._ratio(e.args[0])))
        f = _FUNCTIONS.get(name)
        if f is None:
            raise UnsupportedError(f"a symbolic size is computed by {name}, which is not supported", got=e)
        result: Expr = f(*(self._expr(a) for a in e.args))
        return result
