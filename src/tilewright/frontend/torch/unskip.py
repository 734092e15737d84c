"""The state that a trace that failed leaves in PyTorch, removed."""

from __future__ import annotations

import sys
import traceback

import torch


def unskip(error: BaseException | None) -> None:
    """Let TorchDynamo compile PyTorch's control flow again: what it meets inside of a dispatch mode it skips for as
    long as the process lives, and neither running nor exporting a `torch.cond` works any more."""
    while error is not None and "torch._dynamo" in sys.modules:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if "_higher_order_ops" in frame.f_code.co_filename:
                torch._dynamo.eval_frame.reset_code(frame.f_code)
        error = error.__cause__ or error.__context__


__all__ = ["unskip"]
