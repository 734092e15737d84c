"""Where an argument's elements lie in memory: row by row, or by strides from an offset.

    A = te.placeholder((n, m), strides=(s, 1), offset=o)        A[i, j] is element o + i*s + j of the memory

In a program such a tensor is its memory, an array of one dimension that ends with the last element; results of stages
become so when they are scheduled (`place_results`). A caller passes a view, and `bind_views` finds the memory and what
the view's strides say of the symbols.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.arith import prove, prove_equal, simplify
from tilewright.ir.expr import Buffer, Expr, Load, Var, as_int, const, maximum
from tilewright.ir.loops import Intrinsic, PrimFunc, Stmt, Store
from tilewright.ir.rewrite import map_expr, map_stmt, substitute, variables
from tilewright.runtime.interop import Array, as_numpy, describe
from tilewright.support.errors import CallError, ScheduleError
from tilewright.te.tensors import Tensor

Values = dict[Var, Expr]


def memory_shape(t: Tensor) -> tuple[Expr, ...]:
    """The shape of a tensor's buffer: its own, or, for a tensor with strides, one dimension up to its last element."""
    if t.strides is None or t.offset is None:
        return t.shape
    if any(as_int(d) == 0 for d in t.shape):
        return (const(0),)
    reach: Expr = t.offset + 1
    for d, s in zip(t.shape, t.strides, strict=True):
        step = as_int(s)
        if step is None or step > 0:
            reach = reach + s * (d - 1)
    possible = [d >= 1 for d in t.shape if not prove(d >= 1)]
    return (simplify(maximum(reach, 0) if possible else reach),)


def memory_index(t: Tensor, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The indices in a tensor's buffer of the element at `indices`."""
    if t.strides is None or t.offset is None:
        return indices
    at = t.offset
    for i, s in zip(indices, t.strides, strict=True):
        at = at + i * s
    return (at,)


def place_results(func: PrimFunc, tensors: Mapping[str, Tensor]) -> PrimFunc:
    """`func`, already scheduled, with results that have strides written, and read, at the places of their elements.

    Raises ScheduleError where a step laid a result's memory out otherwise, or gave parts of it to an intrinsic.
    """
    memories: dict[Buffer, Buffer] = {}
    placed = {p: t for p in func.params if (t := tensors.get(p.name)) is not None and t.op is not None and t.strides}
    for p, t in placed.items():
        if len(p.shape) != len(t.shape) or not all(prove_equal(a, b) for a, b in zip(p.shape, t.shape, strict=True)):
            raise ScheduleError(f"the memory of {t.name!r} was laid out otherwise, so its strides mean nothing")
        memories[p] = replace(p, shape=memory_shape(t), align=None)
    if not placed:
        return func

    def on_expr(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer in placed:
            return Load(memories[e.buffer], memory_index(placed[e.buffer], e.indices))
        return None

    def on_stmt(s: Stmt) -> Stmt | None:
        if isinstance(s, Store) and s.buffer in placed:
            return replace(s, buffer=memories[s.buffer], indices=memory_index(placed[s.buffer], s.indices))
        if isinstance(s, Intrinsic):
            for region in (*s.outputs, *s.inputs):
                if region.buffer in placed:
                    raise ScheduleError(f"{region.buffer.name!r} has strides, which {s.name!r} does not see")
        return None

    body = map_stmt(func.body, on_stmt, lambda e: map_expr(e, on_expr))
    return replace(func, params=tuple(memories.get(p, p) for p in func.params), body=body)


def are_separate(sizes: Sequence[int | None], steps: Sequence[int | None]) -> bool:
    """Whether no two elements of an array with these sizes and the strides `steps` are known to share a place: each
    stride is larger than the reach of all smaller ones."""
    reach = 0
    if any(n is None or s is None for n, s in zip(sizes, steps, strict=True)):
        return all(s != 0 or n in (None, 0, 1) for n, s in zip(sizes, steps, strict=True))
    for step, size in sorted((abs(s or 0), n or 0) for n, s in zip(sizes, steps, strict=True) if n != 1):
        if size and step <= reach:
            return False
        reach += step * (size - 1)
    return True


def default_offset(shape: Sequence[Expr], strides: Sequence[Expr]) -> Expr:
    """The least offset of the first element of an array of `shape` with `strides` with which all elements are inside
    the memory: along negative strides the others lie before it."""
    offset: Expr = const(0)
    for d, s in zip(shape, strides, strict=True):
        step = as_int(s)
        if step is not None and step < 0 and as_int(d) != 0:
            offset = offset + (d - 1) * -step
    return simplify(offset)


def bind_views(tensors: Sequence[Tensor | None], arguments: Sequence[Any]) -> tuple[list[Any], Values]:
    """The arguments to pass to native code for a caller's `arguments`: for each tensor with strides the memory of the
    view that was passed. Also the values of all symbols in shapes, strides and offsets.

    Raises CallError where a view is not what its placeholder says.
    """
    views = {
        k: as_numpy(x, f"parameter {t.name!r}") for k, (t, x) in enumerate(zip(tensors, arguments, strict=True)) if t
    }
    values: Values = {}
    for k, view in views.items():
        _bind_shape(_tensor(tensors[k]), view, values)
    for k, view in views.items():
        _bind_strides(_tensor(tensors[k]), view, values)
    arrays = list(arguments)
    for k, view in views.items():
        t = _tensor(tensors[k])
        if t.strides is not None:
            arrays[k] = _memory(t, view, values)
    return arrays, values


def _tensor(t: Tensor | None) -> Tensor:
    assert t is not None
    return t


def _bind_shape(t: Tensor, view: Array, values: Values) -> None:
    where = f"parameter {t.name!r}"
    if view.ndim != len(t.shape):
        raise CallError("wrong rank", where=where, expected=len(t.shape), got=describe(view))
    for d, size in zip(t.shape, view.shape, strict=True):
        if isinstance(d, Var) and d not in values:
            _bind(d, size, where, values)


def _bind(v: Var, value: int, where: str, values: Values) -> None:
    least, most = v.lo if v.lo is not None else value, v.hi if v.hi is not None else value
    if not least <= value <= most or value % v.multiple:
        multiple = f", a multiple of {v.multiple}" if v.multiple > 1 else ""
        expected = f"{v.name} in {'' if v.lo is None else v.lo}..{'' if v.hi is None else v.hi}{multiple}"
        raise CallError("a symbol is out of range", where=where, expected=expected, got=value)
    values[v] = const(value)


def _bind_strides(t: Tensor, view: Array, values: Values) -> None:
    """Compare a view's strides with those of its tensor; strides along one element or none say nothing."""
    where = f"parameter {t.name!r}"
    if view.dtype != t.dtype.numpy or not view.dtype.isnative:
        raise CallError("wrong element type", where=where, expected=t.dtype, got=describe(view))
    if t.strides is None or t.offset is None:
        return
    steps = [s / view.itemsize for s in view.strides]
    idle = [n <= 1 or not view.size for n in view.shape]
    for s, step, free in zip(t.strides, steps, idle, strict=True):
        if isinstance(s, Var) and s not in values and not free:
            if step != int(step):
                raise CallError("elements lie between elements", where=where, got=f"strides {view.strides} bytes")
            _bind(s, int(step), where, values)
    for v in (v for s in t.strides for v in variables(s)):
        values.setdefault(v, const(max(v.lo or 0, v.multiple)))  # nothing depends on it
    if isinstance(t.offset, Var) and t.offset not in values:
        _bind(t.offset, (_start(view) - _owner_start(view)) // view.itemsize, where, values)
    wanted = [as_int(substitute(s, values)) for s in t.strides]
    if any(not free and step != want for step, want, free in zip(steps, wanted, idle, strict=True)):
        got = f"{list(view.strides)} bytes, elements of {view.itemsize}"
        raise CallError("wrong strides", where=where, expected=f"{wanted} elements", got=got)
    if t.op is not None and view.size and not are_separate(view.shape, [int(s) for s in steps]):
        raise CallError("two elements of a result share a place", where=where, got=f"strides {view.strides} bytes")


def _memory(t: Tensor, view: Array, values: Values) -> Array:
    """The memory of the array `view` passed for tensor `t`, from the view's offset before its first element on, as an
    array of one dimension."""
    where = f"parameter {t.name!r}"
    wanted = tuple(as_int(substitute(d, values)) for d in t.shape)
    if wanted != view.shape:
        raise CallError("wrong shape", where=where, expected=wanted, got=view.shape)
    if t.op is not None and not view.flags.writeable:
        raise CallError("is read-only", where=where)
    assert t.offset is not None
    offset, (extent,) = as_int(substitute(t.offset, values)), memory_shape(t)
    size = as_int(substitute(extent, values))
    if offset is None or size is None:
        unknown = next((v for e in (t.offset, extent) for v in variables(substitute(e, values))), None)
        what = "its memory has no size" if unknown is None else f"nothing says what {unknown.name!r} is"
        raise CallError(what, where=where)
    least = as_int(substitute(default_offset(t.shape, t.strides or ()), values)) or 0
    if offset < least:
        raise CallError("elements lie before the memory", where=where, expected=f"an offset of {least}", got=offset)
    if not view.size:
        try:
            return np.empty(size, view.dtype) if size < 1 << 20 else np.zeros(size, view.dtype)
        except (MemoryError, ValueError):
            raise CallError("not enough memory for a view", where=where, got=f"{size} elements") from None
    start = _start(view) - offset * view.itemsize
    if start < _owner_start(view):
        inside = (_start(view) - _owner_start(view)) // view.itemsize
        raise CallError(f"its first element is not at offset {offset} of its memory", where=where, got=inside)
    if start % view.dtype.alignment:
        raise CallError("is not aligned", where=where, expected=f"a multiple of {view.dtype.alignment} bytes")
    memory = (ctypes.c_byte * (size * view.itemsize)).from_address(start)
    result: Array = np.frombuffer(memory, dtype=view.dtype)  # type: ignore[call-overload]
    return result


def _start(view: Array) -> int:
    """The address of a view's first element."""
    return int(view.__array_interface__["data"][0])


def _owner_start(view: Array) -> int:
    """The lowest address of the array that owns the memory of `view`."""
    owner = view
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    below = sum((n - 1) * s for n, s in zip(owner.shape, owner.strides, strict=True) if s < 0 and n)
    return _start(owner) + int(below)
