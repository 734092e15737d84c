"""`tw.with_patterns`: products with weights that are mostly zeros become sparse ones (`ops/sparse.py`).

    y = matmul(x, w)    ->    values = gather(blocks of w, the pattern);  y = sparse_matmul(x, values, index)

The pattern, which blocks of 1xV of a weight are not all 0, is read from its numbers and becomes part of the program;
the numbers stay weights, which updates replace. Weights that have numbers outside of the pattern are refused
(`runtime/weights/check.py`), as these would not be multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.frontend.common.emitter import Emitter
from tilewright.frontend.read import Dynamic, import_model
from tilewright.frontend.weights.coded import Array
from tilewright.ir.dim import DimSizes
from tilewright.ir.dtype import f32, i32, i64, u16
from tilewright.ir.expr import as_int, const
from tilewright.ir.expr import product as product_of
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.ir.interface import Imported
from tilewright.ops.matmul import MatmulAttrs
from tilewright.runtime.specs import PatternSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError
from tilewright.transform.regions.captures import names_of

WIDTHS = (16, 8)
"""Columns of a block, of which the widest is taken that keeps hardly more than the elements themselves."""
MORE = 1.25
"""How many times the elements a block may keep."""


def with_patterns(
    model: Any,
    example: Any = None,
    *,
    least: float = 0.6,
    dims: DimSizes | None = None,
    dynamic: Dynamic = "auto",
) -> Imported:
    """A model, to be given to `tw.compile`, whose products leave out the zeros of their weights.

    Args:
        model, example, dims, dynamic: as for `tw.compile`.
        least: the share of zeros from which on a weight is taken as sparse.

    The pattern is part of the program: weights with numbers outside of it, given when the program is compiled or
    loaded, updated or published, are refused with a WeightError. They need another call of this function.
    """
    if isinstance(least, bool) or not (isinstance(least, int | float) and 0 < least <= 1):
        raise CallError("no such share of zeros", where="least", expected="more than 0, 1 at the most", got=least)
    return patterned(import_model(model, dims, example, dynamic), least)


def patterned(read: Imported, least: float) -> Imported:
    """`with_patterns` of a model that is read."""
    graph, weights = read.graph, dict(read.weights)
    builder = GraphBuilder(graph.name, list(graph.inputs), list(graph.params), reserved=names_of(graph))
    work = _Work(builder, weights, _sparse(graph, read.weights, least), {}, [])
    for node in graph.nodes:
        work.write(node)
    new = replace(graph, params=tuple(builder.params), nodes=tuple(builder.nodes))
    fixed = frozenset(p.name for p in new.params) - {p.name for p in graph.params}
    patterns = (*read.interface.patterns, *work.patterns)
    interface = replace(read.interface, fixed=read.interface.fixed | fixed, patterns=patterns)
    return replace(read, graph=new, weights=weights, interface=interface)


@dataclass(frozen=True, slots=True)
class Pattern:
    """The blocks of a weight [K, N]: columns of a block, and the row of each block of each panel, i32[P, J]; K where a
    panel has fewer blocks than the fullest."""

    width: int
    index: Array


def pattern_of(matrix: Array) -> Pattern:
    """The pattern of a weight, in the widest blocks that keep hardly more than its elements."""
    nonzero = matrix != 0
    own = max(int(nonzero.sum()), 1)
    for width in WIDTHS:
        blocks = _blocks(nonzero, width)
        if width <= matrix.shape[1] and int(blocks.sum()) * width <= MORE * own:
            return Pattern(width, _index(blocks))
    return Pattern(1, _index(nonzero.T))


def _blocks(nonzero: Array, width: int) -> Array:
    """Whether a block of a panel holds anything, bool[P, K]."""
    depth, columns = nonzero.shape
    padded = np.pad(nonzero, ((0, 0), (0, -columns % width)))
    return np.ascontiguousarray(padded.reshape(depth, -1, width).any(axis=2).T)


def _index(blocks: Array) -> Array:
    counts, depth = blocks.sum(axis=1), blocks.shape[1]
    index = np.full((len(blocks), max(int(counts.max()), 1)), depth, np.int32)
    panels, rows = np.nonzero(blocks)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    index[panels, places] = rows
    return index


def _sparse(graph: Graph, weights: Mapping[str, Any], least: float) -> dict[Value, bool]:
    """The weights with that share of zeros which products of f32 alone read, and whether as their transpose."""
    readers, chosen = graph.consumers(), dict[Value, bool]()
    for p in graph.params:
        nodes = readers.get(p, [])
        as_seconds = all(n.op == "matmul" and n.inputs[1] == p and n.inputs[0] != p for n in nodes)
        if not nodes or not as_seconds or p.type.rank != 2 or p.dtype is not f32 or p in graph.outputs:
            continue
        attrs = {n.of(MatmulAttrs) for n in nodes}
        array = np.asarray(weights[p.name])
        if len(attrs) == 1 and not any(a.transpose_a for a in attrs) and np.mean(array == 0) >= least:
            chosen[p] = next(iter(attrs)).transpose_b
    return chosen


@dataclass(slots=True)
class _Work:
    builder: GraphBuilder
    weights: dict[str, Any]
    sparse: Mapping[Value, bool]
    blocked: dict[Value, tuple[Pattern, Value, Value]]
    patterns: list[PatternSpec]

    def write(self, node: Node) -> None:
        w = node.inputs[1] if node.op == "matmul" else None
        x = node.inputs[0] if node.inputs else None
        if w is None or x is None or w not in self.sparse or x.dtype is not f32 or x.type.rank < 2:
            self.builder.nodes.append(node)
            return
        n = Emitter(self.builder, self.weights, node.output.name)
        if w not in self.blocked:
            self.blocked[w] = self.blocks(n, w)
        pattern, values, index = self.blocked[w]
        columns = node.output.shape[-1]
        if pattern.width > 1 or as_int(x.shape[-2]) == 1:
            n.emit("sparse_matmul", x, values, index, columns=as_int(columns))
        else:
            rows = n.reshape(x, (product_of(x.shape[:-1]), x.shape[-1]))
            columns_first = n.emit("transpose", rows, perm=(1, 0))
            y = n.emit("sparse_matmul", columns_first, values, index, columns=as_int(columns), transposed=True)
            n.emit("reshape", n.emit("transpose", y, perm=(1, 0)), shape=node.output.shape)
        self.builder.nodes.append(replace(self.builder.nodes.pop(), outputs=node.outputs))

    def blocks(self, n: Emitter, w: Value) -> tuple[Pattern, Value, Value]:
        """The pattern of a weight, its blocks f32[P, J, V] and their rows, i32[P, J]."""
        array = np.asarray(self.weights[w.name])
        transposed = self.sparse[w]
        pattern = pattern_of(array.T if transposed else array)
        depth, columns = array.shape[::-1] if transposed else array.shape
        (panels, count), width = pattern.index.shape, pattern.width
        stored = pattern.index.astype(np.uint16) if depth < 1 << 16 else pattern.index
        kind = u16 if stored.dtype == np.uint16 else i32
        index = n.builder.param(f"{w.name}.pattern", TensorType(kind, (const(panels), const(count))))
        self.weights[index.name] = stored
        self.patterns.append(PatternSpec(w.name, index.name, width, transposed))
        rows = n.emit("transpose", w, perm=(1, 0)) if transposed else w
        if columns % width:
            rows = n.emit("concat", rows, _zeros(n, (depth, -columns % width)), axis=1)
        rows = n.emit("concat", rows, _zeros(n, (1, panels * width)), axis=0)
        flat = n.reshape(rows, ((depth + 1) * panels, width))
        wide = n.cast(index, i64)
        place = n.emit("range", start=0, step=1, size=panels, dtype=i64)
        places = n.emit("add", n.emit("mul", wide, n.constant(panels, i64)), n.reshape(place, (panels, 1)))
        values = n.emit("gather", flat, places, axis=0)
        inside = n.emit("min", n.cast(index, i32), n.constant(depth - 1, i32))
        return pattern, values, inside


def _zeros(n: Emitter, shape: tuple[int, int]) -> Value:
    return n.emit("broadcast", n.constant(0.0, f32), shape=shape)
