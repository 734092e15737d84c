"""The options that `torch.compile(..., options={...})` may give to this backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from tilewright.dynamo.report import GraphReport
from tilewright.ir.selection import Precision
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Options of the backend.

    full             refuse a graph that is not compiled as a whole, with one error that lists why
    freeze           pack weights when they are first seen and never look at them again
    threads          of a call, the caller's included; the flag TILEWRIGHT_THREADS if None
    min_block_size   operators that a part has at least, unless one of them is a product or a convolution
    precision, fast  as in `tilewright.compile`
    report           called with a `GraphReport` for each graph that was compiled
    """

    full: bool = False
    freeze: bool = False
    threads: int | None = None
    min_block_size: int = 2
    precision: Precision = "fp32"
    fast: str = "auto"
    report: Callable[[GraphReport], None] | None = None


def read_options(arguments: Mapping[str, Any] | None) -> BackendOptions:
    """The backend's options from the dict that the user passed. Raises CallError that names unknown options."""
    known = [f.name for f in fields(BackendOptions)]
    unknown = [str(name) for name in arguments or () if name not in known]
    if unknown:
        what = "torch.compile was given options that this backend does not have"
        raise CallError(what, expected=f"some of {', '.join(known)}", got=", ".join(unknown))
    return BackendOptions(**dict(arguments or {}))
