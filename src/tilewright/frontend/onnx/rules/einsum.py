"""The rule for Einsum: into transposes, reshapes and a matrix product where that is possible, else one contraction."""

from __future__ import annotations

import string
from collections.abc import Sequence

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.ir.expr import Expr, is_const, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import same_dim
from tilewright.support.errors import ModelError, ShapeError


@rule("Einsum")
def einsum(n: Call) -> Value:
    values = n.values()
    terms, result = explicit(n.text("equation", ""), [v.type.rank for v in values])
    values, terms = _without_ones(n, values, terms)
    if all(len(set(t)) == len(t) for t in terms):
        if len(values) == 1:
            x, term = _summed(n, values[0], terms[0], set(result))
            return n.transpose(x, [term.index(c) for c in result])
        if len(values) == 2:
            return _as_matmul(n, values[0], values[1], terms[0], terms[1], result)
    return n.emit("einsum", *values, equation=f"{','.join(terms)}->{result}")


def explicit(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The labels of the operands and those of the result of the einsum `equation`, one letter a dimension, without
    ellipses, for operands of these `ranks`. Raises ModelError."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ModelError("the equation does not fit the number of operands", expected=len(ranks), got=equation)
    free = [c for c in string.ascii_letters if c not in equation]
    dots = max((r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True) if "..." in t), default=0)
    if dots > len(free) or dots < 0:
        raise ModelError("the equation does not fit its operands", got=equation)
    shared = "".join(free[:dots])
    results = []
    for term, rank in zip(terms, ranks, strict=True):
        own = rank - len(term.replace("...", ""))
        text = term.replace("...", shared[len(shared) - own :] if own else "") if "..." in term else term
        if len(text) != rank or not all(c.isalpha() and c.isascii() for c in text):
            raise ModelError("the equation does not fit its operands", expected=f"rank {rank}", got=equation)
        results.append(text)
    if not arrow:
        counts = "".join(results)
        right = shared + "".join(sorted(c for c in set(counts) if counts.count(c) == 1 and c not in shared))
    else:
        right = right.replace("...", shared)
    if len(set(right)) != len(right) or not set(right) <= set("".join(results)):
        raise ModelError("the equation's result names unknown or repeated labels", got=equation)
    return results, right


def _without_ones(n: Call, values: list[Value], terms: list[str]) -> tuple[list[Value], list[str]]:
    """(the operands `values`, their labels `terms`) without dimensions of size 1 whose label has a larger size in
    another operand."""
    large = {
        c for v, t in zip(values, terms, strict=True) for c, d in zip(t, v.shape, strict=True) if not is_const(d, 1)
    }
    new_values, new_terms = [], []
    for v, t in zip(values, terms, strict=True):
        retained = [k for k, (c, d) in enumerate(zip(t, v.shape, strict=True)) if c not in large or not is_const(d, 1)]
        new_values.append(n.reshape(v, [v.shape[k] for k in retained]))
        new_terms.append("".join(t[k] for k in retained))
    return new_values, new_terms


def _as_matmul(n: Call, a: Value, b: Value, ta: str, tb: str, result: str) -> Value:
    a, ta = _summed(n, a, ta, set(tb) | set(result))
    b, tb = _summed(n, b, tb, set(ta) | set(result))
    for c in ta:
        if c in tb and not same_dim(a.shape[ta.index(c)], b.shape[tb.index(c)]):
            raise ShapeError(f"the label {c!r} has two sizes", got=f"{a.type} and {b.type}")
    extents: dict[str, Expr] = dict(zip(ta, a.shape, strict=True)) | dict(zip(tb, b.shape, strict=True))
    batch = [c for c in result if c in ta and c in tb]
    rows = [c for c in result if c in ta and c not in tb]
    columns = [c for c in result if c in tb and c not in ta]
    inner = [c for c in ta if c in tb and c not in result]
    missing = [c for c in result if c not in extents]
    if missing:
        raise ShapeError("the equation's result names unknown labels", got=missing)

    def arranged(x: Value, term: str, groups: list[list[str]]) -> Value:
        order = [c for g in (batch, *groups) for c in g]
        x = n.transpose(x, [term.index(c) for c in order])
        return n.reshape(x, [*(extents[c] for c in batch), *(product([extents[c] for c in g]) for g in groups)])

    if not inner and not rows and not columns:
        y = n.emit("mul", arranged(a, ta, []), arranged(b, tb, []))
    else:
        y = n.emit("matmul", arranged(a, ta, [rows, inner]), arranged(b, tb, [inner, columns]))
    order = [*batch, *rows, *columns]
    y = n.reshape(y, [extents[c] for c in order])
    return n.transpose(y, [order.index(c) for c in result])


def _summed(n: Call, x: Value, term: str, needed: set[str]) -> tuple[Value, str]:
    """(`x`, whose dimensions have the labels `term`, summed over the labels that are not in `needed`, the remaining
    labels)."""
    axes = tuple(k for k, c in enumerate(term) if c not in needed)
    if not axes:
        return x, term
    return n.emit("reduce_sum", x, axes=axes, keepdims=False), "".join(c for c in term if c in needed)
