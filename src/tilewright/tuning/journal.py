"""The journal of one model's tuning: every measurement as it was taken, so that a run resumed after a stop measures
nothing twice.

A file of JSON lines in the cache folder, one for each model, machine and compiler, only appended to. A line that is not
whole, which a killed process leaves, is passed over.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from tilewright.identity import identity
from tilewright.support import flags, plugins
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.targets.target import Target
from tilewright.tuning.significance import ratios

MAX_BYTES = 64 << 20
"""Journal files larger than this many bytes are not read but begun anew."""


@dataclass(frozen=True, slots=True)
class Turns:
    """One race: for each round, the seconds of the steps of a decision's site in the incumbent's program and in the
    candidate's."""

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def gains(self) -> tuple[float, ...]:
        """How many times faster the candidate was in each round; 1 where there is no time to compare: its steps are the
        incumbent's, or too short for the clock."""
        return ratios(self.before, self.after) or (1.0,)


class Journal:
    """The measurements of one model.

    Args:
        path: the journal's file; with None nothing is kept on disk.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._turns: dict[tuple[str, str, str], list[Turns]] = {}
        self._failed: dict[tuple[str, str, str], tuple[str, str]] = {}
        self._results: dict[str, dict[str, Any]] = {}
        for line in _lines(path):
            self._take(line)

    @classmethod
    def of(cls, structure: str, target: Target, question: str, folder: Path | None = None) -> Journal:
        """Open the journal, in `folder` (None: in the cache folder), of the program with key `structure` on a machine;
        `question` states everything else that measurements depend on."""
        name = identity(f"tune {structure}", target, options=question, extensions=plugins.digests())
        return cls((folder or flags.CACHE_DIR() / "tuning") / f"{name}.jsonl")

    def turns(self, site: str, incumbent: str, label: str) -> list[Turns]:
        """The recorded races of the setting `label` against the incumbent, in the order in which they were run."""
        return self._turns.get((site, incumbent, label), [])

    def failure(self, site: str, incumbent: str, label: str) -> tuple[str, str] | None:
        """The outcome and the reason if the setting `label` of `site` could not be timed; None if no failure is
        recorded."""
        return self._failed.get((site, incumbent, label))

    def timed(self, site: str, incumbent: str, label: str, turns: Turns) -> None:
        """Write down the times `turns` of a race of the setting `label` of `site` against the incumbent."""
        times = {"before": list(turns.before), "after": list(turns.after)}
        self._write({"site": site, "incumbent": incumbent, "label": label, **times})

    def failed(self, site: str, incumbent: str, label: str, outcome: str, why: str) -> None:
        """Write down that the setting `label` of `site` could not be timed in the program `incumbent`, with the outcome
        and the reason `why`."""
        self._write({"site": site, "incumbent": incumbent, "label": label, "outcome": outcome, "why": why[:500]})

    def result(self, name: str) -> dict[str, Any] | None:
        """The result stored under a name; None if there is none."""
        return self._results.get(name)

    def keep(self, name: str, result: dict[str, Any]) -> None:
        """Store a result under a name, replacing an earlier one."""
        self._write({"result": name, "value": result})

    def _write(self, line: dict[str, Any]) -> None:
        self._take(line)
        if self.path is None:
            return
        # A folder that cannot be written costs the next run its resumption, not this one its result.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            text = json.dumps(line)
            check = blake2b(text.encode(), digest_size=8).hexdigest()
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, f"\n{check} {text}\n".encode())  # one write: other processes' lines stay whole
            finally:
                os.close(handle)

    def _take(self, line: dict[str, Any]) -> None:
        match line:
            case {"result": str(name), "value": dict(value)}:
                self._results[name] = value
            case {"site": str(site), "incumbent": str(old), "label": str(label), "before": list(a), "after": list(b)}:
                if len(a) == len(b) and all(isinstance(t, float | int) and 0 <= t < 1e6 for t in (*a, *b)):
                    self._turns.setdefault((site, old, label), []).append(Turns(tuple(a), tuple(b)))
            case {"site": str(site), "incumbent": str(old), "label": str(label), "outcome": str(o), "why": str(w)}:
                self._failed[site, old, label] = o, w


def _lines(path: Path | None) -> list[dict[str, Any]]:
    """The parsed complete lines of a journal file; incomplete lines are skipped."""
    if path is None:
        return []
    try:
        if path.stat().st_size > MAX_BYTES:
            path.unlink()
            return []
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    results = []
    for line in lines:
        check, _, text = line.partition(b" ")
        if len(check) != 16 or blake2b(text, digest_size=8).hexdigest().encode() != check:
            continue
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
            if isinstance(value, dict):
                results.append(value)
    return results
