"""`tilewright run`: run a model on files or random inputs, look at the outputs, compare them with expected ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tilewright.cli.common import (
    DimOption,
    Exit,
    FallbackOption,
    FastOption,
    JsonOption,
    PrecisionOption,
    SeedOption,
    TargetOption,
    ThreadsOption,
    is_quiet,
    out,
    parse_ranges,
    print_json,
    refuse_unused,
    shape_text,
    table,
    time_text,
)
from tilewright.cli.inputs import Array, read_arrays, read_inputs
from tilewright.cli.models import ModelArgument, call_sizes, check_output, open_any
from tilewright.runtime.examples import random_inputs
from tilewright.support.errors import CallError, Problems
from tilewright.support.progress import progress


def run(
    context: typer.Context,
    model: ModelArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="[NAME=]FILE", help="An .npy, .npz or .pb file; inputs not given are random."
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the outputs to this .npz file.")] = None,
    expect: Annotated[
        Path | None, typer.Option(help="Compare the outputs with this .npz file; exit code 3 if they differ.")
    ] = None,
    rtol: Annotated[float, typer.Option(help="Allowed error, relative to the output's largest magnitude.")] = 1e-4,
    repeat: Annotated[int, typer.Option(min=1, help="Calls; the median time is shown.")] = 1,
    profile: Annotated[bool, typer.Option("--profile", help="Show the time of each kernel.")] = False,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    dim: DimOption = None,
    precision: PrecisionOption = None,
    fast: FastOption = None,
    target: TargetOption = None,
    fallback: FallbackOption = "auto",
    json: JsonOption = False,
) -> None:
    """Run a model and show its outputs.

    ```
    tilewright run policy.tw
    tilewright run policy.onnx -i obs=obs.npy --save out.npz
    tilewright run policy.tw -i inputs.npz --expect out.npz
    ```
    """
    dims = parse_ranges(dim)
    refuse_unused(context, {} if expect else {"rtol": "without --expect"})
    refuse_unused(context, {"fallback": "on a compiled file"} if model.suffix == ".tw" else {})
    read = [model, *(Path(text.partition("=")[2] or text) for text in inputs or ()), *([expect] if expect else [])]
    check_output(_npz(save), read, "--save")
    with progress(f"compile {model.name}", enabled=not is_quiet(json)):
        compiled = open_any(model, threads, dims, precision, fast, target, fallback)
    arrays = read_inputs(inputs or [], compiled.inputs)
    if arrays and len(arrays) == len(compiled.inputs):
        refuse_unused(context, {"seed": "where all inputs are given"})
    arguments = input_sizes(compiled.inputs, arrays)
    check_sizes(dims, arguments)
    arrays = random_inputs(compiled.inputs, call_sizes(compiled, dims) | arguments, seed) | arrays
    results, times = {}, []
    for _ in range(repeat):
        start = time.perf_counter()
        results = compiled.run(arrays)
        times.append(time.perf_counter() - start)
    result = {name: _as_array(value) for name, value in results.items()}
    if save:
        _save(save, result)
    differences = compare(result, expect, rtol) if expect else []
    report = {
        "outputs": [_summary(name, array) for name, array in result.items()],
        "seconds": float(np.median(times)),
        "differences": differences,
    }
    kernels = compiled.profile(*[arrays[spec.name] for spec in compiled.inputs]) if profile else None
    if kernels and json:
        report["profile"] = asdict(kernels)
    _print(report, repeat, expect is not None, json)
    if kernels and not json:
        print(f"\n{kernels}")
    if any(not d["equal"] for d in differences):
        raise typer.Exit(Exit.MISMATCH)


def check_sizes(dims: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Raise CallError if an extent that the user stated by `--dim` (in `dims`, by symbol) differs from the extent in
    the input files (in `sizes`)."""
    problems = Problems()
    for name, size in sizes.items():
        if isinstance(said := dims.get(name), int) and said != size:
            problems.add(CallError(f"--dim {name}={said} is not the size of the inputs", expected=said, got=size))
    problems.raise_if_any("inputs do not fit")


def _npz(path: Path | None) -> Path | None:
    """The file name that NumPy writes for this path, which ends with .npz."""
    return path if path is None or path.suffix == ".npz" else path.with_name(f"{path.name}.npz")


def _save(path: Path, arrays: dict[str, Array]) -> None:
    try:
        np.savez(path, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise CallError(f"cannot be written: {error.strerror}", where=str(path)) from None


def compare(result: dict[str, Array], expect: Path, rtol: float) -> list[dict[str, Any]]:
    """For each output in the file `expect`, its largest error relative to the largest expected magnitude, and whether
    that is at most `rtol`, as data for JSON."""
    wanted = read_arrays(expect)
    if not isinstance(wanted, dict):
        raise CallError("holds no outputs by name", where=str(expect), expected="an .npz file")
    return [difference(name, result.get(name), array, rtol) for name, array in wanted.items()]


def difference(name: str, result: Array | None, wanted: Array, rtol: float) -> dict[str, Any]:
    """The output `result` called `name` compared with the expected array `wanted`, as data for JSON: its error relative
    to the largest expected number, and whether that is at most `rtol`. None as result is a missing output."""
    if result is None or result.shape != wanted.shape:
        got = "no such output" if result is None else f"shape {result.shape} in place of {wanted.shape}"
        return {"output": name, "equal": False, "error": got}
    if wanted.size == 0:
        return {"output": name, "equal": True, "error": 0.0}
    a, b = result.astype(np.float64), wanted.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        distance = np.where(same, 0.0, np.abs(a - b))
    finite = np.abs(b[np.isfinite(b)])
    error = float(distance.max() / max(finite.max() if finite.size else 0.0, 1e-30))
    return {"output": name, "equal": bool(error <= rtol), "error": error}


def input_sizes(specs: Any, arrays: dict[str, Array]) -> dict[str, int]:
    """The values of symbols that the shapes of these arrays determine, by the inputs' declarations `specs`."""
    sizes: dict[str, int] = {}
    for spec in specs:
        array = arrays.get(spec.name)
        if array is not None and array.ndim == len(spec.shape):
            sizes |= {d: n for d, n in zip(spec.shape, array.shape, strict=True) if isinstance(d, str)}
    return sizes


def _as_array(value: Any) -> Array:
    """An output as an array; a sequence or None becomes an array of objects."""
    if isinstance(value, list) or value is None:
        array = np.empty(len(value or ()), object)
        array[:] = value or []
        return array
    return np.asarray(value)


def _summary(name: str, array: Array) -> dict[str, Any]:
    if array.dtype.kind in "OUS":
        return {"name": name, "type": shape_text(str(array.dtype), array.shape), "first": []}
    values = array.astype(np.float64).ravel()
    numbers = {"min": values.min(), "max": values.max(), "mean": values.mean()} if values.size else {}
    return {
        "name": name,
        "type": shape_text(str(array.dtype), array.shape),
        **{key: float(value) for key, value in numbers.items()},
        "first": [float(v) for v in values[:4]],
    }


def _print(report: dict[str, Any], repeat: int, compared: bool, json: bool) -> None:
    if json:
        print_json(report)
        return
    rows = [
        [o["name"], o["type"], *(f"{o[k]:.5g}" if k in o else "-" for k in ("min", "max", "mean"))]
        + [" ".join(f"{v:.5g}" for v in o["first"])]
        for o in report["outputs"]
    ]
    table("", ["output", "type", "min", "max", "mean", "first values"], rows, left=2)
    out.print(f"{'median of ' + str(repeat) + ' calls' if repeat > 1 else 'one call'}: {time_text(report['seconds'])}")
    if compared:
        verdicts = [
            [
                d["output"],
                d["error"] if isinstance(d["error"], str) else f"{d['error']:.2e}",
                "yes" if d["equal"] else "NO",
            ]
            for d in report["differences"]
        ]
        table("", ["output", "relative error", "as expected"], verdicts)
