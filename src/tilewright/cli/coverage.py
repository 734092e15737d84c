"""`tilewright coverage`: what of a model is compiled, in which parts the rest runs, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.common import DimOption, JsonOption, parse_dims, print_json


def coverage(
    model: Annotated[Path, typer.Argument(help="An .onnx file.")],
    dim: DimOption = None,
    json: JsonOption = False,
) -> None:
    """Show which operators of a model are compiled, in which parts the others run, by whom, and why.

    Nothing is compiled for it.

    ```
    tilewright coverage detector.onnx
    tilewright coverage detector.onnx --json
    ```
    """
    import tilewright

    report = tilewright.coverage(model, dims=parse_dims(dim))
    if json:
        print_json(report.to_dict())
        return
    print(report)
