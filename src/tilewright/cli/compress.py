"""`tilewright compress`: a model to a small file, within a loss that is named."""

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
from tilewright.cli.models import SourceArgument, check_output, source
from tilewright.cli.samples import DataOption, with_samples
from tilewright.support import flags
from tilewright.support.progress import progress


def compress(
    model: SourceArgument,
    data: DataOption,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write. [default: MODEL's name with the suffix .tw]"),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option("--recipe", metavar="FILE", help="A TOML file. [default: recipes from strong to mild are tried]"),
    ] = None,
    max_drop: Annotated[
        float,
        typer.Option("--max-drop", metavar="X", help="By how much 1 - (relative error of the outputs) may fall."),
    ] = 0.01,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="Draw error against bytes of the recipes tried.")
    ] = None,
    threads: ThreadsOption = None,
    dim: DimOption = None,
    fast: FastOption = None,
    json: JsonOption = False,
) -> None:
    """Compress a model: prune and share weights, train what is left to follow the original on samples, and write one
    small compiled file.

    ```
    tilewright compress digits.onnx --data digits.npz
    tilewright compress policy.onnx --data observations.npy --recipe recipe.toml -o small.tw
    ```
    """
    import tilewright

    picture.check(png)
    read = source(model)
    path = output or (model.with_suffix(".tw") if model in read.files else Path(f"{read.stem}.tw"))
    inputs = (*read.files, data, *((recipe,) if recipe is not None else ()))
    for file, option in ((path, "--output"), (png, "--png")):
        check_output(file, inputs, option)
    start = time.perf_counter()
    with progress(f"compress {model.name}", enabled=not is_quiet(json)):
        imported, samples = with_samples(read, data, parse_ranges(dim))
        small = tilewright.compress(
            imported,
            calibrate=samples,
            recipe=recipe,
            max_drop=max_drop,
            threads=flags.THREADS() if threads is None else threads,
            fast=fast or "auto",
        )
    small.save(path, compressed=True)
    if png is not None:
        picture.save_tries(png, f"{model.name}: error against bytes", small.report)
    if json:
        print_json({"output": str(path), "file_bytes": path.stat().st_size, **small.report.as_dict()})
        return
    out.print(str(small.report), highlight=False, markup=False)
    facts(
        {
            "wrote": "  ".join(f"{p} ({bytes_text(p.stat().st_size)})" for p in (path, png) if p is not None),
            "took": time_text(time.perf_counter() - start),
        }
    )
