"""What all parts of a model share: how they are compiled, the present weights, who runs the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import onnx

from tilewright.frontend.common.finish import Imported
from tilewright.frontend.onnx.section import Section, operator
from tilewright.frontend.onnx.survey import Survey
from tilewright.frontend.onnx.tensors import DTYPES, to_array
from tilewright.parts.hosts import NOBODY, Hosts
from tilewright.parts.plan import is_control
from tilewright.runtime.model import Model
from tilewright.support.errors import Error, Problems, UnsupportedError


class FallbackWarning(UserWarning):
    """Some of a model is not compiled, or not for good."""


@dataclass(slots=True)
class Context:
    """See the head of this file.

    Args:
        build: from a graph with its weights to a loaded model.
        hosts: who runs what is not compiled.
    """

    build: Callable[[Imported, str], Model]
    hosts: Hosts
    updated: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    notes: list[tuple[str, Error]] = field(default_factory=list)

    def compile(self, imported: Imported, section: Section) -> Model:
        """A section's program, with the present weights."""
        present = {n: self.updated[n] for n in imported.weights if n in section.weights and n in self.updated}
        return self.build(replace(imported, weights=imported.weights | present), section.name)

    def weights(self) -> tuple[Mapping[str, Any], int]:
        """Weights that are others than the file's, and their version."""
        return self.updated, self.version

    def initializer(self, section: Section, name: str) -> Any:
        """An initializer's present value."""
        if name in section.weights and name in self.updated:
            return self.updated[name]
        tensor = section.initializers[name]
        if tensor.data_type in DTYPES:
            return to_array(tensor, f"initializer {name!r}", section.loaded.folder)
        return onnx.numpy_helper.to_array(tensor)

    def note(self, section: Section, error: Error) -> None:
        """Remember why a section did not become a program although each of its nodes would."""
        self.notes.append((section.name, error))

    def refuse_unknown(self, section: Section, found: Survey) -> None:
        """Raise UnsupportedError for nodes that nobody runs."""
        problems = Problems()
        for k, (node, verdict) in enumerate(zip(section.nodes, found.nodes, strict=True)):
            if verdict.how != "lacking" or is_control(node):  # a body is cut when it runs
                continue
            if self.hosts.known_by(node, section) == NOBODY:
                problems.add(
                    UnsupportedError(
                        f"nobody here knows the operator {operator(node)}",
                        where=f"{section.loaded.label}: node {section.label(k)}",
                        hint="a plug-in may bring it (docs/plugins.md), or custom_ops=[a class of onnx.reference]",
                    )
                )
        problems.raise_if_any("operators that nobody knows", where=section.loaded.label, kind=UnsupportedError)


__all__ = ["Context", "FallbackWarning"]
