"""`tilewright coverage`: what of a model is compiled, in which parts the rest runs, and why."""

from __future__ import annotations

import typer

from tilewright.cli.common import (
    CompilersOption,
    DimOption,
    JsonOption,
    parse_compilers,
    parse_ranges,
    print_json,
    refuse_unused,
)
from tilewright.cli.models import SourceArgument, source
from tilewright.support.errors import ModelError


def coverage(
    context: typer.Context,
    model: SourceArgument,
    dim: DimOption = None,
    compilers: CompilersOption = None,
    json: JsonOption = False,
) -> None:
    """Show which operators of a model are compiled, in which parts the others run, by whom, and why.

    MODEL is an ONNX file, or gives a PyTorch module: other models are compiled whole or not at all. Nothing is
    compiled for it of an ONNX file; a PyTorch module is run once, as `torch.compile` runs it.

    ```
    tilewright coverage detector.onnx
    tilewright coverage detector.onnx --json
    tilewright coverage resnet50.onnx --compilers onnxruntime
    tilewright coverage policies.py:make_actor
    ```
    """
    import tilewright
    from tilewright.frontend import stablehlo
    from tilewright.frontend.read import from_torch

    named = source(model)
    result, example = named.model, named.example
    if example is not None or from_torch(result):
        refuse_unused(context, {"dim": "on a PyTorch module, which is run on its example"})
    if stablehlo.reads(result):
        hint = "`tilewright show --graph` lists the operators of others, which are compiled whole"
        raise ModelError("coverage is of ONNX files and of PyTorch modules", where=str(model), hint=hint)
    report = tilewright.coverage(result, example, dims=parse_ranges(dim), compilers=parse_compilers(compilers))
    if json:
        print_json(report.to_dict())
        return
    print(report)
