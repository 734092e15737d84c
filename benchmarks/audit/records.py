"""The results of an audit so far: a line a layer, in files that a later run goes on with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Estimated:
    """A kernel of a layer: its label in profiles, plan, knobs, and what the plan estimates, in seconds."""

    label: str
    plan: str
    knobs: str
    bound: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Compiled:
    """A layer whose programs lie beside the records; `kernels` is empty where a model has others than its layers alone,
    `differs` says that exact algorithms make another program, `error` why there is none."""

    number: int
    kind: str
    layer: str
    kernels: tuple[Estimated, ...] = ()
    differs: bool = False
    error: str = ""

    @classmethod
    def read(cls, row: dict[str, Any]) -> Self:
        return cls(**row | {"kernels": tuple(Estimated(**k) for k in row["kernels"])})


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of a layer's call, with exact algorithms, in eager PyTorch, by Inductor (None if not asked for), and of
    its kernels; the largest difference from eager's result, relative to the largest element."""

    number: int
    auto: float
    exact: float | None
    eager: float | None
    kernels: tuple[float, ...]
    difference: float | None
    inductor: float | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """The folder of one audit: its target and seed, and the version of the compiler, which its name tells."""

    folder: Path

    def program(self, number: int, fast: str) -> Path:
        return self.folder / f"{number}-{fast}.tw"

    def add(self, row: Compiled | Timed) -> None:
        with self._file(type(row)).open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")

    def compiled(self) -> dict[int, Compiled]:
        return {row["number"]: Compiled.read(row) for row in self._rows(Compiled)}

    def timed(self) -> dict[int, Timed]:
        return {row["number"]: Timed(**row | {"kernels": tuple(row["kernels"])}) for row in self._rows(Timed)}

    def _file(self, kind: type[Compiled] | type[Timed]) -> Path:
        return self.folder / f"{kind.__name__.lower()}.jsonl"

    def _rows(self, kind: type[Compiled] | type[Timed]) -> Iterator[dict[str, Any]]:
        if self._file(kind).exists():
            yield from map(json.loads, self._file(kind).read_text().splitlines())
