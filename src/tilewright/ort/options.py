"""The options that a session passes to the provider: `options.add_provider_for_devices(devices, {"threads": "4"})`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from tilewright.ir.selection import Precision
from tilewright.runtime.threads import MAX_THREADS
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError
from tilewright.support.machine import usable_cpus

PREFIX = "ep.tilewrightexecutionprovider."
"""The prefix of a provider's settings among a session's: it contains the provider's name in lower case."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the provider: the most threads of a call, and the type in which products multiply
    (docs/accuracy.md)."""

    threads: int
    precision: Precision


def parse_options(entries: Mapping[str, str]) -> Options:
    """The provider's settings among a session's. Raises CallError for unknown settings and invalid values."""
    mine = {k[len(PREFIX) :]: v for k, v in entries.items() if k.startswith(PREFIX)}
    unknown = sorted(mine.keys() - {"threads", "precision"})
    if unknown:
        raise CallError("the provider has no such option", expected="threads, precision", got=unknown[0])
    threads = mine.get("threads", str(max(1, int(usable_cpus()))))
    if not threads.isascii() or not threads.isdigit() or not 1 <= int(threads[:9]) <= MAX_THREADS:
        raise CallError("not a number of threads", expected=f"1 to {MAX_THREADS}", got=repr(threads))
    precision = mine.get("precision", "fp32")
    for known in get_args(Precision):
        if precision == known:
            return Options(int(threads), known)
    raise CallError("no such setting of precision", expected=", ".join(get_args(Precision)), got=repr(precision))


__all__ = ["PREFIX", "Options", "parse_options"]
