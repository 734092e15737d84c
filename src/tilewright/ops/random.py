"""Random numbers as functions of a key and an element's index, without a state, so that threads, vectors and the
backward pass all get the same numbers.

The generator is Threefry-2x32 of 20 rounds (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011), the one
of `jax.random`: additions, rotations and exclusive ors of 32 bits, which every machine has in vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from tilewright.ir.attributes import Attrs, Dims
from tilewright.ir.dtype import f32, u32
from tilewright.ir.expr import Expr, as_expr, as_int, cast, const
from tilewright.ir.graph import TensorType
from tilewright.ops.dims import dims, need, present
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ShapeError
from tilewright.te import Tensor, compute

KEY = TensorType(u32, (as_expr(2),))
"""The type of the key from which random numbers are computed: two words."""

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
BITS = 24
"""The number of random bits of a value in [0, 1): as many as an f32 holds."""

Word = TypeVar("Word", Expr, Any)
"""A 32-bit word with wrap-around: an expression, or an array of words."""


def threefry(key: tuple[Word, Word], counter: tuple[Word, Word], word: Any) -> tuple[Word, Word]:
    """Two words of random bits, a function of a key and a counter. `word` converts a Python integer to a word."""
    keys = (*key, key[0] ^ key[1] ^ word(PARITY))
    a, b = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            a = a + b
            b = ((b << word(distance)) | (b >> word(32 - distance))) ^ a
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + word(group + 1)
    return a, b


@dataclass(frozen=True, slots=True)
class UniformAttrs(Attrs):
    """Attributes of `uniform`, whose result has independent uniform numbers in [0, 1), f32[*shape]. Different values of
    `stream` give independent numbers for one key."""

    shape: Dims
    stream: int


def _infer(types: Types, attrs: UniformAttrs) -> tuple[TensorType, ...]:
    """The type rule of `uniform`. Input: the key."""
    key = present(types[0])
    if key != KEY:
        raise ShapeError("a key of random numbers is two words", expected=KEY, got=key)
    return (TensorType(f32, dims(attrs.shape)),)


def _compute(inputs: Sequence[Tensor | None], attrs: UniformAttrs, out: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    key, (type,) = need(inputs[0]), out

    def element(*i: Expr) -> Expr:
        place: Expr = const(0)
        for k, size in zip(i, type.shape, strict=True):
            place = place * size + k
        counter = (cast(place, u32), const(attrs.stream, u32))
        bits, _ = threefry((key[0], key[1]), counter, lambda n: const(n, u32))
        return cast(bits >> const(32 - BITS, u32), f32) * const(2.0**-BITS, f32)

    return (compute(type.shape, element, name="uniform"),)


def uniform(key: Sequence[int], shape: Sequence[int], stream: int) -> Any:
    """The result of `uniform` by NumPy: the numbers for a key, a shape and a stream."""
    words = [np.uint32(k) for k in key]
    with np.errstate(over="ignore"):
        place = np.arange(np.prod(shape, dtype=np.int64)).astype(np.uint32)
        bits, _ = threefry((words[0], words[1]), (place, np.full_like(place, stream)), np.uint32)
    return ((bits >> np.uint32(32 - BITS)).astype(np.float32) * np.float32(2.0**-BITS)).reshape(shape)


def _numpy(arrays: Sequence[Any], attrs: UniformAttrs) -> tuple[Any, ...]:
    return (uniform(arrays[0], [as_int(d) or 0 for d in dims(attrs.shape)], attrs.stream),)


register(OpDef("uniform", "injective", UniformAttrs, _infer, _numpy, compute=_compute))
