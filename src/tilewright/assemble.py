"""Assembles compiled kernels to a program: memory slots, the native entry, the manifest, texts to be shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tilewright.codegen.external import shared_texts
from tilewright.codegen.llvm.entry import emit_entry
from tilewright.ir.dim import MAX_DIM
from tilewright.ir.expr import Expr, Var, as_int, equal
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.interface import Interface
from tilewright.ir.rewrite import fresh_name, substitute, variables
from tilewright.kernels import KernelCompiler, KernelTexts
from tilewright.ops.lowered.external_call import compilers_in
from tilewright.plans.framework.decisions import effective_settings, forcing, recorded
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.program import Program
from tilewright.runtime.specs import (
    MAX_TEXT,
    AssumptionSpec,
    InputSpec,
    OutputSpec,
    PackedSpec,
    ParamSpec,
    SymbolSpec,
    TargetSpec,
    Work,
)
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError
from tilewright.support.log import PassLog
from tilewright.targets.host import host_of
from tilewright.targets.target import Target
from tilewright.transform.call import Call, KernelCall
from tilewright.transform.graph.memory import Place, Storage, assign_slots, bounded
from tilewright.transform.graph.options import Options
from tilewright.transform.graph.overlays import with_overlays
from tilewright.transform.graph.split import SplitGraph
from tilewright.transform.work import polynomial

SCHEDULE_VERSION = 1
"""The version of schedules in each artifact; it is increased when stored programs become incompatible."""


@dataclass(frozen=True, slots=True)
class Part:
    """The program `run` or `prepare` after compilation: the calls of its kernels in order, between marks where regions
    begin and end; the places of values without memory of their own; and, for `run`, the nodes that compute parameters
    which only its compilation has added (`transform/graph/constant_operands.py`)."""

    graph: Graph
    calls: tuple[Call, ...]
    places: Mapping[Value, Place]
    created: tuple[Node, ...] = ()

    @property
    def kernels(self) -> tuple[KernelCall, ...]:
        """The first call of each distinct kernel."""
        first: dict[str, KernelCall] = {}
        for call in self.calls:
            if isinstance(call, KernelCall):
                first.setdefault(call.code.symbol, call)
        return tuple(first.values())

    def is_small(self, target: Target) -> bool:
        """Whether all calls together are estimated to take so little time, for any symbols, that several threads would
        be slower: two threads save half of it at most, and handing work over costs more."""
        kernels = [call for call in self.calls if isinstance(call, KernelCall)]
        if len(kernels) < len(self.calls) or any(call.func.symbols for call in kernels):
            return False
        return sum(call.code.cycles for call in kernels) < HANDOVERS * target.handover


HANDOVERS = 2.0
"""Programs estimated to take less than this many times the cost of handing a call to other threads run on their
caller's thread alone."""


def assemble(
    split: SplitGraph,
    run: Part,
    prepare: Part,
    names: Interface,
    fixed: frozenset[str],
    structure: str,
    compiler: KernelCompiler,
    log: PassLog,
    options: Options,
) -> Program:
    """Assemble the program of the parts `run`, which each call executes, and `prepare`, which packs weights: assign
    slots, compile the native entry, make the manifest. `names` are the program's inputs, outputs and weights as its
    user knows them, `fixed` the weights that are constants, and `structure` the key of the model's graph."""
    graph, raw, target = split.run, split.prepare.params, compiler.target
    computed = _computed_sizes(graph)
    caches = _caches(names)
    symbols = (*graph.symbols, *computed.values())
    assumptions = _assumptions(graph, computed)
    leading = [*graph.inputs, *graph.outputs, *graph.params]
    run_storage = stored(graph, run.calls, run.places, symbols, outputs_are_hosts(names, options.memory))
    prepare_storage = assign_slots(prepare.calls, [*raw, *graph.params], prepare.places, ())
    control = len(leading) + len(run_storage.temps)
    bounds = run_storage.bounds
    shapes = [*run_storage.sizes, *(bounded(d, bounds) for v in graph.outputs for d in v.shape)]
    conditions = [condition for condition, _ in assumptions]
    steps = run_storage.steps, prepare_storage.steps
    emit = partial(emit_entry, flushes=options.flush_denormals)
    entry = compiler.entry(log.run("entry", emit, *steps, symbols, shapes, host_of(target), control, conditions))
    with log.timed("objects"):
        objects = {"entry": entry()}
        objects.update((call.code.symbol, call.code.object) for part in (run, prepare) for call in part.kernels)
        shared = (t for part in (run, prepare) for call in part.kernels for t in shared_texts(call.func.body))
        objects.update((f"shared{k}", compiler.entry(t)()) for k, t in enumerate(dict.fromkeys(shared)))
    manifest = Manifest(
        name=graph.name,
        target=TargetSpec(target.triple, target.cpu, tuple(target.features)),
        symbols=tuple(
            SymbolSpec(s.name, s.lo or 0, MAX_DIM if s.hi is None else s.hi, s.multiple, s.likely) for s in symbols
        ),
        inputs=tuple(
            InputSpec(name, v.dtype.name, _dims(v, computed), name in caches)
            for name, v in zip(names.inputs, graph.inputs, strict=True)
        ),
        outputs=tuple(
            OutputSpec(name, v.dtype.name, _dims(v), _real(v, bounds))
            for name, v in zip(names.outputs, graph.outputs, strict=True)
        ),
        params=tuple(ParamSpec(v.name, v.dtype.name, _numbers(v), v.name in fixed) for v in raw),
        packed=tuple(_packed(v, set(raw), prepare.places) for v in graph.params),
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
        folded=names.folded,
        patterns=names.patterns,
        extents=names.extents,
        rooms=names.rooms,
        records=recorded(),
        alone=run.is_small(target),
        state=names.state,
        ragged=names.ragged,
        assumptions=tuple(spec for _, spec in assumptions),
        compilers=compilers_in((*split.prepare.nodes, *graph.nodes)),
    )
    texts = _texts(split, run, prepare, target) | {"sizes": partial(_sizes_text, shapes, symbols)}
    return Program(manifest, objects, {}, texts)


def _caches(names: Interface) -> set[str]:
    return set(names.state.memory) if names.state else set()


def outputs_are_hosts(names: Interface, budget: str | int | None) -> bool:
    """Whether values may stand in the memory of outputs before these are written: where the user bounds memory
    (`budget` is not None), and no call has an output in an input's memory."""
    return budget is not None and not _caches(names)


def stored(
    graph: Graph, calls: Sequence[Call], places: Mapping[Value, Place], symbols: Sequence[Var], hosts: bool
) -> Storage:
    """The slots of a program's values, which are at `places` and whose sizes depend on `symbols`. Some values share
    memory that is not written yet; with `hosts`, they also use the memory of outputs."""
    leading = [*graph.inputs, *graph.outputs, *graph.params]
    storage = assign_slots(calls, leading, places, symbols)
    first = len(graph.inputs)
    outputs = range(first, first + len(graph.outputs)) if hosts else range(0)
    where = with_overlays(calls, len(leading), places, storage, outputs)
    return storage if where is places else assign_slots(calls, leading, where, symbols)


def _computed_sizes(graph: Graph) -> dict[Expr, Var]:
    """A new symbol for each size of an input that is an expression of symbols, since calls bind single symbols only;
    its name is the expression's text. New symbols come after the graph's, so that the code of kernels does not read
    them."""
    result: dict[Expr, Var] = {}
    used_names = {s.name for s in graph.symbols}
    for d in (d for v in graph.inputs for d in v.shape if as_int(d) is None and not isinstance(d, Var)):
        if d not in result:
            result[d] = Var(fresh_name(str(d), used_names), lo=0)
    return result


def _assumptions(graph: Graph, computed: Mapping[Expr, Var]) -> list[tuple[Expr, AssumptionSpec]]:
    """The checks that a call makes of its sizes besides ranges: the graph's assumptions, and that computed sizes of
    inputs are what they are computed to be. Conditions, and what the manifest says of them."""
    results = [(a.condition, str(a.condition), a.reason) for a in graph.assumptions]
    for size, symbol in computed.items():
        name = next(v.name for v in graph.inputs if size in v.shape)
        results.append((equal(symbol, size), f"the size {size} of input {name!r}", ""))
    return [
        (condition, AssumptionSpec(text[:MAX_TEXT], reason[:MAX_TEXT], tuple(v.name for v in variables(condition))))
        for condition, text, reason in results
    ]


def _packed(value: Value, raw: set[Value], where: Mapping[Value, Place]) -> PackedSpec:
    root = value
    while root in where:
        root = where[root].base
    size = as_int(value.type.size)
    assert size is not None, f"parameter {value.name} has a symbolic shape"
    return PackedSpec(value.name, size * value.dtype.itemsize, root.name if root in raw else None)


def _real(value: Value, bounds: Mapping[Var, Expr]) -> tuple[Work, ...] | None:
    """The dimensions of the output `value`, as polynomials, if data decides its shape, which holds if a symbol in it is
    one of `bounds`; None for other outputs. Raises UnsupportedError if a dimension is no polynomial."""
    if not any(symbol in bounds for d in value.shape for symbol in variables(d)):
        return None
    results = [polynomial(d) for d in value.shape]
    if None in results:
        raise UnsupportedError("an output with such a shape is not supported", where=value.name, got=value.type)
    return tuple(work for work in results if work is not None)


def _dims(value: Value, computed: Mapping[Expr, Var] | None = None) -> tuple[int | str, ...]:
    """Dimensions as a manifest has them: numbers, names of symbols (those of `computed` sizes too), or texts."""
    return tuple(_dim((computed or {}).get(d, d)) for d in value.shape)


def _dim(d: Expr) -> int | str:
    number = as_int(d)
    return number if number is not None else d.name if isinstance(d, Var) else str(d)


def _numbers(value: Value) -> tuple[int, ...]:
    return tuple(d for d in _dims(value) if isinstance(d, int))


def _sizes_text(shapes: Sequence[Expr], symbols: Sequence[Var]) -> str:
    """The text of `tw_shapes`, a line each, over symbols called s0, s1, ...: for those who plan memory ahead."""
    canonical = {s: s.renamed(f"s{k}") for k, s in enumerate(symbols)}
    return "\n".join(str(substitute(e, canonical)) for e in shapes)


def _texts(split: SplitGraph, run: Part, prepare: Part, target: Target) -> dict[str, Callable[[], str]]:
    """The texts of `Model.show` by name, each a function that creates it on request, for the kernels of `run` and
    `prepare`."""
    kernels = [call for part in (run, prepare) for call in part.kernels]

    settings = effective_settings()

    def each(text: Callable[[KernelTexts], str]) -> Callable[[], str]:
        def make() -> str:
            with forcing(settings):  # they may be asked for where nothing is forced or known any more
                return "\n\n".join(
                    f"// {k.label}\n{text(KernelTexts(k.func, k.on(target), k.prefetch))}" for k in kernels
                )

        return make

    return {
        "graph": lambda: f"{split.prepare}\n\n{split.run}",
        "loops": each(lambda t: t.loops()),
        "schedule": each(lambda t: t.schedule()),
        "llvm": each(lambda t: t.llvm()),
        "asm": each(lambda t: t.asm()),
    }
