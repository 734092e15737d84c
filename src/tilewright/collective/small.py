"""Small all-reductions, for which one native call shows the data, meets, compares the calls, and reduces."""

from __future__ import annotations

import numpy as np

from tilewright.collective.calls import Call
from tilewright.collective.kernels import reduction_at
from tilewright.collective.reductions import DTYPES, Array, address_of, native
from tilewright.support.classes import dataclass

DIRECT = 1 << 15
"""With three ranks and more, up to this many bytes each rank reduces everything itself: reducing slices would cost
another meeting."""
KNOWN = 1024
"""The most small all-reductions that a group caches."""


@dataclass(frozen=True, slots=True)
class Small:
    """A small all-reduction: the address of the words that all ranks must show, and the kernel's address."""

    call: Call
    words: Array
    words_at: int
    elements: int
    nbytes: int
    kernel: int


class SmallReductions:
    """A cache of small all-reductions, by type, operation and number of elements."""

    def __init__(self, most: int) -> None:
        """`most`: the most bytes of an array whose all-reduction counts as small."""
        self._most = most
        self._known: dict[tuple[object, ...], Small] = {}
        self.get = self._known.get

    def keep(self, key: tuple[object, ...], small: Small) -> None:
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[key] = small

    def find(self, dtype: str, operation: str, elements: int) -> Small | None:
        """The small all-reduction of `elements` elements of type `dtype` by `operation`, from the cache or new; None if
        these are too many or none, or if no native kernel reduces them."""
        small = self.get((dtype, operation, elements))
        nbytes = elements * DTYPES[dtype].itemsize
        if small is not None or not 0 < nbytes <= self._most or native(dtype, operation, elements) is None:
            return small
        call = Call("all_reduce", dtype, operation, elements=elements)
        words = np.array(call.words, np.int64)
        small = Small(call, words, address_of(words), elements, nbytes, reduction_at(dtype, operation))
        self.keep((dtype, operation, elements), small)
        return small
