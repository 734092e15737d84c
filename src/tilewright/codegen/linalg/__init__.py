"""Linalg out: graphs of source operators as loops over tensors, for MLIR's compilers."""

from tilewright.codegen.linalg.emit import linalg_text

__all__ = ["linalg_text"]
