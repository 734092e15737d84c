"""BLAKE2b, as `hashlib` has it, without loading OpenSSL, which takes an actor that attaches five milliseconds."""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # an interpreter that has it elsewhere
    from hashlib import blake2b

__all__ = ["blake2b"]
