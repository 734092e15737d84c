"""From a program as it is written to nests of loops: each reduction gets a nest of its own, and each name is classified
as an index, a size, a scalar or a tensor.

    P[i, j] = exp(S[i, j] - max(S[i, k])) / Z[i]      becomes      P_max[i]  max! S[i, k]
                                                                   P[i, j] = exp(S[i, j] - P_max[i]) / Z[i]

An index that is not on the left is reduced over by the innermost reduction around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tilewright.formulas.source import At, Source
from tilewright.formulas.syntax import (
    Apply,
    Declaration,
    Name,
    Node,
    Program,
    Range,
    Read,
    Reducer,
    Reduction,
    Size,
    Statement,
    conjunction,
    rebuild,
    walk,
)
from tilewright.ir.rewrite import fresh_name
from tilewright.support.classes import dataclass
from tilewright.support.errors import ComprehensionError, Problems


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops over the indices `left` and, inside, over `reduced`, around one element. `label` is the name of the nest in
    errors."""

    target: str
    left: tuple[str, ...]
    reducer: Reducer | None
    reduced: tuple[str, ...]
    body: Node
    ranges: tuple[Range, ...]
    condition: Node | None
    at: At
    label: str

    @property
    def indices(self) -> tuple[str, ...]:
        return (*self.left, *self.reduced)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The expressions that the nest evaluates."""
        return (self.body,) if self.condition is None else (self.body, self.condition)


@dataclass(frozen=True, slots=True)
class Nests:
    """A program as nests of loops, with its names classified; its inputs are in calling order."""

    source: Source
    inputs: tuple[str, ...]
    declared: Mapping[str, Declaration]
    nests: tuple[Nest, ...]
    results: tuple[str, ...]
    ranks: Mapping[str, int]


def nests_of(program: Program, source: Source, inputs: Iterable[str] = (), sizes: Iterable[str] = ()) -> Nests:
    """The nests of loops of a program. `inputs` are known to be tensors and come first, `sizes` are known to be sizes.
    Raises ComprehensionError, which lists everything that is wrong."""
    return _Reader(program, source, tuple(inputs), tuple(sizes)).read()


class _Reader:
    def __init__(self, program: Program, source: Source, arguments: tuple[str, ...], sizes: tuple[str, ...]) -> None:
        self.program = program
        self.source = source
        self.problems = Problems()
        self.declared = {d.name: d for d in program.declarations}
        named = (n.name for d in program.declarations for e in d.sizes for n in walk(e) if isinstance(n, Name))
        self.sizes = {*named, *sizes}
        self.targets = {s.target: s for s in program.statements}
        self.inputs = dict.fromkeys((*arguments, *self.declared))
        self.ranks: dict[str, int] = {d.name: len(d.sizes) for d in program.declarations}
        self.done: set[str] = set()
        self.nests: list[Nest] = []
        names = (n.name for s in program.statements for n in walk(s.body) if isinstance(n, Name))
        self.used_names = {*self.inputs, *self.targets, *self.sizes, *names}

    def report(self, what: str, at: At, **details: object) -> None:
        self.problems.add(self.source.error(what, at, **details))

    def read(self) -> Nests:
        self.check_names()
        for statement in self.program.statements:
            try:
                self.statement(statement)
            except ComprehensionError as error:
                self.problems.add(error)
            self.done.add(statement.target)
        for s in self.program.statements:
            self.check_sizes(s)
        results = self.results()
        self.problems.raise_if_any(kind=ComprehensionError)
        return Nests(self.source, tuple(self.inputs), self.declared, tuple(self.nests), results, self.ranks)

    def check_names(self) -> None:
        seen: set[str] = set()
        for d in self.program.declarations:
            if d.name in seen:
                self.report(f"{d.name!r} is declared twice", d.at)
            if d.name in self.targets:
                self.report(f"{d.name!r} is declared as an input and computed", self.targets[d.name].at)
            seen.add(d.name)
        computed: set[str] = set()
        for s in self.program.statements:
            if s.target in computed:
                hint = "give the second one another name: a result is computed once"
                self.report(f"{s.target!r} is computed twice", s.at, hint=hint)
            if s.target in self.inputs and s.target not in self.declared:
                self.report(f"{s.target!r} is an input and computed", s.at, hint="give the result another name")
            if s.target in self.sizes:
                self.report(f"{s.target!r} is a size and computed", s.at)
            computed.add(s.target)

    def results(self) -> tuple[str, ...]:
        asked = self.program.results
        for n in asked or ():
            if n.name not in self.targets:
                expected = f"one of {', '.join(self.targets)}"
                self.report(f"{n.name!r} is not computed here", n.at, expected=expected)
        if asked is not None:
            return tuple(n.name for n in asked)
        read = {n.tensor for nest in self.nests for e in nest.nodes for n in walk(e) if isinstance(n, Read)}
        return tuple(t for t in self.targets if t not in read)

    # -- one statement -------------------------------------------------------------------------------------------------

    def statement(self, s: Statement) -> None:
        self.check_left(s)
        parts = (s.body, s.condition, *(e for r in s.ranges for e in (r.lo, r.hi)))
        for n in (n for e in parts if e is not None for n in walk(e)):
            if isinstance(n, Read | Size) and n.tensor not in self.targets and n.tensor not in self.sizes:
                self.inputs.setdefault(n.tensor)
        body, condition = self.resolved(s.body, s), s.condition and self.resolved(s.condition, s)
        ranges = tuple(replace(r, lo=self.resolved(r.lo, s), hi=self.resolved(r.hi, s)) for r in s.ranges)
        reducer, over = s.reducer, None
        if reducer is None and isinstance(body, Reduction):
            reducer, over = body.reducer, body.over
            ranges, condition = (*ranges, *body.ranges), _both(condition, body.condition)
            body = body.body
        self.ranks[s.target] = len(s.indices)
        conditions = _conjuncts(condition)
        own = () if reducer is None else self.reduced(body, over, s.left, reducer, s.at, conditions)
        body, rest = self.lifted(body, (*s.left, *own), s, ranges, conditions)
        retained = [c for c in rest if reducer is not None and _mentions(c, own)]
        for c in rest:
            if c not in retained:
                hint = "(x if condition else 0) gives a value where it does not hold"
                self.report("the condition is about no index that is reduced over", c.at, hint=hint)
        self.add(s.target, s.left, reducer, own, body, ranges, conjunction(retained), s.at, s.target)

    def add(
        self,
        target: str,
        left: tuple[str, ...],
        reducer: Reducer | None,
        own: tuple[str, ...],
        body: Node,
        ranges: tuple[Range, ...],
        condition: Node | None,
        at: At,
        label: str,
    ) -> None:
        """Add the nest of loops over the indices `left` and `own` that computes `target`: `body`, reduced over `own` by
        `reducer`, where `condition` holds. `label` names it in errors. Raises ComprehensionError if an expression uses
        another index."""
        known = {*left, *own}
        for e in (body, condition):
            for n in walk(e) if e is not None else ():
                if isinstance(n, Name) and n.name not in known and n.name not in self.sizes:
                    hint = (
                        f"reduce over it: {target}[...] +! ..., or sum(...) around what has {n.name}; a number that is "
                        f"no index is written {n.name}[] or declared {n.name}: f32[]"
                    )
                    what = f"index {n.name!r} is not on the left, and nothing reduces over it"
                    self.source.fail(what, n.at, hint=hint)
        retained = tuple(r for r in ranges if r.index in known)
        self.nests.append(Nest(target, left, reducer, own, body, retained, condition, at, label))

    def check_left(self, s: Statement) -> None:
        seen: set[str] = set()
        for n in s.indices:
            if n.name in seen:
                self.report(f"index {n.name!r} stands twice on the left", n.at, hint="a diagonal is read, not written")
            if n.name in self.sizes or n.name in self.inputs or n.name in self.targets:
                kind = "a size" if n.name in self.sizes else "a tensor"
                self.report(f"{n.name!r} is {kind}, no index", n.at)
            seen.add(n.name)
        ranged: set[str] = set()
        for r in s.ranges:
            if r.index in ranged:
                self.report(f"index {r.index!r} has two ranges", r.at)
            ranged.add(r.index)
            used = {*s.left, *(n.name for e in (s.body, s.condition) if e for n in walk(e) if isinstance(n, Name))}
            if r.index not in used:
                self.report(f"there is no index {r.index!r}", r.at, expected=f"one of {', '.join(sorted(used))}")

    def resolved(self, node: Node, s: Statement) -> Node:
        """`node`, of statement `s`, with names of scalars replaced by reads of them, and every read checked."""

        def change(n: Node) -> Node | None:
            if isinstance(n, Name) and (n.name in self.inputs or n.name in self.targets):
                n = Read(n.name, (), at=n.at)
            if isinstance(n, Read):
                self.check_read(n, s)
                return n
            return None

        return rebuild(node, change)

    def check_read(self, n: Read, s: Statement) -> None:
        if n.tensor == s.target:
            hint = "recurrences are te.scan's; another name on the left makes another tensor"
            self.source.fail(f"{n.tensor!r} reads itself", n.at, hint=hint)
        if n.tensor in self.targets and n.tensor not in self.done:
            self.source.fail(f"{n.tensor!r} is read before it is computed", n.at)
        if n.tensor in self.sizes:
            self.source.fail(f"{n.tensor!r} is a size, no tensor", n.at)
        rank = self.ranks.setdefault(n.tensor, len(n.indices))
        if rank != len(n.indices):
            self.source.fail(
                f"{n.tensor!r} has another number of dimensions", n.at, expected=rank, got=f"{len(n.indices)} indices"
            )

    def check_sizes(self, s: Statement) -> None:
        """Check every `A.shape[k]` in a statement against the rank of A, which is known once all statements have been
        read."""
        parts = (s.body, s.condition, *(e for r in s.ranges for e in (r.lo, r.hi)))
        for n in (n for e in parts if e is not None for n in walk(e)):
            if not isinstance(n, Size):
                continue
            rank = self.ranks.get(n.tensor)
            if rank is None:
                self.report(f"{n.tensor!r} is never read", n.at, hint=f"declare it: {n.tensor}: [M, N]")
            elif n.dim >= rank:
                self.report(f"{n.tensor!r} has no dimension {n.dim}", n.at, expected=f"less than {rank}")

    # -- reductions ----------------------------------------------------------------------------------------------------

    def indices_in(self, node: Node, inside: bool = True) -> tuple[str, ...]:
        """The indices in an expression, in order; with `inside` also those in reductions that it contains."""
        result: dict[str, None] = {}
        stack = [node]
        while stack:
            n = stack.pop()
            if isinstance(n, Name) and n.name not in self.sizes:
                result[n.name] = None
            if inside or not isinstance(n, Reduction):
                stack.extend(reversed(n.children))
        return tuple(result)

    def reduced(
        self,
        body: Node,
        over: tuple[Name, ...] | None,
        scope: tuple[str, ...],
        reducer: Reducer,
        at: At,
        conditions: list[Node],
    ) -> tuple[str, ...]:
        """The indices that a reduction runs over: `over` if the text states them, else all of `body` and `conditions`
        that are not in `scope`."""
        direct = [*self.indices_in(body, False), *(i for c in conditions for i in self.indices_in(c))]
        results = tuple(dict.fromkeys(i for i in direct if i not in scope))
        if over is not None:
            results = tuple(n.name for n in over)
            for n in over:
                if n.name in scope or results.count(n.name) > 1:
                    self.source.fail(f"index {n.name!r} is taken: {reducer} cannot reduce over it", n.at)
        if not results:
            hint = "write =, or say over what: sum[k](...)"
            self.source.fail(f"{reducer} has nothing to reduce over: each index is on the left", at, hint=hint)
        if reducer in ("argmax", "argmin") and len(results) > 1:
            got = ", ".join(results)
            self.source.fail(f"{reducer} gives one index, so that it reduces over one", at, expected="1", got=got)
        return results

    def lifted(
        self, node: Node, scope: tuple[str, ...], s: Statement, ranges: tuple[Range, ...], conditions: list[Node]
    ) -> tuple[Node, list[Node]]:
        """(`node` with each reduction in it replaced by a read of a new nest that computes it, the rest of
        `conditions`). A nest takes over conditions on its own indices. `scope`: the indices outside of `node`; `s`: its
        statement."""
        if isinstance(node, Reduction):
            return self.nest(node, scope, s, ranges, conditions)
        result: list[Node] = []
        for child in node.children:
            child, conditions = self.lifted(child, scope, s, ranges, conditions)
            result.append(child)
        if isinstance(node, Apply):
            node = replace(node, args=tuple(result))
        elif isinstance(node, Read):
            count = len(node.indices)
            node = replace(node, indices=tuple(result[:count]), fill=result[count] if len(result) > count else None)
        return node, conditions

    def nest(
        self, r: Reduction, scope: tuple[str, ...], s: Statement, ranges: tuple[Range, ...], conditions: list[Node]
    ) -> tuple[Node, list[Node]]:
        own = self.reduced(r.body, r.over, scope, r.reducer, r.at, [])
        ranges = (*(x for x in ranges if x.index not in {y.index for y in r.ranges}), *r.ranges)
        body, rest = self.lifted(r.body, (*scope, *own), s, ranges, conditions)
        retained = [c for c in rest if _mentions(c, own)] + _conjuncts(r.condition)
        used = {i for e in (body, *retained) for i in self.indices_in(e)}
        left = tuple(i for i in scope if i in used)
        name = fresh_name(f"{s.target}_{r.reducer}", self.used_names)
        self.ranks[name] = len(left)
        self.add(name, left, r.reducer, own, body, ranges, conjunction(retained), r.at, f"{r.reducer}(...)")
        return Read(name, tuple(Name(i, r.at) for i in left), at=r.at), [c for c in rest if c not in retained]


def _both(a: Node | None, b: Node | None) -> Node | None:
    return conjunction([c for c in (a, b) if c is not None])


def _conjuncts(condition: Node | None) -> list[Node]:
    """The conditions that `condition` joins by "and"; an empty list for None."""
    if condition is None:
        return []
    if isinstance(condition, Apply) and condition.name == "and":
        return [part for a in condition.args for part in _conjuncts(a)]
    return [condition]


def _mentions(node: Node, own: tuple[str, ...]) -> bool:
    return any(isinstance(n, Name) and n.name in own for n in walk(node))
