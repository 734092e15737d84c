"""Scalar expressions: immutable, hash-consed, so that equal expressions are one object.

    expr := Var | Const | Op(name, args) | Load(buffer, indices) | Reduce(...)

`==` is a comparison. On elements (expressions with an axis or a read of a tensor, before there are loops) it builds an
expression like `<`, without a truth value: the compiler compares elements by `is`, and dictionaries and sets find them
by identity. On other expressions the result of `==` also has a truth value, which tells whether both are the same
expression: shapes, programs and types are compared in this way.

Indices, extents and shapes are `i64`. What each operator means stands in `ir/scalar_ops.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial, reduce
from typing import Any, NoReturn

import numpy as np

from tilewright.ir import folding
from tilewright.ir.dtype import DType, boolean, dtype, f32, i64
from tilewright.ir.interning import keep, known
from tilewright.ir.op_types import readable, result_type
from tilewright.ir.sameness import Sameness
from tilewright.ir.scalar_ops import OPS
from tilewright.ir.scopes import Scope
from tilewright.support.classes import dataclass
from tilewright.support.errors import ExpressionError

Number = int | float | bool


class Expr:
    """Base of scalar expressions. Python operators build expressions and fold constants; comparisons build boolean
    expressions. `==` of expressions without axes and reads of tensors also has a truth value: whether both are the same
    expression."""

    __slots__ = ("__weakref__", "dtype", "known_loads", "known_of_elements", "known_parts", "known_variables")
    __array_ufunc__ = None  # NumPy's scalars leave the operators to this class
    __hash__ = object.__hash__
    dtype: DType
    known_loads: tuple[Load, ...]
    """The cached result of `rewrite.loads`, without the expression itself; unset until computed."""
    known_of_elements: bool
    """The cached result of `of_elements`; unset until computed, and for variables and literals."""
    known_parts: tuple[Expr, ...]
    """The cached result of `rewrite.walk_expr`, without the expression itself; unset until computed."""
    known_variables: tuple[Var, ...]
    """The cached result of `rewrite.variables`; unset until computed."""

    def __add__(self, other: Any) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: Any) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: Any) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: Any) -> Expr:
        return self._floored("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Expr:
        return self._floored("floordiv", other, self)

    def __mod__(self, other: Any) -> Expr:
        return self._floored("mod", self, other)

    def __rmod__(self, other: Any) -> Expr:
        return self._floored("mod", other, self)

    def _floored(self, name: str, a: Any, b: Any) -> Expr:
        """The expression of `a // b` or `a % b` (`name`), rounded to minus infinity; for floats it has several
        operators."""
        if not self.dtype.is_float:
            return binary(name, a, b)
        from tilewright.ir.floored import floored

        return floored(name, *(x if isinstance(x, Expr) else _operand(name, x, self) for x in (a, b)))

    def __eq__(self, other: object) -> Any:
        return _compared("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return _compared("ne", self, other)

    def __lshift__(self, other: Any) -> Expr:
        return binary("shl", self, other)

    def __rshift__(self, other: Any) -> Expr:
        return binary("shr", self, other)

    def __and__(self, other: Any) -> Expr:
        return binary("and" if self.dtype is boolean else "bitand", self, other)

    def __or__(self, other: Any) -> Expr:
        return binary("or" if self.dtype is boolean else "bitor", self, other)

    def __xor__(self, other: Any) -> Expr:
        return binary("bitxor", self, other)

    def __invert__(self) -> Expr:
        return call("not" if self.dtype is boolean else "bitnot", self)

    def __neg__(self) -> Expr:
        return call("neg", self) if not isinstance(self, Const) else const(-self.value, self.dtype)

    def __lt__(self, other: Any) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: Any) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: Any) -> Expr:
        return binary("gt", self, other)

    def __ge__(self, other: Any) -> Expr:
        return binary("ge", self, other)

    def __pow__(self, other: Any) -> Expr:
        return binary("pow", self, other)

    def __rpow__(self, other: Any) -> Expr:
        return binary("pow", other, self)

    def __abs__(self) -> Expr:
        return call("abs", self)

    def _refuse_number(self) -> NoReturn:
        raise ExpressionError(
            f"the expression {readable(self)} is no number",
            hint="te has functions of elements: te.exp, te.max, te.cast",
        )

    __int__ = __float__ = __index__ = _refuse_number

    def __bool__(self) -> bool:
        if isinstance(self, Const):
            return bool(self.value)
        raise ExpressionError(
            f"the expression {readable(self)} has no truth value",
            hint="te.if_then_else(condition, then, orelse) chooses for each element; write a & b, a | b and ~a where "
            "Python has and, or and not, and (lo <= i) & (i < hi) for lo <= i < hi",
        )

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: Any) -> Expr:
        return self

    def __str__(self) -> str:
        from tilewright.ir.printer import expr_text

        return expr_text(self)

    __repr__ = __str__

    @property
    def children(self) -> tuple[Expr, ...]:
        """The sub-expressions, in order."""
        return ()

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The sub-expressions that are computed: `children` without the entries of a table, which may be long."""
        return self.children


class Var(Expr):
    """A named integer or scalar. `lo` and `hi` bound a symbol's value (inclusive; None: no bound), `multiple` divides
    it, and estimates are made for `likely`, values of equal weight. `axis`: it belongs to a tensor expression, and
    lowering replaces it by a block's iterator."""

    __slots__ = ("axis", "hi", "likely", "lo", "multiple", "name")
    __match_args__ = ("name",)
    name: str
    lo: int | None
    hi: int | None
    multiple: int
    axis: bool
    likely: tuple[int, ...]

    def __new__(
        cls,
        name: str,
        dtype: DType = i64,
        lo: int | None = None,
        hi: int | None = None,
        multiple: int = 1,
        axis: bool = False,
        likely: tuple[int, ...] = (),
    ) -> Var:
        identity = (Var, name, dtype, lo, hi, multiple, axis, likely)
        node: Var | None = known(identity)
        if node is None:
            node = object.__new__(cls)
            node.name, node.dtype = name, dtype
            node.lo, node.hi, node.multiple, node.axis, node.likely = lo, hi, multiple, axis, likely
            node = keep(identity, node)
        return node

    def renamed(self, name: str) -> Var:
        """A variable of the same type and range with another name."""
        return Var(name, self.dtype, self.lo, self.hi, self.multiple, likely=self.likely)

    def with_likely(self, likely: tuple[int, ...]) -> Var:
        """A variable of this name, type and range with other likely values."""
        return Var(self.name, self.dtype, self.lo, self.hi, self.multiple, likely=likely)


class Const(Expr):
    """A literal of any element type."""

    __slots__ = ("value",)
    __match_args__ = ("value",)
    value: Any

    def __new__(cls, value: Number, dtype: DType) -> Const:
        if dtype.kind == "float":
            value = float(value)
            token: Any = struct.pack("<d", value)
        elif dtype.kind == "bool":
            value = bool(value)
            token = value
        else:
            value = int(value)
            if not dtype.min <= value <= dtype.max:
                raise ExpressionError(f"{value} does not fit {dtype}")
            token = value
        identity = (Const, token, dtype)
        node: Const | None = known(identity)
        if node is None:
            node = object.__new__(cls)
            node.value, node.dtype = value, dtype
            node = keep(identity, node)
        return node


class Op(Expr):
    """An operator of `OPS` applied to arguments. The constructor checks the types and folds nothing."""

    __slots__ = ("args", "name")
    __match_args__ = ("name", "args")
    name: str
    args: tuple[Expr, ...]

    def __new__(cls, name: str, args: tuple[Expr, ...], dtype: DType | None = None) -> Op:
        identity = (Op, name, args, dtype)
        node: Op | None = known(identity)
        if node is None:
            if name == "lookup" and not all(isinstance(a, Const) for a in args[1:]):
                raise ExpressionError("lookup: the entries are not literals of one type")
            result = result_type(name, args, dtype)
            if dtype is not None and OPS[name].rule not in ("cast", "extern"):
                return Op(name, args)  # its arguments say what it gives
            node = object.__new__(cls)
            node.name, node.args, node.dtype = name, args, result
            node = keep(identity, node)
        return node

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    @property
    def operands(self) -> tuple[Expr, ...]:
        return self.args[:1] if self.name == "lookup" else self.args


class Load(Expr):
    """The element `buffer[indices]`."""

    __slots__ = ("buffer", "indices")
    __match_args__ = ("buffer", "indices")
    buffer: Buffer
    indices: tuple[Expr, ...]

    def __new__(cls, buffer: Buffer, indices: tuple[Expr, ...]) -> Load:
        if len(indices) != len(buffer.shape):
            raise ExpressionError(f"{buffer.name} has {len(buffer.shape)} dimensions, indexed with {len(indices)}")
        identity = (Load, buffer, indices)
        node: Load | None = known(identity)
        if node is None:
            node = object.__new__(cls)
            node.buffer, node.indices, node.dtype = buffer, indices, buffer.dtype
            node = keep(identity, node)
        return node

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.indices


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense row-major array. `scope` says where it lives: see `ir.notes.SCOPES`.

    `align` is the guaranteed alignment of its first element in bytes, None for the element's own.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    scope: Scope = "global"
    align: int | None = None

    def __hash__(self) -> int:
        # Names identify inside a function; this is asked for with every load.
        return hash(self.name)

    def __getitem__(self, indices: Any) -> Expr:
        if not isinstance(indices, tuple):
            indices = (indices,)
        return Load(self, tuple(as_expr(i) for i in indices))

    @property
    def size(self) -> Expr:
        """Number of elements."""
        total: Expr = const(1)
        for extent in self.shape:
            total = total * extent
        return total


def const(value: Number | np.generic[Any], dtype: DType | None = None) -> Const:
    """A literal; without `dtype` ints become i64, floats f32, bools bool. Integers wrap into `dtype`'s range."""
    if type(value) is int and (dtype is None or dtype is i64):
        return _index(value)
    return _literal(value, dtype)


@lru_cache(maxsize=4096)
def _index(value: int) -> Const:
    """An i64 literal for sizes and indices, from a cache of small numbers."""
    return _literal(value, i64)


def _literal(value: Number | np.generic[Any], dtype: DType | None) -> Const:
    if isinstance(value, np.generic):
        number: Number = value.item()
        value = number
    if dtype is None:
        dtype = boolean if isinstance(value, bool) else i64 if isinstance(value, int) else f32
    if dtype.is_int:
        value = int(value) & ((1 << dtype.bits) - 1)
        if dtype.kind == "int" and value >> (dtype.bits - 1):
            value -= 1 << dtype.bits
    return Const(value, dtype)


def as_expr(value: Any, dtype: DType | None = None) -> Expr:
    """`value` itself if it is an expression, else a literal (of `dtype` if given)."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, int | float | bool | np.generic):
        return const(value, dtype)
    if hasattr(value, "as_expr"):
        converted: Expr = value.as_expr()
        return converted
    raise ExpressionError(
        "not an element",
        expected="a scalar expression or a number",
        got=f"{type(value).__name__}{_what_to_index(value)}",
    )


def _what_to_index(value: Any) -> str:
    """The end of an error message about a tensor in place of an element, which shows how to index it; "" for other
    values."""
    if not hasattr(value, "shape") or not hasattr(value, "name"):
        return ""
    return f" {value.name!r}, which has elements: {value.name}[{', '.join(['...'] * len(value.shape))}]"


def _compared(name: str, a: Expr, b: object) -> Any:
    """The result of `a == b` (`name` is "eq") or `a != b` ("ne"): on elements of tensors a boolean expression, on other
    expressions a `Sameness`, which also has a truth value, and on a constant and a number a bool. NotImplemented for
    other operands."""
    if isinstance(b, Expr):
        if not (of_elements(a) or of_elements(b)):
            return Sameness(name, a, b)
        if a is b and not a.dtype.is_float:
            return const(name == "eq")
        return binary(name, a, b)
    if isinstance(b, int | float | np.generic):
        if isinstance(a, Const):
            return (a.value == b) == (name == "eq")
        return binary(name, a, b)
    return NotImplemented


def of_elements(e: Expr) -> bool:
    """Whether an expression mentions an axis or a read of a tensor, so that it has a value for each element only."""
    if isinstance(e, Const):
        return False
    if isinstance(e, Var):
        return e.axis
    try:
        return e.known_of_elements
    except AttributeError:
        from tilewright.ir.rewrite import loads, variables

    reads = any(not isinstance(x.buffer, Buffer) for x in loads(e))
    e.known_of_elements = reads or any(v.axis for v in variables(e))
    return e.known_of_elements


def call(name: str, *args: Any) -> Expr:
    """The operator `name` applied to `args`; Python numbers take the type of the first expression among them."""
    model = next((a for a in args if isinstance(a, Expr)), None)
    if name == "select":
        model = next((a for a in args[1:] if isinstance(a, Expr)), None)
        converted = (as_expr(args[0]), *(as_expr(a, model.dtype if model is not None else None) for a in args[1:]))
        if isinstance(converted[0], Const):
            return converted[1] if converted[0].value else converted[2]
        return Op(name, converted)
    return Op(name, tuple(as_expr(a, model.dtype if model is not None else None) for a in args))


def lookup(index: Any, table: Sequence[Expr]) -> Expr:
    """Entry `index` (i64) of a table of literals of one type; the nearest entry if the index is outside. Folds where
    the index is known."""
    position = as_expr(index)
    if isinstance(position, Const) and position.dtype is i64:
        return table[min(max(int(position.value), 0), len(table) - 1)]
    return Op("lookup", (position, *table))


def binary(name: str, a: Any, b: Any) -> Expr:
    """The binary operator `name` on `a` and `b`, folded where it can be: integer arithmetic on constants exactly, and
    `x+0`, `x*1`, `x*0`, `x//1`, `x%1`. Arithmetic in i64 that would wrap is left to be computed."""
    if not isinstance(a, Expr):
        a = _operand(name, a, b)
    if not isinstance(b, Expr):
        b = _operand(name, b, a)
    if a.dtype is b.dtype and (a.dtype.is_int or a.dtype is boolean):
        folded = _fold_int(name, a, b)
        if folded is not None:
            return folded
    return Op(name, (a, b))


def _operand(name: str, value: Any, other: Any) -> Expr:
    """The number `value` as an expression of the type of `other`, the other operand of operator `name`; only arithmetic
    wraps around silently."""
    kind = as_expr(other).dtype
    if kind.is_int and isinstance(value, int | float | np.generic) and not isinstance(value, bool | np.bool_):
        number: Any = value
        if number != number or number in (float("inf"), -float("inf")) or number != int(number):
            hint = f'write te.cast({readable(as_expr(other))}, "float32")'
            raise ExpressionError(f"{name} of {kind} and {value}: the number is no integer", hint=hint)
        if OPS[name].rule == "bool" and not kind.min <= number <= kind.max:
            raise ExpressionError(
                f"{name} of {kind} and {value}: no {kind} has this value", expected=f"{kind.min} to {kind.max}"
            )
    return as_expr(value, kind)


def _fold_int(name: str, a: Expr, b: Expr) -> Expr | None:
    left = a.value if type(a) is Const else None
    right = b.value if type(b) is Const else None
    if left is None and right is None:
        return None
    if left is not None and right is not None:
        value = folding.exact(name, left, right)
        if value is None or (a.dtype is i64 and not i64.min <= value <= i64.max):
            return None  # a size that does not fit must not become another one
        boolean_result = a.dtype is boolean or OPS[name].rule == "bool"
        return const(value, boolean if boolean_result else a.dtype)
    match folding.trivial_result(name, left, right):
        case "left":
            return a
        case "right":
            return b
        case "zero":
            return const(0, a.dtype)
    return None


def cast(value: Any, to: DType | str) -> Expr:
    """`value` converted to the element type `to`: floats to ints truncate (saturating, NaN to 0), ints wrap, to bool is
    `!= 0`."""
    target = dtype(to)
    operand = as_expr(value)
    if operand.dtype is target:
        return operand
    if isinstance(operand, Const) and operand.dtype.kind in ("int", "uint", "bool"):
        return const(operand.value, target)
    return Op("cast", (operand,), target)


def select(condition: Any, then: Any, orelse: Any) -> Expr:
    """`then` where `condition` holds, else `orelse`; the other branch's loads never happen."""
    return call("select", condition, then, orelse)


def minimum(a: Any, b: Any) -> Expr:
    return as_expr(a) if a is b else binary("min", a, b)


def maximum(a: Any, b: Any) -> Expr:
    return as_expr(a) if a is b else binary("max", a, b)


def equal(a: Any, b: Any) -> Expr:
    """The boolean expression `a == b`."""
    if a is b and isinstance(a, Expr) and not a.dtype.is_float:
        return const(True)
    return binary("eq", a, b)


def not_equal(a: Any, b: Any) -> Expr:
    """The boolean expression `a != b`."""
    if a is b and isinstance(a, Expr) and not a.dtype.is_float:
        return const(False)
    return binary("ne", a, b)


def all_of(conditions: Iterable[Expr]) -> Expr:
    """The conjunction of `conditions`; true if there are none."""
    true: Expr = const(True)
    return reduce(partial(binary, "and"), conditions, true)


def any_of(conditions: Iterable[Any]) -> Expr:
    """The disjunction of `conditions`; false if there are none."""
    false: Expr = const(False)
    return reduce(partial(binary, "or"), conditions, false)


def ceildiv(a: Any, b: Any) -> Expr:
    """The expression of `a / b` rounded up: `(a + b - 1) // b`."""
    divisor = as_expr(b)
    return (as_expr(a) + (divisor - 1)) // divisor


def product(factors: Sequence[Any]) -> Expr:
    one: Expr = const(1)
    return reduce(partial(binary, "mul"), factors, one)


def is_const(e: Any, value: Number | None = None) -> bool:
    """Whether `e` is a literal, and equal to `value` if that is given."""
    return isinstance(e, Const) and (value is None or e.value == value)


def as_int(e: Any) -> int | None:
    """The value of `e` if it is an integer or the literal of one, else None."""
    if isinstance(e, Const) and not e.dtype.is_float:
        return int(e.value)
    return int(e) if isinstance(e, int) else None
