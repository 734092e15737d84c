"""TLS with the user's contexts: who shows the right certificate is trusted, with or without a secret.

The certificates are for tests alone: `learner` (localhost, 127.0.0.1) and `other` (other.example), both signed by `ca`.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

import tilewright as tw
from tests.live.store.lab import ONES, telling_weights
from tests.live.transport.lab import SECRET, Proxy, seen, serving, source, until, wide_weights
from tilewright.live.transport.wire import LostError, RefusedError
from tilewright.support.errors import TransportError

FOLDER = Path(__file__).parent / "tls"


def server_side(name: str = "learner", *, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=FOLDER / "ca.pem")
    context.load_cert_chain(FOLDER / f"{name}.pem")
    context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
    return context


def node_side(*, certificate: bool = False, blind: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=FOLDER / "ca.pem")
    if certificate:
        context.load_cert_chain(FOLDER / "other.pem")
    if blind:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("secret", [None, SECRET])
def test_weights_over_tls(secret: str | None) -> None:
    with serving(secret=secret, tls=server_side()) as (server, feed):
        node = source(server.port, secret=secret, tls=node_side())
        update = node.newer(None, None, 5)
        assert update is not None and seen(update) == 1
        assert node.newer(update.mark, update.structure, 0.05) is None
        feed.publish(wide_weights(2), 2)
        update = node.newer(update.mark, update.structure, 5)
        assert update is not None and seen(update) == 2
        node.close()
        until(lambda: server.stats()["connections"] == 0)


def test_resumes_over_tls() -> None:
    cuts = iter([1_000_000, 1_500_000])
    with serving(tls=server_side()) as (server, _):
        proxy = Proxy(server.port, cut=lambda: next(cuts, None))
        node = source(proxy.port, tls=node_side())
        for _ in range(2):
            with pytest.raises(LostError):
                node.newer(None, None, 5)
        update = node.newer(None, None, 5)
        assert update is not None and seen(update) == 1
        assert node.stats()["resumed"] == 2
        node.close()
        proxy.close()


def test_another_name() -> None:
    with serving(tls=server_side("other")) as (server, _):
        with pytest.raises(RefusedError, match=r"TLS fails: .*(mismatch|not valid for)"):
            source(server.port, tls=node_side()).newer(None, None, 1)


def test_unknown_authority() -> None:
    with serving(tls=server_side()) as (server, _):
        with pytest.raises(RefusedError, match="TLS fails"):
            source(server.port, tls=ssl.create_default_context()).newer(None, None, 1)


def test_the_server_may_ask_for_certificates() -> None:
    with serving(tls=server_side(mutual=True)) as (server, _):
        with pytest.raises(TransportError):
            source(server.port, tls=node_side()).newer(None, None, 1)
        node = source(server.port, tls=node_side(certificate=True))
        assert node.newer(None, None, 5) is not None
        node.close()


def test_only_one_side_speaks_tls() -> None:
    with serving(tls=server_side(), timeout=0.5) as (server, _):
        with pytest.raises(TransportError):
            source(server.port, timeout=0.5).newer(None, None, 1)
    with serving(timeout=0.5) as (server, _):
        with pytest.raises(TransportError):
            source(server.port, tls=node_side(), timeout=0.5).newer(None, None, 1)
        until(lambda: server.stats()["hostile"] == 1)


def test_silence_in_the_handshake() -> None:
    with serving(tls=server_side(), timeout=0.2) as (server, _):
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.settimeout(10)
            assert sock.recv(1) == b""


def test_code_over_tls(store: Path, models: tuple[tw.Model, tw.Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """A verified certificate makes code acceptable, a context that verifies nothing does not."""
    monkeypatch.setattr("tilewright.live.transport.client.is_loopback", lambda host: False)
    with tw.serve_weights("policy", models[0], tls=server_side()) as server:
        with tw.relay(server.address, tls=node_side(blind=True)) as relay:
            until(lambda: relay.error is not None)
            assert "nothing authenticates" in str(relay.error)
        with tw.relay(server.address, tls=node_side()) as relay, tw.attach("policy", timeout=60) as actor:
            server.publish(telling_weights(3), 3)
            assert relay.wait(3, 60)
            assert actor.versioned(ONES)[1] == 3
