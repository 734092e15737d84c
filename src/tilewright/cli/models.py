"""Models named on the command line: files of several formats, compiled files, functions that return a model. All
commands read and compile models by the functions here."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tilewright.cli.common import UsageError, accuracy, err, on_host
from tilewright.runtime.examples import usual_sizes
from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, MissingPackageError, ModelError, Problems, UnsupportedError
from tilewright.support.files import replacing
from tilewright.support.options import check_choice

if TYPE_CHECKING:
    from tilewright.ir.dim import Dim
    from tilewright.parts.composite import Composite
    from tilewright.runtime.model import Model
    from tilewright.runtime.program import Program
    from tilewright.runtime.runner import Runner
    from tilewright.runtime.specs import SymbolSpec

FORMS = (
    ".onnx, .pt2 (torch.export), .mlir (StableHLO) and .tflite files; package.module:function or file.py:function, "
    "which gives a model, or a PyTorch module and an example of its inputs"
)
ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help=f"A .tw file that was compiled before, or a model: {FORMS}.")
]
SourceArgument = Annotated[Path, typer.Argument(metavar="MODEL", help=f"The model: {FORMS}.")]


@dataclass(frozen=True, slots=True)
class Named:
    """A model that the command line names.

    Args:
        path: as the user wrote it.
        model, example: arguments of `tilewright.compile`; `model` is the path if compile reads that file itself.
        files: those that are read for it, which no output may overwrite.
    """

    path: Path
    model: Any
    example: Any = None
    files: tuple[Path, ...] = ()

    @property
    def is_compiled(self) -> bool:
        from tilewright.frontend.common.contents import is_compiled

        return is_compiled(self.path)

    @property
    def stem(self) -> str:
        """The stem of names of files derived from the model: the file's stem, or the function's name."""
        return self.path.stem if self.files and self.files[0] == self.path else str(self.path).rpartition(":")[2]


def named(path: Path) -> Named:
    """The model that a path or `file.py:function` refers to. Raises ModelError for a file that does not exist or that
    holds no model, MissingPackageError where reading it needs a package that is not installed, and typer.BadParameter
    for a function that does not exist."""
    from tilewright.frontend.read import is_exported_file, load_exported

    text = str(path)
    if text.rpartition(":")[2].isidentifier() and ":" in text and not path.exists():
        place = Path(text.rpartition(":")[0])
        return Named(path, *_model_of(text, called_by_name(text)), files=(place,) if place.suffix == ".py" else ())
    if not path.exists():
        raise ModelError("no such file", where=text)
    if path.suffix == ".py":
        raise typer.BadParameter(f"{text} is a Python file: name a function in it, {text}:function", param_hint="MODEL")
    return Named(path, load_exported(path) if is_exported_file(path) else path, files=(path,))


def source(path: Path) -> Named:
    """The model that a path or `file.py:function` refers to, as `named` returns it. Raises typer.BadParameter for a
    compiled file, too."""
    from tilewright.frontend.common.contents import is_compiled

    if is_compiled(path):
        raise typer.BadParameter(f"{path} is compiled already", param_hint="MODEL")
    return named(path)


def called_by_name(name: str) -> Any:
    """The result of the function that `file.py:function` or `module:function` names; modules are also looked for in the
    current folder. Raises typer.BadParameter if there is no such function, ModelError if it fails."""
    place, _, function = name.rpartition(":")
    before = list(sys.path)
    try:
        if place.endswith(".py"):
            if not os.path.isfile(place):
                raise typer.BadParameter(f"there is no {name}: there is no file {place}", param_hint="MODEL")
            names = runpy.run_path(place)
        else:
            sys.path.insert(0, os.getcwd())
            names = vars(importlib.import_module(place))
        if function not in names:
            own = [n for n, v in names.items() if getattr(v, "__module__", None) == names["__name__"] and callable(v)]
            raise typer.BadParameter(
                f"there is no {name}: {place} has {', '.join(own[:9]) or 'no functions'}", param_hint="MODEL"
            )
        if hasattr(names[function], "forward"):  # calling a module would run it
            raise typer.BadParameter(f"{name} is a module: a function is needed that gives it", param_hint="MODEL")
        if not callable(names[function]):
            what = f"{name} is of type {type(names[function]).__name__}: a function is needed"
            raise typer.BadParameter(what, param_hint="MODEL")
        return names[function]()
    except ModuleNotFoundError as error:
        if error.name is None or not place.startswith(error.name):
            what = f"it needs the package {error.name}, which is not installed"
            raise MissingPackageError(what, where=name) from None
        raise typer.BadParameter(f"there is no {name}: {error}", param_hint="MODEL") from None
    except typer.BadParameter:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise ModelError(f"the function fails: {type(error).__name__}: {error}", where=name) from error
    finally:
        sys.path[:] = before


def _model_of(name: str, value: Any) -> tuple[Any, Any]:
    """(model, example inputs or None) from the result of a function that the user named."""
    from tilewright.frontend.read import from_torch
    from tilewright.frontend.stablehlo import is_jax
    from tilewright.ir.graph import Graph

    if isinstance(value, tuple) and len(value) == 2:
        return (value, None) if isinstance(value[0], Graph) else value
    if from_torch(value) or is_jax(value) or isinstance(value, Graph) or type(value).__module__.startswith("onnx"):
        return value, None
    what = f"{name} gives {type(value).__name__}, not (module, example) or a model"
    raise typer.BadParameter(what, param_hint="MODEL")


# --- what is made of them ---------------------------------------------------------------------------------------------


def compile_source(
    model: Named,
    threads: int | None,
    dims: Mapping[str, int | Dim],
    precision: str | None = None,
    fast: str | None = None,
    target: str | None = None,
    *,
    records: str = "auto",
    require_records: bool = False,
    state: Mapping[str, str] | Literal["auto"] | None = None,
    cache: str = "as is",
    ragged: tuple[str, str] | None = None,
    compilers: Sequence[str] = (),
) -> Program:
    """Compile a model for any target, without loading the result. Arguments are as in `tilewright.compile_program`;
    `threads` is the flag `TILEWRIGHT_THREADS` if None. Raises UnsupportedError, with a hint, if an operator is
    missing."""
    import tilewright

    count = flags.THREADS() if threads is None else threads
    options: dict[str, Any] = accuracy(precision, fast)
    options |= {"records": None if records == "none" else records, "require_records": require_records}
    options |= {"state": state, "cache": cache, "ragged": ragged, "compilers": compilers}
    try:
        return tilewright.compile_program(
            model.model, model.example, threads=count, dims=dict(dims), target=on_host(target), **options
        )
    except UnsupportedError as error:
        hint = f"a program needs all of the model; `tilewright run {model.path}` runs the rest elsewhere"
        error.hint = error.hint or hint
        raise


def open_model(
    path: Path,
    threads: int | None,
    dims: Mapping[str, int | Dim],
    precision: str | None = None,
    fast: str | None = None,
    target: str | None = None,
) -> Model:
    """Compile the model at `path` for `threads` threads, dimensions `dims`, `precision`, `fast` arithmetic and
    `target`, or load it if it is a compiled file, which must have been compiled with these options. None stands for an
    option's default."""
    import tilewright

    count = flags.THREADS() if threads is None else threads
    model = named(path)
    if model.is_compiled:
        machine = on_host(target)
        cpu = None if machine is None else machine.cpu
        loaded = _with_options(tilewright.load(path, threads=count), path, precision, fast, cpu)
        check_dims(dims, loaded.manifest.symbols, str(path))
        return loaded
    return tilewright.Model(compile_source(model, threads, dims, precision, fast, target), threads=count)


def open_any(
    path: Path,
    threads: int | None,
    dims: Mapping[str, int | Dim],
    precision: str | None,
    fast: str | None,
    target: str | None,
    fallback: str,
) -> Model | Composite:
    """The model at `path`, compiled or loaded with the options as `open_model` has them. If the compiler lacks an
    operator, the result is a composite model, unless `fallback` is "never"; then UnsupportedError is raised. Raises
    UsageError for other texts than "auto" and "never"."""
    import tilewright
    from tilewright.frontend.common.contents import is_compiled

    check_choice("fallback", fallback, ("auto", "never"), UsageError)
    if is_compiled(path) or fallback == "never":
        return open_model(path, threads, dims, precision, fast, target)
    model = named(path)
    count = flags.THREADS() if threads is None else threads
    options: dict[str, Any] = {"fallback": fallback, "dims": dict(dims), **accuracy(precision, fast)}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        opened = tilewright.compile(model.model, model.example, threads=count, target=on_host(target), **options)
    for warning in said:
        err.print(f"warning: {warning.message}", soft_wrap=True, markup=False)
    return opened


def check_dims(dims: Mapping[str, int | Dim], symbols: Sequence[SymbolSpec], where: str, option: str = "--dim") -> None:
    """Raise one ModelError, about the program `where`, for all of `dims`, as `option` states them, that a compiled
    program does not have as `symbols`, or that are ranges."""
    known = {symbol.name for symbol in symbols}
    problems = Problems()
    for name, said in dims.items():
        if name not in known:
            what = f"no dimension of the program is open and has this name: {option} {name}"
            problems.add(ModelError(what, where=where, expected=" ".join(sorted(known)) or "none", got=name))
        elif not isinstance(said, int):
            what = f"the range of {option} {name} is the model's, before it is compiled"
            problems.add(ModelError(what, where=where, expected=f"{name}=N", got=said))
    problems.raise_if_any("the program has other dimensions")


def call_sizes(model: Runner | Composite, dims: Mapping[str, int | Dim]) -> dict[str, int]:
    """The sizes of symbols in a call: those stated, else likely ones, else the least, or 1."""
    manifest = getattr(model, "manifest", None)
    sizes = {} if manifest is None else usual_sizes(manifest.symbols)
    return sizes | {name: said for name, said in dims.items() if isinstance(said, int)}


def _with_options(model: Model, path: Path, precision: str | None, fast: str | None, cpu: str | None) -> Model:
    manifest = model.manifest
    problems = Problems()
    compiled = {"precision": manifest.precision, "fast": manifest.fast, "target": manifest.target.cpu}
    wanted = {"precision": precision, "fast": fast, "target": cpu}
    for name, value in wanted.items():
        if value is not None and value != compiled[name]:
            hint = "compile the model again"
            what = f"compiled with another {name}"
            problems.add(ModelError(what, where=str(path), expected=value, got=compiled[name], hint=hint))
    problems.raise_if_any("the file does not fit the options")
    return model


# --- outputs ----------------------------------------------------------------------------------------------------------


def check_output(output: Path | None, inputs: Sequence[Path], option: str) -> None:
    """Check before a long computation whether the file `output` can be written. Raises typer.BadParameter, about
    `option`, if it is one of the files `inputs` that the command reads, even under another name (links); CallError for
    a folder, or for a file in a folder that does not exist."""
    if output is None:
        return
    for path in inputs:
        for read in (path, *_data_of(path)) if output.exists() else (path,):
            if output.resolve() == read.resolve() or (output.exists() and read.exists() and output.samefile(read)):
                what = f"{output} is read by this command, which would write over it"
                raise typer.BadParameter(what, param_hint=option)
    if output.is_dir():
        raise CallError("cannot be written: it is a folder", where=str(output))
    if not output.absolute().parent.is_dir():
        raise CallError("cannot be written: there is no such folder", where=str(output))


def _data_of(path: Path) -> list[Path]:
    """The files with external data of an ONNX model."""
    if path.suffix != ".onnx" or not path.is_file():
        return []
    from tilewright.frontend.onnx.load import load
    from tilewright.frontend.onnx.tensors import tensors_of

    try:
        with load(path, whole=False) as loaded:
            locations = {e.value for t in tensors_of(loaded.model) for e in t.external_data if e.key == "location"}
    except ModelError:
        return []
    return [path.parent / location for location in locations if "\0" not in location]


def write(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all. Raises CallError if that fails."""
    try:
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise CallError(f"cannot be written: {error.strerror}", where=str(path)) from None
