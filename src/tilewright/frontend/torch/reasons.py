"""Causes of PyTorch's failures to export a module, by what its code calls, where PyTorch's own message names none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import FrameType

from tilewright.support.errors import ModelError, UnsupportedError

_FORWARD = frozenset({"_make_dual", "_unpack_dual", "_enter_dual_level", "jacfwd"})
"""Functions of PyTorch that a derivative in forward mode calls."""
_UNKNOWN = re.compile(
    r"Unsupported input type <class '([^']+)'>|Found <class '([^']+)'> in output, which is not a known"
)
_ELSEWHERE = 'torch.compile(..., backend="tilewright") leaves it to PyTorch'


def known_reason(label: str, error: BaseException) -> ModelError | None:
    """The error that names why the module called `label` cannot be exported, from PyTorch's `error` and its causes;
    None if it is none of the known reasons."""
    for cause in _chain(error):
        if unknown := _UNKNOWN.search(str(cause)):
            which, name = ("an argument" if unknown[1] else "the result"), unknown[1] or unknown[2]
            way = "pass" if unknown[1] else "return"
            hint = (
                f"torch.export.register_dataclass({name.rpartition('.')[2]}) of a dataclass, or {way} a tuple or a dict"
            )
            expected = "tensors, or tuples, lists, dicts and registered classes of tensors"
            what = f"{which} of {label} is of a class unknown to PyTorch"
            return ModelError(what, expected=expected, got=name, hint=hint)
        if type(cause).__name__ == "PendingUnbackedSymbolNotFound":
            what = f"{label} has a size that depends on values and meets another size, which PyTorch does not export"
            hint = f"of x[mask, i] index first by the mask, then within the result; or use torch.where; {_ELSEWHERE}"
            return UnsupportedError(what, got=_first_line(cause), hint=hint)
    frames = [frame for cause in _chain(error) for frame in _frames(cause)]
    if any(map(_packs, frames)):
        what = f"{label} packs sequences of several lengths, which PyTorch does not export"
        hint = (
            'pass padded sequences and their lengths, and ignore what is past them; or torch.compile(..., "tilewright")'
        )
        return UnsupportedError(what, hint=hint)
    if any(frame.f_code.co_name in _FORWARD for frame in frames):
        what = f"{label} takes a derivative in forward mode (torch.func.jacfwd) that PyTorch does not export"
        return UnsupportedError(what, hint=f"torch.func.jvp of one direction is exported; {_ELSEWHERE}")
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename.replace("\\", "/")


def _packs(frame: FrameType) -> bool:
    """Whether this is a function of packed sequences, or a recurrent layer's that gets them."""
    file = _file(frame)
    return file.endswith("nn/utils/rnn.py") or (
        file.endswith("nn/modules/rnn.py") and frame.f_locals.get("batch_sizes") is not None
    )


__all__ = ["known_reason"]
