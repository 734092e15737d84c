"""Hash-consing: a weak table from the class and fields of an expression to its only object.

    node = known(identity)
    if node is None:
        node = keep(identity, made())

`WeakValueDictionary` calls a Python function for each object that dies, which took as long as building the object. Here
dead references accumulate, and are removed from the table many at once.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

Identity = tuple[Any, ...]
"""The identity of an object: its class and its fields."""

MAX_DEAD = 1024
"""The number of dead references above which they are removed from the table."""


class _Reference(weakref.ref[Any]):
    """A weak reference that stores the key under which the table has it."""

    __slots__ = ("identity",)
    identity: Identity


_lock = threading.Lock()
_table: dict[Identity, _Reference] = {}
_dead: deque[weakref.ref[Any]] = deque()
_enter_dead = _dead.append
"""The callback that all references share: a bound method for each of them would be one more object to collect."""


def known(identity: Identity) -> Any:
    """The object with this identity, None if there is none. It takes no lock, for speed."""
    reference = _table.get(identity)
    return None if reference is None else reference()


def keep(identity: Identity, node: Any) -> Any:
    """Enter a new object into the table. Returns the object that another thread has entered meanwhile, if there is one,
    else `node`."""
    reference = _Reference(node, _enter_dead)
    reference.identity = identity
    with _lock:
        result = known(identity)
        if result is not None:
            return result
        if len(_dead) > MAX_DEAD:
            _bury()
        _table[identity] = reference
        return node


def release() -> None:
    """Free what only the keys of dead references hold, for who has done with many expressions."""
    with _lock:
        _bury()


def _bury() -> None:
    """Remove dead references from the table, unless their key has a new object. Freeing keys may let more objects
    die."""
    while _dead:
        reference = _dead.popleft()
        assert isinstance(reference, _Reference)
        if _table.get(reference.identity) is reference:
            del _table[reference.identity]
