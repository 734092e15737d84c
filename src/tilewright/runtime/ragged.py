"""`Ragged`: arrays of different lengths, concatenated to one, with offsets of their first rows and the end.

batch = tw.ragged([np.arange(5), np.arange(2)])     rows 0 1 2 3 4 0 1, offsets 0 5 7
model = tw.compile("bert.onnx", ragged=("batch", "seq"))
states = model(batch)                               a Ragged again: states[1] has two rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.arguments import in_order
from tilewright.runtime.interop import Array, as_numpy
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.specs import InputSpec, RaggedSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Arrays that have all but their first dimension in common.

    Args:
        rows: [total, ...].
        offsets: i64[count + 1], from 0 to total: array k is `rows[offsets[k]:offsets[k + 1]]`.
    """

    rows: Array
    offsets: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, k: int) -> Array:
        """Array `k`, a view."""
        if not -len(self) <= k < len(self):
            raise IndexError(k)
        k %= len(self)
        return self.rows[self.offsets[k] : self.offsets[k + 1]]

    def __iter__(self) -> Iterator[Array]:
        return (self[k] for k in range(len(self)))

    @property
    def lengths(self) -> Array:
        """The number of rows of each array, i64[count]."""
        return np.diff(self.offsets)

    def padded(self, value: Any = 0) -> Array:
        """The arrays as one of shape [count, greatest length, ...], filled up with `value`."""
        lengths = self.lengths
        shape = (len(self), int(max(lengths, default=0)))
        result = np.full((*shape, *self.rows.shape[1:]), value, self.rows.dtype)
        result[np.arange(shape[1]) < lengths[:, None]] = self.rows
        return result

    def __repr__(self) -> str:
        return f"<Ragged of {len(self)}: {self.rows.dtype}{list(self.rows.shape)} in all>"


def ragged(arrays: Sequence[Any]) -> Ragged:
    """Pack arrays (NumPy, PyTorch, JAX on the CPU, lists of numbers) that differ in their first dimension alone.

    Raises CallError for no arrays, scalars, and arrays of different types or other dimensions.
    """
    arguments = [
        as_numpy(np.asarray(a) if isinstance(a, list | tuple) else a, f"array {k}") for k, a in enumerate(arrays)
    ]
    if not arguments or any(a.ndim == 0 for a in arguments):
        raise CallError("a ragged batch has arrays with rows", got=f"{len(arguments)} arrays, scalars among them")
    kinds = {(a.dtype, a.shape[1:]) for a in arguments}
    if len(kinds) > 1:
        got = ", ".join(sorted(f"{dtype}{list(shape)}" for dtype, shape in kinds))
        raise CallError("arrays of a ragged batch differ in more than their number of rows", got=got)
    offsets = np.cumsum([0, *map(len, arguments)], dtype=np.int64)
    return Ragged(np.concatenate(arguments), offsets)


def call_ragged(manifest: Manifest, call: Callable[..., Any], /, *inputs: Any, out: Any = None, **named: Any) -> Any:
    """Call a program on packed rows: a `Ragged` (or a list of arrays) for each input that has rows, arrays for others.
    Outputs that have rows are `Ragged`s; `out` must be None, as outputs are new arrays. Raises CallError for what does
    not fit."""
    arguments, offsets = _arguments(manifest, inputs, out, named)
    return _results(manifest, call(*arguments), offsets)


def call_versioned(
    manifest: Manifest, call: Callable[..., Any], /, *inputs: Any, out: Any = None, **named: Any
) -> tuple[Any, int]:
    """Call a program on packed rows: the result as of `call_ragged`, and the version of the weights used."""
    arguments, offsets = _arguments(manifest, inputs, out, named)
    result, version = call(*arguments)
    return _results(manifest, result, offsets), version


def _arguments(
    manifest: Manifest, inputs: Sequence[Any], out: Any, named: Mapping[str, Any]
) -> tuple[list[Any], Array]:
    """(the inputs as the program takes them, the offsets of the sequences) of a call with packed sequences, whose
    arguments are `inputs`, by position, and `named`; inputs with rows are packed into one array each. Raises CallError
    for a wrong number of inputs, and if `out` is passed."""
    spec, where = manifest.ragged, f"program {manifest.name!r}"
    assert spec is not None
    if out is not None:
        raise CallError("ragged outputs are new arrays", where=where)
    wanted = [i for i in manifest.inputs if i.name != spec.starts]
    inputs = in_order([i.name for i in wanted], inputs, named)
    if len(inputs) != len(wanted):
        raise CallError("wrong number of inputs", where=where, expected=len(wanted), got=len(inputs))
    arguments = dict(zip((i.name for i in wanted), inputs, strict=True))
    batches = {i.name: _batch(i, arguments[i.name]) for i in wanted if spec.rows in i.shape}
    offsets = _offsets(spec, batches, where)
    packed = {i.name: _packed(i, batches[i.name], spec) for i in wanted if i.name in batches}
    arguments |= {**packed, spec.starts: np.ascontiguousarray(offsets[:-1])}
    return [arguments[i.name] for i in manifest.inputs], offsets


def _results(manifest: Manifest, result: Any, offsets: Array) -> Any:
    assert manifest.ragged is not None
    rows, several = manifest.ragged.rows, len(manifest.results) > 1
    results = [
        Ragged(y.reshape(y.shape[o.shape.index(rows) :]), offsets) if rows in o.shape else y
        for o, y in zip(manifest.results, result if several else (result,), strict=True)
    ]
    return tuple(results) if several else results[0]


def _batch(spec: InputSpec, value: Any) -> Ragged:
    if isinstance(value, Ragged):
        return value
    if isinstance(value, list | tuple):
        return ragged(value)
    hint = "pack them: tw.ragged(list_of_arrays)"
    raise CallError("sequences are wanted", where=f"input {spec.name!r}", got=type(value).__name__, hint=hint)


def _offsets(spec: RaggedSpec, batches: dict[str, Ragged], where: str) -> Array:
    """The first row of each sequence, and the end, which must agree in all `batches`. Raises CallError, about `where`,
    for lengths that the program does not allow."""
    offsets, *others = (b.offsets for b in batches.values())
    if any(not np.array_equal(offsets, o) for o in others):
        raise CallError("inputs have sequences of different lengths", where=where, got=", ".join(batches))
    lengths = np.diff(offsets)
    most = np.inf if spec.most is None else spec.most
    fits = offsets.dtype == np.int64 and len(lengths) and offsets[0] == 0
    if not fits or lengths.min() < max(1, spec.least) or lengths.max() > most:
        expected = f"{max(1, spec.least)}..{'' if spec.most is None else spec.most} rows each"
        raise CallError(
            "sequences are too short or too long", where=where, expected=expected, got=str(lengths.tolist())
        )
    return offsets


def _packed(spec: InputSpec, batch: Ragged, ragged: RaggedSpec) -> Array:
    """The rows of `batch` in the shape of the input `spec`, with leading dimensions of 1 if that has some."""
    if len(batch.rows) != batch.offsets[-1]:
        raise CallError("rows and offsets differ", where=f"input {spec.name!r}", got=repr(batch))
    return batch.rows.reshape((1,) * spec.shape.index(ragged.rows) + batch.rows.shape)


__all__ = ["Ragged", "ragged"]
