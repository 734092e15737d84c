"""`tilewright compile`: from a model file to one `.tw` file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.common import (
    CacheOption,
    CompilersOption,
    DimOption,
    FastOption,
    JsonOption,
    PrecisionOption,
    RaggedOption,
    RecordsOption,
    RequireRecordsOption,
    StateOption,
    TargetOption,
    ThreadsOption,
    bytes_text,
    facts,
    is_quiet,
    parse_compilers,
    parse_ragged,
    parse_ranges,
    parse_state,
    print_json,
    shape_text,
    time_text,
)
from tilewright.cli.models import SourceArgument, check_output, compile_source, source
from tilewright.runtime.recorded import summary
from tilewright.support.progress import progress

if TYPE_CHECKING:
    from tilewright.runtime.model import Model
    from tilewright.runtime.program import Program


def compile_command(
    model: SourceArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write. [default: MODEL's name with the suffix .tw]"),
    ] = None,
    threads: ThreadsOption = None,
    dim: DimOption = None,
    state: StateOption = None,
    cache: CacheOption = None,
    ragged: RaggedOption = None,
    precision: PrecisionOption = None,
    fast: FastOption = None,
    target: TargetOption = None,
    compilers: CompilersOption = None,
    records: RecordsOption = None,
    require_records: RequireRecordsOption = False,
    json: JsonOption = False,
) -> None:
    """Compile a model to one file: native code, weights and description.

    The file runs wherever Tilewright is installed on a CPU with the same features; nothing is compiled there. With
    `--target` it is for another machine than this one.

    ```
    tilewright compile policy.onnx -o policy.tw
    tilewright compile resnet50.onnx --threads 2 --dim batch=1
    tilewright compile policies.py:make_actor
    tilewright compile bert.onnx --dim seq=1..512@32,64,128
    tilewright compile decoder.onnx --state auto --cache int8
    tilewright compile policy.onnx --target aarch64-neoverse-v1
    tilewright compile resnet50.onnx --fast exact
    ```
    """
    read = source(model)
    path = output or (model.with_suffix(".tw") if model in read.files else Path(f"{read.stem}.tw"))
    check_output(path, read.files, "--output")
    start = time.perf_counter()
    with progress(f"compile {model.name}", enabled=not is_quiet(json)):
        compiled = compile_source(
            read,
            threads,
            parse_ranges(dim),
            precision,
            fast,
            target,
            records=records or "auto",
            require_records=require_records,
            state=parse_state(state),
            cache=cache or "as is",
            ragged=parse_ragged(ragged),
            compilers=parse_compilers(compilers),
        )
    seconds = time.perf_counter() - start
    compiled.save(path)
    report = {"output": str(path), "bytes": path.stat().st_size, "seconds": seconds, **describe(compiled)}
    if json:
        print_json(report)
        return
    facts(
        {
            "wrote": f"{path} ({bytes_text(report['bytes'])})",
            "compiled in": time_text(seconds),
            "inputs": "  ".join(report["inputs"]),
            "outputs": "  ".join(report["outputs"]),
            "kernels": f"{report['kernels']} at each call, {report['prepare_kernels']} when weights change",
            "accuracy": f"products in {report['precision']}, fast algorithms {report['fast']}",
            "records": report["records"],
            "weights": f"{report['weights']} ({bytes_text(report['weight_bytes'])})",
        }
    )


def describe(model: Model | Program) -> dict[str, Any]:
    """A description of a compiled model, as data for JSON."""
    manifest = model.manifest
    return {
        "name": manifest.name,
        "inputs": [f"{i.name}: {shape_text(i.dtype, i.shape)}" for i in manifest.arguments],
        "outputs": [f"{o.name}: {shape_text(o.dtype, o.shape)}" for o in manifest.outputs],
        "kernels": sum(s.region is None for s in manifest.run_steps),
        "prepare_kernels": len(manifest.prepare_steps),
        "weights": len(manifest.params),
        "weight_bytes": sum(p.nbytes for p in manifest.params),
        "precision": manifest.precision,
        "fast": manifest.fast,
        "records": summary(manifest.records),
        "structure_key": manifest.structure_key,
    }
