"""The errors of calls that a program refuses: a check that fails within the call, sizes that break an assumption."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.runtime.compilers import failure
from tilewright.runtime.interop import Array
from tilewright.runtime.manifest import Manifest
from tilewright.support.errors import CallError, Error, Problems


def refused(manifest: Manifest, number: int, word: Array) -> Error:
    """The error of a call that ended at check number `number`; `word` is the tested number."""
    check = manifest.checks[number]
    if check.external:
        return failure(int(word.view(np.int64)[0]))
    got = word.view(np.float64 if check.real else np.int64)[0].item()
    return CallError(check.what, where=f"program {manifest.name!r}", expected=check.expected or None, got=got)


def check_assumptions(manifest: Manifest, dims: Sequence[int], holds: Sequence[int]) -> None:
    """Raise CallError that lists each of the program's assumptions which is violated at the sizes `dims`; `holds` is
    nonzero for each that holds."""
    problems, sizes = Problems(), dict(zip((s.name for s in manifest.symbols), dims, strict=True))
    for a, held in zip(manifest.assumptions, holds, strict=True):
        if not held:
            got = ", ".join(f"{name} = {sizes[name]}" for name in a.symbols)
            expected = f"{a.condition} ({a.reason})" if a.reason else a.condition
            problems.add(CallError("sizes are not what the model assumes", expected=expected, got=got))
    problems.raise_if_any("sizes are not what the model assumes", where=f"program {manifest.name!r}", kind=CallError)
