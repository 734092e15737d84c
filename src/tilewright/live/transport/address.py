"""Addresses: `tcp://host:port/name`."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from tilewright.live.transport.session import check_name
from tilewright.support.classes import dataclass
from tilewright.support.errors import TransportError

EXPECTED = "tcp://HOST:PORT/NAME, such as tcp://learner:7070/policy"


@dataclass(frozen=True, slots=True)
class Address:
    """The place of published weights: the `host` and `port` of their server, and their `name` there."""

    host: str
    port: int
    name: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}/{self.name}"


def parse_address(text: str) -> Address:
    """The address in a text `tcp://host:port/name`. Raises TransportError for other texts."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except (ValueError, AttributeError):
        raise TransportError("not an address", expected=EXPECTED, got=repr(text)[:200]) from None
    extra = parts.query or parts.fragment or parts.username is not None or parts.password is not None
    if parts.scheme != "tcp" or not host or not port or extra or len(parts.path) < 2:
        raise TransportError("not an address", expected=EXPECTED, got=repr(text)[:200])
    return Address(host, port, check_name(parts.path[1:]))


def is_loopback(host: str) -> bool:
    """Whether a host name or numeric address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return False


def peer_text(address: object) -> str:
    """The `address` of a socket's other side as text for messages, such as `10.0.0.7:51234`; "(local socket)" if it is
    empty."""
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = str(address[0]), address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(address) or "(local socket)"
