"""Hostile messages for gRPC: `python -m tests.serve.hostile_grpc --count 100000 --seed 1`.

Messages of every method are changed in bits, cut, or made of the protocol's words. Whatever comes, the server answers
with a code that is not its own fault, and goes on to answer a good request rightly.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from typing import Any

import grpc
import numpy as np

import tilewright as tw
from tests.serve.conftest import echo, expected, layer_model
from tests.serve.hostile import NUMBERS, WORDS, cut, flip, insert
from tilewright.serve.models import Served
from tilewright.serve.protocol.generated import inference_pb2
from tilewright.serve.protocol.grpc_server import SERVICE, Service
from tilewright.serve.server import Server, Settings

pb: Any = inference_pb2
FAULTS = frozenset(("INTERNAL", "UNKNOWN", "DATA_LOSS", "DEADLINE_EXCEEDED"))
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def good() -> Any:
    message = pb.ModelInferRequest(model_name="layer", raw_input_contents=[X.tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=[2, 4])
    return message


def names() -> list[str]:
    """The methods that take one message."""
    return [name for name in vars(Service) if name[0].isupper() and name != "ModelStreamInfer"]


def nearly(r: random.Random) -> bytes:
    """An inference with one thing wrong."""
    message = good()
    message.model_name = r.choice(("layer", "layer", "layer", "echo", "none"))
    entry = message.inputs[0]
    kind = r.randrange(8)
    if kind == 0:
        entry.shape[r.randrange(2)] = r.choice([n for n in NUMBERS if isinstance(n, int) and abs(n) < 2**63])
    elif kind == 1:
        entry.datatype = r.choice(WORDS)
    elif kind == 2:
        entry.name = r.choice(WORDS)
    elif kind == 3:
        parameter = entry.parameters if r.random() < 0.5 else message.parameters
        value, word = parameter[r.choice(WORDS)], r.choice(WORDS)
        r.choice((
            lambda: setattr(value, "string_param", word), lambda: setattr(value, "bool_param", True),
            lambda: setattr(value, "int64_param", r.choice((-1, 0, 1, 2**62))),
        ))()  # fmt: skip
    elif kind == 4:
        del message.raw_input_contents[:]
        entry.contents.fp32_contents.extend([r.choice((0.0, float("nan"), 1e38))] * r.choice((0, 7, 8, 9)))
        if r.random() < 0.5:
            entry.contents.bytes_contents.append(b"\xff")
    elif kind == 5:
        message.raw_input_contents.append(r.randbytes(r.choice((0, 1, 32))))
    elif kind == 6:
        message.inputs.add().CopyFrom(entry)
    else:
        message.outputs.add(name=r.choice(WORDS))
    return bytes(message.SerializeToString())


def case(r: random.Random) -> tuple[str, bytes, list[tuple[str, Any]]]:
    """A method, its message, and metadata."""
    metadata = [("authorization", "a" * r.choice((1, 3000)))] if r.random() < 0.05 else []
    if r.random() < 0.5:
        return "ModelInfer", nearly(r), metadata
    data = bytearray(good().SerializeToString() if r.random() < 0.7 else r.choice(WORDS).encode())
    for _ in range(r.choice((1, 1, 3))):
        r.choice((flip, cut, insert))(data, r)
    return r.choice(names() if r.random() < 0.5 else ["ModelInfer"]), bytes(data), metadata


def attack(port: int, count: int, seed: int) -> Counter[str]:
    """Send hostile messages; gives how often each code came. AssertionError with the case that broke the rule."""
    r = random.Random(seed)
    seen: Counter[str] = Counter()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        methods = {name: channel.unary_unary(f"/{SERVICE}/{name}") for name in names()}
        for k in range(count):
            name, data, metadata = case(r)
            try:
                methods[name](data, metadata=metadata, timeout=30)
                code = "OK"
            except grpc.RpcError as error:
                code, details = error.code().name, error.details()
                assert code not in FAULTS, f"case {k} of seed {seed}: {code} for {name} {data!r}: {details}"
            seen[code] += 1
            if k % 250 == 0 or k == count - 1:
                answer = pb.ModelInferResponse.FromString(methods["ModelInfer"](good().SerializeToString()))
                y = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(2, 3)
                np.testing.assert_allclose(y, expected(X), rtol=1e-5)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    layer = Served("layer", "1", tw.Model(tw.compile_program(layer_model())))
    with Server(Settings(http_port=None, grpc_port=0, shared_memory=True), [layer, echo()]) as server:
        start = time.monotonic()
        assert server.grpc_port is not None
        seen = attack(server.grpc_port, options.count, options.seed)
    print(f"{options.count} hostile messages in {time.monotonic() - start:.0f} s: {dict(seen)}")


if __name__ == "__main__":
    main()
