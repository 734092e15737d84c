"""Registering the provider: its library is written to a file, loaded, and named to ONNX Runtime."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.ort.library import EXPORTS, library
from tilewright.ort.provider import NAME, Provider
from tilewright.support.errors import CallError, MissingPackageError, UnsupportedError

TESTED = ("1.24", "1.25", "1.26", "1.27", "1.28", "1.29", "1.30", "1.31", "1.32")
"""The releases of ONNX Runtime that the provider is tested with."""

_lock = threading.Lock()
_providers: list[Provider] = []
"""The providers that ONNX Runtime may still call; the last one is registered."""


def register() -> Sequence[Any]:
    """Register the provider with ONNX Runtime, once a process, and return its devices (`onnxruntime.OrtEpDevice`) for
    `SessionOptions.add_provider_for_devices`.

    Raises MissingPackageError without ONNX Runtime, UnsupportedError for a release that the provider is not tested
    with, CompileError on machines for which no libraries can be written.
    """
    onnxruntime = _onnxruntime()
    with _lock:
        if not _devices(onnxruntime):
            _providers.append(_load(onnxruntime, library()))
        return _devices(onnxruntime)


def _devices(onnxruntime: Any) -> list[Any]:
    return [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME]


def _load(onnxruntime: Any, content: bytes) -> Provider:
    with tempfile.TemporaryDirectory(prefix="tilewright-ort-") as folder:
        path = Path(folder) / "libtilewright_ort.so"
        path.write_bytes(content)
        loaded = ctypes.CDLL(os.fspath(path))
        provider = Provider({n: ctypes.cast(getattr(loaded, n), ctypes.c_void_p).value or 0 for n in EXPORTS})
        # The file may go after this: ONNX Runtime has the very same library open.
        onnxruntime.register_execution_provider_library(NAME, os.fspath(path))
    atexit.register(provider.close)
    return provider


def unregister() -> None:
    """Unregister the provider from ONNX Runtime. Raises CallError while sessions use it."""
    with _lock:
        onnxruntime = _onnxruntime() if _providers else None
        if onnxruntime is None or not _devices(onnxruntime):
            return
        provider = _providers[-1]
        if provider.sessions:
            gc.collect()  # sessions that nothing refers to
        if provider.sessions:
            what = "sessions still use the provider"
            raise CallError(what, where="tilewright.ort", expected="none", got=len(provider.sessions))
        onnxruntime.unregister_execution_provider_library(NAME)
        _providers.pop().close()
        atexit.unregister(provider.close)


def left() -> list[list[str]]:
    """For each session that uses the provider now: the nodes that ONNX Runtime runs itself, with the reasons."""
    return [list(s.left) for provider in _providers for s in tuple(provider.sessions.values())]


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        what, hint = "ONNX Runtime is not installed", 'pip install "tilewright[bench]"'
        raise MissingPackageError(what, where="tilewright.ort", hint=hint) from None
    release = str(onnxruntime.__version__)
    if ".".join(release.split(".")[:2]) not in TESTED:
        what = "the execution provider is not tested with this release of ONNX Runtime"
        raise UnsupportedError(what, expected=" or ".join(TESTED), got=release)
    return onnxruntime


__all__ = ["NAME", "TESTED", "left", "register", "unregister"]
