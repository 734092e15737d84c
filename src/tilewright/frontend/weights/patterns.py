"""`tw.with_patterns`: products with weights that are mostly zeros become sparse ones (`ops/sparse.py`).

    y = matmul(x, w)    ->    values = gather(blocks of w, the pattern);  y = sparse_matmul(x, values, index)

For a single row of `x` and blocks of one element, the elements are arranged in windows for the target's vectors
(`ops/sparse.py`).

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
from tilewright.ir.dtype import f32, i32, i64, u8, u16
from tilewright.ir.expr import as_int, const
from tilewright.ir.expr import product as product_of
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.ir.interface import Imported
from tilewright.ops.matmul import MatmulAttrs
from tilewright.runtime.specs import PatternSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError
from tilewright.targets.target import Target
from tilewright.transform.regions.captures import names_of

WIDTHS = (16, 8)
"""Columns of a block: the widest is used that does not hold many more elements than are not 0."""
MORE = 1.25
"""The most elements that blocks may hold, relative to those that are not 0."""
TILE = 32
"""Rows that are multiplied with a sparse weight's single elements at once; REGISTERS registers hold their sums."""
REGISTERS = 32
WINDOW_STEPS = 3.0
"""How many times the elements windows may hold, padding included, and still be faster than single elements: 22 us for
353,000 places of 236,000 elements where those took 61 us (one row, 3072 x 768, Zen 5, 30 November 2026)."""


def with_patterns(
    model: Any,
    example: Any = None,
    *,
    least: float = 0.6,
    dims: DimSizes | None = None,
    dynamic: Dynamic = "auto",
    target: Target | None = None,
) -> Imported:
    """A model for `tw.compile` whose products skip the zeros of their weights.

    Args:
        model, example, dims, dynamic: as for `tw.compile`.
        least: the share of zeros from which on a weight is treated as sparse.
        target: its vector width decides the arrangement (default: this machine); results do not depend on it.

    The pattern is part of the program: weights with numbers outside of it, given when the program is compiled or
    loaded, updated or published, are refused with a WeightError. They need another call of this function.
    """
    if isinstance(least, bool) or not (isinstance(least, int | float) and 0 < least <= 1):
        raise CallError("no such share of zeros", where="least", expected="more than 0, 1 at the most", got=least)
    return patterned(import_model(model, dims, example, dynamic), least, target)


def patterned(read: Imported, least: float, target: Target | None = None) -> Imported:
    """The imported model `read` with its weights replaced by sparse ones where at least the share `least` is zero; see
    `with_patterns`."""
    graph, weights = read.graph, dict(read.weights)
    builder = GraphBuilder(graph.name, list(graph.inputs), list(graph.params), reserved=names_of(graph))
    work = _Work(builder, weights, _sparse(graph, read.weights, least), {}, [], target or Target.host())
    for node in graph.nodes:
        work.write(node)
    new = replace(graph, params=tuple(builder.params), nodes=tuple(builder.nodes))
    fixed = frozenset(p.name for p in new.params) - {p.name for p in graph.params}
    patterns = (*read.interface.patterns, *work.patterns)
    interface = replace(read.interface, fixed=read.interface.fixed | fixed, patterns=patterns)
    return replace(read, graph=new, weights=weights, interface=interface)


@dataclass(frozen=True, slots=True)
class Pattern:
    """The positions of the nonzero blocks of a sparse weight [K, N]: a block is `width` columns of a row. `index`,
    i32[P, J], has the rows of the (at most J) blocks of each of the P panels of columns, filled up with K."""

    width: int
    index: Array


def pattern_of(matrix: Array, lanes: int = 1) -> Pattern:
    """The pattern of the weight `matrix` in the widest blocks that do not hold many more elements than are not 0, and
    that fill vectors of `lanes`: narrower blocks were up to 20 times slower than a dense product (Zen 5, 30 November
    2026)."""
    nonzero = matrix != 0
    own = max(int(nonzero.sum()), 1)
    for width in WIDTHS:
        blocks = _blocks(nonzero, width)
        if width % lanes == 0 and width <= matrix.shape[1] and int(blocks.sum()) * width <= MORE * own:
            return Pattern(width, _index(blocks))
    return Pattern(1, _index(nonzero.T))


@dataclass(frozen=True, slots=True)
class Windows:
    """The elements of a sparse weight [K, N], arranged in J steps for P panels of columns. `rows`, u16[N, J], has the
    row of each column's element at each step (K: none), and `first`, u16[P, J], the first row of the window from which
    the elements of a panel come at that step."""

    rows: Array
    first: Array


def windows_of(nonzero: Array, lanes: int, window: int) -> Windows:
    """The nonzero elements arranged in steps, for panels of `lanes` columns: at each step a panel's window of `window`
    rows begins at the first row that still has an element, and each column contributes its next element if that is
    inside."""
    depth, columns = nonzero.shape
    counts = nonzero.sum(axis=0)
    left = np.full((columns + -columns % lanes, int(counts.max(initial=0)) + 1), depth, np.int64)
    column, row = np.nonzero(nonzero.T)
    left[column, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)] = row
    every, used = np.arange(len(left)), np.zeros(len(left), np.int64)
    rows: list[Array] = []
    first: list[Array] = []
    while (head := left[every, used]).min() < depth or not rows:
        begin = np.minimum(head.reshape(-1, lanes).min(axis=1), depth - window)
        inside = head < np.minimum(begin + window, depth).repeat(lanes)
        rows.append(np.where(inside, head, depth)[:columns].astype(np.uint16))
        first.append(begin.astype(np.uint16))
        used += inside
    return Windows(np.stack(rows, axis=1), np.stack(first, axis=1))


def _blocks(nonzero: Array, width: int) -> Array:
    """For each of the P panels of `width` columns and each of the K rows whether its block has a nonzero element,
    bool[P, K]."""
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
    """The weights, f32, that only products read and whose share of zeros is at least `least`, each with whether
    products read its transpose."""
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
    blocked: dict[tuple[Value, bool], _Parts]
    patterns: list[PatternSpec]
    target: Target

    def write(self, node: Node) -> None:
        w = node.inputs[1] if node.op == "matmul" else None
        x = node.inputs[0] if node.inputs else None
        if w is None or x is None or w not in self.sparse or x.dtype is not f32 or x.type.rank < 2:
            self.builder.nodes.append(node)
            return
        n, alone = Emitter(self.builder, self.weights, node.output.name), all(as_int(d) == 1 for d in x.shape[:-1])
        if (w, alone) not in self.blocked:
            self.blocked[w, alone] = self.parts(n, w, alone)
        parts, columns = self.blocked[w, alone], node.output.shape[-1]
        if parts.place is not None:
            whole = n.emit("sparse_window_matmul", x, parts.values, parts.index, parts.place, window=self.window)
            n.emit("slice", whole, begin=(0,) * x.type.rank, size=node.output.shape, step=(1,) * x.type.rank)
        elif parts.width > 1 or as_int(x.shape[-2]) == 1:
            n.emit("sparse_matmul", x, parts.values, parts.index, columns=as_int(columns))
        else:
            count = product_of(x.shape[:-1])
            # Tiles of rows that stay in the second cache, each in one piece.
            tiled = self.target.registers >= REGISTERS and (as_int(count) or 1) % TILE == 0
            rows = n.reshape(x, (count // TILE, const(TILE), x.shape[-1]) if tiled else (count, x.shape[-1]))
            swapped = (0, 2, 1) if tiled else (1, 0)
            columns_first = n.emit("transpose", rows, perm=swapped)
            y = n.emit(
                "sparse_matmul", columns_first, parts.values, parts.index, columns=as_int(columns), transposed=True
            )
            n.emit("reshape", n.emit("transpose", y, perm=swapped), shape=node.output.shape)
        self.builder.nodes.append(replace(self.builder.nodes.pop(), outputs=node.outputs))

    @property
    def window(self) -> int:
        """The number of rows from which one table lookup of the target can pick an element for each lane; 0 if it has
        none."""
        return 2 * self.target.isa.tables or self.target.isa.half_tables

    def parts(self, n: Emitter, w: Value, alone: bool) -> _Parts:
        """The operands that replace weight `w` in sparse products: in windows for products with one row (`alone`), if
        that needs few steps, else in blocks."""
        array = np.asarray(self.weights[w.name])
        matrix = array.T if self.sparse[w] else array
        lanes = self.target.lanes(f32.itemsize)
        pattern = pattern_of(matrix, lanes)
        if alone and pattern.width == 1 and self.window and self.window <= len(matrix) < 1 << 16:
            windows = windows_of(matrix != 0, lanes, self.window)
            if windows.first.size * lanes <= WINDOW_STEPS * pattern.index.size * pattern.width:
                return self.in_windows(n, w, windows, lanes)
        return self.in_blocks(n, w, pattern)

    def in_blocks(self, n: Emitter, w: Value, pattern: Pattern) -> _Parts:
        """The nonzero blocks of `w` as operands of a sparse product: their values, f32[P, J, V], and their rows, i32[P,
        J], for P panels of V columns with at most J blocks."""
        depth, _ = self.sizes(w)
        index, values = self.elements(n, w, pattern.index, pattern.width)
        return _Parts(pattern.width, values, n.emit("min", n.cast(index, i32), n.constant(depth - 1, i32)))

    def in_windows(self, n: Emitter, w: Value, windows: Windows, lanes: int) -> _Parts:
        """The elements of `w` as operands of a sparse product with one row, for P panels of V = `lanes` columns and J
        steps: the values, f32[P, J, V], the first row of each window, u16[P, J], and the row of each element in its
        window, u8[P, J, V]."""
        panels, steps = windows.first.shape
        _, columns = self.sizes(w)
        index, values = self.elements(n, w, windows.rows, 1)
        first = n.builder.param(f"{w.name}.windows", TensorType(u16, (const(panels), const(steps))))
        self.weights[first.name] = windows.first
        beyond = n.emit(
            "sub",
            n.cast(index, i32),
            n.emit("slice", self.repeated(n, first, lanes), begin=(0, 0), size=(columns, steps), step=(1, 1)),
        )
        place = n.cast(n.emit("min", beyond, n.constant(self.window - 1, i32)), u8)

        def in_panels(x: Value) -> Value:
            if columns % lanes:
                zeros = n.emit("broadcast", n.constant(0, x.dtype), shape=(-columns % lanes, steps))
                x = n.emit("concat", x, zeros, axis=0)
            return n.emit("transpose", n.reshape(x, (panels, lanes, steps)), perm=(0, 2, 1))

        return _Parts(1, in_panels(n.reshape(values, (columns, steps))), first, in_panels(place))

    def repeated(self, n: Emitter, first: Value, lanes: int) -> Value:
        """`first`, the first row of each panel's windows [P, J], repeated for the panel's columns: i32[P * lanes,
        J]."""
        panels, steps = first.shape
        each = n.emit("broadcast", n.reshape(n.cast(first, i32), (panels, 1, steps)), shape=(panels, lanes, steps))
        return n.reshape(each, (panels * lanes, steps))

    def sizes(self, w: Value) -> tuple[int, int]:
        """(rows, columns) of weight `w` as products read it, transposed or not."""
        shape = np.asarray(self.weights[w.name]).shape
        return shape[::-1] if self.sparse[w] else shape

    def elements(self, n: Emitter, w: Value, rows: Array, width: int) -> tuple[Value, Value]:
        """(a new parameter that holds `rows` [P, J], the blocks of the weight `w` in these rows [P, J, width]): panel p
        takes columns p*width and on. A row number past the last one gives zeros. The pattern is recorded."""
        (depth, columns), (panels, count), transposed = self.sizes(w), rows.shape, self.sparse[w]
        stored = rows.astype(np.uint16) if depth < 1 << 16 else rows
        kind = u16 if stored.dtype == np.uint16 else i32
        index = n.builder.param(f"{w.name}.pattern", TensorType(kind, (const(panels), const(count))))
        self.weights[index.name] = stored
        self.patterns.append(PatternSpec(w.name, index.name, width, transposed))
        whole = n.emit("transpose", w, perm=(1, 0)) if transposed else w
        if columns % width:
            whole = n.emit("concat", whole, _zeros(n, (depth, -columns % width)), axis=1)
        whole = n.emit("concat", whole, _zeros(n, (1, panels * width)), axis=0)
        flat = n.reshape(whole, ((depth + 1) * panels, width))
        place = n.emit("range", start=0, step=1, size=panels, dtype=i64)
        along = n.emit("mul", n.cast(index, i64), n.constant(panels, i64))
        return index, n.emit("gather", flat, n.emit("add", along, n.reshape(place, (panels, 1))), axis=0)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The operands that replace a sparse weight: `values` in blocks of `width` columns, with their rows in `index`; if
    arranged in steps, `index` has the windows' first rows, and `place` rows within them."""

    width: int
    values: Value
    index: Value
    place: Value | None = None


def _zeros(n: Emitter, shape: tuple[int, int]) -> Value:
    return n.emit("broadcast", n.constant(0.0, f32), shape=shape)
