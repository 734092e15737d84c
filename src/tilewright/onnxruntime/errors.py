"""The kinds of errors that ONNX Runtime raises, each also the kind that Tilewright has for it.

`except InvalidArgument` and `except tilewright.Error` both take them. Texts that programs look into (names, types and
sizes of inputs) are as ONNX Runtime 1.32 writes them, without its prefix "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT".
"""

from __future__ import annotations

import os

from tilewright.support.errors import ArtifactError, CallError, Error, ModelError, UnsupportedError


class Fail(CallError):
    """A call that failed for another reason than its arguments."""


class InvalidArgument(CallError):
    """Inputs or outputs of a call that do not fit: names, types, ranks, sizes."""


class RuntimeException(CallError):
    """A call that failed while it was running."""


class EPFail(CallError):
    """A call that failed in a host that runs nodes which are not compiled."""


class NoSuchFile(ModelError):
    """A model file that is not there."""


class NoModel(ModelError):
    """A file without a model."""


class InvalidProtobuf(ModelError):
    """A file that is no ONNX model."""


class InvalidGraph(ModelError):
    """A model that is not well formed."""


class NotImplemented(UnsupportedError):
    """A model with an operator or feature that neither Tilewright nor its fallback hosts implement."""


class EngineError(Error):
    """Never raised; here for programs that name it."""


class ModelLoaded(Error):
    """Never raised; here for programs that name it."""


def of_model(error: Error, source: str | None) -> Error:
    """The error for a model that could not be compiled or loaded.

    Args:
        source: the path of its file; None for bytes.
    """
    if source is not None and not os.path.exists(source):
        return NoSuchFile(f"Load model from {source} failed: Load model {source} failed. File doesn't exist")
    if isinstance(error, UnsupportedError):
        return NotImplemented(str(error))
    if isinstance(error, ArtifactError):
        return Fail(str(error))
    if any(text in str(error) for text in ("is not an ONNX model", "holds no ONNX graph")):
        return InvalidProtobuf(f"Failed to load model because protobuf parsing failed: {error}")
    return InvalidGraph(str(error))


__all__ = [
    "EPFail",
    "EngineError",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoaded",
    "NoModel",
    "NoSuchFile",
    "NotImplemented",
    "RuntimeException",
    "of_model",
]
