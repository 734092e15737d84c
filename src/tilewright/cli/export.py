"""`tilewright export`: a model for another compiler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.common import DimOption, ModelArgument, parse_dims


def export(
    model: ModelArgument,
    to: Annotated[str, typer.Option("--to", help="The language: stablehlo or linalg.")] = "stablehlo",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file; the output if none.")] = None,
    dim: DimOption = None,
) -> None:
    """Write a model, before anything is lowered, as text for another compiler.

    Weights are arguments behind the inputs, so that the file has none of them.

    ```
    tilewright export policy.onnx --to stablehlo -o policy.mlir
    tilewright export policy.onnx --dim batch=8 | iree-compile --iree-input-type=stablehlo -
    ```
    """
    from tilewright.codegen.linalg import linalg_text
    from tilewright.codegen.stablehlo import stablehlo_text
    from tilewright.compiler import import_model

    languages = {"stablehlo": stablehlo_text, "linalg": linalg_text}
    if to not in languages:
        raise typer.BadParameter(f"there is no {to!r}", param_hint="--to: stablehlo or linalg")
    text = languages[to](import_model(model, parse_dims(dim)).graph)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text)
