"""How an operator is computed, noted on its node: by which algorithm, and in which precision it multiplies.

    y = conv(x, w) {...} by winograd {panels = 4, tile = 4, width = 32} in fp32
    y = matmul(x, w) in bf16

`transform/select/` chooses, `transform/layout/` obeys and removes the note; other passes need not know it. The fields
of an algorithm are the sizes that the layout of its weights fixes. Further algorithms are in folders of their own
(`tilewright/algorithms/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from tilewright.ir.attributes import Attrs
from tilewright.support.classes import dataclass
from tilewright.support.discover import modules
from tilewright.support.errors import VerifyError

Precision = Literal["fp32", "bf16", "fp16", "int8", "int8w", "int4w"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


_KINDS: dict[str, type[Algorithm]] = {}


@dataclass(frozen=True, slots=True)
class Algorithm(Attrs):
    """One way to compute an operator: `name` is its name in texts, keys and forced decisions. `in_blocks`: its results
    are in blocks of channels, rather than row-major."""

    name: ClassVar[str] = ""
    in_blocks: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        # A class with slots is made twice, of which the second is the one that stays.
        known = _KINDS.setdefault(cls.name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise VerifyError("two algorithms have one name", expected=known.__module__, got=cls.name)
        _KINDS[cls.name] = cls


@dataclass(frozen=True, slots=True)
class Direct(Algorithm):
    """A convolution, or its gradient by its weight, by its definition, over maps in channel blocks."""

    name: ClassVar[str] = "direct"


@dataclass(frozen=True, slots=True)
class Pixels(Algorithm):
    """A 1x1 convolution as a product over NCHW maps."""

    name: ClassVar[str] = "pixels"
    in_blocks: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Matrices(Algorithm):
    """A convolution of bf16 or f16 in matrix registers, summed in f32. `flat`: a register holds pixels of all lines in
    order, rather than of one line."""

    name: ClassVar[str] = "matrices"

    flat: int


@dataclass(frozen=True, slots=True)
class Pairs(Algorithm):
    """A convolution of bf16 by instructions that multiply two pixels by two filters, summed in f32."""

    name: ClassVar[str] = "pairs"


@dataclass(frozen=True, slots=True)
class Dots(Algorithm):
    """A convolution of bf16 by dot instructions over neighbouring channels, summed in f32."""

    name: ClassVar[str] = "dots"


@dataclass(frozen=True, slots=True)
class SplitMatrices(Algorithm):
    """A convolution of f32 by `terms` products of bf16 pieces in matrix registers; `flat` as in `Matrices`."""

    name: ClassVar[str] = "split_matrices"

    terms: int
    flat: int


@dataclass(frozen=True, slots=True)
class SplitGathered(Algorithm):
    """A convolution of f32 with few channels by `terms` products of bf16 pieces in matrix registers, whose depth has
    the channels of `lines` lines of a window, and of all of its columns, side by side."""

    name: ClassVar[str] = "split_gathered"

    terms: int
    lines: int


@dataclass(frozen=True, slots=True)
class Packed(Algorithm):
    """A matrix product by its definition, with the second factor packed in panels."""

    name: ClassVar[str] = "packed"


@dataclass(frozen=True, slots=True)
class Split(Algorithm):
    """A matrix product of f32 by `terms` products of bf16 pieces (3: x3, 6: x6), from `least` rows on."""

    name: ClassVar[str] = "split"

    terms: int
    least: int


def algorithms() -> Mapping[str, type[Algorithm]]:
    """All algorithms by name, including those in the folders of `tilewright/algorithms`."""
    modules("tilewright.algorithms", "selection")
    return _KINDS


@dataclass(frozen=True, slots=True)
class Selection:
    """The algorithm and precision chosen for a node; `algorithm` is None if there is only one."""

    algorithm: Algorithm | None = None
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise VerifyError("no such precision", expected=", ".join(PRECISIONS), got=repr(self.precision))
        if self.algorithm is not None and not isinstance(self.algorithm, Algorithm):
            raise VerifyError("no such algorithm", expected=", ".join(sorted(algorithms())), got=repr(self.algorithm))
