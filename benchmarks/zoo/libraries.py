"""Imports of libraries that import torchvision, also where its operators do not fit the PyTorch there is.

timm and diffusers import torchvision for the reading of images. Its Python code names operators that its own shared
library defines; where that library was built for another PyTorch, the import fails. No model of the zoo calls one of
them, so their names are declared then, and nothing computes them.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import torch

OPERATORS = (
    *("nms", "qnms", "roi_align", "qroi_align", "_roi_align_backward", "roi_pool", "_roi_pool_backward"),
    *("ps_roi_align", "_ps_roi_align_backward", "ps_roi_pool", "_ps_roi_pool_backward"),
    *("deform_conv2d", "_deform_conv2d_backward"),
)
_declared: list[torch.library.Library] = []
"""Operators exist for as long as the object that declared them."""


def library(name: str) -> ModuleType:
    """A module of timm, transformers or diffusers."""
    if not _declared:
        _declare()
    return importlib.import_module(name)


def _declare() -> None:
    """torchvision's operators, unless they are there or torchvision is not."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        declared = torch.library.Library("torchvision", "DEF")
        for operator in OPERATORS:
            declared.define(f"{operator}(Tensor x) -> Tensor")
        _declared.append(declared)
