"""The options by which a user trades accuracy for time: `tw.compile(..., precision=, fast=)`."""

from __future__ import annotations

import re
from typing import Literal, get_args

from tilewright.ir.selection import PRECISIONS, Precision
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError
from tilewright.support.options import check_choice, described

Products = Literal["weights", "all"]
ERRORS = {"auto": 2.5e-5, "exact": 4e-6, "f2": 2e-6, "f4": 1e-5, "f6": 2.5e-5, "strassen": 2.5e-5}
"""The settings of `fast`, each with the largest error of a layer that it allows, relative to the layer's largest output
(docs/accuracy.md). Algorithms that are expected to exceed it are not used."""


@dataclass(frozen=True, slots=True)
class Options:
    """Accuracy choices, stated by the user and obeyed by the passes.

    precision: in which type matrix products and convolutions multiply ("fp32", or narrower with wide accumulators).
    products: which matrix products use `precision`: those with weights, or all, as in training, where weights come with
        each call and gradients are multiplied too.
    fast: which algorithms with fewer multiplications are allowed. "auto" allows fast convolutions that keep the error
        within 2.5e-5 of a layer's scale, and Strassen's method for 1x1 convolutions and for normalised rows of one
        sequence; "exact" allows only products by six terms of bf16 pieces, which are as exact as those of f32;
        "f2", "f4", "f6" allow tiles up to that size wherever the estimate says that they are faster; "strassen" is
        "auto" plus fast products of any rows, which may mix rows of different samples.
    memory: bytes that temporaries may occupy, or a share of those without recomputation ("0.5x"): values are computed
        again where that saves memory (`transform/recompute.py`). "auto": where it costs hardly any time. None: never.
    compilers: names of other compilers, which are offered parts of the graph first (`transform/graph/partition.py`).
    flush_denormals: a call treats subnormal numbers as zero and produces none.
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
            ("fast", self.fast, tuple(ERRORS)),
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
