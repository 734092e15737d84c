"""A call of a part of the model that another compiler has compiled.

    %y, %fine, %failure = lowered.external_call(%x, %w) {compiler = "vendor", part = "vendor_0", weights = 1, ...}

The last `weights` operands depend on the model's weights alone. `fine` (bool[]) says whether the part succeeded, and
`failure` (i64[]) is the number of its error; a `require` on each result ends the model's call if it failed. The kernel
calls `tw_external` of the runtime (`runtime/compilers.py`), with a descriptor that holds the part's bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, ConstantArray, Dims
from tilewright.ir.dtype import DType, i64
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Node, TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.native.assembler import I8, I64, PTR, VOID, Module
from tilewright.ops.control import TRUTH
from tilewright.ops.dims import present
from tilewright.ops.interpret import run_graph
from tilewright.ops.registry import OpDef, Types, parse_graph, register
from tilewright.runtime.compilers import PREPARE, SYMBOL, Side, descriptor, find, loaded
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b

NAME = "lowered.external_call"


@dataclass(frozen=True, slots=True)
class ExternalCallAttrs(Attrs):
    """Attributes of a call of a part that another compiler compiled.

    compiler: the name of that compiler.
    part: the name of the part.
    payload: the part's bytes.
    weights: how many operands, the last ones, are weights.
    dtypes, shapes: types of its results.
    body: the operators that it computes, a graph as text whose inputs and parameters are the operands; empty if
        operands or results are weights that the compiler has transformed.
    """

    compiler: str
    part: str
    payload: ConstantArray
    weights: int
    dtypes: tuple[DType, ...]
    shapes: tuple[Dims, ...]
    body: str = ""


def _infer(types: Types, attrs: ExternalCallAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.external_call`, which calls a part of a model that another compiler built: results of
    the types that the attributes state; whether the call succeeded; and the number of its error."""
    for t in types:
        present(t)
    shapes = (tuple(map(as_expr, shape)) for shape in attrs.shapes)
    results = (TensorType(kind, shape) for kind, shape in zip(attrs.dtypes, shapes, strict=True))
    return (*results, TRUTH, TensorType(i64, ()))


def _reference(arrays: Sequence[Any], attrs: ExternalCallAttrs) -> tuple[Any, ...]:
    """The NumPy reference of `lowered.external_call`: the operators that the external part computes, as `body` states
    them; if `body` is empty, the external code itself."""
    if attrs.body:
        graph = parse_graph(attrs.body)
        values = dict(zip((v.name for v in (*graph.inputs, *graph.params)), arrays, strict=True))
        results = list(run_graph(graph, values, values).values())
    else:
        part = loaded(find(attrs.compiler), attrs.payload.array.tobytes())
        first = len(arrays) - attrs.weights
        prepare = part.prepare if attrs.part.endswith(PREPARE) else None
        results = list(part.run(arrays[:first], arrays[first:]) if prepare is None else prepare(arrays))
    return (*results, np.array(True), np.array(0, np.int64))


def _loops(types: Types, attrs: ExternalCallAttrs, out: tuple[TensorType, ...]) -> PrimFunc:
    """A loop program with one call of a function whose name is a digest of the part."""
    inputs = [present(t) for t in types]
    operands = [te.placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(inputs)]
    first = len(inputs) - attrs.weights
    sides = map(_described, (inputs[:first], inputs[first:], out[:-2]))
    data = descriptor(attrs.compiler, attrs.part, tuple(sides), attrs.payload.array.tobytes())
    symbol = f"tw_call_{blake2b(data, digest_size=12).hexdigest()}"
    arrays = [*inputs, *out[:-2]]
    results = te.extern(
        [t.shape for t in out],
        operands,
        symbol,
        dtype=[t.dtype for t in out],
        sizes=[d for t in arrays for d in t.shape],
        llvm=_text(symbol, data, len(arrays), sum(t.rank for t in arrays)),
        name="external",
    )
    return te.create_prim_func([*operands, *results], "external")


def _described(types: Sequence[TensorType]) -> Side:
    return [(t.dtype.name, t.rank) for t in types]


def _text(symbol: str, data: bytes, arrays: int, sizes: int) -> str:
    """LLVM text of `void symbol(ptr arrays..., ptr fine, ptr failure, i64 sizes...)`."""
    m = Module()
    m.constant("descriptor", data)
    m.declare(SYMBOL, I64, [PTR] * 3)
    params = [(f"a{k}", PTR) for k in range(arrays)]
    ends = [("fine", PTR), ("failure", PTR), *((f"n{k}", I64) for k in range(sizes))]
    with m.function(symbol, VOID, [*params, *ends]) as (f, values):
        fine, failure = values[arrays : arrays + 2]
        addresses, extents = f.space(8 * arrays), f.space(8 * max(1, sizes))
        for k, value in enumerate(values[:arrays]):
            addresses[8 * k] = value
        for k, value in enumerate(values[arrays + 2 :]):
            extents[8 * k] = value
        number = f.call(I64, SYMBOL, f.symbol("descriptor"), addresses, extents)
        failure[0] = number
        f.store(number.eq(0).cast(I8), fine)
        f.emit("ret void")
        f.start(f.label())
    return m.text()


def compilers_in(nodes: Sequence[Node]) -> tuple[str, ...]:
    """The compilers whose parts these nodes call, also in bodies."""
    names: dict[str, None] = {}
    for node in nodes:
        if isinstance(node.attrs, ExternalCallAttrs):
            names[node.attrs.compiler] = None
        for body in node.bodies:
            names |= dict.fromkeys(compilers_in(body.nodes))
    return tuple(names)


register(OpDef(NAME, "opaque", ExternalCallAttrs, _infer, _reference, loops=_loops))
