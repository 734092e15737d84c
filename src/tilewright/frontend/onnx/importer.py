"""ONNX to Graph: one walk over the nodes, in the file's order.

    for each node:  known inputs only?  ->  evaluate it now (shape arithmetic, constants)
                    a rule exists?      ->  the rule emits our operators
                    a function body?    ->  walk the body in a scope of its own
                    otherwise           ->  record an UnsupportedError and go on

All problems are raised together at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tilewright.arith import simplify
from tilewright.frontend.common.emitter import check_size
from tilewright.frontend.common.equal_sizes import condition, divisors, joined, ranges, shared_ranges, sufficient
from tilewright.frontend.common.finish import MALFORMED, finished, located, reason, renamed_node
from tilewright.frontend.onnx import folding, functions
from tilewright.frontend.onnx.bodies import Bodies, Noted
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.control import CONTROL
from tilewright.frontend.onnx.derived import folded_weights
from tilewright.frontend.onnx.exported import Exported, exported
from tilewright.frontend.onnx.left import LARGE, initial_array, transposed_copy
from tilewright.frontend.onnx.load import Loaded, load
from tilewright.frontend.onnx.registry import CHECKS, check_storage, find
from tilewright.frontend.onnx.scope import Item, Scope, Symbols, as_items, known_item, stated_sizes
from tilewright.frontend.onnx.tensors import element_type
from tilewright.ir.dim import Dim, DimSizes
from tilewright.ir.expr import Expr, Var, as_expr, as_int
from tilewright.ir.graph import Assumption, Graph, GraphBuilder, TensorType, Value
from tilewright.ir.interface import Imported, Interface
from tilewright.ir.rewrite import substitute
from tilewright.ops.dims import assuming, stated, with_facts
from tilewright.ops.registry import check_node
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, ModelError, Problems, ShapeError, TooSmallError, UnsupportedError
from tilewright.transform.graph.assume import fold_assumptions

MAX_DEPTH = 32
"""Levels of functions that call each other, and of graphs inside graphs."""
MAX_EXPANSION = 100
"""Nodes visited inside functions, for each node of the file; see `Importer.budget`."""
MAX_DIM = 1 << 40
"""The largest value that a dimension of a file may have, in elements."""


def import_onnx(model: onnx.ModelProto | bytes | str | Path, dims: DimSizes | None = None) -> Imported:
    """Read a model. `dims`: sizes or ranges of symbolic dimensions, by name.

    Raises ModelError (UnsupportedError for what Tilewright lacks), which lists everything that is wrong.
    """
    with load(model, whole=False) as loaded:
        return replace(_imported(loaded, dims or {}), data=loaded.data)


def _imported(loaded: Loaded, dims: DimSizes) -> Imported:
    """Import a loaded model. If its shapes only agree for some sizes (multiples, ranges, equal symbols), the model is
    read again with its symbols restricted to these."""
    try:
        return _read(loaded, dims, {}, {})
    except ModelError as error:
        unequal = [e for e in error.each() if isinstance(e, ShapeError)]
        needs, same = _sizes(loaded, dims) if unequal else ({}, {})
        if needs or same:
            with suppress(ModelError):
                return _read(loaded, dims, needs, same)
        if unequal and (read := _assumed(loaded, dims, needs, same)) is not None:
            return read
        if unequal and (hint := _sizes_to_state(loaded, dims) or _numbers_to_state(loaded, dims)):
            for e in unequal:
                e.hint = e.hint or hint
        raise error from None


def _sizes(loaded: Loaded, dims: DimSizes) -> tuple[dict[str, Dim], dict[str, str | int]]:
    """(ranges and multiples by symbol name, symbol name -> the symbol or number that it must equal) under which the
    shapes in the model agree. They are derived from pairs of sizes that the model adds or joins."""
    needs: dict[str, Dim] = {}
    same: dict[str, str | int] = {}
    while True:
        order: dict[Var, None] = {}
        with assuming() as pairs, suppress(ModelError):
            inputs = _read(loaded, dims, needs, same).graph.inputs
            order = dict.fromkeys(d for x in inputs for d in x.type.shape if isinstance(d, Var))
            order = dict.fromkeys(sorted(order, key=lambda symbol: symbol.name not in dims))
        if not pairs:
            return needs, same
        numbers = {v: number for v, n in pairs if isinstance(v, Var) and (number := as_int(n)) is not None}
        more, shared = shared_ranges(joined(pairs, list(order)))
        first: dict[Var, Expr] = {**more, **{v: as_expr(n) for v, n in numbers.items()}}
        rest = [(simplify(substitute(a, first)), simplify(substitute(b, first))) for a, b in pairs]
        unequal = [(a, b) for a, b in rest if a is not b]
        is_there = ranges(unequal) or {name: Dim(0, multiple=by) for name, by in divisors(unequal).items()}
        known = len(same), dict(needs)
        same |= {v.name: w.name for v, w in more.items()} | {v.name: n for v, n in numbers.items()}
        for name, d in (*is_there.items(), *shared.items()):
            needs[name] = needs.get(name, Dim(0)).within(d)
        if known == (len(same), needs):
            return needs, same


MAX_READINGS = 8
"""How many times a model is read again with restrictions derived from its sizes."""
NEEDED = "the model joins what has these sizes"
"""The reason that calls with other sizes are told."""


def _assumed(
    loaded: Loaded, dims: DimSizes, needs: Mapping[str, Dim], same: Mapping[str, str | int]
) -> Imported | None:
    """The model imported under assumptions that relate several sizes, such as `total == past + seq`, in addition to
    `needs` and `same` (from `_sizes`). Calls check the assumptions. None if they do not suffice."""
    known: Graph | None = None
    for _ in range(MAX_READINGS):
        types = {} if known is None else {value.name: value.type for value in known.inputs}
        assumptions = () if known is None else known.assumptions
        reader = Importer(loaded, dims, needs, same, types=types)
        read = None
        with with_facts(tuple(a.condition for a in assumptions)), assuming() as pairs, suppress(ModelError):
            read = reader.run()
        if not pairs:
            return None if read is None else _with(read, assumptions)
        builder = GraphBuilder(assumptions=list(assumptions))
        for value in reader.builder.inputs:
            builder.input(value.name, value.type)
        for a, b in dict.fromkeys(pairs):
            if (needed := condition(a, b)) is not None:
                builder.assume(needed, NEEDED)
        before = known
        try:
            known = fold_assumptions(builder.finish(()), keep=dims)
        except ModelError:
            return None
        if known == before:
            return None
    return None


def _with(read: Imported, assumptions: tuple[Assumption, ...]) -> Imported | None:
    """`read` with these assumptions; None if its types are correct only under them, since passes do not know them."""
    try:
        for node in read.graph.nodes:
            check_node(node)
    except Error:
        return None
    return replace(read, graph=replace(read.graph, assumptions=assumptions))


def _sizes_to_state(loaded: Loaded, dims: DimSizes) -> str:
    """A hint for the caller: values for the argument `dims`, multiples of sizes, that make the model's shapes agree. ""
    if multiples do not suffice."""
    with assuming() as pairs, suppress(ModelError):
        _read(loaded, dims, {}, {})
    result = sufficient(pairs)
    try:
        _read(loaded, dims, {name: Dim(0, multiple=by) for name, by in result.items()}, {})
    except ModelError:
        return ""
    stated = ", ".join(f'"{name}": tw.dim({by}, {32 * by}, multiple={by})' for name, by in result.items())
    return f"if no other sizes come, say so, and all of the model is one program: dims={{{stated}}}"


def _numbers_to_state(loaded: Loaded, dims: DimSizes) -> str:
    """A hint for the caller: values for the argument `dims` that fix sizes to those that the exporter used. (It unrolls
    a Python loop over a sequence, so that the file fits that length only.) "" if this does not help."""
    pairs: list[tuple[Expr, Expr]] = []
    with assuming(pairs), suppress(ModelError):
        _read(loaded, dims, {}, {})
    numbers = {size.name: n for size, e in reversed(pairs) if isinstance(size, Var) and (n := as_int(e) or 0) > 1}
    if numbers:
        with suppress(ModelError):
            _read(loaded, {**dims, **numbers}, {}, {})
            stated = ", ".join(f'"{name}": {n}' for name, n in numbers.items())
            what = "the file is for these sizes only, as one is whose exporter unrolls loops in Python over a sequence"
            return f"{what}: dims={{{stated}}} compiles it for them"
    return ""


def _read(loaded: Loaded, dims: DimSizes, needs: Mapping[str, Dim], same: Mapping[str, str | int]) -> Imported:
    """Import the model, with the sizes `dims` and the symbols in `same` replaced. It is imported again with larger
    minimal sizes if an operator needs them, and without symbols for sizes computed from data if these do not fit later
    nodes."""
    least: dict[str, int] = {}
    open_sizes = True
    while True:
        known = {name: needs.get(name, Dim(0)) for name in (*needs, *least)}
        known = {name: replace(d, lo=least.get(name, d.lo)) for name, d in known.items()}
        importer = Importer(loaded, dims, known, same, open_sizes)
        try:
            return importer.run()
        except ModelError as error:
            if open_sizes and importer.decided:
                open_sizes = False
                continue
            more = dict(sorted(e.needs for e in error.each() if isinstance(e, TooSmallError) and e.needs))
            if all(least.get(name, 1) >= size for name, size in more.items()):
                raise
            least |= more
        except MALFORMED as error:
            raise ModelError("the model is malformed", where=loaded.label, got=reason(error)) from error


@dataclass(slots=True)
class Importer:
    loaded: Loaded
    fixed: DimSizes
    needs: Mapping[str, Dim]
    same: Mapping[str, str | int]
    open_sizes: bool = False
    types: Mapping[str, TensorType] = field(default_factory=dict)
    """Types of inputs that are known in addition to those that the file states."""
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    weights: dict[str, Any] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    fixed_params: set[str] = field(default_factory=set)
    tied: dict[str, str] = field(default_factory=dict)
    folded: dict[str, str] = field(default_factory=dict)
    exported: Exported | None = None
    visited: int = 0
    decided: set[str] = field(default_factory=set)
    """Operators whose sizes are computed from data."""

    @property
    def budget(self) -> int:
        """How many nodes may be visited in all: functions that each call others twice would otherwise grow
        exponentially."""
        in_file = len(self.model.graph.node) + sum(len(f.node) for f in self.model.functions)
        return 10_000 + MAX_EXPANSION * in_file

    @property
    def model(self) -> onnx.ModelProto:
        return self.loaded.model

    def where(self, thing: str) -> str:
        return f"{self.loaded.label}: {thing}"

    def run(self) -> Imported:
        graph = self.model.graph
        self.builder.name = graph.name or "main"
        self.builder.reserved.update(functions.defined_names(graph))
        scope = Scope(opsets=self.loaded.opsets)
        self.exported = exported(self.model)
        self.initializers(graph, scope)
        self.inputs(graph, scope)
        if self.exported is not None:
            self.restore_weights(self.exported, scope)
        self.problems.raise_if_any("the model cannot be read", where=self.loaded.label, kind=ModelError)
        self.nodes(graph.node, scope, {}, 0)
        self.problems.raise_if_any(
            f"{len(self.problems)} problems in the model", where=self.loaded.label, kind=_kind(self.problems)
        )
        outputs = self.outputs(graph, scope)
        self.problems.raise_if_any("the model cannot be read", where=self.loaded.label, kind=ModelError)
        return self.finish(outputs)

    # --- what stands around the nodes ---------------------------------------------------------------------------------

    def initializers(self, graph: onnx.GraphProto, scope: Scope) -> None:
        for tensor in graph.initializer:
            self.initializer(tensor, scope)

    def initializer(self, tensor: onnx.TensorProto, scope: Scope) -> None:
        where = self.where(f"initializer {tensor.name!r}")
        try:
            if not tensor.name or tensor.name in scope.items:
                raise ModelError("the initializer's name is empty or used twice", where=where)
            left = self.loaded.left
            raw = left.read(tensor.name, where) if left is not None and tensor.name in left.places else None
            array = initial_array(tensor, where, self.loaded.folder, raw)
            t = element_type(tensor.data_type, where)
            weight = t.is_float and (self.exported is None or self.exported.is_weight(tensor.name))
            scope.items[tensor.name] = known_item(array, t, scope.prefix + tensor.name, weight=weight)
        except Error as error:
            self.problems.add(error)

    def restore_weights(self, module: Exported, scope: Scope) -> None:
        """Add the module's weights to `scope` under their own names, where the exporter transposed them or let nodes
        read equal tensors instead."""
        for name, source in module.transposed.items():
            array = scope.items[name].known
            weight = scope.items.get(source)
            if weight is None:
                weight = known_item(transposed_copy(array), scope.items[name].dtype, source, weight=True)
            elif weight.known is None or not np.array_equal(weight.known, array.T):
                continue
            scope.items[source] = weight
            call = self.call(None, scope, name)
            transposed = call.transpose(call.materialize(weight), (1, 0))
            scope.items[name] = Item(transposed.type, transposed, name=name, of_weights=True)
        for (output, place), name in module.read.items():
            held = next(n.input[place] for n in self.model.graph.node if n.output[0] == output)
            scope.items.setdefault(name, self.another(name, scope.items[held]))

    def another(self, name: str, held: Item) -> Item:
        """The item for weight `name`, for which the file has only the equal tensor `held`. If that is constant, such as
        all ones, they are separate weights that are equal by accident; else the module shares one tensor."""
        if held.known.nbytes < LARGE and np.ptp(held.known) == 0:
            return replace(held, name=name, value=None)
        self.tied[name] = held.name
        return held

    def inputs(self, graph: onnx.GraphProto, scope: Scope) -> None:
        symbols = Symbols(self.fixed, self.needs, self.same)
        initialized = set(scope.items)
        for info in graph.input:
            if info.name in initialized:
                continue
            where = self.where(f"input {info.name!r}")
            try:
                if not info.name or info.name in scope.items:
                    raise ModelError("the input's name is empty or used twice", where=where)
                stated = self.input_type(info, symbols, where)
                type = self.types.get(info.name, stated)
                self.builder.reserved.discard(info.name)
                scope.items[info.name] = Item(type, self.builder.input(info.name, type), name=info.name)
            except Error as error:
                self.problems.add(located(error, where))
        unknown = [name for name in self.fixed if name not in symbols.expressions]
        if unknown and not self.problems:
            self.problems.add(
                ModelError(
                    "no dimension of the inputs has this name",
                    where=self.loaded.label,
                    expected=", ".join(symbols.expressions) or "none",
                    got=", ".join(unknown),
                )
            )

    def input_type(self, info: onnx.ValueInfoProto, symbols: Symbols, where: str) -> TensorType:
        kind = info.type.WhichOneof("value")
        if kind is None:
            raise ModelError("the type is not given", where=where)
        if kind != "tensor_type":
            raise UnsupportedError(f"values of kind {kind.removesuffix('_type')} are not supported", where=where)
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            raise UnsupportedError("the shape is not given, not even its rank", where=where)
        shape: list[Expr] = []
        for k, d in enumerate(tensor.shape.dim):
            if d.HasField("dim_value"):
                if not 0 <= d.dim_value <= MAX_DIM:
                    raise ModelError(f"dimension {k} makes no sense", where=where, got=d.dim_value)
                shape.append(as_expr(d.dim_value))
            else:
                shape.append(symbols.get(d.dim_param or f"{info.name}_dim{k}"))
        type = TensorType(element_type(tensor.elem_type, where), tuple(shape))
        check_size(type)
        return type

    def outputs(self, graph: onnx.GraphProto, scope: Scope) -> list[tuple[str, Value]]:
        results: list[tuple[str, Value]] = []
        for info in graph.output:
            where = self.where(f"output {info.name!r}")
            item = scope.find(info.name)
            if item is None or any(name == info.name for name, _ in results):
                what = "nothing computes the output" if item is None else "the output is named twice"
                self.problems.add(ModelError(what, where=where))
                continue
            declared = info.type.tensor_type.elem_type if info.type.HasField("tensor_type") else 0
            if declared and element_type(declared, where) is not item.dtype:
                self.problems.add(
                    ModelError(
                        "the output's element type is not what the nodes compute",
                        where=where,
                        expected=element_type(declared),
                        got=item.dtype,
                    )
                )
            results.append((info.name, self.call(None, scope, info.name).materialize(item)))
        if not graph.output:
            self.problems.add(ModelError("the model has no outputs", where=self.loaded.label))
        return results

    # --- nodes --------------------------------------------------------------------------------------------------------

    def nodes(self, nodes: Sequence[onnx.NodeProto], scope: Scope, attributes: Mapping[str, Any], depth: int) -> None:
        """Import the nodes of a graph or function, `depth` levels inside of the model, in turn. `attributes` are the
        attributes of the call of a function, to which its nodes may refer. Errors are collected; nodes that depend on a
        failed one are skipped."""
        for position, node in enumerate(nodes):
            self.visited += 1
            if self.visited > self.budget:
                raise ModelError("the model's functions expand to too many nodes", expected=f"at most {self.budget}")
            where = self.where(f"node {scope.prefix}{node.name or f'#{position}'} ({node.op_type})")
            try:
                self.node(node, scope, attributes, depth, where)
            except Noted:
                scope.failed.update(node.output)
            except Error as error:
                if isinstance(error, ShapeError):
                    error.open = any(n.defines is not None for n in self.builder.nodes)
                self.problems.add(located(error, where))
                scope.failed.update(node.output)
            except MALFORMED as error:
                problem = ModelError("the node is malformed", where=where, got=reason(error))
                problem.__cause__ = error
                self.problems.add(problem)
                scope.failed.update(node.output)

    def node(self, node: onnx.NodeProto, scope: Scope, attributes: Mapping[str, Any], depth: int, where: str) -> None:
        selected = [name for name in node.output if name and (name in scope.items or name in scope.failed)]
        if selected or len(set(filter(None, node.output))) != len(list(filter(None, node.output))):
            raise ModelError("the node computes a value that exists already", got=", ".join(selected) or node.output)
        items: list[Item | None] = []
        for name in self.inputs_of(node, depth):
            if name and scope.has_failed(name):
                scope.failed.update(node.output)
                return
            item = scope.find(name) if name else None
            if name and item is None:
                raise ModelError("the node reads a value that nothing before it computes", got=repr(name))
            items.append(item)
        while items and items[-1] is None:
            items.pop()
        call = self.call(node, scope, next(filter(None, node.output), node.name), items, attributes)
        if (
            not depth
            and self.exported is not None
            and node.op_type == "Identity"
            and node.output[0] in self.exported.copies
        ):
            results: list[Item | None] = [self.another(node.output[0], call.item(0))]
        elif node.op_type in CONTROL and node.domain in ("", "ai.onnx"):
            results = self.control(call, scope, attributes, depth)
        else:
            with stated(frozenset() if scope.is_branch else stated_sizes(items, self.builder.inputs)):
                results = folding.fold(call) or self.translate(call, node, scope, depth)
            if all(item is None or item.of_weights for item in items):
                for result in filter(None, results):
                    result.of_weights = True
        self.bind(node, results, scope)

    def inputs_of(self, node: onnx.NodeProto, depth: int) -> list[str]:
        """The names of the node's inputs; those of weights are the module's own."""
        if depth or self.exported is None or not node.output:
            return list(node.input)
        return [self.exported.read.get((node.output[0], k), name) for k, name in enumerate(node.input)]

    def call(
        self,
        node: onnx.NodeProto | None,
        scope: Scope,
        hint: str,
        items: list[Item | None] | None = None,
        outer: Mapping[str, Any] | None = None,
    ) -> Call:
        attributes = {} if node is None else functions.attributes(node, outer or {}, self.loaded.folder)
        domain = node.domain if node is not None else ""
        return Call(
            self.builder,
            self.weights,
            scope.prefix + hint,
            node if node is not None else onnx.NodeProto(),
            scope.opset(domain),
            items or [],
            attributes,
            0 if node is None else len(node.output),
            fixed=self.fixed_params,
            folded=self.folded,
            open_sizes=self.open_sizes and not scope.is_inner,
            decided=self.decided,
        )

    def translate(self, call: Call, node: onnx.NodeProto, scope: Scope, depth: int) -> list[Item | None]:
        local = functions.local_function(self.model, node)
        if local is not None:
            return self.body(call, local, scope, depth)
        result = find(node.domain, node.op_type)
        if result is not None:
            check_storage(call)
            start = len(self.builder.nodes)
            with functions.admitted(call):
                results = as_items(result(call))
            functions.check_attributes(call)
            self.name_outputs(results, node, scope, start)
            return results
        body = functions.schema_body(call)
        if body is None:
            domain = f" of domain {node.domain}" if node.domain not in ("", "ai.onnx") else ""
            raise UnsupportedError(f"the operator {node.op_type}{domain} is not supported")
        if node.op_type in CHECKS:
            CHECKS[node.op_type](call)
        before = len(self.problems)
        try:
            return self.body(call, body, scope, depth)
        except Noted:
            if functions.admits(call):
                self.problems.errors[before:] = [functions.unsupported(e) for e in self.problems.errors[before:]]
            raise

    def body(self, call: Call, body: onnx.FunctionProto, scope: Scope, depth: int) -> list[Item | None]:
        """Import the body of the function that `call` invokes, `depth` levels inside of the model, in place of the
        node; returns what it computes for the function's outputs."""
        if depth >= MAX_DEPTH:
            raise ModelError("functions call each other too deeply", expected=f"at most {MAX_DEPTH} levels")
        own = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in body.opset_import}
        opsets = self.loaded.opsets | own
        inner = Scope(prefix=f"{call.hint}/", opsets=opsets, is_inner=scope.is_inner, is_branch=scope.is_branch)
        if len(call.items) > len(body.input):
            raise ModelError("the function takes fewer inputs", expected=len(body.input), got=len(call.items))
        for name, item in zip(body.input, call.items, strict=False):
            if item is not None:
                inner.items[name] = item
        missing = [name for name in body.input if name not in inner.items]
        before = len(self.problems)
        self.nodes(functions.without_absent(body.node, missing), inner, functions.parameters(call, body), depth + 1)
        if len(self.problems) > before or any(name in inner.failed for name in body.output):
            raise Noted
        return [inner.find(name) for name in body.output]

    def control(self, call: Call, scope: Scope, attributes: Mapping[str, Any], depth: int) -> list[Item | None]:
        """Import the `If`, `Loop` or `Scan` node of `call`, `depth` levels inside of the model, with its inner graphs,
        and return its results. `attributes` are the attributes of the enclosing function's call."""
        if depth >= MAX_DEPTH:
            raise ModelError("graphs nest too deeply", expected=f"at most {MAX_DEPTH} levels")

        def walk(graph: onnx.GraphProto, inputs: Mapping[str, Item], prefix: str) -> list[Item]:
            is_branch = scope.is_branch or call.node.op_type == "If"
            inner = Scope(dict(inputs), scope, f"{call.hint}/{prefix}", set(), scope.opsets, True, is_branch)
            self.initializers(graph, inner)
            before = len(self.problems)
            self.nodes(graph.node, inner, attributes, depth + 1)
            if len(self.problems) > before or any(inner.has_failed(info.name) for info in graph.output):
                raise Noted
            matches = [inner.find(info.name) for info in graph.output]
            if any(item is None for item in matches):
                raise ModelError("an inner graph does not compute its outputs")
            return [item for item in matches if item is not None]

        results = list(CONTROL[call.node.op_type](Bodies(call, walk, scope, self.problems)))
        functions.check_attributes(call)
        return results

    def name_outputs(self, results: list[Item | None], node: onnx.NodeProto, scope: Scope, start: int) -> None:
        """Rename the values `results` to the names of the outputs of `node`, if the graph's nodes from number `start`
        on compute them."""
        produced = {v for n in self.builder.nodes[start:] for v in n.outputs}
        renamed: dict[Value, Value] = {}
        for name, item in zip(node.output, results, strict=False):
            if name and item is not None and item.value in produced and item.value not in renamed:
                new = scope.prefix + name
                if scope.prefix:
                    new = self.builder.fresh(new)
                renamed[item.value] = item.value = Value(new, item.value.type)
        if renamed:
            self.builder.nodes[start:] = [renamed_node(n, renamed) for n in self.builder.nodes[start:]]

    def bind(self, node: onnx.NodeProto, results: Sequence[Item | None], scope: Scope) -> None:
        if len(results) < len([name for name in node.output if name]):
            raise UnsupportedError(f"output {len(results)} of the operator is not supported")
        for name, item in zip(node.output, results, strict=False):
            if name and item is None:
                raise UnsupportedError(f"the output {name!r} of the operator is not supported")
            if name and item is not None:
                if item.value is None and not item.name:
                    item.name = scope.prefix + name
                scope.items[name] = item

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self, outputs: list[tuple[str, Value]]) -> Imported:
        """Name the outputs, and drop nodes that they do not need."""
        imported = finished(self.builder, outputs, self.weights)
        names = set(imported.weights)
        tied = tuple((name, leader) for name, leader in sorted(self.tied.items()) if leader in names - {name})
        ignored = {name for name, _ in tied}
        folded = {name: f"its number is part of the program, where {op} needs it" for name, op in self.folded.items()}
        if self.exported is not None:
            folded |= folded_weights(self.model, self.exported, self.loaded.folder)
            ignored |= self.exported.unread(self.model, names)
        interface = Interface(
            ignored=tuple(sorted(ignored - folded.keys() - names)),
            tied=tied,
            folded=tuple(sorted(folded.items())),
            fixed=frozenset((self.fixed_params | folded.keys()) & names),
        )
        return replace(imported, interface=interface, private=True)


def _kind(problems: Problems) -> type[Error]:
    return UnsupportedError if all(isinstance(p, UnsupportedError) for p in problems) else ModelError


__all__ = ["Imported", "import_onnx"]
