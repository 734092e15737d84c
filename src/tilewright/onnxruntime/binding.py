"""`IOBinding`: inputs and outputs that are bound once and used by several runs. Here all of them lie in main memory, so
that nothing is copied between devices; an output that is bound to memory is written there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.onnxruntime.description import NodeArg
from tilewright.onnxruntime.devices import OrtDevice, check_device
from tilewright.onnxruntime.values import OrtValue, OrtValueVector, view_memory
from tilewright.runtime.interop import Array

if TYPE_CHECKING:
    from tilewright.onnxruntime.session import InferenceSession


class IOBinding:
    """Inputs and outputs for `InferenceSession.run_with_iobinding`. Memory that is bound by its address must live as
    long as it is bound; arrays and values are kept."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._bound: dict[str, Array | None] = {}
        self._results: dict[str, Any] = {}

    # -- binding -------------------------------------------------------------------------------------------------------

    def bind_cpu_input(self, name: str, array: Any) -> None:
        """Use `array` as the input `name`."""
        self._input(name)
        self._inputs[name] = array

    def bind_input(self, name: str, device: str | OrtDevice, *rest: Any, **named: Any) -> None:
        """Use the memory at an address as an input: (name, "cpu", 0, element_type, shape, address), or without the
        number where the device is an `OrtDevice`."""
        self._input(name)
        self._inputs[name] = _memory(device, rest, named)

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        """Use `value` as the input `name`."""
        self._input(name)
        self._inputs[name] = value

    def bind_output(self, name: str, device: str | OrtDevice = "cpu", *rest: Any, **named: Any) -> None:
        """Ask for the output `name`: in new memory, or at an address given by the same arguments as for
        `bind_input`."""
        self._output(name)
        self._bound[name] = _memory(device, rest, named)

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """Have the output `name` written into the memory of `value`."""
        self._output(name)
        self._bound[name] = value.numpy()

    def clear_binding_inputs(self) -> None:
        """Forget all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget all bound outputs, and the results of earlier runs."""
        self._bound.clear()
        self._results.clear()

    def synchronize_inputs(self) -> None:
        """Has no effect: inputs are read in place."""

    def synchronize_outputs(self) -> None:
        """Has no effect: outputs are complete when a run ends."""

    # -- results -------------------------------------------------------------------------------------------------------

    def get_outputs(self) -> OrtValueVector:
        """The outputs of the last run, in the order in which outputs were bound."""
        return OrtValueVector(OrtValue(self._results[name]) for name in self._bound if name in self._results)

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """The outputs of the last run."""
        return self.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run, as arrays of their own."""
        values = [self._results[name] for name in self._bound if name in self._results]
        return [v.copy() if isinstance(v, np.ndarray) else v for v in values]

    # -- for the session -----------------------------------------------------------------------------------------------

    @property
    def feed(self) -> dict[str, Any]:
        """The bound inputs by name."""
        return self._inputs

    @property
    def targets(self) -> dict[str, Array | None]:
        """The outputs that are asked for, each with the memory that it goes to."""
        return self._bound

    def keep(self, results: dict[str, Any]) -> None:
        """Store the results of a run."""
        self._results = results

    def _input(self, name: str) -> NodeArg:
        return _named([*self._session.get_inputs(), *self._session.get_overridable_initializers()], name)

    def _output(self, name: str) -> NodeArg:
        return _named(self._session.get_outputs(), name)


def _named(args: Sequence[NodeArg], name: str) -> NodeArg:
    for arg in args:
        if arg.name == name:
            return arg
    raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")


def _memory(device: str | OrtDevice, rest: Sequence[Any], named: dict[str, Any]) -> Array | None:
    """The array at the memory that a caller describes by ([device number,] element type, shape, address), partly in
    `rest`, by position, and partly in `named`; None if it asks for new memory. Raises RuntimeError if there is an
    address without type or shape."""
    check_device(device)
    names = ["device_id", "element_type", "shape", "buffer_ptr"] if isinstance(device, str) else _WHERE
    arguments = dict(zip(names, rest, strict=False)) | named
    element, shape, address = (arguments.get(n) for n in _WHERE)
    if address is None:
        return None
    if element is None or shape is None:
        raise RuntimeError("memory at an address has an element type and a shape")
    return view_memory(int(address), [int(n) for n in shape], element)


_WHERE = ["element_type", "shape", "buffer_ptr"]

__all__ = ["IOBinding"]
