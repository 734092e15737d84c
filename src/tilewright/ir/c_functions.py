"""C functions in expressions: `extern(cbrtf, f32, x)` is the result of the external function `cbrtf` for the number x.

    float cbrtf(float)          of the C library, by its signature in `LIBRARY`
    f32 scale(f32, i32)         what the user defines by `tw.build(..., extern={"scale": ...})`

An operator of expressions contains the function's name; this module has the signatures and definitions. Such a function
must be pure: the number and the order of its calls are not defined.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from tilewright.ir.dtype import DType, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError

if TYPE_CHECKING:
    from tilewright.ir.expr import Expr

PREFIX = "extern "
"""The prefix of the names of operators that are C functions."""

C_TYPES: dict[DType, tuple[str, Any]] = {
    f32: ("float", ctypes.c_float),
    f64: ("double", ctypes.c_double),
    i8: ("int8_t", ctypes.c_int8),
    i16: ("int16_t", ctypes.c_int16),
    i32: ("int32_t", ctypes.c_int32),
    i64: ("int64_t", ctypes.c_int64),
    u8: ("uint8_t", ctypes.c_uint8),
    u16: ("uint16_t", ctypes.c_uint16),
    u32: ("uint32_t", ctypes.c_uint32),
    u64: ("uint64_t", ctypes.c_uint64),
}
"""For each element type that C functions may take and return, its names in C and in `ctypes`."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The types of a function's result and of its arguments."""

    result: DType
    arguments: tuple[DType, ...]

    def in_c(self, name: str) -> str:
        """The declaration in C, `float cbrtf(float)`."""
        return f"{C_TYPES[self.result][0]} {name}({', '.join(C_TYPES[a][0] for a in self.arguments) or 'void'})"

    def __str__(self) -> str:
        return f"{self.result}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True, eq=False)
class CFunction:
    """An external function of numbers, which expressions may call.

    Args:
        name: the name in expressions.
        symbol: its name in C.
        signature: the types of its result and arguments.
        call: a Python function that calls it with Python's numbers; created on first use.
        source: its definition, which distinguishes functions of one name; None for the C library's.
        llvm: LLVM text that defines it.
        image: an object that defines it.
        is_python: whether it runs Python, which files cannot.
    """

    name: str
    symbol: str
    signature: Signature
    call: Callable[[], Callable[..., Any]]
    source: object = None
    llvm: str | None = None
    image: bytes | None = None
    is_python: bool = False

    @property
    def in_library(self) -> bool:
        """Whether the function belongs to the C library."""
        return self.source is None


def _library() -> dict[str, Signature]:
    """The pure functions of math.h by name, each with its signature: of doubles and, with the suffix "f", of floats."""
    one = """acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp2 expm1 fabs floor lgamma log log10
        log1p log2 logb nearbyint rint round sin sinh sqrt tan tanh tgamma trunc"""
    two = "atan2 copysign fdim fmax fmin fmod hypot nextafter pow remainder"
    result: dict[str, Signature] = {}
    for suffix, t in (("", f64), ("f", f32)):
        result |= {name + suffix: Signature(t, (t,)) for name in one.split()}
        result |= {name + suffix: Signature(t, (t, t)) for name in two.split()}
        result |= {name + suffix: Signature(t, (t, i32)) for name in ("ldexp", "scalbn")}
        result |= {f"fma{suffix}": Signature(t, (t, t, t)), f"ilogb{suffix}": Signature(i32, (t,))}
    return result


LIBRARY = _library()
"""The functions of the C library that expressions may call, by name."""

_REGISTRY: dict[str, CFunction] = {}


def register_c_function(function: CFunction) -> str:
    """Register a function, and return its name in expressions, such as `scale_1`; `scale` alone is the name without a
    definition."""
    for count in itertools.count(1):
        name = f"{function.name}_{count}"
        if _is_alike(_REGISTRY.setdefault(name, function), function):
            return name
    raise AssertionError


def _is_alike(a: CFunction, b: CFunction) -> bool:
    return (a.symbol, a.signature, a.source) == (b.symbol, b.signature, b.source)


@cache
def _of_library(name: str) -> CFunction:
    return CFunction(name, name, LIBRARY[name], lambda: native(name, LIBRARY[name], _address(name)))


def _address(name: str) -> int:
    """The address in this process of the function `name` of the C library. Raises CompileError if there is none."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise CompileError("this process has no such function", where=f"C function {name!r}") from None


def native(name: str, signature: Signature, address: int) -> Callable[..., Any]:
    """A Python function of numbers that calls the native function at `address`."""
    kinds = [C_TYPES[t][1] for t in (signature.result, *signature.arguments)]
    return ctypes.CFUNCTYPE(*kinds)(address)


def find_c_function(name: str) -> CFunction | None:
    """The function with this name in expressions; None if there is none."""
    return _of_library(name) if name in LIBRARY else _REGISTRY.get(name)


def c_function(operator: str) -> CFunction:
    """The C function that an operator calls. Raises CompileError if this process knows none of its name."""
    name = operator.removeprefix(PREFIX)
    result = find_c_function(name)
    if result is None:
        raise CompileError(
            "is called by an element, and nothing says what it is",
            where=f"C function {name!r}",
            expected=f"a function of math.h, or tw.build(..., extern={{{name!r}: ...}})",
        )
    return result


def is_foreign(operator: str) -> bool:
    """Whether an operator is a C function from outside the C library. It may be called only for elements that are
    needed, since its behaviour for other numbers is unknown."""
    return operator.startswith(PREFIX) and operator.removeprefix(PREFIX) not in LIBRARY


def linked_name(operator: str) -> str:
    """The symbol by which code calls an operator's C function."""
    name = operator.removeprefix(PREFIX)
    function = find_c_function(name)
    return name if function is None else function.symbol


def signature_of(result: DType, arguments: tuple[Expr, ...]) -> Signature:
    """The signature of a call with this result type and these arguments."""
    return Signature(result, tuple(a.dtype for a in arguments))


def apply(operator: str, *numbers: Any) -> Any:
    """The result of the C function of an operator for numbers of NumPy or Python. Raises CompileError as `c_function`
    does."""
    function = c_function(operator)
    kinds = function.signature.arguments
    return function.call()(*(float(x) if t.is_float else int(x) for t, x in zip(kinds, numbers, strict=True)))
