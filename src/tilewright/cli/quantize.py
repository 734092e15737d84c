"""`tilewright quantize`: a model of f32 to a smaller and faster file, within a loss that is named."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import picture
from tilewright.cli.common import (
    DimOption,
    FastOption,
    JsonOption,
    ThreadsOption,
    bytes_text,
    facts,
    is_quiet,
    out,
    parse_ranges,
    print_json,
    time_text,
)
from tilewright.cli.models import SourceArgument, check_output, source, write
from tilewright.cli.samples import DataOption, with_samples
from tilewright.support import flags
from tilewright.support.progress import progress


def quantize(
    model: SourceArgument,
    data: DataOption,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write. [default: MODEL's name with the suffix .tw]"),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            metavar="TYPE",
            help="int8; bf16; fp16; int8w, int4w (weights of products alone); or auto: the fastest of fp32 and these "
            "that keeps --max-drop.",
        ),
    ] = "auto",
    max_drop: Annotated[
        float,
        typer.Option("--max-drop", metavar="X", help="By how much 1 - (relative error of the outputs) may fall."),
    ] = 0.01,
    method: Annotated[
        str,
        typer.Option("--method", metavar="WHICH", help="How ranges are chosen: minmax, percentile, mse, entropy."),
    ] = "mse",
    onnx: Annotated[
        Path | None,
        typer.Option("--onnx", metavar="FILE", help="Also write an ONNX file with QuantizeLinear for other runtimes."),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="Draw error against time of the choices of layers.")
    ] = None,
    count_outside: Annotated[
        bool,
        typer.Option(
            "--count-outside",
            help='The model gives "outside_range" too: how many activations of a call are outside of their range.',
        ),
    ] = False,
    attention: Annotated[
        bool | None,
        typer.Option(
            "--attention/--no-attention",
            help="int8 for products of two computed values, too. [default: where the machine multiplies bytes]",
        ),
    ] = None,
    threads: ThreadsOption = None,
    dim: DimOption = None,
    fast: FastOption = None,
    json: JsonOption = False,
) -> None:
    """Quantise a model of f32: calibrate it on samples, choose a type for each layer, and write one compiled file.

    ```
    tilewright quantize resnet50.onnx --data images.npz
    tilewright quantize policy.onnx --data observations.npy --precision int8 --max-drop 0.005
    tilewright quantize bert.onnx --data tokens.npz --onnx bert-int8.onnx
    ```
    """
    import tilewright

    picture.check(png)
    read = source(model)
    path = output or (model.with_suffix(".tw") if model in read.files else Path(f"{read.stem}.tw"))
    for file, option in ((path, "--output"), (onnx, "--onnx"), (png, "--png")):
        check_output(file, (*read.files, data), option)
    dims = parse_ranges(dim)
    start = time.perf_counter()
    with progress(f"quantize {model.name}", enabled=not is_quiet(json)):
        imported, samples = with_samples(read, data, dims)
        quantised = tilewright.quantize(
            imported,
            calibrate=samples,
            precision=precision,  # type: ignore[arg-type]  # checked there
            method=method,  # type: ignore[arg-type]
            max_drop=max_drop,
            count_outside=count_outside,
            attention=attention,
            threads=flags.THREADS() if threads is None else threads,
            fast=fast or "auto",
        )
    report = quantised.report
    quantised.save(path)
    if onnx is not None:
        write(onnx, report.onnx())
    if png is not None:
        picture.save_mixes(png, f"{model.name}: error against time", report)
    if json:
        print_json({"output": str(path), "bytes": path.stat().st_size, **report.as_dict()})
        return
    out.print(str(report), highlight=False, markup=False)
    facts(
        {
            "wrote": "  ".join(f"{p} ({bytes_text(p.stat().st_size)})" for p in (path, onnx, png) if p is not None),
            "took": time_text(time.perf_counter() - start),
        }
    )
