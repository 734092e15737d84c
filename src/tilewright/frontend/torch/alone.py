"""The lock under which one thread at a time traces PyTorch code: the tracers hold state of the whole process."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

_lock = threading.RLock()


@contextlib.contextmanager
def tracing_alone() -> Iterator[None]:
    """Within the context, no other thread traces for Tilewright, nor does TorchDynamo compile if it is loaded already:
    loading it takes a second. TorchDynamo's lock is the second one; its backend never takes the first."""
    with _lock:
        dynamo = sys.modules.get("torch._dynamo.convert_frame")
        with getattr(dynamo, "compile_lock", contextlib.nullcontext()):
            yield


__all__ = ["tracing_alone"]
