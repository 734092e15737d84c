"""The C header of an exported function: its prototype, and what each argument is."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.c.helpers import MEMORY_TYPES
from tilewright.codegen.c.names import Identifiers
from tilewright.ir.dtype import DType, bf16, boolean, f16
from tilewright.ir.expr import Buffer, Var
from tilewright.ir.loops import PrimFunc

_LINE = 100
"""The column beyond which a prototype is broken into several lines."""
_THREADS = ("int64_t thread", "int64_t threads", "int64_t barrier[2]")


def header(
    kernel: PrimFunc,
    name: str,
    symbols: Sequence[Var],
    written: set[Buffer],
    shared: bool,
    cpu: str,
    needs: Sequence[str] = (),
) -> str:
    """The header of a flat function that is exported as `name`.

    Args:
        kernel: the function; its last parameters may be workspaces.
        symbols: the sizes that it takes, in order.
        written: the buffers that it writes.
        shared: whether it has parallel loops, so that several threads can call it together.
        cpu: the processor that its code is for, in words.
        needs: conditions on sizes; the function stores the number of one that does not hold in its last buffer.
    """
    scratch = kernel.workspaces
    buffers = kernel.params[: len(kernel.params) - len(scratch)]
    names = Identifiers()
    names.used_names |= {name, "workspace", "thread", "threads", "barrier"}
    labels = [names.take(b.name) for b in buffers]
    sizes = [f"int64_t {names.take(s.name)}" for s in symbols]
    arguments = [f"{'' if b in written else 'const '}{_type(b)} *{x}" for b, x in zip(buffers, labels, strict=True)]
    arguments += [*sizes, *(["void *workspace"] if scratch else [])]
    notes = [_about(b, x, b in written) for b, x in zip(buffers, labels, strict=True)]
    notes += [_about_size(s) for s in symbols]
    if needs:
        numbered = "; ".join(f"{k}: {n}" for k, n in enumerate(needs, 1))
        notes.append(f"{labels[-1]}: 0 after all was done; where one of these does not hold its number: {numbered}")
    prototypes = [prototype("void", name, arguments)]
    if scratch:
        parts = ", ".join(f"{b.name} {b.dtype}[{', '.join(map(str, b.shape))}]" for b in scratch)
        notes.append(f"workspace: memory of {name}_workspace(...) bytes at a multiple of 64; its parts: {parts}")
        prototypes.append(prototype("int64_t", f"{name}_workspace", [*sizes, *(_THREADS[1:2] if shared else [])]))
    if shared:
        notes.append(
            f"{name}_thread: one thread's share; each of the threads 0 to threads - 1 calls it, all with one barrier, "
            "which is zero at first; threads is 1 for the workspace of a call of " + name
        )
        prototypes.append(prototype("void", f"{name}_thread", [*arguments, *_THREADS]))
    about = f"{name}: made by Tilewright for {cpu}. Arguments share no memory; arrays are dense, row by row."
    return framed(name, about, notes, prototypes, [b.dtype for b in buffers])


def framed(name: str, about: str, notes: Sequence[str], declarations: Sequence[str], dtypes: Sequence[DType]) -> str:
    """A header "name.h": a comment that begins with `about` and has a line for each note, and declarations that C and
    C++ read.

    Args:
        declarations: texts, a line or some each.
        dtypes: the element types of the arrays, for the headers that they need.
    """
    guard = f"{name.upper()}_H"
    includes = ["#include <stdint.h>"] + ["#include <stdbool.h>"] * (boolean in dtypes)
    lines = [
        f"/* {about}",
        " *",
        *(f" *   {note}" for note in notes),
        " */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        *sorted(includes),
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        *declarations,
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _type(b: Buffer) -> str:
    return MEMORY_TYPES[b.dtype.name]


def _about(b: Buffer, label: str, written: bool) -> str:
    shape = f"[{', '.join(map(str, b.shape))}]" if b.shape else ", a single number"
    bits = f", the bits of {b.dtype}" if b.dtype in (f16, bf16) or b.dtype.bits < 8 else ""
    align = max(b.align or 0, b.dtype.itemsize)
    return f"{label}: {_type(b)}{shape}{bits}, {'written' if written else 'read'}, at a multiple of {align} bytes"


def _about_size(s: Var) -> str:
    least = "" if s.lo is None else f"at least {s.lo}"
    most = "" if s.hi is None else f"at most {s.hi}"
    multiple = "" if s.multiple == 1 else f"a multiple of {s.multiple}"
    return f"{s.name}: {', '.join(filter(None, (least, most, multiple))) or 'any'}"


def prototype(result: str, name: str, arguments: Sequence[str]) -> str:
    """The prototype of the function whose result type and name are given, with one line for each argument if a single
    line is too long."""
    line = f"{result} {name}({', '.join(arguments) or 'void'});"
    if len(line) <= _LINE:
        return line
    return "\n".join([f"{result} {name}(", *(f"    {a}," for a in arguments[:-1]), f"    {arguments[-1]}", ");"])
