"""Choose the algorithm of a transposed convolution: phase by phase directly, or all phases in matrix registers."""

from __future__ import annotations

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Node
from tilewright.ir.selection import Algorithm, Direct, Matrices, SplitMatrices
from tilewright.plans.framework.cost import Cost, fetch_cycles, write_cycles
from tilewright.transform.algorithm import Option, cheapest_algorithm, offered
from tilewright.transform.phases import phases
from tilewright.transform.select.convolution import with_matrices
from tilewright.transform.select.surroundings import Surroundings


def transposed_algorithm(enclosing: Surroundings, node: Node) -> Algorithm | None:
    """An algorithm of a folder, or matrix registers if all phases fit, with the interleaving of the phases' results, if
    its estimate is below the direct one; else None."""
    direct, tiled = 0.0, dict[Algorithm, float]()
    parts = phases(node, enclosing.block)
    for part in parts:
        (_, w), weights = node.operands(2), part.conv.operands(2)[1]
        if w not in enclosing.fixed:
            direct, tiled = 0.0, {}
            break
        enclosing.fixed.add(weights)
        ways = {way: cycles for cycles, way in with_matrices(enclosing, part.conv, [(0.0, Direct())])}
        enclosing.fixed.discard(weights)
        direct += ways[Direct()]
        # Of few channels lines are gathered, and phases of few pixels may have one order of them alone: ways that some
        # phases lack are none.
        shared = [
            way for way in ways if isinstance(way, Matrices | SplitMatrices) and (way in tiled or part is parts[0])
        ]
        tiled = {way: tiled.get(way, 0.0) + ways[way] for way in shared}
    moved = interleaving(node, enclosing) if tiled else 0.0
    options: list[Option] = [(direct, Direct()), *((cycles + moved, way) for way, cycles in tiled.items())]
    options = offered(enclosing, node, options)
    choice = cheapest_algorithm(enclosing, node, options) if len(options) > 1 else Direct()
    return None if isinstance(choice, Direct) else choice


def interleaving(node: Node, enclosing: Surroundings) -> float:
    """The estimated cycles per image of interleaving the results of phases: each vector is read and written by a
    transposition and again when the edges are cut off."""
    target, images = enclosing.target, as_int(node.output.shape[0]) or 1
    nbytes = node.output.known_bytes // images
    vectors = target.costs.traffic.copied_vector * nbytes / (target.vector_bits // 8)
    memory = fetch_cycles(nbytes, nbytes, target) + write_cycles(nbytes, 2 * nbytes, target)
    return 2 * Cost(compute=vectors, memory=memory).cycles


__all__ = ["transposed_algorithm"]
