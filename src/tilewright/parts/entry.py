"""`tw.compile`, the one entry point: a model becomes one program if the compiler supports all of it, else several
parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tilewright.compile_options import CompileOptions
from tilewright.compiler import compile_program
from tilewright.frontend import registry as frontends
from tilewright.frontend.read import (
    Dynamic,
    from_torch,
    import_model,
    is_compiled_file,
    is_exported_file,
    is_onnx_file,
    load_exported,
)
from tilewright.ir.dim import DimSizes
from tilewright.ir.interface import Imported
from tilewright.ir.selection import Precision
from tilewright.records import collecting
from tilewright.records.places import Records
from tilewright.runtime.interop import Array
from tilewright.runtime.model import Model
from tilewright.runtime.weights.local import Reread
from tilewright.support.coverage import Coverage
from tilewright.support.errors import Error, ModelError, ShapeError, UnsupportedError, WeightError
from tilewright.support.options import check_choice
from tilewright.targets.target import Target

if TYPE_CHECKING:
    from tilewright.frontend.onnx.load import Loaded
    from tilewright.parts.composite import Composite

Fallback = Literal["auto", "never"]


def compile(
    model: Any,
    example: Any = None,
    *,
    threads: int = 1,
    dims: DimSizes | None = None,
    dynamic: Dynamic = "auto",
    target: Target | str | None = None,
    precision: Precision = "fp32",
    fast: str = "auto",
    name: str | None = None,
    params: Any = None,
    state: Mapping[str, str] | Literal["auto"] | None = None,
    cache: Literal["as is", "int8"] = "as is",
    ragged: tuple[str, str] | None = None,
    fallback: Fallback = "auto",
    custom_ops: Sequence[type] = (),
    records: Records = "auto",
    require_records: bool = False,
    keep_weights: bool | None = None,
    compilers: Sequence[str] = (),
    flush_denormals: bool = False,
) -> Model | Composite:
    """Compile a model to native code and load it.

    Args:
        model: path of an ONNX file, an `onnx.ModelProto`, a `torch.nn.Module` (with an `example`), a
            `torch.export.ExportedProgram` or the path of its .pt2 file, a `jax.export.Exported`, a jitted function
            (with an `example`), StableHLO as text, bytes or the path of a file, a `(Graph, weights)` pair, or what a
            plug-in's frontend reads.
        example: inputs of a PyTorch module: a tensor, a tuple of arguments, or a dict of keyword arguments; tensors or
            NumPy arrays. Only shapes and types count. Of a jitted function the same: arrays or
            `jax.ShapeDtypeStruct`s, and trees of them.
        threads: threads of a call at most, the caller's included; fewer where these are faster. Estimates are made for
            as many, so that another number may get other code, whose results differ by rounding; a model that was saved
            runs with any number.
        dims: what symbolic dimensions are, by name: a number that one shall be, or `tw.dim(1, 512, likely=[32, 64])`,
            which says its range, what divides it and its likely values (docs/shapes.md).
        dynamic: which dimensions of a PyTorch module's inputs are symbols: "auto" (the batch, called "batch"), None, or
            `{"input": {axis: "symbol"}}`; see docs/torch.md.
        target: the machine, or its name ("x86-64-v3"); the host if None.
        precision: the type in which products multiply: "fp32", "bf16", "fp16", "int8"; "int8w", "int4w": weights alone
            have so few bits (see docs/accuracy.md).
        fast: which algorithms with fewer multiplications are allowed (Winograd's, Fourier's, Strassen's; see
            docs/accuracy.md): "auto", "exact" (none that is less exact), "f2", "f4", "f6"; "strassen": "auto", and fast
            products of any rows, those of different samples too.
        name: what the program is called; the model's own name if None.
        params: which arguments of a function of JAX are weights: a position, a name, or several; for an `Exported`, a
            dict of the same with their trees of arrays. `update` takes such trees.
        state: inputs that come back longer, as outputs (keys and values of a decoder), by name, or "auto": those named
            past_key_values.0.key and present.0.key, or past_k and present_k. They stay in memory of a `State`
            (`model.state(capacity)`), which is then what is called; see docs/state.md.
        cache: "int8" keeps them as codes of 8 bits, with a scale for each vector of the last dimension.
        ragged: the symbols that count the sequences of a batch and the rows of each, ("batch", "seq"): sequences of
            different lengths are packed instead of padded, and calls take `tw.ragged(list_of_arrays)`; see
            docs/ragged.md.
        fallback: what becomes of an ONNX model with operators that Tilewright lacks: "auto" (they run by ONNX Runtime
            or `onnx.reference`, the rest is compiled in parts, a warning says so; see docs/onnx.md), "never" (an error
            lists them).
        custom_ops: classes (`onnx.reference.op_run.OpRun`) of operators that are not ONNX's, which then run there.
        records: where tuning records are looked for: "auto" (the user's, those of TILEWRIGHT_RECORDS, the package's), a
            folder, several with the nearest first, or None: everything is decided by estimates (see docs/records.md).
        require_records: refuse to decide anything by estimates where there is a choice.
        keep_weights: whether raw weights stay in memory once they are packed. None: unless the model is a file, from
            which `save` and `weights` read them again; False: never, so that `save` and `weights` are refused.
        compilers: other compilers that plug-ins bring, by name, which are asked in this order for what they take; what
            the last one of the list takes and cannot compile is an error, unless that is "tilewright" (see
            docs/compilers.md).
        flush_denormals: a call takes subnormal numbers as zero and makes none (FTZ and DAZ on x86-64, FZ on AArch64),
            in each of its threads, and leaves the threads' mode as it was. Some cores take a hundred cycles and more
            for a vector with such a number.

    Raises ModelError (or a subclass) listing everything that is wrong with the model.
    """
    check_choice("fallback", fallback, get_args(Fallback))
    options = CompileOptions(
        threads=threads,
        dims=dims,
        dynamic=dynamic,
        target=target,
        precision=precision,
        fast=fast,
        name=name,
        params=params,
        records=records,
        require_records=require_records,
        state=state,
        cache=cache,
        ragged=ragged,
        compilers=compilers,
        flush_denormals=flush_denormals,
    )
    recomputed = rereads(model, dims) if keep_weights is None else None
    try:
        program = compile_program(model, example, options)
        compiled = Model(program, threads=threads, keep_weights=keep_weights, repeated=recomputed)
        collecting.watch(compiled)
        return compiled
    except ModelError as error:
        loaded = _loaded(model) if fallback == "auto" and state is None and ragged is None else None
        if loaded is None or not can_fall_back(error, loaded):
            raise
        refused = error
    from tilewright.parts.onnx_model import compile_parts
    from tilewright.parts.report import help_for

    hint = help_for(refused)
    for_parts = replace(options, dims=None, dynamic="auto", params=None)

    def build(part: Imported, name: str) -> Model:
        part_of = Model(compile_program(part, None, for_parts, name=name), threads=threads, keep_weights=True)
        collecting.watch(part_of)
        return part_of

    return compile_parts(loaded, build, name=name, dims=dims, threads=threads, custom_ops=custom_ops, hint=hint)


def coverage(
    model: Any,
    example: Any = None,
    *,
    dims: DimSizes | None = None,
    custom_ops: Sequence[type] = (),
    compilers: Sequence[str] = (),
) -> Coverage:
    """The parts of a model that would be compiled, those in which the rest would run and by whom, and every reason.

    Args:
        model: path of an ONNX file, its bytes, or an `onnx.ModelProto`; or a PyTorch module or function, which is run
            once as `torch.compile(model, backend="tilewright")` runs it; or a `torch.export.ExportedProgram`, or the
            path of its .pt2 file.
        example: inputs of a PyTorch module, as for `compile`; of a program by default those that it was exported with.
        dims, custom_ops: as for `compile`.
        compilers: as for `compile`, of a model that Tilewright reads whole: the report says who takes which operators.

    Raises ModelError for a file that is no ONNX model, CallError for a module without an example.
    """
    if compilers:
        from tilewright.parts.regions import coverage as coverage_by

        return coverage_by(model, compilers, dims)
    if is_exported_file(model):
        model = load_exported(Path(model))
    if example is not None or from_torch(model):
        from tilewright.dynamo.coverage import module_coverage

        if hasattr(model, "example_inputs"):  # an exported program
            arguments, named = model.example_inputs or ((), {})
            example, model = (arguments or named or None) if example is None else example, model.module()
        return module_coverage(model, example)
    if is_compiled_file(model):
        raise ModelError("the model is compiled already", where=str(model))
    from tilewright.frontend.onnx.load import load
    from tilewright.parts.onnx_model import coverage as coverage_of

    return coverage_of(load(model), dims=dims, custom_ops=custom_ops)


def _loaded(model: Any) -> Loaded | None:
    """The loaded ONNX model; None for other models and for files that cannot be read."""
    is_onnx = isinstance(model, str | Path | bytes) or type(model).__module__.partition(".")[0] == "onnx"
    if not is_onnx or is_exported_file(model) or frontends.find(model) is not None:
        return None
    from tilewright.frontend.onnx.load import load

    try:
        return load(model)
    except ModelError:
        return None


def rereads(model: Any, dims: DimSizes | None) -> Reread | None:
    """A function that reads the weights of `model` once more; None unless it is an ONNX file, as other models may be
    changed by their owner."""
    if not is_onnx_file(model):
        return None
    where = Path(model).absolute()

    def recomputed() -> Mapping[str, Array]:
        try:
            return import_model(where, dims).weights
        except ModelError as error:
            what = "the weights cannot be read once more from the file that the model was compiled from"
            hint = "compile it with keep_weights=True"
            raise WeightError(what, where=str(where), hint=hint, problems=[error]) from error

    return recomputed


def can_fall_back(error: Error, loaded: Loaded) -> bool:
    """Whether the nodes that caused `error` can run elsewhere: the model is well formed as far as is known. Shapes that
    do not match may match at run time if sizes are open."""
    shapes = [i.type.tensor_type.shape for i in loaded.model.graph.input]
    is_open = any(not d.HasField("dim_value") for shape in shapes for d in shape.dim)
    return all(
        isinstance(e, UnsupportedError) or (isinstance(e, ShapeError) and (is_open or e.open)) for e in error.each()
    )


__all__ = ["Fallback", "compile", "coverage"]
