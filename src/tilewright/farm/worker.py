"""A worker on this machine: tests itself, claims jobs of its class, renews its leases while it works, delivers results.

    Worker(State("farm.sqlite")).run()

It needs nothing but the state's database. Candidates run in processes of their own, which may fail; a worker that is
killed leaves a lease that runs out.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from tilewright.farm.queue import Job, Queue
from tilewright.farm.results import deliver
from tilewright.farm.selftest import LIMITS, Limits, SelfTest, host_name, self_test
from tilewright.farm.state import State
from tilewright.farm.work import job_text, run_job
from tilewright.plans.framework.decision_key import target_class
from tilewright.support.errors import Error
from tilewright.targets.target import Target

IDLE_SECONDS = 1.0
"""Seconds between two looks at an empty queue."""


class Worker:
    """A worker that does jobs in this process.

    Args:
        state, queue: the service's state and its job queue.
        target: the class of machines with its threads; this machine with one thread if None.
        host: the machine's name, by which a second one is told from the first.
        limits: the limits of the self-test; None skips it (simulated measurements).
        seconds: the time of a search.
        run: the function that does a job, from text to text.
    """

    def __init__(
        self,
        state: State,
        queue: Queue | None = None,
        *,
        target: str | None = None,
        host: str | None = None,
        limits: Limits | None = LIMITS,
        seconds: float = 120.0,
        run: Callable[[str], str] = run_job,
    ) -> None:
        self.state = state
        self.queue = queue or Queue(state)
        self.target = target or target_class(replace(Target.host(), threads=1))
        self.host = host or host_name()
        self.name = f"{self.host[:40]}-{os.getpid()}-{os.urandom(3).hex()}"
        self.limits = limits
        self.seconds = seconds
        self._run = run
        self._stop = threading.Event()

    def arrive(self) -> str:
        """Test this machine and enter it in the state; returns the reason if it is refused, else an empty text."""
        result = SelfTest(0.0, 0.0, 0.0) if self.limits is None else self_test()
        why = "" if self.limits is None else result.refused(self.limits, self._usual())
        enter_worker(self.state, self.name, self.host, self.target, result, why)
        return why

    def _usual(self) -> float | None:
        """The median frequency of the class's workers, in GHz."""
        with self.state.database.transaction() as t:
            rows = t.rows("SELECT ghz FROM worker WHERE target = ? AND ghz > 0 ORDER BY ghz", (self.target,))
        return float(rows[len(rows) // 2][0]) if rows else None

    def step(self) -> bool:
        """Do one job if there is one; returns whether there was."""
        job = self.queue.claim(self.name, self.host, self.target)
        if job is None:
            return False
        done = threading.Event()
        beat = threading.Thread(target=self._renew, args=(job, done), daemon=True)
        beat.start()
        try:
            deliver(self.state, self.queue, job, self.name, self.host, self._run(job_text(job, self.seconds)))
        except Error as error:
            self.queue.fail(job, self.name, error.headline())
        finally:
            done.set()
            beat.join()
        return True

    def _renew(self, job: Job, done: threading.Event) -> None:
        while not done.wait(self.queue.lease / 3):
            try:
                if not self.queue.renew(job, self.name):
                    return
            except Error:  # the database is away; the result is delivered when it is back, or another worker's counts
                continue
        self.state.database.close()

    def run(self, idle: float = IDLE_SECONDS, until_empty: bool = False) -> None:
        """Work until `stop`, or until there is nothing to do if `until_empty`, and look for jobs again after `idle`
        seconds; test the machine again every hour."""
        tested = -1e9
        while not self._stop.is_set():
            if time.monotonic() - tested > 3600.0:
                refused, tested = self.arrive(), time.monotonic()
                if refused and until_empty:
                    return
                if refused:
                    tested -= 3540.0  # it may be quiet again in a minute
                    self._stop.wait(60.0)
                    continue
            if not self.step():
                if until_empty:
                    return
                self._stop.wait(idle)

    def stop(self) -> None:
        """Let `run` return after the job that it is doing; may be called on any thread."""
        self._stop.set()


def enter_worker(state: State, name: str, host: str, target: str, result: SelfTest, why: str) -> None:
    """Store the result of the self-test of worker `name` on machine `host`. `why` is the reason for which it is
    refused, empty if it is accepted."""
    values = (result.noise, result.neighbours, result.ghz, "refused" if why else "ready", why)
    with state.database.transaction() as t:
        t.run(
            "INSERT INTO worker VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0) ON CONFLICT (name) DO UPDATE SET"
            " noise = excluded.noise, neighbours = excluded.neighbours, ghz = excluded.ghz,"
            " state = excluded.state, why = excluded.why, seen = excluded.seen",
            (name, host, target, *values, state.clock()),
        )


__all__ = ["Worker", "enter_worker"]
