"""The loss of `tw.quantize` on calls that were not among its samples: `python -m benchmarks.bench_unseen`.

Cells of two kinds, one thread. First ten models of `benchmarks/bench_auto.py` with 8, 16 and 64 samples. Then models,
sizes, inputs, numbers of samples (1 to 8) and `max_drop` that a seed draws: inputs are normal, of heavy tails
(Student's distribution of 3 degrees of freedom, or log-normal), or normal with rare calls (one in eight is three times
as large). Bar: on 256 other calls the loss is at most `max_drop`. Where no call of a rare kind is among the samples,
nothing could know of it; the table says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from benchmarks.bench_auto import attention, convolutions, models, products
from benchmarks.harness import markdown_table, write_markdown
from tilewright.quantization.compare import closeness
from tilewright.support.classes import dataclass

NAMED = (
    "products 1 x 128 Relu",
    "products 4 x 32 Relu",
    "products 4 x 128 Relu",
    "products 4 x 512 Relu",
    "products 64 x 32 Tanh",
    "convolutions 8 of 8",
    "convolutions 16 of 16 residual",
    "convolutions 32 of 8",
    "attention 1 x 64",
    "attention 16 x 32",
)
FRESH = 256
RARE, LARGER = 1 / 8, 3.0
PRECISIONS = ("int8", "int8w", "int4w", "bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Cell:
    """A model, the kind of its inputs, how many of them are samples, and what may be lost."""

    name: str
    make: Callable[[], tuple[onnx.ModelProto, list[int]]]
    kind: str
    count: int
    max_drop: float
    seed: int


def named_cells() -> Iterator[Cell]:
    """The cells of models that have names."""
    for name, make in models():
        if name in NAMED:
            for count in (8, 16, 64):
                yield Cell(name, make, "normal", count, 0.01, 7)


def drawn_cells(seed: int, count: int) -> Iterator[Cell]:
    """Cells that a seed draws."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        family = ("products", "convolutions", "attention")[int(rng.integers(3))]
        rows, width = int(rng.choice((1, 2, 3, 8, 24))), int(rng.choice((24, 48, 80, 160)))
        kind = ("normal", "tails of 3", "log-normal", "rare")[int(rng.integers(4))]
        samples, most = int(rng.integers(1, 9)), float(rng.choice((0.01, 0.02, 0.05)))
        makers = {
            "products": (f"products {rows} x {width}", lambda r=rows, w=width, n=number: products(n, r, w, "Relu")),
            "convolutions": (
                f"convolutions {width // 4} of {rows + 6}",
                lambda r=rows, w=width, n=number: convolutions(n, w // 4, r + 6, False),
            ),
            "attention": (f"attention {rows} x {width}", lambda r=rows, w=width, n=number: attention(n, r, w)),
        }
        yield Cell(*makers[family], kind, samples, most, number)


def inputs(rng: np.random.Generator, kind: str, shape: list[int], count: int) -> tuple[list[Any], list[bool]]:
    """Calls of a kind, f32, and which of them are rare ones."""
    rare = [kind == "rare" and bool(rng.random() < RARE) for _ in range(count)]
    draw: dict[str, Callable[[], Any]] = {
        "tails of 3": lambda: rng.standard_t(3, shape),
        "log-normal": lambda: rng.lognormal(0, 1, shape),
    }
    arrays = [draw.get(kind, lambda: rng.standard_normal(shape))() for _ in range(count)]
    return [np.asarray(a * (LARGER if r else 1), np.float32) for a, r in zip(arrays, rare, strict=True)], rare


def measured(cell: Cell, precision: str) -> list[str]:
    """The row of a cell in one type."""
    model, shape = cell.make()
    exact = tw.compile(model)
    (key,) = [v.name for v in exact.inputs]
    rng = np.random.default_rng(1000 + cell.seed)
    samples, rare = inputs(rng, cell.kind, shape, cell.count)
    fresh = [{key: x} for x in inputs(rng, cell.kind, shape, FRESH)[0]]
    chosen = tw.quantize(model, calibrate=samples, precision=precision, max_drop=cell.max_drop)  # type: ignore[arg-type]
    loss = 1 - closeness(chosen, fresh, [exact.run(feed) for feed in fresh])
    layers = [row.type != "fp32" for row in chosen.report.layers]
    unseen = "none of the rare among the samples" if cell.kind == "rare" and not any(rare) else ""
    bar = "" if loss <= cell.max_drop else f"missed {unseen}".strip()
    report = chosen.report
    row = [cell.name, cell.kind, str(cell.count), precision, f"{cell.max_drop:g}", f"{sum(layers)} of {len(layers)}"]
    return [*row, f"{report.drop:.4f}", f"{report.drop_at_most:.4f}", f"{loss:.4f}", bar]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=5209)
    parser.add_argument("--drawn", type=int, default=20, help="cells that the seed draws")
    parser.add_argument("--precision", nargs="*", default=["int8"], choices=PRECISIONS)
    parser.add_argument("--no-named", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    cells = [*([] if args.no_named else named_cells()), *drawn_cells(args.seed, args.drawn)]
    rows = []
    for cell in cells:
        for precision in args.precision:
            rows.append(measured(cell, precision))
            print(" | ".join(rows[-1]), flush=True)
    head = ["model", "inputs", "samples", "type", "max_drop", "layers", "drop", "at most", f"on {FRESH} others", "bar"]
    text = f"{markdown_table(head, rows)}\n\n{sum(not row[-1] for row in rows)} of {len(rows)} rows hold `max_drop`."
    if args.write:
        write_markdown("unseen", "`tw.quantize` on calls that it has not seen, 1 thread", text)
    print(text.splitlines()[-1])


if __name__ == "__main__":
    main()
