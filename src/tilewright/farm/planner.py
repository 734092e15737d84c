"""The planner: which decisions are worth a worker's time.

A decision's priority is the core-seconds a day that tuning it is expected to save: calls a day, times the seconds of a
call, times its share of them, times its estimated headroom; summed over all workloads that have the decision. Decisions
are planned in that order while the budget lasts, and none whose expected saving within the horizon is less than its
cost.
"""

from __future__ import annotations

import json
from typing import Any

from tilewright.farm.queue import Queue, Wanted, job_name
from tilewright.farm.state import State
from tilewright.support.classes import dataclass
from tilewright.support.sql import Transaction
from tilewright.tuning.layer_race import KINDS

DAY = 86400.0
COST_SECONDS = 30.0
"""Core-seconds that a job on one thread is expected to take, until this service has measured some: ResNet-50's search
takes about 5 minutes for 20 decisions (benchmarks/results/tune.md)."""


TUNED = ("plan", *KINDS)
"""Kinds of decisions that can be tuned without their model."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a plan.

    Args:
        core_hours: the core-hours that new jobs and those queued or running may take together.
        horizon_days: the time within which a job must save what it costs; 0 plans whatever is possible.
        jobs: the most jobs that may wait.
    """

    core_hours: float = 1.0
    horizon_days: float = 30.0
    jobs: int = 1000


BUDGET = Budget()


@dataclass(frozen=True, slots=True)
class Planned:
    """The result of planning: the number of decisions considered, the number of new jobs, and why there are no more."""

    sites: int
    jobs: int
    why: str


def plan(state: State, queue: Queue, budget: Budget = BUDGET) -> Planned:
    """Queue jobs for the decisions with the largest expected savings. A repeated call does not add jobs for decisions
    already planned or tuned."""
    with state.database.transaction() as t:
        waiting = _number(t, "SELECT COUNT(*) FROM job WHERE state IN ('queued', 'leased')")
        cost = _cost(t)
        left = budget.core_hours * 3600.0 - cost * waiting
        sites = _promising(t, state.clock())
        planned, why = 0, "every decision is planned or tuned"
        for saving, decision, target, compiler in sites:
            threads = int(target.rpartition("=")[2])
            if budget.horizon_days and saving * budget.horizon_days < cost * threads:
                why = "the others save less than they cost"
                break
            if left < cost * threads or waiting + planned >= budget.jobs:
                why = "the budget is used up"
                break
            name = job_name("tune", decision, target, compiler)
            body = _body(t, decision, target, compiler)
            if queue.add(t, Wanted(name, "tune", target, decision, compiler, json.dumps(body), saving)):
                planned, left = planned + 1, left - cost * threads
    return Planned(len(sites), planned, why)


def _promising(t: Transaction, now: float) -> list[tuple[float, str, str, str]]:
    """(core-seconds a day that tuning may save, decision, class of machines, compiler) for all decisions without a
    tuning job, the largest first."""
    rows = t.rows(
        "SELECT SUM(w.calls * w.seconds * s.share * s.headroom), s.decision, s.target, w.compiler, MIN(j.state)"
        " FROM site s JOIN workload w ON w.name = s.workload"
        " LEFT JOIN job j ON j.decision = s.decision AND j.target = s.target AND j.compiler = w.compiler"
        " AND j.kind = 'tune'"
        " WHERE s.why <> 'forced' GROUP BY s.decision, s.target, w.compiler"
    )
    first = t.row("SELECT MIN(seen), MAX(seen) FROM workload")
    days = 1.0 if first is None or first[0] is None else max(1.0, (now - first[0]) / DAY)
    waiting = [
        (float(s or 0.0) / days, str(d), str(c), str(v))
        for s, d, c, v, job in rows
        if job is None and str(d).partition(" ")[0] in TUNED
    ]
    return sorted(waiting, key=lambda row: (-row[0], row[1], row[2]))


def _body(t: Transaction, decision: str, target: str, compiler: str) -> dict[str, Any]:
    row = t.row("SELECT about, program FROM site WHERE decision = ? AND target = ?", (decision, target))
    assert row is not None
    return {"decision": decision, "target": target, "compiler": compiler, "about": row[0], "workload": row[1]}


def _cost(t: Transaction) -> float:
    """The expected core-seconds of a job: the mean of the last hundred, or a default."""
    row = t.row(
        "SELECT AVG(spent), COUNT(*) FROM"
        " (SELECT spent FROM job WHERE state = 'done' AND kind = 'tune' ORDER BY finished DESC LIMIT 100) AS recent"
    )
    return float(row[0]) if row is not None and row[1] >= 10 else COST_SECONDS


def _number(t: Transaction, statement: str) -> int:
    row = t.row(statement)
    return 0 if row is None else int(row[0])


__all__ = ["Budget", "Planned", "plan"]
