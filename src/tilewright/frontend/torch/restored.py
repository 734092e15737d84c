"""Parameters that a module's own code writes to while the compiler runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.nn.parameter import is_lazy


@contextlib.contextmanager
def parameters_restored(module: torch.nn.Module, *, numbers: bool = True) -> Iterator[None]:
    """After the context, each parameter of `module` has its memory of before and, with `numbers`, the same numbers
    there. Writes through `.data` leave the version of a parameter as it was, so that all are copied for it."""
    parameters = [p for p in module.parameters() if not is_lazy(p)]
    held = [(p, p.data, p.detach().clone() if numbers else None) for p in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, data, before in held:
                if parameter.device != data.device or parameter.data_ptr() != data.data_ptr():
                    parameter.data = data
                if before is not None and not torch.equal(data, before):  # NaN is written once more
                    data.copy_(before)


__all__ = ["parameters_restored"]
