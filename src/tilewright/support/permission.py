"""Instructions for which a process must request permission, as the operating system saves their registers on request
only.

Linux saves the eight kilobytes of AMX's registers for a process that has asked by `arch_prctl` (Linux, "Using XSTATE
features in user space applications"); before that, AMX's first instruction kills the process. Threads and forks inherit
the permission.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18

NEEDED = frozenset({"amx-tile", "amx-int8", "amx-bf16", "amx-fp16", "amx-complex"})
"""LLVM's names of features that a process must ask for."""


@cache
def forbidden() -> frozenset[str]:
    """The features of `NEEDED` that this process must not use although the CPU may have them. Requests them, once."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return NEEDED
    try:
        refused = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    except (OSError, AttributeError):
        return NEEDED
    return NEEDED if refused else frozenset()
