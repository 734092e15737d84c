"""Where buffers live, and what runs through the loops of a processor of graphics: parts of `Buffer` and `For`."""

from __future__ import annotations

from typing import Literal, get_args

Scope = Literal["global", "padded", "local", "shared"]

SCOPES: dict[Scope, str] = {
    "global": "Memory; it is not printed.",
    "padded": "Memory whose inner dimensions lowering may enlarge, so that planes do not meet in the same cache sets.",
    "local": "Private to a thread; in registers if it can be.",
    "shared": "Memory that the threads of a GPU's block share; `codegen/cuda/` takes it.",
}
"""Where buffers live. Written by `set_scope` and `cache_write`, read by `transform/loops/`."""

Thread = Literal["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z", "vthread"]

THREADS: tuple[Thread, ...] = get_args(Thread)
"""The hardware indices that may run through a loop. Written by `bind`; `codegen/cuda/` takes them."""
