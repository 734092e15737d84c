"""Live weights: checking, packing, and one place for a model's weights that all processes of a node share.

    check.py      what a user hands in against what the program wants
    packed.py     one version in memory: raw as given, packed as the program reads it
    prepare.py    the program that packs
    control.py    the control page: slots, the current one, readers and their pins
    local.py      the weights of a `Model`, in its own memory
    files.py      a store's folders, permissions and locks
    segment.py    packed weights that processes share
    epoch.py      all versions of one structure, opened
    publisher.py  `Publisher`: the one who writes
    actor.py      `Actor`: one of many who read
    inventory.py  what `tilewright store` shows and sweeps

Nothing here imports the compiler. docs/store.md has the design.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.runtime.weights.actor import Actor as Actor
    from tilewright.runtime.weights.actor import attach as attach
    from tilewright.runtime.weights.inventory import StoreInfo as StoreInfo
    from tilewright.runtime.weights.inventory import info as info
    from tilewright.runtime.weights.inventory import stores as stores
    from tilewright.runtime.weights.inventory import sweep as sweep
    from tilewright.runtime.weights.publisher import Publisher as Publisher

_PUBLIC = {
    "Actor": "actor", "attach": "actor", "Publisher": "publisher",
    "StoreInfo": "inventory", "info": "inventory", "stores": "inventory", "sweep": "inventory",
}  # fmt: skip

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    # On first use: the engine imports parts of this package, and these import the engine.
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: Any = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value
