"""Offers attention in matrix registers: if there are at least as many rows as a register has, depths are known, and the
options allow its error."""

from __future__ import annotations

from dataclasses import replace

from tilewright.algorithms.attention_tiles.selection import AttentionTiles
from tilewright.ir.dtype import bf16, f16, f32
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ir.selection import Packed, Precision
from tilewright.ops.lowered.attention import ORDERS, AttentionAttrs
from tilewright.plans.attention.tiles import Sizes, ranked
from tilewright.plans.framework.cost import number
from tilewright.schedule.dot_intrinsics import find_tile_dot
from tilewright.transform.algorithm import Option
from tilewright.transform.graph.options import ERRORS as ALLOWED
from tilewright.transform.select.surroundings import Surroundings

ERRORS = {(6, 3): 1e-5, (6, 6): 3e-6}
"""The largest error by (terms of the scores' product, terms of the product with values), relative to the largest output
(docs/accuracy.md). Three terms for scores are not offered: their error grows with the scores, and exponentials magnify
it."""


def with_tiles(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """The `options` of an attention node with products in matrix registers added: of factors rounded to bf16 or f16 if
    the user set that precision, else of bf16 pieces of f32. The option without matrix registers gets an estimate
    too."""
    kind = f16 if enclosing.options.precision == "fp16" else bf16
    sizes, dot = sizes_of(node), find_tile_dot(kind, kind, enclosing.target)
    known = sizes is not None and as_int(sizes.rows)
    if dot is None or sizes is None or (known is not None and known < dot.rows):
        return options
    (ordinary, _), *_ = ranked(sizes, enclosing.target)
    result = [*options, (ordinary.cycles, Packed())]
    costs = enclosing.target.costs.matrices
    allowed = ALLOWED[enclosing.options.fast]
    ways: dict[Precision, list[tuple[int, int]]] = {
        "bf16": [(1, 1)],
        "fp16": [(1, 1)],
        "fp32": [terms for terms, error in ERRORS.items() if error <= allowed],
    }
    for terms in ways.get(enclosing.options.precision, []):
        split = terms != (1, 1)
        in_matrices = replace(sizes, lanes=dot.lanes, dot=dot, terms=terms if split else ())
        (cost, _), *_ = ranked(in_matrices, enclosing.target)
        result.append(((costs.configured + cost.cycles) * (costs.split_gain if split else 1.0), AttentionTiles(*terms)))
    return result


def sizes_of(node: Node) -> Sizes | None:
    """The sizes of an f32 attention with one sequence per batch entry and known numbers of columns, not computed by dot
    instructions; None for others."""
    attrs, (q, k, v, *others) = node.of(AttentionAttrs), node.inputs
    assert q is not None and k is not None and v is not None
    past = others[3] if len(others) > 3 else None
    if any(value is not None for value in others[5:]) or q.dtype is not f32 or attrs.dot is not None:
        return None
    logical = [tuple(value.shape[a] for a in ORDERS[o]) for value, o in zip((q, k, v), attrs.order, strict=False)]
    (batch, rows, _, depth), (_, keys, _, _), (*_, out_depth) = logical
    keys = keys if past is None else keys + past.shape[2]
    inner, outer = as_int(depth), as_int(out_depth)
    if inner is None or outer is None or inner < 2:
        return None
    return Sizes(rows, keys, inner, outer, number(batch) * attrs.heads, 4)
