"""Models that `tilewright bench` compares: compiled once before the race, and as ONNX files for rivals."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cli import peers
from tilewright.cli.common import accuracy
from tilewright.cli.models import Named, compile_source, named, open_model
from tilewright.measure.contender import save_arrays
from tilewright.measure.paired import Contender
from tilewright.runtime.examples import random_inputs, usual_sizes
from tilewright.runtime.specs import InputSpec, SymbolSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, ModelError

if TYPE_CHECKING:
    from tilewright.ir.dim import Dim


@dataclass(frozen=True, slots=True)
class Choices:
    """The user's choices: threads of a call, parallel streams, dimensions, options of the compiler, the seed of inputs,
    the rivals by name."""

    threads: int
    streams: int
    dims: Mapping[str, int | Dim]
    precision: str | None
    fast: str | None
    target: str | None
    seed: int
    rivals: tuple[str, ...]

    def stating(self, dims: Mapping[str, int | Dim]) -> Choices:
        """A copy of the choices with the dimensions `dims`."""
        return replace(self, dims=dims)


@dataclass(frozen=True, slots=True)
class Entry:
    """A model whose calls are timed against those of other runtimes.

    Args:
        name: of the model, for people.
        ours: the compiled file; the ONNX file itself if parts of it run in another runtime.
        theirs: the ONNX file for rivals; None if there is none, with the reason `why`.
        inputs, symbols: of the compiled program; no inputs where the ONNX file alone declares them.
        seconds: that compiling took, None if it was compiled before or compiles in its contender.
        remark: what people should know of it.
    """

    name: str
    ours: Path
    theirs: Path | None
    why: str
    inputs: tuple[InputSpec, ...]
    symbols: tuple[SymbolSpec, ...]
    seconds: float | None
    remark: str = ""

    def contenders(self, choices: Choices, sizes: Mapping[str, int], folder: Path, *, fixed: bool) -> list[Contender]:
        """Tilewright and the rivals, on inputs with these sizes of symbols, which are written to `folder`; `fixed`: the
        race has no other sizes."""
        stated = {name: said for name, said in choices.dims.items() if isinstance(said, int)} | dict(sizes)
        path = folder / "inputs.npz"
        if self.inputs:
            arrays = random_inputs(self.inputs, usual_sizes(self.symbols) | stated, choices.seed)
        else:
            arrays = peers.declared_inputs(str(self.ours), stated, choices.seed)
        save_arrays(str(path), arrays)
        shared = {"inputs": str(path), "threads": choices.threads, "streams": choices.streams}
        ours: dict[str, Any] = {"path": str(self.ours), "compile_seconds": self.seconds, **shared}
        if self.ours.suffix != ".tw":
            options = accuracy(choices.precision, choices.fast)
            ours |= {"dims": stated if fixed else {}, "options": options, "target": choices.target}
        created = [Contender("tilewright", peers.TILEWRIGHT, ours)]
        for rival in choices.rivals if self.theirs is not None else ():
            extra = {"fixed": fixed} if rival == "openvino" else {}
            created.append(Contender(rival, peers.RIVALS[rival], {"path": str(self.theirs), **shared, **extra}))
        return created


def entry(path: Path, choices: Choices, folder: Path) -> Entry:
    """The model at `path`, compiled as by `tilewright compile` into `folder`, as an entry of a race; raises the same
    errors."""
    options = choices.precision, choices.fast, choices.target
    if path.suffix == ".tw":
        model = open_model(path, choices.threads, choices.dims, *options)
        why = "a compiled file holds no model for others: race the model it was compiled from"
        return Entry(path.stem, path, None, why, model.inputs, model.manifest.symbols, None)
    read = named(path)
    start = time.perf_counter()
    try:
        program = compile_source(read, choices.threads, choices.dims, *options)
    except ModelError as error:
        if not _falls_back(read, error):
            raise
        remark = "parts of it are not compiled and run elsewhere (`tilewright coverage` lists them)"
        return Entry(read.stem, path, path, "", (), (), None, remark)
    seconds = time.perf_counter() - start
    ours = folder / "model.tw"
    program.save(ours, texts=())
    theirs, remark = (None, "") if not choices.rivals else _for_rivals(read, choices, folder)
    manifest = program.manifest
    why = "" if theirs else remark
    return Entry(read.stem, ours, theirs, why, manifest.arguments, manifest.symbols, seconds, remark if theirs else "")


def _falls_back(read: Named, error: Error) -> bool:
    """Whether `tilewright.compile` would compile the model in parts after this error."""
    if read.path.suffix != ".onnx" or read.path not in read.files:
        return False
    from tilewright.frontend.onnx.load import load
    from tilewright.parts.entry import can_fall_back

    try:
        return can_fall_back(error, load(read.path))
    except ModelError:
        return False


def _for_rivals(read: Named, choices: Choices, folder: Path) -> tuple[Path | None, str]:
    """(an ONNX file of the model that rivals can read, a remark about it): the user's file, or a new one in `folder`;
    None if there is none."""
    if read.path in read.files and read.path.suffix == ".onnx":
        return read.path, ""
    from tilewright.codegen.onnx import onnx_model
    from tilewright.frontend.read import import_model

    path = folder / "model.onnx"
    try:
        graph = import_model(read.model, choices.dims, read.example)
        path.write_bytes(onnx_model(graph.graph, graph.weights).SerializeToString())
    except Error as error:
        return None, f"the model has no ONNX form for others: {error.headline()}"
    return path, "rivals run the ONNX file that `tilewright export --to onnx` makes of it"


__all__ = ["Choices", "Entry", "entry"]
