"""Helpers of type rules: equality of symbolic dimensions, broadcasting, axes, and reading attributes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from tilewright.arith import exact_quotient, linear, prove, prove_equal, simplify
from tilewright.ir.attributes import Dim
from tilewright.ir.dtype import DType, f32
from tilewright.ir.expr import Const, Expr, Op, Var, as_expr, as_int, cast, const, is_const, product
from tilewright.ir.graph import TensorType
from tilewright.ir.rewrite import map_expr
from tilewright.support.errors import DTypeError, ShapeError, TooSmallError
from tilewright.te import Tensor, compute
from tilewright.te import labelled as labelled
from tilewright.te import or_identity as or_identity

Shape = tuple[Expr, ...]


_facts: ContextVar[tuple[Expr, ...]] = ContextVar("facts", default=())
_whole: ContextVar[dict[Expr, Expr]] = ContextVar("whole", default={})  # noqa: B039  read only
"""Replacements of quotients that conditions prove to be multiples: `h // 16 * 4` for `h // 4` if `h // 4 % 4 == 0`."""


@contextmanager
def with_facts(conditions: tuple[Expr, ...]) -> Iterator[None]:
    """Within the context, these conditions on symbols are assumed to hold for all dimensions."""
    token, whole = _facts.set(conditions), _whole.set(_multiples(conditions))
    try:
        yield
    finally:
        _facts.reset(token)
        _whole.reset(whole)


def has_facts() -> bool:
    """Whether a context of `with_facts` is active. Types depend on its conditions without storing them."""
    return bool(_facts.get())


def _multiples(conditions: tuple[Expr, ...]) -> dict[Expr, Expr]:
    result: dict[Expr, Expr] = {}
    for condition in conditions:
        match condition:
            case Op("eq", (Op("mod", (inner, Const(divisor))), Const(0))):
                form = linear(inner)
                if len(form.terms) == 1 and not form.constant and math.gcd(form.terms[0][1], divisor) == 1:
                    atom = form.terms[0][0]
                    result[atom] = simplify(atom // divisor * divisor)
    return result


def dim(value: Any) -> Expr:
    """A dimension, a number or an expression, in canonical form: equal dimensions are then one object, as types compare
    dimensions by identity."""
    e = as_expr(int(value) if isinstance(value, np.integer) else value)
    if isinstance(e, Const) or not e.children:
        return e
    e, whole = simplify(e, assumptions=_facts.get()), _whole.get()
    return simplify(map_expr(e, whole.get), assumptions=_facts.get()) if whole else e


def known(condition: Expr) -> bool:
    """Whether a condition on sizes follows from the conditions of the active context of `with_facts`."""
    return prove(condition, None, _facts.get())


def whole_quotient(a: Expr, b: Expr) -> Expr | None:
    """`a / b` if that is a polynomial of sizes, else None; its value where b = 0 does not matter."""
    quotient = exact_quotient(a, b, _facts.get())
    return None if quotient is None else dim(quotient)


def dims(values: Sequence[Any]) -> Shape:
    return tuple(dim(v) for v in values)


def known_same(a: Expr, b: Expr) -> bool:
    """Whether two dimensions are provably equal. It assumes nothing, unlike `same_dim`, for rules that also work for
    unequal ones."""
    if a is b:
        return True
    if isinstance(a, Const) and isinstance(b, Const):
        return bool(a.value == b.value)
    return prove_equal(a, b, assumptions=_facts.get())


def same_dim(a: Expr, b: Expr) -> bool:
    """Whether two dimensions that an operator requires to be equal are: provably, or by an assumption that an active
    context of `assuming` then records."""
    if known_same(a, b):
        return True
    pairs = _assumed.get()
    if pairs is None:
        return False
    size, number = (a, b) if isinstance(b, Const) else (b, a)
    if isinstance(number, Const) and number not in _stated.get():
        _numbers.get().append((size, number))
        return False
    pairs.append((size, number))
    return True


def is_size(d: Expr, size: Expr) -> bool:
    """Whether dimension `d` has the `size` that the operator or its weights state. A number stated this way may be
    assumed equal to a symbolic dimension in a context of `assuming`."""
    with stated(frozenset((d, size))):
        return same_dim(d, size)


_assumed: ContextVar[list[tuple[Expr, Expr]] | None] = ContextVar("assumed", default=None)


_numbers: ContextVar[list[tuple[Expr, Expr]]] = ContextVar("numbers")


_stated: ContextVar[frozenset[Expr]] = ContextVar("stated", default=frozenset())


@contextmanager
def stated(numbers: frozenset[Expr]) -> Iterator[None]:
    """Within the context, `numbers` count as sizes that a file states, such as the extents of its weights, and
    `assuming` may assume symbolic dimensions to be equal to them. Numbers that stem from one run of an exporter, such
    as the steps of an unrolled loop, must not be listed."""
    token = _stated.set(numbers)
    try:
        yield
    finally:
        _stated.reset(token)


@contextmanager
def assuming(numbers: list[tuple[Expr, Expr]] | None = None) -> Iterator[list[tuple[Expr, Expr]]]:
    """Within the context, symbolic dimensions that must be equal but are not provably so are assumed equal; the context
    manager yields the list of these pairs. Pairs with a number that is not `stated` are not assumed, but recorded in
    `numbers`."""
    pairs: list[tuple[Expr, Expr]] = []
    token, of_numbers = _assumed.set(pairs), _numbers.set([] if numbers is None else numbers)
    try:
        yield pairs
    finally:
        _assumed.reset(token)
        _numbers.reset(of_numbers)


def stated_numbers() -> frozenset[Expr]:
    """The numbers of the enclosing contexts of `stated`."""
    return _stated.get()


def collects() -> bool:
    """Whether a context of `assuming` is active."""
    return _assumed.get() is not None


def same_shape(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    return len(a) == len(b) and all(same_dim(x, y) for x, y in zip(a, b, strict=True))


def show(shape: Sequence[Expr]) -> str:
    return f"[{', '.join(str(d) for d in shape)}]"


def broadcast_shapes(*shapes: Sequence[Expr]) -> Shape:
    """NumPy's broadcasting; a symbol broadcasts only with itself and with 1. Raises ShapeError."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Expr] = [const(1)] * rank
    for shape in shapes:
        for i, d in enumerate(shape, rank - len(shape)):
            if is_const(d, 1) or result[i] is d:
                continue
            if is_const(result[i], 1):
                result[i] = d
            elif not same_dim(result[i], d):
                raise ShapeError("the operands' shapes do not broadcast", got=" and ".join(show(s) for s in shapes))
    return tuple(result)


MAX_TAPS = 1 << 24
"""The largest number of elements of a window of pooling or of a local normalization."""


def check_window(sizes: Sequence[int]) -> None:
    """Raise ShapeError unless a window has 1 to `MAX_TAPS` elements."""
    if any(n < 1 for n in sizes) or math.prod(sizes) > MAX_TAPS:
        raise ShapeError("no window of such a size", expected=f"1 to {MAX_TAPS} elements", got=list(sizes))


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """A possibly negative axis of a tensor of `rank` dimensions as a position. Raises ShapeError, which calls it
    `what`, when there is none."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{what} is outside the tensor", expected=f"from {-rank} to {rank - 1}", got=axis)
    return axis % rank


def axes_of(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes as sorted positions. Raises ShapeError on an axis outside or named twice."""
    results = sorted(axis_of(int(a), rank) for a in axes)
    if len(set(results)) != len(results):
        raise ShapeError("an axis is named twice", got=list(axes))
    return tuple(results)


def static(d: Any, what: str) -> int:
    """A dimension as a number. Raises ShapeError, which names `what`, for a symbolic one."""
    value = as_int(d)
    if value is None:
        raise ShapeError(f"{what} must be a number known when compiling", got=d)
    return value


def number(d: Dim) -> int:
    """A dimension as a number, in NumPy references, where symbols have been replaced by numbers."""
    value = as_int(d)
    assert value is not None, f"{d} is no number"
    return value


def present(t: TensorType | None, what: str = "an input") -> TensorType:
    if t is None:
        raise ShapeError(f"{what} is missing")
    return t


def need(t: Tensor | None) -> Tensor:
    assert t is not None, "type inference refuses absent inputs"
    return t


def rank_at_least(t: TensorType, rank: int) -> None:
    if t.rank < rank:
        raise ShapeError("the rank is too small", expected=f"at least {rank}", got=f"{t.rank} ({t})")


def at_least(extent: Expr, count: Expr, what: str) -> None:
    """Raise TooSmallError with the text `what` unless `extent`, of a dimension, is provably at least `count`."""
    if known(count >= 0) and known(count <= extent):
        return
    number = as_int(count)
    error = TooSmallError(what, expected=f"{count} elements", got=extent, hint="fix the dimension when compiling")
    if isinstance(extent, Var) and number is not None and number >= 0:
        error.needs = (extent.name, number)
    raise error


def same_dtype(types: Sequence[TensorType]) -> DType:
    first = types[0].dtype
    if any(t.dtype is not first for t in types):
        raise DTypeError("the operands' element types differ", got=" and ".join(t.dtype.name for t in types))
    return first


def check_kind(t: DType, kinds: Sequence[str]) -> None:
    if t.kind not in kinds:
        raise DTypeError("the element type does not fit", expected=" or ".join(kinds), got=t)


def element_count(shape: Sequence[Expr]) -> Expr:
    return product(shape)


def broadcast_index(tensor: Tensor, point: Sequence[Expr], shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """The indices of `tensor`'s element that broadcasts to `point` of a result of `shape`."""
    offset = len(point) - tensor.ndim
    return tuple(
        const(0) if is_const(d, 1) and not is_const(whole, 1) else p
        for d, p, whole in zip(tensor.shape, point[offset:], shape[offset:], strict=True)
    )


def accumulator(t: DType) -> DType:
    """The type in which values of type `t` are summed: f32 for 16-bit floats, `t` itself for others."""
    return f32 if t.is_float and t.bits == 16 else t


def wide(values: Any) -> Any:
    """An array of 16-bit floats as f32; any other array unchanged."""
    array = np.asarray(values)
    return (
        array.astype(np.float32) if array.dtype.itemsize == 2 and not np.issubdtype(array.dtype, np.integer) else array
    )


def narrow(tensor: Tensor, to: DType, name: str) -> Tensor:
    """`tensor` rounded from its accumulator type to `to`, as a stage called `name`; `tensor` itself if it has that
    type."""
    if tensor.dtype is to:
        return tensor
    result: Tensor = compute(tensor.shape, lambda *i: cast(tensor[i], to), name=name)
    return result


def scalar(value: Any, t: DType) -> Const:
    """A constant expression of type `t`."""
    if t.is_minifloat:
        return const(int(np.asarray(value).astype(t.numpy).view(np.uint8)), t)
    return const(float(value) if t.is_float else bool(value) if t.kind == "bool" else int(value), t)
