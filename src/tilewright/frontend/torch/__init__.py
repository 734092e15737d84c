"""PyTorch modules to graphs, through `torch.export`: `import_torch(module, example)`.

Attributes are imported lazily, since loading PyTorch's exporter takes a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.frontend.torch.importer import import_torch, import_training

__all__ = ["import_torch", "import_training"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tilewright.frontend.torch import importer

    return getattr(importer, name)
