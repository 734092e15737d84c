"""Checks a user's weights against the program's parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.interop import Array, as_numpy, describe, on_cpu
from tilewright.runtime.native import native
from tilewright.runtime.specs import ParamSpec, PatternSpec
from tilewright.support.errors import CallError, Problems, WeightError

_UNFIT = "the weights do not fit"
_UNFOLDED = (
    "compile the model with the new weights, or leave this one out; PyTorch's exporters fold nothing with "
    "optimize=False (do_constant_folding=False with dynamo=False)"
)
_OTHER_PATTERN = "compile tw.with_patterns of the model with the new weights, or set these elements to 0"
NO_ARRAYS: Mapping[str, Array] = MappingProxyType({})
_F32 = np.dtype(np.float32)


def check_weights(
    params: Sequence[ParamSpec],
    weights: Mapping[str, Any],
    *,
    finite: bool,
    ignored: Collection[str] = (),
    tied: Collection[tuple[str, str]] = (),
    folded: Collection[tuple[str, str]] = (),
    patterns: Collection[PatternSpec] = (),
    fixed: Mapping[str, Array] = NO_ARRAYS,
) -> list[Array]:
    """The arrays in the parameters' order, names, shapes and types checked; WeightError listing all that is wrong.

    Args:
        finite: if there are other errors, also list weights with NaN or infinity. If there are none, `check_finite`
            tests that later, when the arrays are read anyway.
        ignored: names that weights may contain, and whose values are not used.
        tied: those among them that must hold the same numbers as a parameter, (name, the parameter's name).
        folded: names that weights must not contain, (name, explanation of how that weight was folded).
        patterns: outside of which weights must be 0.
        fixed: the arrays of parameters that are not among `params`, where patterns name such.
    """
    problems = Problems()
    if not isinstance(weights, Mapping):
        raise WeightError("not a mapping of names to arrays", got=type(weights).__qualname__)
    known = {*ignored, *(p.name for p in params), *(name for name, _ in folded)}
    extra = [str(name) for name in weights if name not in known]
    if extra and any(isinstance(value, Mapping | list | tuple) for value in weights.values()):
        weights = flattened(weights)
        extra = [name for name in weights if name not in known]
    _check_prefix(weights, known)
    for name in extra:
        problems.add(WeightError("there is no such weight", where=f"weight {name!r}"))
    for name, element in folded:
        if name in weights:
            problems.add(WeightError(f"cannot change: {element}", where=f"weight {name!r}", hint=_UNFOLDED))
    arrays: list[Array] = []
    fitting: list[ParamSpec] = []
    for p in params:
        # A publish of a small policy is mostly this loop: what only an error needs is made there.
        array = weights.get(p.name)
        if type(array) is not np.ndarray:
            array = _as_array(p, weights, problems)
            if array is None:
                continue
        wanted = BY_NAME[p.dtype].numpy
        if array.shape != p.shape or (array.dtype is not wanted and not _is_same(array.dtype, wanted)):
            problems.add(_misfit(p, array))
        else:
            arrays.append(array)
            fitting.append(p)
    if problems and finite:
        _add_unfit(problems, fitting, arrays)
    if tied:
        _add_untied(problems, weights, tied, dict(zip((p.name for p in fitting), arrays, strict=True)))
    if patterns:
        _add_outside(problems, patterns, {**fixed, **dict(zip((p.name for p in fitting), arrays, strict=True))})
    problems.raise_if_any(_UNFIT, kind=WeightError)
    return arrays


def flattened(tree: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """The arrays in `tree`, nested mappings and sequences as JAX libraries store weights, by `prefix` and the path to
    each: "layers.0.kernel". `depth` is the level of `tree` in the whole tree. Raises WeightError if it is too deep."""
    if depth > MAX_TREE:
        raise WeightError("the tree of weights is too deep", expected=f"at most {MAX_TREE} levels")
    named = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    result: dict[str, Any] = {}
    for key, value in named:
        name = f"{prefix}{key}"
        if isinstance(value, Mapping | list | tuple):
            result.update(flattened(value, f"{name}.", depth + 1))
        else:
            result[name] = value
    return result


MAX_TREE = 64
"""The deepest nesting of a tree of weights."""


def _add_untied(
    problems: Problems, weights: Mapping[str, Any], tied: Collection[tuple[str, str]], arrays: Mapping[str, Array]
) -> None:
    """Record in `problems` each pair of `tied` names, one tensor when the model was compiled, whose arrays, in
    `weights` and `arrays`, now differ."""
    for name, leader in tied:
        if name not in weights or leader not in arrays:
            continue
        where = f"weight {name!r}"
        read = arrays[leader]
        try:
            arguments = as_numpy(on_cpu(weights[name]), where)
        except CallError as error:
            problems.add(WeightError(error.what, where=where, expected=error.expected, got=error.got))
            continue
        if not _are_equal(arguments, read):
            what = f"was one tensor with {leader!r} when the model was compiled, and now differs from it"
            problems.add(WeightError(what, where=where, hint="compile the model anew, without tying them first"))


def _add_outside(problems: Problems, patterns: Collection[PatternSpec], arrays: Mapping[str, Array]) -> None:
    """Record in `problems` the sparse weights among `arrays` with nonzero elements outside of their pattern, which
    products would ignore."""
    for pattern in patterns:
        if pattern.weight not in arrays or pattern.rows not in arrays:
            continue
        nonzero = arrays[pattern.weight] != 0
        places = _in_pattern(pattern, arrays[pattern.rows], nonzero.shape)
        outside = np.count_nonzero(nonzero) - np.count_nonzero(nonzero.reshape(-1).take(places))
        if outside:
            where, expected = f"weight {pattern.weight!r}", f"0 outside of the pattern's {places.size} elements"
            got = f"{outside} elements that are not 0 there"
            what = "has numbers outside of the pattern that it was compiled with"
            problems.add(WeightError(what, where=where, expected=expected, got=got, hint=_OTHER_PATTERN))


def _in_pattern(pattern: PatternSpec, index: Array, shape: tuple[int, ...]) -> Array:
    """The positions of a pattern's elements in the flattened weight of this shape, each once; `index` has the rows of
    its blocks."""
    depth, columns = shape[::-1] if pattern.transposed else shape
    panels, blocks = np.nonzero((index >= 0) & (index < depth))  # the others are padding
    row = index[panels, blocks].astype(np.int64)[:, None]
    column = panels[:, None] * pattern.width + np.arange(pattern.width)
    places = column * depth + row if pattern.transposed else row * columns + column
    return places[column < columns] if columns % pattern.width else places.reshape(-1)


def _are_equal(a: Array, b: Array) -> bool:
    """Whether `a` and `b` hold the same numbers, NaN where the other has NaN; it returns at once if they are the same
    memory."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.ctypes.data == b.ctypes.data and a.strides == b.strides:
        return True
    return bool(((a == b) | ((a != a) & (b != b))).all())


def check_finite(params: Sequence[ParamSpec], arrays: Sequence[Array], some: Sequence[int] | None = None) -> None:
    """Raise WeightError that lists the arrays with NaN or infinity. With `some`, numbers of arrays, only these are
    scanned, and it is raised only if one of them has any."""
    if _all_finite(arrays if some is None else [arrays[k] for k in some]):
        return
    problems = Problems()
    _add_unfit(problems, params, arrays)
    problems.raise_if_any(_UNFIT, kind=WeightError)


def _add_unfit(problems: Problems, params: Sequence[ParamSpec], arrays: Sequence[Array]) -> None:
    hint = "pass finite=False to accept them"
    for p, array in zip(params, arrays, strict=True):
        if not _all_finite([array]):
            problems.add(WeightError("holds NaN or infinity", where=f"weight {p.name!r}", hint=hint))


def _as_array(p: ParamSpec, weights: Mapping[str, Any], problems: Problems) -> Array | None:
    """The weight for parameter `p` as NumPy array; None, with the reason recorded in `problems`, if it is missing or
    cannot be converted."""
    where = f"weight {p.name!r}"
    if p.name not in weights:
        problems.add(WeightError("is missing", where=where, expected=f"{p.dtype}{list(p.shape)}"))
        return None
    try:
        return as_numpy(on_cpu(weights[p.name]), where)
    except CallError as error:
        problems.add(WeightError(error.what, where=where, expected=error.expected, got=error.got))
        return None


def _is_same(result: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    return result == wanted and result.isnative


def _misfit(p: ParamSpec, array: Array) -> WeightError:
    expected = f"{p.dtype}[{', '.join(map(str, p.shape))}]"
    hint = _how_to_convert(array, p)
    what = "wrong shape or type"
    return WeightError(what, where=f"weight {p.name!r}", expected=expected, got=describe(array), hint=hint)


def _how_to_convert(array: Array, wanted: ParamSpec) -> str | None:
    """A hint how to cast an array, for learners that train in half precision; None if a cast is not the problem."""
    is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    if array.shape != wanted.shape or wanted.dtype != "f32" or not is_float:
        return None
    return "publish {name: w.float() for name, w in module.state_dict().items()}"


def _check_prefix(weights: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise a single error, instead of two for each weight, if all names, without the prefix of a wrapped module, are
    `known`."""
    for prefix in ("module.", "_orig_mod."):
        if weights and all(str(name).startswith(prefix) and str(name)[len(prefix) :] in known for name in weights):
            inner = prefix.rstrip(".")
            hint = f"give the inner module's: wrapped.{inner}.state_dict()"
            raise WeightError(f"every name begins with {prefix!r}: these are a wrapper's weights", hint=hint)


def check_version(wanted: object, newest: int, *, force: bool = False) -> int:
    """The version to publish as: `wanted`, or one more than the newest if that is None. WeightError unless it grows.

    Args:
        force: accept any valid version number, even if it does not grow.
    """
    if wanted is None:
        return newest + 1
    least = 0 if force else newest + 1
    if not isinstance(wanted, (int, np.integer)) or isinstance(wanted, bool) or wanted >= 1 << 62:
        raise WeightError("not a version", expected=f"a whole number from {least} to 2**62", got=repr(wanted))
    if wanted < least:
        hint = None if force else "a publisher may go back with force=True"
        raise WeightError("the version does not grow", expected=f"at least {least}", got=repr(wanted), hint=hint)
    return int(wanted)


def _all_finite(arrays: Sequence[Array]) -> bool:
    """Whether no element is NaN or infinite; dense f32 arrays are scanned by native code at memory bandwidth."""
    dense: list[Array] = []
    others: list[Array] = []
    for array in arrays:
        (dense if array.dtype is _F32 and array.flags.c_contiguous else others).append(array)
    floats = [a for a in others if a.dtype.kind == "f" or a.dtype.name == "bfloat16"]
    return native().are_finite(dense) and all(bool(np.isfinite(a).all()) for a in floats)
