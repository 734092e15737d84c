"""`tw.comprehension`: a formula over elements to a function of arrays.

    matmul = tw.comprehension("C[m, n] +! A[m, k] * B[k, n]")
    c = matmul(a, b)                  # NumPy, PyTorch or JAX in, the same kind out

docs/comprehensions.md says what the text may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from tilewright.formulas.binding import Program, bind, symbolic_types
from tilewright.formulas.explain import explain
from tilewright.formulas.factoring import factored
from tilewright.formulas.nests import Nests, nests_of
from tilewright.formulas.notation import Notation, Statement, notation_of
from tilewright.formulas.parser import parse_program
from tilewright.formulas.pythonic import read_function
from tilewright.formulas.source import Source
from tilewright.functions.backward import backward_graph
from tilewright.ir.dtype import DType, dtype, f32
from tilewright.ir.expr import Expr, Var, as_expr, as_int
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ir.rewrite import substitute, variables
from tilewright.ops.comprehension import emit_nest
from tilewright.ops.registry import emit1
from tilewright.parts.entry import compile
from tilewright.runtime.interop import as_numpy
from tilewright.support.errors import CallError, ComprehensionError

Number = bool | int | float
Dynamic = bool | Collection[str] | Mapping[str, int]
Bounds = Literal["clamp", "check"]

MAX_MODELS = 64
"""The number of signatures for which a comprehension keeps programs; the oldest is dropped first."""


def comprehension(
    source: str | Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    dynamic: Dynamic = False,
    threads: int = 1,
    target: str | None = None,
    reduce: str | None = None,
    **constants: Number,
) -> Any:
    """A function of arrays from a text, from a Python function, or from a string of einsum, einops or einx.

    Args:
        source: the text, such as "C[m, n] +! A[m, k] * B[k, n]"; or a Python function, which is read and never run
            (without it, a decorator with these options); or "ij,jk->ik", "b c (h p) -> b h (c p)", "a [b]".
        name: what programs are called.
        dynamic: which sizes are symbols, so that one program serves all of them: names, as `explain` prints them, or
            True for all; a dict gives the least value of each. Else each combination of sizes gets a program of its
            own when it first comes.
        threads: of a call, the caller's included.
        target: the machine; the host if None.
        reduce: how einops' and einx' strings reduce: "sum" (the default), "prod", "max", "min", "mean", "any", "all".
        constants: numbers for names in the text; sizes of axes in einops' and einx' strings.

    Raises ComprehensionError listing everything that is wrong with the text.
    """
    if source is None:
        return lambda function: comprehension(
            function, name=name, dynamic=dynamic, threads=threads, target=target, reduce=reduce, **constants
        )
    for key, value in constants.items():
        if not isinstance(value, bool | int | float):
            raise ComprehensionError(f"{key!r} is no number", expected="a bool, int or float", got=type(value).__name__)
    options = {"threads": threads, "target": target}
    if callable(source):
        text, program, inputs = read_function(source, constants)
        return Comprehension(nests_of(program, text, inputs), name or source.__name__, dynamic, options)
    if not isinstance(source, str):
        raise ComprehensionError("not a comprehension", expected="a text or a function", got=type(source).__name__)
    notation = notation_of(source, reduce, constants)
    if notation is not None:
        return NotationFunction(notation, name or "comprehension", options)
    if reduce is not None:
        raise ComprehensionError(
            "reduce= is for strings of einops and einx", got=f"reduce={reduce!r}", hint="max! reduces"
        )
    text = Source(source)
    nests = nests_of(parse_program(text, constants), text)
    return Comprehension(nests, name or nests.results[0], dynamic, options)


class Comprehension:
    """A comprehension as a function of arrays. A call compiles it for the types and sizes of the arrays if it has no
    program for them."""

    def __init__(self, nests: Nests, name: str, dynamic: Dynamic, options: Mapping[str, Any]) -> None:
        self.nests = nests
        self.name = name
        self.options = options
        self._models: dict[Any, Any] = {}
        general = self._general(f32)
        known = [str(v) for t in general for d in t.shape for v in variables(d)]
        asked = dict.fromkeys((known if dynamic else ()) if isinstance(dynamic, bool) else dynamic, 1)
        self._symbols = asked | (dict(dynamic) if isinstance(dynamic, Mapping) else {})
        for label in self._symbols:
            if label not in known:
                expected = ", ".join(dict.fromkeys(known)) or "none"
                raise ComprehensionError(f"there is no size {label!r}", where=name, expected=expected)
        bind(nests, general, assuming=True)  # what is ambiguous for all sizes is said at once

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in calling order."""
        return self.nests.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the results."""
        return self.nests.results

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """The result for arrays, by order or by name; a tuple if there are several. `out` as in `Model`."""
        if named:
            arrays = self._ordered(arrays, named)
        try:
            signature = tuple([(a.dtype, a.shape) for a in arrays])
            model = self._models[signature]
        except (AttributeError, KeyError, RuntimeError, TypeError):  # PyTorch's nested tensors have no shape
            arrays = self._arrays(arrays)
            model = self.compiled(*arrays)
        return model(*arrays) if out is None else model(*arrays, out=out)

    def compiled(self, *arrays: Any) -> Any:
        """The `Model` that a call with these arrays runs."""
        arrays = self._arrays(arrays)
        entry = self._models.get(key := tuple(self._with_symbols(_types(arrays))))
        if entry is None:
            entry = self._models[key] = compile(self.graph(key), name=self.name, **self.options)
        if len(self._models) > 2 * MAX_MODELS:
            del self._models[next(iter(self._models))]
        self._models[tuple((a.dtype, a.shape) for a in arrays)] = entry
        return entry

    def graph(self, types: Sequence[TensorType]) -> Graph:
        """The graph of the comprehension for inputs of these types."""
        builder = GraphBuilder(self.name)
        values = [builder.input(n, t) for n, t in zip(self.inputs, types, strict=True)]
        return builder.finish(self.emit(builder, *values))

    def emit(self, builder: GraphBuilder, *values: Value) -> tuple[Value, ...]:
        """Add the comprehension's operators to a graph that is being built; returns its results."""
        program = self.bind([v.type for v in values])
        known = dict(zip(self.inputs, values, strict=True))
        for bound in program.bounds:
            for part in factored(bound, {n: v.shape for n, v in known.items()}):
                known[part.nest.target] = emit_nest(builder, part, known, program.sizes, part.nest.target)
        return tuple(known[n] for n in self.outputs)

    def backward(self, *arrays: Any) -> tuple[Any, ...]:
        """The gradients of the floating point inputs, in their order, from arrays for all inputs and, after them, the
        gradients of the floating point results.

        Raises UnsupportedError listing what has no gradient."""
        model = self.compiled_backward(*arrays[: len(self.inputs)])
        result = model(*arrays)
        return result if isinstance(result, tuple) else (result,)

    def compiled_backward(self, *arrays: Any) -> Any:
        """The `Model` that `backward` runs for inputs of these types."""
        types = tuple(_types(self._arrays(arrays)))
        entry = self._models.get(("backward", types))
        if entry is None:
            entry = compile(backward_graph(self, types), name=f"{self.name}_backward", **self.options)
            self._models["backward", types] = entry
        return entry

    def torch_op(self, name: str) -> Any:
        """The comprehension as PyTorch's custom operator "namespace::name"; see `functions/torch_op.py`."""
        from tilewright.functions.torch_op import torch_op

        return torch_op(self, name)

    def bind(self, types: Sequence[TensorType]) -> Program:
        """The comprehension with the ranges and types for inputs of these types. Raises ComprehensionError if they do
        not fit."""
        return bind(self.nests, types)

    def explain(self, *arrays: Any) -> str:
        """A text with the loops, for these arrays, or with symbolic sizes."""
        if not arrays:
            return explain(bind(self.nests, self._general(f32), assuming=True), typed=False)
        return explain(self.bind(_types(self._arrays(arrays))))

    def __repr__(self) -> str:
        return f"<comprehension {self.name}({', '.join(self.inputs)})>"

    # -- types ---------------------------------------------------------------------------------------------------------

    def _general(self, kind: DType) -> list[TensorType]:
        return symbolic_types(self.nests, kind)

    def _with_symbols(self, types: Sequence[TensorType]) -> list[TensorType]:
        """The types of inputs with symbols in place of the sizes that are dynamic."""
        if not self._symbols or any(
            t.rank != self.nests.ranks.get(n, 0) for n, t in zip(self.inputs, types, strict=True)
        ):
            return list(types)
        created = []
        for case, general in zip(types, self._general(f32), strict=True):
            shape = tuple(self._symbol(d, g) for d, g in zip(case.shape, general.shape, strict=True))
            created.append(replace(case, shape=shape))
        return created

    def _symbol(self, size: Expr, general: Expr) -> Expr:
        """The size `size`, or, if it is dynamic, the expression `general` of symbols that stands for it."""
        result = variables(general)
        if not result or not all(str(v) in self._symbols for v in result):
            return size
        return substitute(general, {v: Var(str(v), lo=self._symbols[str(v)]) for v in result})

    def _ordered(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arrays passed by position and by name, in the order of the inputs."""
        known = dict(zip(self.inputs, arrays, strict=False))
        for n, a in named.items():
            if n not in self.inputs or n in known:
                what = f"there is no input {n!r}" if n not in self.inputs else f"input {n!r} is given twice"
                raise CallError(what, where=self.name, expected=", ".join(self.inputs))
            known[n] = a
        return tuple(known[n] for n in self.inputs if n in known)

    def _arrays(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments as arrays; numbers become scalars of the first array's type."""
        if len(arrays) != len(self.inputs):
            expected = f"{len(self.inputs)} ({', '.join(self.inputs)})"
            raise CallError("wrong number of arrays", where=self.name, expected=expected, got=len(arrays))
        if all(map(_is_array, arrays)):
            return arrays
        first = next((as_numpy(a, "").dtype for a in arrays if hasattr(a, "dtype")), np.dtype(np.float32))
        return tuple(
            a if hasattr(a, "dtype") else _number(n, a, first) for n, a in zip(self.inputs, arrays, strict=True)
        )


def _is_array(a: Any) -> bool:
    try:
        return hasattr(a, "dtype") and hasattr(a, "shape")
    except RuntimeError:
        return False


def _number(name: str, value: Any, kind: np.dtype[Any]) -> Any:
    """The number `value`, passed for input `name`, as an array without dimensions, of type `kind`."""
    if not isinstance(value, bool | int | float):
        raise CallError(
            "not an array", where=f"input {name!r}", expected="an array or a number", got=type(value).__name__
        )
    created = np.asarray(value, kind)
    if not math.isnan(value) and created.item() != value and created.dtype.kind in "iub":
        raise CallError(f"{value} does not fit {kind}", where=f"input {name!r}")
    return created


class NotationFunction:
    """A string of einsum, einops or einx as a function of arrays: it becomes a comprehension for each combination of
    types and shapes."""

    def __init__(self, notation: Notation, name: str, options: Mapping[str, Any]) -> None:
        self.notation = notation
        self.name = name
        self.options = options
        self._models: dict[Any, Any] = {}

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """The result for arrays. `out` as in `Model`."""
        try:
            model = self._models[tuple([(a.dtype, a.shape) for a in arrays])]
        except (AttributeError, KeyError, RuntimeError, TypeError):
            model = self.compiled(*arrays)
        return model(*arrays) if out is None else model(*arrays, out=out)

    def compiled(self, *arrays: Any) -> Any:
        """The `Model` that a call with these arrays runs."""
        types = _types(arrays)
        result = compile(self.graph(types), name=self.name, **self.options)
        if len(self._models) >= MAX_MODELS:
            del self._models[next(iter(self._models))]
        self._models[tuple((a.dtype, a.shape) for a in arrays)] = result
        return result

    def graph(self, types: Sequence[TensorType]) -> Graph:
        """The graph of the string for inputs of these types, whose sizes are numbers."""
        builder = GraphBuilder(self.name)
        values = [builder.input(n, t) for n, t in zip(_letters(len(types)), types, strict=True)]
        return builder.finish(self.emit(builder, *values))

    def emit(self, builder: GraphBuilder, *values: Value) -> tuple[Value, ...]:
        """Add the operators of the string to a graph that is being built; returns its result."""
        statement, nests = self._read([v.type for v in values])
        parts = [_reshaped(builder, v, shape) for v, shape in zip(values, statement.shapes, strict=True)]
        (created,) = Comprehension(nests, self.name, False, self.options).emit(builder, *parts)
        return (_reshaped(builder, created, statement.result),)

    def explain(self, *arrays: Any) -> str:
        """A text with the loops that the string means for these arrays, over elementary axes."""
        statement, nests = self._read(_types(arrays))
        kinds = [t.dtype for t in _types(arrays)]
        types = [TensorType(k, tuple(map(as_expr, shape))) for k, shape in zip(kinds, statement.shapes, strict=True)]
        return explain(bind(nests, types))

    def _read(self, types: Sequence[TensorType]) -> tuple[Statement, Nests]:
        """The statement that the string means for these types, and its nests of loops, over elementary axes."""
        sizes = [tuple(as_int(d) for d in t.shape) for t in types]
        if any(d is None for shape in sizes for d in shape):
            raise ComprehensionError("the sizes must be numbers", where=self.notation.source.text, got=list(types))
        statement = self.notation.statement([tuple(d or 0 for d in shape) for shape in sizes])
        source = Source(statement.text)
        return statement, nests_of(parse_program(source), source, self.notation.inputs)

    def __repr__(self) -> str:
        return f"<comprehension {self.notation.source.text!r}>"


def _types(arrays: Sequence[Any]) -> list[TensorType]:
    """The types of arrays of whatever kind."""
    views = [as_numpy(a, f"input {k}") for k, a in enumerate(arrays)]
    return [TensorType(dtype(v.dtype), tuple(map(as_expr, v.shape))) for v in views]


def _letters(count: int) -> list[str]:
    return [f"x{k}" for k in range(count)]


def _reshaped(builder: GraphBuilder, value: Value, shape: Sequence[int]) -> Value:
    """The value with another shape; nothing is copied."""
    wanted = tuple(map(as_expr, shape))
    return value if value.shape == wanted else emit1(builder, "reshape", value, shape=wanted)


__all__ = ["Comprehension", "NotationFunction", "comprehension"]
