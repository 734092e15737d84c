"""The syntax of comprehensions: expressions, statements, and programs of several statements.

    program   := declaration* statement+ ["return" name ("," name)*]
    declare   := name ":" [dtype] "[" (size ("," size)*)? "]"
    statement := name "[" (index ("," index)*)? "]" ("=" | reducer) expr ["where" clause ("," clause)*]
    reducer   := "+!" | "*!" | "max!" | "min!" | "any!" | "all!" | "argmax!" | "argmin!"
    clause    := index "in" size ":" size | condition

Expressions are Python's, and mean what they mean there. All that is written has its place in the text (`at`), which is
no part of what it is: two expressions are equal if they say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import Literal

from tilewright.formulas.source import NOWHERE, At
from tilewright.support.classes import dataclass

Reducer = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"]
REDUCERS: tuple[Reducer, ...] = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
ASSIGNMENTS: dict[str, Reducer] = {"+!": "sum", "*!": "prod", **{f"{r}!": r for r in REDUCERS}}
"""The reducer for each sign of assignment; "sum!" and "prod!" are other words for "+!" and "*!"."""
SIGNS: dict[Reducer, str] = {"sum": "+!", "prod": "*!", **{r: f"{r}!" for r in REDUCERS[2:]}}

Outside = Literal["", "pad", "clamp", "wrap"]
"""How a read is defined for an index out of bounds: it must be proved to be in bounds (""), it is a given value
("pad"), the nearest element ("clamp"), or the element at the index modulo the size ("wrap")."""


@dataclass(frozen=True, slots=True)
class Number:
    """A literal: bool, int or float. It takes the type of the other operand."""

    value: bool | int | float
    at: At = field(default=NOWHERE, compare=False, repr=False)

    @property
    def children(self) -> tuple[Node, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Name:
    """The name of an index or a size, which stands for its value."""

    name: str
    at: At = field(default=NOWHERE, compare=False, repr=False)

    @property
    def children(self) -> tuple[Node, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a dimension: `A.shape[1]`."""

    tensor: str
    dim: int
    at: At = field(default=NOWHERE, compare=False, repr=False)

    @property
    def children(self) -> tuple[Node, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a tensor: `A[i, k + 1]`; with `outside`, `pad(A[i, k + 1], 0)`, `clamp(A[...])` or `wrap(A[...])`."""

    tensor: str
    indices: tuple[Node, ...]
    outside: Outside = ""
    fill: Node | None = None
    at: At = field(default=NOWHERE, compare=False, repr=False)

    @property
    def children(self) -> tuple[Node, ...]:
        return self.indices if self.fill is None else (*self.indices, self.fill)


@dataclass(frozen=True, slots=True)
class Apply:
    """The application of an operator or function: "+", "not", "neg", "exp", "f32" (a conversion), "if" (then,
    condition, orelse)."""

    name: str
    args: tuple[Node, ...]
    at: At = field(default=NOWHERE, compare=False, repr=False)

    @property
    def children(self) -> tuple[Node, ...]:
        return self.args


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction inside of an expression: `sum(A[m, k] * B[k])` or `sum[k](...)`. Without `over` it is over all
    indices inside that no expression around it uses."""

    reducer: Reducer
    body: Node
    over: tuple[Name, ...] | None = None
    ranges: tuple[Range, ...] = ()
    condition: Node | None = None
    at: At = field(default=NOWHERE, compare=False, repr=False)

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.body,) if self.condition is None else (self.body, self.condition)


Node = Number | Name | Size | Read | Apply | Reduction


@dataclass(frozen=True, slots=True)
class Range:
    """The range of an index that a clause states: `k in lo:hi`."""

    index: str
    lo: Node
    hi: Node
    at: At = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration of an input with its sizes, `A: f32[M, K]`; `dtype` is None if any type is allowed."""

    name: str
    dtype: str | None
    sizes: tuple[Node, ...]
    at: At = field(default=NOWHERE, compare=False, repr=False)

    def moved(self, at: At) -> Declaration:
        """A copy of this declaration whose place in the text, and the one of its sizes, is `at`."""
        sizes = tuple(rebuild(n, lambda m: replace(m, at=at)) for n in self.sizes)
        return replace(self, sizes=sizes, at=at)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement `target[indices] reducer body where ...`; the reducer is None for "="."""

    target: str
    indices: tuple[Name, ...]
    reducer: Reducer | None
    body: Node
    ranges: tuple[Range, ...] = ()
    condition: Node | None = None
    at: At = field(default=NOWHERE, compare=False, repr=False)

    @property
    def left(self) -> tuple[str, ...]:
        """The names of the indices on the left."""
        return tuple(n.name for n in self.indices)


@dataclass(frozen=True, slots=True)
class Program:
    """The statements of a program in order. `results` is None if the text does not name what it returns."""

    declarations: tuple[Declaration, ...]
    statements: tuple[Statement, ...]
    results: tuple[Name, ...] | None = None


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes below it, parents first."""
    stack = [node]
    while stack:
        result = stack.pop()
        yield result
        stack.extend(reversed(result.children))


def rebuild(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """`node` with `change` applied to all nodes below it and then to itself (None keeps a node)."""
    created: Node
    match node:
        case Read():
            fill = None if node.fill is None else rebuild(node.fill, change)
            created = replace(node, indices=tuple(rebuild(i, change) for i in node.indices), fill=fill)
        case Apply():
            created = replace(node, args=tuple(rebuild(a, change) for a in node.args))
        case Reduction():
            condition = None if node.condition is None else rebuild(node.condition, change)
            created = replace(node, body=rebuild(node.body, change), condition=condition)
        case _:
            created = node
    changed = change(created)
    return created if changed is None else changed


def conjunction(conditions: list[Node]) -> Node | None:
    """The conjunction of `conditions`; None if there are none."""
    if not conditions:
        return None
    first, *rest = conditions
    for other in rest:
        first = Apply("and", (first, other), at=first.at)
    return first
