"""A single kernel as a callable, whose caller passes all buffers, including outputs.

It is a program with one step, with the entry that any program has (`codegen/llvm/entry.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.runtime.manifest import Manifest
from tilewright.runtime.model import Model
from tilewright.runtime.program import Program, Text
from tilewright.runtime.runner import Called
from tilewright.runtime.specs import Dim, InputSpec, StepSpec, SymbolSpec, TargetSpec, TempSpec, Work
from tilewright.support.classes import dataclass


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

    All parameters are passed in order; the call returns None. Checks are those of `Model`; what the kernel writes must
    be writable and contiguous and share no memory with other arguments.

    Args:
        objects: images that define the kernel, what it calls, and the entry that calls it.
        step: the call: its slots are the parameters, and after them the scratch buffers.
        params: its buffers, and arguments that only determine sizes, which are not passed to the kernel.
        symbols: its integers, in order; each is a dimension of some parameter.
        workspace: sizes of its trailing scratch buffers.
        threads: how many threads call it.
    """

    def __init__(
        self,
        objects: Mapping[str, bytes],
        step: StepSpec,
        params: Sequence[KernelParam],
        symbols: Sequence[SymbolSpec] = (),
        *,
        target: TargetSpec,
        workspace: Sequence[Workspace] = (),
        threads: int = 1,
        texts: Mapping[str, Text] | None = None,
    ) -> None:
        manifest = Manifest(
            name=step.kernel,
            target=target,
            symbols=tuple(symbols),
            inputs=tuple(InputSpec(p.name, p.dtype, tuple(p.shape), p.written) for p in params),
            run_temps=tuple(TempSpec(0, 0, per_thread=w.per_thread) for w in workspace),
            run_steps=(step,),
        )
        self.model = Model(Program(manifest, dict(objects), {}, texts or {}), threads)
        self.__call__ = self.model.__call__  # type: ignore[method-assign]

    if TYPE_CHECKING:

        def __call__(self, *arrays: Any) -> None:
            """Run the kernel."""
