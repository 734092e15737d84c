"""What the user lets the compiler trade: `tw.compile(..., precision=, fast=)`."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.selection import PRECISIONS, Precision
from tilewright.support.errors import ModelError

FAST = ("auto", "exact", "f2", "f4", "f6", "strassen")


@dataclass(frozen=True, slots=True)
class Options:
    """Accuracy choices, stated by the user and obeyed by the passes.

    precision: in which type matrix products and convolutions multiply ("fp32", or narrower with wide accumulators).
    fast: which algorithms with fewer multiplications may be taken. "auto" takes fast convolutions that keep the error
        within 2.5e-5 of a layer's scale, Strassen's method for windows of one pixel and normed rows of one sequence
        among them; "exact" takes none;
        "f2", "f4", "f6" allow tiles up to that size wherever the estimate says that they are faster; "strassen" is
        "auto" and takes fast products of any rows, those of different samples too, which meet then.
    """

    precision: Precision = "fp32"
    fast: str = "auto"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("precision", self.precision, PRECISIONS),
            ("fast", self.fast, FAST),
        ):
            if value not in known:
                raise ModelError(f"no such setting of {name}", expected=", ".join(known), got=repr(value))


DEFAULTS = Options()
