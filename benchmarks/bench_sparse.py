"""Sparse products against our own dense ones, in turns: `python -m benchmarks.bench_sparse`.

A product of 3072 by 768 (the bar's) of one row and of 32 and 128, with 70, 90 and 95 % of the weights pruned by
magnitude, one by one and in blocks of 1x8 and 1x16: the median of the dense time by the sparse one.
"""

from __future__ import annotations

import argparse
from statistics import median

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from benchmarks.harness import markdown_table, write_markdown
from tilewright.compression.steps import pruning_mask
from tilewright.quantization.compare import in_turns

DEPTH, COLUMNS = 3072, 768
BARS = {0.7: 1.0, 0.9: 2.0, 0.95: 3.0}
"""Times faster than dense that 32 rows and more are to be, by the share that is pruned; one row at 0.9: 4."""


def product(rows: int, w: np.ndarray) -> onnx.ModelProto:
    """y = x w."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [info("x", TensorProto.FLOAT, [rows, len(w)])],
        [info("y", TensorProto.FLOAT, [rows, w.shape[1]])],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,32,128")
    parser.add_argument("--blocks", default="1x1,1x8,1x16")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    w = rng.standard_normal((DEPTH, COLUMNS)).astype(np.float32)
    lines = []
    for rows in map(int, args.rows.split(",")):
        dense, x = tw.compile(product(rows, w)), rng.standard_normal((rows, DEPTH)).astype(np.float32)
        for share, bar in BARS.items():
            for text in args.blocks.split(","):
                down, across = map(int, text.split("x"))
                pruned = w * pruning_mask(w, share, (down, across))
                model = tw.compile(tw.with_patterns(product(rows, pruned)))
                np.testing.assert_allclose(model(x), x @ pruned, rtol=0, atol=1e-3)
                pairs = in_turns(dense, model, {"x": x})
                ratio = median(a / b for a, b in zip(pairs.first, pairs.second, strict=True))
                wanted = 4.0 if (rows, share) == (1, 0.9) else bar if rows > 1 else None
                times = [f"{1e6 * s:.0f}" for s in pairs.seconds]
                lines.append(
                    [str(rows), f"{share:.0%}", text, *times, f"{ratio:.2f}", "-" if wanted is None else str(wanted)]
                )
                print(lines[-1], flush=True)
    table = markdown_table(["rows", "pruned", "blocks", "µs dense", "µs sparse", "times as fast", "bar"], lines)
    write_markdown("sparse", f"Sparse products against dense ones, {DEPTH} x {COLUMNS}, 1 thread", table)


if __name__ == "__main__":
    main()
