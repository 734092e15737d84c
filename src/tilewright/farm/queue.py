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
"""How long a worker holds a job without a sign of life."""
MAX_TRIES = 3
"""How often a job is begun before it counts as one that ends its workers."""
KINDS = ("tune", "confirm", "simulate")


@dataclass(frozen=True, slots=True)
class Job:
    """Work for one worker of a class of machines.

    Args:
        name: digest of what is to be done: the same work has the same name.
        kind: "tune" (search), "confirm" (race what another worker has measured), "simulate" (wait, for tests).
        body: JSON, all that the worker is told.
        tries: how often it was begun, this time counted.
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
        compiler: the version whose code is to be measured.
        avoid: a host whose workers shall not do it; empty for none.
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
    """The name of a job that is about these things."""
    return blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


class Queue:
    """Jobs in a state.

    Args:
        lease: seconds that a claim holds without being renewed.
        tries: how often a job may be begun.
    """

    def __init__(self, state: State, lease: float = LEASE_SECONDS, tries: int = MAX_TRIES) -> None:
        self.state = state
        self.lease = lease
        self.tries = tries

    def add(self, t: Transaction, wanted: Wanted) -> bool:
        """Queue a job, unless it is there; whether it is new."""
        w = wanted
        return bool(
            t.run(
                "INSERT INTO job VALUES (?, ?, ?, ?, ?, ?, ?, 'queued', 0, '', '', ?, 0, ?, 0, 0, '')"
                " ON CONFLICT (name) DO NOTHING",
                (w.name, w.kind, w.target, w.decision, w.compiler, w.body, w.priority, w.avoid, self.state.clock()),
            )
        )

    def claim(self, worker: str, host: str, target: str) -> Job | None:
        """The most urgent job for a worker of a class of machines, leased to it; None if there is none."""
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
        """Hold a job for longer; False if it went to another worker or is done."""
        with self.state.database.transaction() as t:
            now = self.state.clock()
            changed = t.run(
                "UPDATE job SET lease = ? WHERE name = ? AND worker = ? AND state = 'leased'",
                (now + self.lease, job.name, worker),
            )
            t.run("UPDATE worker SET seen = ? WHERE name = ?", (now, worker))
        return bool(changed)

    def finish(self, job: Job, worker: str, spent: float, effect: Callable[[Transaction], str] = lambda _: "") -> bool:
        """Count a job as done, together with what it has found; False if it was done before, and nothing happens.

        Args:
            spent: core-seconds.
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
        """Say that a worker could not do a job: it is queued again, or has failed when its tries are used up."""
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
