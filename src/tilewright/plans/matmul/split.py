"""The estimated cost of a product of f32 by pieces of bf16 (`ops/lowered/split.py`)."""

from __future__ import annotations

from tilewright.ops.lowered.split import TERMS, count_of
from tilewright.plans.framework.cost import Cost, fetch_cycles, fma_cycles, load_cycles, store_cycles, write_cycles
from tilewright.plans.matmul.tile_dots import registers_cycles
from tilewright.plans.matmul.tiles import Product
from tilewright.schedule.dot_intrinsics import Dot
from tilewright.targets.target import Target


def split_cost(product: Product, terms: int, weights: int, tile: Dot, target: Target) -> Cost:
    """The product in registers of matrices and the passes over its rows before it: one that finds their largest
    magnitudes, one that makes pieces of them.

    `weights`: bytes of all weights of the model as they are in f32, which say where those of this product come from.
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
    """The cost of `times` products of `terms` terms whose factors both change from call to call: both factors are split
    into pieces of bf16, and those of the second are packed in panels."""
    costs, pieces = target.costs.matrices, count_of(terms)
    rows, depth, columns = product.rows, product.depth, product.columns
    sums = registers_cycles(rows, depth, columns, tile, target, costs.stored_product_sums, terms)
    numbers = times * depth * columns
    packing = Cost(compute=costs.copied_vector * pieces * numbers / target.lanes(4))
    both = pieces_cost(times * rows * depth, pieces, target) + pieces_cost(numbers, pieces, target)
    return Cost(compute=costs.split_slower * (costs.configured + times * sums)) + both + packing


def pieces_cost(count: int, pieces: int, target: Target) -> Cost:
    """Cost of splitting `count` numbers, which were just computed, into `pieces` each, and of finding the largest."""
    read, written = 4 * count, 2 * pieces * count
    return Cost(
        compute=fma_cycles(count * (1 + OPERATIONS * pieces), target.lanes(4), target),
        load=load_cycles(2 * read, target),
        store=store_cycles(written, target),
        memory=2 * fetch_cycles(read, read, target) + write_cycles(written, written, target),
        overhead=KERNELS * target.costs.matrices.configured,
    )


def terms_within(error: float) -> tuple[int, ...]:
    """The numbers of terms whose products are within an error, relative to their largest output."""
    return tuple(terms for terms in TERMS if ERRORS[terms] <= error)


ERRORS = {3: 1e-5, 6: 1e-6}
"""The largest error of a product by so many terms, relative to its largest output (docs/accuracy.md)."""

KERNELS = 3
"""Kernels before the product: the largest number of each row, that of all rows, the pieces. Each is assumed to begin as
slowly as one that configures registers of matrices; this is not measured."""

OPERATIONS = 4
"""Vector operations for a piece: it is rounded, widened, subtracted from the number, stored as half a vector."""

__all__ = ["pieces_cost", "split_cost", "terms_within"]
