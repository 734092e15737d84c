"""Operators as functions on tensors: `tw.operators.softmax(x, axis=1)` is the stages that compute it.

    x = te.placeholder((4, 10), name="x")
    y = tw.operators.softmax(x, axis=1)
    s = te.create_schedule(y)

Arguments are the operator's inputs in order (None: absent), keywords its attributes. The function has the operator's
NumPy reference as `reference`, which takes arrays and the same keywords.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from tilewright.ir.attributes import fields_of
from tilewright.ir.graph import TensorType
from tilewright.ops.registry import OpDef, Types, attributes, get, names
from tilewright.support.errors import Error, ExpressionError
from tilewright.te import Tensor


def library() -> list[str]:
    """The names of all source operators that have a tensor expression."""
    return [n for n in names() if get(n).dialect == "source" and get(n).compute is not None]


@cache
def function(name: str) -> Callable[..., Any]:
    """The operator `name` as a function on tensors. Raises UnsupportedError if there is none, ExpressionError if it has
    no tensor expression."""
    op = get(name)
    compute = op.compute
    if compute is None:
        raise ExpressionError(f"operator {name!r} is a loop program of its own, no tensor expression")

    def apply(*inputs: Tensor | None, **values: Any) -> Any:
        for k, x in enumerate(inputs):
            if x is not None and not isinstance(x, Tensor):
                raise ExpressionError(f"{name}: input {k}", expected="a tensor", got=type(x).__name__)
        attrs = attributes(name, values)
        types = [None if x is None else TensorType(x.dtype, x.shape) for x in inputs]
        tensors = _Noticed(inputs)
        try:
            out = op.infer(types, attrs)
            results = compute(tensors, attrs, out)
        except IndexError:
            raise ExpressionError(f"{name}: too few inputs", got=len(inputs)) from None
        for k, x in enumerate(inputs):
            if (
                x is not None
                and k not in tensors.noticed
                and _same_without(k, types, lambda t: op.infer(t, attrs), out)
            ):
                takes = ", ".join(f"{n} = {v}" for n, v in values.items()) or "these attributes"
                raise ExpressionError(f"{name}: with {takes} it takes no input {k}", got=repr(x.name))
        return results[0] if len(results) == 1 else results

    def reference(*arrays: Any, **values: Any) -> Any:
        results = op.reference(arrays, attributes(name, values))
        return results[0] if len(results) == 1 else results

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = describe(op)
    apply.reference = reference  # type: ignore[attr-defined]
    return apply


def _same_without(k: int, types: Types, infer: Callable[[Types], Any], out: Any) -> bool:
    """Whether an operator's type rule `infer` returns `out` also if input number `k` is absent."""
    try:
        return bool(infer([*types[:k], *([None, *types[k + 1 :]] if k + 1 < len(types) else [])]) == out)
    except (Error, IndexError):
        return False


class _Noticed(tuple[Any, ...]):
    """A tuple of an operator's inputs that records in `noticed` the positions of those that a rule has read."""

    noticed: set[int]

    def __new__(cls, items: Iterable[Any]) -> _Noticed:
        new = super().__new__(cls, items)
        new.noticed = set()
        return new

    def __getitem__(self, key: Any) -> Any:
        chosen = range(len(self))[key]
        self.noticed |= {chosen} if isinstance(chosen, int) else set(chosen)
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        self.noticed |= set(range(len(self)))
        return super().__iter__()


def describe(op: OpDef[Any]) -> str:
    """A line of text: an operator with its attributes and kind, and the first line of its module's docstring."""
    kinds = [f"{n}: {_name(hint)}" for n, hint, _ in fields_of(op.attrs)]
    module = inspect.getdoc(sys.modules[op.infer.__module__]) or ""
    return (
        f"{op.name}({', '.join(['*inputs', *kinds])}): {op.kind}. {module.splitlines()[0] if module else ''}".rstrip()
    )


def listing() -> str:
    """A text that lists all operators with tensor expressions by file, each with its attributes."""
    files: dict[str, list[str]] = {}
    for name in library():
        op = get(name)
        assert op.compute is not None
        attrs = ", ".join(n for n, _, _ in fields_of(op.attrs))
        files.setdefault(op.infer.__module__.rpartition(".")[2], []).append(f"{name}({attrs})" if attrs else name)
    return "\n".join(f"{file}\n  {' '.join(candidate)}" for file, candidate in sorted(files.items()))


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint).replace("tilewright.ir.", "")


class Operators:
    """The namespace of operators: its attribute NAME is the operator NAME as a function on tensors. Raises
    AttributeError if there is none, or it has no tensor expression."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return function(name)
        except Error as error:
            raise AttributeError(str(error)) from None

    def __dir__(self) -> list[str]:
        return library()


operators = Operators()
