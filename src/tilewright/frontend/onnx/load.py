"""Read a model file, and check its size and versions before importing it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tilewright.frontend.common.contents import other_format, other_object
from tilewright.frontend.onnx.external import Folder
from tilewright.frontend.onnx.left import WALKED, Left
from tilewright.frontend.onnx.order import in_order
from tilewright.frontend.onnx.sparse import without_sparse
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError, UnsupportedError

MIN_OPSET = 1
"""The oldest version of ONNX's operators."""
MAX_FILE = 1 << 31
"""The largest file in bytes; protobuf reads no larger message."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A parsed model, what to call it in messages, where its external data may lie, and the large initializers whose
    elements are still in the file, which stays open as long as this context manager is active; `data` are the bytes of
    a small file."""

    model: onnx.ModelProto
    label: str
    folder: Folder | None
    opsets: dict[str, int]
    left: Left | None = None
    data: bytes = b""

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.left is not None:
            self.left.close()


def load(model: onnx.ModelProto | bytes | str | Path, whole: bool = True) -> Loaded:
    """Parse the model and check its versions. Raises ModelError.

    Args:
        whole: read the whole file; otherwise the elements of large tensors may stay in it.
    """
    folder: Folder | None = None
    left: Left | None = None
    label, small, data = "model", b"", None
    if isinstance(model, str) and "\n" in model and not os.path.exists(model):
        raise ModelError("a text of several lines is no path", where=label, got=model.split("\n", 1)[0][:80])
    if isinstance(model, str | Path):
        path = Path(model)
        label = path.name
        try:
            folder = Folder.of(path)
            model, left = _contents(path, whole)
            small = model if len(model) < WALKED and left is None else b""
        except (OSError, ValueError) as error:  # a path with a character that no path has
            text = getattr(error, "strerror", None) or error
            raise ModelError(f"the file cannot be read: {text}", where=str(path)) from None
    if isinstance(model, bytes):
        data, model = model, onnx.ModelProto()
        try:
            model.ParseFromString(data)
        except DecodeError as error:
            raise other_format("the file is not an ONNX model", data, where=label, got=str(error)[:200]) from None
    if not isinstance(model, onnx.ModelProto):
        raise other_object("expected an ONNX model", model, where=label)
    if not model.HasField("graph"):
        raise other_format("the file holds no ONNX graph", data, where=label)
    _check_text(model, label)
    opsets = _opsets(model, label)
    return Loaded(
        _with_own_operators(in_order(without_sparse(model, label)), opsets), label, folder, opsets, left, small
    )


def _contents(path: Path, whole: bool) -> tuple[bytes, Left | None]:
    """(the bytes of the file at `path`, None); or, of a large one unless `whole`, (the bytes without the elements of
    large tensors, the open file that still holds these)."""
    left = Left(path)
    with contextlib.ExitStack() as stack:
        stack.callback(left.close)
        if left.size > MAX_FILE:
            raise ModelError("the file is too large for a protocol buffer", where=path.name)
        rest = None if whole or left.size < WALKED else left.rest()
        if rest is None:
            return left.whole(), None
        stack.pop_all()
        return rest, left


def _check_text(model: onnx.ModelProto, label: str) -> None:
    """Raise ModelError for names that are not UTF-8: protocol buffers return such strings as bytes."""

    def graphs() -> Iterator[str | bytes]:
        graph = model.graph
        yield graph.name
        for value in (*graph.input, *graph.output, *graph.initializer):
            yield value.name
        for f in model.functions:
            yield from (f.name, f.domain, *f.input, *f.output, *f.attribute)
        for node in (*graph.node, *(n for f in model.functions for n in f.node)):
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (a.name for a in node.attribute)

    bad = next((name for name in graphs() if not isinstance(name, str)), None)
    if bad is not None:
        raise ModelError("a name in the file is not UTF-8 text", where=label, got=repr(bad)[:80])


def _with_own_operators(model: onnx.ModelProto, opsets: dict[str, int]) -> onnx.ModelProto:
    """The model without the functions that have the domain and name of an operator of ONNX in the version (`opsets`, by
    domain) that the model imports: a runtime decides which counts, and ONNX Runtime and the reference take the
    operator."""

    def is_operator(f: onnx.FunctionProto) -> bool:
        domain = "" if f.domain == "ai.onnx" else f.domain
        version = min(opsets.get(domain, 0), onnx.defs.onnx_opset_version())  # a domain's own may be any number
        return version > 0 and bool(onnx.defs.has(f.name, version, domain))

    if not any(map(is_operator, model.functions)):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.functions[:]
    result.functions.extend(f for f in model.functions if not is_operator(f))
    return result


def _opsets(model: onnx.ModelProto, label: str) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if domain in opsets and opsets[domain] != entry.version:
            raise ModelError(f"the operator set {domain or 'ai.onnx'} is imported in two versions", where=label)
        opsets[domain] = entry.version
    latest = onnx.defs.onnx_opset_version()
    version = opsets.setdefault("", latest if opsets else 1)
    if not MIN_OPSET <= version <= latest:
        raise UnsupportedError(
            "the version of the operator set is not supported",
            where=label,
            expected=f"{MIN_OPSET} to {latest}",
            got=version,
        )
    return opsets
