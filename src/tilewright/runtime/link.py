"""Objects into memory: LLVM text to an object for this machine, and objects to callable addresses.

Each linked library has a JIT session of its own, so that programs cannot see each other's symbols and dropping one
frees its memory. LLVM's ORC linker is used rather than MCJIT: it reports an unresolved symbol, where MCJIT aborts.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Iterable, Mapping

import llvmlite
import llvmlite.binding as llvm

from tilewright.support.cache import ObjectCache
from tilewright.support.errors import CompileError, Error

_lock = threading.Lock()
_initialized = False


def _initialize() -> None:
    global _initialized
    with _lock:
        if not _initialized:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            _initialized = True


def host_triple() -> str:
    """LLVM's triple of this process."""
    return str(llvm.get_process_triple())


def host_features() -> frozenset[str]:
    """LLVM's names of the features that this CPU has."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


class Library:
    """Linked objects. Addresses are valid while it lives.

    Args:
        objects: relocatable images by name.
        exports: symbols whose addresses are wanted.
        imports: addresses of symbols from outside; the C library's are found by themselves.

    Raises CompileError if a symbol is missing or defined twice, or an image is not one.
    """

    def __init__(
        self, objects: Mapping[str, bytes], exports: Iterable[str], imports: Mapping[str, int] | None = None
    ) -> None:
        _initialize()
        builder = llvm.JITLibraryBuilder()
        for image in objects.values():
            builder.add_object_img(image)
        for name, address in (imports or {}).items():
            builder.import_symbol(name, address)
        names = sorted(set(exports))
        for name in names:
            builder.export_symbol(name)
        builder.add_current_process()
        try:
            machine = llvm.Target.from_triple(host_triple()).create_target_machine()
            self._jit = llvm.create_lljit_compiler(machine, suppress_errors=True)
            self._tracker = builder.link(self._jit, "program")
        except RuntimeError as error:
            raise _link_error(objects, names, str(error)) from None
        self.addresses: dict[str, int] = {name: self._tracker[name] for name in names}

    def __getitem__(self, symbol: str) -> int:
        return self.addresses[symbol]

    def keep_forever(self) -> None:
        """Never unload: threads may still run this code while the interpreter ends."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


def _link_error(objects: Mapping[str, bytes], exports: list[str], message: str) -> Error:
    not_elf = [name for name, image in objects.items() if image[:4] != b"\x7fELF"]
    return CompileError(
        f"the object code does not link: {message.strip()}",
        where=f"objects {sorted(objects)[:8]}",
        hint=f"these are not ELF images: {not_elf[:8]}" if not_elf else f"wanted symbols: {exports[:8]}",
    )


def compile_text(text: str, *, speed: int = 2, cache: bool = True) -> bytes:
    """An object for LLVM text, for the baseline of this machine's architecture, from the object cache if it is there.

    Support code gains nothing from vector extensions, and a baseline object suits every machine that shares the cache.
    """
    triple = host_triple()
    key = hashlib.blake2b(
        "\0".join(("support short", triple, llvmlite.__version__, str(speed), text)).encode(), digest_size=16
    ).hexdigest()
    store = ObjectCache() if cache else None
    if store is not None and (found := store.get(key)) is not None:
        return found
    _initialize()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=speed, reloc="pic")
    try:
        module = llvm.parse_assembly(text)
        module.triple = triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refused support code: {error}") from None
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=speed))
    passes = llvm.create_new_module_pass_manager()
    # Straight code without loops worth unrolling: these give what -O2 gives, in a fifteenth of its time.
    for add in (
        passes.add_sroa_pass,
        passes.add_simplify_cfg_pass,
        passes.add_instruction_combine_pass,
        passes.add_new_gvn_pass,
        passes.add_simplify_cfg_pass,
    ):
        add()
    passes.run(module, builder)
    image = bytes(machine.emit_object(module))
    if store is not None:
        store.put(key, image)
    return image
