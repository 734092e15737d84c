"""The hosts of nodes that are not compiled: ONNX Runtime where it is installed and takes them, else ONNX's own
reference implementation, which has all of ONNX's operators, and those that a user registers with it (`custom_ops`)."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.onnx import functions
from tilewright.frontend.onnx.order import graphs
from tilewright.frontend.onnx.section import Section, TensorInfo, info_of, operator
from tilewright.frontend.onnx.tensors import embed, tensors_of
from tilewright.support.errors import CallError

ORT = "ONNX Runtime"
REFERENCE = "onnx.reference"
NO_HOST = "no host"

Values = Mapping[str, Any]
Runner = Callable[[Values], Sequence[Any]]

RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
"""Operators with random numbers: only the reference implementation defines what a seed stands for."""

UNSAFE = frozenset(("GRU", "STFT"))
"""Operators that crash the process in ONNX Runtime for some inputs: in 1.32.0 a GRU of an empty sequence, an STFT of
frames without elements."""

_RECURRENT = frozenset(("activations", "activation_alpha", "activation_beta", "clip", "direction", "input_forget"))
LEFT_OUT = {
    "GRU": (_RECURRENT, 4),
    "LSTM": (_RECURRENT, 4),
    "RNN": (_RECURRENT, 4),
    "BatchNormalization": (frozenset(("spatial",)), None),
}
"""For operators of which the reference implementation ignores attributes or an input: these attributes, and the index
of the input. Its results for other values than the default are wrong. Older versions also ignore the direction."""

MAX_NUMBER = 1 << 24
"""The largest number that an attribute may have in a node which the reference implementation runs."""
MAX_SESSIONS = 16
"""The number of prepared sessions that a part keeps for different input types."""


class Hosts:
    """The host implementations that are available.

    Args:
        custom: classes (`onnx.reference.op_run.OpRun`) of operators that are not ONNX's.
        threads: the number of threads for hosts that use several.
    """

    def __init__(self, custom: Sequence[type] = (), threads: int = 1) -> None:
        self.custom = tuple(custom)
        self.threads = threads
        self._names = {(getattr(c, "op_domain", ""), c.__name__) for c in self.custom}

    def known_by(self, node: onnx.NodeProto, section: Section) -> str:
        """The first host that supports a node and all nodes in its subgraphs and functions; "" if there is none."""
        function = functions.local_function(section.loaded.model, node)
        bodies = [graph.node for graph in graphs(node)] + ([function.node] if function is not None else [])
        inner = {self.known_by(n, section) for body in bodies for n in body}
        if NO_HOST in inner:
            return NO_HOST
        if function is not None:
            return REFERENCE if REFERENCE in inner else ORT
        if REFERENCE not in inner and not self._is_for_reference(node) and _ort_knows(node):
            return ORT
        return REFERENCE if self._in_reference(node, section.loaded.opsets.get(node.domain, 1)) else NO_HOST

    def _in_reference(self, node: onnx.NodeProto, opset: int) -> bool:
        """Whether the reference implementation, or an operator registered with it by the user, computes a node
        correctly."""
        return self._is_custom(node) or (reference_knows(node, opset) and not leaves_out(node))

    def _is_custom(self, node: onnx.NodeProto) -> bool:
        return (node.domain, node.op_type) in self._names

    def _is_for_reference(self, node: onnx.NodeProto) -> bool:
        return self._is_custom(node) or node.op_type in RANDOM | UNSAFE

    def prepare(self, section: Section, infos: Mapping[str, TensorInfo | None], weights: Values) -> list[Runner]:
        """Functions that run a section on inputs of these types, in the order in which to try them."""
        model = section.model({n: _open(i) for n, i in infos.items()}, {})
        _set_weights(model, section, weights)
        results: list[Runner] = []
        if not any(self._is_for_reference(node) for node in section.nodes) and all(
            info is not None for info in infos.values()
        ):
            session = _session(model, infos, self.threads)
            if session is not None:
                results.append(session)
        if all(self._is_custom(node) or not leaves_out(node) for node in _all_nodes(section.nodes)):
            reference = _reference(model, self.custom)
            if reference is not None:
                results.append(reference)
        return results


class HostPart:
    """A section of nodes that a host runs without compiling it."""

    def __init__(self, section: Section, hosts: Hosts, weights: Callable[[], tuple[Values, int]]) -> None:
        self.section = section
        self._hosts = hosts
        self._weights = weights
        self._ways: dict[Any, list[Runner]] = {}
        self._lock = threading.Lock()

    def run(self, values: Values) -> dict[str, Any]:
        """Run the section; returns its outputs by name. Raises CallError if no host can compute them."""
        weights, version = self._weights()
        infos = {name: info_of(values[name]) for name in self.section.inputs}
        key = (version, *((i.code, len(i.dims)) if i is not None else None for i in infos.values()))
        with self._lock:
            if key not in self._ways:
                if len(self._ways) >= MAX_SESSIONS:
                    self._ways.clear()
                self._ways[key] = self._hosts.prepare(self.section, infos, weights)
            ways = self._ways[key]
        failures: list[str] = []
        for way in list(ways):
            try:
                results = way(values)
            except Exception as error:  # theirs, of any class
                failures.append(f"{type(error).__name__}: {error}".splitlines()[0][:300])
                if is_refusal(error):
                    break
                continue
            return dict(zip(self.section.outputs, results, strict=True))
        names = ", ".join(dict.fromkeys(operator(n) for n in self.section.nodes))
        raise CallError(
            "the operators cannot be run on these inputs",
            where=f"{self.section.name} ({names})",
            got="; ".join(failures) or f"neither {ORT} nor {REFERENCE} takes them for such types",
        )


def is_refusal(error: Exception) -> bool:
    """Whether ONNX Runtime has checked the inputs and found them invalid: the reference implementation often accepts
    such inputs, as NumPy does, with meaningless results."""
    kind = type(error)
    return kind.__module__.partition(".")[0] == "onnxruntime" and kind.__name__ in ("Fail", "InvalidArgument")


def _set_weights(model: onnx.ModelProto, section: Section, weights: Values) -> None:
    """Put the present weights, and all data that lies in other files, into a model."""
    for tensor in model.graph.initializer:
        if tensor.name in section.weights and tensor.name in weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name], tensor.name))
    # Hosts would look for files themselves, in the present folder.
    for tensor in tensors_of(model):
        embed(tensor, f"{section.loaded.label}: tensor {tensor.name!r}", section.loaded.folder)


def _open(info: TensorInfo | None) -> TensorInfo | None:
    """`info` with all dimensions unknown."""
    return None if info is None else TensorInfo(info.code, tuple(f"_{k}" for k in range(len(info.dims))))


# --- ONNX Runtime ---------------------------------------------------------------------------------------------------


def has_onnxruntime() -> bool:
    """Whether ONNX Runtime is installed."""
    return importlib.util.find_spec("onnxruntime") is not None


@functools.cache
def _ort_schemas() -> frozenset[tuple[str, str]]:
    """The (domain, name) of each operator that the installed ONNX Runtime has."""
    if not has_onnxruntime():
        return frozenset()
    try:
        from onnxruntime.capi import _pybind_state

        return frozenset((s.domain, s.name) for s in _pybind_state.get_all_operator_schema())
    except (ImportError, AttributeError):
        return frozenset((s.domain, s.name) for s in onnx.defs.get_all_schemas())


def _ort_knows(node: onnx.NodeProto) -> bool:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type) in _ort_schemas()


def _session(model: onnx.ModelProto, infos: Mapping[str, TensorInfo | None], threads: int) -> Runner | None:
    """A session of ONNX Runtime that runs the model with `threads` threads; None if ONNX Runtime is not installed or
    refuses the model."""
    if not has_onnxruntime() or any(not _is_native(i) for i in infos.values() if i is not None):
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            oldest(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # its errors have no common class of their own
        return None
    names = [i.name for i in session.get_inputs()]
    if any(not _numpy_has(o.type) for o in session.get_outputs()):
        return None

    def run(values: Values) -> Sequence[Any]:
        results: Sequence[Any] = session.run(None, {name: _as_objects(values[name]) for name in names})
        return results

    return run


def oldest(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the oldest version of ONNX's operators in which its nodes have the same meaning: the installed
    ONNX Runtime may be older than the file."""
    stated = next((o for o in model.opset_import if o.domain == ""), None)
    if stated is None:
        return model
    nodes = list(_all_nodes(model.graph.node)) + [n for f in model.functions for n in _all_nodes(f.node)]
    least = 1
    for node in nodes:
        if node.domain in ("", "ai.onnx"):
            try:
                least = max(least, onnx.defs.get_schema(node.op_type, stated.version, "").since_version)
            except onnx.defs.SchemaError:
                return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    next(o for o in result.opset_import if o.domain == "").version = max(least, min(stated.version, OLD))
    result.ir_version = min(result.ir_version, IR_VERSION)
    return result


OLD = 21
"""A version of ONNX's operators that every ONNX Runtime of the last years has."""
IR_VERSION = 10
"""A version of ONNX's files that every ONNX Runtime of the last years reads."""


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in graphs(node):
            yield from _all_nodes(graph.node)


def _is_native(info: TensorInfo) -> bool:
    """Whether the element type is one of NumPy's own, not of `ml_dtypes`."""
    return info.code == onnx.TensorProto.STRING or bool(onnx.helper.tensor_dtype_to_np_dtype(info.code).isbuiltin == 1)


def _numpy_has(kind: str) -> bool:
    return not any(name in kind for name in ("bfloat16", "float8", "float4", "int4", "int2"))


def _as_objects(value: Any) -> Any:
    return value.astype(object) if isinstance(value, np.ndarray) and value.dtype.kind in "US" else value


# --- the reference --------------------------------------------------------------------------------------------------


def reference_knows(node: onnx.NodeProto, opset: int) -> bool:
    """Whether ONNX's reference implementation supports an operator."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    module = _REFERENCES.get(domain)
    if module is None:
        return False
    try:
        schema = onnx.defs.get_schema(node.op_type, max(opset, 1), domain)
        if schema.has_function or schema.has_context_dependent_function:
            return True
        return importlib.import_module(module).load_op(domain, node.op_type, opset) is not None
    except Exception:  # of several classes: it has none of this name
        return False


def leaves_out(node: onnx.NodeProto) -> bool:
    """Whether a node has an attribute or input that ONNX's reference implementation ignores."""
    ignored, position = LEFT_OUT.get(node.op_type, (frozenset(), None))
    if position is not None and len(node.input) > position and node.input[position]:
        return True
    return any(a.name in ignored and not _is_default(node, a) for a in node.attribute)


def _is_default(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> bool:
    """Whether an attribute has its default value."""
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.name == "activations":
        default = {"GRU": [b"sigmoid", b"tanh"], "LSTM": [b"sigmoid", b"tanh", b"tanh"], "RNN": [b"tanh"]}
        names = [name.lower() for name in value]
        return names in (default[node.op_type], default[node.op_type] * 2)
    return value in {"direction": (b"forward",), "spatial": (1,)}.get(attribute.name, (0, []))


_REFERENCES = {
    "": "onnx.reference.ops",
    "ai.onnx.ml": "onnx.reference.ops.aionnxml",
    "ai.onnx.preview.training": "onnx.reference.ops.aionnx_preview_training",
}


def _reference(model: onnx.ModelProto, custom: Sequence[type]) -> Runner | None:
    from onnx.reference import ReferenceEvaluator

    numbers = (n for node in model.graph.node for a in node.attribute for n in (a.i, *a.ints))
    if any(abs(n) > MAX_NUMBER for n in numbers):
        return None  # it would count to there
    try:
        evaluator = ReferenceEvaluator(model, new_ops=list(custom) or None)
    except Exception:  # of several classes: it lacks something
        return None
    names = [i.name for i in model.graph.input]

    def run(values: Values) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            results: Sequence[Any] = evaluator.run(None, {name: values[name] for name in names})
        return [_as_array(r) for r in results]

    return run


def _as_array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic | int | float | bool) else value


__all__ = ["NO_HOST", "ORT", "REFERENCE", "HostPart", "Hosts", "has_onnxruntime"]
