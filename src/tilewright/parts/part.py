"""`Part`: a section of a model that is compiled when enough is known of its inputs, in as many forms as are needed.

If the types that the model states suffice, the part is compiled at once. Facts that only a call shows (the rank of a
foreign operator's result, a shape that is an input) are taken from the call's inputs: the part is compiled for them,
and the code kept. A part that turns out not to be compilable is cut into smaller parts.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from tilewright.frontend.common.finish import reason
from tilewright.frontend.onnx import import_onnx
from tilewright.frontend.onnx.section import Section, Types, operator
from tilewright.frontend.onnx.survey import Survey, survey
from tilewright.parts.context import Context, FallbackWarning
from tilewright.parts.control import ControlPart, control_node
from tilewright.parts.hosts import HostPart
from tilewright.parts.plan import Step, cut
from tilewright.parts.values import ValuePart
from tilewright.parts.variants import MAX_VALUE, History, Pattern, Values, observed
from tilewright.runtime.model import Model
from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError, Error, UnsupportedError

Watch = Callable[[str, str, float], None]

MAX_FORMS = 16
"""The number of compiled forms that a part keeps; the least recently used one is dropped first."""
OFTEN = 8
"""The number of forms of a part at which a warning says that it is compiled often."""
TOO_OFTEN = 32
"""The largest number of forms of a part if the caller states no limit."""


@dataclass(slots=True)
class NativeForm:
    """A form of a part: a compiled program for one pattern of inputs."""

    model: Model
    outputs: tuple[str, ...]

    def run(self, values: Values, watch: Watch | None = None) -> dict[str, Any]:
        start = time.perf_counter()
        result = self.model.run({i.name: values[i.name] for i in self.model.inputs})
        if watch is not None:
            watch(self.model.name, f"{len(self.model.manifest.run_steps)} kernels", time.perf_counter() - start)
        return result


@dataclass(slots=True)
class CutForm:
    """A form of a part: several smaller parts, run one after another."""

    steps: list[tuple[Step, Part | HostPart | ControlPart | ValuePart]]
    section: Section
    context: Context
    last: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find out after which step each value between the steps is no longer needed."""
        keep = {*self.section.outputs, *self.section.inputs}
        for step, _ in reversed(self.steps):
            names = {*step.section.inputs, *step.section.outputs} - keep
            keep |= names
            self.last.insert(0, tuple(names))

    def run(self, values: Values, watch: Watch | None = None) -> dict[str, Any]:
        result = dict(values)
        for (step, part), done in zip(self.steps, self.last, strict=True):
            inputs = {name: result[name] for name in step.section.inputs}
            if isinstance(part, Part):
                result.update(part.run(inputs, watch))
            else:
                start = time.perf_counter()
                result.update(part.run(inputs))
                if watch is not None:
                    names = ", ".join(dict.fromkeys(operator(n) for n in step.section.nodes))
                    watch(step.section.name, names, time.perf_counter() - start)
            for name in done:
                del result[name]
        return {
            n: result[n] if n in result else self.context.initializer(self.section, n) for n in self.section.outputs
        }


Form = NativeForm | CutForm


class Part:
    """A section of a model that is compiled in as many forms as its inputs require.

    Args:
        section: the nodes to compute.
        context: what all parts of a model share.
        types: of inputs, as far as they are stated; a name that is missing has an unknown type.
        needs: inputs that must be known by value.
        depth: in how many other parts this one is nested.
        max_forms: forms after which nodes that need values are no longer compiled for them.
    """

    def __init__(
        self,
        section: Section,
        context: Context,
        types: Types,
        needs: frozenset[str] = frozenset(),
        depth: int = 0,
        iteration_limit: int | None = None,
    ) -> None:
        self.section = section
        self.context = context
        self.types = types
        self.needs = needs
        self.depth = depth
        self.max_forms = TOO_OFTEN if iteration_limit is None else iteration_limit
        self.failure: Error | None = None
        self.forms: list[tuple[Pattern, Form]] = []
        self.built = 0
        self._history = History()
        self._lock = threading.RLock()

    # --- ahead of calls -----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Compile the form for the stated types, if they suffice."""
        if self.section.nodes and not self.needs and all(self.types.get(n) is not None for n in self.section.inputs):
            types = {n: self.types[n] for n in self.section.inputs}
            form = self._native(types, {})
            if form is not None:
                self._keep(types, {}, form)

    def plan(self, result: Survey) -> CutForm:
        """Cut the section into smaller parts as the survey `result` says, and return them. If the types of all inputs
        are stated, later calls with these types use the same parts."""
        form = self._cut(result)
        names = self.section.inputs
        if all(name in self.types for name in names):
            self._keep({n: self.types[n] for n in names}, {}, form)
        return form

    # --- calls --------------------------------------------------------------------------------------------------------

    def run(self, values: Values, watch: Watch | None = None) -> dict[str, Any]:
        """Run the part on these inputs; returns its outputs by name. `watch` is called with each part's name, its kind
        and its seconds."""
        if not self.section.nodes:
            return {n: values[n] if n in values else self.initializer(n) for n in self.section.outputs}
        form = self._find(values)
        if form is None:
            with self._lock:
                form = self._find(values) or self._build(values)
        return form.run(values, watch)

    def _find(self, values: Values) -> Form | None:
        for k, entry in enumerate(self.forms):
            if entry[0].takes(values):
                if k > MAX_FORMS // 2:
                    with self._lock:
                        self.forms = [entry, *(e for e in self.forms if e is not entry)]
                return entry[1]
        return None

    def initializer(self, name: str) -> Any:
        return self.context.initializer(self.section, name)

    def _keep(self, types: Types, values: Values, form: Form) -> Form:
        fixed = {name: np.asarray(v).tobytes() for name, v in values.items()}
        least: dict[str, int] = {}
        if isinstance(form, NativeForm):
            least = _least(types, form.model)
        self.forms = [(Pattern(types, fixed, least), form), *self.forms[: MAX_FORMS - 1]]
        return form

    # --- new forms ----------------------------------------------------------------------------------------------------

    def _build(self, values: Values) -> Form:
        self.built += 1
        if self.built == OFTEN:
            self._warn_often()
        candidates = self._candidates(values)
        lacking: dict[int, Error] = {}
        while True:
            known = {n: values[n] for n in self.needs} if self.built <= self.max_forms else {}
            for types in candidates:
                result = survey(self.section, types, known, lacking)
                if all(s.how in ("native", "known") for s in result.nodes):
                    form = self._native(types, known)
                    if form is not None:
                        return self._keep(types, known, form)
            if not self._learn(survey(self.section, candidates[0], known, lacking), values, lacking):
                return self._build_cut(candidates[0], known, lacking)

    def _candidates(self, values: Values) -> list[Types]:
        """The types for which a form for the inputs `values` might be compiled, the most general first."""
        exact = observed(values, self.section.inputs)
        results: list[Types] = []
        stated = {n: self.types[n] for n in self.section.inputs if n in self.types}
        no_zero = not any(0 in info.dims for info in exact.values() if info is not None)
        if no_zero and len(stated) == len(exact) and Pattern(stated, {}, {}).takes(values):
            results.append(stated)
        for types in (self._history.observe(exact), exact):
            if types not in results:
                results.append(types)
        return results

    def _build_cut(self, types: Types, known: Values, lacking: Mapping[int, Error]) -> Form:
        """Cut the section into smaller parts: for any values of the inputs if that suffices, else for the values
        `known`. `lacking` are the nodes that cannot be compiled, with the reasons."""
        if self.depth < MAX_DEPTH:
            for values in [{}, known] if known else [{}]:
                result = survey(self.section, types, values, lacking)
                if _is_smaller(self.section, result):
                    return self._keep(types, values, self._cut(result))
        why = self.failure or UnsupportedError("the part is inside of too many others")
        all_lacking = dict.fromkeys(range(len(self.section.nodes)), why) | dict(lacking)
        return self._keep(types, {}, self._cut(survey(self.section, types, {}, all_lacking)))

    def _learn(self, result: Survey, values: Values, lacking: dict[int, Error]) -> bool:
        """Note what the survey `result` requires: inputs that must be known by value, or nodes that cannot be compiled.
        Returns whether any requirement is new."""
        new = False
        for k, node in enumerate(result.nodes):
            if not node.needs:
                continue
            mine = [n for n in node.needs if n in self.section.inputs]
            exceeds = self.built > self.max_forms or any(_elements(values[n]) > MAX_VALUE for n in mine)
            if exceeds or (mine and set(mine) <= self.needs):
                lacking[k] = node.error or UnsupportedError("a value must be known when compiling")
                new = True
            elif mine:
                self.needs |= frozenset(mine)
                new = True
        return new

    def _native(self, types: Types, known: Values) -> NativeForm | None:
        """The section compiled as one program for inputs of `types`, with the values `known` of some; None if that is
        impossible."""
        free = {n: t for n, t in types.items() if n not in known}
        try:
            imported = import_onnx(self.section.model(free, known))
            model = self.context.compile(imported, self.section)
        except Error as error:
            self.failure = error
            return None
        except Exception as error:  # a defect of ours is no reason to give no answer, but one to be told
            self.failure = CompileError("a defect of Tilewright, please report it", got=reason(error))
            return None
        return NativeForm(model, self.section.outputs)

    def _cut(self, result: Survey) -> CutForm:
        context = self.context
        context.refuse_unknown(self.section, result)
        parts: list[tuple[Step, Part | HostPart | ControlPart | ValuePart]] = []
        for step in cut(self.section, result):
            part: Part | HostPart | ControlPart | ValuePart
            if step.kind == "compiled":
                part = Part(step.section, context, step.types, step.needs, self.depth + 1, self.max_forms)
                part.prepare()
            elif step.kind == "control":
                # What decides the structure inside of a loop may change with every iteration: nothing is made for it.
                iteration_limit = 0 if control_node(step.section).op_type == "Loop" else self.max_forms
                make = partial(Part, context=context, types={}, depth=self.depth + 1, iteration_limit=iteration_limit)
                part = ControlPart(step.section, make, context)
            elif step.kind == "values":
                part = ValuePart(step.section, context.initializer)
            else:
                part = HostPart(step.section, context.hosts, context.weights)
            parts.append((step, part))
            context.elsewhere.update((step.section.label(k), e) for k, e in step.reasons.items() if e is not None)
        return CutForm(parts, self.section, context)

    def models(self) -> Iterator[tuple[Model, Section]]:
        """Yield all compiled programs of the part, each with its section."""
        for _, form in self.forms:
            if isinstance(form, NativeForm):
                yield form.model, self.section
            else:
                for _, part in form.steps:
                    if isinstance(part, Part | ControlPart):
                        yield from part.models()

    def _warn_often(self) -> None:
        what = ", ".join(sorted(self.needs)) or "its inputs' sizes"
        warnings.warn(
            f"{self.section.name}: the part has been compiled {OFTEN} times, each time for other values of {what}",
            FallbackWarning,
            stacklevel=2,
        )


MAX_DEPTH = 16
"""The largest depth of parts nested in parts."""


def _least(types: Types, model: Model) -> dict[str, int]:
    """The least sizes that a program accepts, by the names of the pattern's symbols."""
    lows = {s.name: s.lo for s in model.manifest.symbols}
    least: dict[str, int] = {}
    for spec in model.inputs:
        info = types.get(spec.name)
        for want, have in zip(info.dims if info is not None else (), spec.shape, strict=False):
            if isinstance(want, str) and isinstance(have, str):
                least[want] = max(least.get(want, 1), lows.get(have, 1))
    return least


def _is_smaller(section: Section, result: Survey) -> bool:
    """Whether a cut yields parts that are all smaller than the section."""
    steps = cut(section, result)
    return all(step.kind != "compiled" or len(step.section.nodes) < len(section.nodes) for step in steps)


def _elements(value: Any) -> int:
    return int(value.size) if isinstance(value, np.ndarray) else MAX_VALUE + 1


__all__ = ["CutForm", "NativeForm", "Part"]
