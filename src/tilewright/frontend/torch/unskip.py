"""Undo a state that a failed trace leaves in PyTorch."""

from __future__ import annotations

import sys
import traceback

import torch


def unskip(error: BaseException | None) -> None:
    """Let TorchDynamo compile PyTorch's control flow again. Code that Dynamo meets inside of a dispatch mode is skipped
    for the rest of the process, after which `torch.cond` can neither run nor be exported."""
    while error is not None and "torch._dynamo" in sys.modules:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if "_higher_order_ops" in frame.f_code.co_filename:
                torch._dynamo.eval_frame.reset_code(frame.f_code)
        error = error.__cause__ or error.__context__


__all__ = ["unskip"]
