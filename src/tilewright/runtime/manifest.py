"""The manifest: everything that the runtime must know about a program besides its code and weights.

The compiler fills it in, the artifact stores it as JSON, and the runtime trusts nothing of it: `Manifest.check`
refuses whatever would make the call glue, the memory planner or the loader read or write out of bounds.

Slots, in order (see `codegen/llvm/entry.py` for the native entry that uses them):

    run      [inputs | outputs | packed | run_temps | control]
    prepare  [params | packed | prepare_temps]

`control` is the address of the words by which loops that nothing known bounds are ended (`limits.py`).
"""

from __future__ import annotations

import json
from dataclasses import field
from typing import Any

from tilewright.runtime.consistent import inconsistencies
from tilewright.runtime.recorded import RecordUse
from tilewright.runtime.schema import SchemaError, decode, encode
from tilewright.runtime.specs import (
    ABI_VERSION,
    AssumptionSpec,
    CheckSpec,
    InputSpec,
    OutputSpec,
    PackedSpec,
    ParamSpec,
    PatternSpec,
    RaggedSpec,
    RoomSpec,
    StateSpec,
    StepSpec,
    SymbolSpec,
    TargetSpec,
    TempSpec,
)
from tilewright.support.classes import dataclass
from tilewright.support.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class Manifest:
    """A program's description. `structure_key` identifies the program whatever its weights' values; `precision` and
    `fast` are the accuracy options that the user chose. `ignored` are names in the model's dictionary of weights that
    the program does not read: updates may contain them. `tied` are those among them that shared a tensor with a
    parameter, (name, the parameter's name): updates that contain both must have the same numbers. `folded` are weights
    that became code or constants, (name, an explanation): updates that contain them are refused. `patterns`: elements
    of sparse weights outside of these must be 0, as products skip them. `extents` are the names of sizes that data
    decides: the last outputs are their values, which callers do not see; `rooms` are for those without a known bound.
    `records` are the tuning records about its decisions. `alone`: a call does so little work that only the caller's
    thread runs it. `state`: the caches that a caller keeps between calls. `ragged`: how inputs pack the rows of
    sequences. `assumptions` are conditions on the symbols, checked for new sizes."""

    name: str
    target: TargetSpec
    symbols: tuple[SymbolSpec, ...] = ()
    inputs: tuple[InputSpec, ...] = ()
    outputs: tuple[OutputSpec, ...] = ()
    params: tuple[ParamSpec, ...] = ()
    packed: tuple[PackedSpec, ...] = ()
    run_temps: tuple[TempSpec, ...] = ()
    run_steps: tuple[StepSpec, ...] = ()
    prepare_temps: tuple[TempSpec, ...] = ()
    prepare_steps: tuple[StepSpec, ...] = ()
    structure_key: str = ""
    schedule_version: int = 0
    precision: str = "fp32"
    fast: str = "auto"
    ignored: tuple[str, ...] = ()
    tied: tuple[tuple[str, str], ...] = ()
    folded: tuple[tuple[str, str], ...] = ()
    patterns: tuple[PatternSpec, ...] = ()
    extents: tuple[str, ...] = ()
    rooms: tuple[RoomSpec, ...] = ()
    records: tuple[RecordUse, ...] = ()
    alone: bool = False
    state: StateSpec | None = None
    ragged: RaggedSpec | None = None
    assumptions: tuple[AssumptionSpec, ...] = ()
    compilers: tuple[str, ...] = ()
    abi_version: int = field(default=ABI_VERSION)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ArtifactError listing everything that is inconsistent."""
        problems = inconsistencies(self)
        if problems:
            raise ArtifactError.combined(
                problems, "the manifest is not consistent", where=f"manifest {self.name[:80]!r}"
            )

    def to_json(self) -> str:
        """The manifest as JSON text, the same bytes for equal manifests."""
        return json.dumps(encode(self), separators=(",", ":"), ensure_ascii=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read what `to_json` wrote; ArtifactError on anything else."""
        try:
            data = json.loads(text, object_pairs_hook=_no_duplicates)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"not JSON: {error}", where="manifest") from None
        version = data.get("abi_version") if isinstance(data, dict) else None
        if isinstance(version, int) and version > ABI_VERSION:
            hint = "load it with the version of tilewright that wrote it, or a later one"
            raise ArtifactError(
                "written by a newer version", where="manifest", expected=f"ABI <= {ABI_VERSION}", got=version, hint=hint
            )
        try:
            return decode(cls, data, "manifest")
        except SchemaError as error:
            raise ArtifactError(error.what, where=error.path) from None

    @property
    def results(self) -> tuple[OutputSpec, ...]:
        """The outputs that callers see, without the extents."""
        return self.outputs[: len(self.outputs) - len(self.extents)]

    @property
    def checks(self) -> tuple[CheckSpec, ...]:
        """The messages of the checks that can end calls, in the order of their steps."""
        regions = (step.region for step in self.run_steps)
        return tuple(region.check for region in regions if region is not None and region.check is not None)

    @property
    def arguments(self) -> tuple[InputSpec, ...]:
        """The inputs that callers pass, without rooms."""
        return tuple(i for i in self.inputs if all(room.input != i.name for room in self.rooms))

    @property
    def run_slots(self) -> int:
        """The number of slots of `tw_run` before that of `control`."""
        return len(self.inputs) + len(self.outputs) + len(self.packed) + len(self.run_temps)

    @property
    def output_rank_total(self) -> int:
        """The sum of the ranks of all outputs, which is the number of sizes that `tw_shapes` writes."""
        return sum(len(o.shape) for o in self.outputs)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result
