"""Calibration samples: the caller's samples as one dictionary of arrays for each call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph
from tilewright.quantization.bound import Scores
from tilewright.runtime.model import Model
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, Problems

Feed = dict[str, Any]
"""The inputs of one call: arrays by input name."""

MAX_SAMPLES = 100_000
"""The number of samples above which the caller's iterable is assumed to be endless."""
FOLDS = 5
"""The number of folds that are left out in turn; with fewer samples, each is a fold."""
CALLS = 8
"""The least number of calls into which rows of a file are divided, as a bound from few calls is wide."""
EVERY = 4
"""The period of samples that measure a model instead of training it: each fourth one does."""


def feeds_of(samples: Any, names: Sequence[str]) -> tuple[Feed, ...]:
    """Each sample as the arrays of one call.

    Args:
        samples: an iterable; each element is an array (of a model with one input), a sequence of arrays in the order of
            the inputs, or a mapping by name. A single mapping or array is one sample.
        names: the model's inputs.

    Raises CallError where there is no sample, where one does not name the model's inputs or is no array, and where the
    iterable raises.
    """
    feeds: list[Feed] = []
    problems, known = Problems(), set[str]()  # the first of each kind: a wrong name is wrong in every sample
    for index, sample in enumerate(_drawn(samples)):
        if index >= MAX_SAMPLES:
            raise CallError("too many calibration samples", expected=f"at most {MAX_SAMPLES}", got="more")
        try:
            feeds.append(_feed(sample, names))
        except CallError as error:
            if str(error) not in known:
                known.add(str(error))
                error.where = f"calibration sample {index}"
                problems.add(error)
    problems.raise_if_any("the calibration samples do not fit the model")
    if not feeds:
        raise CallError("there is no calibration sample", expected="at least one", got=0)
    return tuple(feeds)


def outputs_of(model: Model, feeds: Sequence[Feed], *, compared: bool = True) -> list[Mapping[str, Any]]:
    """The outputs of the f32 model on each sample, which show that the samples fit it; none if `compared` is false.

    Raises CallError that names the sample where a call is refused, and where an input, or an output that is to be
    compared, holds a value that is not a number.
    """
    outputs: list[Mapping[str, Any]] = []
    for index, feed in enumerate(feeds):
        where = f"calibration sample {index}"
        unknown = next((name for name, array in feed.items() if _holds_nan(array)), None)
        if unknown is not None:
            raise CallError(f"input {unknown!r} holds a value that is not a number", where=where)
        try:
            results = model.run(feed)
        except CallError as error:
            error.where = where if error.where is None else f"{where}: {error.where}"
            raise
        unknown = next((name for name, array in results.items() if compared and _holds_nan(array)), None)
        if unknown is not None:
            what = f"output {unknown!r} of the model in f32 holds a value that is not a number"
            raise CallError(what, where=where, hint="give finite inputs of the usual size, or a metric of your own")
        if compared:
            outputs.append(results)
    if all(np.size(array) == 0 for feed in feeds for array in feed.values()):
        raise CallError("the calibration samples are empty", expected="at least one element", got=0)
    return outputs


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples by number, and folds that are left out of calibration in turn, each sample in one fold; no folds for a
    single sample, or if the metric is the caller's."""

    feeds: Mapping[int, Feed]
    folds: tuple[tuple[int, ...], ...]

    @property
    def first(self) -> Feed:
        """The sample with which calls are timed."""
        return self.feeds[0]

    @property
    def choices(self) -> list[Mapping[int, Feed]]:
        """The choices of samples for calibration: all samples, then all but each fold."""
        return [self.feeds, *({k: f for k, f in self.feeds.items() if k not in fold} for fold in self.folds)]


def in_folds(feeds: Sequence[Feed], *, measured: bool) -> Samples:
    """The samples, divided into folds if the metric is `measured` on them."""
    count = min(FOLDS, len(feeds)) if measured and len(feeds) > 1 else 0
    return Samples(dict(enumerate(feeds)), tuple(tuple(range(k, len(feeds), count)) for k in range(count)))


def divided(count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The numbers of the samples that train a model, and of those that measure it: every fourth one (3, 7, ...), the
    last of two or three; a single one does both."""
    held_out = tuple(range(EVERY - 1, count, EVERY)) or ((count - 1,) if count > 1 else ())
    return tuple(k for k in range(count) if k not in held_out), held_out or tuple(range(count))


def scored(metric: Callable[[Model], Any], model: Model) -> Scores:
    """The number that a caller's metric gives for a model, or the mean of its numbers, one for each sample. Raises
    CallError for anything else."""
    score = metric(model)
    expected, where = "a number, or one for each sample", "metric"
    try:
        numbers = np.asarray(score)
    except (TypeError, ValueError) as error:
        raise CallError("gives no number", where=where, expected=expected, got=type(score).__name__) from error
    if numbers.dtype.kind not in "fiub":
        raise CallError("gives no number", where=where, expected=expected, got=type(score).__name__)
    if numbers.ndim > 1 or not numbers.size:
        raise CallError("gives no number", where=where, expected=expected, got=f"shape {list(numbers.shape)}")
    values = numbers.astype(np.float64)
    return Scores(float(values.mean()), numbers=tuple(values.tolist()) if values.ndim else ())


def _holds_nan(array: Any) -> bool:
    array = np.asarray(array)
    return bool(array.dtype.kind in "fc" and np.isnan(array).any())


def doubts(feeds: Sequence[Feed]) -> tuple[str, ...]:
    """Warnings about calibration samples: there is only one call, or all elements of an input are equal."""
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
    if not isinstance(samples, Iterable) or isinstance(samples, str | bytes):
        hint = "np.load reads a file" if isinstance(samples, str | bytes | os.PathLike) else None
        got = type(samples).__name__
        raise CallError("samples are arrays, tuples or dictionaries of them", where="calibrate", got=got, hint=hint)
    return samples


def _drawn(samples: Any) -> Iterator[Any]:
    """Iterate over the samples. Raises CallError if the caller's iterable raises."""
    count, each = 0, iter(_each(samples))
    while True:
        try:
            sample = next(each)
        except StopIteration:
            return
        except Exception as error:
            what = f"the samples ended with {type(error).__name__}: {error}"
            raise CallError(what, where=f"calibration sample {count}") from error
        yield sample
        count += 1


def _feed(sample: Any, names: Sequence[str]) -> Feed:
    """The arrays of one call, by the input names `names`, from a `sample`: a mapping, a sequence or an array. Raises
    CallError if they do not match the inputs."""
    what, hint = "does not fit the model's inputs", None
    if isinstance(sample, Mapping):
        feed = {str(name): _array(value) for name, value in sample.items()}
        if set(feed) == set(names):
            return feed
        got = " ".join(sorted(feed)) or "nothing"
    elif isinstance(sample, list | tuple):
        if len(sample) == len(names):
            return dict(zip(names, map(_array, sample), strict=True))
        got = f"{len(sample)} arrays"
        hint = (
            "a list is an array for each input: np.asarray makes one array of it" if isinstance(sample, list) else None
        )
    elif len(names) == 1:
        return {names[0]: _array(sample)}
    else:
        got = "one array"
    raise CallError(what, expected=" ".join(names), got=got, hint=hint)


def _array(value: Any) -> Any:
    """`value`, an array of any library, as a NumPy array. Raises CallError if that is impossible."""
    detach = getattr(value, "detach", None)
    value = detach() if callable(detach) else value
    try:
        return np.asarray(value)
    except ValueError as error:  # of lists in lists of different lengths
        raise CallError("is no array", got=str(error)) from error


def rows_of(arrays: Mapping[str, Any], graph: Graph, names: Sequence[str], most: int = 32) -> Iterator[Feed]:
    """Arrays, by the inputs' names `names`, whose first dimension counts samples, divided into calls with as many rows
    as the model's first dimension; if that is symbolic, with at most `most`, and so few that there are at least `CALLS`
    calls. Remaining rows form another call if the dimension is symbolic. Raises CallError if the arrays have different
    numbers of rows, or fewer than a call needs."""
    firsts = {name: (as_int(v.shape[0]) if v.shape else 0) for name, v in zip(names, graph.inputs, strict=True)}
    counts = {name: len(array) if np.ndim(array) else 0 for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise CallError("the arrays hold different numbers of samples", got=counts)
    count = next(iter(counts.values()), 0)
    for name, array in arrays.items():
        if not np.size(array) or not np.ndim(array):
            expected = "an array whose first dimension counts samples"
            raise CallError(f"{name!r} holds no samples", expected=expected, got=f"shape {list(np.shape(array))}")
    if not arrays:
        raise CallError("there are no samples", expected=f"an array for each of {', '.join(names)}", got="no arrays")
    fixed = {n for n in firsts.values() if n is not None}
    if len(fixed) > 1:
        raise CallError("samples cannot be cut along the first dimension", expected="one number of rows", got=firsts)
    step = next(iter(fixed), min(most, max(1, count // CALLS)))
    if not 0 < step <= count:
        raise CallError("the arrays hold fewer rows than a call of the model takes", expected=step, got=count)
    ends = range(0, count if not fixed else count - count % step, step)
    return ({name: array[k : k + step] for name, array in arrays.items()} for k in ends)
