"""The state shared by all parts of a model: how they are compiled, the present weights, the hosts of the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.common.finish import first_line
from tilewright.frontend.onnx.order import graphs
from tilewright.frontend.onnx.section import Section, operator
from tilewright.frontend.onnx.survey import Survey
from tilewright.frontend.onnx.tensors import DTYPES, embed, to_array
from tilewright.ir.interface import Imported
from tilewright.parts.hosts import NO_HOST, Hosts
from tilewright.parts.plan import is_control
from tilewright.parts.values import is_on_values
from tilewright.runtime.limits import MAX_ITERATIONS
from tilewright.runtime.model import Model
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, ModelError, Problems, UnsupportedError, WeightError


class FallbackWarning(UserWarning):
    """Warns that a part of a model is not compiled, or is compiled under an assumption that a call may break."""


@dataclass(slots=True)
class Context:
    """The state shared by all parts of a model.

    Args:
        build: compiles a graph with its weights to a loaded model.
        hosts: the hosts of the nodes that are not compiled.
        updated: the weights that differ from the file's, and their `version`.
        elsewhere: nodes that turned out not to be compilable, and why.
        arrays: tensors of the file that parts in Python read, by their identity.
        time_limit, max_iterations: the limits of loops without a known bound, see `Model`.
    """

    build: Callable[[Imported, str], Model]
    hosts: Hosts
    updated: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    elsewhere: dict[str, Error] = field(default_factory=dict)
    arrays: dict[int, tuple[onnx.TensorProto, Any]] = field(default_factory=dict)
    time_limit: float | None = None
    max_iterations: int = MAX_ITERATIONS

    def compile(self, imported: Imported, section: Section) -> Model:
        """Compile a section with the present weights."""
        self.check_folded(imported.interface.folded, section, self.updated)
        present = {n: self.updated[n] for n in imported.weights if n in section.weights and n in self.updated}
        model = self.build(replace(imported, weights=imported.weights | present), section.name)
        self.limit(model)
        return model

    def limit(self, model: Model) -> None:
        """Set a part's loop limits to those of the model."""
        model.time_limit, model.max_iterations = self.time_limit, self.max_iterations

    def check_folded(self, folded: Collection[tuple[str, str]], section: Section, updated: Mapping[str, Any]) -> None:
        """Raise WeightError if updated weights differ from the file's where a program has folded them into code or
        constants."""
        problems = Problems()
        for name, element in folded:
            if name in updated and name in section.initializers:
                held = self.tensor(section, name)
                if not np.array_equal(held, updated[name], equal_nan=True):
                    problems.add(WeightError(f"cannot change: {element}", where=f"weight {name!r}"))
        problems.raise_if_any("the weights do not fit", kind=WeightError)

    def weights(self) -> tuple[Mapping[str, Any], int]:
        """The weights that differ from the file's, and their version."""
        return self.updated, self.version

    def initializer(self, section: Section, name: str) -> Any:
        """The present value of an initializer: the updated weight if there is one, else the array in the model's
        file."""
        if name in section.weights and name in self.updated:
            return self.updated[name]
        return self.tensor(section, name)

    def tensor(self, section: Section, name: str) -> Any:
        """The value of the initializer `name` in the model's file, as a NumPy array; updates of weights do not change
        it."""
        tensor = section.initializers[name]
        if id(tensor) not in self.arrays:
            where = f"initializer {name!r}"
            if tensor.data_type in DTYPES:
                array = to_array(tensor, where, section.loaded.folder)
            else:
                embed(tensor, where, section.loaded.folder)
                array = onnx.numpy_helper.to_array(tensor)
            self.arrays[id(tensor)] = (tensor, array)
        return self.arrays[id(tensor)][1]

    def refuse_unknown(self, section: Section, result: Survey) -> None:
        """Raise for nodes that are not compiled and that no host runs: ModelError where one is no valid ONNX,
        UnsupportedError where its operator is unknown."""
        problems = Problems()
        for k, (node, verdict) in enumerate(zip(section.nodes, result.nodes, strict=True)):
            if verdict.how != "lacking" or is_control(node) or is_on_values(node):  # a body is cut when it runs
                continue
            where = f"{section.loaded.label}: node {section.label(k)}"
            wrong = invalid(section, node)
            if wrong is not None:
                what = verdict.error.what if verdict.error is not None else "the node is not valid"
                problems.add(ModelError(what, where=where, got=wrong))
            elif self.hosts.known_by(node, section) == NO_HOST:
                hint = "a plug-in may bring it (docs/plugins.md), or custom_ops=[a class of onnx.reference]"
                problems.add(UnsupportedError(f"no host knows the operator {operator(node)}", where=where, hint=hint))
        problems.raise_if_any("nodes that no host can run", where=section.loaded.label)


def invalid(section: Section, node: onnx.NodeProto) -> str | None:
    """The fault that ONNX's checker finds in a node of an ONNX operator; None if there is none."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if not onnx.defs.has(node.op_type, domain) or next(graphs(node), None) is not None:
        return None
    checks = onnx.checker.C.CheckerContext()
    stated = section.loaded.model.ir_version
    checks.ir_version = stated if 0 < stated < onnx.IR_VERSION else onnx.IR_VERSION
    checks.opset_imports = section.loaded.opsets
    try:
        onnx.checker.check_node(node, checks)
    except onnx.checker.ValidationError as error:
        return first_line(error)
    return None


__all__ = ["Context", "FallbackWarning"]
