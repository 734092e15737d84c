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
"""How the text says that a statement reduces; "sum!" and "prod!" are other words for "+!" and "*!"."""
SIGNS: dict[Reducer, str] = {"sum": "+!", "prod": "*!", **{r: f"{r}!" for r in REDUCERS[2:]}}

Outside = Literal["", "pad", "clamp", "wrap"]
"""The result of a read outside of its tensor: an error (""; it must be proved to be inside), a value ("pad"), the
nearest element ("clamp"), or the element modulo the size ("wrap")."""


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
    """An index or a size, as a number."""

    name: str
    at: At = field(default=NOWHERE, compare=False, repr=False)

    @property
    def children(self) -> tuple[Node, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Size:
    """`A.shape[1]`."""

    tensor: str
    dim: int
    at: At = field(default=NOWHERE, compare=False, repr=False)

    @property
    def children(self) -> tuple[Node, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Read:
    """`A[i, k + 1]`; with `outside`, `pad(A[i, k + 1], 0)`, `clamp(A[...])` or `wrap(A[...])`."""

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
    """An operator or function: "+", "not", "neg", "exp", "f32" (a conversion), "if" (then, condition, orelse)."""

    name: str
    args: tuple[Node, ...]
    at: At = field(default=NOWHERE, compare=False, repr=False)

    @property
    def children(self) -> tuple[Node, ...]:
        return self.args


@dataclass(frozen=True, slots=True)
class Reduction:
    """`sum(A[m, k] * B[k])` or `sum[k](...)` inside of an expression. Without `over` it is over all indices inside that
    nothing around it has."""

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
    """`k in lo:hi`."""

    index: str
    lo: Node
    hi: Node
    at: At = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Declaration:
    """`A: f32[M, K]`: an input with its sizes; `dtype` is None where any is right."""

    name: str
    dtype: str | None
    sizes: tuple[Node, ...]
    at: At = field(default=NOWHERE, compare=False, repr=False)

    def moved(self, at: At) -> Declaration:
        """This declaration, with its sizes, at another place of the text."""
        sizes = tuple(rebuild(n, lambda m: replace(m, at=at)) for n in self.sizes)
        return replace(self, sizes=sizes, at=at)


@dataclass(frozen=True, slots=True)
class Statement:
    """`target[indices] reducer body where ...`; the reducer is None for "="."""

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
    """Statements in order. `results` is None if the text does not name what it returns."""

    declarations: tuple[Declaration, ...]
    statements: tuple[Statement, ...]
    results: tuple[Name, ...] | None = None


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it, the node first."""
    stack = [node]
    while stack:
        result = stack.pop()
        yield result
        stack.extend(reversed(result.children))


def rebuild(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """The node with `change` applied to all below it and then to itself; None keeps."""
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
    """All of the conditions as one; None if there are none."""
    if not conditions:
        return None
    first, *rest = conditions
    for other in rest:
        first = Apply("and", (first, other), at=first.at)
    return first
