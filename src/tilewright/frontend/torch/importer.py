"""An exported program to Graph: one walk over the nodes that the outputs need.

    torch.nn.Module --export--> ExportedProgram --simplified--> nodes with rules --this walk--> Graph

Errors are collected node by node and raised together at the end.

PyTorch's tracers hold global state, so that one thread traces at a time, and TorchDynamo compiles nothing meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import Node

from tilewright.frontend.common.emitter import Emitter, check_size
from tilewright.frontend.common.finish import MALFORMED, finished, located, reason
from tilewright.frontend.torch.alone import tracing_alone
from tilewright.frontend.torch.complexes import Complex
from tilewright.frontend.torch.dtypes import element_type
from tilewright.frontend.torch.example import Dims, read_example
from tilewright.frontend.torch.export import export_module, refuse_example, serves_least, simplified
from tilewright.frontend.torch.outputs import output_names
from tilewright.frontend.torch.random import Random
from tilewright.frontend.torch.symbols import Sizes, guards_of
from tilewright.frontend.torch.tensors import tensor_type, to_array
from tilewright.frontend.torch.unrolled import refuse_unrolled
from tilewright.frontend.torch.walk import Walk
from tilewright.frontend.torch.weights import Weights, read_weights
from tilewright.ir.dim import DimSizes
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, Var, as_int
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ir.interface import Imported, Interface
from tilewright.ops.registry import emit1
from tilewright.ops.rooms import is_room
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, ModelError, Problems, UnsupportedError
from tilewright.transform.graph.assume import fold_assumptions


def import_torch(
    model: torch.nn.Module | ExportedProgram,
    example: Any = None,
    dims: DimSizes | None = None,
    dynamic: str | Mapping[str, Mapping[int, str]] | None = "auto",
) -> Imported:
    """The graph of a module, traced with `example`, or of an exported program, with its weights by name. `dims` and
    `dynamic` are arguments of `tilewright.compile`.

    Raises ModelError (UnsupportedError for what Tilewright lacks), which lists everything that is wrong.
    """
    with tracing_alone(), compile_lock:
        return _import_torch(model, example, dict(dims or {}), dynamic)


def _import_torch(
    model: torch.nn.Module | ExportedProgram,
    example: Any,
    dims: DimSizes,
    dynamic: str | Mapping[str, Mapping[int, str]] | None,
) -> Imported:
    if isinstance(model, ExportedProgram):
        refuse_unrolled(model.graph, "exported program")
        return _imported_of_least_sizes(model, None, None, dims, "exported program")
    if example is None:
        raise ModelError("a PyTorch module needs an example of its inputs", expected="tw.compile(module, example)")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    inputs = read_example(model, example, device)
    program, axes, known = export_module(model, inputs, dynamic, dims)
    names = [leaf.name for leaf in inputs.leaves]
    label = type(model).__name__
    least = 1 if not any(axes) or serves_least(program, model, inputs, axes, known) else 2
    declared = list(zip(names, axes, strict=True))
    refused = partial(refuse_example, model, inputs)
    if least == 1 and any(axes):
        return _imported_of_least_sizes(program, model, declared, dims, label, refused=refused)
    return _imported(program, model, declared, dims, label, least, refused=refused)[0]


def _imported_of_least_sizes(*arguments: Any, refused: Callable[[], None] = lambda: None) -> Imported:
    """The program imported for sizes from 1 on or, if its shapes exclude 1, from 2. PyTorch's exporter assumes at least
    2, and simplifies by that, such as `x[:2]` to two rows. A missing rule fails for both, and is not tried again."""
    try:
        return _imported(*arguments, 1, refused=refused)[0]
    except Error as error:
        if not any(isinstance(e, UnsupportedError) and e.any_size for e in error.each()):
            with contextlib.suppress(Error):
                return _imported(*arguments, 2, refused=refused)[0]
        raise error from None


def check_symbols(type: TensorType) -> None:
    """Raise UnsupportedError if a size is computed from another input's sizes: calls only check symbols and numbers."""
    computed = [str(d) for d in type.shape if as_int(d) is None and not isinstance(d, Var)]
    if computed:
        hint = "give the input a size of its own, and let the model say where they must be equal"
        raise UnsupportedError("a size depends on another input's sizes", got=", ".join(computed), hint=hint)


@dataclass(frozen=True, slots=True)
class Training:
    """A module in training as a graph.

    read     the graph; its last outputs are the new values of the buffers that change
    changed  the names of these buffers, in their order
    key      the input that random numbers depend on; None if none are drawn
    """

    read: Imported
    changed: tuple[str, ...]
    key: str | None


def import_training(
    model: torch.nn.Module, example: Any, dynamic: str | Mapping[str, Mapping[int, str]] | None = None
) -> Training:
    """Import the module `model` for training, traced with the inputs `example`, whose symbolic dimensions `dynamic`
    names: each submodule is in its own mode, and the graph computes the new values of buffers and uses random numbers.

    Raises the errors of `import_torch`.
    """
    with tracing_alone(), compile_lock:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        inputs = read_example(model, example, device)
        program, axes, _ = export_module(model, inputs, dynamic, {}, training=True)
        declared = list(zip([leaf.name for leaf in inputs.leaves], axes, strict=True))
        least = 2 if any(axes) else 1
        read, importer = _imported(program, model, declared, {}, type(model).__name__, least, True)
    assert importer.random is not None
    key = importer.random.key
    return Training(read, importer.changed, None if key is None else key.name)


def _imported(
    program: ExportedProgram, *rest: Any, refused: Callable[[], None] = lambda: None
) -> tuple[Imported, _Importer]:
    """The program as a graph, and the importer.

    If rules refuse operators, PyTorch decomposes these where it can, and the import is repeated; before that, `refused`
    is called, and may raise an error that explains the failure better.
    """
    separate: set[Any] = set()
    first: Error | None = None
    while True:
        importer = _Importer(simplified(program, separate), *rest)
        try:
            return importer.run(), importer
        except Error as error:
            if first is None:
                refused()
            first = first or error  # which names the user's operators
            more = importer.refused - separate
            if not more:
                raise first from None
            separate |= more
        except MALFORMED as error:  # a rule's own troubles are errors at its node: this is what stands around the nodes
            raise ModelError("the program is malformed", where=importer.label, got=reason(error)) from error


@dataclass(slots=True)
class _Importer:
    program: ExportedProgram
    module: torch.nn.Module | None
    declared: list[tuple[str, Dims]] | None
    """Names and symbolic dimensions of the tensors among the inputs, where they are known."""
    fixed: DimSizes
    label: str
    least: int = 1
    """The smallest size of symbolic dimensions."""
    training: bool = False
    """Whether buffers may change and random numbers be drawn."""
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    weights: dict[str, Any] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    values: dict[Node, Any] = field(default_factory=dict)
    sizes: Sizes = field(init=False)
    source: Weights = field(init=False)
    random: Random | None = field(init=False)
    changed: tuple[str, ...] = ()
    """The buffers whose new values are the last outputs."""
    refused: set[Any] = field(default_factory=set)
    """Operators that `Walk` refuses but PyTorch can decompose."""

    def run(self) -> Imported:
        self.sizes = Sizes(self.program.range_constraints, self.fixed, self.least)
        self.source = read_weights(self.program, self.module)
        self.random = Random(self.builder) if self.training else None
        self.builder.name = self.label if self.label.isidentifier() else "main"
        self.builder.reserved.update(self.source.all)
        inputs = self.inputs()
        outputs, names = self.outputs()
        walk = Walk(
            self.label,
            self.builder,
            self.weights,
            self.sizes,
            self.weight,
            self.problems,
            refused=self.refused,
            random=self.random,
            arrays={} if self.training else self.weights,  # steps of training may change buffers
        )
        walk.nodes(self.program.graph_module, self.values)
        self.problems.raise_if_any(
            f"{len(self.problems)} problems in the model", where=self.label, kind=_kind(self.problems)
        )
        if any(isinstance(self.values[node], Complex) for node in outputs):
            raise UnsupportedError("a result is complex", where=self.label, hint="return torch.view_as_real of it")
        arguments = [(name, self.result(self.values[node], name)) for name, node in zip(names, outputs, strict=True)]
        imported = finished(self.builder, _distinct(arguments, self.builder), self.weights)
        read = {p.name for p in imported.graph.params}
        ignored = tuple(name for name in self.source.all if name not in read)
        tied = tuple((name, first) for name, first in self.source.tied if first in read)
        inputs += [v.name for v in imported.graph.inputs if is_room(v)]
        return Imported(imported.graph, imported.weights, Interface(tuple(inputs), tuple(names), ignored, tied))

    # --- what stands around the nodes ---------------------------------------------------------------------------------

    def inputs(self) -> list[str]:
        """Declare the inputs in order, and return their names."""
        placeholders = {n.name: n for n in self.program.graph.nodes if n.op == "placeholder"}
        specs = [s for s in self.program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
        results: list[tuple[Node, str, Dims | None]] = []
        known = iter(self.declared or ())
        for spec in specs:
            if isinstance(spec.arg, ConstantArgument):
                self.values[placeholders[spec.arg.name]] = spec.arg.value
                continue
            node = placeholders[spec.arg.name]
            name, axes = next(known) if self.declared is not None else (node.name, None)
            results.append((node, name, axes))
        self.name_joined(results)
        for alone in (True, False):
            for k, (node, name, axes) in enumerate(results):
                self.name_symbols(node, name, axes, first=k == 0, alone=alone)
        unknown = [name for name in self.sizes.fixed if name not in self.sizes.named]
        if unknown:
            raise ModelError(
                "no dimension of the inputs has this name",
                where=self.label,
                expected=", ".join(self.sizes.named) or "none",
                got=", ".join(unknown),
            )
        self.assume()
        for node, name, _ in results:
            fake = node.meta["val"]
            try:
                type = TensorType(element_type(fake.dtype), tuple(self.sizes.expr(d) for d in fake.shape))
                check_size(type)
                check_symbols(type)
                self.values[node] = self.builder.input(name, type)
            except Error as error:
                self.problems.add(located(error, f"{self.label}: input {name!r}"))
        self.problems.raise_if_any("the inputs cannot be read", where=self.label, kind=ModelError)
        return [name for _, name, _ in results]

    def assume(self) -> None:
        """Refine the symbols' ranges by PyTorch's guards, and assume the other guards."""
        said = GraphBuilder()
        self.sizes.assume(guards_of(self.program), said)
        symbols = [v for v in self.sizes.named.values() if isinstance(v, Var)]
        values = tuple(Value(v.name, TensorType(i64, (v,))) for v in symbols)
        graph = Graph(self.label, values, (), (), values, tuple(said.assumptions))
        result = fold_assumptions(graph, keep=[v.name for v in symbols])
        self.sizes.replace(dict(zip(symbols, (v.shape[0] for v in result.inputs), strict=True)))
        self.builder.assumptions += result.assumptions

    def name_joined(self, inputs: Sequence[tuple[Node, str, Dims | None]]) -> None:
        """Declare names for sizes that have several of the caller's names, since the model takes them for one."""
        names: dict[Any, dict[str, None]] = {}
        for node, _, axes in inputs:
            for axis, name in (axes or {}).items():
                size = node.meta["val"].shape[axis]
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    names.setdefault(size.node.expr, {})[name] = None
        for symbol, several in names.items():
            if len(several) > 1 and any(name in self.sizes.fixed for name in several):
                self.sizes.declare(symbol, self.sizes.join(list(several)))

    def name_symbols(self, node: Node, name: str, axes: Dims | None, first: bool, alone: bool) -> None:
        """Declare names for the symbolic sizes of input `name`: from `axes` as the caller states, "batch" for axis 0 of
        the `first` input, else by input and axis. With `alone` only sizes that are single symbols are named, else only
        compound expressions."""
        for axis, size in enumerate(node.meta["val"].shape):
            if not isinstance(size, torch.SymInt) or size.node.expr.is_Symbol != alone:
                continue
            chosen = (axes or {}).get(axis)
            if chosen is None:
                chosen = "batch" if first and axis == 0 else f"{name}_dim{axis}"
            self.sizes.declare(size.node.expr, chosen)

    def outputs(self) -> tuple[list[Any], list[str]]:
        """The nodes of the outputs and their names."""
        specs = self.program.graph_signature.output_specs
        results: Sequence[Any] = next(n for n in self.program.graph.nodes if n.op == "output").args[0]
        user = [k for k, s in enumerate(specs) if s.kind is OutputKind.USER_OUTPUT]
        moved = [(k, str(s.target)) for k, s in enumerate(specs) if s.kind is OutputKind.BUFFER_MUTATION]
        state = {name for _, name in moved if self.training and name in self.source.all}
        for kind, (what, hint) in _CHANGES.items():
            changed = [str(s.target) for s in specs if s.kind is kind and str(s.target) not in state]
            if changed:
                raise UnsupportedError(f"forward changes {what}: {', '.join(changed)}", where=self.label, hint=hint)
        names = output_names(self.program, len(user))
        retained = [(results[k], name) for k, name in zip(user, names, strict=True) if isinstance(results[k], Node)]
        if not retained:
            raise ModelError("the module returns no tensors", where=self.label)
        self.changed = tuple(name for _, name in moved)
        retained += [(results[k], f"new_{name}") for k, name in moved]
        return [node for node, _ in retained], [name for _, name in retained]

    def result(self, candidate: Any, name: str) -> Value:
        """`candidate`, a result of the program, as a tensor; a size becomes an i64 scalar."""
        if isinstance(candidate, Value):
            return candidate
        if not isinstance(candidate, Expr):
            raise UnsupportedError(
                "a result is no tensor", where=f"{self.label}: {name!r}", got=type(candidate).__name__
            )
        return Emitter(self.builder, self.weights, name).symbols([candidate], i64, ())

    def weight(self, node: Node) -> Value | None:
        """The value for a parameter or buffer: a weight if `state_dict()` contains it, else a constant. None for
        PyTorch's tokens of side effects."""
        if node.name in self.source.tokens:
            return None
        name = self.source.names.get(node.name)
        if name is None and node.name not in self.source.constants:
            what = "the module uses an object that is no tensor, as a torch.Generator is"
            raise UnsupportedError(
                what, where=f"{self.label}: {node.name!r}", hint="draw outside, and pass the numbers"
            )
        if name is None:
            tensor = self.source.constants[node.name]
            array = to_array(tensor, f"{self.label}: constant {node.name!r}")
            return emit1(self.builder, "constant", name=node.name, value=array)
        held = next((p for p in self.builder.params if p.name == name), None)
        if held is not None:
            return held
        tensor = self.source.tensors[name]
        type, array = tensor_type(tensor), to_array(tensor, f"{self.label}: weight {name!r}")
        self.builder.reserved.discard(name)
        value = self.builder.param(name, type)
        self.weights[name] = array
        return value


_CHANGES = {
    OutputKind.BUFFER_MUTATION: ("buffers of the module", "pass state in and out as arguments and results"),
    OutputKind.PARAMETER_MUTATION: ("parameters of the module", "tw.compile_step compiles a step of training"),
    OutputKind.USER_INPUT_MUTATION: (
        "arguments in place",
        "let forward work on x.clone() and return what its caller needs, or use "
        'torch.compile(module, backend="tilewright")',
    ),
}
"""Side effects of a program, which a compiled program would not have, and hints."""


def _distinct(outputs: list[tuple[str, Value]], builder: GraphBuilder) -> list[tuple[str, Value]]:
    """The pairs (name, value) `outputs`, with "_out" added to names that an input, a parameter or an earlier output of
    `builder` has."""
    used_names = {v.name for v in (*builder.inputs, *builder.params)}
    results: list[tuple[str, Value]] = []
    for name, value in outputs:
        while name in used_names:
            name = f"{name}_out"
        used_names.add(name)
        results.append((name, value))
    return results


def _kind(problems: Problems) -> type[Error]:
    return UnsupportedError if all(isinstance(p, UnsupportedError) for p in problems) else ModelError
