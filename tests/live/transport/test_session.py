"""The handshake: who knows the secret gets in, and nothing that was recorded is good a second time."""

from __future__ import annotations

import logging
import socket
import time

import pytest

from tests.live.transport.lab import SECRET, Proxy, fetch, impostor, seen, serving, source, until
from tilewright.live.transport.address import Address, is_loopback, parse_address, peer_text
from tilewright.live.transport.client import TcpSource
from tilewright.live.transport.server import Server
from tilewright.live.transport.session import MAGIC, check_name, printable, secret_bytes
from tilewright.live.transport.wire import HostileError, LostError, RefusedError
from tilewright.support.errors import TransportError

LOG = "tilewright.transport"


def test_with_and_without_a_secret() -> None:
    for secret in (SECRET, None):
        with serving(secret=secret) as (server, _):
            node = source(server.port, secret=secret)
            update = node.newer(None, None, 5)
            assert update is not None and seen(update) == 1
            until(lambda: server.stats()["transfers"] >= 2)  # the server counts a transfer after its last byte
            result = server.stats()
            assert (result["transfers"], result["resumed"]) == (2, 0), "the program, the weights"
            node.close()


def test_wrong_secret(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as (server, _), caplog.at_level(logging.WARNING, LOG):
        node = source(server.port, secret="another secret of sixteen bytes")
        with pytest.raises(LostError, match=r"ended the handshake.*\n.*are the secrets of both sides the same"):
            node.newer(None, None, 5)
        until(lambda: server.stats()["hostile"] == 1)
        assert server.stats()["bytes_sent"] < 100
    assert len(caplog.records) == 1
    assert "127.0.0.1" in caplog.text and "forged" in caplog.text and "does it know the secret?" in caplog.text


def test_a_server_without_the_secret() -> None:
    """A node takes nothing from a server that knows another secret, even if that lets it in."""
    with serving(secret="another secret of sixteen bytes") as (server, _):
        proxy_node = source(server.port)
        with pytest.raises(LostError):
            proxy_node.newer(None, None, 5)


@pytest.mark.parametrize(("server_secret", "node_secret"), [(SECRET, None), (None, SECRET)])
def test_only_one_side_has_a_secret(server_secret: str | None, node_secret: str | None) -> None:
    with serving(secret=server_secret) as (server, _):
        with pytest.raises(RefusedError, match="secret"):
            source(server.port, secret=node_secret).newer(None, None, 5)


def test_short_secrets() -> None:
    with pytest.raises(TransportError, match="too short: expected at least 16 bytes, got 5"):
        Server(secret="short")
    with pytest.raises(TransportError, match="too short"):
        source(1, secret=b"short")  # type: ignore[arg-type]


def test_a_recorded_session_is_worth_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Played to the server it fails at the first frame, and played to a node too: the nonces are others."""
    with serving() as (server, _):
        proxy = Proxy(server.port, record=True)
        node = source(proxy.port)
        assert node.newer(None, None, 5) is not None
        node.close()
        proxy.close()
        assert proxy.recorded is not None
        from_node, from_server = map(bytes, proxy.recorded)
        with caplog.at_level(logging.WARNING, LOG), socket.create_connection(("127.0.0.1", server.port)) as replay:
            replay.sendall(from_node)
            replay.settimeout(5)
            answer = b""
            while part := _received(replay):
                answer += part
        assert len(answer) == 44  # its hello, and not a byte more
        assert "forged" in caplog.text
        assert server.stats()["hostile"] == 1

    def play(sock: socket.socket) -> None:
        sock.sendall(from_server)
        sock.settimeout(2)
        while sock.recv(4096):
            pass

    with impostor(play) as port:
        with pytest.raises(HostileError, match="forged, damaged or out of turn"):
            source(port).newer(None, None, 1)


def test_a_mirror_is_no_server() -> None:
    """Whatever the node sends comes back to it."""

    def mirror(sock: socket.socket) -> None:
        while data := sock.recv(4096):
            sock.sendall(data)

    with impostor(mirror) as port:
        with pytest.raises(HostileError):
            source(port).newer(None, None, 1)


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\nHost: learner.example\r\nAccept: */*\r\n\r\n", bytes(200)])
def test_other_protocols(greeting: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with serving() as (server, _), caplog.at_level(logging.WARNING, LOG):
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(greeting)
            sock.settimeout(5)
            assert _received(sock) == b""
        until(lambda: server.stats()["hostile"] == 1)
    assert "does not speak this protocol" in caplog.text
    assert "\n" not in caplog.records[0].getMessage()


def test_another_version_of_the_protocol() -> None:
    def newer(sock: socket.socket) -> None:
        sock.recv(44)
        sock.sendall(MAGIC + (9).to_bytes(2, "little") + bytes([1, 0]) + bytes(32))

    with impostor(newer) as port:
        with pytest.raises(RefusedError, match="another version of the protocol: expected 1, got 9"):
            source(port).newer(None, None, 1)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_ipv6() -> None:
    with serving(host="::1") as (server, _):
        node = TcpSource(parse_address(f"tcp://[::1]:{server.port}/wide"), secret=SECRET)
        assert node.newer(None, None, 5) is not None
        node.close()


def test_unknown_name() -> None:
    with serving() as (server, _):
        with pytest.raises(RefusedError, match="there is no 'wild' here, but wide"):
            source(server.port, "wild").newer(None, None, 1)


def test_silent_connections_do_not_stay() -> None:
    with serving(timeout=0.2) as (server, _):
        socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
        started = time.monotonic()
        for sock in socks:
            sock.settimeout(5)
            assert _received(sock) == b""
            sock.close()
        assert time.monotonic() - started < 30
        node = source(server.port)
        assert seen(fetch(node, None, None)[0]) == 1
        node.close()


def test_connections_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with serving(connections=2) as (server, _), caplog.at_level(logging.WARNING, LOG):
        nodes = [source(server.port) for _ in range(2)]
        for node in nodes:
            assert node.newer(None, None, 5) is not None
        with pytest.raises(LostError):
            source(server.port).newer(None, None, 5)
        assert "there are too many" in caplog.text
        nodes[0].close()
        until(lambda: server.stats()["connections"] == 1)
        repeated = source(server.port)
        assert repeated.newer(None, None, 5) is not None
        repeated.close()
        nodes[1].close()


def test_addresses() -> None:
    assert parse_address("tcp://learner:7070/policy") == Address("learner", 7070, "policy")
    assert str(parse_address("tcp://[::1]:7070/a.b-c_1")) == "tcp://[::1]:7070/a.b-c_1"
    bad = ("learner:7070", "tcp://learner/policy", "tcp://learner:70700/p", "tcp://:1/p", "http://h:1/p",
           "tcp://h:1/", "tcp://h:1/a/b", "tcp://u:p@h:1/p", "tcp://h:1/p?q", "tcp://h:1/..", "tcp://[::1/p", "",
           "tcp://h:x/p")  # fmt: skip
    for text in bad:
        with pytest.raises(TransportError, match=r"not an address|bad name"):
            parse_address(text)
    assert [is_loopback(h) for h in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "::", "learner")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_texts_of_peers_and_of_what_they_say() -> None:
    """In one line of a log, whatever they are."""
    assert [peer_text(a) for a in (("10.0.0.7", 5), ("::1", 5, 0, 0), "", "/tmp/x", b"")] == [
        "10.0.0.7:5", "[::1]:5", "(local socket)", "/tmp/x", "b''",
    ]  # fmt: skip
    assert printable(b"a\nb\x00c\xff") == "a?b?c\ufffd" and printable(b"x" * 900) == "x" * 200
    assert printable("é".encode() * 300, 3) == "é" * 3
    assert secret_bytes(None) is None and len(secret_bytes("s" * 16) or b"") == 64
    assert secret_bytes("s" * 16) == secret_bytes(b"s" * 16) != secret_bytes("s" * 17)
    for name in ("a", "_", "9.b-c", "x" * 128):
        assert check_name(name) == name
    for name in ("", ".a", "-a", "a/b", "a b", "a\n", "x" * 129, 3):
        with pytest.raises(TransportError, match="bad name"):
            check_name(name)  # type: ignore[arg-type]


def test_open_to_the_network_only_when_told() -> None:
    with pytest.raises(TransportError, match="open to the network"):
        Server("0.0.0.0")
    for options in ({"secret": SECRET}, {"trust": True}):
        Server("0.0.0.0", **options).close()  # type: ignore[arg-type]
    with serving() as (server, _):
        with pytest.raises(TransportError, match="cannot listen"):
            Server(port=server.port)


def _received(sock: socket.socket) -> bytes:
    """The next bytes; empty if the peer has closed, however."""
    try:
        return sock.recv(1 << 16)
    except ConnectionError:
        return b""
