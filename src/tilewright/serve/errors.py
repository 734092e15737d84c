"""The errors that refuse a request: one status for each reason, as HTTP and as gRPC say it."""

from __future__ import annotations

from enum import Enum
from typing import Unpack

from tilewright.support.errors import Details, Error


class Status(Enum):
    """The reasons of refusals: HTTP's status and the name of gRPC's code."""

    INVALID = 400, "INVALID_ARGUMENT"
    UNAUTHENTICATED = 401, "UNAUTHENTICATED"
    FORBIDDEN = 403, "PERMISSION_DENIED"
    NOT_FOUND = 404, "NOT_FOUND"
    WRONG_METHOD = 405, "UNIMPLEMENTED"
    TIMEOUT = 408, "CANCELLED"
    TOO_LARGE = 413, "INVALID_ARGUMENT"
    HEADER_TOO_LARGE = 431, "INVALID_ARGUMENT"
    DROPPED = 429, "RESOURCE_EXHAUSTED"
    INTERNAL = 500, "INTERNAL"
    UNAVAILABLE = 503, "UNAVAILABLE"

    @property
    def http(self) -> int:
        return self.value[0]

    @property
    def grpc(self) -> str:
        return self.value[1]


class ServeError(Error):
    """A request that is refused, a configuration that cannot be served, or a server that does not answer.

    Args:
        status: the reason, which decides the status that a client sees.
        reason: of a drop, one word that statistics count by: "late", "full".
    """

    def __init__(
        self, what: str, status: Status = Status.INVALID, *, reason: str = "", **details: Unpack[Details]
    ) -> None:
        super().__init__(what, **details)
        self.status = status
        self.reason = reason


__all__ = ["ServeError", "Status"]
