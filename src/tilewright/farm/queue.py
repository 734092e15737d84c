"""The queue of jobs: leases, retries, and results that count once.

A worker claims the most urgent job of its class of machines, holds it by a lease that it renews, and finishes it. When
a worker dies its lease runs out and another one claims the job. Whatever is delivered twice, or after the job went to
another worker, changes nothing once the job is done.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.farm.state import State
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.sql import Transaction

LEASE_SECONDS = 60.0
"""Seconds for which a worker holds a job without renewing its lease."""
MAX_TRIES = 3
"""How often a job is started before it counts as failed because it kills its workers."""
KINDS = ("tune", "confirm", "simulate")


@dataclass(frozen=True, slots=True)
class Job:
    """Work for one worker of a class of machines.

    Args:
        name: the digest of the job's content: equal work has an equal name.
        kind: "tune" (search), "confirm" (race what another worker has measured), "simulate" (wait, for tests).
        body: JSON with everything that the worker needs.
        tries: how often it was started, including this time.
    """

    name: str
    kind: str
    target: str
    decision: str
    body: str
    tries: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job to queue.

    Args:
        compiler: the compiler version whose code is measured.
        avoid: a host whose workers must not take it; empty for none.
    """

    name: str
    kind: str
    target: str
    decision: str
    compiler: str
    body: str
    priority: float
    avoid: str = ""


def job_name(*parts: str) -> str:
    """The name of a job, a digest of these parts."""
    return blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


class Queue:
    """The job queue in a service's state.

    Args:
        lease: seconds that a claim holds without being renewed.
        tries: how often a job may be started.
    """

    def __init__(self, state: State, lease: float = LEASE_SECONDS, tries: int = MAX_TRIES) -> None:
        self.state = state
        self.lease = lease
        self.tries = tries

    def add(self, t: Transaction, wanted: Wanted) -> bool:
        """Queue the job `wanted` in the transaction `t` unless it is already present; returns whether it is new."""
        w = wanted
        return bool(
            t.run(
                "INSERT INTO job VALUES (?, ?, ?, ?, ?, ?, ?, 'queued', 0, '', '', ?, 0, ?, 0, 0, '')"
                " ON CONFLICT (name) DO NOTHING",
                (w.name, w.kind, w.target, w.decision, w.compiler, w.body, w.priority, w.avoid, self.state.clock()),
            )
        )

    def claim(self, worker: str, host: str, target: str) -> Job | None:
        """Lease the most urgent job for the class of machines `target` to `worker`, which runs on `host`; None if there
        is none."""
        with self.state.database.transaction() as t:
            now = self.state.clock()
            t.run(
                "UPDATE job SET state = 'failed', finished = ?, why = ?"
                " WHERE state = 'leased' AND lease < ? AND tries >= ?",
                (now, f"{self.tries} workers did not end it", now, self.tries),
            )
            row = t.row(
                "SELECT name, kind, target, decision, body, tries FROM job"
                " WHERE target = ? AND (state = 'queued' OR (state = 'leased' AND lease < ?))"
                " AND (avoid = '' OR avoid <> ?)"
                f" ORDER BY priority DESC, created, name LIMIT 1{t.locking}",
                (target, now, host),
            )
            if row is None:
                return None
            t.run(
                "UPDATE job SET state = 'leased', lease = ?, worker = ?, host = ?, tries = tries + 1 WHERE name = ?",
                (now + self.lease, worker, host, row[0]),
            )
        name, kind, of, decision, body, tries = row
        return Job(str(name), str(kind), str(of), str(decision), str(body), int(tries) + 1)

    def renew(self, job: Job, worker: str) -> bool:
        """Extend a worker's lease of a job; False if the job went to another worker or is done."""
        with self.state.database.transaction() as t:
            now = self.state.clock()
            changed = t.run(
                "UPDATE job SET lease = ? WHERE name = ? AND worker = ? AND state = 'leased'",
                (now + self.lease, job.name, worker),
            )
            t.run("UPDATE worker SET seen = ? WHERE name = ?", (now, worker))
        return bool(changed)

    def finish(self, job: Job, worker: str, spent: float, effect: Callable[[Transaction], str] = lambda _: "") -> bool:
        """Mark a job as done by `worker` and apply its result; returns False, without any effect, if it was done
        before.

        Args:
            spent: the core-seconds that the job took.
            effect: changes the state in the same transaction; its text says in few words what came out.
        """
        with self.state.database.transaction() as t:
            changed = t.run(
                "UPDATE job SET state = 'done', finished = ?, spent = ?, worker = ? WHERE name = ? AND state <> 'done'",
                (self.state.clock(), spent, worker, job.name),
            )
            if changed:
                why = effect(t)
                t.run("UPDATE job SET why = ? WHERE name = ?", (why[:500], job.name))
                t.run(
                    "UPDATE worker SET done = done + 1, spent = spent + ?, seen = ? WHERE name = ?",
                    (spent, self.state.clock(), worker),
                )
        return bool(changed)

    def fail(self, job: Job, worker: str, why: str) -> None:
        """Report that a worker could not do a job, and why: it is queued again, or marked as failed when its tries are
        used up."""
        with self.state.database.transaction() as t:
            t.run(
                "UPDATE job SET state = CASE WHEN tries >= ? THEN 'failed' ELSE 'queued' END, why = ?, finished = ?"
                " WHERE name = ? AND worker = ? AND state = 'leased'",
                (self.tries, why[:500], self.state.clock(), job.name, worker),
            )

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        with self.state.database.transaction() as t:
            return {str(s): int(n) for s, n in t.rows("SELECT state, COUNT(*) FROM job GROUP BY state")}


__all__ = ["Job", "Queue", "Wanted", "job_name"]
