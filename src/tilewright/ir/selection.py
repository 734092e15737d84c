"""How an operator is computed, noted on its node: by which algorithm, and in which precision it multiplies.

    y = conv(x, w) {...} by winograd {panels = 4, tile = 4, width = 32} in fp32
    y = matmul(x, w) in bf16

`transform/select/` chooses, `transform/layout/` obeys and takes the note away; no other pass has to know it. The fields
of an algorithm are what the layout of its weights binds.
"""

from __future__ import annotations

from typing import Literal, get_args

from tilewright.ir.attributes import Attrs
from tilewright.support.classes import dataclass
from tilewright.support.errors import VerifyError

Precision = Literal["fp32", "bf16", "int8", "int8w", "int4w"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True, slots=True)
class Algorithm(Attrs):
    """One way to compute an operator."""

    @property
    def name(self) -> str:
        """The name as texts, keys and forced decisions call it."""
        return _NAMES[type(self)]


@dataclass(frozen=True, slots=True)
class Direct(Algorithm):
    """A convolution, or its gradient by its weight, as it is defined, over maps in channel blocks."""


@dataclass(frozen=True, slots=True)
class Pixels(Algorithm):
    """A convolution of one pixel as a product over plain maps."""


@dataclass(frozen=True, slots=True)
class Matrices(Algorithm):
    """A convolution as it is defined, of bf16 in registers of matrices, summed in f32; `flat`: these hold pixels of all
    lines in their order, else of one line each."""

    flat: int


@dataclass(frozen=True, slots=True)
class SplitMatrices(Algorithm):
    """A convolution of f32 as it is defined, by `terms` products of bf16 pieces in registers of matrices, `flat` as of
    `Matrices`."""

    terms: int
    flat: int


@dataclass(frozen=True, slots=True)
class Winograd(Algorithm):
    """A convolution by Winograd's or Fourier's transforms: `tile` outputs a side, panels of `width` filters, `panels`
    of them in a group."""

    tile: int
    width: int
    panels: int


@dataclass(frozen=True, slots=True)
class WinogradBySize(Algorithm):
    """A convolution over maps of any size that keeps its filters twice: for `tile` outputs a side and for `neartile`
    (0: as they are, for computing it directly), in panels as of `Winograd`. At each call it takes the one that is
    estimated to take less: `costs` are the cycles that each tile adds and those that any map takes, of the first and of
    the second; they follow from the rest, so that nothing is decided about them."""

    tile: int
    width: int
    panels: int
    neartile: int
    nearwidth: int
    nearpanels: int
    costs: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class WinogradSums(Algorithm):
    """A convolution's gradient by its weight by Winograd's transforms: tiles of `tile` pixels of the result's gradient
    a side."""

    tile: int


@dataclass(frozen=True, slots=True)
class StrassenStrips(Algorithm):
    """A convolution of one pixel by Strassen's method: panels of `width` filters, `panels` of them in a group."""

    width: int
    panels: int


@dataclass(frozen=True, slots=True)
class Taps(Algorithm):
    """A convolution of few filters by one of many: every tap of the window is a filter of its own, whose maps are then
    shifted and summed. `whole`: the taps of all lines are, and pixels are multiplied one by one; else those of a line,
    and a window of one column is left. `plain`: the products are made over plain maps, else over channel blocks."""

    whole: int
    plain: int


@dataclass(frozen=True, slots=True)
class Packed(Algorithm):
    """A matrix product as it is defined, by panels of the second factor."""


@dataclass(frozen=True, slots=True)
class Strassen(Algorithm):
    """A matrix product by Strassen's method: seven products of quarters."""


@dataclass(frozen=True, slots=True)
class Split(Algorithm):
    """A matrix product of f32 by `terms` products of bf16 pieces (3: x3, 6: x6), from `least` rows on."""

    terms: int
    least: int


ALGORITHMS: dict[str, type[Algorithm]] = {
    "direct": Direct,
    "pixels": Pixels,
    "matrices": Matrices,
    "split_matrices": SplitMatrices,
    "winograd": Winograd,
    "winograd_by_size": WinogradBySize,
    "winograd_sums": WinogradSums,
    "strassen_strips": StrassenStrips,
    "taps": Taps,
    "packed": Packed,
    "strassen": Strassen,
    "split": Split,
}
_NAMES = {kind: name for name, kind in ALGORITHMS.items()}


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice for a node; `algorithm` is None where there is one way."""

    algorithm: Algorithm | None = None
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise VerifyError("no such precision", expected=", ".join(PRECISIONS), got=repr(self.precision))
        if self.algorithm is not None and type(self.algorithm) not in _NAMES:
            raise VerifyError("no such algorithm", expected=", ".join(ALGORITHMS), got=repr(self.algorithm))
