"""Weights across nodes, here from process to process over loopback: bytes per second, and how soon actors have them."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np

import tilewright as tw
from benchmarks import models
from benchmarks.harness import markdown_table
from benchmarks.live.common import Child, other_weights, program, store_folder, summary

SECRET = "measurements need a secret too"
TLS = models.ROOT / "tests" / "runtime" / "transport" / "tls"
_BYTES = 300_000_000
"""Large policies are fetched fewer times than small ones."""
WAYS = "no secret", "secret", "secret, TLS"


@dataclass(frozen=True, slots=True)
class FetchRow:
    """One policy: MB/s of each way, median, and relative to an ordinary socket's in the same round."""

    policy: str
    raw: int
    rates: dict[str, float]
    ratios: dict[str, float]
    first: float  # ratio of the first node that fetches a version, with a secret: chunks are digested for it


@dataclass(frozen=True, slots=True)
class ArrivalRow:
    """One policy: seconds of `publish` on the learner, and from there to an actor on the node that has the version."""

    policy: str
    raw: int
    publish: dict[str, float]
    arrival: dict[str, float]
    local: float  # of a publish into the node's own store


def fetching(policy: str, rounds: int) -> FetchRow:
    """Fetch the same weights by each way in turn."""
    model = tw.load(program(policy))
    sets = [other_weights(model, seed) for seed in range(2)]
    raw = sum(array.nbytes for array in sets[0].values())
    rounds = max(5, min(rounds, _BYTES // raw))
    with ExitStack() as stack:
        ordinary = stack.enter_context(_raw_socket(raw))
        servers = {}
        for way in WAYS:
            tls = None
            if "TLS" in way:
                tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                tls.load_cert_chain(TLS / "learner.pem")
            secret = None if way == "no secret" else SECRET
            servers[way] = stack.enter_context(tw.serve_weights("policy", model, secret=secret, tls=tls))
        addresses = {_marked(way): server.address for way, server in servers.items()}
        child = stack.enter_context(
            Child("fetch", ordinary=ordinary.port, nbytes=raw, ways=addresses, secret=SECRET, ca=str(TLS / "ca.pem"))
        )
        child.receive()
        times: dict[str, list[float]] = {way: [] for way in ("direct", "first", *WAYS)}
        for k in range(rounds + 2):
            servers["secret"].publish(sets[k % 2])
            result = {"direct": child.ask({"way": "direct"}), "first": child.ask({"way": _marked("secret")})}
            result |= {way: child.ask({"way": _marked(way)}) for way in WAYS}
            if k >= 2:
                for way, seconds in result.items():
                    times[way].append(seconds)
    table = {way: np.array(values) for way, values in times.items()}
    rates = {way: float(raw / np.median(table[way])) for way in ("direct", *WAYS)}
    ratios = {way: float(np.median(table["direct"] / table[way])) for way in WAYS}
    return FetchRow(policy, raw, rates, ratios, float(np.median(table["direct"] / table["first"])))


def _marked(way: str) -> str:
    """A way's name as `fetch` reads it."""
    return "open" if way == "no secret" else way


class _raw_socket:
    """A socket that sends so many bytes for each byte that it gets."""

    def __init__(self, nbytes: int) -> None:
        self._data = memoryview(bytes(nbytes))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def _serve(self) -> None:
        with suppress(OSError):
            sock, _ = self._listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while sock.recv(1):
                sock.sendall(self._data)

    def __enter__(self) -> _raw_socket:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def arriving(policy: str, rounds: int) -> ArrivalRow:
    """A learner here, a relay in a process of its own, an actor that looks at the node's version without pause."""
    model = tw.load(program(policy))
    sets = [other_weights(model, seed) for seed in range(2)]
    raw = sum(array.nbytes for array in sets[0].values())
    rounds = max(5, min(rounds, _BYTES // raw))
    times, local = [], []
    with store_folder(), tw.serve_weights(policy, model, secret=SECRET) as server:
        with Child("relaying", address=server.address, secret=SECRET) as child:
            assert child.receive()["ready"], "the relay has the first version"
            with tw.attach(policy, timeout=30.0) as actor:
                for k in range(rounds + 3):
                    start = time.perf_counter()
                    version = server.publish(sets[k % 2])
                    published = time.perf_counter()
                    while actor.version < version:
                        time.sleep(0.0001)
                    if k >= 3:
                        times.append((published - start, time.perf_counter() - start))
                    time.sleep(0.01)
        with tw.Publisher("local", model) as publisher:
            for k in range(10):
                start = time.perf_counter()
                publisher.publish(sets[k % 2])
                local.append(time.perf_counter() - start)
    table = np.array(times)
    return ArrivalRow(policy, raw, summary(table[:, 0]), summary(table[:, 1]), float(np.median(local)))


def fetch_text(rows: list[FetchRow]) -> str:
    header = ["policy", "raw MB", "plain socket, MB/s", *[f"{way}, MB/s" for way in WAYS]]
    header += [f"{way} / plain" for way in WAYS] + ["secret, first node / plain"]
    cells = [
        [
            row.policy, f"{row.raw / 1e6:.2f}", *[f"{row.rates[way] / 1e6:.0f}" for way in ("direct", *WAYS)],
            *[f"{row.ratios[way]:.2f}" for way in WAYS], f"{row.first:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    return markdown_table(header, cells) + (
        "\nOne connection over loopback, from process to process, in turns; every byte is digested with BLAKE2b by the"
        "\nnode, and by the learner when the first node of a version fetches it.\n"
    )


def arrival_text(rows: list[ArrivalRow]) -> str:
    header = ["policy", "raw MB", "publish on the learner ms", "on the node ms", "p90 ms", "local publish ms"]
    cells = [
        [
            row.policy, f"{row.raw / 1e6:.2f}", f"{row.publish['p50'] * 1e3:.2f}", f"{row.arrival['p50'] * 1e3:.2f}",
            f"{row.arrival['p90'] * 1e3:.2f}", f"{row.local * 1e3:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    return markdown_table(header, cells) + (
        "\nOn the node: from the call of `publish` on the learner to the actor's `version`: copied, sent, digested,"
        "\nchecked, packed. Local publish: into the node's own store, without a network.\n"
    )
