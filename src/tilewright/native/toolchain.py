"""Compiling LLVM text to object code: the parts that kernels and support code have in common.

Which passes run is the caller's matter: `codegen/llvm/optimize.py` for kernels, `native/link.py` for support code.
LLVM is loaded when it is first needed, since a process that only runs models never needs it.
"""

from __future__ import annotations

import re
import threading
from typing import Any

from tilewright.support.errors import CompileError, TargetError

_lock = threading.Lock()
_ready: set[str] = set()


def llvm(*, every_target: bool = False) -> Any:
    """The llvmlite module, initialised for this machine, or for every target that it supports."""
    import llvmlite.binding as binding

    with _lock:
        if every_target and "all" not in _ready:
            binding.initialize_all_targets()
            binding.initialize_all_asmprinters()
            _ready.update(("all", "native"))
        elif "native" not in _ready:
            binding.initialize_native_target()
            binding.initialize_native_asmprinter()
            _ready.add("native")
    return binding


def machine_for(triple: str, *, opt: int, cpu: str = "", features: str = "", every_target: bool = False) -> Any:
    """LLVM's code generator at optimization level `opt` for a `triple`, the processor `cpu` and `features`, in LLVM's
    names. Code is position independent, so that any loader can place it. `every_target` also initialises the targets of
    other machines.

    Raises TargetError if LLVM does not know the triple.
    """
    try:
        result = llvm(every_target=every_target).Target.from_triple(triple)
    except RuntimeError as error:
        raise TargetError(f"LLVM has no such target: {error}", where=triple) from None
    return result.create_target_machine(cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small")


_ASSEMBLY = re.compile(r'(?m)^[^;"\n]*\basm\b(?:\s+(?:sideeffect|alignstack|inteldialect|unwind))*\s*"')


def has_assembly(text: str) -> bool:
    """Whether LLVM text contains inline or module assembly, which aborts LLVM here for lack of an assembler."""
    return _ASSEMBLY.search(text) is not None


def parsed(text: str, triple: str, machine: Any, what: str, context: Any = None) -> Any:
    """Parse LLVM text to a verified module for `triple` with the machine's data layout; modules to be linked share a
    context. Raises CompileError that names `what`."""
    binding = llvm()
    try:
        module = binding.parse_assembly(text, context or binding.create_context())
    except RuntimeError as error:
        raise CompileError(f"LLVM refused {what}: {str(error).strip()}") from None
    try:
        module.triple = triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        module.close()  # an error that is kept keeps this frame: collected with its context, it would be freed twice
        raise CompileError(f"LLVM refused {what}: {str(error).strip()}") from None
    return module
