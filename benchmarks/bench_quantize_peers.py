"""`tw.quantize` beside ONNX Runtime's quantiser and NNCF's for OpenVINO, on the same f32 files and the same samples.

    make nncf-env                                                       once: nncf, in an environment of its own
    python -m benchmarks.bench_quantize_peers --prepare [--only NAME...]    quantises, minutes
    python -m benchmarks.bench_quantize_peers [--rounds 15] [--write]       races what is prepared

Every runtime has one thread and a process of its own; they take turns, and times are those of the processor, so that
what else the machine does does not count. ONNX Runtime quantises statically to QDQ files after its own
preprocessing, with a scale a channel of weights and the least and greatest of activations: once with codes of
activations without a sign, once with; for BERT once more with products alone. The faster counts. NNCF has its default
preset, and is told of a transformer. The error is that of the outputs on inputs that calibration has not seen, by the
f32 outputs of ONNX Runtime: the root of the mean square of the difference by that of the outputs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

import tilewright as tw
from benchmarks import models
from benchmarks.harness import console, markdown_table, write_markdown
from benchmarks.peers.common import fixed_shapes
from benchmarks.peers.quantised import read_feeds
from benchmarks.quantised_steps import relative, steps
from benchmarks.tables import geometric_mean
from tilewright.measure import paired
from tilewright.measure.contender import load_arrays, save_arrays

MODELS = ("resnet50", "mobilenetv2", "bert", "nat", "az6")
TRANSFORMERS = ("bert",)
FOLDER = models.ROOT / "build" / "quantize-peers"
NNCF_PYTHON = models.ROOT / "build" / "peers" / "nncf-env" / "bin" / "python"
SAMPLES, FRESH = 8, 4
"""Inputs for calibration, and others on which errors are measured."""
PEERS = ("onnxruntime", "openvino")

NOTES = """Ratios are medians of pairs in turns, of processor time. Errors: the root of the mean square of the
difference from f32 outputs by that of the outputs, on inputs that calibration has not seen.

The last columns are of the QDQ file that `report.onnx()` gives, beside ONNX Runtime without its optimisations. Steps:
each layer reads equal codes in both; how many steps the codes that it gives differ at most, and the largest share of a
layer's codes that do. Outputs: the difference from end to end, of ours and of ONNX Runtime with its optimisations: a
code that falls to the other side of a tie changes all that later layers read."""

Feeds = list[dict[str, Any]]


def prepare(name: str, python: Path, quantisers: Sequence[str]) -> None:
    """The model of f32, its inputs, and what each quantiser makes of it, as files."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "f32.onnx"
    model = fixed_shapes(name, 1)
    onnx.save(model, source)
    samples = [models.example_inputs(model, 1, seed) for seed in range(SAMPLES)]
    fresh = [models.example_inputs(model, 1, 1000 + seed) for seed in range(FRESH)]
    for file, feeds in (("samples.npz", samples), ("fresh.npz", fresh)):
        save_arrays(str(folder / file), {f"{k}/{key}": a for k, feed in enumerate(feeds) for key, a in feed.items()})
    if "ours" in quantisers:
        ours(folder, samples)
    if "onnxruntime" in quantisers:
        onnxruntime(folder, samples, products=name in TRANSFORMERS)
    if "openvino" not in quantisers:
        return
    kind = ["transformer"] if name in TRANSFORMERS else []
    command = [python, "-m", "benchmarks.peers.quantised", source, folder / "samples.npz", folder / "openvino.xml"]
    environment = {**os.environ, "PYTHONPATH": f"{models.ROOT / 'src'}:{models.ROOT}"}
    run = subprocess.run([str(c) for c in [*command, *kind]], env=environment, capture_output=True, text=True)
    console().print(f"{name}: {(run.stdout or run.stderr).strip().splitlines()[-1]}")


def ours(folder: Path, samples: Feeds) -> None:
    tw.compile(folder / "f32.onnx").save(folder / "f32.tw")
    model = tw.quantize(folder / "f32.onnx", calibrate=samples, precision="int8", max_drop=1.0)
    model.save(folder / "int8.tw")
    (folder / "report.txt").write_text(str(model.report))
    onnx.save(onnx.load_from_string(model.report.onnx()), folder / "int8.onnx")


def onnxruntime(folder: Path, samples: Feeds, *, products: bool) -> None:
    """ONNX Runtime's static quantisation, in the variants of which the fastest counts."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready = folder / "ready.onnx"
    quant_pre_process(str(folder / "f32.onnx"), str(ready), skip_symbolic_shape=True)
    variants: dict[str, dict[str, Any]] = {
        "u8s8": {"activation_type": QuantType.QUInt8},
        "s8s8": {"activation_type": QuantType.QInt8},
    }
    if products:
        only = ["MatMul", "Gemm"]
        variants["products"] = {"activation_type": QuantType.QUInt8, "op_types_to_quantize": only}
    for variant, options in variants.items():
        quantize_static(
            str(ready),
            str(folder / f"onnxruntime-{variant}.onnx"),
            Reader(samples),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            **options,
        )


class Reader:
    """The reader from which ONNX Runtime's quantiser takes inputs."""

    def __init__(self, feeds: Feeds) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def race(name: str, rounds: int, python: str) -> dict[str, Any]:
    """Times by ours and errors of all that is prepared of a model."""
    folder = FOLDER / name
    fresh = str(folder / "fresh.npz")

    def contender(label: str, setup: str, file: Path, python: str | None = None) -> paired.Contender:
        arguments = {"path": str(file), "feeds": fresh}
        return paired.Contender(label, f"benchmarks.peers.quantised:{setup}", arguments, python=python)

    contenders = [contender("ours", "tilewright", folder / "int8.tw")]
    contenders.append(contender("f32", "tilewright", folder / "f32.tw"))
    for file in sorted(folder.glob("onnxruntime-*.onnx")):
        contenders.append(contender(file.stem, "onnxruntime", file))
    contenders.append(contender("exact", "onnxruntime", folder / "f32.onnx"))
    contenders.append(contender("openvino", "openvino", folder / "openvino.xml", python))
    results = {r.name: r for r in paired.race(contenders, rounds=rounds, turn_seconds=0.05, outputs=folder)}
    exact = results["exact"]
    assert exact.outputs is not None, exact.error
    row: dict[str, Any] = {"model": name, "times": {}, "ratios": {}, "errors": {}, "notes": {}}
    for label, result in results.items():
        if result.error is not None or result.outputs is None:
            row["notes"][label] = (result.error or "").splitlines()[-1]
            continue
        row["times"][label] = result.median
        row["ratios"][label] = paired.ratio(result, results["ours"])
        row["errors"][label] = relative(load_arrays(str(result.outputs)), load_arrays(str(exact.outputs)))
    row["steps"] = steps(onnx.load(folder / "int8.onnx"), read_feeds(fresh)[0])
    return row


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows and the means of their ratios."""
    head = ["model", "ours", "f32 / ours", "ONNX Runtime / ours", "OpenVINO / ours"]
    head += ["error: ours", "ONNX Runtime", "OpenVINO", "steps where inputs are equal", "outputs: ours", "ONNX Runtime"]
    lines: list[list[str]] = []
    peers: dict[str, list[float]] = {p: [] for p in PEERS}
    for row in rows:
        ratios, errors = row["ratios"], row["errors"]
        lines.append([row["model"], f"{row['times']['ours'] * 1e6:.4g} us", f"{ratios['f32']:.2f}"])
        best = {p: min((k for k in ratios if k.startswith(p)), key=ratios.__getitem__, default=None) for p in PEERS}
        for peer, label in best.items():
            if label is None:
                lines[-1].append("-")
                continue
            peers[peer].append(ratios[label])
            lines[-1].append(f"{ratios[label]:.2f} {label.removeprefix(peer).strip('-')}".strip())
        lines[-1] += [f"{errors[label]:.3%}" if label else "-" for label in ("ours", *best.values())]
        cut = row["steps"]
        lines[-1].append(f"{cut.largest} in {cut.share:.1e} of a layer")
        lines[-1] += [f"{end:.3%}" for end in cut.ends]
    means = [f"{geometric_mean(peers[p]):.2f}" for p in PEERS]
    lines.append(["geometric mean", "", "", *means, *[""] * 6])
    return markdown_table(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--nncf", type=Path, default=NNCF_PYTHON, help="the interpreter that has nncf")
    parser.add_argument("--by", nargs="*", default=["ours", *PEERS], help="the quantisers that --prepare runs")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.prepare:
        for name in args.only:
            prepare(name, args.nncf, args.by)
        return
    rows = []
    for name in args.only:
        rows.append(race(name, args.rounds, str(args.nncf)))
        console().print(rows[-1])
    text = f"{table(rows)}\n\n{NOTES}"
    if args.write:
        write_markdown("quantize-peers", "`tw.quantize` beside other quantisers, 1 thread", text)
    console().print(text)


if __name__ == "__main__":
    main()
