"""Products of a symbolic number of rows that keep their weights in two layouts, and compute with one at each call.

    y = matmul_by_rows(x, w, sums)     ->     if least <= rows <= most:  y = matmul_strassen(x, sums)
                                              else:                      y = matmul_packed(x, w)

Strassen's method saves an eighth of the multiplications, which pays where there are rows enough for its sums and for
weights of 7/4 of the size, and not so many that the sums of the rows leave the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir.expr import all_of
from tilewright.ir.graph import Node, TensorType
from tilewright.ops.lowered.packed import MATMUL_PACKED, ColumnsAttrs
from tilewright.ops.lowered.strassen import MATMUL_STRASSEN
from tilewright.ops.registry import OpDef, Types, Version, register
from tilewright.support.classes import dataclass
from tilewright.te import Tensor


@dataclass(frozen=True, slots=True)
class MatmulByRowsAttrs(ColumnsAttrs):
    """Columns of the product; numbers of rows with which it goes by Strassen's method, the least and the most."""

    least: int
    most: int


def versions(node: Node) -> tuple[Version, ...]:
    """The product by Strassen's method, where there are rows enough, and as it is defined."""
    x, w, sums = node.inputs
    attrs = node.of(MatmulByRowsAttrs)
    columns, rows = ColumnsAttrs(attrs.columns), node.output.shape[-2]
    fast = Node(MATMUL_STRASSEN.name, (x, sums), node.outputs, columns)
    return (
        Version(all_of([rows >= attrs.least, rows <= attrs.most]), fast),
        Version(None, Node(MATMUL_PACKED.name, (x, w), node.outputs, columns)),
    )


def _infer(types: Types, attrs: MatmulByRowsAttrs) -> tuple[TensorType, ...]:
    """`x[..., M, K]` (leading dimensions are 1), panels `w[P, K, width]` and panels of sums of quarters as of
    `matmul_strassen` to `[..., M, columns]`."""
    return MATMUL_PACKED.infer(types[:2], attrs)


def _compute(
    inputs: Sequence[Tensor | None], attrs: MatmulByRowsAttrs, types: tuple[TensorType, ...]
) -> tuple[Tensor, ...]:
    assert MATMUL_PACKED.compute is not None
    return MATMUL_PACKED.compute(inputs[:2], attrs, types)


def _reference(arrays: Sequence[Any], attrs: MatmulByRowsAttrs) -> tuple[Any, ...]:
    return MATMUL_PACKED.reference(arrays[:2], attrs)


MATMUL_BY_ROWS = register(
    OpDef("lowered.matmul_by_rows", "contraction", MatmulByRowsAttrs, _infer, _reference, _compute, versions=versions)
)
