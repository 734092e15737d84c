"""Names of execution providers, as programs give them to sessions. There is one here, the processor."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

PROVIDERS = ("CPUExecutionProvider",)
"""The providers that there are."""


def chosen_providers(
    providers: Sequence[Any] | None, options: Sequence[dict[Any, Any]] | None, *, strict: bool = False
) -> dict[str, dict[str, str]]:
    """The providers that a caller names, each with its options; a warning for those that are not here.

    Args:
        strict: raise RuntimeError for a name that no provider has.
    """
    names, normalized = check_and_normalize_provider_args(providers, options, PROVIDERS)
    for name in names:
        if strict and not name.endswith("ExecutionProvider"):
            raise RuntimeError(f"Unknown Provider Type: {name}")
    return dict(zip(names, normalized, strict=True))


def check_and_normalize_provider_args(
    providers: Sequence[Any] | None,
    provider_options: Sequence[dict[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Names and options of providers, given as names, as pairs of a name and options, or as two lists. ValueError for
    anything else; a warning for names that are not available or come twice."""
    if providers is None:
        return [], []
    if not isinstance(providers, Sequence) or isinstance(providers, str):
        raise ValueError("'providers' should be a sequence.")
    chosen: dict[str, dict[str, str]] = {}
    for name, options in _pairs(providers, provider_options):
        if name not in available_provider_names:
            there = ", ".join(available_provider_names)
            what = f"Specified provider '{name}' is not in available provider names. Available providers: '{there}'"
            warnings.warn(what, stacklevel=5)
        if name in chosen:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=5)
            continue
        chosen[name] = {str(key): str(value) for key, value in options.items()}
    return list(chosen), list(chosen.values())


def _pairs(providers: Sequence[Any], options: Sequence[dict[Any, Any]] | None) -> list[tuple[str, dict[Any, Any]]]:
    if options is None:
        pairs = [(p, {}) if isinstance(p, str) else p for p in providers]
        if not all(isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) for p in pairs):
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
        return pairs
    if not isinstance(options, Sequence):
        raise ValueError("'provider_options' should be a sequence.")
    if len(providers) != len(options):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    if not all(isinstance(p, str) for p in providers):
        raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
    if not all(isinstance(o, dict) for o in options):
        raise ValueError("'provider_options' values must be dicts.")
    return list(zip(providers, options, strict=True))


__all__ = ["PROVIDERS", "check_and_normalize_provider_args", "chosen_providers"]
