"""`serve_weights`: sends a learner's weights to nodes over TCP."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from tilewright.live.transport.feed import Feed, Served
from tilewright.live.transport.server import Server


class WeightServer:
    """A learner's weights, served under one name at a port; created by `serve_weights`."""

    def __init__(self, name: str, model: Served, server: Server, owned: bool) -> None:
        self.name = name
        self._server = server
        self._owned = owned
        self._feed = Feed(name, model)
        server.add(self._feed)

    def publish(
        self, weights: Mapping[str, Any], version: int | None = None, *, force: bool = False, finite: bool = True
    ) -> int:
        """Offer new weights to all nodes; returns their version once they are copied, not when nodes have them.

        Nodes fetch the newest version and skip older ones if the network is too slow. If the server was created with a
        `Publisher`, they are published on this node first.

        Args:
            weights: all of them by name, as `state_dict()` gives them.
            version: a number larger than the newest; one more if None.
            force: accept any version, so that self-play may go back to an older one.
            finite: refuse NaN and infinity.

        Raises WeightError listing all that is wrong with the weights; nothing has changed then.
        """
        return self._feed.publish(weights, version, force=force, finite=finite)

    def replace(self, model: Served, version: int | None = None, *, force: bool = False) -> int:
        """Offer another program with its weights as `version` (None: one more than the newest); returns their version.
        `force` admits a version that does not grow. Nodes fetch the program's code once, and actors move to it between
        calls.

        If `model` is a `Publisher`, nodes move when it next publishes weights.
        """
        return self._feed.replace(model, version, force=force)

    @property
    def version(self) -> int:
        """The newest version that is offered; -1 if none is yet."""
        return self._feed.version

    @property
    def port(self) -> int:
        """The port that the server listens at."""
        return self._server.port

    @property
    def address(self) -> str:
        """The address that nodes pass to `tw.relay`, if they can reach the host by the name that was given here."""
        host = f"[{self._server.host}]" if ":" in self._server.host else self._server.host
        return f"tcp://{host}:{self._server.port}/{self.name}"

    @property
    def server(self) -> Server:
        """The server that listens; `serve_weights(..., server=...)` serves another name at the same port."""
        return self._server

    def stats(self) -> dict[str, int]:
        """Counts: versions published and stored, connections, bytes sent."""
        feed = {"version": self._feed.version, "published": self._feed.published, "images": self._feed.images()}
        return feed | self._server.stats()

    def close(self) -> None:
        """Stop serving this name. Ends the whole server if `serve_weights` started it for this name."""
        if self._owned:
            self._server.close()
        else:
            self._server.remove(self.name)

    def __enter__(self) -> WeightServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<WeightServer {self.address}, version {self.version}>"


def serve_weights(
    name: str,
    model: Served,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    secret: str | bytes | None = None,
    tls: ssl.SSLContext | None = None,
    trust: bool = False,
    connections: int = 256,
    timeout: float = 10.0,
    server: Server | None = None,
) -> WeightServer:
    """Serve a model's weights, and its code, to the nodes that run `tw.relay`.

        server = tw.serve_weights("policy", model, host="0.0.0.0", port=7070, secret=secret)
        server.publish(module.state_dict(), version=17)

    The model's present weights are offered at once.

    Args:
        name: by which nodes request the weights.
        model: a `Model`; or a `Publisher`, for a learner whose own node has actors too: `publish` then serves both.
        host, port: where to listen: 0.0.0.0 for all of this machine's networks; port 0 takes a free one.
        secret: at least 16 random bytes that nodes must know too.
        tls: a context for servers, which encrypts the connection.
        trust: listen beyond this machine without secret and TLS: anybody may then read the weights.
        connections: how many nodes may be connected.
        timeout: seconds that a node may take for a handshake and for each frame.
        server: serve at the port of this server (`other.server`), with its options.

    Raises TransportError if it cannot listen there.
    """
    owned = server is None
    if server is None:
        server = Server(
            host, port, secret=secret, tls=tls, trust=trust, connections=connections, timeout=timeout
        )  # fmt: skip
    try:
        return WeightServer(name, model, server, owned)
    except BaseException:
        if owned:
            server.close()
        raise
