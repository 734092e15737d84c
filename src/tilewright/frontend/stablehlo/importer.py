"""A StableHLO module to Graph: one walk over the operations of `main`.

    for each operation:  known operands only?  ->  evaluate it now (sizes, constants, counters of loops)
                         a rule exists?        ->  the rule emits our operators
                         a call?               ->  walk the function in its place
                         otherwise             ->  note an UnsupportedError and go on

All problems are raised together at the end. Dimensions that turn out to be equal, because an operator requires or an
assertion states it, become one symbol, and the module is walked again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from tilewright.frontend.common.emitter import check_size
from tilewright.frontend.common.finish import MALFORMED, finished, located, reason
from tilewright.frontend.common.known import MAX_FOLDED
from tilewright.frontend.stablehlo import folding
from tilewright.frontend.stablehlo.call import Call, ComputedSizeError
from tilewright.frontend.stablehlo.expand import expanded
from tilewright.frontend.stablehlo.module import Block, Function, Module, Operation, Splat, Type
from tilewright.frontend.stablehlo.quantised import MOVES, Quantised, decoded, encoded, quantised_type
from tilewright.frontend.stablehlo.registry import find
from tilewright.frontend.stablehlo.scope import Item, element_type, known_item
from tilewright.frontend.stablehlo.signature import Argument, Signature
from tilewright.frontend.stablehlo.unify import Equal, Sizes
from tilewright.ir.dim import DimSizes
from tilewright.ir.expr import Var, as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ir.interface import Imported, Interface
from tilewright.ir.rewrite import variables
from tilewright.ops import emit1
from tilewright.ops.dims import dims, same_dim
from tilewright.ops.rooms import pruned
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, ModelError, Problems, UnsupportedError

MAX_DEPTH = 64
"""The deepest nesting of function calls and regions."""
MAX_VISITED = 100_000
"""The most operations that are visited; those of loops and functions count each time they run."""
MAX_RESTARTS = 100
"""How many times a module is walked again with new knowledge about symbols."""


def import_module(
    module: Module, signature: Signature | None = None, dims: DimSizes | None = None, label: str = "module"
) -> Imported:
    """Read a module. `signature` describes its arguments; `dims` states sizes of symbolic dimensions, by name.

    Raises ModelError (UnsupportedError for what Tilewright lacks), which lists everything that is wrong.
    """
    signature = signature or Signature.of(module)
    sizes = Sizes(dict(dims or {}), stated=signature.constraints is not None)
    restarts = 0
    while True:
        restarts += 1
        if restarts > MAX_RESTARTS:
            raise ModelError("the module has too many symbolic dimensions", where=label)
        try:
            return _Importer(module, signature, sizes, label).run()
        except Equal as result:
            sizes.join(result)
        except Error as error:
            sized = None if signature.sized else signature.with_sizes(module)
            if sized is not None and any(isinstance(e, ComputedSizeError) for e in error.each()):
                signature = sized
                continue
            raise located(error, label) from error.__cause__
        except MALFORMED as error:
            raise ModelError("the module is malformed", where=label, got=reason(error)) from error


class _Noted(Exception):
    """Raised when an operation fails because of problems that are reported already."""


@dataclass(slots=True)
class _Importer:
    module: Module
    signature: Signature
    sizes: Sizes
    label: str
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    weights: dict[str, Any] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    constants: dict[Value, Any] = field(default_factory=dict)
    visited: int = 0
    depth: int = 0
    callers: list[str] = field(default_factory=list)
    callsites: list[str] = field(default_factory=list)
    quantised: dict[int, Quantised] = field(default_factory=dict)
    """The quantised types of the module's values, by value's number."""
    codes: dict[tuple[Value, Quantised], Value] = field(default_factory=dict)
    """For values that are dequantised numbers: the codes of a quantised type that they came from."""

    def run(self) -> Imported:
        main = self.module.functions[self.module.main]
        self.builder.name = self.module.name if self.module.name.isidentifier() else "main"
        arguments = self.arguments(main)
        self.problems.raise_if_any("the arguments cannot be read", where=self.label, kind=ModelError)
        for text, condition in self.signature.constraints or ():
            self.sizes.assume(as_expr(condition(self.sizes.expr)), text, self.builder)
        inputs = [v.name for v in self.builder.inputs]
        results: list[Item] = []
        with contextlib.suppress(_Noted):  # what is noted is raised below
            results = self.function(main, arguments)
        self.sizes.check_fixed(self.label)
        self.problems.raise_if_any(
            f"{len(self.problems)} problems in the module", where=self.label, kind=_kind(self.problems)
        )
        if not results:
            raise ModelError("the module returns nothing", where=self.label)
        call = self.call(main.body.operations[-1], results)
        names = self.signature.outputs(len(results))
        used_names = {v.name for v in (*self.builder.inputs, *self.builder.params)}
        operands: list[tuple[str, Value]] = []
        for name, number, item in zip(names, main.body.returned, results, strict=True):
            unique = name
            while unique in used_names:
                unique = f"{unique}_out"
            used_names.add(unique)
            operands.append((unique, self.result(call, item, self.quantised.get(number))))
        imported = finished(self.builder, operands, self.weights)
        self.check_symbols(imported.graph)
        return Imported(imported.graph, imported.weights, Interface(tuple(inputs), tuple(names)))

    def check_symbols(self, graph: Graph) -> None:
        """Raise UnsupportedError for a symbol that cannot be computed from the shapes of inputs."""
        used = {s for v in graph.inputs for d in v.shape for s in variables(d)}
        used |= {s for condition, _ in self.sizes.solved for s in variables(self.sizes.told(condition))}
        used |= {s for n in graph.nodes for v in n.outputs for d in v.shape for s in variables(d)}
        used |= {s for n in graph.nodes for s in n.symbols}
        told = {d for v in graph.inputs for d in v.shape if isinstance(d, Var)}
        unknown = sorted(s.name for s in used - told)
        if unknown:
            what = "sizes that no input's shape tells are not supported"
            raise UnsupportedError(what, where=self.label, got=", ".join(unknown), hint="fix them: dims={name: size}")

    def arguments(self, main: Function) -> list[Item]:
        """Declare inputs and weights, and return the items of main's arguments."""
        results: list[Item] = []
        self.solve(main)
        for k, t in enumerate(main.body.types):
            about = self.signature.argument(k)
            try:
                shape = self.sizes.shape(about.name, t, about.shape)
                coded = quantised_type(t.element)
                type = TensorType(element_type(t.element) if coded is None else coded.storage, shape)
                check_size(type)
                if about.size_of:
                    results.append(known_item(self.sizes.named(about.size_of), type.dtype, ()))
                    if self.signature.sized:  # the caller gives it, and arrays of that size
                        self.builder.input(about.name, type)
                elif about.weight is not None:
                    self.builder.reserved.discard(about.name)
                    results.append(Item(type, self.builder.param(about.name, type)))
                    self.weights[results[-1].value.name] = about.weight  # type: ignore[union-attr]
                else:
                    results.append(self.input(about, t, type))
                if coded is not None:
                    results[-1] = self.number(main.body.arguments[k], results[-1], coded)
            except Error as error:
                self.problems.add(located(error, f"{self.label}: argument {about.name!r}"))
        return results

    def solve(self, main: Function) -> None:
        """Express symbols that are not themselves a dimension of an input by those that are (b by `(d - 3) // 2` for a
        dimension d = `2*b + 3`), and record the assumptions of this."""
        shapes = []
        for k, t in enumerate(main.body.types):
            about = self.signature.argument(k)
            if None not in (about.shape, t.shape) and about.weight is None and not about.size_of:
                shapes.append((about.name, self.sizes.shape(about.name, t, about.shape)))
        self.sizes.solve(shapes)
        for condition, text in self.sizes.solved:
            self.builder.assume(self.sizes.told(condition), text)

    def input(self, about: Argument, t: Type, type: TensorType) -> Item:
        """Declare the input `about`, whose type in the module is `t`. If sizes of its declared shape are written
        otherwise than in `type`, such as rounded ones, the item is a slice of all of it that has `type`."""
        shape = self.sizes.written(about.name, t, about.shape, type.shape)
        declared = self.builder.input(about.name, replace(type, shape=shape))
        if declared.type == type:
            return Item(type, declared)
        none = (as_expr(0),) * len(shape)
        return Item(type, emit1(self.builder, "slice", declared, begin=none, size=type.shape, step=(1,) * len(shape)))

    # --- quantised values --------------------------------------------------------------------------------------------

    def number(self, place: int, codes: Item, t: Quantised) -> Item:
        """The item for value number `place` of quantised type `t`: the numbers that `codes` represent."""
        call = self.call(Operation("quant.number", (), (), ()), [codes])
        source = call.value(codes)
        value = decoded(call, source, t)
        self.quantised[place], self.codes[value, t] = t, source
        return Item(value.type, value)

    def result(self, call: Call, item: Item, t: Quantised | None) -> Value:
        """`item`, which `call` computed, as a result of the module: codes if its type `t` is quantised (not None)."""
        value = call.value(item)
        return value if t is None else self.codes.get((value, t)) or encoded(call, value, t)

    def rounded(self, op: Operation, place: int, item: Item, t: Quantised) -> Item:
        """`item`, the result of `op` with number `place`, rounded to numbers that the codes of its quantised type `t`
        represent; unchanged if `op` only moved such numbers."""
        self.quantised[place] = t
        before = {self.quantised.get(v) for v in op.operands}
        if (item.value is not None and (item.value, t) in self.codes) or (op.name in MOVES and before - {None} == {t}):
            return item
        call = self.call(op, [item])
        codes = call.value(item) if op.name == "quant.constant" else encoded(call, call.value(item), t)
        return self.number(place, Item(codes.type, codes), t)

    # --- functions and regions ----------------------------------------------------------------------------------------

    def function(self, function: Function, arguments: Sequence[Item], lifted: bool = False) -> list[Item]:
        if len(arguments) != len(function.body.arguments):
            raise ModelError(f"the function {function.name} has other arguments")
        return self.block(function.body, arguments, {}, lifted)

    def block(
        self, block: Block, arguments: Sequence[Item], enclosing: Mapping[int, Item], lifted: bool = False
    ) -> list[Item]:
        """The results of `block` for these arguments; its operations may also read the values in `enclosing`. `lifted`
        says that operations are applied to tensors element by element, so that the shapes that they state lack the
        tensors' dimensions."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnsupportedError("functions or regions inside each other so deep are not supported")
        try:
            values = dict(enclosing)
            values.update(zip(block.arguments, arguments, strict=True))
            failed = False
            for op in block.body:
                failed |= not self.noted(op, values, lifted)
            if any(v not in values for v in block.returned):
                if failed:
                    raise _Noted
                raise ModelError("a region returns what it does not define")
            return [values[v] for v in block.returned]
        finally:
            self.depth -= 1

    def noted(self, op: Operation, values: dict[int, Item], lifted: bool) -> bool:
        """Import `op`, and enter its results in `values`. Returns False if it fails or reads a result that failed; the
        problem is recorded. `lifted` is as in `block`."""
        if any(v not in values for v in op.operands):
            return False
        place = next((w for w in (op.where, *reversed(self.callsites)) if ":" in w), op.where)
        where = f"{self.label}: {op.name}" + (f" at {place}" if place else "")
        try:
            self.visited += 1
            if self.visited > MAX_VISITED:
                raise ModelError("the module does too much", expected=f"at most {MAX_VISITED} operations")
            results = self.operation(op, values, lifted)
        except _Noted:
            return False
        except Error as error:
            if self.visited > MAX_VISITED:
                raise
            self.problems.add(located(error, where))
            return False
        except MALFORMED as error:
            problem = UnsupportedError(f"this use of {op.name} is not supported ({reason(error)})", where=where)
            problem.__cause__ = error
            self.problems.add(problem)
            return False
        values.update(zip(op.results, results, strict=True))
        return True

    def call(
        self, op: Operation, items: list[Item], enclosing: Mapping[int, Item] | None = None, lifted: bool = False
    ) -> Call:
        def walk(block: Block, arguments: Sequence[Item], elements: bool = False) -> list[Item]:
            return self.block(block, arguments, enclosing or {}, lifted or elements)

        def expand(op: Operation, items: Sequence[Item]) -> list[Item]:
            return self.block(expanded(op, [i.type for i in items]).body, items, {}, True)

        def renewed() -> Call:
            return self.call(op, items, enclosing, lifted)

        hint = op.name.rpartition(".")[2]
        return Call(
            self.builder,
            self.weights,
            hint,
            op,
            items,
            walk,
            expand,
            self.body,
            renewed,
            self.attempt,
            self.sizes,
            self.constants,
            lifted,
        )

    def attempt(self, rule: Callable[[], list[Item] | None]) -> list[Item] | None:
        """Run a rule: its result; None, with the graph unchanged, where it returns None or meets an unsupported
        construct."""
        builder, noted = self.builder, len(self.problems)
        used_names, nodes = set(builder.reserved), len(builder.nodes)
        results: list[Item] | None = None
        try:
            results = rule()
        except UnsupportedError:
            pass
        except _Noted:
            if not all(isinstance(p, UnsupportedError) for p in self.problems.errors[noted:]):
                raise
        if results is None:
            del self.problems.errors[noted:]
            del builder.nodes[nodes:]
            builder.reserved &= used_names
        return results

    def body(
        self, name: str, like: Sequence[Item], run: Callable[[list[Item]], list[Item]]
    ) -> tuple[Graph, list[Value]]:
        """(the graph, called `name`, of a region; the outer values that it reads). `run` emits the region for inputs
        like `like`; outer values become further inputs, or params if they are weights."""
        outer = self.builder
        inner = self.builder = GraphBuilder(name, reserved=outer.reserved, assumptions=outer.assumptions)
        try:
            inputs = [Item(i.type, inner.input("carried", i.type)) for i in like]
            results = run(inputs)
            call = self.call(Operation("stablehlo.return", (), (), ()), results)
            outputs = tuple(call.value(r) for r in results)
        finally:
            self.builder = outer
        produced = {*inner.inputs, *(v for n in inner.nodes for v in n.outputs)}
        read = [v for n in inner.nodes for v in n.inputs if v is not None] + list(outputs)
        free = list(dict.fromkeys(v for v in read if v not in produced))
        weights = [v for v in free if v.name in self.weights]
        captured = [v for v in free if v.name not in self.weights]
        graph = Graph(name, (*inner.inputs, *captured), tuple(weights), tuple(inner.nodes), outputs)
        return pruned(graph), [*captured, *weights]

    def operation(self, op: Operation, values: dict[int, Item], lifted: bool) -> list[Item]:
        items = [values[v] for v in op.operands]
        if op.name == "stablehlo.constant":
            return [self.constant(op)]
        if op.name in ("func.call", "stablehlo.composite"):
            return self.called(op, items, lifted)
        if (
            not lifted
            and op.types
            and all(t.shape is not None and 0 in t.shape and None not in t.shape for t in op.types)
        ):
            return [_empty(t) for t in op.types]
        result = find(op.name)
        called = [self.module.functions.get(str(f)) for f in op.attributes.get("called_computations") or ()]
        if called and op.name == "stablehlo.custom_call":
            op = replace(op, regions=tuple(f.body for f in called if f is not None))
        call = self.call(op, items, values, lifted)
        folded = folding.fold(call, result)
        if folded is not None:
            results: Any = folded
        elif result is None and op.name.startswith("chlo.") and not op.attributes and not op.regions:
            for other in items[1:]:
                self.sizes.equal_shapes(items[0].shape, other.shape)
            results = call.expand(op, items)
        elif result is None:
            raise UnsupportedError(f"the operation {op.name} is not supported")
        else:
            results = result(call)
        several = list(results) if isinstance(results, list | tuple) else [results]
        several = [Item(r.type, r) if isinstance(r, Value) else r for r in several]
        if len(several) != len(op.results):
            raise UnsupportedError(
                f"this use of {op.name} is not supported", expected=len(op.results), got=len(several)
            )
        for k, t in enumerate(op.types):
            coded = quantised_type(t.element)
            if coded is not None and not lifted:
                several[k] = self.rounded(op, op.results[k], several[k], coded)
        return [self.checked(item, t, lifted) for item, t in zip(several, op.types, strict=True)]

    def called(self, op: Operation, items: Sequence[Item], lifted: bool) -> list[Item]:
        key = "callee" if op.name == "func.call" else "decomposition"
        name = str(op.attributes.get(key, ""))
        function = self.module.functions.get(name)
        if function is None:
            raise ModelError(f"there is no function {name!r}")
        if op.name == "stablehlo.composite":
            entry = find(f"composite.{op.attributes.get('name')}")
            if entry is not None:
                results = entry(self.call(op, list(items)))
                return [Item(r.type, r) if isinstance(r, Value) else r for r in results]
        if name in (self.module.main, *self.callers):
            raise UnsupportedError(f"the function {name} calls itself")
        if len(self.callers) >= MAX_DEPTH:
            raise UnsupportedError("functions call each other too deeply", expected=f"at most {MAX_DEPTH} levels")
        self.callers.append(name)
        self.callsites.append(op.where)
        try:
            return self.function(function, items, lifted)
        finally:
            self.callers.pop()
            self.callsites.pop()

    def constant(self, op: Operation) -> Item:
        value = op.attributes.get("value")
        t = element_type(op.types[0].element)
        if isinstance(value, Splat):
            return known_item(value.value, t, value.shape)
        array = np.asarray(value)
        name = self.signature.captured(array)
        if name is not None:
            type = TensorType(t, dims(array.shape))
            held = next((p for p in self.builder.params if p.name == name), None)
            if held is None:
                held = self.builder.param(name, type)
                self.weights[held.name] = array
            return Item(type, held)
        if array.size <= MAX_FOLDED:
            return known_item(array, t)
        return Item(TensorType(t, dims(array.shape)), self.call(op, []).constant(array, t))

    def checked(self, item: Item, t: Type, lifted: bool) -> Item:
        """`item`, a rule's result, checked against the type `t` that the module states; unknown sizes are unified with
        stated ones. If `lifted`, the operation is applied element by element, and only the element type is checked."""
        if t.shape is None:
            raise UnsupportedError(f"a result of type {t.element} is not supported")
        if item.dtype is not element_type(t.element):
            raise UnsupportedError("the rule gives another element type", expected=t, got=item.type)
        if lifted:
            return item
        if len(item.shape) != len(t.shape):
            raise UnsupportedError("the rule gives another rank", expected=t, got=item.type)
        for ours, theirs in zip(item.shape, t.shape, strict=True):
            if theirs is not None and not same_dim(ours, as_expr(theirs)):
                self.sizes.equal(ours, as_expr(theirs))
        check_size(item.type)
        return item


def _empty(t: Type) -> Item:
    """A tensor of type `t` in which each unknown extent is 0."""
    shape = [0 if d is None else d for d in t.shape or ()]
    kind = element_type(t.element)
    return known_item(np.zeros(shape, kind.numpy), kind)


def _kind(problems: Problems) -> type[Error]:
    return UnsupportedError if all(isinstance(p, UnsupportedError) for p in problems) else ModelError
