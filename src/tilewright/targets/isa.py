"""The instructions of a machine, as far as schedules and code generation depend on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tilewright.ir.dtype import DType
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Dot:
    """A dot instruction: `lanes` sums of `group` products each.

    It multiplies a group of elements of A, the same for all lanes, with a group of B in each lane:

        for i in 0..lanes { for k in 0..group { C[i] = C[i] + cast(A[k]) * cast(B[i, k]) } }

    One of several rows multiplies matrices in registers of their own, `steps` groups of each row at once:

        for i in 0..rows { for s in 0..steps { for j in 0..lanes { for k in 0..group {
            C[i, j] = C[i, j] + cast(A[i, s * group + k]) * cast(B[s, j, k]) } } } }

    One of two rows and one step has its sums in a vector, two of each row, and reads two groups of A side by side.

    Args:
        name: by which loops and traces call it.
        a, b: types of the elements; sums are f32 for floats, i32 for integers.
        lanes, group: how many sums, of how many products.
        features: what the machine must have, LLVM's names.
        cost: in multiply-adds of a full vector.
        llvm: definitions of LLVM text with a function `@tw.intrin.<name>(ptr a, ptr b, i64 stride of b, ptr c)`, with
            the stride of each of several rows after its pointer; of one whose sums are in registers of matrices the
            name of LLVM's function of three registers' numbers.
        rows, steps: of the matrices.
    """

    name: str
    a: DType
    b: DType
    lanes: int
    group: int
    features: tuple[str, ...]
    cost: float
    llvm: str
    rows: int = 1
    steps: int = 1

    @property
    def depth(self) -> int:
        """The number of products in each sum."""
        return self.steps * self.group

    @property
    def kind(self) -> Literal["vector", "pair", "matrix"]:
        """Where sums are: in a vector for one row, in a vector for a pair of rows, in a register of matrices."""
        return "vector" if self.rows == 1 else "pair" if self.rows == 2 else "matrix"


def offered(dots: Iterable[Dot], features: Iterable[str]) -> tuple[Dot, ...]:
    """The dot instructions among `dots` that are available with these features."""
    own = frozenset(features)
    return tuple(dot for dot in dots if own.issuperset(dot.features))


@dataclass(frozen=True, slots=True)
class Isa:
    """Capabilities of an instruction set; the defaults are those of the least machine.

    Args:
        vector_bits: width of a vector register; of scalable ones the width that code is made for.
        scalable: whether the width of a vector register is known only when code runs.
        registers: number of vector registers.
        fma: whether one instruction multiplies and adds with one rounding.
        masked_reads: whether vector loads can be masked, so that disabled lanes read no memory.
        tables: f32 entries of a table in a register among which one instruction picks for each lane; 0 without one.
        half_tables: likewise of a table in two registers, by an instruction for each and one that chooses between them.
        byte_tables: bytes of a table in registers among which a few instructions pick for each lane; 0 without them.
        elements: whether a multiply-add accepts one lane of a register as a factor, so that scalars of several steps
            are loaded as one vector; without it, a scalar is a broadcast memory operand.
        scales: whether an instruction multiplies by powers of two whose exponents are a vector.
        extrema_keep_nan: whether the instructions for minimum and maximum give NaN where an operand is NaN.
        loose_extrema: whether LLVM makes of a comparison and a selection an instruction whose result for NaN is the
            machine's choice (22.1 does for `relaxed-simd` of WebAssembly).
        streams_stores: whether vectors can be stored past the caches.
        part_bytes: bytes within which a shuffle is cheapest; vectors consist of such parts.
        tuning: LLVM's tuning features for code that has no scatters of its own ("+prefer-no-scatter").
        dots: dot instructions, in order of preference.
        reads_first: whether the assembler or engine places all loads of a loop body before its arithmetic, so that all
            operands of a step are in registers at once, and tiles must leave registers for them.
        single_steps: whether a product's loop body has one step, as operands of several steps, loaded together, would
            not fit into registers.
        scalar_lookups: whether gathers are emitted as scalar loads, with scalar extension of each index, because gather
            instructions and LLVM's expansion of them are slow.
        compact: whether memory matters more than time: weights are not packed, functions are those of libm, kernels are
            single-threaded, and LLVM optimises for size.
    """

    vector_bits: int = 128
    scalable: bool = False
    registers: int = 16
    fma: bool = False
    masked_reads: bool = False
    tables: int = 0
    half_tables: int = 0
    byte_tables: int = 0
    elements: bool = False
    scales: bool = False
    extrema_keep_nan: bool = False
    loose_extrema: bool = False
    streams_stores: bool = False
    part_bytes: int = 16
    tuning: str = ""
    dots: tuple[Dot, ...] = ()
    reads_first: bool = False
    single_steps: bool = False
    scalar_lookups: bool = False
    compact: bool = False


__all__ = ["Dot", "Isa", "offered"]
