"""Peers that send a parameter server's port what they should not: `python -m tests.collective.server.hostile`.

Half of them know the secret and send messages that are damaged, too long, cut off or none; the others do not, and send
bytes of any kind, parts of a handshake, or nothing for a while. All the time a worker learns at the same port, and at
the end the weights must be those of its pushes alone.
"""

from __future__ import annotations

import argparse
import logging
import random
import socket
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from tests.live.transport.lab import damage
from tilewright.collective.server import Add, Port, Server, connect
from tilewright.collective.server.frames import Frame, decode, encode
from tilewright.collective.server.link import connection
from tilewright.live.transport.calls import receive_message, send_message
from tilewright.live.transport.session import join, secret_bytes
from tilewright.live.transport.wire import Channel, Kind
from tilewright.support.errors import TransportError


def message(port: Port, seed: int, secret: str) -> None:
    """A peer that knows the secret and sends a message that is damaged, too long, cut off or not one."""
    rng = random.Random(seed)
    worker = rng.choice([0, None])
    good = rng.choice(
        [
            Frame("push", {"worker": 0, "clock": 0}, {"dense w": np.ones((40, 30), np.float32)}),
            Frame("push", {"worker": 7, "clock": 1}, {"rows w": np.array([1 << 62]), "values w": np.ones((1, 30))}),
            Frame("pull", {"names": ["w"] * 50}, {"rows w": np.zeros((1, 5000), np.int64)}),
            Frame("pull", {"names": {"w": []}}, {"rows w": np.full(200_000, 3)}),
            Frame("newer", {"read": 0, "wait": 1 << 61}, {}),
            Frame("newer", {"read": -1, "wait": 0}, {}),
            Frame("commit", {}, {}),
        ]
    )
    data = encode(good)
    with socket.create_connection(("127.0.0.1", port.port), 10) as sock:
        channel = Channel(sock, "test", 10)
        join(channel, secret_bytes(secret), connection("strict", worker))
        match rng.randrange(4):
            case 0:
                channel.send(Kind.CALL, rng.randrange(1 << 62).to_bytes(8, "little"))
            case 1:
                channel.send(Kind.CALL, rng.randbytes(rng.randrange(8)))
            case 2:
                channel.send(Kind.CALL, len(data).to_bytes(8, "little"))
                channel.send(Kind.DATA, data[: min(len(data) - 1, 1 << 18)])
            case 3:
                message = damage(data[: 1 << 16], rng) if rng.random() < 0.7 else data
                send_message(channel, Kind.CALL, message)
                answer = decode(receive_message(channel, Kind.ANSWER, 1 << 30, 30))
                assert answer.kind in ("error", "done", "weights")


def stranger(port: Port, seed: int) -> None:
    """A peer that does not know the secret: random bytes, frames with any lengths, or a handshake with another one."""
    rng = random.Random(seed)
    with socket.create_connection(("127.0.0.1", port.port), 10) as sock:
        match rng.randrange(4):
            case 0:
                sock.sendall(rng.randbytes(rng.randrange(1, 5000)))
            case 1:
                channel = Channel(sock, "test", 10)
                kind = rng.choice(list(Kind))
                channel.send(kind, rng.randbytes(rng.randrange(200)))
            case 2:
                join(Channel(sock, "test", 10), rng.randbytes(32), connection("strict", rng.choice([0, 5, None])))
            case 3:
                sock.sendall(rng.choice([1 << 31, 1 << 63, 0, 1 << 20]).to_bytes(8, rng.choice(["little", "big"])))
                sock.sendall(bytes(rng.randrange(100)))
        sock.settimeout(0.2)
        sock.recv(100)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.collective.server.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    logging.disable()  # the port says of each peer why it is gone
    secret, counts, pushes = "a secret of thirty-two characters", Counter[str](), [0]
    first = {"w": np.zeros((40, 30), np.float32), "b": np.zeros(7)}
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        limits = {"staleness": None, "message_limit": 1 << 20}
        port = Port(secret=secret, timeout=5.0)
        with Server("strict", first, 2, Add(), port=port, directory=Path(folder), **limits) as server:

            def learn() -> None:
                with connect(server.address, 1, secret=secret, timeout=60) as worker:
                    while time.monotonic() < end:
                        worker.push({"b": np.ones(7)})
                        pushes[0] += 1
                        worker.pull()
                        time.sleep(0.01)

            learning = threading.Thread(target=learn)
            learning.start()
            seed = 0
            while time.monotonic() < end:
                seed += 1
                try:
                    (message(port, seed, secret) if seed % 2 else stranger(port, seed))
                    counts["no error here"] += 1
                except (TransportError, OSError) as error:
                    counts[type(error).__name__] += 1
            learning.join()
            moved = server.values()["b"]
            counted = server.shard.clocks[1]
        print(f"{seed} peers: {dict(counts)}; the port counts {port.stats()}")
        port.close()
    assert counted == pushes[0], f"{pushes[0]} pushes, {counted} counted"
    assert np.array_equal(moved, np.full(7, pushes[0] / 2)), "others moved what the worker moves"
    print(f"{pushes[0]} pushes of a worker meanwhile: all counted")


if __name__ == "__main__":
    main()
