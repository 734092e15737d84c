"""A weight store: one place for a model's weights that all processes of a node share.

    files.py      a store's folders, permissions and locks
    segment.py    packed weights that processes share
    epoch.py      all versions of one structure, opened
    sums.py       checksums of what lies in a store
    publisher.py  `Publisher`: the process that writes
    actor.py      `Actor`: one of the processes that read
    inventory.py  what `tilewright store` shows and sweeps

Nothing here imports the compiler. docs/store.md has the design.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.live.store.actor import Actor as Actor
    from tilewright.live.store.actor import attach as attach
    from tilewright.live.store.inventory import StoreInfo as StoreInfo
    from tilewright.live.store.inventory import info as info
    from tilewright.live.store.inventory import stores as stores
    from tilewright.live.store.inventory import sweep as sweep
    from tilewright.live.store.publisher import Publisher as Publisher

_PUBLIC = {
    "Actor": "actor", "attach": "actor", "Publisher": "publisher",
    "StoreInfo": "inventory", "info": "inventory", "stores": "inventory", "sweep": "inventory",
}  # fmt: skip

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    # On first use: who shows an inventory loads no engine.
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: Any = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value
