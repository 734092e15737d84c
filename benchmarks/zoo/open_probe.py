"""Compiles one architecture of `opened` by one door in this process and compares it with eager PyTorch; prints a row.

    python -m benchmarks.zoo.open_probe NAME module|torchscript|dynamo [--memory 4] [--files FOLDER]

The doors: the module itself, and the ONNX files of PyTorch's two exporters. `bench_transformers` starts it.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import resource
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import torch

import tilewright as tw
from benchmarks.zoo.opened import Opened, opened
from benchmarks.zoo.probe import WrongError, compare

DOORS = ("module", "torchscript", "dynamo")


@dataclass(slots=True)
class Row:
    """The outcome of one architecture at one door.

    outcome   "whole" (one native program, right at all sizes), "wrong", "refused", "not exported" (PyTorch's exporter
              made no file, or one that is another function than the module), "crashed", "time limit"
    right     sizes at which it was right
    export, compile   seconds of PyTorch's exporter to a file, and of `tw.compile`
    detail    why not
    """

    name: str
    door: str
    outcome: str
    right: int = 0
    export: float | None = None
    compile: float | None = None
    detail: str = ""


class ExportError(Exception):
    """PyTorch's exporter gives no file."""


def exported(case: Opened, tensors: tuple[torch.Tensor, ...], door: str, folder: Path) -> Path:
    """The ONNX file of one of PyTorch's exporters, or the one that is in the folder from an earlier run."""
    path, names = folder / "model.onnx", list(case.axes)
    if path.exists():
        return path
    try:
        with torch.no_grad():
            if door == "torchscript":
                torch.onnx.export(
                    case.module, tensors, str(path), dynamo=False, input_names=names, dynamic_axes=case.axes
                )
            else:
                free = [dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in case.axes.values()]
                alone = len(arguments(case)) - 1
                torch.onnx.export(
                    case.module,
                    tensors,
                    str(path),
                    dynamo=True,
                    input_names=names,
                    dynamic_shapes=(*free[:alone], tuple(free[alone:])),
                    verbose=False,
                )
    except Exception as error:  # PyTorch's own, of any kind
        reason = error.__cause__ or error
        raise ExportError(f"{type(reason).__name__}: {message(reason)}") from error
    return path


def probe(name: str, door: str, files: Path | None = None) -> Row:
    case, row = opened(name), Row(name, door, "refused")
    first = tuple(case.tensors(case.sizes[0]).values())
    with folder_of(files, f"{name}-{door}-{torch.__version__}") as folder:
        try:
            model: Any
            if door == "module":
                start = time.perf_counter()
                model = tw.compile(case.module, first, dynamic=named(case))
            else:
                start = time.perf_counter()
                path = exported(case, first, door, folder)
                row.export, start = time.perf_counter() - start, time.perf_counter()
                model = tw.compile(path, fallback="never")
            row.compile = time.perf_counter() - start
        except tw.Error as refusal:
            row.compile, row.detail = time.perf_counter() - start, message(refusal)
            return row
        except ExportError as error:
            row.outcome, row.detail = "not exported", str(error)
            return row
        checked(case, model, row)
        if row.outcome == "wrong" and door != "module" and not is_the_module(case, path):
            row.outcome = "not exported"
            row.detail = f"the exporter's file is another function than the module, as ONNX Runtime says: {row.detail}"
    return row


@contextlib.contextmanager
def folder_of(files: Path | None, name: str) -> Iterator[Path]:
    """A folder for an exporter's file: one that stays, or one that goes afterwards."""
    if files is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        (files / name).mkdir(parents=True, exist_ok=True)
        yield files / name


def is_the_module(case: Opened, path: Path) -> bool:
    """Whether ONNX Runtime finds the module's results in a file at all sizes: an exporter that follows a run of the
    module writes a loop over a sequence as the steps of that run."""
    session = onnxruntime.InferenceSession(path)
    names = [i.name for i in session.get_inputs()]
    for sizes in case.sizes:
        tensors = list(case.tensors(sizes).values())
        with torch.no_grad():
            expected = case.module(*tensors)
        try:
            result = session.run(None, {n: t.numpy() for n, t in zip(names, tensors, strict=True)})
            compare(expected, [torch.as_tensor(t) for t in result])
        except Exception:  # ONNX Runtime's, of any kind, or a WrongError
            return False
    return True


def arguments(case: Opened) -> list[str]:
    """The names of the arguments of the module's `forward`; the last one takes all that are left."""
    return list(inspect.signature(case.module.forward).parameters)


def named(case: Opened) -> dict[str, dict[int, str]]:
    """The axes by the names that a module's arguments have."""
    *own, rest = arguments(case)
    names = [*own, *(f"{rest}_{k}" for k in range(len(case.axes) - len(own)))]
    return dict(zip(names, case.axes.values(), strict=True))


def checked(case: Opened, model: Any, row: Row) -> Row:
    """The row after calls with all sizes."""
    for sizes in case.sizes:
        tensors = list(case.tensors(sizes).values())
        with torch.no_grad():
            expected = case.module(*tensors)
        try:
            got = model(*tensors)
            compare(expected, [torch.as_tensor(t) for t in (got if isinstance(got, tuple) else (got,))])
        except (tw.Error, WrongError) as error:
            row.outcome = "wrong"
            row.detail = row.detail or f"{dict(sizes)}: {message(error)}"
        else:
            row.right += 1
    if row.right == len(case.sizes):
        row.outcome = "whole"
    return row


def message(error: BaseException) -> str:
    """An error in one line, with what it expected and got."""
    problems = error.each() if isinstance(error, tw.Error) else [error]
    return "; ".join(dict.fromkeys(" ".join(str(p).split()) for p in problems))[:400]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.open_probe", description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("door", choices=DOORS)
    parser.add_argument("--memory", type=float, default=4, help="GB that this process may have")
    parser.add_argument("--files", type=Path, help="where exporters' files stay, and are taken from")
    options = parser.parse_args()
    limit = int(options.memory * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    warnings.simplefilter("ignore")
    row = probe(options.name, options.door, options.files)
    print(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
