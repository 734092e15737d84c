"""The lock under which one thread at a time traces PyTorch code: the tracers hold state of the whole process."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child forked while another thread traces would wait for ever
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@contextlib.contextmanager
def tracing_alone() -> Iterator[None]:
    """Within the context, no other thread traces for Tilewright, nor does TorchDynamo compile if it is loaded already:
    loading it takes a second. TorchDynamo's lock is the second one; its backend never takes the first."""
    with _lock:
        dynamo = sys.modules.get("torch._dynamo.convert_frame")
        with getattr(dynamo, "compile_lock", contextlib.nullcontext()):
            yield


__all__ = ["tracing_alone"]
