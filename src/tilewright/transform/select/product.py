"""Choose the precision in which matrix products and attention multiply, and the algorithm of products."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import exp, log

from tilewright.ir.dtype import bf16, f32
from tilewright.ir.expr import Expr, as_int, product
from tilewright.ir.graph import Node
from tilewright.ir.selection import Algorithm, Packed, Precision, Split
from tilewright.ops.matmul import MatmulAttrs
from tilewright.plans.framework.cost import Cost, fetch_cycles
from tilewright.plans.framework.decision_key import key_of_nodes
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.plans.framework.symbolic import SYMBOLIC_ROWS, values_of
from tilewright.plans.matmul.split import split_both_cost, split_cost, terms_within
from tilewright.plans.matmul.tiles import Product, best
from tilewright.schedule.dot_intrinsics import Dot, find_dot, find_tile_dot
from tilewright.support.classes import dataclass
from tilewright.transform.algorithm import Option, cheapest_algorithm, offered
from tilewright.transform.graph.options import ERRORS
from tilewright.transform.problems import crossing
from tilewright.transform.select.surroundings import Surroundings

MIN_TERMS = {"": 0, "x3": 3, "x6": 6, "f32": 7}
"""For each exactness that a node requires, the least number of terms with which products of pieces are exact enough; no
number of terms suffices for "f32"."""


def product_precision(enclosing: Surroundings, node: Node) -> Precision:
    """The user's precision, if the second factor is a matrix of known size: of weights or, with `products` "all", of
    any values; else "fp32"."""
    x, w = node.operands(2)
    depth = x.shape[-2 if node.of(MatmulAttrs).transpose_a else -1]
    known = as_int(depth) is not None and as_int(node.output.shape[-1]) not in (None, 1)
    asked = w in enclosing.fixed or enclosing.options.products == "all"
    fits = x.dtype is f32 and w.dtype is f32 and asked and w.type.rank == 2 and known
    fits &= not node.of(MatmulAttrs).exactness
    return _precision(enclosing, node, enclosing.options.precision if fits else "fp32")


def attention_precision(enclosing: Surroundings, node: Node) -> Precision:
    """The precision of an attention's products: "bf16" if the user set it and the machine has a dot instruction for
    both products; else "fp32"."""
    q = node.inputs[0]
    dot = find_dot(bf16, bf16, enclosing.target)
    if enclosing.options.precision != "bf16" or dot is None or q is None or q.dtype is not f32:
        return "fp32"
    fits = (as_int(q.shape[3]) or 1) % dot.group == 0
    return _precision(enclosing, node, "bf16" if fits else "fp32")


def _precision(enclosing: Surroundings, node: Node, asked: Precision) -> Precision:
    """The precision `asked` or "fp32": a decision in which `asked` is taken unless a record or the user forces the
    other; no estimates are compared."""
    if asked == "fp32":
        return asked
    options: tuple[Precision, ...] = (asked, "fp32")
    return decide(lambda: key_of_nodes("precision", [node], enclosing.target), options, Setting)


def product_algorithm(enclosing: Surroundings, node: Node) -> Algorithm:
    """The algorithm of a product: one of a folder in `tilewright/algorithms/`, or products of bf16 pieces, if these are
    allowed and save enough time; else the product by its definition."""
    options = with_pieces(enclosing, node, offered(enclosing, node, []))
    return cheapest_algorithm(enclosing, node, options) if options else Packed()


def attention_algorithm(enclosing: Surroundings, node: Node) -> Algorithm | None:
    """The algorithm of an attention: one of a folder, or products by their definition; None if there is no choice."""
    options = offered(enclosing, node, [])
    if all(isinstance(way, Packed) for _, way in options):
        return None
    choice = cheapest_algorithm(enclosing, node, options)
    return None if isinstance(choice, Packed) else choice


def with_pieces(enclosing: Surroundings, node: Node, options: list[Option]) -> list[Option]:
    """The options of a product with products of bf16 pieces added, if the machine multiplies bf16 matrices. The rows
    must be computed by the call and fill a register (joined, if they are multiplied by one matrix): fewer rows wait for
    the weights, and pieces are no smaller. For unknown numbers of rows the estimate is a geometric mean."""
    x, w = node.inputs[:2]
    tile = find_tile_dot(bf16, bf16, enclosing.target)
    assert x is not None and w is not None
    if tile is None or not splits(enclosing, node):
        return options
    least_terms = MIN_TERMS[node.of(MatmulAttrs).exactness]
    problem = Splitting.of(node, w in enclosing.fixed)
    counts = values_of(problem.rows, SYMBOLIC_ROWS)
    known = len(counts) == 1
    packed = partial(_packed_cycles, problem, enclosing)
    result = options or [(_mean(packed(m) for m in counts), Packed())]
    for terms in terms_within(ERRORS[enclosing.options.fast]):
        if terms < least_terms:
            continue
        split = partial(_split_cycles, terms, tile, problem, enclosing)
        least = max(tile.rows, 1 if known else crossing(max(counts), packed, split))
        if least <= max(counts):
            cycles = (split(m) if m >= least else packed(m) for m in counts)
            result.append((_mean(cycles), Split(terms, least)))
    return result


@dataclass(frozen=True, slots=True)
class Splitting:
    """The problem that products of pieces solve: `times` products, each of `rows` rows with a matrix; `packed`:
    `prepare` splits the matrices into pieces."""

    rows: Expr
    depth: int
    columns: int
    times: int
    packed: bool

    @staticmethod
    def of(node: Node, packed: bool) -> Splitting:
        """The sizes of the matrix product `node`, which may be computed by bf16 pieces (`splits`); `packed` says
        whether its weights are packed in panels."""
        x, w = node.inputs[:2]
        assert x is not None and w is not None
        depth, columns = as_int(x.shape[-2 if node.of(MatmulAttrs).transpose_a else -1]), as_int(node.output.shape[-1])
        if w.type.rank == 2:
            return Splitting(product(node.output.shape[:-1]), depth or 1, columns or 1, 1, packed)
        times = as_int(product(w.shape[:-2])) or 1
        return Splitting(node.output.shape[-2], depth or 1, columns or 1, times, packed)


def splits(enclosing: Surroundings, node: Node) -> bool:
    """Whether a product multiplies computed f32 rows by a matrix of known size: one for all rows, or one per batch
    entry."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    transpose_a = node.of(MatmulAttrs).transpose_a
    sizes = [as_int(d) for d in (x.shape[-2 if transpose_a else -1], node.output.shape[-1])]
    alike = w.type.rank == 2 or (w.shape[:-2] == x.shape[:-2] and all(as_int(d) for d in w.shape))
    joined = w.type.rank == 2 and x.type.rank > 2
    single = all(t is f32 for t in (x.dtype, w.dtype, node.output.dtype))
    fits = alike and x.type.rank > 1 and not (joined and transpose_a) and single and all((d or 0) > 1 for d in sizes)
    return fits and x not in enclosing.fixed


def _packed_cycles(problem: Splitting, enclosing: Surroundings, rows: int) -> float:
    one, target = Product(rows, problem.columns, problem.depth), enclosing.target
    if problem.packed:
        arrive = Cost(memory=fetch_cycles(one.weights, enclosing.weight_bytes, target))
        return problem.times * (best(one, target) | arrive).cycles
    packing = target.costs.matrices.copied_vector * one.depth * one.columns / target.lanes(4)
    return problem.times * (best(one, target).cycles + packing)


def _split_cycles(terms: int, tile: Dot, problem: Splitting, enclosing: Surroundings, rows: int) -> float:
    """The estimated cycles of the product `problem` with `rows` rows, as `terms` products of bf16 pieces in matrix
    registers, times the factor by which these must be faster than the f32 product."""
    one, target = Product(rows, problem.columns, problem.depth), enclosing.target
    if problem.packed:
        cycles = problem.times * split_cost(one, terms, enclosing.weight_bytes, tile, target).cycles
    else:
        cycles = split_both_cost(one, problem.times, terms, tile, target).cycles
    return cycles * target.costs.matrices.split_gain


def _mean(cycles: Iterable[float]) -> float:
    logarithms = [log(c) for c in cycles]
    return exp(sum(logarithms) / len(logarithms))
