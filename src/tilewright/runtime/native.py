"""The native support code, compiled and linked once in a process: thread pool, call core, and the entries for Python
and tvm-ffi.

Functions that few processes call (`tw_foreign`, `tw_watching`, `tw_checksum`) are compiled at first use, as compiling
everything takes as long as the kernels of a small model.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from tilewright.native.assembler import Module
from tilewright.native.link import Library, compile_text, host_triple, missing_features
from tilewright.runtime import dlpack, glue
from tilewright.runtime.call import CORE_EXPORTS, SELDOM_EXPORTS, define_core, define_seldom
from tilewright.runtime.foreign import FOREIGN_EXPORTS, define_foreign
from tilewright.runtime.glue import (
    GLOBALS,
    GLUE_EXPORTS,
    MAX_TYPES,
    PYTHON_DATA,
    PYTHON_FUNCTIONS,
    define_glue,
    define_watching,
)
from tilewright.runtime.layout import function
from tilewright.runtime.limits import SIGNAL_FUNCTIONS
from tilewright.runtime.scans import SCAN_EXPORTS, define_scans
from tilewright.runtime.threads import pool, pool_code
from tilewright.runtime.watch import DIGESTS, define_watch, digest_code, digests

_NEW_FROM_DESCR = 94  # index in NumPy's C API table, fixed by its ABI
_METH_FASTCALL_KEYWORDS = 0x80 | 0x02
_I64, _PTR = ctypes.c_int64, ctypes.c_void_p


class _MethodDef(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("body", _PTR), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


def support_text() -> str:
    """LLVM text of the call core and its entry for Python."""
    m = Module(host_triple())
    define_core(m)
    define_glue(m)
    return m.text()


def seldom_text() -> str:
    """LLVM text of the code for calls with new sizes."""
    m = Module(host_triple())
    define_seldom(m)
    return m.text()


def seldom_code() -> bytes:
    """The object of code that seldom runs, compiled without optimisation in a fifth of the time."""
    return compile_text(seldom_text, speed=0)


def scans_text() -> str:
    """LLVM text of the functions that scan memory: checksums, and searches for NaN and infinity."""
    m = Module(host_triple())
    define_scans(m)
    return m.text()


def watch_text() -> str:
    """The LLVM text of a module with the builtin that calls a program if the tensors of a table have kept their
    addresses and contents, else its slow path."""
    m = Module(host_triple())
    define_watch(m)
    define_watching(m)
    return m.text()


def foreign_text() -> str:
    """LLVM text of the entry for tvm-ffi."""
    m = Module(host_triple())
    define_foreign(m)
    return m.text()


class Native:
    """Addresses and ctypes functions of the linked support code."""

    def __init__(self) -> None:
        imports = {name: _address(getattr(ctypes.pythonapi, name)) for name in (*PYTHON_FUNCTIONS, *SIGNAL_FUNCTIONS)}
        imports |= {name: ctypes.addressof(_I64.in_dll(ctypes.pythonapi, name)) for name in PYTHON_DATA}
        imports["PyArray_NewFromDescr"] = _numpy_api(_NEW_FROM_DESCR)
        imports["tw_parallel"] = pool().parallel
        exports = (*CORE_EXPORTS, *SELDOM_EXPORTS, *GLUE_EXPORTS)
        objects = {"support": compile_text(support_text), "seldom": seldom_code()}
        self.linked = Library(objects, exports, imports)
        self.linked.keep_forever()
        self._symbols = imports | self.linked.addresses
        self.call = self._function("tw_call", _I64, _PTR, _PTR, _PTR)
        self.swap = self._function("tw_swap", _I64, _PTR, _I64, _I64)
        self.add = self._function("tw_add", _I64, _PTR, _I64)
        self.find = self._function("tw_find", _I64, _PTR, _PTR)
        self.set = self._function("tw_set", None, _PTR, _I64)
        self.scan = self._function("tw_scan", _I64, _PTR, _I64, _I64, _I64)
        self._words_at = self._function("tw_words_at", None, _PTR, _I64, _I64, _PTR)
        self._globals = self.linked["tw_globals"]
        self._keep: list[object] = []
        self._known: set[type] = {np.ndarray}
        self._word(GLOBALS.array_type).value = id(np.ndarray)
        self._word(GLOBALS.tuple_type).value = id(tuple)
        self._word(GLOBALS.out).value = id(sys.intern("out"))
        self._word(GLOBALS.is_neg).value = id(sys.intern("is_neg"))
        self._methods: dict[int, _MethodDef] = {}
        self._fast = _objects_are_as_assumed()
        self._libraries: dict[str, Library] = {}
        self._linking = threading.RLock()
        if hasattr(os, "register_at_fork"):  # a child forked while another thread links would wait for ever
            lock = self._linking
            os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

    @property
    def foreign(self) -> int:
        """The address of `tw_foreign`, the native function that runs a model for tvm-ffi callers."""
        library = self._further("foreign", foreign_text, FOREIGN_EXPORTS)
        return library["tw_foreign"]

    @property
    def watch(self) -> Library:
        """The library with `tw_watching`."""
        return self._further("watch", watch_text, ("tw_watching",))

    @property
    def _scans(self) -> Library:
        return self._further("scans", scans_text, SCAN_EXPORTS)

    @property
    def checksum(self) -> Callable[[int, int], int]:
        """The checksum of memory at an address: of a multiple of 64 bytes, aligned to as many."""
        result: Callable[[int, int], int] = function(self._scans["tw_checksum"], _I64, _PTR, _I64)
        return result

    @property
    def _first_unfit(self) -> Callable[[int, int, int], int]:
        result: Callable[[int, int, int], int] = function(self._scans["tw_first_unfit"], _I64, _PTR, _PTR, _I64)
        return result

    @cached_property
    def digest_address(self) -> int:
        """The address of the fastest digest function for this processor: i64 (ptr, bytes)."""
        name = next(name for name in digests(host_triple()) if not missing_features(DIGESTS[name]))
        return self._further("digest", digest_code(name), (name,))[name]

    @cached_property
    def digest(self) -> Callable[[int, int], int]:
        """The digest function of memory: from an address and a number of bytes."""
        result: Callable[[int, int], int] = function(self.digest_address, _I64, _PTR, _I64)
        return result

    def _further(self, name: str, text: str | Callable[[], str], exports: Sequence[str]) -> Library:
        """The library `name` with the LLVM module `text`, of which it exports the functions `exports`, linked to the
        core and the glue; compiled when it is first requested."""
        if name not in self._libraries:
            with self._linking:
                if name not in self._libraries:
                    library = Library({name: compile_text(text)}, exports, self._symbols)
                    library.keep_forever()
                    self._libraries[name] = library
        return self._libraries[name]

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        return function(self.linked[name], result, *arguments)

    def _word(self, offset: int) -> Any:
        return _I64.from_address(self._globals + offset)

    def addresses(self, arrays: Sequence[np.ndarray[Any, Any]]) -> list[int]:
        """The data addresses of NumPy arrays, read in one native call: `array.ctypes.data` takes a microsecond each."""
        if not self._fast:
            return [a.ctypes.data for a in arrays]
        places, out = array("q", map(id, arrays)), array("q", bytes(8 * len(arrays)))
        self._words_at(places.buffer_info()[0], glue.ARRAY_DATA, len(arrays), out.buffer_info()[0])
        return out.tolist()

    def are_finite(self, arrays: Sequence[np.ndarray[Any, Any]]) -> bool:
        """Whether no element of these dense f32 arrays is NaN or infinite, at memory bandwidth."""
        where, counts = array("q", self.addresses(arrays)), array("q", [a.size for a in arrays])
        return bool(self._first_unfit(where.buffer_info()[0], counts.buffer_info()[0], len(arrays)) < 0)

    def builtin(
        self, model: int, slow: Callable[..., Any], keep_alive: object, *, versioned: bool = False
    ) -> Callable[..., Any]:
        """A builtin that runs the model at this address, and calls `slow` with the same arguments when it cannot. A
        `versioned` one returns a pair: the result, and the version of the weights that the call used.

        On an interpreter whose object layout is not supported, this is `slow` itself.
        """
        if not self._fast:
            return slow
        entry = self.linked["tw_versioned" if versioned else "tw_vectorcall"]
        return self._builtin(entry, (model, slow, keep_alive, self))

    def watching(self, model: int, slow: Callable[..., Any], table: int, keep_alive: object) -> Callable[..., Any]:
        """A builtin function like the one of `builtin`, but its arguments are the model's inputs followed by the
        tensors of the `watch.WATCH` table at the address `table`: it calls `slow` with all of them if one of those
        tensors has changed. It holds `keep_alive` as long as it lives."""
        if not self._fast:
            return slow
        return self._builtin(self.watch["tw_watching"], (model, slow, table, keep_alive, self))

    def _builtin(self, entry: int, state: tuple[object, ...]) -> Callable[..., Any]:
        """The builtin function for an entry, with `state` as its `self`."""
        method = self._methods.setdefault(entry, _MethodDef(b"program", entry, _METH_FASTCALL_KEYWORDS, None))
        make = _python_function("PyCFunction_NewEx", ctypes.py_object, _PTR, ctypes.py_object, _PTR)
        created: Callable[..., Any] = make(ctypes.addressof(method), state, None)
        return created

    def learn(self, kind: type) -> None:
        """Let the builtin read tensors of type `kind` itself from now on, if the type has DLPack's C functions for
        that."""
        if kind in self._known or len(self._known) > MAX_TYPES:
            return
        self._known.add(kind)
        capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
        api = _exchange_api(capsule)
        if api is None:
            return
        count = self._word(GLOBALS.types).value
        self._word(GLOBALS.table + 16 * count).value = id(kind)
        self._word(GLOBALS.table + 16 * count + 8).value = api
        self._word(GLOBALS.types).value = count + 1
        self._keep.append((kind, capsule))


def compile_support() -> None:
    """Compile the code that `native` links, into the object cache or this process. Any thread may call it."""
    if not native.cache_info().currsize:
        pool_code()
        seldom_code()
        compile_text(support_text)


@cache
def native() -> Native:
    """The support code, linked at first use."""
    return Native()


def _address(symbol: Any) -> int:
    return ctypes.cast(symbol, _PTR).value or 0


def _python_function(name: str, result: Any, *arguments: Any) -> Any:
    """The function `name` of Python's C API, with the result type `result`, as ctypes function, which is called with
    the GIL held and shares no settings with `ctypes.pythonapi`."""
    return ctypes.PYFUNCTYPE(result, *arguments)(_address(getattr(ctypes.pythonapi, name)))


def _capsule_pointer(capsule: Any, name: bytes | None) -> int:
    get = _python_function("PyCapsule_GetPointer", _PTR, ctypes.py_object, ctypes.c_char_p)
    return int(get(capsule, name) or 0)


def _numpy_api(index: int) -> int:
    core: Any = getattr(np, "_core", None) or np.core
    table = _capsule_pointer(core._multiarray_umath._ARRAY_API, None)
    return int(_I64.from_address(table + 8 * index).value)


def _exchange_api(capsule: Any) -> int | None:
    """The address of a DLPackExchangeAPI of major version 1 that can view a tensor; None if there is none."""
    try:
        api = _capsule_pointer(capsule, b"dlpack_exchange_api")
    except (ValueError, TypeError, ctypes.ArgumentError):
        return None
    major = ctypes.c_uint32.from_address(api).value
    functions = [
        _I64.from_address(api + at).value for at in (dlpack.API_ALLOCATE, dlpack.API_TO_PYTHON, dlpack.API_VIEW)
    ]
    return api if major == 1 and all(functions) else None


def _free_threaded() -> bool:
    """Whether this Python is built without the GIL."""
    flags = getattr(sys, "abiflags", None)
    if flags is not None:
        return "t" in flags
    import sysconfig  # which takes milliseconds, where no flags say it

    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def _objects_are_as_assumed() -> bool:
    """Whether live objects have their fields at the offsets at which the builtin reads them: a test on a NumPy
    array."""
    if sys.implementation.name != "cpython" or _free_threaded() or sys.maxsize < 2**32:
        return False
    sample = np.zeros((3, 5), np.float32)
    at = id(sample)

    def word(offset: int) -> int:
        return int(_I64.from_address(at + offset).value)

    dims = word(glue.ARRAY_DIMS)
    readonly = np.zeros((3, 5), np.float32).T
    readonly.flags.writeable = False
    flags = [ctypes.c_int32.from_address(id(a) + glue.ARRAY_FLAGS).value for a in (sample, readonly)]
    return (
        word(glue.OB_TYPE) == id(np.ndarray)
        and word(glue.ARRAY_DATA) == sample.ctypes.data
        and ctypes.c_int32.from_address(at + glue.ARRAY_RANK).value == 2
        and (_I64 * 2).from_address(dims)[:] == [3, 5]
        and word(glue.ARRAY_DESCR) == id(np.dtype(np.float32))
        and flags[0] & glue.WRITABLE == glue.WRITABLE
        and flags[1] & glue.WRITABLE == 0x100
    )
