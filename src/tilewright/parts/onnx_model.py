"""An ONNX model that the compiler does not take whole, as a `Composite` of parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.frontend.onnx.load import Loaded
from tilewright.frontend.onnx.section import Section, TensorInfo, declared, inlined, whole
from tilewright.frontend.onnx.survey import survey
from tilewright.ir.dim import DimSizes
from tilewright.ir.interface import Imported
from tilewright.parts.composite import Composite
from tilewright.parts.context import Context
from tilewright.parts.hosts import Hosts
from tilewright.parts.part import Part
from tilewright.parts.report import coverage_in_advance
from tilewright.runtime.model import Model
from tilewright.support.coverage import Coverage
from tilewright.support.errors import ModelError


def compile_parts(
    loaded: Loaded,
    build: Callable[[Imported, str], Model],
    *,
    name: str | None = None,
    dims: DimSizes | None = None,
    threads: int = 1,
    custom_ops: Sequence[type] = (),
    hint: str = "",
) -> Composite:
    """Cut a model into parts and compile those whose types are known.

    Args:
        build: compiles a graph with its weights to a loaded program.
        name: the name of the model; the file's if None.
        dims: what symbolic dimensions are; only numbers count here, for parts learn sizes from calls.
        custom_ops: classes of operators for `onnx.reference`.
        hint: advice by which the caller may get the model compiled as one program.

    Raises UnsupportedError for operators that no host knows.
    """
    context = Context(build, Hosts(custom_ops, threads))
    section = whole(inlined(loaded))
    types = stated_types(section, dims or {})
    part = Part(section, context, types)
    part.plan(survey(section, types))
    model = Composite(part, context, threads, name)
    model.warn_if_new(stacklevel=4, hint=hint)
    return model


def coverage(
    loaded: Loaded, *, name: str | None = None, dims: DimSizes | None = None, custom_ops: Sequence[type] = ()
) -> Coverage:
    """The coverage report, called `name`, of a model with the dimensions `dims`: the parts that would be compiled, the
    parts in which the other operators would run, and why; nothing is compiled. `custom_ops` are classes of operators
    for `onnx.reference`."""
    _check_names(loaded, dims or {})
    section = whole(inlined(loaded))
    return coverage_in_advance(name or section.name, section, stated_types(section, dims or {}), Hosts(custom_ops))


def _check_names(loaded: Loaded, dims: DimSizes) -> None:
    """Raise ModelError if `dims` names a dimension that the model's inputs do not have."""
    sizes = [d for value in loaded.model.graph.input for d in value.type.tensor_type.shape.dim]
    known = {d.dim_param for d in sizes if d.dim_param}
    unknown = [name for name in dims if name not in known]
    if unknown and all(d.dim_param or d.HasField("dim_value") for d in sizes):  # those without a name are given one
        raise ModelError(
            "no dimension of the inputs has this name",
            where=loaded.label,
            expected=", ".join(sorted(known)) or "none",
            got=", ".join(unknown),
        )


def stated_types(section: Section, dims: DimSizes) -> dict[str, TensorInfo | None]:
    """The types that a model states for its inputs, by name; inputs of unknown rank are left out."""
    result: dict[str, TensorInfo | None] = {}
    numbers: dict[int | str, int] = {name: size for name, size in dims.items() if isinstance(size, int)}
    for info in section.loaded.model.graph.input:
        if info.name not in section.inputs:
            continue
        type = declared(info)
        if type is not None:
            result[info.name] = replace(type, dims=tuple(numbers.get(d, d) for d in type.dims))
        elif info.type.WhichOneof("value") not in (None, "tensor_type"):
            result[info.name] = None
    return result


__all__ = ["compile_parts", "coverage"]
