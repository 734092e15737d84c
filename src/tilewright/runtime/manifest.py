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
    `fast` are what the user allowed the compiler to trade. `ignored` are names that the model's own dictionary of
    weights has and the program does not read: updates may hold them. `tied` are those among them that were one tensor
    with a parameter, (name, the parameter's name): updates that hold both must hold the same numbers. `folded` are
    weights of which code or constants were made, (name, what was made): updates that hold them are refused. `patterns`
    are of weights that must be 0 outside of them, as products leave that out. `extents`
    are the names of numbers that data decides: the last outputs are their values, which callers do not see; `rooms`
    are for those of which nothing else says how large they may be. `records` are the tuning records that there were
    about what was decided. `alone`: a call does so little that its caller's thread makes it, whatever number of threads
    is allowed. `state`: that the program has caches which its caller keeps. `ragged`: that inputs are packed rows of
    sequences. `assumptions` are about the symbols, and checked where sizes are new."""

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
        """The outputs that callers see."""
        return self.outputs[: len(self.outputs) - len(self.extents)]

    @property
    def checks(self) -> tuple[CheckSpec, ...]:
        """The messages of checks that end calls, in the order of their steps."""
        regions = (step.region for step in self.run_steps)
        return tuple(region.check for region in regions if region is not None and region.check is not None)

    @property
    def arguments(self) -> tuple[InputSpec, ...]:
        """The inputs that callers give."""
        return tuple(i for i in self.inputs if all(room.input != i.name for room in self.rooms))

    @property
    def run_slots(self) -> int:
        """How many slots of `tw_run` come before that of `control`."""
        return len(self.inputs) + len(self.outputs) + len(self.packed) + len(self.run_temps)

    @property
    def output_rank_total(self) -> int:
        """The sum of the ranks of all outputs: how many sizes `tw_shapes` writes."""
        return sum(len(o.shape) for o in self.outputs)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result
