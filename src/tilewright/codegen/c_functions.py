"""Definitions of the functions of C that elements call: `tw.build(..., extern={"scale": ...})`.

    LLVM text        define float @scale(float %x, i32 %n)      linked into the code that calls it
    an object        bytes, or a Path to a ".o" or ".ll"        linked beside it
    a function of ctypes, or a Python function of numbers       called through a stub (an object of its own)

The types of the arguments in expressions determine the signature; that of LLVM text is compared with it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.codegen.llvm.optimize import compile_llvm
from tilewright.codegen.llvm.values import register_type
from tilewright.codegen.raised import is_pending, keep
from tilewright.ir.c_functions import (
    C_TYPES,
    LIBRARY,
    PREFIX,
    CFunction,
    Signature,
    find_c_function,
    is_foreign,
    native,
    register_c_function,
    signature_of,
)
from tilewright.ir.expr import Expr, Op
from tilewright.ir.loops import For, PrimFunc, Stmt
from tilewright.ir.rewrite import c_calls_in, map_expr, map_stmt
from tilewright.native import elf
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.native.toolchain import has_assembly, machine_for, parsed
from tilewright.support.errors import CompileError, Problems
from tilewright.targets.target import Target

Source = str | bytes | Path | Callable[..., Any]
"""The forms in which a user may define a C function: LLVM text, the bytes of an object file, the path of a file with
either, or a Python function or one of ctypes."""

_CFunction: Any = type(ctypes.CFUNCTYPE(None)()).__mro__[1]
"""The base class of functions of the package `ctypes`."""


def bind(func: PrimFunc, sources: Mapping[str, Source] | Source | None) -> PrimFunc:
    """A function whose calls of users' functions are bound to their sources: each by its name, or one text or object
    for all unknown names. Raises CompileError that lists the sources which are not used, have another signature, or are
    no function."""
    wanted = _wanted(func)
    unknown = [name for name in wanted if name not in LIBRARY]
    if sources is None:
        sources = {}
    elif not isinstance(sources, Mapping):
        sources = dict.fromkeys(unknown, sources)
    problems = Problems()
    names: dict[str, str] = {}
    for name, source in sources.items():
        try:
            if name in LIBRARY or name not in wanted:
                what = "the C library has a function of this name" if name in LIBRARY else "no element calls it"
                raise CompileError(what, where=f"extern={{{name!r}: ...}}", expected=", ".join(unknown) or "none")
            names[name] = register_c_function(_defined(name, wanted[name], source))
        except CompileError as error:
            problems.add(error)
    problems.raise_if_any(where=func.name, kind=CompileError)
    return _renamed(func, names) if names else func


def _wanted(func: PrimFunc) -> dict[str, Signature]:
    """The name and signature of each C function that the elements of `func` call. Raises CompileError if one function
    is called with several signatures."""
    result: dict[str, Signature] = {}
    for call in c_calls_in(func.body):
        name, signature = call.name.removeprefix(PREFIX), signature_of(call.dtype, call.args)
        if result.setdefault(name, signature) != signature:
            raise CompileError(
                "is called with several types", where=f"C function {name!r}", expected=result[name], got=signature
            )
    return result


def check_known(func: PrimFunc, threads: int) -> None:
    """Raise CompileError for called functions without a definition, and for Python functions that several threads would
    call."""
    problems = Problems()
    for name in _wanted(func):
        known = find_c_function(name)
        where = f"C function {name!r}"
        if known is None:
            hint = f"tw.build(..., extern={{{name!r}: ...}}) takes LLVM text, an object or a function"
            problems.add(CompileError("an element calls it, and nothing defines it", where=where, hint=hint))
        elif known.is_python and threads > 1:
            problems.add(CompileError("a Python function is called by one thread", where=where, got=f"{threads=}"))
    problems.raise_if_any(where=func.name, kind=CompileError)


def _renamed(func: PrimFunc, names: Mapping[str, str]) -> PrimFunc:
    memo: dict[Expr, Expr] = {}

    def on(e: Expr) -> Expr | None:
        if isinstance(e, Op) and e.name.startswith(PREFIX):
            name = e.name.removeprefix(PREFIX)
            return Op(PREFIX + names.get(name, name), e.args, e.dtype)
        return None

    return func.with_body(map_stmt(func.body, lambda s: None, lambda e: map_expr(e, on, memo)))


def one_by_one(func: PrimFunc) -> tuple[PrimFunc, tuple[str, ...]]:
    """A function in which vectorised loops that call a user's functions are serial, and the variables of these loops. A
    vector would call the function for elements that a condition leaves out, too."""
    if not any(is_foreign(call.name) for call in c_calls_in(func.body)):
        return func, ()
    loops: list[str] = []

    def on(s: Stmt) -> Stmt | None:
        if isinstance(s, For) and s.kind == "vectorized" and any(is_foreign(c.name) for c in c_calls_in(s.body)):
            loops.append(s.var.name)
            return replace(s, kind="serial")
        return None

    return func.with_body(map_stmt(func.body, on)), tuple(loops)


def _defined(name: str, signature: Signature, source: Source) -> CFunction:
    """The definition of the C function `name` that `source` contains. Raises CompileError if the source defines no such
    function."""
    where = f"C function {name!r}"
    if isinstance(source, Path):
        source = _read(source, where)
    if isinstance(source, str):
        source = _OTHER_MACHINE.sub("", source)
        _check_text(name, signature, source)
        return CFunction(name, name, signature, lambda: _from_text(name, signature, source), source, llvm=source)
    if isinstance(source, bytes):
        _check_image(name, source)
        return CFunction(name, name, signature, lambda: _from_image(name, signature, source), source, image=source)
    if isinstance(source, _CFunction):
        address = ctypes.cast(source, ctypes.c_void_p).value
        types = tuple(C_TYPES[t][1] for t in signature.arguments)
        stated: Any = source.argtypes
        if not address or (stated is not None and tuple(stated) != types):
            wrong = "NULL" if not address else ", ".join(t.__name__ for t in stated)
            raise CompileError("this function of ctypes is another one", where=where, expected=signature, got=wrong)
        function = native(name, signature, address)
        image = _stub(name, signature, address)
        return CFunction(name, name, signature, lambda: function, (source, address), image=image)
    if not callable(source):
        expected = "LLVM text, an object, a Path to one, a function of ctypes or a Python function"
        raise CompileError("is defined by something else", where=where, expected=expected, got=type(source).__name__)
    return _of_python(name, signature, source)


def _read(path: Path, where: str) -> str | bytes:
    """The content of a file with LLVM text (".ll") or of an object. Raises CompileError, at `where`, if it cannot be
    read."""
    try:
        return path.read_text(encoding="utf-8") if path.suffix == ".ll" else path.read_bytes()
    except (OSError, UnicodeDecodeError) as error:
        raise CompileError(f"cannot read {str(path)!r}: {error}", where=where) from None


def _check_text(name: str, signature: Signature, text: str) -> None:
    """Raise CompileError if the LLVM text does not define a function `name` of this signature."""
    where = f"C function {name!r}"
    defined = _definitions(text, where)
    kinds = ", ".join(register_type(t) for t in signature.arguments)
    expected = f"define {register_type(signature.result)} @{name}({kinds})"
    if name not in defined:
        names = ", ".join(defined) or "none"
        raise CompileError("the text does not define it", where=where, expected=expected, got=names)
    got, head = defined[name]
    if got.replace(" ", "") != f"{register_type(signature.result)}({kinds})".replace(" ", ""):
        raise CompileError("the text defines another function", where=where, expected=expected, got=got)
    if _NOT_FOR_C.search(head):
        raise CompileError("its definition is not for callers in C", where=where, expected=expected, got=head)


_NOT_FOR_C = re.compile(r"\b(\w+cc|cc ?\d+|internal|private)\b")


_OTHER_MACHINE = re.compile(r'"(?:target-cpu|target-features|tune-cpu)"\s*=\s*"[^"]*"')
"""The attributes of LLVM text that name a processor, as C compilers write them: code is compiled for the caller's
target."""


def _definitions(text: str, where: str) -> dict[str, tuple[str, str]]:
    """For each function that LLVM text defines: the type of its result and arguments, and the text before its name."""
    if has_assembly(text):
        raise CompileError("has instructions of a machine as text (asm)", where=where, expected="LLVM's instructions")
    module = parsed(text, host_triple(), machine_for(host_triple(), opt=0), f"the text of {where}")
    result: dict[str, tuple[str, str]] = {}
    for f in module.functions:
        if not f.is_declaration:
            head = next(line for line in str(f).splitlines() if line.startswith("define "))
            result[f.name] = str(f.global_value_type), head.partition("@")[0].strip()
    return result


def _check_image(name: str, image: bytes) -> None:
    """Raise CompileError if the bytes `image` are not an object file, or the object does not define the function
    `name`. On x86-64 Linux the linker of this package reads the file, which checks every field of it; LLVM may crash on
    damaged files."""
    if host_triple() != "x86_64-unknown-linux-gnu":
        _from_image_address(name, image)
        return
    try:
        elf.load([image], [name], {})
    except elf.Unknown as error:
        where = f"C function {name!r}"
        expected = f"an x86-64 object that defines {name} and calls the C library alone"
        raise CompileError("is no object that links", where=where, expected=expected, got=str(error)) from None


@cache
def _from_image_address(name: str, image: bytes) -> tuple[Library, int]:
    library = Library({name: image}, [name])
    return library, library[name]


@cache
def _from_text_address(name: str, text: str) -> tuple[Library, int]:
    library = Library({name: compile_llvm(text, Target.host())}, [name])
    return library, library[name]


def _from_image(name: str, signature: Signature, image: bytes) -> Callable[..., Any]:
    return native(name, signature, _from_image_address(name, image)[1])


def _from_text(name: str, signature: Signature, text: str) -> Callable[..., Any]:
    return native(name, signature, _from_text_address(name, text)[1])


def _of_python(name: str, signature: Signature, function: Callable[..., Any]) -> CFunction:
    """The C function `name` that calls the Python function `function` of numbers. An error that the latter raises is
    held for `raise_pending`; after one, calls return 0."""
    kind = C_TYPES[signature.result][1]

    def convert(value: Any) -> Any:
        return kind(float(value) if signature.result.is_float else int(value)).value

    def entry(*numbers: Any) -> Any:
        if is_pending():
            return 0
        try:
            return convert(function(*numbers))
        except BaseException as error:  # the caller raises it again, once native code is left
            keep(error)
            return 0

    trampoline = ctypes.CFUNCTYPE(kind, *(C_TYPES[t][1] for t in signature.arguments))(entry)
    symbol = f"tw_python_{name}"
    image = _stub(symbol, signature, ctypes.cast(trampoline, ctypes.c_void_p).value or 0)
    _trampolines.append(trampoline)
    return CFunction(
        name, symbol, signature, lambda: lambda *numbers: convert(function(*numbers)), function, image=image,
        is_python=True,
    )  # fmt: skip


_trampolines: list[object] = []
"""Callbacks, which live as long as the process."""


def _stub(symbol: str, signature: Signature, address: int) -> bytes:
    """An object file that defines the function `symbol` as a jump to `address`."""
    params = [f"{register_type(t)} %a{k}" for k, t in enumerate(signature.arguments)]
    result = register_type(signature.result)
    text = f"""target triple = "{host_triple()}"
define {result} @{symbol}({", ".join(params)}) {{
  %f = inttoptr i64 {address} to ptr
  %r = tail call {result} %f({", ".join(params)})
  ret {result} %r
}}
"""
    return compile_text(text, cache=False)


def functions_of(body: Stmt) -> tuple[CFunction, ...]:
    """The functions that a body's elements call and that have a known definition, except those of the C library."""
    known = (find_c_function(call.name.removeprefix(PREFIX)) for call in c_calls_in(body))
    return tuple(dict.fromkeys(f for f in known if f is not None and not f.in_library))
