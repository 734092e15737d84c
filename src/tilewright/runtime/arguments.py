"""Arguments of a call that the native fast path rejects: each is checked and, where allowed, converted; one error lists
all that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.interop import Array, as_numpy, describe
from tilewright.runtime.specs import InputSpec, OutputSpec, SymbolSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, Error, Problems


@dataclass(frozen=True, slots=True)
class BoundInputs:
    """The inputs of a call as arrays that native code accepts, with the values of symbols, in order, that their shapes
    determine."""

    arrays: list[Array]
    dims: tuple[int, ...]


def describe_spec(spec: InputSpec | OutputSpec) -> str:
    """The type and shape of `spec` as text for messages: "f32[n, 17]"."""
    return f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"


def in_order(names: Sequence[str], inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """All inputs of a call in the order of `names`: positional ones first, then keyword arguments. Raises CallError,
    which lists unknown names, names that were passed twice, and missing inputs."""
    if not named:
        return tuple(inputs)
    problems = Problems()
    first = names[: len(inputs)]
    for name in named:
        if name not in names:
            expected = f"one of {list(names)}"
            problems.add(CallError("there is no such input", where=f"input {name!r}", expected=expected))
        elif name in first:
            problems.add(CallError("was given twice, by its place and by its name", where=f"input {name!r}"))
    for name in names[len(inputs) :]:
        if name not in named:
            problems.add(CallError("is missing", where=f"input {name!r}"))
    if len(inputs) > len(names):
        problems.add(CallError("too many inputs", expected=f"{len(names)} ({', '.join(names)})", got=len(inputs)))
    problems.raise_if_any("the inputs do not fit", kind=CallError)
    return (*inputs, *(named[name] for name in names[len(inputs) :]))


def bind_inputs(
    inputs: Sequence[InputSpec],
    symbols: Sequence[SymbolSpec],
    args: Sequence[Any],
    view: Callable[[Any, str, bool], Any] = as_numpy,
) -> BoundInputs:
    """Check and convert all inputs; raises CallError, which lists everything that does not fit.

    Arrays that are not contiguous or aligned are copied. Dtypes are never converted, as a wrong one is probably a
    mistake.

    Args:
        view: gives an argument as NumPy's array, or as one like it that is elsewhere and stays as it is.
    """
    if len(args) != len(inputs):
        names = ", ".join(f"{i.name}: {describe_spec(i)}" for i in inputs)
        raise CallError("wrong number of inputs", expected=f"{len(inputs)} ({names})", got=len(args))
    problems = Problems()
    bound: dict[str, tuple[int, str]] = {}
    arrays: list[Array] = []
    for spec, arg in zip(inputs, args, strict=True):
        where = f"input {spec.name!r}"
        try:
            array = view(arg, where, spec.written)
            _check_input(array, spec, where, bound)
            as_it_is = spec.written or not isinstance(array, np.ndarray)
            arrays.append(array if as_it_is else np.require(array, requirements=["C", "A"]))
        except Error as error:
            problems.add(error)
    problems.raise_if_any("the inputs do not fit", kind=CallError)
    for s in symbols:
        value, where = bound[s.name]
        if not s.lo <= value <= s.hi or value % s.multiple:
            multiple = f", a multiple of {s.multiple}" if s.multiple > 1 else ""
            expected = f"{s.name} in {s.lo}..{s.hi}{multiple}"
            hint = f'if it may be empty: tw.compile(..., dims={{"{s.name}": tw.dim(0, ...)}})' if value == 0 else None
            problems.add(CallError("a dimension is out of range", where=where, expected=expected, got=value, hint=hint))
    problems.raise_if_any("the inputs do not fit", kind=CallError)
    _check_written(inputs, arrays)
    return BoundInputs(arrays, tuple(bound[s.name][0] for s in symbols))


def _check_written(inputs: Sequence[InputSpec], arrays: Sequence[Array]) -> None:
    for k, spec in enumerate(inputs):
        for j in range(len(inputs)):
            if spec.written and j != k and np.may_share_memory(arrays[k], arrays[j]):
                what = f"is written to and shares memory with {inputs[j].name!r}"
                raise CallError(what, where=f"input {spec.name!r}")


def _check_input(array: Array, spec: InputSpec, where: str, bound: dict[str, tuple[int, str]]) -> None:
    want = BY_NAME[spec.dtype].numpy
    if array.dtype != want or not array.dtype.isnative:
        hint = f"convert it: x.astype(np.{want.name})" if want.isbuiltin == 1 else None
        raise CallError("wrong element type", where=where, expected=describe_spec(spec), got=describe(array), hint=hint)
    if array.ndim != len(spec.shape):
        hint = "add the batch: x[None]" if array.shape == spec.shape[1:] else None
        raise CallError("wrong rank", where=where, expected=describe_spec(spec), got=describe(array), hint=hint)
    if spec.written and not (_writable_in_place(array) and array.flags.writeable):
        raise CallError("is written to, so it must be contiguous, aligned and writable", where=where)
    for axis, (dim, size) in enumerate(zip(spec.shape, array.shape, strict=True)):
        if isinstance(dim, str):
            value, first = bound.setdefault(dim, (size, where))
            if value != size:
                raise CallError(
                    f"dimension {axis} disagrees with {first}", where=where, expected=f"{dim} = {value}", got=size
                )
        elif dim != size:
            raise CallError(f"wrong dimension {axis}", where=where, expected=describe_spec(spec), got=describe(array))


def bind_outputs(
    outputs: Sequence[OutputSpec], shapes: Sequence[tuple[int, ...]], out: Any
) -> tuple[list[Array], list[Array]]:
    """(the caller's arrays in `out`, checked against `outputs` and their `shapes`; for each the array that native code
    writes): the latter is the caller's, or a new one that is copied back if it cannot be written in place. Raises
    CallError for arrays that do not fit."""
    arguments = list(out) if isinstance(out, (tuple, list)) else [out]
    if len(arguments) != len(outputs):
        names = ", ".join(f"{o.name}: {describe_spec(o)}" for o in outputs)
        raise CallError("wrong number of outputs", expected=f"{len(outputs)} ({names})", got=len(arguments))
    problems = Problems()
    theirs: list[Array] = []
    ours: list[Array] = []
    for spec, shape, obj in zip(outputs, shapes, arguments, strict=True):
        where = f"output {spec.name!r}"
        try:
            array = as_numpy(obj, where, written=True)
            _check_output(array, spec, shape, where)
            theirs.append(array)
            ours.append(array if _writable_in_place(array) else np.empty(shape, array.dtype))
        except Error as error:
            problems.add(error)
    problems.raise_if_any("the outputs do not fit", kind=CallError)
    for k, a in enumerate(theirs):
        for j in range(k):
            if np.may_share_memory(a, theirs[j]):
                where = f"output {outputs[k].name!r}"
                problems.add(CallError(f"shares memory with output {outputs[j].name!r}", where=where))
    problems.raise_if_any("the outputs do not fit", kind=CallError)
    return theirs, ours


def _check_output(array: Array, spec: OutputSpec, shape: tuple[int, ...], where: str) -> None:
    want = BY_NAME[spec.dtype].numpy
    expected = f"{spec.dtype}[{', '.join(map(str, shape))}]"
    if array.dtype != want or not array.dtype.isnative:
        raise CallError("wrong element type", where=where, expected=expected, got=describe(array))
    if array.shape != shape:
        raise CallError("wrong shape", where=where, expected=expected, got=describe(array))
    if not array.flags.writeable:
        raise CallError("is read-only", where=where)
    if _overlaps_itself(array):
        raise CallError("several of its elements are one in memory", where=where, hint="out.contiguous()")


def _overlaps_itself(array: Array) -> bool:
    """Whether two indices address the same memory, as in a tensor expanded with stride 0."""
    inner = array.itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride < inner:
            return True
        inner += stride * (size - 1)
    return False


def _writable_in_place(array: Array) -> bool:
    return bool(array.flags.c_contiguous and array.flags.aligned)


def separate(inputs: list[Array], outputs: Sequence[Array]) -> list[Array]:
    """`inputs`, with copies of those that share memory with an output, since native code may write outputs before it
    has read all inputs."""
    return [x.copy() if any(np.may_share_memory(x, o) for o in outputs) else x for x in inputs]
