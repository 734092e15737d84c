"""The served models and their versions, and the choice of the version for a request that names none.

The newest version answers, unless a canary gets a share of the requests: its answers are watched, and if it fails or
misses its promise more often than the version before it, all requests go back to that one automatically.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.serve.errors import ServeError
from tilewright.serve.models import Served, missing

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""Valid names of models, which occur in paths and logs."""
_ENOUGH = 50
"""Requests of a canary before it is evaluated."""
_WORSE = 0.02
"""How much larger the canary's share of failed or late requests may be than that of the version before."""


@dataclass(slots=True)
class Canary:
    """A version on trial, which answers a share of the requests.

    Args:
        share: of the requests that name no version.
        before: the version that has the others.
    """

    version: str
    before: str
    share: float
    abandoned: str = ""


@dataclass(slots=True)
class _Versions:
    by_name: dict[str, Served] = field(default_factory=dict)
    canary: Canary | None = None
    newest: str = ""

    def put(self, served: Served) -> None:
        self.by_name[served.version] = served
        self.newest = max(self.by_name, key=_order)

    def take(self, version: str) -> Served:
        gone = self.by_name.pop(version)
        self.newest = max(self.by_name, key=_order, default="")
        return gone


class Catalogue:
    """The served models by name, with their versions and the canaries on trial. Its methods are called only on the
    thread of the server's event loop."""

    def __init__(self, seed: int | None = None) -> None:
        self._models: dict[str, _Versions] = {}
        self._random = random.Random(seed)

    def __iter__(self) -> Iterator[Served]:
        for versions in self._models.values():
            yield from versions.by_name.values()

    def __len__(self) -> int:
        return len(self._models)

    def names(self) -> list[str]:
        return sorted(self._models)

    def add(self, served: Served, share: float = 1.0) -> Served | None:
        """Serve a version from now on; returns the version that it replaces, with the same name and number, if there is
        one.

        Args:
            share: of requests without a version; below 1, it is a canary beside the version that had all of them.
        """
        versions = self._models.setdefault(served.name, _Versions())
        before = self._standard(versions) if versions.by_name else None
        replaced = versions.by_name.get(served.version)
        versions.put(served)
        if share < 1 and before is not None and before is not served and before.version != served.version:
            versions.canary = Canary(served.version, before.version, share)
        elif versions.canary is not None and versions.canary.version == served.version:
            versions.canary = None
        return replaced

    def remove(self, name: str, version: str = "") -> list[Served]:
        """Stop serving the model `name`, or one version of it, and return the versions that were served. Removing a
        canary, or the version before it, ends the trial. Raises ServeError if there is none."""
        versions = self._models.get(name)
        if versions is None or (version and version not in versions.by_name):
            raise missing(name, version)
        gone = [versions.take(version)] if version else list(versions.by_name.values())
        if not version or not versions.by_name:
            del self._models[name]
        elif versions.canary is not None and version in (versions.canary.version, versions.canary.before):
            versions.canary = None
        return gone

    def get(self, name: str, version: str = "") -> Served:
        """The version with the number `version` of the model `name`; if it is "", the one that answers most requests.
        Raises ServeError if there is none."""
        versions = self._models.get(name)
        if versions is None:
            raise missing(name)
        if not version:
            return self._standard(versions)
        if version not in versions.by_name:
            raise missing(name, version)
        return versions.by_name[version]

    def choose(self, name: str, version: str = "") -> Served:
        """The version that answers a request for the model `name`: that with the number `version`; if it is "", the
        canary for its share of requests, and the version before it for the others. Raises ServeError if there is
        none."""
        versions = self._models.get(name)
        if version or versions is None or versions.canary is None or versions.canary.abandoned:
            return self.get(name, version)
        canary = versions.canary
        self._evaluate(versions, canary)
        if not canary.abandoned and self._random.random() < canary.share:
            return versions.by_name[canary.version]
        return versions.by_name[canary.before]

    def versions(self, name: str) -> list[str]:
        if name not in self._models:
            raise missing(name)
        return sorted(self._models[name].by_name, key=_order)

    def canary(self, name: str) -> Canary | None:
        return self._models[name].canary if name in self._models else None

    def promote(self, name: str) -> None:
        """End the trial of the canary of model `name`: it answers all requests that name no version from now on. Raises
        ServeError if the model has no canary."""
        versions = self._models.get(name)
        if versions is None or versions.canary is None:
            raise ServeError("has no canary", where=f"model {name[:100]!r}")
        versions.canary = None

    def _standard(self, versions: _Versions) -> Served:
        if versions.canary is not None:
            return versions.by_name[versions.canary.before]
        return versions.by_name[versions.newest]

    def _evaluate(self, versions: _Versions, canary: Canary) -> None:
        new, old = (_badness(versions.by_name[name]) for name in (canary.version, canary.before))
        if new[1] >= _ENOUGH and new[0] > old[0] + _WORSE:
            canary.abandoned = (
                f"{new[0]:.1%} of its requests failed or came too late, of version {canary.before} {old[0]:.1%}"
            )


def _badness(served: Served) -> tuple[float, int]:
    """(share of bad ones, number) of a version's requests: those that failed in the server, were dropped, or missed
    their promise."""
    s = served.statistics
    bad = s.missed + sum(s.dropped.values()) + sum(n for status, n in s.failed.items() if status >= 500)
    total = s.success.count + sum(s.dropped.values()) + sum(n for status, n in s.failed.items() if status >= 500)
    return (bad / total if total else 0.0), total


def _order(version: str) -> tuple[int, int, str]:
    return (1, int(version), "") if version.isascii() and version.isdigit() and len(version) < 19 else (0, 0, version)


def check_name(name: str) -> str:
    """A valid model name. Raises ServeError for others."""
    if not NAME.fullmatch(name):
        raise ServeError("is no name of a model", expected=NAME.pattern, got=repr(name)[:100])
    return name


__all__ = ["Canary", "Catalogue", "check_name"]
