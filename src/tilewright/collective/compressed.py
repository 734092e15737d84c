"""Compressed exchange of gradients: as f16, as 8 bits, the largest ones only, signs, or two narrow matrices.

    reduce = tw.collective.Compressed(group, "top-k", share=0.01)            # for tw.compile_step(..., reduce=reduce)
    model.register_comm_hook(None, tw.collective.torch_hooks.hook("int8"))   # for PyTorch's DDP

A method replaces a vector by its approximate mean over ranks. The error that compression makes is stored and added to
the next step's gradients (error feedback, Karimireddy et al. 2019), so that it is only delayed. This helps where the
network is the bottleneck; between processes of one machine it costs time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tilewright.support.errors import CollectiveError

Array = np.ndarray[Any, Any]
BLOCK = 1024
"""Elements that share a scale in 8 bits, or the two means of signs."""


class Exchange(Protocol):
    """The interface of the collective operations that compression methods use, which `tw.collective.Group` has."""

    ranks: int

    def all_reduce(self, array: Array, operation: str) -> Any:
        """Replace `array` on every rank by the reduction, by `operation`, of all ranks' arrays; returns it."""
        ...

    def all_gather(self, array: Array) -> Array:
        """The arrays of all ranks, [ranks, *array.shape], on every rank."""
        ...


class Method:
    """A compression method; `mean` replaces a vector by its approximate mean over ranks, and counts bytes.

    Args:
        start: steps before the first compressed one. Early gradients change most from step to step, so that delaying
            parts of them does most harm.

    Attributes:
        sent, whole: bytes that this rank has sent, and would have sent without compression.
    """

    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise CollectiveError("no such step", where="compressed", expected="0 or more", got=start)
        self.start = start
        self.sent = 0
        self.whole = 0
        self._steps: dict[Any, int] = {}
        self._residuals: dict[Any, Array] = {}

    @property
    def ratio(self) -> float:
        """The bytes that this rank would have sent without compression, divided by those that it has sent; 1 before it
        has sent any."""
        return self.whole / self.sent if self.sent else 1.0

    def mean(self, group: Exchange, vector: Array, key: Any) -> None:
        """Replace an f32 vector in place by its approximate mean over ranks. `key` identifies the vector from step to
        step."""
        if vector.dtype != np.float32 or vector.ndim != 1:
            got = f"{vector.dtype}, {vector.ndim} dimensions"
            raise CollectiveError("this is not compressed", where="compressed", expected="f32, one dimension", got=got)
        self.whole += vector.nbytes
        residual = self._residuals.get(key)
        if residual is None or residual.size != vector.size:
            residual = self._residuals[key] = np.zeros_like(vector)
        step = self._steps[key] = self._steps.get(key, 0) + 1
        if step <= self.start:
            self._reduced(group, vector)
        elif vector.size:
            self._mean(group, vector, residual, key)

    def _mean(self, group: Exchange, vector: Array, residual: Array, key: Any) -> None:
        raise NotImplementedError

    def _gathered(self, group: Exchange, payload: Array) -> Array:
        self.sent += payload.nbytes
        return group.all_gather(payload)

    def _reduced(self, group: Exchange, array: Array) -> Array:
        self.sent += array.nbytes
        group.all_reduce(array, "avg")
        return array


class Half(Method):
    """Gradients as f16, half of the bytes. Numbers beyond 65504 are clamped, and the difference is sent in a later
    step."""

    def _mean(self, group: Exchange, vector: Array, residual: Array, key: Any) -> None:
        vector += residual
        half = np.clip(vector, -65504, 65504).astype(np.float16)
        np.subtract(vector, half, out=residual)
        vector[:] = self._reduced(group, half)


class Int8(Method):
    """Gradients as codes of 8 bits with a scale for each `BLOCK` elements: a quarter of the bytes."""

    def _mean(self, group: Exchange, vector: Array, residual: Array, key: Any) -> None:
        vector += residual
        blocks = -(-vector.size // BLOCK)
        padded = np.zeros((blocks, BLOCK), np.float32)
        padded.reshape(-1)[: vector.size] = vector
        scale = np.abs(padded).max(1, keepdims=True) / np.float32(127)
        codes = np.rint(padded / np.where(scale > 0, scale, 1)).astype(np.int8)
        residual[:] = vector - (codes * scale).reshape(-1)[: vector.size]
        size = vector.size
        payload = np.concatenate([scale.view(np.uint8).reshape(-1), codes.view(np.uint8).reshape(-1)[:size]])
        vector[:] = 0
        for one in self._gathered(group, payload):
            scales = np.repeat(one[: 4 * blocks].view(np.float32), BLOCK)[:size]
            vector += one[4 * blocks :].view(np.int8) * scales
        vector /= group.ranks


class TopK(Method):
    """The elements of largest magnitude, and their indices.

    Args:
        share: of the elements that are sent.
    """

    def __init__(self, share: float = 0.01, start: int = 0) -> None:
        super().__init__(start)
        if not 0 < share <= 1:
            raise CollectiveError("no such share", where="top-k", expected="0 to 1", got=share)
        self.share = share

    def _mean(self, group: Exchange, vector: Array, residual: Array, key: Any) -> None:
        vector += residual
        count = min(vector.size, max(1, round(self.share * vector.size)))
        places = np.sort(np.argpartition(np.abs(vector), -count)[-count:]).astype(np.uint32)
        values = vector[places]
        residual[:] = vector
        residual[places] = 0
        vector[:] = 0
        for one in self._gathered(group, np.concatenate([places.view(np.uint8), values.view(np.uint8)])):
            vector[one[: 4 * count].view(np.uint32)] += one[4 * count :].view(np.float32)
        vector /= group.ranks


class Signs(Method):
    """One bit for each element, and for each `BLOCK` elements the means of the positive and of the negative ones (Seide
    et al. 2014, who use columns instead of blocks): layers with gradients of different magnitude need separate
    means."""

    def _mean(self, group: Exchange, vector: Array, residual: Array, key: Any) -> None:
        vector += residual
        size, positive = vector.size, vector >= 0
        firsts = np.arange(0, size, BLOCK)
        counts = np.add.reduceat(positive, firsts, dtype=np.int64), np.add.reduceat(~positive, firsts, dtype=np.int64)
        sums = (np.add.reduceat(np.where(side, vector, 0), firsts) for side in (positive, ~positive))
        means = np.stack([total / np.maximum(n, 1) for total, n in zip(sums, counts, strict=True)]).astype(np.float32)
        residual[:] = vector - _signed(positive, means)
        vector[:] = 0
        for one in self._gathered(group, np.concatenate([means.view(np.uint8).reshape(-1), np.packbits(positive)])):
            theirs = one[: means.nbytes].copy().view(np.float32).reshape(means.shape)
            vector += _signed(np.unpackbits(one[means.nbytes :], count=size).view(np.bool_), theirs)
        np.divide(vector, np.float32(group.ranks), out=vector)


def _signed(positive: Array, means: Array) -> Array:
    """A vector reconstructed from the `positive` flags of its elements: each is the mean of the positive, or of the
    negative, elements of its block. `means`: f32[2, blocks]."""
    high, low = (np.repeat(side, BLOCK)[: positive.size] for side in means)
    return np.where(positive, high, low)


class PowerSGD(Method):
    """Two narrow matrices whose product approximates the gradients, arranged as a square matrix (Vogels et al. 2019).

    Args:
        rank: columns of the matrices.
    """

    def __init__(self, rank: int = 4, start: int = 0) -> None:
        super().__init__(start)
        if rank < 1:
            raise CollectiveError("no such rank", where="PowerSGD", expected="1 or more", got=rank)
        self.rank = rank
        self._right: dict[Any, Array] = {}

    def _mean(self, group: Exchange, vector: Array, residual: Array, key: Any) -> None:
        rows = int(np.ceil(np.sqrt(vector.size)))
        columns = -(-vector.size // rows)
        if 2 * self.rank >= min(rows, columns):
            self._reduced(group, vector)
            return
        vector += residual
        matrix = np.zeros((rows, columns), np.float32)
        matrix.reshape(-1)[: vector.size] = vector
        right = self._right.get(key)
        if right is None or right.shape != (columns, self.rank):
            right = np.random.default_rng(0).standard_normal((columns, self.rank)).astype(np.float32)
        left = np.linalg.qr(self._reduced(group, matrix @ right))[0].astype(np.float32)
        own = matrix.T @ left
        right = self._right[key] = self._reduced(group, own)
        product = (left @ right.T).reshape(-1)[: vector.size]
        np.subtract(vector, product, out=residual)
        vector[:] = product


METHODS: dict[str, Callable[..., Method]] = {
    "fp16": Half,
    "int8": Int8,
    "top-k": TopK,
    "1-bit": Signs,
    "powersgd": PowerSGD,
}
"""Methods by name."""


def method(name: str, **options: Any) -> Method:
    """A new compression method of the kind `name`, a key of `METHODS`, with its `options`. Raises CollectiveError if
    there is none."""
    if name not in METHODS:
        raise CollectiveError("no such compression", where="compressed", expected=sorted(METHODS), got=str(name)[:40])
    return METHODS[name](**options)


class Compressed:
    """A function for `tw.compile_step(..., reduce=)`, which replaces each part of the gradients by its approximate mean
    over a group's ranks. `ratio` is the compression ratio so far."""

    def __init__(self, group: Exchange, name: str, **options: Any) -> None:
        self.group = group
        self.method = method(name, **options)

    def __call__(self, part: Array) -> None:
        self.method.mean(self.group, part, (part.ctypes.data, part.size))

    @property
    def ratio(self) -> float:
        return self.method.ratio


__all__ = ["METHODS", "Compressed", "Exchange", "Method", "method"]
