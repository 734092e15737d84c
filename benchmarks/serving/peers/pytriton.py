"""tritonserver as pytriton's wheel brings it, with its dynamic batcher."""

from __future__ import annotations

import argparse
import json
import signal
import socket
import threading
from typing import Any

import numpy as np
import onnxruntime
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

MAX_ROWS = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--file")
    options = parser.parse_args()
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(options.file, settings)
    observation = session.get_inputs()[0]
    names = [o.name for o in session.get_outputs()]

    @batch
    def infer(**inputs: Any) -> dict[str, Any]:
        return dict(zip(names, session.run(names, inputs), strict=True))

    ports = {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
    with Triton(config=TritonConfig(**ports, log_verbose=0)) as triton:
        triton.bind(
            model_name="nat",
            infer_func=infer,
            inputs=[Tensor(name=observation.name, dtype=np.uint8, shape=tuple(observation.shape[1:]))],
            outputs=[Tensor(name=o.name, dtype=np.float32, shape=tuple(o.shape[1:])) for o in session.get_outputs()],
            config=ModelConfig(max_batch_size=MAX_ROWS, batcher=DynamicBatcher(max_queue_delay_microseconds=2000)),
        )
        triton.run()
        print(json.dumps({"ports": {"http": ports["http_port"]}}), flush=True)
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        stop.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


if __name__ == "__main__":
    main()
