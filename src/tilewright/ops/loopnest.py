"""A builder of flat loop programs, for operators that tensor expressions cannot express."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Expr, Var, as_expr, const, is_const
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import Allocate, For, If, Intrinsic, Let, LoopKind, PrimFunc, Region, Stmt, Store, seq
from tilewright.ir.notes import Unroll
from tilewright.ir.rewrite import fresh_name, variables
from tilewright.ir.scopes import Scope


class Cell:
    """A local variable of a loop program: `value` reads it, and `set` adds a statement that writes it. It is a buffer
    of one element."""

    def __init__(self, nest: Nest, buffer: Buffer) -> None:
        self.nest = nest
        self.buffer = buffer

    @property
    def value(self) -> Expr:
        return self.buffer[0]

    def set(self, value: Any) -> None:
        self.nest.store(self.buffer, (0,), value)


class Nest:
    """Builds the statements of a loop program. Methods add statements at the present place, which is inside a loop or
    condition within its `with` block; `finish` returns the program. Names of variables and buffers are made unique."""

    def __init__(self, name: str, params: Sequence[Buffer]) -> None:
        self.name = name
        self.params = tuple(params)
        self.used_names = {b.name for b in params} | {v.name for b in params for d in b.shape for v in variables(d)}
        self.stack: list[list[Stmt]] = [[]]

    def store(self, buffer: Buffer, indices: Sequence[Any], value: Any) -> None:
        self.stack[-1].append(Store(buffer, tuple(as_expr(i) for i in indices), as_expr(value, buffer.dtype)))

    def call(self, name: str, outputs: Sequence[Region], inputs: Sequence[Region]) -> None:
        """Add a call of the tensor intrinsic `name`, which reads the regions `inputs` and writes the regions
        `outputs`."""
        self.stack[-1].append(Intrinsic(name, tuple(outputs), tuple(inputs)))

    @contextmanager
    def loop(
        self, name: str, extent: Any, parallel: bool = False, kind: LoopKind = "serial", copies: int = 1
    ) -> Iterator[Var]:
        """Add a loop of `extent` iterations around the statements that are emitted inside the `with` block; yields its
        variable, whose name begins with `name`. The loop has the kind `kind`, or is divided among threads if
        `parallel`. `copies`: the factor by which code generation unrolls it."""
        var = Var(fresh_name(name, self.used_names))
        self.stack.append([])
        yield var
        body, notes = self._body(), (Unroll(copies),) if copies > 1 else ()
        self.stack[-1].append(For(var, as_expr(extent), body, "parallel" if parallel else kind, notes=notes))

    @contextmanager
    def loops(
        self, names: str, extents: Sequence[Any], parallel: bool = False, inner: LoopKind = "serial"
    ) -> Iterator[tuple[Var, ...]]:
        """Add a loop for each extent (there may be none), nested in this order; yields their variables, whose names
        begin with `names`. The innermost is of kind `inner`, the outermost parallel with `parallel`."""
        variables_: list[Var] = []
        for k, _ in enumerate(extents):
            variables_.append(Var(fresh_name(f"{names}{k}", self.used_names)))
        self.stack.append([])
        yield tuple(variables_)
        body = self._body()
        for k, (var, extent) in reversed(list(enumerate(zip(variables_, extents, strict=True)))):
            kind: LoopKind = inner if k == len(extents) - 1 else "serial"
            body = For(var, as_expr(extent), body, "parallel" if parallel and k == 0 else kind)
        self.stack[-1].append(body)

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        self.stack.append([])
        yield
        body = self._body()
        self.stack[-1].append(body if is_const(condition, True) else If(condition, body))

    @contextmanager
    def let(self, name: str, value: Expr) -> Iterator[Var]:
        var = Var(fresh_name(name, self.used_names), value.dtype)
        self.stack.append([])
        yield var
        body = self._body()
        self.stack[-1].append(Let(var, value, body))

    @contextmanager
    def allocate(self, name: str, dtype: DType, shape: Sequence[Any], scope: Scope = "local") -> Iterator[Buffer]:
        """Allocate a buffer of `dtype` and `shape` for the statements that are emitted inside the `with` block; yields
        it. Its name begins with `name`."""
        buffer = Buffer(fresh_name(name, self.used_names), dtype, tuple(as_expr(d) for d in shape), scope)
        self.stack.append([])
        yield buffer
        body = self._body()
        self.stack[-1].append(Allocate(buffer, body))

    @contextmanager
    def local(self, name: str, dtype: DType) -> Iterator[Cell]:
        """Allocate a variable of type `dtype` for the statements that are added inside the `with` block, and yield it;
        its name begins with `name`."""
        with self.allocate(name, dtype, (1,)) as buffer:
            yield Cell(self, buffer)

    def _body(self) -> Stmt:
        return seq(self.stack.pop())

    def finish(self) -> PrimFunc:
        (statements,) = self.stack
        return PrimFunc(self.name, self.params, seq(statements))


def buffers(
    types: Sequence[TensorType | None], outputs: Sequence[TensorType]
) -> tuple[list[Buffer | None], list[Buffer]]:
    """Buffers for an operator's present inputs and its outputs, to be the parameters of its loop program."""
    input_types = [None if t is None else Buffer(f"x{k}", t.dtype, t.shape) for k, t in enumerate(types)]
    return input_types, [Buffer(f"y{k}", t.dtype, t.shape) for k, t in enumerate(outputs)]


def zero_index(buffer: Buffer) -> tuple[Expr, ...]:
    return tuple(const(0) for _ in buffer.shape)
