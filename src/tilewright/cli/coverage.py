"""`tilewright coverage`: what of a model is compiled, in which parts the rest runs, and why."""

from __future__ import annotations

import importlib
import runpy
from typing import Annotated, Any

import typer

from tilewright.cli.common import DimOption, JsonOption, parse_dims, print_json


def coverage(
    model: Annotated[
        str,
        typer.Argument(
            help="An .onnx file; or package.module:function or file.py:function, which gives a PyTorch module and an "
            "example of its inputs."
        ),
    ],
    dim: DimOption = None,
    json: JsonOption = False,
) -> None:
    """Show which operators of a model are compiled, in which parts the others run, by whom, and why.

    Nothing is compiled for it of an ONNX file; a PyTorch module is run once, as `torch.compile` runs it.

    ```
    tilewright coverage detector.onnx
    tilewright coverage detector.onnx --json
    tilewright coverage policies.py:make_actor
    ```
    """
    import tilewright

    found, example = made(model) if ":" in model and not model.endswith(".onnx") else (model, None)
    report = tilewright.coverage(found, example, dims=parse_dims(dim))
    if json:
        print_json(report.to_dict())
        return
    print(report)


def made(name: str) -> tuple[Any, Any]:
    """The module and the example that a function gives, by the name of its file or module and its own.

    Raises typer.BadParameter where there is no such function, or it gives something else.
    """
    place, _, function = name.rpartition(":")
    try:
        names = runpy.run_path(place) if place.endswith(".py") else vars(importlib.import_module(place))
        pair = names[function]()
    except (ImportError, OSError, KeyError) as error:
        raise typer.BadParameter(f"there is no {name}: {error}", param_hint="MODEL") from None
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise typer.BadParameter(f"{name} gives {type(pair).__name__}, not (module, example)", param_hint="MODEL")
    return pair
