"""Collective operations among the processes of one machine, and the backend "tilewright" of `torch.distributed`, which
importing this package registers if PyTorch is installed."""

from __future__ import annotations

from importlib.util import find_spec

from tilewright.collective.compressed import Compressed
from tilewright.collective.group import Group, join

if find_spec("torch") is not None:
    from tilewright.collective.torch_backend import register

    register()

__all__ = ["Compressed", "Group", "join"]
