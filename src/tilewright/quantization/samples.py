"""Calibration samples: what callers give, as one dictionary of arrays a call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph
from tilewright.support.errors import CallError, Problems

Feed = dict[str, Any]
"""Arrays by input name."""

MAX_SAMPLES = 100_000
"""More samples than this are taken for an endless generator."""


def feeds_of(samples: Any, names: Sequence[str]) -> tuple[Feed, ...]:
    """Each sample as the arrays of one call.

    Args:
        samples: an iterable; each element is an array (of a model with one input), a sequence of arrays in the order of
            the inputs, or a mapping by name. A single mapping or array is one sample.
        names: the model's inputs.

    Raises CallError where there is no sample, or one does not name the model's inputs.
    """
    feeds: list[Feed] = []
    problems = Problems()
    for index, sample in enumerate(_each(samples)):
        if index >= MAX_SAMPLES:
            raise CallError("too many calibration samples", expected=f"at most {MAX_SAMPLES}", got="more")
        feed = _feed(sample, names)
        if set(feed) != set(names):
            got = " ".join(sorted(map(str, feed))) or "nothing"
            problems.add(
                CallError("does not fit the model's inputs", where=f"sample {index}", expected=" ".join(names), got=got)
            )
        feeds.append(feed)
    problems.raise_if_any("the calibration samples do not fit the model")
    if not feeds:
        raise CallError("there is no calibration sample", expected="at least one", got=0)
    return tuple(feeds)


def doubts(feeds: Sequence[Feed]) -> tuple[str, ...]:
    """Warnings about calibration samples: there is a single call, or all elements of an input are one number."""
    texts = ["there is a single calibration sample: ranges are those of one call"] if len(feeds) == 1 else []
    for name in feeds[0]:
        arrays = [np.asarray(feed[name]) for feed in feeds if np.size(feed[name])]
        if arrays and all((a == arrays[0].flat[0]).all() for a in arrays):
            texts.append(
                f"input {name!r} is {arrays[0].flat[0]} in all calibration samples: ranges say nothing of others"
            )
    return tuple(texts)


def _each(samples: Any) -> Iterable[Any]:
    if isinstance(samples, Mapping) or hasattr(samples, "__array__") or hasattr(samples, "__dlpack__"):
        return (samples,)
    if not isinstance(samples, Iterable):
        raise CallError("samples are arrays, tuples or dictionaries of them", got=type(samples).__name__)
    return samples


def _feed(sample: Any, names: Sequence[str]) -> Feed:
    if isinstance(sample, Mapping):
        return {str(name): _array(value) for name, value in sample.items()}
    if isinstance(sample, list | tuple):
        given = [_array(value) for value in sample]
        return (
            dict(zip(names, given, strict=False))
            if len(given) == len(names)
            else {str(k): v for k, v in enumerate(given)}
        )
    return {names[0]: _array(sample)} if len(names) == 1 else {"one array": sample}


def _array(value: Any) -> Any:
    """An array of NumPy with the numbers of any kind of array."""
    detach = getattr(value, "detach", None)
    value = detach() if callable(detach) else value
    return np.asarray(value)


def rows_of(arrays: Mapping[str, Any], graph: Graph, names: Sequence[str], most: int = 32) -> Iterator[Feed]:
    """Arrays whose first dimension counts samples, cut into calls: as many rows a call as the model's first dimension
    says, up to `most` where that is open. What is left over is a call of its own if the dimension is open.

    Raises CallError where the arrays hold different numbers of rows, or fewer than a call takes.
    """
    firsts = {name: (as_int(v.shape[0]) if v.shape else 0) for name, v in zip(names, graph.inputs, strict=True)}
    counts = {name: len(array) if np.ndim(array) else 0 for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise CallError("the arrays hold different numbers of samples", got=counts)
    count = next(iter(counts.values()), 0)
    fixed = {n for n in firsts.values() if n is not None}
    if len(fixed) > 1 or count == 0:
        raise CallError("samples cannot be cut along the first dimension", expected="one number of rows", got=firsts)
    step = next(iter(fixed), min(most, count))
    if not 0 < step <= count:
        raise CallError("the arrays hold fewer rows than a call of the model takes", expected=step, got=count)
    ends = range(0, count if not fixed else count - count % step, step)
    return ({name: array[k : k + step] for name, array in arrays.items()} for k in ends)
