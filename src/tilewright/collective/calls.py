"""The calls of ranks, encoded as words that other ranks compare with their own."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.collective.reductions import CODES, DTYPES, REDUCTIONS
from tilewright.support.classes import dataclass

OPERATIONS = (
    "barrier",
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
)


@dataclass(frozen=True, slots=True)
class Call:
    """An operation that a rank calls, in the form that it shows to the others. All ranks must make equal calls; only
    the contents of their arrays differ.

    Attributes:
        root: the rank that an operation is about; -1 where there is none.
        elements: of the arrays on each rank; -1 where they may differ.
    """

    operation: str
    dtype: str = "u8"
    reduction: str = "none"
    root: int = -1
    elements: int = 0

    @property
    def words(self) -> tuple[int, ...]:
        return (
            OPERATIONS.index(self.operation),
            REDUCTIONS[self.reduction],
            CODES[self.dtype],
            self.root,
            self.elements,
        )

    @classmethod
    def of(cls, words: Sequence[int]) -> Call:
        """The call that a rank's words encode; they come from another process and may be anything."""
        operation, reduction, dtype, root, elements = words
        names, reductions, dtypes = OPERATIONS, list(REDUCTIONS), list(DTYPES)
        return cls(
            names[operation % len(names)],
            dtypes[dtype % len(dtypes)],
            reductions[reduction % len(reductions)],
            root,
            elements,
        )

    def __str__(self) -> str:
        about = "" if self.reduction == "none" else f" ({self.reduction})"
        root = "" if self.root < 0 else f", rank {self.root}"
        return f"{self.operation}{about} of {self.elements} x {self.dtype}{root}"
