"""`tilewright export`: a model for another compiler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.common import DimOption, parse_ranges
from tilewright.cli.models import SourceArgument, check_output, source, write


def export(
    model: SourceArgument,
    to: Annotated[str, typer.Option("--to", help="The language: stablehlo, linalg or onnx.")] = "stablehlo",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file; the output if none.")] = None,
    dim: DimOption = None,
) -> None:
    """Write a model, before anything is lowered, for another compiler.

    In the texts of stablehlo and linalg weights are arguments after the inputs, so that the file has none of them. An
    ONNX file has them all.

    ```
    tilewright export policy.onnx --to stablehlo -o policy.mlir
    tilewright export policy.onnx --dim batch=8 | iree-compile --iree-input-type=stablehlo -
    tilewright export policy.mlir --to onnx -o policy.onnx
    ```
    """
    from tilewright.codegen.linalg import linalg_text
    from tilewright.codegen.onnx import onnx_model
    from tilewright.codegen.stablehlo import stablehlo_text
    from tilewright.frontend.read import import_model

    languages = {"stablehlo": stablehlo_text, "linalg": linalg_text}
    if to not in (*languages, "onnx"):
        raise typer.BadParameter(f"there is no {to!r}", param_hint="--to: stablehlo, linalg or onnx")
    if output is None and to == "onnx" and sys.stdout.isatty():
        raise typer.BadParameter("an ONNX file is no text: name a file, or pipe it", param_hint="--output")
    named = source(model)
    check_output(output, named.files, "--output")
    read = import_model(named.model, parse_ranges(dim), named.example)
    if to == "onnx":
        data = onnx_model(read.graph, read.weights).SerializeToString()
    else:
        data = languages[to](read.graph).encode()
    if output is None:
        sys.stdout.buffer.write(data)
    else:
        write(output, data)
