"""LLVM text to object code and assembly, through llvmlite's LLVM."""

from __future__ import annotations

import threading

import llvmlite.binding as llvm

from tilewright.codegen.llvm.text import UNROLL_COUNT
from tilewright.support.errors import CompileError, TargetError
from tilewright.targets.target import Target

EXPLICIT = "; every loop is explicit"
"""First line of text whose loops and accumulators are spelled out: a few of LLVM's passes are enough for it."""

MAX_LINES = 4000
"""Longer text gets those few passes too: of the others some take time that is quadratic in the length of a block."""

_lock = threading.Lock()
_ready = False


def _initialize() -> None:
    global _ready
    with _lock:
        if not _ready:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            _ready = True


def _machine(target: Target, opt: int, tuning: str = "") -> llvm.TargetMachine:
    """LLVM's code generator for a target: position independent code, so that any loader can place it."""
    _initialize()
    try:
        found = llvm.Target.from_triple(target.triple)
    except RuntimeError as error:
        raise TargetError(f"LLVM has no such target: {error}", where=target.triple) from None
    return found.create_target_machine(
        cpu=target.cpu,
        features=",".join(filter(None, (target.llvm_features, tuning))),
        opt=opt,
        reloc="pic",
        codemodel="small",
    )


def _optimized(text: str, target: Target, opt: int) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    scatters = "llvm.masked.scatter" in text
    machine = _machine(target, opt, "" if scatters else target.isa.tuning)
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.triple = target.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refused generated code: {str(error).strip()}") from None
    options = llvm.create_pipeline_tuning_options(speed_level=opt)
    options.slp_vectorization = False
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    if opt and (text.startswith(EXPLICIT) or text.count("\n") > MAX_LINES):
        _run_few_passes(module, builder, UNROLL_COUNT in text)
    else:
        builder.getModulePassManager().run(module, builder)
    return module, machine


def _run_few_passes(module: llvm.ModuleRef, builder: llvm.PassBuilder, unroll: bool) -> None:
    """Allocations to registers, simplification: a fifth of the time of the full pipeline.

    Common subexpressions the emitter has not written. LLVM's pass for them (new GVN) aborts the process on some input.
    """
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


def compile_llvm(text: str, target: Target, opt: int = 3) -> bytes:
    """A relocatable object for LLVM text. `opt` is 0 to 3."""
    module, machine = _optimized(text, target, opt)
    return bytes(machine.emit_object(module))


def assembly(text: str, target: Target, opt: int = 3) -> str:
    """The assembly of the same code."""
    module, machine = _optimized(text, target, opt)
    return str(machine.emit_assembly(module))


def optimized_llvm(text: str, target: Target, opt: int = 3) -> str:
    """The text after LLVM's passes, for reading."""
    return str(_optimized(text, target, opt)[0])
