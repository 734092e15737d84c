"""Conversion of RLlib's nested batches to ordered tensors, and patches that make its modules traceable."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead

from tilewright.support.errors import UnsupportedError

Path = tuple[str, ...]
"""A path into nested dicts: the keys that lead to a tensor."""


def flat(nested: Mapping[str, Any], prefix: Path = ()) -> dict[Path, Any]:
    """The tensors of nested dicts, by the keys that lead to them (after the keys `prefix`), sorted."""
    result: dict[Path, Any] = {}
    for key in sorted(nested):
        value = nested[key]
        if isinstance(value, Mapping):
            result |= flat(value, (*prefix, key))
        elif isinstance(value, torch.Tensor):
            result[(*prefix, key)] = value
        else:
            where = "_".join((*prefix, key))
            raise UnsupportedError("is no tensor", where=where, got=type(value).__name__)
    return result


def nested(flat: Iterable[tuple[Path, Any]]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for (*way, last), value in flat:
        functools.reduce(lambda table, key: table.setdefault(key, {}), way, nested)[last] = value
    return nested


@contextlib.contextmanager
def traceable(module: Any) -> Iterator[None]:
    """Make RLlib's head with free standard deviations traceable: it calls `len` on a tensor, which would make the batch
    a constant."""
    results = [m for m in module.modules() if isinstance(m, TorchFreeLogStdMLPHead)]
    for head in results:
        head.__dict__["_forward"] = functools.partial(_free_log_std, head)
    try:
        yield
    finally:
        for head in results:
            del head.__dict__["_forward"]


def _free_log_std(head: Any, inputs: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    mean: torch.Tensor = head.net(inputs)
    log_std = head.log_std
    if head.clip_log_std:
        log_std = torch.clamp(log_std, -head.log_std_clip_param_const, head.log_std_clip_param_const)
    return torch.cat([mean, log_std.expand_as(mean)], 1)
