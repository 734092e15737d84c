"""ONNX Runtime's C interface in Python: functions by name, statuses as exceptions, lists of handles as lists."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tilewright.ort.abi import API_VERSION, CHECKED, EP_CHECKED, POINTER, SIZE, UNCHECKED
from tilewright.runtime.layout import function
from tilewright.support.errors import CallError

_KINDS = {POINTER: ctypes.c_void_p, SIZE: ctypes.c_size_t, "i": ctypes.c_int, "": None}


class OrtError(CallError):
    """Raised with the message of a function of ONNX Runtime that failed."""


class Api:
    """The functions of one process's ONNX Runtime.

    Args:
        base: the address of its `OrtApiBase`.

    Raises OrtError if it lacks version `API_VERSION` of the interface.
    """

    def __init__(self, base: int) -> None:
        get_api, get_version = (word_at(base, k) for k in range(2))
        version: bytes = function(get_version, ctypes.c_char_p)()
        self.release = version.decode()
        self.address: int = function(get_api, ctypes.c_void_p, ctypes.c_uint32)(API_VERSION) or 0
        if not self.address:
            what = "this ONNX Runtime has not the version of the interface that the provider needs"
            raise OrtError(what, expected=str(API_VERSION), got=self.release)
        self._free = {
            name: function(word_at(self.address, place), _KINDS[result], *(_KINDS[p] for p in parameters))
            for name, (place, parameters, result) in UNCHECKED.items()
        }
        self._checked = _functions(self.address, CHECKED) | _functions(self.free("GetEpApi"), EP_CHECKED)

    def free(self, name: str, *arguments: Any) -> Any:
        """Call a function that returns no status."""
        return self._free[name](*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status. Raises OrtError with its message."""
        status = self._checked[name](*arguments)
        if status:
            message = ctypes.string_at(self.free("GetErrorMessage", status)).decode(errors="replace")
            self.free("ReleaseStatus", status)
            raise OrtError(message, where=name)

    def succeeds(self, name: str, *arguments: Any) -> bool:
        """Call a function whose failure is an answer rather than an error; returns whether it succeeded."""
        status = self._checked[name](*arguments)
        if status:
            self.free("ReleaseStatus", status)
        return not status

    def handle(self, name: str, *arguments: Any) -> int:
        """Call a function whose last parameter is a pointer to its result, an address; 0 for null."""
        out = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(out))
        return out.value or 0

    def number(self, name: str, *arguments: Any) -> int:
        """Call a function whose last parameter is a pointer to its result, an i64."""
        out = ctypes.c_int64()
        self.call(name, *arguments, ctypes.byref(out))
        return out.value

    def text(self, name: str, *arguments: Any) -> str:
        """Call a function whose last parameter is a pointer to its result, a text that ONNX Runtime owns."""
        address = self.handle(name, *arguments)
        return ctypes.string_at(address).decode() if address else ""

    def handles(self, name: str, owner: int) -> list[int]:
        """The list of handles that the API's function `name`, such as `Graph_GetNodes`, returns for `owner`; its length
        is from the counterpart, `Graph_GetNumNodes`."""
        count = self.number(name.replace("_Get", "_GetNum"), owner)
        array = (ctypes.c_void_p * max(count, 1))()
        self.call(name, owner, array, count)
        return [address or 0 for address in array[:count]]


def status(base: int, code: int, message: str) -> int:
    """The address of a new status, with the number `code` of an error and its message, made by the ONNX Runtime with
    this `OrtApiBase`; the receiver releases it."""
    api = function(word_at(base), ctypes.c_void_p, ctypes.c_uint32)(1)  # a function of the first version
    create = function(word_at(api), ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    return int(create(code, message.encode().replace(b"\0", b"?")))


def _functions(table: int, places: dict[str, tuple[int, str]]) -> dict[str, Callable[..., Any]]:
    return {
        name: function(word_at(table, place), ctypes.c_void_p, *(_KINDS[p] for p in parameters))
        for name, (place, parameters) in places.items()
    }


def word_at(address: int, k: int = 0) -> int:
    """The k-th word at an address."""
    return int(ctypes.c_uint64.from_address(address + 8 * k).value)


def set_word(address: int, value: int) -> None:
    """Store `value` as the 64-bit word at `address`."""
    ctypes.c_uint64.from_address(address).value = value


__all__ = ["Api", "OrtError", "set_word", "status", "word_at"]
