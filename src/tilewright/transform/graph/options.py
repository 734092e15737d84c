"""The accuracy that the user trades for time: `tw.compile(..., precision=, fast=)`."""

from __future__ import annotations

import re
from typing import Literal, get_args

from tilewright.ir.selection import PRECISIONS, Precision
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError
from tilewright.support.options import check_choice, described

Products = Literal["weights", "all"]
FAST = ("auto", "exact", "f2", "f4", "f6", "strassen")


@dataclass(frozen=True, slots=True)
class Options:
    """Accuracy choices, stated by the user and obeyed by the passes.

    precision: in which type matrix products and convolutions multiply ("fp32", or narrower with wide accumulators).
    products: which matrix products multiply so: those with weights, or those of any values, as in training, where
        weights come with each call and gradients are multiplied too.
    fast: which algorithms with fewer multiplications may be taken. "auto" takes fast convolutions that keep the error
        within 2.5e-5 of a layer's scale, Strassen's method for windows of one pixel and normed rows of one sequence
        among them; "exact" takes none but
        products by six terms of bf16 pieces, which are no less exact than those of f32;
        "f2", "f4", "f6" allow tiles up to that size wherever the estimate says that they are faster; "strassen" is
        "auto" and takes fast products of any rows, those of different samples too, which meet then.
    memory: bytes that temporaries may take, or a share of what they take otherwise ("0.5x"): values are computed again
        where that is less (`transform/recompute.py`). "auto": where it costs hardly any time. None: they are kept.
    compilers: which are asked first for what they take (`transform/graph/partition.py`), by name.
    flush_denormals: a call takes subnormal numbers as zero and makes none.
    """

    precision: Precision = "fp32"
    fast: str = "auto"
    products: Products = "weights"
    memory: str | int | None = None
    compilers: tuple[str, ...] = ()
    flush_denormals: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("precision", self.precision, PRECISIONS),
            ("fast", self.fast, FAST),
            ("products", self.products, get_args(Products)),
        ):
            check_choice(name, value, known)
        share = isinstance(self.memory, str) and re.fullmatch(r"(\d+\.?\d*|\.\d+)x", self.memory)
        number = isinstance(self.memory, int) and not isinstance(self.memory, bool) and self.memory >= 0
        word = self.memory is None or (isinstance(self.memory, str) and self.memory == "auto")
        if not word and not share and not number:
            expected = 'bytes, a share such as 0.5x, or "auto"'
            raise ModelError("no such budget of memory", expected=expected, got=described(self.memory))


DEFAULTS = Options()
