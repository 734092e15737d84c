"""Check whether a statement reads from a buffer only elements that it has written itself.

    for i in 0..4 {
      if i == 0 { B[0] = 1.0 }         no: in the later iterations of i, B[0] comes from the first one
      C[i] = B[0]
    }

If not, the buffer must outlive the statement. If neither can be proven, the answer is no.
"""

from __future__ import annotations

from tilewright.arith import Analyzer
from tilewright.arith.regions import Access, Collector, Ends
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, Load, Op, Var, const
from tilewright.ir.rewrite import loads, substitute, variables, walk_expr
from tilewright.transform.loops.copies import conjuncts


def is_self_contained(collector: Collector, accesses: list[Access], enclosing: frozenset[Var]) -> bool:
    """True if in every iteration of the loops `enclosing` the writes among `accesses` cover the reads."""
    reads = [a for a in accesses if not a.is_write]
    if not reads:
        return True
    supplied = frozenset.intersection(*(frozenset(_parts(a)) for a in reads))
    writes = [a for a in accesses if a.is_write and _happens(collector, a, reads, supplied, enclosing)]
    if not writes:
        return False
    for d, whole in enumerate(writes[0].buffer.shape):
        written = collector.union([a.box[d] for a in writes])
        ends = [(a.box[d], _bounds(collector.analyzer, a, d, enclosing)) for a in reads]
        if written is None or not all(_covers(collector.analyzer, written, *end, whole) for end in ends):
            return False
    return True


def _parts(access: Access) -> list[Expr]:
    return [part for condition in access.conditions for part in conjuncts(condition)]


def _happens(
    collector: Collector, write: Access, reads: list[Access], assumptions: frozenset[Expr], enclosing: frozenset[Var]
) -> bool:
    """True if `write` happens wherever one of the `reads` does: in each iteration of the enclosing loops in which these
    happen (all under `assumptions`), or at least for each element that they read. Its indices are assumed to be inside
    the buffer."""
    simplify = collector.analyzer.simplify
    inside: list[Expr] = []
    for index, extent in zip(write.indices, write.buffer.shape, strict=False):
        inside += [simplify(const(0) <= index), simplify(index < extent)]
    open_parts = [
        p for p in _parts(write) if p not in assumptions and _varies(p, enclosing) and simplify(p) not in inside
    ]
    open_parts = [p for p in open_parts if not all(_of_element(p, write, read, enclosing) for read in reads)]
    if not open_parts:
        return True
    facts = Analyzer(collector.analyzer.extents, inside)
    return all(facts.prove(p) for p in open_parts)


def _of_element(condition: Expr, write: Access, read: Access, enclosing: frozenset[Var]) -> bool:
    """Whether the read happens under `condition` too, once the loop variables that index the element in `write`, inside
    of the loops `enclosing`, are replaced by the ones of `read`. A condition on data does not count: the data may have
    changed in between."""
    if loads(condition):
        return False
    own: dict[Var, Expr] = {}
    for to, of in zip(write.indices, read.indices, strict=False):
        mine, others = ({*variables(e)} - enclosing for e in (to, of))
        if len(mine) == len(others) == 1:
            (var,), (other,) = mine, others
            if own.setdefault(var, other) is not other or substitute(to, {var: other}) is not of:
                return False
    return substitute(condition, own) in _parts(read)


def _varies(condition: Expr, enclosing: frozenset[Var]) -> bool:
    """True if a condition may differ between iterations of the `enclosing` loops."""
    return any(n in enclosing if type(n) is Var else type(n) is Load for n in walk_expr(condition))


def _bounds(an: Analyzer, read: Access, d: int, enclosing: frozenset[Var]) -> list[Expr]:
    """Upper bounds on the read indices of dimension `d` from the conditions of the read, in terms of enclosing
    loops."""
    results = []
    for part in _parts(read) if read.indices else ():
        if isinstance(part, Op) and part.name == "lt" and part.args[0].dtype is i64 and not loads(part):
            left, right = part.args
            end = an.simplify(read.indices[d] - left + right - 1)
            if enclosing.issuperset(variables(end)):
                results.append(end)
    return results


def _covers(an: Analyzer, written: Ends, read: Ends | None, bounds: list[Expr], whole: Expr) -> bool:
    """Whether the range `written` contains the part of the range `read`, cut at the `bounds`, that is inside the
    buffer, of extent `whole`."""
    (low, high), zero = written, const(0)
    last = whole - 1
    if read is None:
        read = (zero, last)
    starts = an.prove(low <= zero) or an.prove(low <= read[0])
    return starts and any(an.prove(high >= end) for end in (last, read[1], *bounds))
