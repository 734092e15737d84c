"""NVIDIA's driver: its library, found by name when a program is loaded, and its functions, looked up one by one.

The names and signatures are those of the CUDA driver API, in the versions that drivers from 525 on (CUDA 12.0) have.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from tilewright.runtime.layout import Memory, Struct, function
from tilewright.support import flags
from tilewright.support.errors import TargetError

FUNCTIONS = (
    "cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
    "cuModuleLoadDataEx", "cuModuleUnload", "cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel",
    "cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2", "cuMemcpyAsync",
    "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize",
    "cuGraphCreate", "cuGraphDestroy", "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags", "cuGraphExecDestroy",
    "cuGraphLaunch",
    "cuTensorMapEncodeTiled",
    "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime",
    "cuGetErrorName", "cuGetErrorString",
)  # fmt: skip
"""The driver's functions that are used, in the order of the table of their addresses."""
DRIVER = Struct(*FUNCTIONS)

OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""
STREAM_NON_BLOCKING = 1
MAJOR, MINOR = 75, 76
"""Attributes of a device: its compute capability."""
_PTR, _INT = ctypes.c_void_p, ctypes.c_int


class Driver:
    """NVIDIA's driver library, loaded in this process, with a table of its functions' addresses for native code.

    Raises TargetError if there is no driver, if it lacks a function, or if its initialisation fails.
    """

    def __init__(self, name: str) -> None:
        try:
            self._library = ctypes.CDLL(name)
        except OSError as error:
            hint = "compiling needs no driver; calling the program does, or a target of this machine"
            raise TargetError(
                "no NVIDIA driver", where="GPU", expected=f"library {name}", got=str(error), hint=hint
            ) from None
        self.table = Memory(DRIVER.size)
        missing = []
        for at, symbol in enumerate(FUNCTIONS):
            try:
                self.table[8 * at] = ctypes.cast(getattr(self._library, symbol), _PTR).value or 0
            except AttributeError:
                missing.append(symbol)
        if missing:
            raise TargetError(
                "the NVIDIA driver is too old", where=f"library {name}", expected="525 or later (CUDA 12.0)",
                got=f"no {', '.join(missing[:4])}",
            )  # fmt: skip
        self._functions: dict[str, Callable[..., int]] = {}
        self.call("cuInit", 0)

    def result(self, symbol: str, *arguments: Any) -> int:
        """The result of a function of the driver: 0, or the number of an error."""
        call = self._functions.get(symbol)
        if call is None:
            kinds = [_PTR if not isinstance(a, ctypes.c_int) else _INT for a in arguments]
            call = self._functions[symbol] = function(self.table[getattr(DRIVER, symbol)], _INT, *kinds)
        return call(*arguments)

    def call(self, symbol: str, *arguments: Any) -> None:
        """Call a function of the driver; TargetError with the error's name if it fails."""
        code = self.result(symbol, *arguments)
        if code:
            raise self.error(code, symbol)

    def number(self, symbol: str, *arguments: Any) -> int:
        """The 64-bit number that the driver's function `symbol` returns through its first argument; the others are
        `arguments`."""
        out = ctypes.c_int64(0)
        self.call(symbol, ctypes.addressof(out), *arguments)
        return out.value

    def error(self, code: int, symbol: str, detail: str = "") -> TargetError:
        """The error for number `code`, which the driver's function `symbol` returned, with the driver's description."""
        name, text = (self._text(kind, code) for kind in ("cuGetErrorName", "cuGetErrorString"))
        got = ": ".join(part for part in (name or f"error {code}", text, detail.strip()) if part)
        hint = "fewer calls at once, smaller batches or fewer models" if code == OUT_OF_MEMORY else None
        return TargetError(f"{symbol} of the NVIDIA driver failed", where="GPU", got=got, hint=hint)

    def _text(self, symbol: str, code: int) -> str:
        out = ctypes.c_char_p()
        if self.result(symbol, ctypes.c_int(code), ctypes.addressof(out)) or out.value is None:
            return ""
        return out.value.decode(errors="replace")


def library_name() -> str:
    """The name of the driver's library: from TILEWRIGHT_CUDA, or the default of this system."""
    return flags.CUDA() or ("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@cache
def _driver(name: str) -> Driver:
    return Driver(name)


def driver() -> Driver:
    """The driver, loaded at first use. Raises TargetError if there is none."""
    return _driver(library_name())


__all__ = ["DRIVER", "FUNCTIONS", "MAJOR", "MINOR", "OUT_OF_MEMORY", "STREAM_NON_BLOCKING", "Driver", "driver"]
