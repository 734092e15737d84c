"""The coverage report of a model of which other compilers than Tilewright's own take parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tilewright.compile_options import CompileOptions
from tilewright.compiler import graph_passes
from tilewright.frontend.read import import_model
from tilewright.ir.dim import DimSizes
from tilewright.support.coverage import NATIVE, Coverage, PartCoverage, Uncompiled, counted, totals
from tilewright.support.errors import ModelError
from tilewright.transform.graph.assume import fold_assumptions
from tilewright.transform.graph.constant_operands import hoist_constants
from tilewright.transform.graph.partition import claimed
from tilewright.transform.regions.captures import lift_constants


def coverage(model: Any, compilers: Sequence[str], dims: DimSizes | None = None) -> Coverage:
    """The operators of a model that each of these compilers claims by its patterns. Nothing is compiled, so that a part
    that its compiler would refuse counts as claimed. Operators are those of Tilewright's graph.

    Raises ModelError for a model that is not read whole.
    """
    options = CompileOptions(compilers=compilers)
    try:
        graph = fold_assumptions(import_model(model, dims).graph)
    except ModelError as error:
        error.hint = error.hint or "coverage without compilers says which operators are not compiled"
        raise
    graph, _ = hoist_constants(lift_constants(graph))
    for name, function in graph_passes(options.machine, options.passes):
        if name == "partition":
            break
        graph = function(graph)
    regions, blocks = claimed(graph, tuple(compilers), compiling=False)
    parts: list[PartCoverage] = []
    missing: list[Uncompiled] = []
    nodes: list[tuple[str, bool]] = []
    for region, group in groupby(blocks.in_order(), regions.get):
        members = [graph.nodes[k] for block in group for k in sorted(blocks.members[block])]
        operators = [n.op for n in members]
        runs_by = NATIVE if region is None else region.compiler
        name = f"{graph.name}.{len(parts)}" if region is None else region.graph.name
        parts.append(PartCoverage(name, runs_by, counted(operators)))
        nodes += [(op, region is None) for op in operators]
        if region is not None:
            reason = f"pattern {', '.join(dict.fromkeys(region.patterns))} of the compiler {region.compiler!r}"
            missing += [Uncompiled(n.outputs[0].name, n.op, reason, region.compiler) for n in members]
    return Coverage(graph.name, totals(nodes), tuple(parts), tuple(missing))


__all__ = ["coverage"]
