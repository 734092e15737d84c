"""LLVM text to object code and assembly, through llvmlite's LLVM."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import llvmlite.binding as llvm

from tilewright.native.text import UNROLL_COUNT
from tilewright.native.toolchain import machine_for, parsed
from tilewright.support.errors import CompileError
from tilewright.targets.target import Target

EXPLICIT = "; every loop is explicit"
"""The first line of LLVM text whose loops and accumulators are spelled out, so that a few of LLVM's passes are enough
for it."""

MAX_LINES = 4000
"""The number of lines of LLVM text above which only few passes run: some of the others take time that is quadratic in
the length of a block."""


def _optimized(
    text: str, target: Target, opt: int, others: Sequence[str] = ()
) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    scatters = "llvm.masked.scatter" in text
    features = ",".join(filter(None, (target.llvm_features, "" if scatters else target.isa.tuning)))
    machine = _machine(target.triple, target.cpu, features, opt)
    context = llvm.create_context()
    module = parsed(text, target.triple, machine, "generated code", context)
    options = llvm.create_pipeline_tuning_options(speed_level=opt)
    options.slp_vectorization = False
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    for k, other in enumerate(others):
        part = parsed(other, target.triple, machine, f"LLVM text {k} of an external function", context)
        builder.getModulePassManager().run(part, builder)
        _link(module, part)
    if opt and (text.startswith(EXPLICIT) or text.count("\n") > MAX_LINES):
        _run_short_passes(module, builder, UNROLL_COUNT in text)
    else:
        builder.getModulePassManager().run(module, builder)
    return module, machine


_machines = threading.local()


def _machine(triple: str, cpu: str, features: str, opt: int) -> llvm.TargetMachine:
    """LLVM's code generator at optimization level `opt` for the machine with LLVM's names `triple`, `cpu` and
    `features`. Each thread caches its last generator: creating one takes a third of a small kernel's compile time, and
    a compile requests equal ones each time."""
    about = (triple, cpu, features, opt)
    if getattr(_machines, "about", None) != about:
        _machines.machine = machine_for(triple, cpu=cpu, features=features, opt=opt, every_target=True)
        _machines.about = about
    machine: llvm.TargetMachine = _machines.machine
    return machine


def _run_short_passes(module: llvm.ModuleRef, builder: llvm.PassBuilder, unroll: bool) -> None:
    """Run a part of the pipeline that takes a fifth of its time: passes that promote allocations to registers,
    simplify, find common subexpressions that the emitter has not, and, with `unroll`, unroll loops. LLVM's newer pass
    for common subexpressions (new GVN) aborts the process on some input."""
    if any(b"alwaysinline" in bytes(a) for f in module.functions if not f.is_declaration for a in f.attributes):
        inline = llvm.create_new_module_pass_manager()
        inline.add_always_inliner_pass()
        inline.run(module, builder)
    passes = llvm.create_new_function_pass_manager()
    passes.add_simplify_cfg_pass()
    passes.add_sroa_pass()
    if unroll:
        passes.add_loop_unroll_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def _link(module: llvm.ModuleRef, part: llvm.ModuleRef) -> None:
    """Move the functions that `part` defines into `module`, as internal ones: several kernels of a program may bring
    the same.

    Raises CompileError where both define a function.
    """
    defined = {f.name for f in module.functions if not f.is_declaration}
    loaded = [f.name for f in part.functions if not f.is_declaration]
    twice = [name for name in loaded if name in defined]
    if twice:
        raise CompileError(f"two texts define the function {twice[0]!r}")
    try:
        module.link_in(part)
    except RuntimeError as error:
        raise CompileError(f"LLVM text does not link: {str(error).strip()}") from None
    for name in loaded:
        module.get_function(name).linkage = "internal"


def compile_llvm(text: str, target: Target, opt: int = 3, others: Sequence[str] = ()) -> bytes:
    """A relocatable object compiled from LLVM text. `opt` is the level, 0 to 3; `others` are texts of the functions
    that it calls."""
    module, machine = _optimized(text, target, opt, others)
    return bytes(machine.emit_object(module))


def assembly(text: str, target: Target, opt: int = 3) -> str:
    """The assembly of the object that `compile_llvm` makes of LLVM text."""
    module, machine = _optimized(text, target, opt)
    return str(machine.emit_assembly(module))


def optimized_llvm(text: str, target: Target, opt: int = 3) -> str:
    """The text after LLVM's passes, for reading."""
    return str(_optimized(text, target, opt)[0])
