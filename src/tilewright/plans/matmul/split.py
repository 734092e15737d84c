"""The estimated cost of a product of f32 by pieces of bf16 (`ops/lowered/split.py`)."""

from __future__ import annotations

from tilewright.ops.lowered.split import TERMS, count_of
from tilewright.plans.framework.cost import Cost, fetch_cycles, fma_cycles, load_cycles, store_cycles, write_cycles
from tilewright.plans.matmul.tile_dots import registers_cycles
from tilewright.plans.matmul.tiles import Product
from tilewright.schedule.dot_intrinsics import Dot
from tilewright.targets.target import Target


def split_cost(product: Product, terms: int, weights: int, tile: Dot, target: Target) -> Cost:
    """The cost of the product in matrix registers and of two passes over its rows before it: for their largest
    magnitudes, and for splitting them into pieces.

    `weights`: the bytes of all weights of the model in f32, which determine the level of memory that they come from.
    """
    costs, pieces = target.costs.matrices, count_of(terms)
    rows, depth, columns = product.rows, product.depth, product.columns
    sums = registers_cycles(rows, depth, columns, tile, target, costs.stored_product_sums, terms)
    share = pieces * tile.a.itemsize / product.itemsize
    arrive = Cost(memory=fetch_cycles(share * product.weights, share * weights, target))
    return (Cost(compute=costs.split_slower * (costs.configured + sums)) | arrive) + pieces_cost(
        rows * depth, pieces, target
    )


def split_both_cost(product: Product, times: int, terms: int, tile: Dot, target: Target) -> Cost:
    """The cost of `times` products, each the sum of `terms` products of pieces of bf16, of two computed factors: both
    are split into pieces, and those of the second one are packed into panels."""
    costs, pieces = target.costs.matrices, count_of(terms)
    rows, depth, columns = product.rows, product.depth, product.columns
    sums = registers_cycles(rows, depth, columns, tile, target, costs.stored_product_sums, terms)
    numbers = times * depth * columns
    packing = Cost(compute=costs.copied_vector * pieces * numbers / target.lanes(4))
    both = pieces_cost(times * rows * depth, pieces, target) + pieces_cost(numbers, pieces, target)
    return Cost(compute=costs.split_slower * (costs.configured + times * sums)) + both + packing


def pieces_cost(count: int, pieces: int, target: Target) -> Cost:
    """The cost of splitting `count` computed numbers into `pieces` pieces of bf16 each, and of a first pass that finds
    their largest magnitude."""
    read, written = 4 * count, 2 * pieces * count
    return Cost(
        compute=fma_cycles(count * (1 + OPERATIONS * pieces), target.lanes(4), target),
        load=load_cycles(2 * read, target),
        store=store_cycles(written, target),
        memory=2 * fetch_cycles(read, read, target) + write_cycles(written, written, target),
        overhead=KERNELS * target.costs.matrices.configured,
    )


def terms_within(error: float) -> tuple[int, ...]:
    """The numbers of terms with which a product of pieces has at most this error, relative to its largest output."""
    return tuple(terms for terms in TERMS if ERRORS[terms] <= error)


ERRORS = {3: 1e-5, 6: 1e-6}
"""For each number of terms the largest error of a product, relative to its largest output (docs/accuracy.md)."""

KERNELS = 3
"""The number of kernels before the product: for the largest magnitude of each row, that of all rows, the pieces. Each
is assumed to start as slowly as one that configures matrix registers; this is not measured."""

OPERATIONS = 4
"""The vector operations per piece: it is rounded, widened, subtracted from the number, and stored as half a vector."""

__all__ = ["pieces_cost", "split_cost", "terms_within"]
