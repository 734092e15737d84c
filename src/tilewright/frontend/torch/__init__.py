"""PyTorch modules to graphs, through `torch.export`: `import_torch(module, example)`."""

from __future__ import annotations

from tilewright.frontend.torch.importer import import_torch, import_training

__all__ = ["import_torch", "import_training"]
