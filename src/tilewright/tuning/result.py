"""The result of a tuning run: its progress while it runs, then a row for each decision and the gain of the whole
model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field, replace
from typing import Any

from tilewright.support.classes import dataclass
from tilewright.tuning.recording import Finding
from tilewright.tuning.significance import NONE, Gain


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run.

    Args:
        level: the kind of decisions that is tuned now.
        done, total: candidates of this level that were timed, and at most will be, fewer with each search that ends
            early; 0 where none are.
        left: seconds after which no further search begins; infinity without a limit.
        gain: the gain of the whole model that is verified so far; 1 if none is.
        next: the level that is timed next.
    """

    level: str
    done: int
    total: int
    left: float
    gain: float
    next: str


@dataclass(frozen=True, slots=True)
class Row:
    """The findings of a tuning run about one decision, as a row of its result.

    Args:
        name, about: the key's name and text.
        level: the level at which it was tuned.
        share: the part of a call's time that is spent in the steps that it decides.
        space: the number of its settings.
        outcomes: how many candidates had each outcome.
        untuned, tuned: labels; the same where nothing better was found.
        gain: how many times faster its steps are in the model.
        accepted: whether the whole model is verified to be faster with it, and others.
    """

    name: str
    about: str
    level: str
    share: float
    space: int
    outcomes: Mapping[str, int]
    untuned: str
    tuned: str
    gain: Gain
    accepted: bool

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Row:
        """The row that was written as part of `Tuned.to_dict`."""
        return cls(**{**row, "gain": Gain(**row["gain"])})


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a tuning run.

    Args:
        settings: accepted ones, a decision's name -> a label: what `forcing` takes.
        rows: one for each decision that was considered.
        gain: the verified gain of the whole model; 1 if no setting was accepted.
        loadings: the ratios after it, those of each loading together.
        timed: candidates that this run timed.
        seconds: the time that the run took.
        interrupted: whether it was stopped before its end.
        causes: why candidates failed, each once.
        known: whether all of it was known from an earlier run.
        findings: what records are made of; not in `to_dict`.
    """

    settings: Mapping[str, str]
    rows: tuple[Row, ...]
    gain: Gain = NONE
    loadings: tuple[tuple[float, ...], ...] = ()
    timed: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    causes: tuple[str, ...] = ()
    known: bool = False
    findings: tuple[Finding, ...] = field(default=(), repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The result as data for JSON."""
        return {**asdict(replace(self, findings=())), "settings": dict(self.settings)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tuned:
        """The object that was written by `to_dict`."""
        return cls(
            dict(data["settings"]),
            tuple(Row.from_dict(row) for row in data["rows"]),
            Gain(**data["gain"]),
            tuple(tuple(rounds) for rounds in data["loadings"]),
            data["timed"],
            data["seconds"],
            data["interrupted"],
            tuple(data["causes"]),
            data["known"],
        )
