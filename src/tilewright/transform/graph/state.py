"""Caches in the caller's memory: an input that a graph returns as a longer output becomes a buffer that the caller
keeps.

    past: f32[b, h, p, d]                                 cache: f32[c, b, h, d], past_length: i8[p, 0]
    all = concat(past, new) {axis = 2}            ->      rows = lowered.append(cache, transpose(new)) {length = p}
    ... all ...; return y, all                            ... transpose(rows) ...; return y

A decoder gets the keys and values of all earlier tokens and returns them with those of the new ones: each call copies
everything to append a row. Here the caller keeps memory for `c` rows, rows first, so that the first p of them are
contiguous for every p, and new rows are computed in their place after them. The number p is passed as the shape of an
input without elements.

Quantised caches have 8-bit codes, and for each vector of a new row a scale, which is its greatest magnitude / 127:

    rows = cast(lowered.append(cache, cast(round(new / s))))  *  lowered.append(scales, s)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from tilewright import ops
from tilewright.arith import simplify
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import f32, i8
from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.ir.rewrite import fresh_name, variables
from tilewright.ops.dims import same_dim
from tilewright.ops.shape import ConcatAttrs
from tilewright.ops.sized import with_symbols
from tilewright.runtime.specs import CacheSpec, StateSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, Problems
from tilewright.support.options import described
from tilewright.transform.regions.captures import builder_for
from tilewright.transform.work import polynomial

Pairs = Mapping[str, str]
"""The name of each input that is a cache, with the name of the output that is its longer version."""

LENGTH = "past_length"
"""The name of the input whose first dimension is the number of rows in the caches."""
LEVELS = 127
"""The greatest magnitude of a code."""
SMALLEST = 2.0**-100
"""The least magnitude from which a scale is computed, so that a vector of zeros has a nonzero one."""
NAMES = (("past_key_values", "present"), ("past", "present"), ("cache", "new_cache"))
"""Prefixes of names: (of a cache's input, of the output that belongs to it)."""


def check_state(state: Any) -> None:
    """Raise ModelError unless `state` is "auto" or pairs of inputs and outputs."""
    names = (
        isinstance(state, Mapping) and bool(state) and all(isinstance(n, str) for pair in state.items() for n in pair)
    )
    if not names and not (isinstance(state, str) and state == "auto"):
        expected = '"auto" or {"input": "output"}'
        raise ModelError("the argument makes no sense", where="state", expected=expected, got=described(state))


def pairs_by_name(inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """The caches of a decoder, as input to output, by the names that exporters give them (`NAMES`). Raises ModelError
    if there are none."""
    result: dict[str, str] = {}
    for name in inputs:
        for past, present in NAMES:
            longer = present + name.removeprefix(past)
            if name.startswith(past) and longer in outputs:
                result.setdefault(name, longer)
    if not result:
        raise ModelError(
            "no output has the name of an input's longer self",
            expected="past_key_values.0.key and present.0.key, or past_k and present_k",
            got=f"inputs {', '.join(inputs)}; outputs {', '.join(outputs)}",
            hint='name them: state={"input": "output"}',
        )
    return result


@dataclass(frozen=True, slots=True)
class Stateful:
    """A graph whose caches the caller keeps, the new names of its inputs and outputs, and which of them are caches."""

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    state: StateSpec


def with_state(
    graph: Graph,
    inputs: Sequence[str],
    outputs: Sequence[str],
    pairs: Pairs | Literal["auto"],
    coded: bool = False,
) -> Stateful:
    """The graph with its caches kept by the caller.

    Args:
        inputs, outputs: the names of the graph's inputs and outputs for the user.
        pairs: the caches; "auto" for those with names that exporters use (`NAMES`).
        coded: caches are codes of 8 bits.

    Raises ModelError listing the pairs that are no caches.
    """
    return _Rewriter(graph, inputs, outputs, pairs, coded).run()


class _Rewriter:
    def __init__(
        self, graph: Graph, inputs: Sequence[str], outputs: Sequence[str], pairs: Pairs | Literal["auto"], coded: bool
    ) -> None:
        self.graph, self.coded = graph, coded
        self.inputs = dict(zip(inputs, graph.inputs, strict=True))
        self.outputs = dict(zip(outputs, graph.outputs, strict=True))
        self.pairs = pairs_by_name(inputs, outputs) if pairs == "auto" else pairs
        self.symbol = self.growing()
        empty = Var(
            self.symbol.name, self.symbol.dtype, 0, self.symbol.hi, self.symbol.multiple, likely=self.symbol.likely
        )
        sized = with_symbols(graph, {self.symbol: empty})
        self.inputs = dict(zip(self.inputs, sized.inputs, strict=True))
        self.outputs = dict(zip(self.outputs, sized.outputs, strict=True))
        self.graph, self.symbol = sized, empty
        self.producers = sized.producers()
        self.capacity = Var(fresh_name("capacity", {s.name for s in sized.used_symbols}), lo=1)

    def growing(self) -> Var:
        """The symbol that counts the rows of all caches."""
        problems, result = Problems(), dict[Var, str]()
        for x, y in self.pairs.items():
            where = f"state {x!r}: {y!r}"
            if x not in self.inputs or y not in self.outputs:
                known = self.inputs if x not in self.inputs else self.outputs
                what = f"there is no {'input' if x not in self.inputs else 'output'} of this name"
                got = x if x not in self.inputs else y
                problems.add(ModelError(what, where=where, expected=", ".join(known), got=got))
                continue
            a, b = self.inputs[x].type, self.outputs[y].type
            axes = [k for k, (m, n) in enumerate(zip(a.shape, b.shape, strict=False)) if not same_dim(m, n)]
            if a.rank != b.rank or len(axes) != 1 or not isinstance(a.shape[axes[0]], Var):
                expected = "one dimension that is a symbol in the input, and that and more in the output"
                problems.add(ModelError("this is no cache that grows", where=where, expected=expected, got=f"{a}, {b}"))
            else:
                symbol = a.shape[axes[0]]
                assert isinstance(symbol, Var)
                result.setdefault(symbol, x)
        if len(result) > 1:
            got = ", ".join(f"{s} of {x!r}" for s, x in result.items())
            problems.add(ModelError("the caches have several lengths", got=got))
        problems.raise_if_any("the model's state cannot be kept", where=self.graph.name, kind=ModelError)
        return next(iter(result))

    def run(self) -> Stateful:
        builder = builder_for(self.graph)
        problems, retained, rows = Problems(), list[CacheSpec](), dict[Expr, str]()
        caches: dict[Value, Rows] = {}
        grown: dict[Value, tuple[int, Value]] = {}
        for x, y in self.pairs.items():
            past, node = self.inputs[x], self.maker(self.outputs[y])
            concat = node is not None and node.op == "concat" and len(node.inputs) == 2
            if node is None or not concat or node.inputs[0] != past or node.output in grown:
                what = "the output is not the input with something after it"
                problems.add(ModelError(what, where=f"state {x!r}: {y!r}", got="an input" if node is None else node.op))
                continue
            axis = node.of(ConcatAttrs).axis % past.type.rank
            shape = (self.capacity, *(d for k, d in enumerate(past.shape) if k != axis))
            builder.reserved.discard(past.name)
            if self.coded and past.dtype is not f32:
                problems.add(ModelError("only caches of f32 become codes", where=f"state {x!r}", got=past.type))
                continue
            caches[past] = self.declared(builder, past, shape)
            added = node.inputs[1]
            assert added is not None
            grown[node.output] = axis, past
            scales = caches[past].scales
            retained.append(CacheSpec(x, y, axis, "" if scales is None else scales.name))
            rows.setdefault(simplify(added.shape[axis]), x)
        if len(rows) > 1:
            got = ", ".join(f"{count} of {x!r}" for count, x in rows.items())
            problems.add(ModelError("the caches grow by different numbers of rows", got=got))
        problems.raise_if_any("the model's state cannot be kept", where=self.graph.name, kind=ModelError)
        return self.rewritten(builder, caches, grown, retained, next(iter(rows)))

    def declared(self, builder: GraphBuilder, past: Value, shape: tuple[Expr, ...]) -> Rows:
        """Add the inputs that replace a cache's input `past`: its rows, of `shape`, or their codes and scales."""
        if not self.coded:
            return Rows(Value(past.name, TensorType(past.dtype, shape)))
        scales = Value(builder.fresh(f"{past.name}_scales"), TensorType(f32, (*shape[:-1], const(1))))
        return Rows(Value(past.name, TensorType(i8, shape)), scales)

    def maker(self, value: Value) -> Node | None:
        """The node that computes a value; nodes that only copy (`identity`) are skipped."""
        node = self.producers.get(value)
        while node is not None and node.op == "identity" and node.inputs[0] is not None:
            node = self.producers.get(node.inputs[0])
        return node

    def rewritten(
        self,
        builder: GraphBuilder,
        caches: Mapping[Value, Rows],
        grown: Mapping[Value, tuple[int, Value]],
        retained: Sequence[CacheSpec],
        rows: Expr,
    ) -> Stateful:
        reads = [v for n in self.graph.nodes if n.outputs[0] not in grown for v in n.inputs if v is not None]
        others = dict.fromkeys(v for v in reads if v in caches)
        renamed: dict[Value, Value] = {}
        axes = {past: axis for axis, past in grown.values()}
        for past in others:
            renamed[past] = self.earlier(builder, past, caches[past], axes[past])
        for node in self.graph.nodes:
            node = replace(node, inputs=tuple(None if v is None else renamed.get(v, v) for v in node.inputs))
            if node.outputs[0] in grown:
                axis, past = grown[node.output]
                renamed[node.output] = self.longer(builder, caches[past], node.inputs[1], axis)
            else:
                builder.nodes.append(node)
        length = Value(builder.fresh(LENGTH), TensorType(i8, (self.symbol, const(0))))
        gone = {k.output for k in retained}
        outputs = {name: renamed.get(v, v) for name, v in self.outputs.items() if name not in gone}
        inputs = {name: caches[v].numbers if v in caches else v for name, v in self.inputs.items()}
        memory = {v for rows in caches.values() for v in (rows.numbers, rows.scales) if v is not None}
        inputs |= {r.scales.name: r.scales for r in caches.values() if r.scales is not None} | {length.name: length}
        graph = replace(
            self.graph, inputs=tuple(inputs.values()), nodes=tuple(builder.nodes), outputs=tuple(outputs.values())
        )
        count = polynomial(rows)
        known = {d for v in inputs.values() if v not in memory and v != length for d in v.shape}
        if count is None or not set(variables(rows)) <= known:
            raise ModelError("a call does not say how many rows it adds", where=self.graph.name, got=str(rows))
        state = StateSpec(tuple(retained), length.name, count)
        return Stateful(graph, tuple(inputs), tuple(outputs), state)

    def earlier(self, builder: GraphBuilder, past: Value, cache: Rows, axis: int) -> Value:
        """Emit the rows that `cache` has before this call, in the type and the order of dimensions of the model's input
        `past`, where `axis` is that of the rows."""

        def there(memory: Value) -> Value:
            size = (self.symbol, *memory.shape[1:])
            return ops.emit1(builder, "slice", memory, begin=(0,) * len(size), size=size, step=(1,) * len(size))

        rows = _numbers(builder, Rows(there(cache.numbers), None if cache.scales is None else there(cache.scales)))
        return ops.emit1(builder, "transpose", rows, perm=_inverse(_rows_first(axis, past.type.rank)))

    def longer(self, builder: GraphBuilder, cache: Rows, added: Value | None, axis: int) -> Value:
        """Emit all rows of a cache with the rows in `added` appended along `axis`, in the type and the order of
        dimensions of the model's output."""
        assert added is not None
        perm = _rows_first(axis, added.type.rank)
        new = Rows(ops.emit1(builder, "transpose", added, perm=perm))
        if cache.scales is not None:
            new = _coded(builder, new.numbers)

        def all_rows(memory: Value, rows: Value) -> Value:
            return ops.emit1(builder, "lowered.append", memory, rows, length=self.symbol)

        scales = None if cache.scales is None or new.scales is None else all_rows(cache.scales, new.scales)
        rows = _numbers(builder, Rows(all_rows(cache.numbers, new.numbers), scales))
        return ops.emit1(builder, "transpose", rows, perm=_inverse(perm))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a cache: numbers, or 8-bit codes with a scale for each vector of the last dimension."""

    numbers: Value
    scales: Value | None = None


def _coded(builder: GraphBuilder, rows: Value) -> Rows:
    """Emit rows of f32 as codes with scales."""

    def number(value: float) -> Value:
        return ops.emit1(builder, "constant", value=ConstantArray(np.float32(value)))

    size = ops.emit1(builder, "abs", rows)
    most = ops.emit1(builder, "reduce_max", size, axes=(rows.type.rank - 1,), keepdims=True)
    scales = ops.emit1(builder, "mul", ops.emit1(builder, "max", most, number(SMALLEST)), number(1 / LEVELS))
    levels = ops.emit1(builder, "round", ops.emit1(builder, "div", rows, scales))
    return Rows(ops.emit1(builder, "cast", levels, dtype=i8), scales)


def _numbers(builder: GraphBuilder, rows: Rows) -> Value:
    """Emit the numbers that rows of a cache stand for; codes are dequantised."""
    if rows.scales is None:
        return rows.numbers
    wide = ops.emit1(builder, "cast", rows.numbers, dtype=f32)
    return ops.emit1(builder, "mul", wide, rows.scales)


def _rows_first(axis: int, rank: int) -> tuple[int, ...]:
    return (axis, *(k for k in range(rank) if k != axis))


def _inverse(perm: Sequence[int]) -> tuple[int, ...]:
    return tuple(perm.index(k) for k in range(len(perm)))


__all__ = ["Stateful", "check_state", "pairs_by_name", "with_state"]
