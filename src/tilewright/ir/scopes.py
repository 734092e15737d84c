"""Where buffers live, and what runs through the loops of a processor of graphics: parts of `Buffer` and `For`."""

from __future__ import annotations

from typing import Literal, cast, get_args

from tilewright.support.classes import dataclass
from tilewright.support.errors import VerifyError

Scope = Literal["global", "padded", "local", "warp", "shared", "tiles"]

SCOPES: dict[Scope, str] = {
    "global": "Memory; it is not printed.",
    "padded": "Memory whose inner dimensions lowering may enlarge, so that planes do not meet in the same cache sets.",
    "local": "Private to a thread; in registers if it can be.",
    "warp": "Memory that the threads of a GPU's warp share, those of one index threadIdx.x.",
    "shared": "Memory that the threads of a GPU's block share, wherever in its loops it is allocated.",
    "tiles": "Registers that hold matrices, which tensor intrinsics alone read and write; memory where there are none.",
}
"""Where buffers live. Written by `set_scope` and `cache_write`, read by `transform/loops/`."""


@dataclass(frozen=True, slots=True)
class Memory:
    """An accelerator's own memory: buffers of its scope share `capacity` bytes."""

    name: str
    capacity: int


_DESCRIBED: dict[str, Memory] = {}


def register_memory(memory: Memory) -> None:
    """Make a memory's name a scope, in this process. Raises VerifyError if the name means something else."""
    if memory.name in SCOPES or _DESCRIBED.setdefault(memory.name, memory) != memory:
        raise VerifyError(f"scope {memory.name!r} is another memory")


def find_memory(scope: Scope) -> Memory | None:
    """The memory that was described under this name."""
    return _DESCRIBED.get(scope)


def known_scopes() -> tuple[Scope, ...]:
    """The scopes that there are, the described ones last."""
    return (*SCOPES, *cast(tuple[Scope, ...], tuple(_DESCRIBED)))


Thread = Literal["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z", "vthread"]

Group = Literal["block", "warp"]
"""Threads of a GPU that wait for each other at a barrier: all of a block, or those of each warp."""

GROUPS: tuple[Group, ...] = get_args(Group)


def sharing(scope: Scope) -> tuple[Thread, ...]:
    """The thread indices whose threads share one buffer of this scope: all of a block for "shared", "threadIdx.x" for
    "warp", none for others."""
    match scope:
        case "shared":
            return "threadIdx.x", "threadIdx.y", "threadIdx.z"
        case "warp":
            return ("threadIdx.x",)
    return ()


THREADS: tuple[Thread, ...] = get_args(Thread)
"""The hardware indices that may run through a loop. Written by `bind`; `codegen/cuda/` takes them."""
