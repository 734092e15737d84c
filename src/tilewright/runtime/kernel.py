"""A single kernel as a callable: every buffer is passed by the caller, those it writes included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.native.assembler import I64, PTR, VOID, Function, Module, Value
from tilewright.native.link import compile_text, host_triple
from tilewright.runtime.manifest import Dim, InputSpec, Manifest, StepSpec, SymbolSpec, TargetSpec, TempSpec, Work
from tilewright.runtime.model import Model
from tilewright.runtime.program import Program, Text
from tilewright.runtime.runner import Called


@dataclass(frozen=True, slots=True)
class KernelParam:
    """A buffer of a kernel; each dimension is a number or a symbol's name."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    written: bool = False


@dataclass(frozen=True, slots=True)
class Workspace:
    """A scratch buffer that the kernel takes after its parameters; `per_thread` multiplies it by the threads."""

    nbytes: Work
    per_thread: bool = False


class NativeFunction(Called):
    """A kernel `void kernel(buffers..., symbols..., i64 tid, i64 nthreads, ptr barrier)`, called on arrays.

    All parameters are passed in order; the call gives None. Checks are those of `Model`; what the kernel writes must be
    writable and contiguous and share no memory with other arguments.

    Args:
        objects: images that define the kernel and what it calls.
        kernel: its symbol.
        params: its buffers; behind them those that only say sizes, which the kernel does not take.
        unseen: how many of these there are.
        symbols: its integers, in order; each is a dimension of some parameter.
        workspace: sizes of its trailing scratch buffers.
        threads: how many threads call it.
    """

    def __init__(
        self,
        objects: Mapping[str, bytes],
        kernel: str,
        params: Sequence[KernelParam],
        symbols: Sequence[SymbolSpec] = (),
        *,
        target: TargetSpec,
        workspace: Sequence[Workspace] = (),
        threads: int = 1,
        unseen: int = 0,
        texts: Mapping[str, Text] | None = None,
        step: StepSpec | None = None,
    ) -> None:
        slots = tuple(range(len(params) + len(workspace)))
        known = step or StepSpec(kernel, slots, tuple(range(len(symbols))), label=kernel)
        manifest = Manifest(
            name=kernel,
            target=target,
            symbols=tuple(symbols),
            inputs=tuple(InputSpec(p.name, p.dtype, tuple(p.shape), p.written) for p in params),
            run_temps=tuple(TempSpec(0, 0, per_thread=w.per_thread) for w in workspace),
            run_steps=(known,),
        )
        taken = (*slots[: len(params) - unseen], *slots[len(params) :])
        entry = compile_text(_entry_text(kernel, manifest.symbols, known.symbols, taken, workspace))
        self.model = Model(Program(manifest, {**objects, "entry": entry}, {}, texts or {}), threads)
        self.__call__ = self.model.__call__  # type: ignore[method-assign]

    if TYPE_CHECKING:

        def __call__(self, *arrays: Any) -> None:
            """Run the kernel."""


def _entry_text(
    kernel: str,
    symbols: Sequence[SymbolSpec],
    taken: Sequence[int],
    slots: Sequence[int],
    workspace: Sequence[Workspace],
) -> str:
    """`tw_run`, `tw_prepare` and `tw_shapes` for one kernel."""
    m = Module(host_triple())
    params = [("slots", PTR), ("dims", PTR), ("tid", I64), ("nthreads", I64), ("barrier", PTR)]
    with m.function("tw_run", VOID, params) as (f, (table, dims, tid, nthreads, barrier)):
        pointers = [f.load(PTR, table, 8 * k) for k in slots]
        integers = [f.load(I64, dims, 8 * k) for k in taken]
        f.call(VOID, kernel, *pointers, *integers, tid, nthreads, barrier)
        f.ret()
    with m.function("tw_prepare", VOID, params) as (f, _):
        f.ret()
    with m.function("tw_shapes", VOID, [("dims", PTR), ("out", PTR)]) as (f, (dims, out)):
        values = {s.name: f.load(I64, dims, 8 * k) for k, s in enumerate(symbols)}
        for k, w in enumerate(workspace):
            f.store(polynomial(f, w.nbytes, values), out, 8 * k)
        f.ret()
    return m.text()


def polynomial(f: Function, work: Work, values: Mapping[str, Value]) -> Value:
    """The value of a polynomial in symbols."""
    total = f.value(0, I64)
    for coefficient, powers in work:
        term = f.value(coefficient, I64)
        for name in powers:
            term = term * values[name]
        total = total + term
    return total
