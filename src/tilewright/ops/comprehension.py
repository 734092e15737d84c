"""Statements of comprehensions as operators: `comprehension` sums products, `comprehension_reduce` reduces anything
else, `comprehension_map` reduces nothing. They differ in what they may be fused with.

A statement is text over inputs x0, x1, ..., indices and sizes n0, n1, ...; its ranges are numbers or symbols:

    comprehension(%a, %b) {text = "y[i0, i1] +! x0[i0, i2] * x1[i2, i1]", extents = (m, n, k), ...}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tilewright import te
from tilewright.arith import prove, simplify
from tilewright.formulas.binding import Bound
from tilewright.formulas.evaluate import evaluate
from tilewright.formulas.lowering import lower
from tilewright.formulas.nests import Nest, nests_of
from tilewright.formulas.parser import MAX_DEPTH, parse_program
from tilewright.formulas.printer import nest_text
from tilewright.formulas.ranges import Extent, Scope
from tilewright.formulas.running import running_sum
from tilewright.formulas.source import Source
from tilewright.formulas.stages import MAX_OPERATORS, Stage, statement_of
from tilewright.formulas.syntax import Apply, Name, Node, Number, Read, Size, rebuild, walk
from tilewright.ir.attributes import Attrs, Dims
from tilewright.ir.expr import Expr, as_expr, as_int
from tilewright.ir.graph import GraphBuilder, TensorType, Value
from tilewright.ops.dims import dims, need, number, present
from tilewright.ops.registry import OpDef, OpKind, Types, emit1, register
from tilewright.ops.scan import CumulativeAttrs
from tilewright.support.classes import dataclass
from tilewright.support.errors import ComprehensionError, ShapeError, UnsupportedError
from tilewright.te import Tensor

Tensors = Sequence[Tensor | None]
Out = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class ComprehensionAttrs(Attrs):
    """Attributes of the operators that compute a comprehension, a statement `text`. `starts` and `extents` are the
    ranges of its indices: first of the indices on the left, then of the indices that are reduced over, by first
    appearance. `sizes` are the values of n0, n1, ... in the text."""

    text: str
    extents: Dims
    starts: Dims = ()
    sizes: Dims = ()


def _names(count: int, letter: str) -> tuple[str, ...]:
    return tuple(f"{letter}{k}" for k in range(count))


@lru_cache(maxsize=256)
def _nest(text: str, inputs: int, sizes: int) -> tuple[Nest, Source]:
    """(the single loop nest that a statement's text describes, its source), for a statement over `inputs` tensors x0,
    x1 ... and `sizes` numbers n0, n1 ... Raises ComprehensionError for malformed text, ShapeError for other than one
    statement over these inputs."""
    source = Source(text, "operator comprehension")
    program = parse_program(source, limit=2 * MAX_DEPTH, terms=2 * MAX_OPERATORS)
    known = nests_of(program, source, _names(inputs, "x"), _names(sizes, "n"))
    if len(known.nests) != 1 or len(known.inputs) != inputs or program.declarations:
        raise ShapeError("a comprehension is one statement over its inputs", expected=f"{inputs} inputs", got=text)
    return known.nests[0], source


def _ranges(nest: Nest, attrs: ComprehensionAttrs) -> dict[str, Extent]:
    starts = attrs.starts or (0,) * len(attrs.extents)
    if len(attrs.extents) != len(nest.indices) or len(starts) != len(nest.indices):
        raise ShapeError("a comprehension needs a range for each index", expected=nest.indices, got=attrs.extents)
    created: dict[str, Extent] = {}
    for name, start, extent in zip(nest.indices, starts, attrs.extents, strict=True):
        if not prove(as_expr(extent) >= 0):
            raise ShapeError("a comprehension has an extent that may be negative", got=extent)
        created[name] = Extent(as_expr(start), as_expr(extent), "")
    return created


def _lowered(tensors: Sequence[Tensor], attrs: ComprehensionAttrs) -> Tensor:
    nest, source = _nest(attrs.text, len(tensors), len(attrs.sizes))
    named = dict(zip(_names(len(tensors), "x"), tensors, strict=True))
    sizes: dict[str, Expr] = {n: as_expr(d) for n, d in zip(_names(len(attrs.sizes), "n"), attrs.sizes, strict=True)}
    scope = Scope(source, sizes, {n: t.shape for n, t in named.items()})
    return lower(nest, _ranges(nest, attrs), named, scope)


@lru_cache(maxsize=256)
def _type(types: tuple[TensorType, ...], attrs: ComprehensionAttrs) -> TensorType:
    created = _lowered([te.placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(types)], attrs)
    return TensorType(created.dtype, dims(created.shape))


def _infer(types: Types, attrs: ComprehensionAttrs) -> Out:
    """The type rule of the operators that compute a comprehension; it proves that every read lies inside of its
    input."""
    return (_type(tuple(present(t) for t in types), attrs),)


def _compute(inputs: Tensors, attrs: ComprehensionAttrs, out: Out) -> tuple[Tensor, ...]:
    return (_lowered([need(t) for t in inputs], attrs),)


def _reference(arrays: Sequence[Any], attrs: ComprehensionAttrs) -> tuple[Any, ...]:
    nest, _ = _nest(attrs.text, len(arrays), len(attrs.sizes))
    starts = attrs.starts or (0,) * len(attrs.extents)
    ranges = {i: (number(s), number(e)) for i, s, e in zip(nest.indices, starts, attrs.extents, strict=True)}
    sizes = {n: number(d) for n, d in zip(_names(len(attrs.sizes), "n"), attrs.sizes, strict=True)}
    return (evaluate(nest, dict(zip(_names(len(arrays), "x"), arrays, strict=True)), ranges, sizes),)


_KINDS: dict[str, OpKind] = {
    "comprehension": "contraction",
    "comprehension_map": "injective",
    "comprehension_reduce": "reduction",
}

for _name, _kind in _KINDS.items():
    register(OpDef(_name, _kind, ComprehensionAttrs, _infer, _reference, compute=_compute))


# --- into graphs ----------------------------------------------------------------------------------------------------


def emit_nest(
    builder: GraphBuilder,
    bound: Bound,
    values: Mapping[str, Value],
    sizes: Mapping[str, Expr],
    name: str | None = None,
) -> Value:
    """Emit the node, named `name`, that computes a loop nest from `values`, the tensors that it reads by name, and
    `sizes`, the numbers by name; returns its value."""
    nest = bound.nest
    running = running_sum(bound, {n: v.shape for n, v in values.items()})
    if running is not None:
        tensor = running.tensor
        terms = values[tensor] if tensor is not None else emit_nest(builder, running.terms, values, sizes)
        way = CumulativeAttrs(running.axis, running.exclusive, running.reverse)
        return emit1(builder, "cumsum", terms, name=name, attrs=way)
    inputs: dict[str, str] = {}
    numbers: dict[Expr, str] = {}
    indices = {i: f"i{k}" for k, i in enumerate(nest.indices)}

    def size(value: Expr) -> Node:
        known = as_int(value)
        return Number(known) if known is not None else Name(numbers.setdefault(value, f"n{len(numbers)}"))

    def rename(n: Node) -> Node | None:
        match n:
            case Read():
                return replace(n, tensor=inputs.setdefault(n.tensor, f"x{len(inputs)}"))
            case Name() if n.name in indices:
                return Name(indices[n.name])
            case Name():
                return size(sizes[n.name])
            case Size():
                return size(values[n.tensor].shape[n.dim])
        return None

    body = rebuild(nest.body, rename)
    condition = None if nest.condition is None else rebuild(nest.condition, rename)
    left, reduced = (tuple(indices[i] for i in part) for part in (nest.left, nest.reduced))
    text = nest_text(replace(nest, target="y", left=left, reduced=reduced, body=body, condition=condition, ranges=()))
    extents = tuple(_dim(bound.extents[i].size) for i in nest.indices)
    starts = tuple(_dim(bound.extents[i].start) for i in nest.indices)
    moved = starts if any(as_int(s) != 0 for s in starts) else ()
    attrs = ComprehensionAttrs(text, extents, moved, tuple(map(_dim, numbers)))
    return emit1(builder, operator_of(nest), *(values[t] for t in inputs), name=name, attrs=attrs)


def emit_stage(builder: GraphBuilder, tensor: Tensor, values: Mapping[Tensor, Value], name: str | None = None) -> Value:
    """Emit the node, named `name`, that computes a tensor expression's stage from `values`, the values of the tensors
    that it reads; returns its value. Raises UnsupportedError for expressions that statements cannot state
    (`formulas/stages.py`)."""

    def create(stage: Stage) -> Value:
        attrs = ComprehensionAttrs(
            nest_text(stage.nest), tuple(map(_dim, stage.extents)), (), tuple(map(_dim, stage.sizes))
        )
        return emit1(builder, operator_of(stage.nest), *(values[t] for t in stage.inputs), name=name, attrs=attrs)

    try:
        return create(statement_of(tensor))
    except ComprehensionError:  # a proof that holds for the stage and is not found in the text
        pass
    try:
        return create(statement_of(tensor, careful=True))
    except ComprehensionError as error:
        raise UnsupportedError(f"no statement: {error}", where=tensor.name) from None


def _dim(e: Expr) -> int | Expr:
    created = simplify(e)
    known = as_int(created)
    return created if known is None else known


def operator_of(nest: Nest) -> str:
    """The name of the operator that computes a nest: a map, a sum of products, or another reduction."""
    if nest.reducer is None:
        return "comprehension_map"
    reads = [n for n in walk(nest.body) if isinstance(n, Read)]
    products = any(isinstance(n, Apply) and n.name == "*" for n in walk(nest.body))
    return "comprehension" if nest.reducer == "sum" and products and len(reads) > 1 else "comprehension_reduce"


__all__ = ["ComprehensionAttrs", "emit_nest", "emit_stage", "operator_of"]
