"""Options of sessions and runs, as ONNX Runtime has them.

Those that decide something here: threads, sizes of symbolic dimensions, initializers that replace the model's,
profiles, the file of the model as it was read, and the end of a run. All others are kept and given back, and change
nothing: they are about kernels, memory and logs that are ONNX Runtime's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from tilewright.onnxruntime.errors import Fail
from tilewright.onnxruntime.values import OrtValue


class GraphOptimizationLevel(IntEnum):
    """How much ONNX Runtime rewrites a graph; every model is compiled alike here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """How ONNX Runtime orders branches. It has no effect here: what runs in parallel is decided when a program is
    compiled."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """The order in which ONNX Runtime runs nodes. It has no effect here."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Entries:
    """Entries of a configuration: texts by name."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _entry(self, key: str, kind: str) -> str:
        if key not in self._entries:
            raise RuntimeError(f"{kind} does not have configuration with key: {key}")
        return self._entries[key]


class SessionOptions(_Entries):
    """Options of a session.

    Those with a meaning here:
        intra_op_num_threads: threads of a call at most, 0 for all cores that the process may use.
        enable_profiling, profile_file_prefix: note each call in a file, which `end_profiling` writes.
        optimized_model_filepath: write the model, as it was read and with these options, to this file.
        add_free_dimension_override_by_name, ..._by_denotation: a dimension is this number.
        add_initializer, add_external_initializers: other values for initializers of the model.
        add_external_initializers_from_files_in_memory: files of such values, which need not be on a disk.
    """

    __slots__ = (
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "enable_mem_reuse",
        "enable_profiling",
        "execution_mode",
        "execution_order",
        "files",
        "graph_optimization_level",
        "initializers",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "optimized_model_filepath",
        "profile_file_prefix",
        "sizes_by_denotation",
        "sizes_by_name",
        "use_deterministic_compute",
        "use_per_session_threads",
    )

    def __init__(self) -> None:
        super().__init__()
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.inter_op_num_threads = 0
        self.intra_op_num_threads = 0
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "onnxruntime_profile_"
        self.use_deterministic_compute = False
        self.use_per_session_threads = True
        self.files: dict[str, Any] = {}
        self.initializers: dict[str, OrtValue] = {}
        self.sizes_by_name: dict[str, int] = {}
        self.sizes_by_denotation: dict[str, int] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        kind = _ENUMERATIONS.get(name)
        if kind is not None and not isinstance(value, kind):
            raise TypeError(f"{name} is a {kind.__name__}: got {value!r}")
        if name in _WHOLE_NUMBERS and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise TypeError(f"{name} is a whole number, 0 or more: got {value!r}")
        super().__setattr__(name, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set the entry `key` of the session's configuration to the text `value`."""
        self._entries[key] = str(value)

    def get_session_config_entry(self, key: str) -> str:
        """An entry of the configuration; RuntimeError if there is none."""
        return self._entry(key, "SessionOptions")

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the symbolic dimension with this name to a number."""
        self.sizes_by_name[name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix dimensions that the file marks with this denotation ("DATA_BATCH") to a number."""
        self.sizes_by_denotation[denotation] = int(size)

    def add_initializer(self, name: str, value: OrtValue) -> None:
        """Replace the value of an initializer of the model."""
        self.initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Set the values of initializers whose external file is absent. RuntimeError if the lists differ in length."""
        if len(names) != len(values):
            raise RuntimeError("Names and values must have the same length")
        self.initializers.update(zip(names, values, strict=True))

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Give the contents of files, in which initializers have their elements, that are not read from their folder.

        Args:
            names: the files as the model names them.
            buffers: for each file bytes, or another object with the buffer protocol.
            lengths: how many of those bytes are the file.
        """
        if not len(names) == len(buffers) == len(lengths):
            raise RuntimeError("Names, buffers and lengths must have the same length")
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            view = memoryview(buffer)
            if not view.c_contiguous:
                raise RuntimeError(f"the buffer of the file {name!r} is not contiguous")
            view = view.cast("B") if view.nbytes else memoryview(b"")
            if not 0 <= length <= len(view):
                raise RuntimeError(f"the file {name!r} has {length} bytes, but its buffer has {len(view)}")
            self.files[name] = view[:length]

    def register_custom_ops_library(self, path: str) -> None:
        """Raises an error: such a library needs ONNX Runtime's own memory and kernels."""
        raise Fail(
            f"Failed to load library {path} with error: operators of a library of ONNX Runtime's cannot be used",
            hint="give classes of onnx.reference: tw.compile(model, custom_ops=[...]), then tw.Session(model)",
        )

    def has_providers(self) -> bool:
        """Whether options name execution providers; they never do."""
        return False


class RunOptions(_Entries):
    """Options of a run. `terminate`: runs with these options end before they begin; all others change nothing."""

    __slots__ = (
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "only_execute_path_to_fetches",
        "synchronize_execution_providers",
        "terminate",
        "training_mode",
    )

    def __init__(self) -> None:
        super().__init__()
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.synchronize_execution_providers = False
        self.terminate = False
        self.training_mode = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set the entry `key` of the run's configuration to the text `value`."""
        self._entries[key] = str(value)

    def get_run_config_entry(self, key: str) -> str:
        """An entry of the configuration; RuntimeError if there is none."""
        return self._entry(key, "RunOptions")

    def add_active_adapter(self, adapter: object) -> None:
        """Raises an error: adapters, weights that are added at each run, are not supported."""
        raise Fail("adapters are not supported", hint="add their product to the weights, and model.update(weights)")


_ENUMERATIONS: dict[str, type[IntEnum]] = {
    "execution_mode": ExecutionMode,
    "execution_order": ExecutionOrder,
    "graph_optimization_level": GraphOptimizationLevel,
}
_WHOLE_NUMBERS = ("inter_op_num_threads", "intra_op_num_threads")


def configure(options: SessionOptions, entries: Mapping[str, Any]) -> None:
    """Set `options` from `entries`, the object "session_options" in a model's metadata "ort_config"."""
    for name, value in entries.items():
        match name:
            case "intra_op_num_threads" | "inter_op_num_threads":
                setattr(options, name, value)
            case "graph_optimization_level":
                options.graph_optimization_level = GraphOptimizationLevel(value)
            case "execution_mode":
                options.execution_mode = ExecutionMode(value)
            case "enable_profiling":
                options.enable_profiling = bool(value)


__all__ = ["ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "RunOptions", "SessionOptions", "configure"]
