"""Products of any number of rows that are summed in vectors or in registers of matrices, as their number says.

    y = matmul_by_rows(x, w)     ->     if x has fewer rows than `least`:  y = matmul_dot(x, w)
                                        else:                              y = matmul_tiles(x, w)

Both read weights that are packed alike. A register has sixteen rows, however few of them there are.
"""

from __future__ import annotations

from tilewright.ir.graph import Node
from tilewright.ops.lowered.packed import ColumnsAttrs
from tilewright.ops.lowered.tiles import MATMUL_TILES, MatmulTilesAttrs
from tilewright.ops.registry import OpDef, Version, register
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class MatmulByRowsAttrs(MatmulTilesAttrs):
    """Attributes of a product in registers of matrices; from how many rows on it is one."""

    least: int


def versions(node: Node) -> tuple[Version, ...]:
    """The product by dot instructions of few rows, and in registers of matrices of others."""
    attrs, rows = node.of(MatmulByRowsAttrs), node.output.shape[-2]
    fewer = Node("lowered.matmul_dot", node.inputs, node.outputs, ColumnsAttrs(attrs.columns))
    several = Node(MATMUL_TILES.name, node.inputs, node.outputs, MatmulTilesAttrs(attrs.columns, attrs.rows))
    return Version(rows < attrs.least, fewer), Version(None, several)


MATMUL_BY_ROWS = register(
    OpDef(
        "lowered.matmul_by_rows",
        "contraction",
        MatmulByRowsAttrs,
        MATMUL_TILES.infer,
        MATMUL_TILES.reference,
        MATMUL_TILES.compute,
        versions=versions,
    )
)
