"""A `Module` from MLIR's Python bindings, which jaxlib contains; only this file uses them.

MLIR's parser aborts the process on some damaged input, so that untrusted modules are parsed in another process
(`child.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilewright.frontend.stablehlo.module import Block, Function, Module, Operation, Splat, Type
from tilewright.frontend.stablehlo.quantised import START, rewritten
from tilewright.support.errors import ModelError, UnsupportedError

MAX_OPERATIONS = 200_000
"""The most operations of a module."""
MAX_DEPTH = 64
"""The deepest nesting of regions."""
MAX_TYPE = 1 << 20
"""The longest text of a quantised type, in characters; it lists scales of channels."""

NUMPY: dict[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    **{f"i{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
}
FLOATS_OF_8_BITS = ("f8E4M3FN", "f8E4M3FNUZ", "f8E5M2", "f8E5M2FNUZ")
"""Element types that are storage alone: values are converted to and from them."""
EXTENSIONS = {
    "bf16": "bfloat16",
    "i4": "int4",
    "ui4": "uint4",
    **{name: f"float8_{name[2:].lower()}" for name in FLOATS_OF_8_BITS},
}
"""The types of ml_dtypes by the names of MLIR."""


def numpy_type(element: str) -> np.dtype[Any]:
    """The NumPy type of an MLIR element type. Raises UnsupportedError."""
    entry = NUMPY.get(element)
    if entry is not None:
        return entry
    if element in EXTENSIONS:
        import ml_dtypes

        extension: np.dtype[Any] = np.dtype(getattr(ml_dtypes, EXTENSIONS[element]))
        return extension
    raise UnsupportedError(f"the element type {element} is not supported")


def context() -> Any:
    """An MLIR context with StableHLO, CHLO and the other dialects that JAX's modules contain."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    created = ir.Context()
    created.append_dialect_registry(registry)
    created.load_all_available_dialects()
    stablehlo.register_dialect(created)
    chlo.register_dialect(created)
    sdy.register_dialect(created)
    return created


MAGIC = b"ML\xefR"
"""The first bytes of MLIR bytecode."""


def artifact_version(data: bytes) -> str | None:
    """The version of StableHLO that wrote a portable artifact, as its header says."""
    match = re.match(rb"ML\xefR.StableHLO_v([0-9.]{1,20})\x00", data, re.DOTALL)
    return None if match is None else match[1].decode("ascii")


def parse_module(data: bytes) -> Module:
    """Parse text or bytecode. Raises ModelError; damaged input may abort the process."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    own = context()
    if not data.startswith(MAGIC) and START.encode() in data:
        data = rewritten(data.decode("utf-8", "replace")).encode()
        own.allow_unregistered_dialects = True  # of what has quantised types
    try:
        if data.startswith(MAGIC) and artifact_version(data) is not None:
            parsed = stablehlo.deserialize_portable_artifact(own, data)
        else:
            parsed = ir.Module.parse(data, own)
    except (ir.MLIRError, ValueError) as error:
        raise unread(data, error) from None
    return read_module(parsed)


def unread(data: bytes, error: Exception) -> ModelError:
    """A ModelError that explains why `data` could not be parsed as a module: its version is newer than jaxlib, or else
    jaxlib's own `error`."""
    from jaxlib.mlir.dialects import stablehlo

    version, known = artifact_version(data), stablehlo.get_current_version()
    if version is not None and _numbers(version) > _numbers(known):
        return ModelError(
            "the artifact is of a newer StableHLO than jaxlib reads",
            expected=f"at most version {known}",
            got=f"version {version}",
            hint="install a newer jaxlib, or write the artifact for an older version",
        )
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return ModelError("this is no StableHLO that jaxlib can read", got=" / ".join(lines[:4])[:400] or "damaged bytes")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part or 0) for part in version.split("."))


def read_module(parsed: Any) -> Module:
    """A parsed `jaxlib.mlir.ir.Module` as a `Module`. Raises ModelError."""
    return _Reader().module(parsed)


class _Reader:
    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.count = 0

    def module(self, parsed: Any) -> Module:
        functions: dict[str, Function] = {}
        for view in parsed.body.operations:
            op = view.operation
            if op.name == "func.func" and len(op.regions[0].blocks):
                created = self.function(op)
                functions[created.name] = created
            elif op.name not in ("func.func", "sdy.mesh"):
                raise UnsupportedError(f"{op.name} beside functions is not supported")
        if not functions:
            raise ModelError("the module has no function")
        main = "main" if "main" in functions else next(iter(functions))
        attributes = parsed.operation.attributes
        name = attributes["sym_name"].value if "sym_name" in attributes else "main"
        return Module(name, functions, main)

    def function(self, op: Any) -> Function:
        body = self.region(op.regions[0], 0)
        arguments = list(op.regions[0].blocks[0].arguments)
        return Function(
            op.attributes["sym_name"].value,
            body,
            tuple(_name_of(a.location) for a in arguments),
            tuple(_listed(op, "res_attrs", "jax.result_info", len(body.returned))),
            tuple(_listed(op, "arg_attrs", "jax.global_constant", len(arguments))),
        )

    def region(self, region: Any, depth: int) -> Block:
        blocks = list(region.blocks)
        if len(blocks) != 1 or depth > MAX_DEPTH:
            raise UnsupportedError("a region must have one block", got=len(blocks))
        (block,) = blocks
        arguments = tuple(self.define(a) for a in block.arguments)
        types = tuple(_type(a.type) for a in block.arguments)
        operations = tuple(self.operation(view.operation, depth) for view in block.operations)
        if not operations:
            raise ModelError("a region has no operations")
        return Block(arguments, types, operations)

    def define(self, value: Any) -> int:
        number = len(self.numbers)
        self.numbers[value] = number
        return number

    def operation(self, op: Any, depth: int) -> Operation:
        self.count += 1
        if self.count > MAX_OPERATIONS:
            raise ModelError("the module is too large", expected=f"at most {MAX_OPERATIONS} operations")
        regions = tuple(self.region(r, depth + 1) for r in op.regions)
        attributes = {name: _attribute_of(op, name) for name in op.attributes if name not in _IGNORED}
        operands = tuple(self.numbers[v] for v in op.operands)
        results = tuple(self.define(v) for v in op.results)
        types = tuple(_type(v.type) for v in op.results)
        return Operation(op.name, operands, results, types, attributes, regions, _location(op.location))


_IGNORED = {"sdy.sharding", "mhlo.sharding", "mhlo.frontend_attributes", "xla_shape"}


def _listed(op: Any, kind: str, key: str, count: int) -> Iterator[str]:
    """For each of the `count` arguments or results of a function (`kind` names the attribute that lists theirs), its
    string attribute `key`, or ""."""
    entries = list(op.attributes[kind]) if kind in op.attributes else []
    for k in range(count):
        result = entries[k] if k < len(entries) else {}
        yield str(result[key].value) if key in result else ""


def _type(t: Any) -> Type:
    from jaxlib.mlir import ir

    if not isinstance(t, ir.RankedTensorType):
        return Type(str(t)[:80], None)
    shape = tuple(None if t.is_dynamic_dim(k) else t.get_dim_size(k) for k in range(t.rank))
    if isinstance(t.encoding, ir.StringAttr):
        return Type(t.encoding.value[:MAX_TYPE], shape)
    return Type(str(t.element_type), shape)


def _name_of(location: Any) -> str:
    """The name "x" of an MLIR location `loc("x")`; "" for positions in files and for JAX's `jit(...)` scopes."""
    match = re.fullmatch(r'loc\("([^"\n]{1,200})"(?:\(.*\))?\)', str(location), re.DOTALL)
    return "" if match is None or match[1].startswith("jit(") else match[1]


def _location(location: Any) -> str:
    """The first line of user code in an MLIR location, or its name."""
    text = str(location)[:2000]
    place = re.search(r'"([^"]+)":(\d+):\d+', text)
    name = re.match(r'loc\("([^"]+)"\(', text)
    said = name[1].rpartition("/")[2] if name is not None else ""
    if place is None:
        return said
    where = f"{place[1].rpartition('/')[2]}:{place[2]}"
    return f"{said} ({where})" if said else where


# --- attributes -----------------------------------------------------------------------------------------------------


def _attribute_of(op: Any, name: str) -> Any:
    try:
        return _attribute(op.attributes[name])
    except TypeError as error:  # the bindings have no class for arrays of complex numbers: what says why it is refused
        return str(error)[:4000]


def _attribute(a: Any) -> Any:
    """An MLIR attribute as Python value: numbers, strings, arrays, lists, and dicts of these; any other as its text."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    if isinstance(a, ir.DenseIntElementsAttr | ir.DenseFPElementsAttr):
        return _array(a)
    if isinstance(a, ir.ArrayAttr | ir.DenseI64ArrayAttr | ir.DenseI32ArrayAttr | ir.DenseBoolArrayAttr):
        return [_attribute(e) if isinstance(e, ir.Attribute) else e for e in a]
    if isinstance(a, ir.BoolAttr | ir.IntegerAttr | ir.FloatAttr | ir.StringAttr | ir.FlatSymbolRefAttr):
        return a.value
    if isinstance(a, ir.DictAttr):
        return {a[k].name: _attribute(a[k].attr) for k in range(len(a))}
    for kind, fields in _structured().items():
        if kind.isinstance(a):
            created = kind(a)
            return {name: _python_value(getattr(created, name)) for name in fields}
    text = str(a)
    enumerated = re.fullmatch(r"#(?:stablehlo|chlo)<\w+ (\w+)>", text)
    if enumerated is not None:
        return enumerated[1]
    if stablehlo.ConvDimensionNumbers.isinstance(a):
        return text
    return text[:4000]


def _structured() -> dict[Any, tuple[str, ...]]:
    from jaxlib.mlir.dialects import stablehlo as s

    dot = "lhs_batching_dimensions rhs_batching_dimensions lhs_contracting_dimensions rhs_contracting_dimensions"
    conv = """input_batch_dimension input_feature_dimension input_spatial_dimensions kernel_input_feature_dimension
        kernel_output_feature_dimension kernel_spatial_dimensions output_batch_dimension output_feature_dimension
        output_spatial_dimensions"""
    gather = """offset_dims collapsed_slice_dims operand_batching_dims start_indices_batching_dims start_index_map
        index_vector_dim"""
    scatter = """update_window_dims inserted_window_dims input_batching_dims scatter_indices_batching_dims
        scattered_dims_to_operand_dims index_vector_dim"""
    algorithm = "lhs_precision_type rhs_precision_type accumulation_type num_primitive_operations"
    return {
        s.DotAlgorithm: tuple(algorithm.split()),
        s.DotDimensionNumbers: tuple(dot.split()),
        s.ConvDimensionNumbers: tuple(conv.split()),
        s.GatherDimensionNumbers: tuple(gather.split()),
        s.ScatterDimensionNumbers: tuple(scatter.split()),
    }


def _python_value(value: Any) -> Any:
    from jaxlib.mlir import ir

    if isinstance(value, ir.Type):
        return str(value)
    return int(value) if isinstance(value, int) else [int(v) for v in value]


def _array(a: Any) -> Any:
    """A dense attribute: an array, or a `Splat` where one number fills it."""
    t = _type(a.type)
    shape = tuple(d or 0 for d in t.shape or ())
    if t.element == "index":
        return np.array([int(v) for v in a], np.int64).reshape(shape)
    if t.element.startswith("complex"):
        raise UnsupportedError("complex numbers are not supported")
    kind = numpy_type(t.element)
    if t.element in EXTENSIONS:
        array = _by_text(a, kind)
        return Splat(array.reshape(()), shape) if a.is_splat and shape else array.reshape(shape)
    if a.is_splat and shape:
        return Splat(np.asarray(a.get_splat_value().value).astype(kind), shape)
    return np.array(a).astype(kind, copy=True).reshape(shape)


def _by_text(a: Any, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The elements of an array whose type the bindings do not support, from its printed text: one by one, or as raw
    bytes."""
    text = str(a)
    whole = re.match(r'dense<"0x([0-9A-Fa-f]*)">', text)
    if whole is not None:
        return np.frombuffer(bytes.fromhex(whole[1]), kind).copy()
    words = re.findall(r"[^\[\],\s]+", text[len("dense<") : text.rindex("> :")])
    values = np.zeros(len(words), kind)
    for k, word in enumerate(words):
        if word.startswith("0x"):  # the bits of NaN and infinity
            values[k : k + 1] = np.array([int(word, 16)], f"u{kind.itemsize}").view(kind)
        else:
            values[k] = float(word) if kind.kind not in "iu" and "int" not in kind.name else int(word)
    return values


Read = Callable[[bytes], Module]
