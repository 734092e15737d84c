"""Intrinsics that the threads of a warp compute together: products of fragments, sums over lanes."""

from __future__ import annotations

from tilewright.codegen.llvm.state import State
from tilewright.ir.loops import Intrinsic
from tilewright.support.errors import CompileError

COLLECTIVE: dict[str, object] = {}


def is_collective(name: str) -> bool:
    """Whether an intrinsic is computed by all threads of a warp."""
    return name in COLLECTIVE


def emit_collective(s: State, stmt: Intrinsic) -> None:
    """Write the instructions of such an intrinsic."""
    raise CompileError("no such intrinsic", got=stmt.name)
