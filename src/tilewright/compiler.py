"""The compiler: the order of all passes, except those of `transform/passes/`, which state their own places.

model --import--> Graph --graph_passes--> Graph --split prepare--> prepare + run --PREPARE_PASSES, RUN_PASSES-->
      --fuse--> groups --lower--> PrimFunc --plan--> scheduled --loop_passes--> flat loops --emit--> LLVM text
      --> objects --assemble--> Program

Passes are driven by `transform/driver.py`, which times, verifies and shows them. `pass_names` lists all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tilewright import arith
from tilewright.assemble import Part, assemble, outputs_are_hosts, stored
from tilewright.compile_options import CompileOptions
from tilewright.frontend.read import import_model, is_onnx_file
from tilewright.ir import interning
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Node, Value
from tilewright.ir.interface import AS_GRAPH, Imported, Interface
from tilewright.ir.key import key
from tilewright.ir.rewrite import variables
from tilewright.kernel_calls import compile_part
from tilewright.kernels import KernelCompiler
from tilewright.ops.extent import HeadAttrs
from tilewright.ops.registry import emit1
from tilewright.ops.rooms import rooms
from tilewright.plans.framework.cost import level, weights_level
from tilewright.plans.framework.decisions import (
    Context,
    advised,
    current,
    forced_settings,
    forcing,
    listed,
    selected_of,
)
from tilewright.programs import ProgramCache, Source
from tilewright.records import collecting
from tilewright.records.lookup import check_recorded, lookup
from tilewright.records.places import Records, stores
from tilewright.runtime.arena import plan, temp_intervals
from tilewright.runtime.native import compile_support
from tilewright.runtime.program import Program
from tilewright.runtime.recorded import RecordUse, summary
from tilewright.runtime.specs import IMPOSSIBLE, MAX_TEXT, RoomSpec, divided
from tilewright.support.background import Background
from tilewright.support.collection import uncollected
from tilewright.support.errors import ModelError, UnsupportedError
from tilewright.support.log import PassLog
from tilewright.targets.host import measure_outer_levels
from tilewright.targets.target import Target
from tilewright.targets.vta.family import NAME as VTA
from tilewright.transform.call import Call
from tilewright.transform.driver import GRAPHS_SHOWN, check_names, run_passes
from tilewright.transform.graph.activations import recognise_activations
from tilewright.transform.graph.assume import fold_assumptions
from tilewright.transform.graph.attention import recognise_attention
from tilewright.transform.graph.batch_first import batch_first
from tilewright.transform.graph.canonical import canonicalise
from tilewright.transform.graph.constant_operands import hoist_constants
from tilewright.transform.graph.extra import extended, placed
from tilewright.transform.graph.feature_maps import keep_maps
from tilewright.transform.graph.float16 import widen_float16
from tilewright.transform.graph.materialize import materialize_outputs
from tilewright.transform.graph.memory import Place, touched
from tilewright.transform.graph.norms import keep_reduced, recognise_norms
from tilewright.transform.graph.options import DEFAULTS, Options
from tilewright.transform.graph.projected import attend_to_sources
from tilewright.transform.graph.quantised import multiply_quantised
from tilewright.transform.graph.ragged import check_ragged, with_ragged
from tilewright.transform.graph.recurrences import recognise_recurrences
from tilewright.transform.graph.requantised import move_quantised
from tilewright.transform.graph.rows import compute_read_rows
from tilewright.transform.graph.scales import fold_scales
from tilewright.transform.graph.softmax import recognise_softmax
from tilewright.transform.graph.split import SplitGraph, split_prepare
from tilewright.transform.graph.state import check_state, with_state
from tilewright.transform.graph.stored_16_bits import store_in_16_bits
from tilewright.transform.graph.sum_first import sum_rows_first
from tilewright.transform.graph.unit import simplify_units
from tilewright.transform.graph.verify import graph_stage
from tilewright.transform.graph.views import place_views
from tilewright.transform.layout.assign import assign_layouts, in_blocks
from tilewright.transform.loops import passes as loop_passes
from tilewright.transform.loops.prefetch_share import WeightPrefetch
from tilewright.transform.regions.captures import lift_constants, names_of
from tilewright.transform.regions.optimise import optimise_bodies
from tilewright.transform.remember import remembering
from tilewright.transform.select.choose import choose_algorithms

if TYPE_CHECKING:
    from tilewright.model_files import ModelFile

Array = np.ndarray[Any, Any]
Weights = Mapping[str, Array]


@uncollected
def compile_program(model: Any, example: Any = None, options: CompileOptions | None = None, **keywords: Any) -> Program:
    """Compile a model for any target and load nothing: `Program.save` writes the file that a machine of that kind
    loads. `model` and `example` are those of `tw.compile` (parts/entry.py), `keywords` are fields of `CompileOptions`,
    given in its place.

    Raises ModelError (or a subclass) listing everything that is wrong with the model.
    """
    options = CompileOptions(**keywords) if options is None else replace(options, **keywords)
    target, choices = options.machine, options.passes
    log = PassLog(f"compile {_called(model)}")
    with Background() as background:
        background.submit(compile_support)  # what the runtime links at the end
        if options.target is None:
            measure_outer_levels()
        file = _file(model, example, options, log)
        known = None if file is None else _known(file, options)
        if known is not None:
            return known
        read = log.run("import", import_model, model, options.dims, example, options.dynamic, options.params)
        read = replace(read, graph=fold_assumptions(read.graph))
        if target.accelerator:
            read = log.run("fix scales", _with_fixed_scales, read)
        if options.state is not None:
            check_state(options.state)
            read = log.run("keep state", _stateful, read, options.state, options.cache == "int8")
        if options.ragged is not None:
            check_ragged(options.ragged)
            read = log.run("pack rows", _ragged, read, options.ragged)
        graph = read.graph if options.name is None else replace(read.graph, name=options.name)
        required = options.require_records
        program = compile_graph(
            graph, read.weights, target, log, choices, read.interface, options.records, require_records=required
        )
        if file is not None and file.wants(read.data, len(graph.nodes)):
            file.put(read.data, _source(graph, read.weights, read.interface).workload(), program.weights)
    return replace(program, private=read.private)


def _file(model: Any, example: Any, options: CompileOptions, log: PassLog) -> ModelFile | None:
    """The model's file, if the import depends on the file and stated sizes only, and not on an `example` or other
    options, so that a stored result may replace it; else None."""
    watched = log.level or log.wants_all or options.require_records or collecting.active() is not None
    others = (example, options.params, options.state, options.ragged)
    if watched or options.machine.accelerator or any(x is not None for x in others) or not is_onnx_file(model):
        return None
    from tilewright.model_files import ModelFile  # imports onnx

    return ModelFile.of(Path(model).absolute(), options.dims, options.name)


def _known(file: ModelFile, options: CompileOptions) -> Program | None:
    """The program of a file that was compiled before, found in the cache without importing the file; else None."""
    known, target, choices = file.known(), options.machine, options.passes
    if known is None:
        return None

    def source() -> Source:
        read = import_model(known.model(), options.dims)
        graph = read.graph if options.name is None else replace(read.graph, name=options.name)
        return _source(fold_assumptions(graph), read.weights, read.interface)

    with advised(lookup(stores(options.records), target), False):
        program = ProgramCache(known.workload, target, choices).get(_rebuilt(source, target, choices))
    if program is None or any(p.name not in known.weights for p in program.manifest.params):
        return None
    return replace(_with_weights(program, known.weights, source), private=True)


def _with_fixed_scales(read: Imported) -> Imported:
    """The model with quantisation scales as constants, since an accelerator's programs depend on them."""
    from tilewright.transform.graph.vta import fixed_scales  # of rooms that few compiles need

    graph, weights = fixed_scales(read.graph, read.weights)
    return replace(read, graph=graph, weights=weights)


def _stateful(read: Imported, pairs: Mapping[str, str] | Literal["auto"], coded: bool) -> Imported:
    """The imported model `read` with its caches, the inputs and outputs in `pairs`, kept by the caller as a state, in
    int8 if `coded`."""
    interface, graph = read.interface, read.graph
    inputs = interface.inputs or tuple(v.name for v in graph.inputs)
    result = with_state(graph, inputs, interface.outputs or tuple(v.name for v in graph.outputs), pairs, coded)
    interface = replace(interface, inputs=result.inputs, outputs=result.outputs, state=result.state)
    return replace(read, graph=result.graph, interface=interface)


def _ragged(read: Imported, dims: tuple[str, str]) -> Imported:
    """The imported model `read` for packed sequences of different lengths; `dims` names the symbols that count the
    sequences and the rows of each."""
    interface = read.interface
    if interface.state is not None:
        raise ModelError("a model that keeps state takes no ragged batches", where=read.graph.name)
    result = with_ragged(read.graph, interface.inputs or tuple(v.name for v in read.graph.inputs), *dims)
    outputs = interface.outputs or tuple(v.name for v in read.graph.outputs)
    return replace(
        read,
        graph=result.graph,
        interface=replace(interface, inputs=result.inputs, outputs=outputs, ragged=result.spec),
    )


def _called(model: Any) -> str:
    """The name of a model in the log: its path, or its kind."""
    is_path = isinstance(model, str | Path) and "\n" not in str(model)
    return str(model) if is_path else type(model).__name__


def graph_passes(target: Target, options: Options = DEFAULTS) -> list[tuple[str, Callable[[Graph], Graph]]]:
    """The passes over the whole graph, in order, with those of `transform/passes/` and those from outside at their
    places: `tilewright opt --list` shows all."""
    passes: list[tuple[str, Callable[[Graph], Graph]]] = [
        ("canonicalise", canonicalise),
        ("move quantised", lambda g: move_quantised(g, target)),
        ("canonicalise", canonicalise),
        ("multiply quantised", lambda g: multiply_quantised(g, target, in_blocks(), options)),
        ("keep reduced dimensions", keep_reduced),
        ("recognise recurrences", recognise_recurrences),
        ("recognise activations", recognise_activations),
        ("recognise softmax", recognise_softmax),
        ("recognise norms", recognise_norms),
        ("simplify units", simplify_units),
        ("keep maps", keep_maps),
        ("recognise attention", partial(recognise_attention, all_floats=target.gpu is not None)),
        ("attend batch first", batch_first),
        ("sum rows first", sum_rows_first),
        ("compute read rows", compute_read_rows),
        ("attend to sources", attend_to_sources),
        ("fold scales", fold_scales),
        ("widen halves", widen_float16),
        ("choose algorithms", lambda g: choose_algorithms(g, target, in_blocks(), options)),
        ("assign layouts", lambda g: assign_layouts(g, target)),
        ("store in 16 bits", lambda g: store_in_16_bits(g, options)),
        ("canonicalise", canonicalise),
        ("materialize outputs", materialize_outputs),
    ]
    passes = placed(passes, target)
    if options.compilers:
        from tilewright.transform.graph.partition import partition  # of rooms that few compiles need

        at = [name for name, _ in passes].index("index rows")
        passes.insert(at, ("partition", lambda g: partition(g, options.compilers)))
    if target.accelerator == VTA:
        from tilewright.transform.graph.vta import offload  # of rooms that few compiles need

        passes.insert(0, ("offload", partial(offload, even=options.fast == "exact")))
    if target.gpu is not None:
        if options.fast == "exact":
            raise UnsupportedError(
                "products of f32 are multiplied as TF32 on a GPU", expected='fast="auto"', got="exact"
            )
        if options.precision != "fp32":
            what = "products on a GPU are computed in the types that a model has"
            raise UnsupportedError(what, expected='precision="fp32"', got=repr(options.precision))
        passes = [(name, function) for name, function in passes if name not in CPU_ALONE]
    if target.isa.compact:
        passes = [(name, function) for name, function in passes if name not in FOR_TIME]
    passes = extended(passes, target)
    return [*passes, ("optimise bodies", lambda g: optimise_bodies(g, partial(_all, passes)))]


CPU_ALONE = frozenset(
    (
        *("multiply quantised", "attend batch first", "attend to sources", "widen halves"),
        "choose algorithms",
    )
)
"""Passes that rewrite graphs for the plans of CPUs only."""

FOR_TIME = frozenset(
    (
        *("recognise attention", "attend batch first", "attend to sources", "fold scales"),
        *("choose algorithms", "assign layouts"),
    )
)
"""Passes that trade memory for time: they make copies of weights in other layouts or scaled, which machines with little
memory cannot hold."""


def _all(passes: Sequence[tuple[str, Callable[[Graph], Graph]]], graph: Graph) -> Graph:
    """`graph` after all of these passes, in order."""
    for _, function in passes:
        graph = function(graph)
    return graph


PREPARE_PASSES: list[tuple[str, Callable[[Graph], Graph]]] = [
    ("materialize outputs", partial(materialize_outputs, share_params=True)),
]
"""The passes over `prepare` after the split."""

RUN_PASSES: list[tuple[str, Callable[[Graph], Graph]]] = [
    ("materialize outputs", materialize_outputs),  # an output may depend on weights alone
    ("place views", place_views),
]
"""The passes over `run` after the split."""


def run_passes_for(target: Target) -> list[tuple[str, Callable[[Graph], Graph]]]:
    """The passes over the graph `run`, which each call executes, for a machine. On a GPU each value has memory of its
    own, at a multiple of what a thread moves at once, so that there are no views inside of others."""
    return RUN_PASSES if target.gpu is None else [(n, f) for n, f in RUN_PASSES if n != "place views"]


def named_passes(target: Target, options: Options = DEFAULTS) -> dict[str, Sequence[tuple[str, Any]]]:
    """All passes that have names, in order, by what they work on: graphs ("graph", "prepare", "run") or "loops"."""
    return {
        "graph": graph_passes(target, options),
        "prepare": PREPARE_PASSES,
        "run": RUN_PASSES,
        "loops": loop_passes(target, WeightPrefetch(1, 1)),
    }


def pass_names(target: Target, options: Options = DEFAULTS) -> dict[str, tuple[str, ...]]:
    """The names of all passes that TILEWRIGHT_DUMP knows, in order, by what they work on."""
    return {stage: tuple(name for name, _ in passes) for stage, passes in named_passes(target, options).items()}


@uncollected
def compile_graph(
    graph: Graph,
    weights: Weights,
    target: Target,
    log: PassLog | None = None,
    options: Options = DEFAULTS,
    interface: Interface = AS_GRAPH,
    records: Records = "auto",
    *,
    require_records: bool = False,
) -> Program:
    """Compile a graph and its weights to a program that the runtime can run, following tuning records where there are
    any.

    Raises RecordError if `require_records` and something was decided by an estimate.
    """
    log = log or PassLog()
    source = _source(graph, weights, interface)
    with advised(lookup(stores(records), target), require_records) as context:
        program = _compile(source, target, log, options)
        arith.release()  # of thousands of expressions, which collections of garbage would walk over
        interning.release()
        if require_records and context is not None:
            check_recorded(context.decisions, target)
    if program.manifest.records:
        log.remark(f"records: {summary(program.manifest.records)}")
    return program


def passed(graph: Graph, target: Target, options: Options = DEFAULTS, records: Records = "auto") -> Graph:
    """The graph after all whole-graph passes. Subgraphs that are compiled separately are cut from the result, so that
    they agree on the layouts of the tensors that they exchange."""
    with advised(lookup(stores(records), target), False):
        return run_passes(graph, graph_passes(target, options), graph_stage(), PassLog(f"passes {graph.name}"))


def _source(graph: Graph, weights: Weights, interface: Interface) -> Source:
    """The graph and weights in the form that is compiled: assumptions are folded, large constants become parameters,
    and sizes that data decides become outputs."""
    model = graph = fold_assumptions(graph, _named(interface))
    others = (*interface.ignored, *(name for pair in (*interface.tied, *interface.folded) for name in pair[:1]))
    graph, constants = hoist_constants(lift_constants(graph), others)
    seen = tuple(v.name for v in graph.outputs)
    graph, extents = with_extents(graph)
    names = replace(
        interface,
        inputs=interface.inputs or tuple(v.name for v in graph.inputs),
        # Passes may give other values in the outputs' place.
        outputs=(*(interface.outputs or seen), *(v.name for v in graph.outputs[len(seen) :])),
        extents=extents,
        rooms=_rooms(graph, interface.inputs),
    )
    fixed = frozenset(constants) | interface.fixed
    return Source(model, graph, key(graph), names, fixed, {**weights, **constants})


def _compile(source: Source, target: Target, log: PassLog, options: Options) -> Program:
    """The program of `source`: from the cache if it was compiled before, else compiled now."""
    if log.dumps:
        check_names(log, [name for names in pass_names(target, options).values() for name in names])
    retained = ProgramCache(source.workload(), target, options)
    # Who wants to see the stages gets them.
    with _collected(source.structure, target) as context:
        program = None
        if log.level < GRAPHS_SHOWN and not log.wants_all:
            program = retained.get(_rebuilt(lambda: source, target, options))
        if program is None:
            program = _build(source, target, log, options)
            retained.put(program)
        if context is not None:
            collecting.note(source.structure, target, context, program)
    return _with_weights(program, source.weights, lambda: source)


def _rebuilt(
    source: Callable[[], Source], target: Target, options: Options
) -> Callable[[Iterable[RecordUse]], Program]:
    """A function that compiles `source` again with the decisions of these tuning records, to produce texts that were
    not stored."""
    settings = forced_settings()

    def rebuilt(known: Iterable[RecordUse]) -> Program:
        with forcing(settings | selected_of(known)):  # texts may be asked for where nothing is forced or known any more
            return _build(source(), target, PassLog(), options)

    return rebuilt


def _with_weights(program: Program, weights: Weights, source: Callable[[], Source]) -> Program:
    """`program` with the weights that it needs, and with texts for other compilers, which are generated when they are
    requested."""
    exported = {name: partial(_exported, name, source) for name in ("stablehlo", "linalg")}
    texts = {**program.texts, **exported}
    return replace(program, texts=texts, weights={p.name: weights[p.name] for p in program.manifest.params})


def _collected(structure: str, target: Target) -> AbstractContextManager[Context | None]:
    """A context in which decisions are listed, if a collector wants those of this program and lacks them; else one that
    does nothing."""
    collector, outer = collecting.active(), current()
    if collector is None or (outer is not None and (outer.forced or outer.listing)):  # a tuner's candidates
        return nullcontext()
    name = collecting.name_of(structure, target)
    collector.compiled(name)
    return nullcontext() if collector.knows(name) else listed()


def _build(source: Source, target: Target, log: PassLog, options: Options) -> Program:
    """The program of `source`, compiled now, without weights."""
    stage = graph_stage()
    names = source.names
    graph = run_passes(source.graph, graph_passes(target, options), stage, log)
    split = log.run("split prepare", split_prepare, graph)
    prepare = run_passes(split.prepare, PREPARE_PASSES, stage, log, "prepare")
    run = _with_params(split.run, split.prepare.outputs, prepare.outputs)
    split = SplitGraph(prepare, run_passes(run, run_passes_for(target), stage, log, "run"))
    away = weights_level(sum(v.known_bytes for v in split.run.params), target)
    with Background() as background, remembering():
        compiler = KernelCompiler(target, background, log=log)
        with log.timed("kernels"):
            # What computes values again has the calls in one order.
            forks = options.memory in (None, "auto")
            deferred = _read_deferred(split.run, target)
            used_names = names_of(split.run) | names_of(split.prepare)
            run_part = compile_part(
                split.run, "run", compiler, log, deferred, away=away, forks=forks, used_names=used_names
            )
            if target.threads > 1 and run_part.is_small(target):
                log.remark("too little for several threads: compiled for one")
                return _build(source, replace(target, threads=1), log, options)
            if options.memory is not None:
                calls, where = log.run("recompute", _recomputed, run_part, names, target, options.memory)
                run_part = replace(run_part, calls=calls, places=where)
            split = SplitGraph(_with_created(split.prepare, run_part.created), run_part.graph)
            past = _past_caches(split, target)
            prepare_part = compile_part(split.prepare, "prepare", compiler, log, past, used_names=used_names)
        program = assemble(split, run_part, prepare_part, names, source.fixed, source.structure, compiler, log, options)
    log.dump(1, "times", log.summary)
    return program


def _recomputed(
    part: Part, names: Interface, target: Target, budget: str | int
) -> tuple[tuple[Call, ...], Mapping[Value, Place]]:
    """(calls, places of values) of a program, with some values computed again later, so that memory stays within
    `budget`."""
    from tilewright.transform.recompute import recompute  # which few compiles need

    graph = part.graph
    leading = [*graph.inputs, *graph.outputs, *graph.params]
    hosts = outputs_are_hosts(names, budget)

    def held(calls: Sequence[Call], where: Mapping[Value, Place]) -> int:
        storage = stored(graph, calls, where, graph.symbols, hosts)
        sizes = [as_int(size) or 0 for size in storage.sizes]
        return plan(temp_intervals(storage.temps, sizes, target.threads)).arena

    outputs = graph.outputs if hosts else ()
    return recompute(part.calls, leading, part.places, budget, target.threads, outputs, held)


def with_extents(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph with one output more for each symbol that data decides and that is in its outputs' shapes, or the
    number of rows of a room, and their names."""
    used = {s for v in graph.outputs for d in v.shape for s in variables(d)} | rooms(graph).keys()
    results = [n for n in graph.nodes if n.defines in used]
    builder = GraphBuilder(graph.name, reserved=names_of(graph), nodes=list(graph.nodes))
    values = [emit1(builder, "identity", n.inputs[1], name=f"{n.defines}.extent") for n in results]
    if values:
        graph = replace(graph, nodes=tuple(builder.nodes), outputs=(*graph.outputs, *values))
    return graph, tuple(n.defines.name for n in results if n.defines is not None)


def _named(interface: Interface) -> set[str]:
    """The names of symbols to which `interface` refers."""
    ragged, state = interface.ragged, interface.state
    rows = () if state is None else (name for _, names in state.rows for name in names)
    return {divided(name)[0] for name in (*rows, *(() if ragged is None else (ragged.rows,)))}


def _rooms(graph: Graph, inputs: Sequence[str]) -> tuple[RoomSpec, ...]:
    """The inputs that are rooms, by the names that the interface has for inputs."""
    names = dict(zip(graph.inputs, inputs or (v.name for v in graph.inputs), strict=True))
    said = {n.defines: n.of(HeadAttrs).reason for n in graph.nodes if n.op == "head"}
    return tuple(
        RoomSpec(names[v], symbol.name, said[symbol][:MAX_TEXT] or IMPOSSIBLE) for symbol, v in rooms(graph).items()
    )


def _past_caches(split: SplitGraph, target: Target) -> int | None:
    """The size in bytes from which on packed weights are written with stores that bypass the caches: a store keeps
    several versions of them, so that the memory to be written is not cached, and writing it would evict useful data."""
    packed = sum(v.known_bytes for v in split.prepare.outputs)
    return 0 if packed >= target.l3 // PAST_CACHES else None


PAST_CACHES = 2
"""Packed weights larger than the last cache divided by this number are written past it."""


def _read_deferred(run: Graph, target: Target) -> int | None:
    """The size in bytes from which on results of `run` are written with stores that bypass the caches, if the program
    touches more than these hold, so that the next call would not find them there. None: never."""
    return target.l2 if level(touched(run), target) == "memory" else None


def _exported(dialect: str, source: Callable[[], Source]) -> str:
    """The text of the graph of `source` in the dialect "linalg" or "stablehlo", made by a package that few compiles
    import."""
    from tilewright.codegen.linalg import linalg_text
    from tilewright.codegen.stablehlo import stablehlo_text

    text = linalg_text if dialect == "linalg" else stablehlo_text
    return text(source().model)


def _with_created(prepare: Graph, created: tuple[Node, ...]) -> Graph:
    """The `prepare` graph extended by the nodes `created`, whose results are outputs."""
    outputs = tuple(n.output for n in created if n.op != "constant")
    return replace(prepare, nodes=(*prepare.nodes, *created), outputs=(*prepare.outputs, *outputs))


def _with_params(run: Graph, old: Sequence[Value], new: Sequence[Value]) -> Graph:
    """The `run` graph, which reads the parameters `new` in place of `old`."""
    renamed = {a: b for a, b in zip(old, new, strict=True) if a != b}
    if not renamed:
        return run
    nodes = tuple(
        replace(n, inputs=tuple(None if v is None else renamed.get(v, v) for v in n.inputs)) for n in run.nodes
    )
    params = tuple(renamed.get(v, v) for v in run.params)
    return replace(run, params=params, nodes=nodes, outputs=tuple(renamed.get(v, v) for v in run.outputs))


__all__ = ["compile_graph", "compile_program", "graph_passes", "named_passes", "pass_names"]
