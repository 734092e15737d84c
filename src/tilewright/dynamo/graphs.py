"""One graph of AOTAutograd: surveyed, cut into parts, each part compiled, and put together again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from tilewright.compiler import compile_graph
from tilewright.dynamo.decompose import decomposed, separable
from tilewright.dynamo.numbers import as_tensors, tensors_of_numbers, unsized
from tilewright.dynamo.options import BackendOptions
from tilewright.dynamo.part import Part
from tilewright.dynamo.partition import Cut, Schedule, partition
from tilewright.dynamo.rebuild import rebuilt
from tilewright.dynamo.report import GraphReport, reported
from tilewright.frontend.common.finish import reason
from tilewright.frontend.torch.aten import PartImporter, Survey, expression, sizes_read, survey
from tilewright.runtime.program import Program
from tilewright.runtime.threads import check_threads
from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, UnsupportedError
from tilewright.support.log import PassLog
from tilewright.targets.target import Target
from tilewright.transform.graph.options import Options


@dataclass(slots=True)
class GraphCompiler:
    """Compiles one graph of AOTAutograd, part by part, where PyTorch runs the nodes between the parts.

    Args:
        weights: placeholders, by position, that stay where they are: parameters and buffers.
        label: what its parts are called.
    """

    gm: GraphModule
    weights: frozenset[int]
    options: BackendOptions
    label: str
    failures: dict[Node, Error] = field(default_factory=dict)
    """Nodes of parts whose compilation failed for a reason that the survey did not foresee."""

    def run(self, examples: Sequence[Any]) -> tuple[Callable[..., Any], GraphReport]:
        """Compile the graph, for inputs like `examples`, to a function of its placeholders in one list; returns it with
        a report."""
        with unset_fake_temporarily():  # constants of the graph are real tensors
            return self.built(examples)

    def built(self, examples: Sequence[Any]) -> tuple[Callable[..., Any], GraphReport]:
        as_tensors(self.gm, examples)
        self.gm, result = self.surveyed(examples)
        numbers = tensors_of_numbers(self.gm)
        result = replace(result, refused=unsized(self.gm, self.label) | dict(result.refused))
        if self.options.full and result.refused:
            raise refusal(self.label, result.refused)
        while True:
            least = 1 if self.options.full else self.options.min_block_size
            schedule = partition(self.gm, {*result.refused, *self.failures, *numbers}, self.held(), least)
            compiled = self.compiled(schedule)
            if compiled is not None:
                break
        report = reported(self.label, self.gm, schedule, {**result.refused, **self.failures})
        return rebuilt(self.gm, schedule, compiled), report

    def surveyed(self, examples: Sequence[Any]) -> tuple[GraphModule, Survey]:
        """(the graph with its refused operators decomposed where PyTorch can and that helps, the survey of its
        operators); `examples` are the inputs with which it is traced."""
        self.gm.graph.eliminate_dead_code()
        result = survey(self.gm, self.label)
        separate: frozenset[Any] = frozenset()
        gm = self.gm
        while more := separable(gm, result.composite) - separate:
            separate |= more
            simpler = decomposed(gm, examples, separate)
            if simpler is None:
                break
            after = survey(simpler, self.label)
            if len(after.refused) > len(result.refused):
                break
            gm, result = simpler, after
        return gm, result

    def held(self) -> frozenset[Node]:
        placeholders = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        return frozenset(n for k, n in enumerate(placeholders) if k in self.weights)

    def compiled(self, schedule: Schedule) -> dict[Cut, Part] | None:
        """The program of each part; None if one failed: its nodes are then marked to run in PyTorch."""
        result: dict[Cut, Part] = {}
        for k, cut in enumerate(schedule.parts):
            name = f"{self.label}_part{k}"
            try:
                result[cut] = self.part(cut, name)
            except Exception as error:  # whatever it is: the user's model runs without us
                problem = error if isinstance(error, Error) else UnsupportedError(reason(error), where=name)
                if self.options.full:
                    raise problem from error
                self.failures.update(dict.fromkeys(cut.nodes, problem))
                what = f"{name} could not be compiled and runs in PyTorch: {problem.headline()}"
                warnings.warn(what, RuntimeWarning, stacklevel=2)
                return None
        return result

    def part(self, cut: Cut, name: str) -> Part:
        options = self.options
        threads = check_threads(flags.THREADS() if options.threads is None else options.threads)
        imported = PartImporter(self.gm, name).run(cut.nodes, cut.inputs, cut.weights, cut.outputs)
        target = replace(Target.host(), threads=threads)
        settings = Options(options.precision, options.fast)
        program = compile_graph(
            imported.graph, imported.weights, target, PassLog(f"torch.compile {name}"), settings, imported.interface
        )
        program = replace(program, weights=_constants(program))
        return Part(name, cut, program, Eager(self.gm, cut), threads, options.freeze)


def _constants(program: Program) -> Mapping[str, Any]:
    fixed = {p.name for p in program.manifest.params if p.fixed}
    return {name: array for name, array in program.weights.items() if name in fixed}


@dataclass(frozen=True)
class Eager:
    """A part of a graph that PyTorch runs, as a callable of the part's inputs and weights."""

    gm: GraphModule
    cut: Cut

    def __call__(self, *tensors: Any) -> Any:
        values: dict[Any, int] = {}
        for port, tensor in zip(self.cut.inputs, tensors, strict=False):
            values.update(zip(map(expression, port.node.meta["val"].shape), tensor.shape, strict=True))
        return self.function(*tensors, *(_number(node, values) for node in sizes_read(self.cut.nodes)))

    @cached_property
    def function(self) -> Callable[..., Any]:
        graph = torch.fx.Graph()
        producers: dict[Node, Node] = {}
        for node in (*(p.node for p in (*self.cut.inputs, *self.cut.weights)), *sizes_read(self.cut.nodes)):
            producers[node] = graph.placeholder(node.name)
        for port in self.cut.inputs:
            if not port.in_order:  # it comes with its dimensions as they lie in memory
                inverse = sorted(range(len(port.order)), key=port.order.__getitem__)
                producers[port.node] = graph.call_function(
                    torch.ops.aten.permute.default, (producers[port.node], inverse)
                )
        for node in self.cut.nodes:
            producers[node] = graph.node_copy(node, producers.__getitem__)
        results = tuple(producers[p.node] for p in self.cut.outputs)
        graph.output(results if len(results) != 1 else results[0])
        function: Callable[..., Any] = GraphModule(self.gm, graph).forward
        return function


def _number(node: Node, values: Mapping[Any, int]) -> Any:
    """The number that a node computes from sizes, where `values` has the symbols' values."""
    held = node.meta["val"]
    if isinstance(held, torch.SymBool):
        return bool(held.node.expr.subs(values))
    return int(held.node.expr.subs(values)) if isinstance(held, torch.SymInt) else held


def refusal(label: str, refused: Mapping[Node, Error]) -> Error:
    """One error that combines those of all nodes in `refused`."""
    problems = list(refused.values())
    return UnsupportedError.combined(problems, f"{len(problems)} operators are not compiled", where=label)
