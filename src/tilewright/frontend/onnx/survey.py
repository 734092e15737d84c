"""The nodes of a section that the importer can take: one walk over its nodes that goes on after those that it cannot.

For each node: it becomes operators of ours ("native"), it is evaluated while importing ("known"), it would be taken if
more were known of what it reads ("assumed", perhaps with the names of values that it must know), or it is "lacking",
with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Literal

import onnx
from onnx.shape_inference import infer_node_outputs

from tilewright.frontend.common.finish import MALFORMED, located, reason
from tilewright.frontend.onnx import functions
from tilewright.frontend.onnx.bodies import Noted
from tilewright.frontend.onnx.control import CONTROL
from tilewright.frontend.onnx.importer import Importer
from tilewright.frontend.onnx.order import reads
from tilewright.frontend.onnx.registry import find
from tilewright.frontend.onnx.scope import Item, Scope, Symbols, known_item
from tilewright.frontend.onnx.section import (
    Section,
    TensorInfo,
    Types,
    declared,
    from_type,
    info_of,
    names_of,
    operator,
)
from tilewright.frontend.onnx.tensors import DTYPES, element_type, to_array
from tilewright.ir.dtype import DType
from tilewright.ir.expr import as_expr, as_int
from tilewright.ir.graph import TensorType
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, ModelError, ShapeError, UnsupportedError, ValueNeededError

How = Literal["native", "known", "assumed", "lacking"]
SMALL = 64
"""Elements up to which a value that decides structure is traced back to the values that it is computed from."""

_CODES: dict[DType, int] = {t: code for code, t in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The outcome for one node: how it is taken, or the error that refuses it. `needs`: names of values that must be
    known when compiling it."""

    how: How
    error: Error | None = None
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """All nodes of a section in their order, and the types of values as far as they are known."""

    nodes: tuple[Surveyed, ...]
    types: Types


def survey(
    section: Section,
    types: Types,
    values: Mapping[str, Any] | None = None,
    lacking: Mapping[int, Error] | None = None,
) -> Survey:
    """Walk over a section.

    Args:
        types: of its inputs; one that is not named has a type that is not known yet.
        values: of inputs that are known.
        lacking: nodes that shall count as lacking, with the reason.
    """
    return _Walk(section, dict(types), dict(values or {}), dict(lacking or {})).run()


@dataclass(slots=True)
class _Walk:
    section: Section
    types: dict[str, TensorInfo | None]
    values: dict[str, Any]
    lacking: dict[int, Error]
    scope: Scope = field(default_factory=Scope)
    symbols: Symbols = field(default_factory=lambda: Symbols({}, {}, {}))
    unknown: set[str] = field(default_factory=set)
    producers: dict[str, int] = field(default_factory=dict)
    """The node that computes a value, of the nodes that are taken."""
    guessed: set[str] = field(default_factory=set)
    """The names of values with assumed sizes: their actual ones depend on values that must be known."""

    def run(self) -> Survey:
        loaded = self.section.loaded
        walker = Importer(loaded, {}, {}, {})
        self.scope.opsets = loaded.opsets
        walker.builder.reserved.update(names_of(self.section.nodes))
        used = {n for node in self.section.nodes for n in reads(node)} | set(self.section.outputs)
        for name in used & self.section.initializers.keys():
            self.take_tensor(name)
        stated = self.stated()
        for name in self.section.inputs:
            self.enter(walker, name, stated.get(name))
        results: list[Surveyed] = []
        for k, node in enumerate(self.section.nodes):
            results.append(self.node(walker, k, node))
            if results[-1].how == "assumed" or not self.guessed.isdisjoint(reads(node)):
                self.guessed.update(node.output)
            if results[-1].how in ("native", "known"):
                self.producers.update((name, k) for name in node.output)
            for name in filter(None, node.output):
                if name not in self.scope.items:
                    self.enter(walker, name, stated.get(name))
        return Survey(tuple(results), self.types | self.seen())

    def take_tensor(self, name: str) -> None:
        """Make the initializer `name` known to rules, unless its element type is not supported."""
        tensor, loaded = self.section.initializers[name], self.section.loaded
        where = f"{loaded.label}: initializer {name!r}"
        try:
            t = element_type(tensor.data_type, where)
        except UnsupportedError:
            self.types[name] = None
            return
        weight = t.is_float and name in self.section.weights
        self.scope.items[name] = known_item(to_array(tensor, where, loaded.folder), t, name, weight=weight)

    def stated(self) -> dict[str, TensorInfo]:
        """The types that the file states for values between nodes."""
        if self.section.prefix:
            return {}
        graph = self.section.loaded.model.graph
        infos = {v.name: declared(v) for v in (*graph.value_info, *graph.output)}
        return {name: info for name, info in infos.items() if info is not None}

    def enter(self, walker: Importer, name: str, stated: TensorInfo | None) -> None:
        """Enter the value `name`, which no rule has computed, as an input or known array for later rules; only noted as
        unknown if neither its type in the survey nor the `stated` one is known."""
        if name in self.values:
            info = info_of(self.values[name])
            if info is not None and info.code in DTYPES:
                self.scope.items[name] = known_item(self.values[name], DTYPES[info.code], name)
                self.types[name] = info
                return
        info = self.types.get(name, stated)
        if info is None or info.code not in DTYPES:
            self.unknown.add(name)
            if info is not None:
                self.types[name] = None
            return
        shape = tuple(as_expr(d) if isinstance(d, int) else self.symbols.get(d) for d in info.dims)
        type = TensorType(DTYPES[info.code], shape)
        walker.builder.reserved.discard(name)
        self.scope.items[name] = Item(type, walker.builder.input(name, type), name=name)
        self.types[name] = info

    def node(self, walker: Importer, k: int, node: onnx.NodeProto) -> Surveyed:
        where = walker.where(f"node {self.section.label(k)}")
        read = reads(node)
        if k in self.lacking:
            self.infer(node)
            return Surveyed("lacking", self.lacking[k])
        others = [n for n in read if n in self.types and self.types[n] is None]
        if others:
            self.infer(node)
            what = "sequences, optionals, strings and other values that are no tensors of numbers are not supported"
            return Surveyed("lacking", UnsupportedError(what, where=where, got=", ".join(others[:3])))
        if any(n in self.unknown for n in read):
            if self.is_named(node):
                return Surveyed("assumed")
            return Surveyed("lacking", UnsupportedError(f"the operator {operator(node)} is not supported", where=where))
        error = self.try_node(walker, node, where)
        if error is None:
            outputs = [self.scope.items[name] for name in node.output if name]
            return Surveyed("known" if all(i.value is None for i in outputs) else "native")
        self.infer(node)
        if node.op_type not in CONTROL and any(isinstance(e, ValueNeededError) for e in error.each()):
            needed = self.needed(error, node)
            if needed:
                return Surveyed("assumed", error, needed)
        if all(isinstance(e, ShapeError) for e in error.each()) and not self.guessed.isdisjoint(read):
            return Surveyed("assumed", error)
        return Surveyed("lacking", error)

    def try_node(self, walker: Importer, node: onnx.NodeProto, where: str) -> Error | None:
        """Import a node with `walker`, at the place `where`. Returns None, or the error with which that failed; the
        scope is as before then."""
        before = set(self.scope.items)
        try:
            walker.node(node, self.scope, {}, 0, where)
            return None
        except Noted:
            error: Error = UnsupportedError.combined(list(walker.problems))
        except Error as result:
            error = located(result, where)
        except MALFORMED as result:
            error = ModelError("the node is malformed", where=where, got=reason(result))
        walker.problems.errors.clear()
        for name in set(self.scope.items) - before:
            del self.scope.items[name]
        return error

    def is_named(self, node: onnx.NodeProto) -> bool:
        """Whether some rule, function body or control flow covers the node's operator, for some types of inputs."""
        model = self.section.loaded.model
        if node.op_type in CONTROL and node.domain in ("", "ai.onnx"):
            return True
        if find(node.domain, node.op_type) is not None or functions.local_function(model, node) is not None:
            return True
        schema = self.schema(node)
        return schema is not None and (schema.has_function or schema.has_context_dependent_function)

    def schema(self, node: onnx.NodeProto) -> onnx.defs.OpSchema | None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        try:
            return onnx.defs.get_schema(node.op_type, self.scope.opset(domain), domain)
        except onnx.defs.SchemaError:
            return None

    def infer(self, node: onnx.NodeProto) -> None:
        """Note the types of a node's outputs as far as ONNX's inference knows them."""
        schema = self.schema(node)
        if schema is None or any(True for _ in self.subgraphs(node)):
            return
        arguments: dict[str, onnx.TypeProto] = {}
        data: dict[str, onnx.TensorProto] = {}
        for name in filter(None, node.input):
            info = self.info(name)
            if info is None:
                return
            arguments[name] = onnx.helper.make_tensor_type_proto(info.code, list(info.dims))
            if name in self.section.initializers:
                data[name] = self.section.initializers[name]
        opsets = [onnx.helper.make_opsetid(d, v) for d, v in self.scope.opsets.items()]
        try:
            types = infer_node_outputs(schema, node, arguments, data, opset_imports=opsets)
        except Exception:  # whatever ONNX's inference raises: then nothing is known
            return
        for name, type in types.items():
            info = from_type(type, name)
            if info is not None or type.WhichOneof("value") not in (None, "tensor_type"):
                self.types[name] = info

    @staticmethod
    def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.AttributeProto]:
        kinds = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
        return (a for a in node.attribute if a.type in kinds)

    def info(self, name: str) -> TensorInfo | None:
        item = self.scope.items.get(name)
        return self.types.get(name) if item is None else _info(item)

    def seen(self) -> dict[str, TensorInfo | None]:
        return {name: _info(item) for name, item in self.scope.items.items()}

    def needed(self, error: Error, node: onnx.NodeProto) -> tuple[str, ...]:
        """The names of values that must be known when compiling so that `node` is taken, after `error`; those that are
        computed from section inputs are replaced by these."""
        asked = [e.needs for e in error.each() if isinstance(e, ValueNeededError)]
        names = [n for n in reads(node) if any(self.scope.items.get(n) is a for a in asked)]
        if len(names) < len({id(a) for a in asked}):  # values inside of a function
            names = [n for n in reads(node) if n in self.scope.items and self.is_structural(self.scope.items[n])]
        return tuple(dict.fromkeys(source for name in names for source in self.sources(name) or [name]))

    @staticmethod
    def is_structural(item: Item) -> bool:
        """Whether an unknown value may be one that decides a graph's structure, such as a shape or a list of axes:
        integers of small number, or one number."""
        size = as_int(item.type.size)
        return item.known is None and (size is None or size <= SMALL) and (not item.dtype.is_float or size == 1)

    def sources(self, name: str) -> list[str] | None:
        """The section's inputs, and results of nodes that other runtimes compute, from which the small integer array
        `name` is computed; None if its computation involves floats or large arrays."""
        item = self.scope.items.get(name)
        if item is None or item.known is not None:
            return [] if item is not None else None
        size = as_int(item.type.size)
        if name not in self.producers:
            return [name]
        if size is None or size > SMALL or item.dtype.is_float:
            return None
        results: list[str] = []
        for read in reads(self.section.nodes[self.producers[name]]):
            more = self.sources(read)
            if more is None:
                return None
            results += more
        return results


def _info(item: Item) -> TensorInfo:
    dims = tuple(d if (d := as_int(e)) is not None else str(e) for e in item.type.shape)
    return TensorInfo(_CODES[item.dtype], dims)


__all__ = ["Survey", "Surveyed", "survey"]
