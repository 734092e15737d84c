"""BLAKE2b as in `hashlib`, but without loading OpenSSL, which would cost an actor five milliseconds when it
attaches."""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # an interpreter that has it elsewhere
    from hashlib import blake2b

__all__ = ["blake2b"]
