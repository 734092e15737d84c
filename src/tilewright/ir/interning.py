"""The table that makes equal expressions one object: by what makes each, as long as it is referenced.

    node = known(identity)
    if node is None:
        node = keep(identity, made())

`WeakValueDictionary` runs a function of Python's for each object that goes, which took as long as to build it. Here
references whose objects are gone pile up and leave the table many at once.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

Identity = tuple[Any, ...]
"""The identity of an object: its class and its fields."""

MAX_DEAD = 1024
"""References that may wait to leave the table."""


class _Reference(weakref.ref[Any]):
    """A weak reference that knows under which identity it is kept."""

    __slots__ = ("identity",)
    identity: Identity


_lock = threading.Lock()
_table: dict[Identity, _Reference] = {}
_dead: deque[weakref.ref[Any]] = deque()


def known(identity: Identity) -> Any:
    """The object of this identity, None where there is none. Takes no lock: most constructions end here."""
    reference = _table.get(identity)
    return None if reference is None else reference()


def keep(identity: Identity, node: Any) -> Any:
    """Make a new object the one of its identity. Returns the one that another thread has made meanwhile, if one has."""
    reference = _Reference(node, _dead.append)
    reference.identity = identity
    with _lock:
        result = known(identity)
        if result is not None:
            return result
        if len(_dead) > MAX_DEAD:
            _bury()
        _table[identity] = reference
        return node


def _bury() -> None:
    """Take out what is gone and was not made again. More may go meanwhile: with the identities of what is taken out."""
    while _dead:
        reference = _dead.popleft()
        assert isinstance(reference, _Reference)
        if _table.get(reference.identity) is reference:
            del _table[reference.identity]
