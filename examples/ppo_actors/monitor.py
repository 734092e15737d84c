"""The state of a run while it goes on: one row an update, and the actors' gauges."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.ppo_actors.config import Config
from examples.ppo_actors.fleet import Fleet, Full

EPISODES = 100
"""Returns are averaged over the last so many episodes."""


@dataclass(frozen=True)
class Row:
    """One update."""

    seconds: float
    steps: int
    returned: float
    """Mean return of the last `EPISODES` episodes, NaN before the first."""
    version: int
    stale: float
    """Mean over the batch of the learner's version minus the version that acted."""
    stalest: int
    age: float
    """Seconds: mean over actors of the age of the weights in use."""
    calls: float
    """Calls of the policy a second, all actors together."""
    call_us: float
    """Microseconds of a call: the mean over actors of their medians."""


@dataclass(frozen=True)
class ActorRow:
    """One actor in the last half second or so."""

    pid: int
    lives: int
    calls: float
    call_us: float
    version: int
    age: float
    memory: float
    """MB that the process alone accounts for (proportional set size), NaN where the system does not tell."""


class Monitor:
    """Collects a run's rows. `kills` are (seconds, actor)."""

    def __init__(self, config: Config, fleet: Fleet) -> None:
        self.config = config
        self.rows: list[Row] = []
        self.kills: list[tuple[float, int]] = []
        self.actors: list[ActorRow] = []
        self.returns: deque[float] = deque(maxlen=EPISODES)
        self.steps = 0
        self._fleet = fleet
        self._start = time.monotonic()
        self._before = [fleet.shared.gauges(index).copy()[0] for index in range(config.actors)]
        self._looked = self._start
        self._look(self._start + 1e-9)

    @property
    def seconds(self) -> float:
        """Since the first batch came in: processes take a while to start, and imports of PyTorch take longer."""
        return time.monotonic() - self._start

    def update(self, segments: list[Full], version: int) -> None:
        """Note a batch that is about to be trained on, and the version of the learner's weights."""
        now = time.monotonic()
        if not self.rows:
            self._start = now
        stale = [version - full.data["version"] for full in segments]
        for full in segments:
            ended = full.data["returned"]
            self.returns.extend(ended[~np.isnan(ended)].tolist())
            self.steps += int((~full.data["new"]).sum())
        if now - self._looked > 0.5:
            self._look(now)
        calls = sum(a.calls for a in self.actors)
        medians = [a.call_us for a in self.actors if a.call_us]
        self.rows.append(
            Row(
                now - self._start,
                self.steps,
                float(np.mean(self.returns)) if self.returns else float("nan"),
                version,
                float(np.mean(stale)),
                int(np.max(stale)),
                float(np.mean([a.age for a in self.actors])),
                calls,
                float(np.mean(medians)) if medians else float("nan"),
            )
        )

    def _look(self, now: float) -> None:
        """Read the actors' gauges: rates are since the last look."""
        passed, self._looked = now - self._looked, now
        self.actors = []
        for index, before in enumerate(self._before):
            gauge = self._fleet.shared.gauges(index).copy()[0]
            if gauge["calls"] < before["calls"]:  # another process: its counts began anew
                before = np.zeros_like(before)
            calls, us = int(gauge["calls"] - before["calls"]), float(gauge["median"]) * 1e6
            pid, lives = int(gauge["pid"]), self._fleet.lives[index]
            rate, version, age = calls / passed, int(gauge["version"]), float(gauge["age"])
            self.actors.append(ActorRow(pid, lives, rate, us, version, age, memory_of(pid)))
            self._before[index] = gauge

    def summary(self) -> dict[str, Any]:
        """Figures of the whole run."""
        timed = [row for row in self.rows if row.calls]
        known = [a.memory for a in self.actors if not np.isnan(a.memory)]
        return {
            "return, last episodes": self.rows[-1].returned,
            "seconds": self.rows[-1].seconds,
            "steps/s": self.steps / max(self.rows[-1].seconds, 1e-9),
            "µs a call": float(np.nanmedian([row.call_us for row in timed])) if timed else float("nan"),
            "versions published": self.rows[-1].version,
            "versions behind, mean": float(np.mean([row.stale for row in self.rows])),
            "versions behind, most": max(row.stalest for row in self.rows),
            "MB an actor": float(np.mean(known)) if known else float("nan"),
            "actors killed": len(self.kills),
        }


def memory_of(pid: int) -> float:
    """Proportional set size of a process in MB; NaN if it is gone or the system does not tell."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return float("nan")
