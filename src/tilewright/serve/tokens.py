"""Bearer tokens (RFC 6750) and their permissions."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from enum import Enum

from tilewright.serve.errors import ServeError, Status

_MIN_LENGTH = 16


class Scope(Enum):
    """Permissions of a token."""

    INFER = "infer"
    METRICS = "metrics"
    REPOSITORY = "repository"
    SHARED_MEMORY = "shared-memory"


class Tokens:
    """Tokens and their scopes. Without any tokens, every client may do everything that is served.

    Args:
        tokens: scopes by token. Raises ServeError for a token that could be guessed, or an unknown scope.
        scopes: all valid scopes.
    """

    def __init__(self, tokens: Mapping[str, Iterable[str]] | None = None, scopes: type[Enum] = Scope) -> None:
        known: dict[str, Enum] = {scope.value: scope for scope in scopes}
        self._tokens: list[tuple[bytes, frozenset[Enum]]] = []
        for token, named in (tokens or {}).items():
            if len(token) < _MIN_LENGTH or not token.isascii() or not token.isprintable():
                raise ServeError("a token is too short", expected=f"{_MIN_LENGTH} printable characters or more")
            if isinstance(named, str) or not isinstance(named, Iterable):
                raise ServeError("a token wants a list of scopes", expected=", ".join(known), got=repr(named)[:60])
            for scope in named:
                if not isinstance(scope, str) or scope not in known:
                    raise ServeError("a token has an unknown scope", expected=", ".join(known), got=repr(scope))
            self._tokens.append((token.encode(), frozenset(known[s] for s in named)))

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def check(self, authorization: str | None, scope: Enum) -> None:
        """Raise ServeError unless the token in the HTTP header `authorization` has the scope. Takes equally long for
        any token."""
        if not self._tokens:
            return
        kind, _, token = (authorization or "").partition(" ")
        supplied = token.strip().encode("utf-8", "replace") if kind.lower() == "bearer" else b""
        scopes: frozenset[Enum] | None = None
        for known, allowed in self._tokens:
            if hmac.compare_digest(known, supplied):
                scopes = allowed
        if scopes is None:
            what = "the bearer token is not known" if token else "a bearer token is wanted"
            raise ServeError(what, Status.UNAUTHENTICATED)
        if scope not in scopes:
            raise ServeError(f"the token lacks the scope {scope.value}", Status.FORBIDDEN)


__all__ = ["Scope", "Tokens"]
