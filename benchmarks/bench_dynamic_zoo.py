"""Image networks of the zoo compiled once for maps of any size, against a compile for each size:
`python -m benchmarks.bench_dynamic_zoo`.

The compiler was not tuned for these: convolutional networks of timm with random weights, traced by PyTorch with heights
and widths that are multiples of 32. Both run in turns in one process, one thread. Ratios are static time by dynamic
time: 1.0 is no loss.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from benchmarks.bench_dynamic import Point, geomean, point
from benchmarks.harness import RESULTS, markdown_table, write_report
from benchmarks.zoo import builders

NAME = "dynamic-zoo"
NETWORKS = (
    "resnet18", "mobilenetv3_small_050", "efficientnet_lite0", "convnext_atto", "ghostnet_050", "densenet121", "dla34",
    "cspresnet50", "hrnet_w18_small", "ese_vovnet19b_slim", "hgnetv2_b0", "hardcorenas_a", "fasternet_t0", "xception41",
)  # fmt: skip
"""Networks whose code asks for no certain size."""
SIZES = ((160, 160), (224, 224), (352, 256))
UNIT, MIN_SIDE, MAX_SIDE = 32, 128, 512
HEADER = ["network", "compile, s", *(f"{h} x {w}" for h, w in SIZES), "all"]


@dataclass(frozen=True, slots=True)
class Row:
    """One network: seconds of compiling it for all sizes, and what it takes at some."""

    name: str
    seconds: float
    points: tuple[Point, ...]

    @property
    def cells(self) -> list[str]:
        ratios = [p.ratio for p in self.points]
        return [self.name, f"{self.seconds:.1f}", *(f"{r:.3f}" for r in ratios), f"{geomean(ratios):.3f}"]


def measure(name: str, seconds: float) -> Row:
    """A network at each size. Raises AssertionError where both programs do not give the same."""
    entry = builders()[f"timm-{name}"]()
    (image,) = entry.tensors()
    dynamic = {"x": {2: "height", 3: "width"}}
    side = tw.dim(MIN_SIDE, MAX_SIDE, multiple=UNIT)
    start = time.perf_counter()
    model = tw.compile(entry.module, image, dynamic=dynamic, dims={"height": side, "width": side})
    took, points = time.perf_counter() - start, []
    for height, width in SIZES:
        sizes = {"height": height, "width": width}
        static: Any = tw.compile(entry.module, image, dynamic=dynamic, dims=sizes)
        shape = (*image.shape[:2], height, width)
        inputs = [np.random.default_rng(0).standard_normal(shape).astype(np.float32)]
        ours, theirs = np.asarray(model(*inputs)), np.asarray(static(*inputs))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4 * float(np.abs(theirs).max()))
        points.append(point(sizes, model, static, inputs, seconds))
    return Row(name, took, tuple(points))


def report(rows: Sequence[Row]) -> None:
    """Write the table; networks that were not measured now stay as they were."""
    path = RESULTS / f"{NAME}.json"
    stored = json.loads(path.read_text())["rows"] if path.exists() else []
    known = {cells[0]: cells for cells in stored} | {row.name: row.cells for row in rows}
    table = [known[name] for name in NETWORKS if name in known]
    together = geomean([float(ratio) for cells in table for ratio in cells[2:-1]])
    text = markdown_table(HEADER, table) + f"\n\nAll of them: {together:.3f}.\n"
    write_report(NAME, "Image networks, one compile for all sizes against a compile for each, one thread", table, text)


def _chosen(only: str) -> Iterator[str]:
    return (name for name in NETWORKS if only.lower() in name)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="networks whose names have this in them")
    parser.add_argument("--seconds", type=float, default=0.6, help="of each size")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    for name in _chosen(options.only):
        row = measure(name, options.seconds)
        print("  ".join(row.cells), flush=True)
        if not options.no_report:
            report([row])


if __name__ == "__main__":
    main()
