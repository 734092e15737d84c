"""A graph of source operators as MLIR's linalg on tensors: each stage of each operator's tensor expression is one
`linalg.generic`, so that every operator that has such an expression has a text.

Inputs come first, then the weights, all as arguments of `main`; symbolic dimensions are `?`, integers have no sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from tilewright.codegen.linalg.scalars import Body, Lines, element, tensor_type, token
from tilewright.codegen.stablehlo.writer import literal
from tilewright.ir.dtype import DType, boolean
from tilewright.ir.expr import Const, Expr, Var, as_int
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.reduce import Reduce
from tilewright.ops.registry import get
from tilewright.ops.shape import ConstantAttrs
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, Problems, UnsupportedError
from tilewright.te import placeholder
from tilewright.te.blocks import stages_of
from tilewright.te.tensors import ComputeOp


def linalg_text(graph: Graph) -> str:
    """The text of an MLIR module that computes `graph`. Raises UnsupportedError, which lists every operator without a
    tensor expression."""
    return _Module().module(graph)


@dataclass(slots=True)
class _Module:
    lines: Lines = field(default_factory=Lines)
    values: dict[Value, str] = field(default_factory=dict)

    def module(self, graph: Graph) -> str:
        arguments = [*graph.inputs, *graph.params]
        for k, value in enumerate(arguments):
            self.values[value] = f"%arg{k}"
        for value in graph.inputs:
            for axis, d in enumerate(value.shape):
                if isinstance(d, Var) and d not in self.lines.symbols:
                    at = self.lines.new(f"arith.constant {axis} : index")
                    size = self.lines.new(
                        f"tensor.dim {self.values[value]}, {at} : {tensor_type(value.dtype, value.shape)}"
                    )
                    self.lines.symbols[d] = self.lines.new(f"arith.index_cast {size} : index to i64")
        problems = Problems()
        for node in graph.nodes:
            try:
                if all(v is None or v in self.values for v in node.inputs):
                    self.node(node)
            except Error as error:
                error.where = error.where or f"operator {node.op}"
                problems.add(error)
        problems.raise_if_any("the graph cannot be written as linalg", kind=UnsupportedError)
        inputs = ", ".join(f"%arg{k}: {tensor_type(v.dtype, v.shape)}" for k, v in enumerate(arguments))
        types = ", ".join(tensor_type(v.dtype, v.shape) for v in graph.outputs)
        self.lines.line(f"return {', '.join(self.values[v] for v in graph.outputs)} : {types}")
        body = "\n".join(self.lines.text)
        return f"module {{\n  func.func @main({inputs}) -> ({types}) {{\n{body}\n  }}\n}}\n"

    def node(self, node: Node) -> None:
        if node.op == "constant":
            value = node.output
            t = tensor_type(value.dtype, value.shape)
            self.values[value] = self.lines.new(
                f"arith.constant {literal(node.of(ConstantAttrs).value.array, value.dtype)} : {t}"
            )
            return
        op = get(node.op)
        if op.compute is None:
            raise UnsupportedError(f"the operator {node.op} has no tensor expression")
        inputs = [None if v is None else placeholder(v.shape, v.dtype, f"x{k}") for k, v in enumerate(node.inputs)]
        names: dict[Any, str] = {
            token(t): self.values[v]
            for t, v in zip(inputs, node.inputs, strict=True)
            if t is not None and v is not None
        }
        outputs = op.compute(inputs, node.attrs, tuple(v.type for v in node.outputs))
        for stage in stages_of([t for t in outputs if t.op is not None]):
            if not isinstance(stage, ComputeOp):
                raise UnsupportedError(f"the operator {node.op} goes along a dimension, which linalg cannot say")
            self.stage(stage, names)
        for value, output in zip(node.outputs, outputs, strict=True):
            self.values[value] = names[token(output)]

    def stage(self, stage: ComputeOp, names: dict[Any, str]) -> None:
        axes = [a.var for a in stage.axis]
        shape = [a.extent for a in stage.axis]
        for index, body in enumerate(stage.bodies):
            name = self.generic(body, axes, shape, names)
            names[stage, index] = name

    def size(self, e: Expr) -> str:
        """Emit the size `e` as a value of MLIR's type `index`; returns its name."""
        return self.lines.new(f"arith.index_cast {Body(self.lines, {}, {}).value(e)} : i64 to index")

    def empty(self, t: DType, shape: Sequence[Expr]) -> str:
        sizes = ", ".join(self.size(d) for d in shape if as_int(d) is None)
        return self.lines.new(f"tensor.empty({sizes}) : {tensor_type(t, shape)}")

    def generic(self, body: Expr, axes: Sequence[Var], shape: Sequence[Expr], names: dict[Any, str]) -> str:
        kind = tensor_type(body.dtype, shape)
        out = self.empty(body.dtype, shape)
        reduced = list(body.axes) if isinstance(body, Reduce) else []
        letters = [f"d{k}" for k in range(len(axes) + len(reduced))]
        outer, inner = ", ".join(letters[: len(axes)]), ", ".join(letters[len(axes) :])
        maps = [f"affine_map<({', '.join(letters)}) -> ({outer})>"]
        arguments, block = "", f"%acc: {element(body.dtype)}"
        if isinstance(body, Reduce):
            start = Body(self.lines, {}, names).value(body.reducer.identity[body.index])
            out = self.lines.new(f"linalg.fill ins({start} : {element(body.dtype)}) outs({out} : {kind}) -> {kind}")
            window = self.empty(boolean, [extent for _, extent in reduced])  # only its shape is read
            windows = tensor_type(boolean, [extent for _, extent in reduced])
            maps.insert(0, f"affine_map<({', '.join(letters)}) -> ({inner})>")
            arguments, block = f"ins({window} : {windows}) ", f"%w: i1, {block}"
        iterators = ", ".join(['"parallel"'] * len(axes) + ['"reduction"'] * len(reduced))
        self.lines.count += 1
        result = f"%{self.lines.count}"
        self.lines.line(
            f"{result} = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{iterators}]}} "
            f"{arguments}outs({out} : {kind}) {{"
        )
        self.lines.line(f"^bb0({block}):")
        self.lines.indent += "  "
        indices: dict[Var, str] = {}
        for k, variable in enumerate([*axes, *(v for v, _ in reduced)]):
            raw = self.lines.new(f"linalg.index {k} : index")
            indices[variable] = self.lines.new(f"arith.index_cast {raw} : index to i64")
        scope = Body(self.lines, indices, names)
        if isinstance(body, Reduce):
            if len(body.values) != 1:
                raise UnsupportedError("a reduction of several values at once cannot be written")
            value = scope.value(body.values[0])
            both = {body.reducer.lhs[0]: "%acc", body.reducer.rhs[0]: value}
            combined = Body(self.lines, {**indices, **both}, names).value(body.reducer.result[0])
            if not (isinstance(body.condition, Const) and body.condition.value):
                held = scope.value(body.condition)
                combined = self.lines.new(f"arith.select {held}, {combined}, %acc : {element(body.dtype)}")
            self.lines.line(f"linalg.yield {combined} : {element(body.dtype)}")
        else:
            self.lines.line(f"linalg.yield {scope.value(body)} : {element(body.dtype)}")
        self.lines.indent = self.lines.indent[:-2]
        self.lines.line(f"}} -> {kind}")
        return result
