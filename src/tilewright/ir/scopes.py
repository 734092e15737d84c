"""The scopes of buffers, and the hardware indices that GPU loops are bound to: parts of `Buffer` and `For`."""

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
"""The scopes of buffers, with descriptions. Written by `set_scope` and `cache_write`, read by `transform/loops/`."""


@dataclass(frozen=True, slots=True)
class Memory:
    """An accelerator's own memory: buffers of its scope share `capacity` bytes."""

    name: str
    capacity: int


_DESCRIBED: dict[str, Memory] = {}


def register_memory(memory: Memory) -> None:
    """Make a memory's name a scope, in this process. Raises VerifyError if the name has another meaning."""
    if memory.name in SCOPES or _DESCRIBED.setdefault(memory.name, memory) != memory:
        raise VerifyError(f"scope {memory.name!r} is another memory")


def find_memory(scope: Scope) -> Memory | None:
    """The accelerator's memory that is registered under the name `scope`; None if there is none."""
    return _DESCRIBED.get(scope)


def known_scopes() -> tuple[Scope, ...]:
    """All scopes of buffers, those of registered memories last."""
    return (*SCOPES, *cast(tuple[Scope, ...], tuple(_DESCRIBED)))


Thread = Literal["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z", "vthread"]

Group = Literal["block", "warp"]
"""The type of a group of GPU threads that wait for each other at a barrier: those of a block, or of a warp."""

GROUPS: tuple[Group, ...] = get_args(Group)


def sharing(scope: Scope) -> tuple[Thread, ...]:
    """The thread indices over whose values threads share one buffer of this scope: all three for "shared" (a block),
    "threadIdx.x" for "warp", none for others."""
    match scope:
        case "shared":
            return "threadIdx.x", "threadIdx.y", "threadIdx.z"
        case "warp":
            return ("threadIdx.x",)
    return ()


THREADS: tuple[Thread, ...] = get_args(Thread)
"""The hardware indices that a loop may be bound to. Written by `bind`, read by `codegen/cuda/`."""
