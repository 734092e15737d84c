"""The kernels of a graph and the order of their calls: fuse, lower, prefetch across kernels, compile.

graph --fuse--> groups --lower--> PrimFuncs --KernelCompiler--> objects, in order; bodies of loops and branches alike
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from functools import partial

from tilewright.assemble import Part
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.notes import SharedLevel
from tilewright.kernels import KernelCompiler, with_outputs_noted, with_prefetch
from tilewright.support import flags
from tilewright.support.errors import UnsupportedError
from tilewright.support.log import PassLog
from tilewright.support.progress import expect, tell
from tilewright.targets.target import Target
from tilewright.transform.call import Call, KernelCall
from tilewright.transform.driver import VERIFY_STAGES
from tilewright.transform.forks import fork_calls
from tilewright.transform.graph.constant_operands import lift_numbers
from tilewright.transform.graph.conversions import absorbs
from tilewright.transform.graph.fuse import Group, fuse
from tilewright.transform.graph.memory import Place, is_alias, places, written_last
from tilewright.transform.graph.rematerialize import rematerialize_cheap
from tilewright.transform.graph.stored_codes import store_codes
from tilewright.transform.graph.verify import verify_groups
from tilewright.transform.lower import lower_group
from tilewright.transform.nonresident import with_nonresident_weights
from tilewright.transform.passed_sizes import lower_passed, passed_sizes
from tilewright.transform.prefetch_across import plan_prefetch
from tilewright.transform.regions.captures import names_of
from tilewright.transform.regions.flatten import Flat, flatten, marker


def compile_part(
    graph: Graph,
    name: str,
    compiler: KernelCompiler,
    log: PassLog,
    past_caches: int | None = None,
    *,
    away: SharedLevel | None = None,
    forks: bool = False,
    used_names: Set[str] | None = None,
) -> Part:
    """The kernels of a graph and the order of their calls.

    Args:
        past_caches: the size in bytes from which on outputs are written past the caches; None: none are.
        away: the memory level from which each call reads the weights; None: as their size implies.
        forks: threads may make different calls at the same time.
        used_names: names that are taken already; None: the graph is a body, whose kernels share no numbers.
    """
    inside = partial(absorbs, target=compiler.target, away=away)
    graph, groups, where, created = _grouped(graph, name, compiler.target, inside, log, used_names)
    deferred = frozenset[Value]() if past_caches is None else written_last(groups, graph.outputs, where, past_caches)
    passed = passed_sizes(groups, compiler.target) if name == "prepare" and compiler.target.gpu is None else {}
    lowered = [
        group
        if group.nodes[-1].bodies or marker(group.nodes[-1]) is not None
        else log.run(f"lower {name}", lower_passed, group, passed.get(i), f"{name}{i}_{group.nodes[-1].label}")
        for i, group in enumerate(groups)
        if not is_alias(group) or marker(group.nodes[-1]) is not None
    ]
    weights = frozenset(graph.params)
    if forks and compiler.target.threads > 1:
        seen = partial(with_nonresident_weights, weights=weights, away=away, target=compiler.target)
        lowered = log.run("fork", fork_calls, lowered, where, compiler.target, seen)
    kernels = [step for step in lowered if isinstance(step, KernelCall)]
    prefetches = (
        log.run("plan prefetch", plan_prefetch, kernels, graph.params, compiler.target)
        if name == "run" and compiler.target.gpu is None
        else {}
    )
    expect(len(kernels))

    def noted(kernel: KernelCall) -> KernelCall:
        """`kernel`, with notes about outputs that may overwrite inputs, and about caches that its weights and results
        do not fit; unchanged on a GPU."""
        if compiler.target.gpu is not None:
            return kernel
        return with_nonresident_weights(with_outputs_noted(kernel, deferred), weights, away, compiler.target)

    ready = {id(kernel): with_prefetch(noted(kernel), prefetches.get(k)) for k, kernel in enumerate(kernels)}
    asked = {k: compiler.asked_by(call) for k, call in ready.items()}
    with log.timed("kernels together"):
        compiler.compile_together(asked.values())
    calls: list[Call] = []
    for step in lowered:
        if isinstance(step, Group) and compiler.target.gpu is not None:
            what = "loops, branches and sizes that data decides are not supported on a GPU"
            raise UnsupportedError(what, where=step.label)
        if isinstance(step, Group) and (mark := marker(step.nodes[-1])) is not None:
            calls.append(mark)
            continue
        if isinstance(step, Group):
            flat = _region(step.nodes[-1], graph, f"{name}{len(calls)}_", compiler, log)
            calls += flat.calls
            where |= flat.places
            continue
        calls.append(compiler.compiled(ready[id(step)], asked[id(step)]))
        tell(step.label)
    return Part(graph, tuple(calls), where, created)


def _grouped(
    graph: Graph, name: str, target: Target, inside: Callable[..., bool], log: PassLog, names: Set[str] | None
) -> tuple[Graph, list[Group], dict[Value, Place], tuple[Node, ...]]:
    """Divide the nodes of `graph` into groups, each of which becomes a kernel. Returns (the graph with new parameters,
    the groups, the places of views, the nodes that compute the new parameters). With `names`, the names in use, groups
    that only differ in constants share a kernel, which reads these from the new parameters; None: constants stay in the
    kernels."""
    groups = log.run(f"fuse {name}", fuse, graph, inside)
    groups = log.run(f"store codes {name}", store_codes, groups, target, frozenset(graph.outputs))
    groups = log.run(f"rematerialize {name}", rematerialize_cheap, groups, frozenset(graph.outputs))
    if flags.VERIFY() >= VERIFY_STAGES:
        verify_groups(graph, groups)
    where = dict(places(graph.nodes))
    if names is None:
        return graph, groups, where, ()
    shared = log.run(f"lift numbers {name}", lift_numbers, groups, names)
    where |= shared.places
    if name == "prepare":
        return graph, [*shared.kernels, *shared.groups], where, ()
    graph = replace(graph, params=(*graph.params, *shared.arrays))
    return graph, list(shared.groups), where, shared.created


def _region(node: Node, graph: Graph, path: str, compiler: KernelCompiler, log: PassLog) -> Flat:
    """The kernel calls of `node`, a loop or branch of `graph`, flattened. Names of its kernels begin with `path`."""
    names = names_of(graph)
    while any(name.startswith(path) for name in names):
        path += "_"

    def copy(source: Value, target: Value) -> KernelCall:
        new_node = Node("identity", (source,), (target,))
        call = lower_group(Group((new_node,), (source,), (target,)), f"{path}copy")
        return compiler.compiled(call, compiler.asked_by(call))

    parts = [compile_part(body, f"{path}{node.label}", compiler, log) for body in node.bodies]
    return flatten(node, [Flat(part.calls, part.places) for part in parts], f"{path}{node.label}.", copy)
