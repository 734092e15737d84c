"""`InferenceSession` (`tw.Session`): a compiled model with the interface of ONNX Runtime's session.

import tilewright.onnxruntime as onnxruntime     the one line that changes

session = onnxruntime.InferenceSession("policy.onnx")
action, value = session.run(None, {"obs": obs})
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.onnxruntime.binding import IOBinding
from tilewright.onnxruntime.calls import CallLog
from tilewright.onnxruntime.description import ModelMetadata, NodeArg
from tilewright.onnxruntime.devices import OrtMemoryInfo
from tilewright.onnxruntime.errors import Fail, InvalidArgument
from tilewright.onnxruntime.feed import as_input, check_names
from tilewright.onnxruntime.logs import log
from tilewright.onnxruntime.options import RunOptions, SessionOptions
from tilewright.onnxruntime.providers import PROVIDERS, chosen_providers
from tilewright.onnxruntime.source import Compiled, source_of
from tilewright.onnxruntime.values import OrtValue, OrtValueVector
from tilewright.runtime.model import Model
from tilewright.support.errors import CallError

_EMPTY: Mapping[str, Any] = {}


class InferenceSession:
    """A model, compiled, that runs by the names of its inputs and outputs. Any number of threads may call it at once.

    Args:
        path_or_bytes: the path of an ONNX file or a .tw file, the bytes of an ONNX file, an `onnx.ModelProto`, or a
            model that `tw.compile` made.
        sess_options: options; those that a session of ONNX Runtime has.
        providers: names of execution providers, or pairs of a name and options. All programs are the processor's: any
            other name is left out with a warning, as ONNX Runtime does where a provider is not there.
        provider_options: options of the providers, which change nothing.
        kwargs: options of `tw.compile` (`precision`, `dims`, `target`, ...), and `read_config_from_model`.

    Raises the errors of `tilewright.onnxruntime.errors`, each a `tilewright.Error` too; ValueError for inputs that are
    missing and TypeError for what is no model, as ONNX Runtime does.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise TypeError(f"sess_options must be SessionOptions: got {type(sess_options)}")
        self._providers = chosen_providers(providers, provider_options)
        self._options = options = sess_options or SessionOptions()
        default = os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL") == "1"
        from_model = int(kwargs.pop("read_config_from_model", default)) == 1
        for name in ("enable_fallback", "disabled_optimizers"):  # about ONNX Runtime's own providers and passes
            kwargs.pop(name, None)
        began = time.monotonic_ns()
        self._source = source = source_of(path_or_bytes, options, from_model, kwargs)
        self._model = source.model
        self._variants: dict[frozenset[str], Compiled] = {}
        self._arrays = isinstance(source.model, Model)  # whose inputs are arrays of numbers
        self._names = frozenset(i.name for i in source.inputs)
        self._output_names = [o.name for o in source.outputs]
        self._log: CallLog | None = None
        if options.enable_profiling:
            self._log = CallLog(options.profile_file_prefix)
            self._log.add("session_initialization", max(began, self._log.start_ns))
        what = "a session of %s: %d inputs, %d outputs, ready in %.1f ms"
        took = (time.monotonic_ns() - began) / 1e6
        log.info(what, self._model.name, len(source.inputs), len(source.outputs), took, extra={"logid": options.logid})

    # -- runs ----------------------------------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run the model; returns the outputs `output_names` in this order, or all if it is None or empty.

        Args:
            input_feed: arrays, lists of numbers, `OrtValue`s; lists of those for sequences; None for an optional that
                is empty.
        """
        names = self._asked(output_names)
        results = self._results(input_feed, run_options)
        return [results[name] for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run on the inputs `input_feed`, by name, in another thread, which then calls `callback(results, user_data,
        "")` with the outputs `output_names` (None: all), or with an empty list and a text if the run failed."""
        from tilewright.runtime.pending import in_background

        names = self._asked(output_names)
        check_names(self._source.inputs, self._source.overridable, input_feed)

        def run() -> None:
            try:
                results = self.run(names, input_feed, run_options)
            except Exception as error:
                callback([], user_data, str(error) or type(error).__name__)
            else:
                callback(results, user_data, "")

        in_background(run, (), None, {})

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> OrtValueVector:
        """Run the model on `OrtValue`s by name; returns the outputs as `OrtValue`s."""
        return OrtValueVector(map(OrtValue, self.run(output_names, input_dict_ort_values, run_options)))

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run the model on the inputs that `iobinding` has; outputs that are bound to memory are written there."""
        targets = iobinding.targets
        if not targets:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        try:
            results = self._results(iobinding.feed, run_options, targets)
        except (CallError, ValueError) as error:
            raise RuntimeError(f"Error in execution: {error}") from error
        iobinding.keep({name: results[name] for name in targets})

    def io_binding(self) -> IOBinding:
        """A binding for this session."""
        return IOBinding(self)

    def _asked(self, names: Sequence[str] | None) -> Sequence[str]:
        """The outputs to compute: `names`, or all if None or empty."""
        if not names:
            return self._output_names
        if isinstance(names, str):
            raise TypeError(f"output_names is a sequence of names: got the text {names!r}")
        for name in names:
            if name not in self._output_names:
                raise InvalidArgument(f"Invalid output name:{name}", expected=f"some of {self._output_names}")
        return names

    def _results(
        self, feed: Mapping[str, Any], options: RunOptions | None, targets: Mapping[str, Any] = _EMPTY
    ) -> dict[str, Any]:
        if options is not None and options.terminate:
            raise Fail("Exiting due to terminate flag being set to true.")
        began = time.monotonic_ns() if self._log is not None else 0
        results = self._computed(feed, targets)
        if self._log is not None:
            self._log.add("model_run", began)
        return results

    def _computed(self, feed: Mapping[str, Any], targets: Mapping[str, Any]) -> dict[str, Any]:
        """All outputs by name for the inputs `feed`; outputs that `targets` names are written to its arrays. Values
        that fit go to the model unchanged; others are checked and converted first."""
        if self._arrays and feed.keys() == self._names and not targets and all(map(_is_array, feed.values())):
            try:
                return self._model.run(feed)
            except CallError:
                pass  # which is explained below, in the words that callers of a session expect
        source = self._source
        check_names(source.inputs, source.overridable, feed)
        args = {i.name: i for i in (*source.inputs, *source.overridable)}
        overridden = frozenset(name for name in feed if name not in self._names)
        inputs = {
            name: as_input(feed.get(name), args[name]) for name in (*(i.name for i in source.inputs), *overridden)
        }
        model = self._variant(overridden)
        out = {name: array for name, array in targets.items() if array is not None}
        try:
            return model.run(inputs, out=out) if out else model.run(inputs)
        except CallError as error:
            raise InvalidArgument(str(error)) from error

    def _variant(self, overridden: frozenset[str]) -> Compiled:
        """The model compiled with these initializers as inputs, from a cache."""
        if not overridden:
            return self._model
        if overridden not in self._variants:
            assert self._source.variant is not None, "names were checked"
            self._variants[overridden] = self._source.variant(overridden)
        return self._variants[overridden]

    # -- what it is ----------------------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """Names, types and shapes of the inputs."""
        return self._source.inputs

    def get_outputs(self) -> list[NodeArg]:
        """Names, types and shapes of the outputs."""
        return self._source.outputs

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that a feed may have as well: those that the file lists among its inputs."""
        return self._source.overridable

    def get_modelmeta(self) -> ModelMetadata:
        """The file's description of itself."""
        return self._source.metadata

    def get_session_options(self) -> SessionOptions:
        """The options of the session."""
        return self._options

    def get_providers(self) -> list[str]:
        """The providers in use: the processor's."""
        return list(PROVIDERS)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The providers in use, each with its options."""
        return {name: dict(self._providers.get(name, {})) for name in PROVIDERS}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[dict[Any, Any]] | None = None
    ) -> None:
        """Choose providers; RuntimeError for a name that is none."""
        self._providers = chosen_providers(providers, provider_options, strict=True)

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where each input lies: in main memory."""
        return [OrtMemoryInfo() for _ in self._source.inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Where each output lies: in main memory."""
        return [OrtMemoryInfo() for _ in self._source.outputs]

    def get_input_epdevices(self) -> list[None]:
        """The device that each input should lie on: none in particular."""
        return [None for _ in self._source.inputs]

    def get_tuning_results(self) -> list[dict[str, Any]]:
        """No results: tuning records are files of their own (`tw.tune`, docs/records.md)."""
        return []

    def enable_fallback(self) -> None:
        """Has no effect: there is one provider."""

    def disable_fallback(self) -> None:
        """Has no effect: there is one provider."""

    def end_profiling(self) -> str:
        """Write the profile that the options requested; returns the file's name, or "" if none was requested."""
        if self._log is None:
            warnings.warn("profiling is not enabled: SessionOptions.enable_profiling", stacklevel=2)
            return ""
        log, self._log = self._log, None
        return log.write()

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, by `time.monotonic_ns`; 0 if it did not."""
        return self._log.start_ns if self._log is not None else 0

    @property
    def model(self) -> Compiled:
        """The compiled model: what `tw.compile` gives, with `update`, `save`, `stream` and all else."""
        return self._model

    @property
    def _sess(self) -> _Core:
        return _Core(self)

    def __reduce__(self) -> Any:
        raise TypeError("a session cannot be sent to another process: send the file's path, or model.save a .tw file")

    def __repr__(self) -> str:
        return f"<InferenceSession of {self._model!r}>"


def _is_array(value: object) -> bool:
    return type(value) is np.ndarray


class _Core:
    """The object that ONNX Runtime's sessions keep in `_sess`, for programs that use it: the order of its arguments
    differs."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, output_names: Sequence[str], feed: Mapping[str, Any], options: RunOptions | None = None) -> list[Any]:
        return self._session.run(output_names, feed, options)

    def run_with_ort_values(
        self, feed: Mapping[str, OrtValue], output_names: Sequence[str], options: RunOptions | None = None
    ) -> OrtValueVector:
        return self._session.run_with_ort_values(output_names, feed, options)

    def run_with_iobinding(self, binding: IOBinding, options: RunOptions | None = None) -> None:
        self._session.run_with_iobinding(binding, options)


class SessionIOBinding(IOBinding):
    """A binding made from the object that a session keeps in `_sess`, or from a session."""

    def __init__(self, core: _Core | InferenceSession) -> None:
        super().__init__(core._session if isinstance(core, _Core) else core)


__all__ = ["InferenceSession", "SessionIOBinding"]
