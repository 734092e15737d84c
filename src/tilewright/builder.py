"""`tw.build`: compiles a schedule, or a function of loops, to a function to call and to text to read.

    add = tw.build(s, [A, B, C])          # s from te.create_schedule
    add(a, b, c)                          # arrays in calling order; those that it writes are written in place
    print(add.source("c"))                # "loops", "c", "llvm" or "asm"

No plan is chosen here: the loops are those of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tilewright import plans, te
from tilewright.codegen import c_functions, external
from tilewright.codegen.c.emit import emit_c
from tilewright.codegen.cuda.emit import emit_cuda
from tilewright.codegen.export import export
from tilewright.codegen.llvm.emit import assembly, compile_llvm, emit_llvm, kernel_symbols
from tilewright.codegen.llvm.entry import entry_of_kernel
from tilewright.codegen.raised import raise_pending
from tilewright.codegen.workspaces import workspaces
from tilewright.ir.expr import Buffer, Expr, Var, as_int, const
from tilewright.ir.loops import PrimFunc
from tilewright.ir.rewrite import substitute
from tilewright.ir.verify import verify_func
from tilewright.runtime.interop import as_numpy
from tilewright.runtime.kernel import KernelParam, NativeFunction
from tilewright.runtime.runner import Called
from tilewright.runtime.specs import StepSpec, SymbolSpec, TargetSpec
from tilewright.schedule.dependence import reordered_sums
from tilewright.schedule.in_place import in_place as write_in_place
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import StageSchedule
from tilewright.schedule.state import written_buffers
from tilewright.support.collection import uncollected
from tilewright.support.errors import CallError, CompileError, Problems, TargetError
from tilewright.support.log import PassLog
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops, readable_loops
from tilewright.transform.loops.checked import REPORT_WORDS, Access, check_bounds, unproven
from tilewright.transform.loops.sizes import Outside, Sizes, decided_by_sizes, guarded, needed, requirement

Bounds = Literal["check", "sizes", "unchecked"]
"""How accesses that are not proven to be inside are treated: each is looked at, sizes are compared, or none is."""

_REMEMBERED = 64
"""The number of call sizes for which a function remembers that all accesses are inside."""

_LARGEST = (1 << 31) - 1
"""The largest value of a symbol that states no bound: that of a 32-bit integer."""


@uncollected
def build(
    program: StageSchedule | Schedule | PrimFunc,
    args: Sequence[te.Tensor] | None = None,
    target: str | Target = "host",
    *,
    name: str | None = None,
    threads: int = 1,
    bounds: Literal["check"] | None = None,
    unchecked: bool = False,
    in_place: Mapping[te.Tensor, te.Tensor] | None = None,
    extern: Mapping[str, c_functions.Source] | c_functions.Source | None = None,
) -> BuiltFunction:
    """Compile a scheduled program as it is.

    Args:
        program: what `te.create_schedule` gave, a `Schedule`, or a function.
        args: the tensors and scalars (`te.var`s, passed as numbers) in calling order, unused ones too; wanted with
            `te.create_schedule`, refused otherwise.
        target: "host" or "llvm" for code that can be called here, "c" or "cuda" for text only, or a `Target` or its
            name for another machine's text.
        name: of the function.
        threads: how many threads a call uses, the caller included (loops that are marked parallel).
        bounds: "check" makes each call raise CallError for the first access out of bounds; it runs one iteration after
            another, slowly. Without it, accesses that are not proven to be inside are remarks of the function's `log`.
        extern: the functions that `te.call_extern` calls and that are not of math.h, by name: LLVM text, an object
            (bytes), a `Path` to one of these (".ll", ".o"), a function of ctypes, or a Python function of numbers; a
            single text or object defines all of them.

    The function's `log` remarks vectorized loops that change the order of a sum, too.
    """
    if bounds not in (None, "check"):
        raise CompileError("there is no such treatment of bounds", expected='"check" or None', got=repr(bounds))
    if bounds is not None and unchecked:
        raise CompileError("bounds are checked or not", expected='bounds="check" or unchecked=True, not both')
    treatment: Bounds = bounds or ("unchecked" if unchecked else "sizes")
    lines: Mapping[str, str] = {}
    tensors: dict[str, te.Tensor] = {}
    if isinstance(program, StageSchedule):
        if args is None:
            raise CompileError(
                "the order of the arguments is not known", expected="tensors, such as build(s, [A, B, C])"
            )
        func = te.lower(program, args, name or "kernel")
        for output, source in (in_place or {}).items():
            func = write_in_place(func, program.buffer_name(output), program.buffer_name(source))
        lines = program.lines
        tensors = {program.buffer_name(t): t for t in args if isinstance(t, te.Tensor)}
    elif args is not None or in_place:
        raise CompileError("a function has its arguments already", expected="no tensors")
    else:
        func = program.func if isinstance(program, Schedule) else program
        func = replace(func, name=name or func.name)
    func = c_functions.bind(func, extern)
    verify_func(func)
    views = _views(func, tensors)
    if target in ("c", "cuda"):
        return BuiltFunction(func, Target.host(), None, lines, treatment, views)
    machine = target if isinstance(target, Target) else Target.parse(target)
    return BuiltFunction(func, machine, threads if machine == Target.host() else None, lines, treatment, views)


def plan(
    args: Sequence[te.Tensor], target: str | Target = "host", *, name: str = "kernel", threads: int = 1
) -> Schedule:
    """The schedule that the compiler itself would give to these stages: a place to start from, or to compare with.

        tw.build(tw.plan([A, B, C]))
        print(tw.plan([A, B, C]).trace)

    Args:
        args: inputs and outputs, in calling order.
        target: the machine, as in `build`.
        name: of the function.
        threads: how many threads a call shall use.
    """
    machine = target if isinstance(target, Target) else Target.parse(target)
    return plans.plan(te.create_prim_func(args, name), replace(machine, threads=threads)).schedule


class BuiltFunction(Called):
    """A compiled function. Call it with arrays in the order of its parameters; what it writes is written in place.

    Args:
        func: the scheduled function.
        target: the machine it is for.
        threads: of a call; None makes text only.
        lines: where blocks were written, for messages.
        bounds: how accesses that are not proven to be inside are treated.
        views: the tensors of the parameters where some have strides, to be found in what is passed.
    """

    def __init__(
        self,
        func: PrimFunc,
        target: Target,
        threads: int | None,
        lines: Mapping[str, str] | None = None,
        bounds: Bounds = "sizes",
        views: Sequence[te.Tensor | None] = (),
    ) -> None:
        self.log = PassLog(f"build {func.name}")
        self._lines = lines or {}
        func, serial = c_functions.one_by_one(func)
        for loop in serial:
            self.log.remark(f"the vectorized loop {loop} calls a function of C: its iterations run one after another")
        self._accesses: tuple[Access, ...] = ()
        self._params = func.params
        self._views = views
        self._said: tuple[Var, ...] = ()
        for text in reordered_sums(func):
            self.log.remark(text)
        self._sizes = Sizes()
        self._verdicts: dict[tuple[Any, ...], tuple[Outside, ...]] = {}
        self._scheduled = func
        match bounds:
            case "check":
                func, self._accesses = check_bounds(func)
            case "sizes":
                self._sizes, by_data = decided_by_sizes(func, unproven(func))
                self._refuse_unknown(by_data)
                for access in self._sizes.accesses:
                    self.log.remark(f"compared with each call's sizes to be in bounds: {access}")
            case "unchecked":
                for access in unproven(func):
                    self.log.remark(f"not proven to be in bounds: {access}")
        self.func = func
        self.target = target
        if threads is not None:
            c_functions.check_known(func, threads)
        self.native = None if threads is None else self._compile(threads)
        self.__call__ = self._entry()  # type: ignore[method-assign]

    if TYPE_CHECKING:

        def __call__(self, *arrays: Any) -> None:
            """Run the function on arrays."""

    @cached_property
    def flat(self) -> PrimFunc:
        """The lowered loops from which code is generated."""
        return lower_loops(self.func, self.target, self.log)

    @cached_property
    def _readable(self) -> PrimFunc:
        return readable_loops(self.func, self.target)

    def source(self, what: str = "llvm", *, openmp: bool = False) -> str:
        """The program as text of the kind `what`: "schedule" (blocks and loops), "loops" (flat), "c", "cuda", "llvm" or
        "asm". For a GPU, "llvm" is the module of its kernels, and "ptx" or "asm" the PTX that LLVM compiles it to. C is
        serial; with `openmp` it has pragmas that say which loops are parallel and which run in vectors. CUDA needs
        loops that are bound to hardware indices (`bind`)."""
        match what:
            case "schedule":
                return str(self.func)
            case "loops":
                return str(self._readable)
            case "c":
                return self._needs + emit_c(self._readable, openmp=openmp)
            case "cuda":
                return self._needs + emit_cuda(self._readable)
            case "llvm" if self.target.gpu is not None:
                from tilewright.codegen.ptx.emit import emit_module

                return emit_module(self.flat, self.target).text
            case "ptx" | "asm" if self.target.gpu is not None:
                from tilewright.codegen.ptx.device import emit_ptx

                return emit_ptx(self.flat, self.target)[0]
            case "llvm":
                return emit_llvm(self.flat, self.target)
            case "asm":
                return assembly(emit_llvm(self.flat, self.target), self.target)
        raise CallError(
            f"there is no source {what!r}",
            expected='"schedule", "loops", "c", "cuda", "llvm", "asm" or, for a GPU, "ptx"',
        )

    def export(self, path: str | Path) -> tuple[Path, ...]:
        """Write the function as native code for programs without Tilewright, with a C header beside it; returns the
        files written.

        Args:
            path: "add.o", an object to link; "add.so", a library to load (for x86-64 Linux no linker is needed); else a
                folder, in which the function's name gets all of them.

        Code is for the function's target: where it may run on other machines, build it for a level that they all have,
        such as "x86-64-v3". Where sizes decide whether an access is inside, the function takes one number more,
        `outside`, which it writes: 0, or which of the header's conditions does not hold; nothing else is touched then.
        Raises CompileError where the name is no name of a C function, or is one of the C library, and where such a
        condition cannot be stated.
        """
        place = Path(path)
        if place.suffix in (".o", ".so"):
            places = [place]
        else:
            place.mkdir(parents=True, exist_ok=True)
            places = [place / f"{self.func.name}{suffix}" for suffix in (".o", ".so")]
        if not self._sizes.accesses:
            return export(self.flat, self.func.name, self.target, places)
        flat = guarded(self.flat, self._sizes)
        if flat is None:
            raise CompileError(
                "only its loops can tell whether accesses are inside: " + "; ".join(map(str, self._sizes.accesses)),
                where=self.func.name,
                hint="tw.build(..., unchecked=True) leaves them to the caller",
            )
        return export(flat, self.func.name, self.target, places, [needed(a) for a in self._sizes.accesses])

    @property
    def _needs(self) -> str:
        """Comment lines for the program's text: conditions on sizes under which all accesses are inside of their
        buffers."""
        return "".join(f"// Needs {needed(a)}, else {a}\n" for a in self._sizes.accesses)

    def _refuse_unknown(self, accesses: Sequence[Access]) -> None:
        """Raise CompileError for accesses whose indices depend on data."""
        problems = Problems()
        for a in accesses:
            problems.add(
                CompileError(
                    f"{a.block!r} {'writes' if a.writes else 'reads'} {a.buffer!r} at an index that data decides",
                    where=self._lines.get(a.block, self._scheduled.name),
                    expected=f"an index in 0..{a.extent} in dimension {a.dimension}",
                    got=f"{a.index}",
                    hint="te.minimum(te.maximum(index, 0), extent - 1) or te.if_then_else keeps it inside; "
                    'tw.build(..., bounds="check") looks at each access, unchecked=True leaves it to you',
                )
            )
        problems.raise_if_any(where=self._scheduled.name, kind=CompileError)

    def __repr__(self) -> str:
        return f"<{self.func.name}({', '.join(f'{p.name}: {_type(p)}' for p in self.func.params)}), {self.target.cpu}>"

    def _compile(self, threads: int) -> NativeFunction:
        # The name in the object must not be one of the C library's, which the code may call.
        flat = replace(self.flat, name=f"tw_{self.func.name}")
        scratch = flat.workspaces
        params = flat.params[: len(flat.params) - len(scratch)]
        symbols = kernel_symbols(flat)
        written = set(written_buffers(flat.body))
        derived = [d for p in params for d in p.shape if as_int(d) is None and not isinstance(d, Var)]
        specs = [SymbolSpec(s.name, s.lo or 0, _LARGEST if s.hi is None else s.hi, s.multiple) for s in symbols]
        # A dimension such as n + 2 binds to a symbol of its own, and is checked against n before the call.
        specs += [SymbolSpec(name, 0) for name in dict.fromkeys(map(str, derived))]
        bound = {d.name for p in params for d in p.shape if isinstance(d, Var)}
        unbound = [s for s in symbols if s.name not in bound]
        if unbound and not self._views:
            raise CompileError("no parameter has this dimension", where=f"symbol {unbound[0].name!r}")
        # What views say of symbols comes as extents of arrays without elements.
        self._said = tuple(unbound)
        sizes = [KernelParam(f"{s.name} of views", "bool", (0, s.name)) for s in unbound]
        step = StepSpec(
            flat.name,
            tuple(k if k < len(params) else k + len(sizes) for k in range(len(flat.params))),
            tuple(range(len(symbols))),
            label=self.func.name,
        )
        memory = workspaces(flat)
        return NativeFunction(
            {
                "entry": compile_llvm(
                    entry_of_kernel(step, symbols, [w.nbytes for w in memory], self.target), self.target
                ),
                "kernel": compile_llvm(emit_llvm(flat, self.target), self.target, others=external.texts(flat.body)),
                **external.stubs(flat.body),
            },
            step,
            [*(KernelParam(p.name, p.dtype.name, _dims(p), p in written) for p in params), *sizes],
            specs,
            target=TargetSpec(self.target.triple, self.target.cpu, tuple(self.target.features)),
            workspace=memory,
            threads=threads,
            texts={what: lambda what=what: self.source(what) for what in ("loops", "c", "llvm", "asm")},  # type: ignore[misc]
        )

    def _entry(self) -> Callable[..., None]:
        """The function that calls run: the native one itself if nothing about its arguments must be checked first."""
        if self.native is None:
            return self._refuse
        derived = any(as_int(d) is None and not isinstance(d, Var) for p in self._params for d in p.shape)
        scalars = any(not p.shape for p in self._params)
        if self._params is not self.func.params:
            entry = self._within_bounds
        else:
            known = not (derived or scalars or self._views or self._sizes.accesses)
            entry = self.native.__call__ if known else self._checked
        return self._raising(entry) if external.calls_python(self.func.body) else entry

    def _raising(self, entry: Callable[..., None]) -> Callable[..., None]:
        """A wrapper of the entry that re-raises exceptions of Python functions called by the program."""

        def call(*arrays: Any) -> None:
            entry(*arrays)
            raise_pending()

        return call

    def _refuse(self, *arrays: Any) -> None:
        raise TargetError(
            "was built as text, not to be called here", where=self.func.name, hint='build it with target="host"'
        )

    def _within_bounds(self, *arrays: Any) -> None:
        """Run the version that checks each access. Raises CallError for the first access outside of its buffer."""
        if len(arrays) != len(self._params):
            names = ", ".join(p.name for p in self._params)
            raise CallError("wrong number of arguments", where=self.func.name, expected=names, got=len(arrays))
        result = np.zeros(REPORT_WORDS, np.int64)
        self._checked(*arrays, result)
        number, index, extent = result.tolist()
        if number:
            a = self._accesses[number - 1]
            raise CallError(
                f"{a.block!r} {'writes' if a.writes else 'reads'} {a.buffer!r} out of bounds",
                where=self._lines.get(a.block, self.func.name),
                expected=f"an index in 0..{extent} in dimension {a.dimension}",
                got=f"{index} ({a.index})",
            )

    def _checked(self, *arrays: Any) -> None:
        """Run after checking shapes, with numbers as arrays without dimensions; if sizes do not prove all accesses to
        be inside, the checking version runs."""
        values: dict[Var, Expr] = {}
        arguments = arrays
        if self._views and len(arrays) == len(self.func.params):
            more = [None] * (len(arrays) - len(self._views))
            result, values = te.bind_views([*self._views, *more], arrays)
            arrays = tuple(result)
        if len(arrays) == len(self.func.params):
            arrays = tuple(x if p.shape else _scalar(p, x) for p, x in zip(self.func.params, arrays, strict=True))
        shapes = [np.shape(a) for a in arrays]
        fits = len(shapes) == len(self.func.params)
        if fits and all(len(s) == len(p.shape) for s, p in zip(shapes, self.func.params, strict=True)):
            pairs = [
                pair for s, p in zip(shapes, self.func.params, strict=True) for pair in zip(p.shape, s, strict=True)
            ]
            values = {**{d: const(n) for d, n in pairs if isinstance(d, Var)}, **values}
            for param, shape in zip(self.func.params, shapes, strict=True):
                wanted = tuple(as_int(substitute(d, values)) for d in param.shape)
                if wanted != shape:
                    raise CallError("wrong shape", where=f"parameter {param.name!r}", expected=wanted, got=shape)
            if self._sizes.accesses and (unsure := self._outside(arrays, values)):
                return self._careful(unsure).__call__(*arguments)
        assert self.native is not None
        self.native(*arrays, *(np.empty((0, as_int(values[v]) or 0), np.bool_) for v in self._said if v in values))

    def _outside(self, arrays: Sequence[Any], values: dict[Var, Expr]) -> tuple[Outside, ...]:
        """The accesses to `arrays` that `values`, of sizes and scalars, do not prove to be inside of their buffers.
        Raises CallError for accesses that are outside."""
        numbers = {b: x for b, x in zip(self.func.params, arrays, strict=True) if not b.shape}
        scalars = {v: const(as_numpy(numbers[b], b.name).item(), b.dtype) for b, v in self._sizes.scalars}
        values = values | scalars
        key = tuple(values.values())
        if (known := self._verdicts.get(key)) is not None:
            return known
        result = self._sizes.outside(values)
        self._refuse_outside(f for f in result if f.sure)
        if len(self._verdicts) >= _REMEMBERED:
            self._verdicts.clear()
        self._verdicts[key] = result
        return result

    def _out_of_bounds(self, outside: Outside) -> CallError:
        """The error for an access outside of its buffer, with the range of its index."""
        a = outside.access
        needs = "" if requirement(a) is None else f", which needs {needed(a)}"
        return CallError(
            f"{a.block!r} {'writes' if a.writes else 'reads'} {a.buffer!r} out of bounds",
            where=self._lines.get(a.block, self.func.name),
            expected=f"an index in 0..{outside.extent} in dimension {a.dimension}{needs}",
            got=f"{outside.least} to {outside.most} ({a.index})",
        )

    def _refuse_outside(self, outside: Iterable[Outside]) -> None:
        """Raise CallError that lists these accesses, if there are any."""
        problems = Problems()
        for each in outside:
            problems.add(self._out_of_bounds(each))
        problems.raise_if_any(where=self.func.name, kind=CallError)

    def _careful(self, unsure: Sequence[Outside]) -> BuiltFunction:
        """The version of the function that checks each access. Raises CallError, about the accesses `unsure`, if it
        cannot be compiled."""
        try:
            return self._checking
        except CompileError as error:
            self._refuse_outside(unsure)
            raise error

    @cached_property
    def _checking(self) -> BuiltFunction:
        return BuiltFunction(self._scheduled, self.target, 1, self._lines, "check", self._views)


def _views(func: PrimFunc, tensors: Mapping[str, te.Tensor]) -> tuple[te.Tensor | None, ...]:
    """The tensors for parameters that are strided views; () if there are none. Raises CompileError if their memory
    layout was changed by the schedule."""
    views = tuple(tensors.get(p.name) for p in func.params)
    for p, t in zip(func.params, views, strict=True):
        if t is not None and t.strides is not None and p.shape != te.memory_shape(t):
            raise CompileError(f"the memory of {t.name!r} was laid out otherwise, so its strides mean nothing")
    return views if any(t is not None and t.strides is not None for t in views) else ()


def _scalar(param: Buffer, value: Any) -> Any:
    """The number `value` as an array without dimensions, of the type of `param`; an array is returned unchanged. Raises
    CallError if the type cannot represent the number."""
    if hasattr(value, "__dlpack__") and hasattr(value, "shape") and not isinstance(value, np.generic):
        return value
    kind = param.dtype
    where = f"parameter {param.name!r}"
    if not isinstance(value, int | float | np.number | np.bool_):
        raise CallError("not a number", where=where, expected=kind, got=f"{type(value).__name__} {value!r}")
    if kind.is_int and value != int(value):
        raise CallError("wrong number", where=where, expected="an integer", got=value)
    if kind.is_int and not kind.min <= value <= kind.max:
        raise CallError("wrong number", where=where, expected=f"{kind.min} to {kind.max}", got=value)
    return np.array(value, kind.numpy)


def _dims(buffer: Buffer) -> tuple[int | str, ...]:
    numbers = (as_int(d) for d in buffer.shape)
    return tuple(str(d) if n is None else n for n, d in zip(numbers, buffer.shape, strict=True))


def _type(buffer: Buffer) -> str:
    return f"{buffer.dtype}[{', '.join(map(str, buffer.shape))}]"
