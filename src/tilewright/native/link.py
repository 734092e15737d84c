"""Compiling LLVM text to an object for this machine, and linking objects in memory.

Programs cannot see each other's symbols, and dropping a library frees its memory. Our own objects are linked by
`elf.py`, so that a process that only runs models never loads LLVM; for objects that it does not support, and on other
machines, each library has a JIT session of its own. LLVM's ORC linker is used rather than MCJIT: it reports an
unresolved symbol, where MCJIT aborts.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import llvmlite

from tilewright.native import elf, toolchain
from tilewright.support.cache import ObjectCache
from tilewright.support.digest import blake2b
from tilewright.support.errors import CompileError, Error
from tilewright.support.permission import NEEDED, forbidden
from tilewright.support.sources import CHANGED, SIZE, own_files_in


@cache
def host_triple() -> str:
    """LLVM's target triple of this process."""
    if _is_ordinary_linux():
        return "x86_64-unknown-linux-gnu"
    return str(toolchain.llvm().get_process_triple())


def _is_ordinary_linux() -> bool:
    """Whether this is x86-64 Linux with the GNU C library: the one machine whose triple is known without asking
    LLVM."""
    try:
        gnu = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):
        return False
    return bool(gnu) and sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 2**32


def missing_features(wanted: Iterable[str]) -> list[str]:
    """The CPU features in `wanted` (by LLVM's names) that this CPU lacks or this process may not use."""
    wanted = set(wanted)
    denied = forbidden() & wanted if wanted & NEEDED else set()
    unproven = wanted - _features_of_kernel() - denied
    if unproven:
        unproven -= {name for name, present in toolchain.llvm().get_host_cpu_features().items() if present}
    return sorted(unproven | denied)


_UNUSED = {"shstk"}
"""Features that the kernel does not list and whose instructions do nothing on CPUs without them."""
_KERNEL_NAMES = {
    "64bit": "lm", "abm": "lzcnt", "bmi": "bmi1", "cx8": "cx8", "pclmul": "pclmulqdq", "prfchw": "3dnowprefetch",
    "rdrnd": "rdrand", "sahf": "lahf_lm", "sha": "sha_ni", "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2",
    "lzcnt": "abm", "x87": "fpu", "crc32": "sse4_2", "avxvnni": "avx_vnni",
    **{f"avx512{k}": f"avx512_{k}" for k in ("bf16", "fp16", "bitalg", "vnni", "vbmi2", "vpopcntdq")},
    **{f"amx-{k}": f"amx_{k}" for k in ("tile", "int8", "bf16", "fp16")},
}  # fmt: skip
"""Linux's names of CPU features, by LLVM's, where they differ."""


@cache
def _features_of_kernel() -> frozenset[str]:
    """The CPU features (by LLVM's names) that /proc/cpuinfo lists for every CPU; empty without such a file."""
    if not _is_ordinary_linux():
        return frozenset()
    try:
        lines = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")]
    except OSError:
        return frozenset()
    results = [set(line.partition(":")[2].split()) for line in set(lines)]
    flags = set.intersection(*results) if results else set()
    theirs = flags - {*_KERNEL_NAMES, *_KERNEL_NAMES.values()}
    return frozenset(theirs | _UNUSED | {ours for ours, name in _KERNEL_NAMES.items() if name in flags})


class Library:
    """Linked objects. Addresses are valid while it lives.

    Args:
        objects: relocatable images by name.
        exports: the symbols whose addresses are available afterwards.
        imports: addresses of symbols from outside; those of the C library are found automatically.

    Raises CompileError if a symbol is missing or defined twice, or an image is not one.
    """

    def __init__(
        self, objects: Mapping[str, bytes], exports: Iterable[str], imports: Mapping[str, int] | None = None
    ) -> None:
        names = sorted(set(exports))
        self._code: object
        self.addresses: dict[str, int]
        try:
            loaded = elf.load(objects.values(), names, imports or {})
            self._code, self.addresses = loaded, loaded.addresses
        except elf.Unknown:
            self._code, self.addresses = _link_with_llvm(objects, names, imports or {})

    def __getitem__(self, symbol: str) -> int:
        return self.addresses[symbol]

    def keep_forever(self) -> None:
        """Never unload: threads may still run this code while the interpreter ends."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


def _link_with_llvm(
    objects: Mapping[str, bytes], names: list[str], imports: Mapping[str, int]
) -> tuple[object, dict[str, int]]:
    """Link `objects` (contents by name) with LLVM's ORC, with the addresses `imports` of outer symbols. Returns (the
    object that keeps the code in memory, the addresses of the functions `names`)."""
    llvm = toolchain.llvm()
    builder = llvm.JITLibraryBuilder()
    for image in objects.values():
        builder.add_object_img(image)
    for name, address in imports.items():
        builder.import_symbol(name, address)
    for name in names:
        builder.export_symbol(name)
    builder.add_current_process()
    try:
        machine = llvm.Target.from_triple(host_triple()).create_target_machine()
        jit = llvm.create_lljit_compiler(machine, suppress_errors=True)
        tracker = builder.link(jit, "program")
    except RuntimeError as error:
        raise _link_error(objects, names, str(error)) from None
    return (jit, tracker), {name: tracker[name] for name in names}


def _link_error(objects: Mapping[str, bytes], exports: list[str], message: str) -> Error:
    not_elf = [name for name, image in objects.items() if image[:4] != b"\x7fELF"]
    return CompileError(
        f"the object code does not link: {message.strip()}",
        where=f"objects {sorted(objects)[:8]}",
        hint=f"these are not ELF images: {not_elf[:8]}" if not_elf else f"wanted symbols: {exports[:8]}",
    )


def compile_text(text: str | Callable[[], str], *, speed: int = 2, cache: bool = True) -> bytes:
    """Compile LLVM text to an object for the baseline of this machine's architecture, or take it from the object cache.

    Support code gains nothing from vector extensions, and a baseline object suits every machine that shares the cache.

    Args:
        text: the text, or a function of this package that makes it from constants only; the function is not called if
            the cache has the result of the same source files.
    """
    if callable(text):
        name = f"{text.__module__}.{text.__qualname__} of {_source()}"
        return _cached(name, speed, lambda: compile_text(text(), speed=speed))
    return _cached(text, speed, lambda: _compile(text, speed)) if cache else _compile(text, speed)


def _cached(content: str, speed: int, make: Callable[[], bytes]) -> bytes:
    parts = ("support short", host_triple(), llvmlite.__version__, str(speed), content)
    key = blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    store = ObjectCache()
    entry = store.get(key)
    if entry is None:
        images = (ObjectCache(folder).get(key) for folder in _folders)
        entry = _used.get(key) or next((image for image in images if image is not None), None) or make()
        store.put(key, entry)
    _used[key] = entry
    return entry


_folders: list[Path] = []
_used: dict[str, bytes] = {}


def keep_support(folder: Path) -> None:
    """Copy the support code that this process used into a folder, for processes whose object cache is empty or
    elsewhere."""
    store = ObjectCache(folder, limit=1 << 30)
    for key, image in list(_used.items()):
        store.put(key, image)


def look_for_support(folder: Path) -> None:
    """Use the objects that `keep_support` stored in a trusted folder if the object cache lacks them."""
    if folder not in _folders:
        _folders[:] = [*_folders[-3:], folder]


_WRITERS = ("collective", "engine", "live", "measure", "native", "ort", "runtime")
"""Folders of the package whose modules write support code."""


@cache
def _source() -> str:
    """A digest of the sizes and change times of these source files, which changes whenever one of them does."""
    files = sorted((file for folder in _WRITERS for file in own_files_in(f"{folder}/")), key=lambda file: file[0])
    facts = [(name, mark[SIZE], mark[CHANGED]) for name, mark in files]
    return blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _compile(text: str, speed: int) -> bytes:
    llvm, triple = toolchain.llvm(), host_triple()
    machine = toolchain.machine_for(triple, opt=speed)
    module = toolchain.parsed(text, triple, machine, "support code")
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=speed))
    passes = llvm.create_new_module_pass_manager()
    # Straight code without loops worth unrolling: these give what -O2 gives, in a fifteenth of its time.
    for add in (
        passes.add_sroa_pass,
        passes.add_simplify_cfg_pass,
        passes.add_instruction_combine_pass,
        passes.add_simplify_cfg_pass,
    ):
        add()
    passes.run(module, builder)
    return bytes(machine.emit_object(module))
