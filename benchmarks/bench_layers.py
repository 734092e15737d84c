"""Single layers and blocks side by side: `python -m benchmarks.bench_layers --groups 'conv3x3*' --rounds 5`.

The tables of shapes are in `suites/`. Which peers a table meets is below; `--peers` names others.
"""

from __future__ import annotations

import argparse
import functools

import onnx

from benchmarks import layers, models, suite
from benchmarks.peers import EXACT
from benchmarks.work import Work

PEERS = {
    "conv": ("onnxruntime", "openvino", "mnn", "ncnn", EXACT),  # the other layers are exact by default
    "gemm": ("onnxruntime", "openvino", "mnn", "numpy"),
    "memory": ("onnxruntime", "openvino", "mnn", "inductor"),
}
ROUNDS = 5
TURN_SECONDS = 0.02


def cases() -> list[suite.Case]:
    def work(layer: layers.Layer) -> Work:
        return layer.work(onnx.load(models.load(layer.model)))

    return [
        suite.Case(x.model, x.name, x.group, PEERS[x.suite], repeat=x.shape.repeat, work=functools.partial(work, x))
        for x in layers.read().values()
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_layers", description=__doc__.splitlines()[0])
    suite.add_options(parser, ROUNDS, TURN_SECONDS, "tilewright-fixed")
    options = parser.parse_args(arguments)
    return suite.run(cases(), options, "layers", f"Layers, {options.threads} thread(s)")


if __name__ == "__main__":
    raise SystemExit(main())
