"""Hostile requests: valid ones whose bytes, numbers, headers and JSON are changed, and JSON of the protocol's words.

`python -m tests.serve.hostile --count 100000 --seed 1` starts a server in a process of its own. Each case goes over a
connection of its own: whatever it is, the server must answer or close, never with a status of 500 or above but 503, and
go on to answer a good request rightly.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

WORDS = (
    "inputs outputs name shape datatype data parameters id binary_data binary_data_size binary_data_output timeout "
    "priority shared_memory_region shared_memory_offset shared_memory_byte_size classification x y FP32 FP16 BF16 "
    "BYTES BOOL INT64 UINT8 INT4 layer echo"
).split()
NUMBERS = (
    0, 1, -1, 2, 4, 7, 255, 2**31, -(2**31), 2**63 - 1, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e308, 1e-320
)  # fmt: skip
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def requests() -> list[bytes]:
    """Good requests, from which hostile ones are made."""
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 4]}
    whole = json.dumps({"id": "1", "inputs": [tensor | {"data": x.tolist()}], "outputs": [{"name": "y"}]}).encode()
    head = json.dumps({
        "inputs": [tensor | {"parameters": {"binary_data_size": 32}}],
        "parameters": {"binary_data_output": True, "timeout": 1000000, "priority": 1},
    }).encode()  # fmt: skip
    texts = json.dumps({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}]}).encode()
    return [
        post("/v2/models/layer/infer", whole),
        post("/v2/models/layer/versions/1/infer", head + x.tobytes(), f"Inference-Header-Content-Length: {len(head)}"),
        post("/v2/models/echo/infer", texts, "Content-Type: application/json", "X-Timeout-Ms: 50"),
        post("/v2/repository/index", b"{}"),
        post("/v2/systemsharedmemory/region/r/register", b'{"key": "/a", "offset": 0, "byte_size": 64}'),
        get("/v2"), get("/v2/models/layer"), get("/v2/models/echo/stats"), get("/v2/health/ready"), get("/metrics"),
    ]  # fmt: skip


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


# --- changes ----------------------------------------------------------------------------------------------------------


def flip(data: bytearray, r: random.Random) -> None:
    for _ in range(r.choice((1, 1, 2, 8, 64))):
        if data:
            data[r.randrange(len(data))] = r.randrange(256)


def cut(data: bytearray, r: random.Random) -> None:
    start = r.randrange(len(data) + 1)
    del data[start : start + r.choice((1, 2, 16, len(data)))]


def insert(data: bytearray, r: random.Random) -> None:
    piece = r.choice(
        (bytes([r.randrange(256)]) * r.choice((1, 3, 5000)), b"\r\n", b"\0", b"[" * 3000, b"chunked", b'"')
    )
    at = r.randrange(len(data) + 1)
    data[at:at] = piece


def number(data: bytearray, r: random.Random) -> None:
    places = list(re.finditer(rb"\d+", bytes(data)))
    if places:
        place = r.choice(places)
        data[place.start() : place.end()] = str(r.choice(NUMBERS)).encode()[:500]


def header(data: bytearray, r: random.Random) -> None:
    line = r.choice((
        "Content-Length: 5", "Content-Length: -1", "Transfer-Encoding: chunked", "Content-Encoding: gzip",
        "Content-Encoding: deflate", "Expect: 100-continue", "Upgrade: h2c", "Connection: close", "Connection: upgrade",
        "Inference-Header-Content-Length: 99999999999999999999", "Inference-Header-Content-Length: -5",
        "Inference-Header-Content-Length: 7", "Authorization: Bearer " + "a" * r.choice((1, 9000)),
        "traceparent: " + "f" * 55, "X-Timeout-Ms: NaN", "X-Timeout-Ms: 0", "A" * 300 + ": b", ": empty",
    ))  # fmt: skip
    at = bytes(data).find(b"\r\n")
    if at >= 0:
        data[at:at] = b"\r\n" + line.encode()


def twice(data: bytearray, r: random.Random) -> None:
    data += bytes(data)[r.randrange(len(data) + 1) if r.random() < 0.5 else 0 :]


CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (flip, cut, insert, number, number, header, twice)


def value(r: random.Random, depth: int = 0) -> object:
    """JSON of the protocol's words, at random."""
    kind = r.randrange(8 if depth < 4 else 5)
    if kind == 0:
        return r.choice(NUMBERS)
    if kind == 1:
        return r.choice(WORDS)
    if kind == 2:
        return r.choice((None, True, False, "", "\ud800", "\0"))
    if kind == 3:
        return [r.choice(NUMBERS) for _ in range(r.choice((0, 1, 2, 8)))]
    if kind == 4:
        return r.randrange(-2, 9)
    if kind == 5:
        return [value(r, depth + 1) for _ in range(r.randrange(4))]
    return {r.choice(WORDS): value(r, depth + 1) for _ in range(r.randrange(5))}


def nearly(r: random.Random) -> bytes:
    """A request whose JSON is right but for one field."""
    entry: dict[str, object] = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [0.0] * 8}
    message: dict[str, object] = {"inputs": [entry], "parameters": {}, "outputs": [{"name": "y"}]}
    target = r.choice((entry, message, entry.setdefault("parameters", {})))
    target[r.choice(WORDS)] = value(r)  # type: ignore[index]
    if r.random() < 0.3:
        entry["shape"] = [r.choice((0, 1, 2, 2**40, 2**62)) for _ in range(r.randrange(18))]
    if r.random() < 0.3:
        entry["datatype"] = r.choice(WORDS)
    return post(f"/v2/models/{r.choice(('layer', 'echo'))}/infer", json.dumps(message).encode())


def case(r: random.Random, good: list[bytes]) -> bytes:
    """The bytes of one hostile request."""
    kind = r.randrange(10)
    if kind == 0:
        return post("/v2/models/layer/infer", json.dumps(value(r)).encode())
    if kind < 4:
        return nearly(r)
    data = bytearray(r.choice(good))
    for _ in range(r.choice((1, 1, 2, 5))):
        r.choice(CHANGES)(data, r)
    return bytes(data)


# --- runs -------------------------------------------------------------------------------------------------------------


def exchange(port: int, data: bytes) -> bytes:
    """The bytes of the server until it closes. Raises TimeoutError if it hangs."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        answer = b""
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(1 << 16):
                answer += part
        except (ConnectionResetError, BrokenPipeError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
        return answer


def attack(port: int, count: int, seed: int) -> Counter[int]:
    """Send hostile requests; gives how often each status came. AssertionError with the case that broke the rule."""
    r = random.Random(seed)
    good = requests()
    seen: Counter[int] = Counter()
    for k in range(count):
        data = case(r, good)
        answer = exchange(port, data)
        for status in map(int, STATUS.findall(answer)):
            assert status < 500 or status == 503, f"case {k} of seed {seed}: {status} for {data!r}: {answer[-300:]!r}"
            seen[status] += 1
        if k % 250 == 0:
            check(port)
    check(port)
    return seen


def check(port: int) -> None:
    """The server still answers rightly."""
    answer = exchange(port, requests()[0].replace(b"Host: x", b"Connection: close"))
    assert answer.startswith(b"HTTP/1.1 200"), answer[:500]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"][0]["shape"] == [2, 3]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    command = [sys.executable, "-m", "tests.serve.hostile_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        start = time.monotonic()
        try:
            seen = attack(port, options.count, options.seed)
            assert process.poll() is None, "the server has ended"
        finally:
            process.terminate()
        assert process.wait(60) == 0, "the server did not end in order"
    print(f"{options.count} hostile requests in {time.monotonic() - start:.0f} s: {dict(sorted(seen.items()))}")


if __name__ == "__main__":
    main()
