"""LLVM text of kernels to PTX, by the NVPTX target of llvmlite's LLVM. No toolkit and no driver is needed."""

from __future__ import annotations

from tilewright.codegen.llvm.optimize import assembly
from tilewright.codegen.ptx.allowed import check_allowed
from tilewright.codegen.ptx.emit import emit_module
from tilewright.codegen.ptx.module import Module
from tilewright.ir.loops import PrimFunc
from tilewright.targets.target import Target


def ptx_of(text: str, target: Target, where: str = "kernels") -> str:
    """The PTX of LLVM text. Raises CompileError for calls of what the GPU has no instruction for, before LLVM sees
    them: it would end the process."""
    check_allowed(text, where)
    return assembly(text, target)


def emit_ptx(func: PrimFunc, target: Target) -> tuple[str, Module]:
    """The PTX of a flat function and the module that it was made from."""
    module = emit_module(func, target)
    return ptx_of(module.text, target, func.name), module


__all__ = ["emit_ptx", "ptx_of"]
