"""Writes a bundle: a program as files that a build without Tilewright uses."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from tilewright.bundle import c, cpp, rust, web, web_threads
from tilewright.bundle.binding import Binding, binding_of
from tilewright.bundle.float16 import calls_float16_conversions, float16_conversions
from tilewright.bundle.glue import glue
from tilewright.bundle.names import as_name, is_name
from tilewright.bundle.readme import readme, web_readme
from tilewright.bundle.sizes import Sizes
from tilewright.codegen.llvm.emit import compile_llvm
from tilewright.native.relocatable import join
from tilewright.native.wasm import link
from tilewright.runtime.program import Program
from tilewright.runtime.threads import MAX_THREADS, SYS_FUTEX, pool_text_of
from tilewright.support.errors import CompileError, UnsupportedError
from tilewright.support.options import check_choice, check_option, check_path
from tilewright.targets.abi import address_bytes, is_helper, is_microcontroller, is_web
from tilewright.targets.target import Target

Language = Literal["c", "cpp", "rust"]
Files = dict[str, bytes | str]
ALLOWED = frozenset(
    "memcpy memset memmove fmodf fmod powf pow ldexpf ldexp sinf sin cosf cos tanf tan asinf asin acosf acos atanf "
    "atan sinhf sinh coshf cosh tanhf tanh asinhf asinh acoshf acosh atanhf atanh erff erf tgammaf tgamma lgammaf "
    "lgamma expf exp logf log exp2f exp2 log2f log2 log10f log10 log1pf log1p expm1f expm1 cbrtf cbrt hypotf hypot "
    "atan2f atan2 fmaf fma roundf round roundevenf roundeven rintf rint nearbyintf nearbyint floorf floor ceilf "
    "ceil truncf trunc sqrtf sqrt fminf fmin fmaxf fmax nextafterf nextafter lrintf lrint llrintf llrint".split()
)
"""The symbols of the C library that a bundle's object may need: three memory functions, and functions of libm."""


def bundle(
    program: Program,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    lang: Language = "c",
    embed: bool = False,
    rows: int | None = None,
    threads: int = 1,
) -> tuple[Path, ...]:
    """Write a program as files that a build without Tilewright uses, and give their paths.

    Args:
        folder: the folder to write to; it is created.
        name: how functions and files begin; the program's own if None.
        lang: the language of the header and the example; for WebAssembly it is JavaScript.
        embed: put the raw weights into the object.
        rows: the number of rows to plan memory for where nothing bounds them: rows of a decoder's state, or of results
            whose size data decides.
        threads: of a call; with more than one the pool is a second object, "NAME_pool.o", which programs with several
            such bundles are linked with once; for WebAssembly it is in the module, whose memory is then shared by
            workers. A program is best compiled for as many.

    Raises UnsupportedError that says what keeps a program from it; CompileError if the name is none. Before that
    nothing is written.
    """
    check_choice("lang", lang, get_args(Language), CompileError)
    check_path(folder, CompileError)
    binding = described(program, name=name, rows=rows, threads=threads)
    name, spec = binding.name, program.manifest.target
    target = Target(spec.triple, spec.cpu, spec.features)
    weights = raw_weights(program, binding)
    created = (_web if is_web(spec.triple) else _native)(program, binding, target, weights if embed else None, lang)
    return _write(Path(folder), created | ({} if embed else {f"{name}.weights": weights}))


def _native(program: Program, binding: Binding, target: Target, embedded: bytes | None, lang: str) -> Files:
    """The files of a bundle for C, C++ or Rust, by name: objects, and texts in the language `lang`. Weights are in the
    object if `embedded` has them."""
    name, embed = binding.name, embedded is not None
    constants = {} if embedded is None else {f"{name}_weights": embedded}
    joined = join(_objects(program, binding, target), [*_functions(binding), *constants], constants)
    pool = {"tw_parallel", "tw_barrier"} if binding.threads > 1 else set[str]()
    needs = [n for n in joined.needs if not is_helper(target.triple, n) and n not in pool]
    _check_needs(needs, ALLOWED, name)
    objects = [f"{name}.o", *([f"{name}_pool.o"] if binding.threads > 1 else [])]
    cpu = f"{target.triple.partition('-')[0]}, {target.cpu}"
    libraries = [*(["m"] if set(needs) - {"memcpy", "memset", "memmove"} else []), *(["pthread"] if pool else [])]
    files: Files = {f"{name}.o": joined.image, f"{name}.h": c.header(binding, cpu, embed)}
    files |= _texts(binding, lang, embed)
    if binding.threads > 1:
        files[f"{name}_pool.o"] = compile_llvm(pool_text_of(target.triple), target, opt=2)
    files[f"{name}.cmake"] = c.cmake(binding, objects, libraries)
    files["README.md"] = readme(binding, lang, cpu, objects, libraries)
    return files


def _web(program: Program, binding: Binding, target: Target, embedded: bytes | None, lang: str) -> Files:
    """The files of a bundle for the web, by name: a WebAssembly module, JavaScript that loads it, and a README. Weights
    are in the module if `embedded` has them. `lang` is not used, as the language is JavaScript."""
    objects = _objects(program, binding, target)
    objects["support"] = compile_llvm(web.support(target.triple), target, opt=1)
    name = binding.name
    constants = {} if embedded is None else {f"{name}_weights": embedded}
    exports, threads = _functions(binding), binding.threads
    if threads > 1:
        shared = replace(target, features=tuple(sorted({*target.features, "atomics", "bulk-memory"})))
        objects["pool"] = compile_llvm(pool_text_of(target.triple), shared, opt=2)
        exports += web_threads.ENTRIES
    linked = link(objects, exports, constants, threads=threads)
    needs = [n for n in linked.needs if n != web_threads.OFFER]
    _check_needs(needs, web.MATH.keys(), name)
    files: Files = {f"{name}.wasm": linked.module}
    texts = web.texts(binding, needs, embedded is not None, linked.heap)
    return files | texts | {"README.md": web_readme(binding, ", ".join(target.features))}


def _check_needs(needs: Iterable[str], allowed: Collection[str], name: str) -> None:
    odd = sorted(set(needs) - set(allowed))
    if odd:
        raise UnsupportedError("the code needs what a bundle has not", where=name, got=", ".join(odd))


def _functions(binding: Binding) -> list[str]:
    """The names of the functions that a bundle exports."""
    return [f"{binding.name}_prepare", f"{binding.name}_run"]


def _texts(binding: Binding, lang: str, embed: bool) -> dict[str, str]:
    """The texts of a bundle in the language `lang`, by file name; with `embed`, the example uses weights in the
    object."""
    match lang:
        case "cpp":
            return {f"{binding.name}.hpp": cpp.header(binding), "main.cpp": cpp.example(binding, embed)}
        case "rust":
            return {f"{binding.name}.rs": rust.module(binding, embed), "main.rs": rust.example(binding, embed)}
    return {"main.c": c.example(binding, embed)}


def described(program: Program, *, name: str | None = None, rows: int | None = None, threads: int = 1) -> Binding:
    """The interface of a program's bundle, as its callers see it: functions whose names begin with `name` (by default
    the model's), for `threads` threads, with memory for `rows` rows where nothing bounds them. Raises CompileError for
    an invalid name or number, UnsupportedError if the system has no thread pool."""
    triple = program.manifest.target.triple
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= MAX_THREADS:
        raise CompileError("not a number of threads", expected=f"1 to {MAX_THREADS}", got=repr(threads))
    linux = "linux" in triple and triple.partition("-")[0] in SYS_FUTEX
    if threads > 1 and not (linux or is_web(triple)):
        raise UnsupportedError("there is no thread pool for this system yet", expected="threads=1", got=triple)
    check_option("rows", rows, (int, type(None)), "a number of rows")
    name = as_name(program.manifest.name) if name is None else name
    if not isinstance(name, str) or not is_name(name):
        raise CompileError("this is no name for functions: it is none, or it has a meaning already", where=repr(name))
    sizes = Sizes(program.manifest, _text(program, "sizes"))
    compact = is_microcontroller(triple)
    return binding_of(program.manifest, sizes, name, threads, rows, address_bytes(triple), compact)


def _text(program: Program, name: str) -> str | None:
    text = program.texts.get(name)
    return text() if callable(text) else text


def raw_weights(program: Program, binding: Binding) -> bytes:
    """The content of the file of weights: the raw weights, each at its offset."""
    data = bytearray(binding.weight_bytes)
    for w in binding.weights:
        content = _dense(program.weights[w.spec.name]).tobytes()
        if len(content) != w.spec.nbytes:
            raise CompileError("a weight has another size", where=w.spec.name)
        data[w.offset : w.offset + len(content)] = content
    return bytes(data)


def _dense(array: Any) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array)


def _objects(program: Program, binding: Binding, target: Target) -> dict[str, bytes]:
    """The object files of a bundle by name: the program's kernels and entries, "glue" with the functions that callers
    call, and "halves" with conversions of f16 if they are needed."""
    own = compile_llvm(glue(binding, target.triple, address_bytes(target.triple)), target, opt=1)
    return with_float16_conversions({**program.objects, "glue": own}, target)


def with_float16_conversions(objects: Mapping[str, bytes], target: Target) -> dict[str, bytes]:
    """The objects, and one with conversions of f16 if they call these and the target has no instructions for them."""
    if not calls_float16_conversions(objects):
        return dict(objects)
    return {**objects, "halves": compile_llvm(float16_conversions(target.triple), target, opt=1)}


def _write(folder: Path, files: Files) -> tuple[Path, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return tuple(folder / name for name in files)
