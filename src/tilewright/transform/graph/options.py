"""What the user lets the compiler trade: `tw.compile(..., precision=, winograd=)`."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.support.errors import ModelError

PRECISIONS = ("fp32", "bf16", "int8")
WINOGRAD = ("auto", "exact", "f2", "f4", "f6", "strassen")


@dataclass(frozen=True, slots=True)
class Options:
    """Accuracy choices, stated by the user and obeyed by the passes.

    precision: in which type matrix products and convolutions multiply ("fp32", or narrower with wide accumulators).
    winograd: "auto" takes fast convolutions that keep the error within 2.5e-5 of a layer's scale, Strassen's method for
        windows of one pixel and normed rows of one sequence among them; "exact" takes none;
        "f2", "f4", "f6" allow tiles up to that size wherever the estimate says that they are faster; "strassen" is
        "auto" and takes fast products of any rows, those of different samples too, which meet then.
    """

    precision: str = "fp32"
    winograd: str = "auto"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("precision", self.precision, PRECISIONS),
            ("winograd", self.winograd, WINOGRAD),
        ):
            if value not in known:
                raise ModelError(f"no such {name}", expected=", ".join(known), got=repr(value))


DEFAULTS = Options()
