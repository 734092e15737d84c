"""ONNX Runtime's names for Tilewright: `import tilewright.onnxruntime as onnxruntime` instead of `import onnxruntime`.

`InferenceSession` is also `tw.Session`. Settings without a meaning here (logs, allocators, telemetry) are accepted and
ignored; features that are missing (libraries of custom operators, adapters, other devices) raise an error.
docs/tutorial/from-onnxruntime.md lists both.
"""

from __future__ import annotations

from typing import Any

from tilewright import __version__ as __version__
from tilewright.onnxruntime.allocators import OrtArenaCfg as OrtArenaCfg
from tilewright.onnxruntime.allocators import create_and_register_allocator as create_and_register_allocator
from tilewright.onnxruntime.binding import IOBinding as IOBinding
from tilewright.onnxruntime.description import ModelMetadata as ModelMetadata
from tilewright.onnxruntime.description import NodeArg as NodeArg
from tilewright.onnxruntime.devices import OrtAllocatorType as OrtAllocatorType
from tilewright.onnxruntime.devices import OrtDevice as OrtDevice
from tilewright.onnxruntime.devices import OrtDeviceMemoryType as OrtDeviceMemoryType
from tilewright.onnxruntime.devices import OrtDeviceVendorId as OrtDeviceVendorId
from tilewright.onnxruntime.devices import OrtMemoryInfo as OrtMemoryInfo
from tilewright.onnxruntime.devices import OrtMemoryInfoDeviceType as OrtMemoryInfoDeviceType
from tilewright.onnxruntime.devices import OrtMemType as OrtMemType
from tilewright.onnxruntime.logs import set_default_logger_callback as set_default_logger_callback
from tilewright.onnxruntime.logs import set_default_logger_severity as set_default_logger_severity
from tilewright.onnxruntime.options import ExecutionMode as ExecutionMode
from tilewright.onnxruntime.options import ExecutionOrder as ExecutionOrder
from tilewright.onnxruntime.options import GraphOptimizationLevel as GraphOptimizationLevel
from tilewright.onnxruntime.options import RunOptions as RunOptions
from tilewright.onnxruntime.options import SessionOptions as SessionOptions
from tilewright.onnxruntime.providers import PROVIDERS
from tilewright.onnxruntime.session import InferenceSession as InferenceSession
from tilewright.onnxruntime.session import SessionIOBinding as SessionIOBinding
from tilewright.onnxruntime.values import OrtValue as OrtValue


def get_available_providers() -> list[str]:
    """The available execution providers: the CPU's."""
    return list(PROVIDERS)


def get_all_providers() -> list[str]:
    """All execution providers of Tilewright: the CPU's."""
    return list(PROVIDERS)


def get_device() -> str:
    """The kind of device that sessions use."""
    return "CPU"


def get_version_string() -> str:
    """The version of Tilewright."""
    return __version__


def get_build_info() -> str:
    """A description of this build, for reports."""
    return f"Tilewright Build Info: {__version__}"


def get_default_session_options() -> SessionOptions:
    """A new `SessionOptions` object."""
    return SessionOptions()


def set_default_logger_verbosity(level: int) -> None:
    """Has no effect: sessions have no messages of different verbosity."""


def set_seed(seed: int) -> None:
    """Raises an error: random operators are seeded by their attribute."""
    from tilewright.onnxruntime.errors import Fail

    raise Fail("there is no seed of all sessions", hint="give the operators of the model their attribute 'seed'")


def enable_telemetry_events() -> None:
    """Has no effect: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Has no effect: there is no telemetry."""


def __getattr__(name: str) -> Any:
    raise AttributeError(f"tilewright.onnxruntime has no {name!r}: docs/tutorial/from-onnxruntime.md says what it has")
