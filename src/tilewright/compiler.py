"""The compiler: every pass by name, in order.

model --import--> Graph --graph passes--> prepare + run --fuse--> groups --lower--> PrimFunc
      --plan--> scheduled --lower_loops--> flat loops --emit--> LLVM --> objects --> Program --> Model
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.codegen.llvm.entry import KernelCall, emit_entry
from tilewright.frontend.common.finish import PLAIN, Imported, Interface
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.key import key
from tilewright.ir.verify import verify_graph
from tilewright.kernels import CompiledKernel, KernelCompiler, KernelTexts
from tilewright.plans.framework.decisions import forced_settings, forcing
from tilewright.programs import ProgramCache
from tilewright.runtime.manifest import (
    InputSpec,
    Manifest,
    OutputSpec,
    PackedSpec,
    ParamSpec,
    SymbolSpec,
    TargetSpec,
)
from tilewright.runtime.model import Model
from tilewright.runtime.native import compile_support
from tilewright.runtime.program import Program
from tilewright.runtime.threads import check_threads
from tilewright.support.background import Background
from tilewright.support.errors import ModelError
from tilewright.support.log import PassLog
from tilewright.targets.target import Target
from tilewright.transform.ahead import plan_asking
from tilewright.transform.graph.activations import recognise_activations
from tilewright.transform.graph.attention import recognise_attention
from tilewright.transform.graph.conversions import absorbs
from tilewright.transform.graph.fuse import Group, fuse
from tilewright.transform.graph.memory import Place, Step, Storage, assign_slots, is_alias, overwritable, places
from tilewright.transform.graph.options import DEFAULTS, Options
from tilewright.transform.graph.simplify import (
    eliminate_common,
    eliminate_dead,
    fold_scales,
    materialize_outputs,
    remove_identities,
)
from tilewright.transform.graph.split import SplitGraph, split_prepare
from tilewright.transform.graph.views import join_slices, place_views
from tilewright.transform.layout.assign import assign_layouts
from tilewright.transform.lower import Kernel, lower_group
from tilewright.transform.select.choose import choose_algorithms
from tilewright.transform.work import operations, traffic

SCHEDULE_VERSION = 1
"""Of the artifact: grows when schedules change in a way that a stored program must not be mixed with."""

Array = np.ndarray[Any, Any]
Weights = Mapping[str, Array]
Dynamic = str | Mapping[str, Mapping[int, str]] | None


def compile(
    model: Any,
    example: Any = None,
    *,
    threads: int = 1,
    dims: Mapping[str, int] | None = None,
    dynamic: Dynamic = "auto",
    target: Target | None = None,
    precision: str = "fp32",
    fast: str = "auto",
    name: str | None = None,
    winograd: str | None = None,
) -> Model:
    """Compile a model to native code.

    Args:
        model: path of an ONNX file, an `onnx.ModelProto`, a `torch.nn.Module` (with an `example`), a
            `torch.export.ExportedProgram`, or a `(Graph, weights)` pair.
        example: inputs of a PyTorch module: a tensor, a tuple of arguments, or a dict of keyword arguments; tensors or
            NumPy arrays. Only shapes and types count.
        threads: threads of a call, the caller's included. Estimates are made for as many, so that another number may
            get other code, whose results differ by rounding; a model that was saved runs with any number.
        dims: values for symbolic dimensions that shall be fixed, by name.
        dynamic: which dimensions of a PyTorch module's inputs are symbols: "auto" (the batch, called "batch"), None, or
            `{"input": {axis: "symbol"}}`; see docs/torch.md.
        target: the machine; the host if None.
        precision: the type in which products multiply: "fp32", "bf16", "int8" (see docs/accuracy.md).
        fast: which algorithms with fewer multiplications are allowed (Winograd's, Fourier's, Strassen's; see
            docs/accuracy.md): "auto", "exact" (none), "f2", "f4", "f6"; "strassen": "auto", and fast products of any
            rows, those of different samples too.
        name: what the program is called; the model's own name if None.
        winograd: the old name of `fast`.

    Raises ModelError (or a subclass) listing everything that is wrong with the model.
    """
    target = replace(target or Target.host(), threads=check_threads(threads))
    if winograd is not None:
        warnings.warn("winograd= is called fast= now: it rules all fast algorithms", DeprecationWarning, stacklevel=2)
        fast = winograd
    options = Options(precision, fast)
    log = PassLog(f"compile {model if isinstance(model, str | Path) else type(model).__name__}")
    with Background() as background:
        background.submit(compile_support)  # what the runtime links at the end
        read = log.run("import", import_model, model, dims, example, dynamic)
        graph = read.graph if name is None else replace(read.graph, name=name)
        program = compile_graph(graph, read.weights, target, log, options, read.interface)
    return Model(program, threads=threads)


def import_model(
    model: Any, dims: Mapping[str, int] | None = None, example: Any = None, dynamic: Dynamic = "auto"
) -> Imported:
    """Any model to a graph with its weights by name."""
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], Graph):
        return Imported(model[0], dict(model[1]))
    if isinstance(model, Imported):
        return model
    if isinstance(model, Graph):
        if model.params:
            raise ModelError("a graph with parameters needs their values", expected="(graph, weights)")
        return Imported(model, {})
    if from_torch(model):
        from tilewright.frontend.torch import import_torch

        return import_torch(model, example, dims, dynamic)
    if example is not None:
        raise ModelError("only PyTorch modules need an example of their inputs", got=type(model).__name__)
    from tilewright.frontend.onnx import import_onnx

    return import_onnx(model, dims)


def from_torch(model: Any) -> bool:
    """Whether a model is PyTorch's, told without importing it: who has a module has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module | torch.export.ExportedProgram)


def graph_passes(target: Target, options: Options = DEFAULTS) -> list[tuple[str, Callable[[Graph], Graph]]]:
    """The passes over the whole graph, in order."""
    return [
        ("remove identities", remove_identities),
        ("eliminate common", eliminate_common),
        ("join slices", join_slices),
        ("eliminate dead", eliminate_dead),
        ("recognise activations", recognise_activations),
        ("recognise attention", lambda g: recognise_attention(g, target)),
        ("eliminate dead", eliminate_dead),
        ("fold scales", fold_scales),
        ("choose algorithms", lambda g: choose_algorithms(g, target, options)),
        ("assign layouts", lambda g: assign_layouts(g, target)),
        ("remove identities", remove_identities),
        ("eliminate common", eliminate_common),
        ("eliminate dead", eliminate_dead),
        ("materialize outputs", materialize_outputs),
    ]


def compile_graph(
    graph: Graph,
    weights: Weights,
    target: Target,
    log: PassLog | None = None,
    options: Options = DEFAULTS,
    interface: Interface = PLAIN,
) -> Program:
    """A graph and its weights to a program that the runtime can run."""
    log = log or PassLog()
    graph, constants = hoist_constants(graph)
    structure, fixed = key(graph), frozenset(constants)
    names = Interface(  # passes may give other values in the outputs' place
        interface.inputs or tuple(v.name for v in graph.inputs),
        interface.outputs or tuple(v.name for v in graph.outputs),
        interface.ignored,
        interface.tied,
    )

    def build(log: PassLog) -> Program:
        return _build(graph, structure, names, fixed, target, log, options)

    settings = forced_settings()

    def again() -> Program:
        with forcing(settings):  # texts may be asked for where nothing is forced any more
            return build(PassLog())

    kept = ProgramCache(graph, structure, names, fixed, target, options)
    # Who wants to see the stages gets them.
    program = kept.get(again) if log.level < DUMPS else None
    if program is None:
        program = build(log)
        kept.put(program)
    arrays = {**weights, **constants}
    return replace(program, weights={p.name: arrays[p.name] for p in program.manifest.params})


DUMPS = 2
"""TILEWRIGHT_DEBUG from which stages are printed."""


def _build(
    graph: Graph,
    structure: str,
    names: Interface,
    fixed: frozenset[str],
    target: Target,
    log: PassLog,
    options: Options,
) -> Program:
    """The program of a graph, without weights."""
    for name, function in graph_passes(target, options):
        graph = log.run(name, function, graph)
        verify_graph(graph)
        log.dump(DUMPS, f"graph after {name}", lambda g=graph: str(g))  # type: ignore[misc]
    split = log.run("split prepare", split_prepare, graph)
    prepare = materialize_outputs(split.prepare, share_params=True)
    run = _with_params(split.run, split.prepare.outputs, prepare.outputs)
    run = materialize_outputs(run)  # an output may depend on weights alone
    run = log.run("place views", place_views, run)
    verify_graph(run)
    split = SplitGraph(prepare, run)
    with Background() as background:
        compiler = KernelCompiler(target, background)
        with log.timed("kernels"):
            run_part = _compile_part(split.run, "run", compiler, log)
            prepare_part = _compile_part(split.prepare, "prepare", compiler, log, _past_caches(split, target))
        return _assemble(split, run_part, prepare_part, names, fixed, structure, compiler, log, options)


def hoist_constants(graph: Graph) -> tuple[Graph, dict[str, Array]]:
    """Constants of several elements become parameters with a fixed value; scalars stay in the code."""
    arrays: dict[str, Array] = {}
    nodes: list[Node] = []
    params = list(graph.params)
    for node in graph.nodes:
        if node.op == "constant" and (as_int(node.output.type.size) or 0) > 1:
            value = node.output
            params.append(value)
            arrays[value.name] = node.attr("value").array
        else:
            nodes.append(node)
    return Graph(graph.name, graph.inputs, tuple(params), tuple(nodes), graph.outputs), arrays


@dataclass(frozen=True, slots=True)
class _Part:
    """`run` or `prepare`, compiled: its groups, steps over values, and the distinct kernels."""

    graph: Graph
    groups: tuple[Group, ...]
    steps: tuple[Step, ...]
    kernels: tuple[tuple[Kernel, CompiledKernel], ...]


def _past_caches(split: SplitGraph, target: Target) -> bool:
    """Whether packed weights are written past the caches: a store keeps several versions of them, so that memory to be
    written is in no cache, and what fills a good part of one would drive out what is."""
    packed = sum(v.known_bytes for v in split.prepare.outputs)
    return packed >= target.l3 // PAST_CACHES


PAST_CACHES = 2
"""Packed weights that would fill one such part of the last cache are written past it."""


def _compile_part(graph: Graph, name: str, compiler: KernelCompiler, log: PassLog, past_caches: bool = False) -> _Part:
    inside = partial(absorbs, target=compiler.target)
    groups = log.run(f"fuse {name}", fuse, graph, inside)
    steps: list[Step] = []
    kernels: dict[str, tuple[Kernel, CompiledKernel]] = {}
    outputs = set(graph.outputs)
    lowered = [
        log.run(f"lower {name}", lower_group, group, f"{name}{i}_{group.nodes[-1].op}")
        for i, group in enumerate(groups)
        if not is_alias(group)
    ]
    asks = log.run("ask ahead", plan_asking, lowered, graph.params, compiler.target) if name == "run" else {}
    for i, kernel in enumerate(lowered):
        group = kernel.group
        over = overwritable(group)
        if over:
            func = kernel.func
            kernel = replace(kernel, func=replace(func, attrs=(*func.attrs, ("noalias", False))))
        if past_caches and any(v in outputs for v in group.outputs):
            kernel = replace(kernel, func=replace(kernel.func, attrs=(*kernel.func.attrs, ("past_caches", True))))
        work = (operations(kernel.func), traffic(kernel.func))
        if i in asks:
            weight, ask = asks[i]
            kernel = replace(kernel, args=(*kernel.args, weight), ask=ask)
        done = log.run("kernel", compiler.compile, kernel.func, kernel.ask)
        kernels.setdefault(done.symbol, (kernel, done))
        texts = KernelTexts(kernel.func, compiler.target, kernel.ask)
        for level, stage, text in ((3, "loops", texts.loops), (4, "LLVM IR", texts.llvm), (5, "assembly", texts.asm)):
            log.dump(level, f"{stage} of {kernel.label}", text)
        names = (done.workspaces, done.symbols, kernel.label, over)
        steps.append(Step(done.symbol, group, kernel.args, *names, *work, done.alone))
    return _Part(graph, tuple(groups), tuple(steps), tuple(kernels.values()))


def _with_params(run: Graph, old: Sequence[Value], new: Sequence[Value]) -> Graph:
    """`run` reading `new` parameters where it read `old` ones (copies made so that each has its own memory)."""
    renamed = {a: b for a, b in zip(old, new, strict=True) if a != b}
    if not renamed:
        return run
    nodes = tuple(
        Node(n.op, tuple(None if v is None else renamed.get(v, v) for v in n.inputs), n.outputs, n.attrs)
        for n in run.nodes
    )
    params = tuple(renamed.get(v, v) for v in run.params)
    return Graph(run.name, run.inputs, params, nodes, tuple(renamed.get(v, v) for v in run.outputs))


def _assemble(
    split: SplitGraph,
    run: _Part,
    prepare: _Part,
    names: Interface,
    fixed: frozenset[str],
    structure: str,
    compiler: KernelCompiler,
    log: PassLog,
    options: Options,
) -> Program:
    """Slots, the native entry and the manifest."""
    graph, raw, target = split.run, split.prepare.params, compiler.target
    symbols = graph.symbols
    in_run, in_prepare = places(run.graph.nodes), places(prepare.graph.nodes)
    run_storage = assign_slots(run.steps, [*graph.inputs, *graph.outputs, *graph.params], in_run, symbols)
    prepare_storage = assign_slots(prepare.steps, [*raw, *graph.params], in_prepare, ())
    shapes = [*run_storage.sizes, *(d for v in graph.outputs for d in v.shape)]
    text = log.run("entry", _entry, run_storage, prepare_storage, run, prepare, shapes, symbols, target)
    entry = compiler.entry(text)
    with log.timed("objects"):
        objects = {"entry": entry()}
        objects.update((done.symbol, done.object) for part in (run, prepare) for _, done in part.kernels)
    manifest = Manifest(
        name=graph.name,
        target=TargetSpec(target.triple, target.cpu, tuple(target.features)),
        symbols=tuple(
            SymbolSpec(s.name, s.lo if s.lo is not None else 0, s.hi if s.hi is not None else (1 << 31) - 1, s.multiple)
            for s in symbols
        ),
        inputs=tuple(
            InputSpec(name, v.dtype.name, _dims(v)) for name, v in zip(names.inputs, graph.inputs, strict=True)
        ),
        outputs=tuple(
            OutputSpec(name, v.dtype.name, _dims(v)) for name, v in zip(names.outputs, graph.outputs, strict=True)
        ),
        params=tuple(ParamSpec(v.name, v.dtype.name, _numbers(v), v.name in fixed) for v in raw),
        packed=tuple(_packed(v, set(raw), in_prepare) for v in graph.params),
        run_temps=run_storage.temps,
        run_steps=run_storage.steps,
        prepare_temps=prepare_storage.temps,
        prepare_steps=prepare_storage.steps,
        structure_key=structure,
        schedule_version=SCHEDULE_VERSION,
        precision=options.precision,
        fast=options.fast,
        ignored=names.ignored,
        tied=names.tied,
    )
    return Program(manifest, objects, {}, _texts(split, run, prepare, target))


def _entry(
    run_storage: Storage,
    prepare_storage: Storage,
    run: _Part,
    prepare: _Part,
    shapes: Sequence[Expr],
    symbols: Sequence[Any],
    target: Target,
) -> str:
    """The LLVM text of tw_run, tw_prepare and tw_shapes."""
    run_steps, prepare_steps = (
        [KernelCall(s.kernel, s.slots, s.symbols, s.alone, e) for s, e in zip(part.steps, part.shifts, strict=True)]
        for part in (run_storage, prepare_storage)
    )
    return emit_entry(run_steps, prepare_steps, symbols, shapes, target)


def _packed(value: Value, raw: set[Value], where: Mapping[Value, Place]) -> PackedSpec:
    root = value
    while root in where:
        root = where[root].base
    size = as_int(value.type.size)
    assert size is not None, f"parameter {value.name} has a symbolic shape"
    return PackedSpec(value.name, size * value.dtype.itemsize, root.name if root in raw else None)


def _dims(value: Value) -> tuple[int | str, ...]:
    numbers = (as_int(d) for d in value.shape)
    return tuple(str(d) if n is None else n for n, d in zip(numbers, value.shape, strict=True))


def _numbers(value: Value) -> tuple[int, ...]:
    return tuple(d for d in _dims(value) if isinstance(d, int))


def _texts(split: SplitGraph, run: _Part, prepare: _Part, target: Target) -> dict[str, Callable[[], str]]:
    """What `Model.show` prints, made when asked."""
    kernels = [kernel for part in (run, prepare) for kernel, _ in part.kernels]
    settings = forced_settings()

    def each(text: Callable[[KernelTexts], str]) -> Callable[[], str]:
        def make() -> str:
            with forcing(settings):
                return "\n\n".join(f"// {k.label}\n{text(KernelTexts(k.func, target, k.ask))}" for k in kernels)

        return make

    return {
        "graph": lambda: f"{split.prepare}\n\n{split.run}",
        "loops": each(lambda t: t.loops()),
        "schedule": each(lambda t: t.schedule()),
        "llvm": each(lambda t: t.llvm()),
        "asm": each(lambda t: t.asm()),
    }


__all__ = ["compile", "compile_graph", "graph_passes"]
