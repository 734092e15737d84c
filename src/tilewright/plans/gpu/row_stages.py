"""Stages over common rows, their dimensions as rows and columns: softmax, norms, pooling over whole maps.

top[r] = max c: x[r, c]   e[r, c] = exp(x[r, c] - top[r])   total[r] = sum c: e[r, c]   y[r, c] = e[r, c] / total[r]

The first reduction determines rows (its results) and columns (its reduced dimensions); buffers between stages carry
this to the other stages. A stage has all columns or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.ir.expr import Buffer, Expr, Load, Op, Var, as_int
from tilewright.ir.loops import Block, Store
from tilewright.ir.rewrite import loads
from tilewright.support.classes import dataclass

COMBINING = ("add", "max", "min", "mul", "larger")
"""The operators of reductions whose partial results lanes can combine."""

Label = tuple[str, int]
"""A dimension of rows or columns: ("row", k) or ("column", k)."""


@dataclass(frozen=True, slots=True)
class RowStage:
    """A stage in terms of rows and columns: the labels of its iterators (none for extent 1), and for a reduction the
    operator and the value that it combines."""

    block: Block
    labels: Mapping[Var, Label]
    columns: bool
    operator: str = ""
    value: Expr | None = None

    @property
    def store(self) -> Store:
        assert isinstance(self.block.body, Store)
        return self.block.body


@dataclass(frozen=True, slots=True)
class Rows:
    """Stages over common rows, with the extents of rows and columns."""

    stages: tuple[RowStage, ...]
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]


def rows_of(blocks: Sequence[Block]) -> Rows | None:
    """The stages of `blocks` with each iterator labelled as a row or a column dimension, as the first reduction has
    them; None if they have no such common rows, or index with more than iterators."""
    first = next((b for b in blocks if b.is_reduction), None)
    if first is None or any(not isinstance(b.body, Store) for b in blocks):
        return None
    labels: dict[Var, Label] = {}
    extents: dict[Label, Expr] = {}
    for kind, name in (("spatial", "row"), ("reduce", "column")):
        iters = [it for it in first.iters if it.kind == kind and as_int(it.extent) != 1]
        for k, it in enumerate(iters):
            labels[it.var], extents[name, k] = (name, k), it.extent
    while True:
        if not _spread(blocks, labels, extents):
            return None
        more = _assumed(blocks, labels, extents)
        if not more:
            break
        labels |= more
    stages = [_stage(b, labels, extents) for b in blocks]
    known = [s for s in stages if s is not None]
    if len(known) < len(stages):
        return None
    rows = [extents[label] for label in sorted(extents) if label[0] == "row"]
    columns = [extents[label] for label in sorted(extents) if label[0] == "column"]
    return Rows(tuple(known), tuple(rows), tuple(columns)) if columns else None


def _spread(blocks: Sequence[Block], labels: dict[Var, Label], extents: Mapping[Label, Expr]) -> bool:
    """Label the iterators that index a dimension of a buffer as others do, until nothing changes: in `y[i, j] = x[i,
    j]`, `i` gets the label of dimension 0. `labels` is extended; False if an iterator would get two labels or another
    extent."""
    written = {b.body.buffer: b for b in blocks if isinstance(b.body, Store)}
    dims: dict[tuple[Buffer, int], Label] = {}
    own = {it.var: it.extent for b in blocks for it in b.iters}
    while True:
        before = len(labels) + len(dims)
        for buffer, indices in _accesses(blocks, written):
            for d, index in enumerate(indices):
                if as_int(buffer.shape[d]) == 1 or as_int(index) is not None:
                    continue
                if not isinstance(index, Var):
                    return False
                label = labels.get(index) or dims.get((buffer, d))
                if label is None:
                    continue
                if own.get(index) is not extents[label]:
                    return False
                if labels.setdefault(index, label) != label or dims.setdefault((buffer, d), label) != label:
                    return False
        if len(labels) + len(dims) == before:
            return True


def _assumed(blocks: Sequence[Block], labels: Mapping[Var, Label], extents: Mapping[Label, Expr]) -> dict[Var, Label]:
    """Labels for the first block with iterators that remain unlabelled, whose accesses do not decide them: the labels
    that the block lacks, in order, if extents are equal. `_spread` then checks them for contradictions. {} if there is
    no such block."""
    for b in blocks:
        iters = [it for it in b.iters if as_int(it.extent) != 1]
        open_ = [it for it in iters if it.var not in labels]
        mine = {labels[it.var] for it in iters if it.var in labels}
        missing = [label for label in sorted(extents, key=lambda x: x[0] != "row") if label not in mine]
        if open_ and [it.extent for it in open_] == [extents[label] for label in missing]:
            return {it.var: label for it, label in zip(open_, missing, strict=True)}
    return {}


def _accesses(blocks: Sequence[Block], written: Mapping[Buffer, Block]) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    """(buffer, indices) of each store of the blocks, and of each load of a buffer in `written`."""
    for b in blocks:
        assert isinstance(b.body, Store)
        yield b.body.buffer, b.body.indices
        for load in loads(b.body.value):
            if load.buffer in written:
                yield load.buffer, load.indices


def _stage(block: Block, labels: Mapping[Var, Label], extents: Mapping[Label, Expr]) -> RowStage | None:
    own = {it.var: labels.get(it.var) for it in block.iters if as_int(it.extent) != 1}
    known = {v: label for v, label in own.items() if label is not None}
    columns = {label for label in extents if label[0] == "column"}
    rows = {label for label in extents if label[0] == "row"}
    mine = set(known.values())
    if len(known) < len(own) or len(mine) < len(known) or not rows <= mine:
        return None
    reduced = {labels[it.var] for it in block.iters if it.kind == "reduce" and it.var in known}
    store = block.body
    assert isinstance(store, Store)
    if not block.is_reduction:
        return RowStage(block, known, bool(columns & mine)) if columns <= mine or not columns & mine else None
    if reduced != columns or not isinstance(block.init, Store) or loads(block.init.value):
        return None
    match store.value:
        case Op(name, (Load() as old, value)) if name in COMBINING and old.buffer == store.buffer:
            inside = any(x.buffer == store.buffer for x in loads(value))
            return None if inside or value.dtype.bits != 32 else RowStage(block, known, True, name, value)
    return None


__all__ = ["COMBINING", "RowStage", "Rows", "rows_of"]
