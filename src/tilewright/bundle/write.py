"""Writes a bundle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from tilewright.bundle import c, cpp, rust
from tilewright.bundle.face import Face, face
from tilewright.bundle.glue import glue
from tilewright.bundle.names import as_name, is_name
from tilewright.bundle.readme import readme
from tilewright.bundle.sizes import Sizes
from tilewright.codegen.llvm.emit import compile_llvm
from tilewright.native.relocatable import join
from tilewright.runtime.program import Program
from tilewright.support.errors import CompileError, UnsupportedError
from tilewright.support.options import check_choice, check_option, check_path
from tilewright.targets.target import Target

Language = Literal["c", "cpp", "rust"]
ALLOWED = frozenset(
    "memcpy memset memmove fmodf fmod powf pow ldexpf ldexp sinf sin cosf cos tanf tan asinf asin acosf acos atanf "
    "atan sinhf sinh coshf cosh asinhf asinh acoshf acosh atanhf atanh erff erf tgammaf tgamma lgammaf lgamma expf exp "
    "logf log exp2f exp2 log2f log2 log10f log10 log1pf log1p expm1f expm1 cbrtf cbrt hypotf hypot atan2f atan2 fmaf "
    "fma roundf round roundevenf roundeven rintf rint nearbyintf nearbyint floorf floor ceilf ceil truncf trunc sqrtf "
    "sqrt fminf fmin fmaxf fmax nextafterf nextafter".split()
)
"""What a bundle's object may need of the C library: memory's three, and functions of libm."""


def bundle(
    program: Program,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    lang: Language = "c",
    embed: bool = False,
    rows: int | None = None,
) -> tuple[Path, ...]:
    """Write a program as files that a build without Tilewright uses, and give their paths.

    Args:
        folder: where to; it is made.
        name: how functions and files begin; the program's own if None.
        lang: the language of the header and the example.
        embed: put the raw weights into the object.
        rows: for how many rows there shall be memory where nothing bounds them: of a decoder's state, or of results
            whose size data decides.

    Raises UnsupportedError that says what keeps a program from it; CompileError if the name is none. Before that
    nothing is written.
    """
    check_choice("lang", lang, get_args(Language), CompileError)
    check_path(folder, CompileError)
    result = described(program, name=name, rows=rows)
    name, spec = result.name, program.manifest.target
    target = Target(spec.triple, spec.cpu, spec.features)
    weights = raw_weights(program, result)
    image, needs = _object(program, result, target, weights if embed else None)
    odd = sorted(set(needs) - ALLOWED)
    if odd:
        raise UnsupportedError("the code needs what a bundle has not", where=name, got=", ".join(odd))
    cpu = f"{spec.triple.partition('-')[0]}, {spec.cpu}"
    libraries = ["m"] if set(needs) - {"memcpy", "memset", "memmove"} else []
    files: dict[str, bytes | str] = {f"{name}.o": image, f"{name}.h": c.header(result, cpu, embed)}
    files |= {} if embed else {f"{name}.weights": weights}
    files |= _texts(result, lang, embed)
    files |= {
        f"{name}.cmake": c.cmake(result, [f"{name}.o"], libraries),
        "README.md": readme(result, lang, cpu, [f"{name}.o"], libraries),
    }
    return _write(Path(folder), files)


def _texts(result: Face, lang: str, embed: bool) -> dict[str, str]:
    """What is written for one language."""
    match lang:
        case "cpp":
            return {f"{result.name}.hpp": cpp.header(result), "main.cpp": cpp.example(result, embed)}
        case "rust":
            return {f"{result.name}.rs": rust.module(result, embed), "main.rs": rust.example(result, embed)}
    return {"main.c": c.example(result, embed)}


def described(program: Program, *, name: str | None = None, rows: int | None = None) -> Face:
    """How callers of a program's bundle see it."""
    check_option("rows", rows, (int, type(None)), "a number of rows")
    name = as_name(program.manifest.name) if name is None else name
    if not isinstance(name, str) or not is_name(name):
        raise CompileError("this is no name for functions: it is none, or it has a meaning already", where=repr(name))
    sizes = Sizes(program.manifest, _text(program, "sizes"))
    return face(program.manifest, sizes, name, 1, rows, _pointer(program.manifest.target.triple))


def _pointer(triple: str) -> int:
    """Bytes of an address."""
    return 4 if triple.startswith(("thumb", "armv", "wasm32", "riscv32", "i386", "i686")) else 8


def _text(program: Program, name: str) -> str | None:
    text = program.texts.get(name)
    return text() if callable(text) else text


def raw_weights(program: Program, result: Face) -> bytes:
    """The raw weights, each at its place."""
    data = bytearray(result.weight_bytes)
    for w in result.weights:
        content = _dense(program.weights[w.spec.name]).tobytes()
        if len(content) != w.spec.nbytes:
            raise CompileError("a weight has another size", where=w.spec.name)
        data[w.offset : w.offset + len(content)] = content
    return bytes(data)


def _dense(array: Any) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array)


def _object(program: Program, result: Face, target: Target, weights: bytes | None) -> tuple[bytes, tuple[str, ...]]:
    """The object, and what it needs from outside."""
    own = compile_llvm(glue(result, target.triple, _pointer(target.triple)), target, opt=1)
    exports = [f"{result.name}_prepare", f"{result.name}_run"]
    constants = {} if weights is None else {f"{result.name}_weights": weights}
    joined = join({**program.objects, "glue": own}, [*exports, *constants], constants)
    return joined.image, joined.needs


def _write(folder: Path, files: dict[str, bytes | str]) -> tuple[Path, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return tuple(folder / name for name in files)
