"""The layout of attention in matrix registers: the instruction and the numbers of terms, as attributes."""

from __future__ import annotations

from dataclasses import replace

from tilewright.algorithms.attention_tiles.selection import AttentionTiles
from tilewright.ir.dtype import bf16, f16
from tilewright.ir.graph import Node
from tilewright.ops.lowered.attention import AttentionAttrs
from tilewright.schedule.dot_intrinsics import find_tile_dot
from tilewright.transform.layout.assigner import Assigner


def in_tiles(a: Assigner, node: Node) -> bool:
    """Rewrite an attention whose node notes this algorithm into one whose attributes name the instruction and the terms
    of its products. Returns True.

    y = attention(q, k, v)   ->   y = attention(q, k, v) {dot = amx_16x16x32_bf16bf16, terms = [6, 3]}
    """
    kind = f16 if node.precision == "fp16" else bf16
    dot, choice = find_tile_dot(kind, kind, a.target), node.algorithm
    assert dot is not None and isinstance(choice, AttentionTiles)
    inputs = tuple(None if v is None else a.as_row_major(v) for v in node.inputs)
    terms = () if choice.scores == 1 else (choice.scores, choice.outputs)
    attrs = replace(node.of(AttentionAttrs), dot=dot.name, terms=terms)
    (a.row_major[node.output],) = a.emit("lowered.attention", inputs, attrs, node.output.name)
    return True
