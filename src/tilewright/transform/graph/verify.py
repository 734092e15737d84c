"""Checks of graphs between passes: the rules of the IR, and the types that operators infer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright import ops
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, Node, TensorType
from tilewright.ir.verify import verify_graph
from tilewright.support.errors import Error, Problems, VerifyError
from tilewright.transform.driver import ANNOUNCED, GRAPHS_SHOWN, VERIFY_STAGES, Stage
from tilewright.transform.graph.fuse import Group
from tilewright.transform.graph.views import verify_views


def graph_stage() -> Stage[Graph]:
    """The checks of a compile's graphs: the rules of the IR, the type of each node by its operator's rule, and results
    of the same types as in the first graph. A node that has not changed is checked once."""
    seen: dict[int, Node] = {}  # by identity; kept, so that no other node gets the same one
    results: list[TensorType] | None = None  # of the graph that came in

    def node_problems(node: Node) -> Iterable[str]:
        if id(node) not in seen:
            seen[id(node)] = node
            try:
                ops.check_node(node)
            except Error as error:
                yield str(error)
            except (AttributeError, LookupError, TypeError, ValueError) as error:  # a graph written by hand
                yield f"its type rule takes no such attributes: {type(error).__name__}: {error}"

    def check(graph: Graph) -> None:
        verify_graph(graph, node_problems)
        verify_views(graph)

    def begin(graph: Graph) -> None:
        nonlocal results
        check(graph)
        results = [v.type for v in graph.outputs]

    def each(graph: Graph) -> None:
        check(graph)
        if results is not None:
            verify_results(graph, results)

    return Stage(begin, each, verify_laid_out, VERIFY_STAGES, ANNOUNCED, GRAPHS_SHOWN)


def verify_results(graph: Graph, wanted: Sequence[TensorType]) -> None:
    """Check that a graph's results have the `wanted` types, as far as sizes can be compared. Raises VerifyError."""
    got = [v.type for v in graph.outputs]
    if len(got) != len(wanted) or not all(map(_same_type, got, wanted)):
        raise VerifyError("results are not what they were", expected=_listed(wanted), got=_listed(got))


def _same_type(a: TensorType, b: TensorType) -> bool:
    known = a.dtype == b.dtype and len(a.shape) == len(b.shape)
    return known and all(
        m == n or None in (m, n) for m, n in zip(map(as_int, a.shape), map(as_int, b.shape), strict=True)
    )


def _listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))


def verify_groups(graph: Graph, groups: Sequence[Group]) -> None:
    """Check that each kernel reads only inputs of the graph and results of earlier kernels, and each of its nodes only
    the kernel's inputs and results of earlier nodes. Raises VerifyError."""
    problems = Problems()
    there = {*graph.inputs, *graph.params}
    for i, group in enumerate(groups):
        where, inside = f"kernel {i} ({group.label})", set(group.inputs)
        for v in group.inputs:
            if v not in there:
                problems.add(VerifyError("an input is not computed yet", where=where, got=f"%{v.name}"))
        for node in group.nodes:
            for read in node.inputs:
                if read is not None and read not in inside:
                    problems.add(VerifyError("a node reads what is not there", where=where, got=f"%{read.name}"))
            inside.update(node.outputs)
        for v in group.outputs:
            if v not in inside:
                problems.add(VerifyError("no node makes an output", where=where, got=f"%{v.name}"))
        there.update(group.outputs)
    problems.raise_if_any(where=f"the kernels of graph {graph.name!r}", kind=VerifyError)


def verify_laid_out(graph: Graph) -> None:
    """Check that layout assignment has carried out, and removed, all selections noted on nodes. Raises VerifyError."""
    problems = Problems()
    for i, node in enumerate(graph.nodes):
        if node.selected is not None:
            problems.add(VerifyError("a selection was left", where=f"node {i} ({node.op})", got=node.selected))
    problems.raise_if_any(where=f"graph {graph.name!r}", kind=VerifyError)
