"""Two hosts as network namespaces with a wire between them: what real interfaces do and loopback never does."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live.transport.lab import ELEMENTS, SECRET, fetch, seen, serving, until, wide_weights
from tilewright.live.transport.address import parse_address
from tilewright.live.transport.client import TcpSource
from tilewright.live.transport.wire import LostError

NBYTES = 4 * ELEMENTS
LEARNER, NODE = "192.0.2.1", "192.0.2.2"
"""Addresses of the block that documents and tests may use."""

RATE = "40mbit"
"""The rate of the wire: the large weight takes half a second."""

CLONE_NEWNET = 0x40000000


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


class Wire:
    """Two namespaces, `learner` and `node`, joined by a pair of interfaces. Needs root."""

    def __init__(self) -> None:
        self.learner, self.node = (f"tilewright-{os.getpid()}-{side}" for side in ("learner", "node"))

    def lay(self) -> None:
        for space in (self.learner, self.node):
            run("ip", "netns", "add", space)
        run("ip", "-n", self.learner, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", self.node)
        for space, address in ((self.learner, LEARNER), (self.node, NODE)):
            run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "wire")
            run("ip", "-n", space, "link", "set", "wire", "up")
        limit = ("tbf", "rate", RATE, "burst", "64kb", "latency", "100ms")
        run("tc", "-n", self.learner, "qdisc", "add", "dev", "wire", "root", *limit)

    def pull(self) -> None:
        run("ip", "-n", self.node, "link", "set", "wire", "down")

    def plug(self) -> None:
        run("ip", "-n", self.node, "link", "set", "wire", "up")

    def remove(self) -> None:
        for space in (self.learner, self.node):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


@pytest.fixture
def wire() -> Iterator[Wire]:
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("needs ip and tc of iproute2")
    created = Wire()
    try:
        created.lay()
        yield created
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
    finally:
        created.remove()


@contextmanager
def inside(space: str) -> Iterator[None]:
    """This thread in a namespace, and with it the sockets and the threads that it makes."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(place: int) -> None:
        if libc.setns(place, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")

    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{space}", os.O_RDONLY)
    try:
        enter(there)
        yield
    finally:
        enter(home)
        os.close(home)
        os.close(there)


def test_a_wire_that_is_pulled_in_the_middle(wire: Wire) -> None:
    """Neither side is told. The node gives up in time, cannot connect while the wire is out, goes on where it was once
    it is back, and takes the next version over the same connection."""
    with inside(wire.learner):
        service = serving(host=LEARNER, timeout=1.0)
        server, feed = service.__enter__()
    try:
        with inside(wire.node):
            node = TcpSource(parse_address(f"tcp://{LEARNER}:{server.port}/wide"), secret=SECRET, timeout=1.0)

            def pull() -> None:
                until(lambda: int(node.stats()["bytes_received"]) > NBYTES / 3)
                wire.pull()

            puller = threading.Thread(target=pull)
            puller.start()
            with pytest.raises(LostError):
                node.newer(None, None, 30)
            puller.join()
            received = node.stats()["bytes_received"]
            assert NBYTES / 3 < received < NBYTES
            with pytest.raises(LostError):
                node.newer(None, None, 0)
            wire.plug()
            update, _ = fetch(node, None, None)
            stats = node.stats()
            assert (seen(update), stats["updates"], stats["resumed"]) == (1, 1, 1)
            assert stats["bytes_received"] < NBYTES + received / 2, "what had arrived came once"
            feed.publish(wide_weights(2), 2)
            newer, lost = fetch(node, update, update.structure)
            assert (seen(newer), lost) == (2, 0)
            node.close()
    finally:
        service.__exit__(None, None, None)
    assert server.stats()["hostile"] == 0
