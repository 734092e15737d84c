"""Compute subexpressions that versions of a loop share once, before the tests that choose a version.

    if n == 1 {                                     p = &a[row];  q = row % 96
      for k in 0..64 @prefetch { ... a[row, k] }    if n == 1 {
    } else if n == 2 {                         ->     for k in 0..64 { ... p[k] }
      for k in 0..64 @prefetch { ... a[row, k] }    } else if n == 2 { ... }
    } else if n == 3 { ... }

The few passes that generated code gets (`optimize`) do not find common subexpressions of branches: each version would
compute its prefetch share, and set up its addresses in separate registers, in all 6 % of the code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tilewright.codegen.llvm.address import set_base
from tilewright.codegen.llvm.expr import is_positive
from tilewright.codegen.llvm.invariants import accesses, are_there
from tilewright.codegen.llvm.polynomial import Key, Poly, key
from tilewright.codegen.llvm.prefetch import atoms_of
from tilewright.codegen.llvm.state import State
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var
from tilewright.ir.loops import For, If, Let
from tilewright.ir.notes import Prefetch, find
from tilewright.ir.rewrite import walk, walk_expr


def before_versions(s: State, chain: If) -> None:
    """Compute here the subexpressions that serial loops in at least two branches of a chain of tests share."""
    if s.lanes is not None or not isinstance(chain.orelse, If):
        return
    inside = list(walk(chain))
    bound = {inner.var for inner in inside if isinstance(inner, For | Let)}
    shares: Counter[Expr] = Counter()
    bases: Counter[tuple[Buffer, Key]] = Counter()
    result: dict[tuple[Buffer, Key], Poly] = {}
    for loop in inside:
        if isinstance(loop, For) and loop.kind == "serial":
            if find(loop.notes, Prefetch) is not None:
                shares.update(atoms_of(s, loop))
            mine = {(buffer, key(p)): p for buffer, p in _bases(s, loop, bound)}
            result |= mine
            bases.update(mine.keys())
    for share in (e for e, times in shares.items() if times > 1 and _always(s, e)):
        s.scalar(share)
    for base in (b for b, times in bases.items() if times > 1):
        set_base(s, base[0], result[base])


def _always(s: State, e: Expr) -> bool:
    """Whether an expression may be computed even if no branch that needs it is taken: it reads no memory and divides by
    positive numbers."""
    nodes = list(walk_expr(e))
    divisors = [n.args[1] for n in nodes if isinstance(n, Op) and n.name in ("floordiv", "mod")]
    return not any(isinstance(n, Load) for n in nodes) and all(is_positive(s, d) for d in divisors)


def _bases(s: State, loop: For, bound: set[Var]) -> Iterator[tuple[Buffer, Poly]]:
    """For each access of a loop to a parameter, (the buffer, the terms of its address that are equal in all
    iterations). `bound`: the variables that are bound inside the loop."""
    for buffer, indices in dict.fromkeys(accesses(loop.body)):
        pointer = s.pointers.get(buffer.name)
        if pointer is not None and not pointer.elements:
            p = s.converter.offset(buffer, indices)
            same = {m: c for m, c in p.items() if m and are_there(s, m, bound)}
            if same:
                yield buffer, same
