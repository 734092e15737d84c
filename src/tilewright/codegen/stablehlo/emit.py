"""A graph of source operators to a StableHLO module, as text that XLA, IREE and `tilewright.compile` read.

Inputs come first, then the weights, all as arguments of `main`; symbolic dimensions are `?`.
"""

from __future__ import annotations

from tilewright.codegen.stablehlo.rules import RULES
from tilewright.codegen.stablehlo.scalars import elementwise
from tilewright.codegen.stablehlo.writer import Ref, Writer, tensor_type
from tilewright.ir.dtype import f32, i32
from tilewright.ir.expr import Expr, Var, as_expr, cast
from tilewright.ir.graph import Graph, Node
from tilewright.ops.cells import without_cells
from tilewright.ops.pointwise import BODIES
from tilewright.support.errors import Error, Problems, UnsupportedError


def stablehlo_text(graph: Graph) -> str:
    """The text of a StableHLO module that computes `graph`. Raises UnsupportedError, which lists every operator that
    StableHLO has no words for here."""
    w = Writer()
    arguments = [*graph.inputs, *graph.params]
    for k, value in enumerate(arguments):
        w.values[value] = Ref(f"%arg{k}", value.dtype, value.shape)
    for value in graph.inputs:
        for axis, d in enumerate(value.shape):
            if isinstance(d, Var) and d not in w.symbols:
                attrs = f"{{dimension = {axis} : i64}}"
                w.symbols[d] = w.op("get_dimension_size", [w.values[value]], i32, (), attrs)
    problems = Problems()
    for node in without_cells(graph).nodes:
        try:
            if all(v is None or v in w.values for v in node.inputs):
                w.values[node.outputs[0]] = _node(w, node)
        except Error as error:
            error.where = error.where or f"operator {node.op}"
            problems.add(error)
    problems.raise_if_any("the graph cannot be written as StableHLO", kind=UnsupportedError)
    results = [w.values[v] for v in graph.outputs]
    inputs = ", ".join(f'%arg{k}: {tensor_type(v.dtype, v.shape)} loc("{v.name}")' for k, v in enumerate(arguments))
    about = [f'{r.type} {{jax.result_info = "{v.name}"}}' for v, r in zip(graph.outputs, results, strict=True)]
    end = f"return {', '.join(r.name for r in results)} : {', '.join(r.type for r in results)}"
    name = graph.name if graph.name.isidentifier() else "main"
    body = "\n".join(f"    {line}" for line in (*w.lines, end))
    return f"module @{name} {{\n  func.func public @main({inputs}) -> ({', '.join(about)}) {{\n{body}\n  }}\n}}\n"


def _node(w: Writer, node: Node) -> Ref:
    inputs = [w.values[v] for v in node.inputs if v is not None]
    entry = RULES.get(node.op)
    if entry is not None:
        return entry(w, node, inputs)
    if node.op in BODIES:
        return _pointwise(w, node, inputs)
    raise UnsupportedError(f"the operator {node.op} cannot be said in StableHLO")


def _pointwise(w: Writer, node: Node, inputs: list[Ref]) -> Ref:
    """Write a pointwise operator on `inputs` as its scalar expression, element by element, and return its result;
    floats of 16 bits are computed in f32."""
    shape = node.output.shape
    arguments: dict[Var, Ref] = {}
    scalars: list[Expr] = []
    for k, x in enumerate(inputs):
        variable = Var(f"x{k}", x.dtype)
        arguments[variable] = w.spread(x, shape)
        scalars.append(cast(variable, f32) if x.dtype.is_float and x.dtype.bits == 16 else variable)
    e = BODIES[node.op](scalars, node.attrs)
    return elementwise(w, cast(as_expr(e), node.output.dtype), arguments, shape)
