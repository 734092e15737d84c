"""`tilewright bundle`: a model as files for C, C++ and Rust."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.common import (
    CacheOption,
    DimOption,
    FastOption,
    JsonOption,
    PrecisionOption,
    RecordsOption,
    StateOption,
    TargetOption,
    bytes_text,
    facts,
    is_quiet,
    parse_ranges,
    parse_state,
    print_json,
)
from tilewright.cli.models import ModelArgument, compile_source, named
from tilewright.support.progress import progress


def bundle(
    model: ModelArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to write. [default: the model's name]")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="How functions and files begin. [default: the model's name]")
    ] = None,
    lang: Annotated[str, typer.Option("--lang", help="The language of the example: c, cpp or rust.")] = "c",
    embed: Annotated[bool, typer.Option("--embed", help="Put the weights into the object.")] = False,
    rows: Annotated[
        int | None,
        typer.Option("--rows", help="Rows of memory where nothing bounds them: a decoder's tokens, boxes found."),
    ] = None,
    threads: Annotated[
        int, typer.Option("--threads", help="Threads of a call; the pool is a second object, or in the module.")
    ] = 1,
    dim: DimOption = None,
    state: StateOption = None,
    cache: CacheOption = None,
    precision: PrecisionOption = None,
    fast: FastOption = None,
    target: TargetOption = None,
    records: RecordsOption = None,
    json: JsonOption = False,
) -> None:
    """Write a model as an object, a header, weights and an example, for builds without Tilewright and Python.

    All memory is the caller's; sizes are numbers in the header. Every dimension needs a number or a bound.

    ```
    tilewright bundle policy.onnx --dim batch=1 -o policy
    tilewright bundle policy.onnx --dim batch=1..64 --lang rust -o policy
    tilewright bundle decoder.onnx --state auto --rows 512 --dim batch=1 --dim seq=1..16
    tilewright bundle policy.onnx --dim batch=1 --target neoverse-n1 --embed
    ```
    """
    from tilewright.runtime.artifact import read

    source = named(model)
    with progress(f"bundle {model.name}", enabled=not is_quiet(json)):
        if source.is_compiled:
            program, _ = read(model)
        else:
            program = compile_source(
                source,
                threads,
                parse_ranges(dim),
                precision,
                fast,
                target,
                records=records or "auto",
                state=parse_state(state),
                cache=cache or "as is",
            )
        paths = program.bundle(
            output or Path(source.stem), name=name, lang=lang, embed=embed, rows=rows, threads=threads
        )
    if json:
        print_json({"files": {str(p): p.stat().st_size for p in paths}})
        return
    facts({str(p): bytes_text(p.stat().st_size) for p in paths})
