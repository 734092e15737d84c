"""A compiled function as files for programs without Tilewright: an object or a library, and a C header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilewright.codegen import external
from tilewright.codegen.c.header import header
from tilewright.codegen.c.names import RESERVED
from tilewright.codegen.c_functions import functions_of
from tilewright.codegen.llvm.emit import compile_llvm, kernel_symbols
from tilewright.codegen.llvm.standalone import exported, standalone
from tilewright.codegen.llvm.threads import runs_alone
from tilewright.codegen.workspaces import workspaces
from tilewright.ir.loops import PrimFunc
from tilewright.native.shared import shared_object
from tilewright.schedule.external import externals_in
from tilewright.schedule.state import written_buffers
from tilewright.support.errors import CompileError
from tilewright.targets.target import Target

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def export(
    flat: PrimFunc, name: str, target: Target, places: Sequence[Path], needs: Sequence[str] = ()
) -> tuple[Path, ...]:
    """Write a flat function as `name` to each place ("x.o" or "x.so"), and the header "x.h" beside the first. `needs`
    are conditions on sizes; the function reports the number of one that does not hold.

    Raises CompileError, before anything is written, if the name is not a C identifier, or is one of the C library.
    """
    if not _NAME.fullmatch(name) or name in RESERVED:
        what = "this is no name for a function in C: it is none, or it has a meaning there already"
        raise CompileError(what, where=repr(name), hint="tw.build(..., name=...) gives another")
    _check_externals(flat, places)
    kernel = replace(flat, name=f"tw_{name}")
    memory = workspaces(kernel)
    image = compile_llvm(standalone(kernel, name, memory, target), target, others=external.texts(flat.body))
    functions = exported(kernel, name, memory)
    contents = {p: shared_object(image, functions, p.name) if p.suffix == ".so" else image for p in places}
    written = set(written_buffers(kernel.body))
    cpu = f"{target.triple.partition('-')[0]}, {target.cpu}"
    text = header(kernel, name, kernel_symbols(kernel), written, not runs_alone(kernel), cpu, needs)
    for path, content in contents.items():
        path.write_bytes(content)
    beside = places[0].with_suffix(".h")
    beside.write_text(text)
    return (*places, beside)


def _check_externals(flat: PrimFunc, places: Sequence[Path]) -> None:
    """Raise CompileError if one of the files `places`, to which `flat` is exported, would call a function that it
    cannot contain or find."""
    for f in functions_of(flat.body):
        where = f"C function {f.name!r}"
        if f.is_python:
            raise CompileError("a Python function cannot be exported: files have no interpreter", where=where)
        if f.llvm is None and any(p.suffix == ".so" for p in places):
            hint = 'export the ".o" and link it with the function'
            raise CompileError("a library without a linker cannot call it", where=where, hint=hint)
    for x in externals_in(flat.body):
        where = f"external function {x.symbol!r}"
        if x.python is not None:
            raise CompileError("a Python function cannot be exported: files have no interpreter", where=where)
        if x.llvm is None and any(p.suffix == ".so" for p in places):
            hint = 'export the ".o" and link it with the function'
            raise CompileError("a library without a linker cannot call it", where=where, hint=hint)
