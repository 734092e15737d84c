"""Workers on a Ray cluster: Ray places a job on a node of its class, retries it if the node dies, and counts cores.

Each node says its class of machines as a resource when it joins:

    ray start --address HEAD --resources "$(tilewright farm resources)"

A job is a task that takes text and gives text, with as many cores as its calls have threads and one unit of its class.
The queue stays in the service's database: a task's lease is renewed while Ray has the task, so that leases expire if
the service dies, as with any other worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tilewright.farm.queue import Job, Queue
from tilewright.farm.results import deliver
from tilewright.farm.selftest import LIMITS, Limits, SelfTest, host_name, self_test
from tilewright.farm.state import State
from tilewright.farm.work import job_text, run_job
from tilewright.farm.worker import enter_worker
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import Error, MissingPackageError

PREFIX = "tilewright-"
LOOK_SECONDS = 0.2
RETRIES = 3
"""How often Ray restarts a task whose node has died."""


def resource(target: str) -> str:
    """The name of a class of machines as a Ray resource; such names must be short words."""
    return PREFIX + blake2b(target.encode(), digest_size=8).hexdigest()


def run_on_ray(
    state: State,
    queue: Queue,
    address: str | None,
    stop: threading.Event,
    seconds: float = 120.0,
    limits: Limits | None = LIMITS,
    say: Callable[[str], None] = lambda _: None,
    task: Callable[[str, Limits | None], Done] | None = None,
) -> None:
    """Have the nodes of a cluster do jobs until told to stop. Raises MissingPackageError without Ray.

    Args:
        seconds: the time of a search.
        limits: the limits of the nodes' self-tests; None skips these.
        say: called with a text about each failure.
        task: does a job on a node, in place of `on_node`.
    """
    try:
        import ray
    except ImportError:
        raise MissingPackageError("workers on a cluster need Ray", hint="pip install ray") from None
    if not ray.is_initialized():
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    remote = ray.remote(task or on_node)
    running: dict[Any, tuple[Job, str, float]] = {}
    try:
        while not stop.is_set():
            started = _start(ray, state, queue, remote, running, seconds, limits)
            done, _ = ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS) if running else ([], [])
            for each in done:
                job, worker, _since = running.pop(each)
                _take(ray, state, queue, each, job, worker, say)
            _renew(queue, running)
            if not started and not running:
                stop.wait(LOOK_SECONDS)
    finally:
        for each in running:
            ray.cancel(each, force=True)


def on_node(text: str, limits: Limits | None) -> Done:
    """Run the job `text` on a node. With `limits` the node tests itself first (once an hour in each of Ray's
    processes), and runs no job if it fails."""
    tested = SelfTest(0.0, 0.0, 0.0) if limits is None else _tested(int(time.monotonic() // 3600))
    why = "" if limits is None else tested.refused(limits)
    return Done(host_name(), tested, why, "" if why else run_job(text))


@dataclass(frozen=True, slots=True)
class Done:
    """The answer of a node: its host, its self-test, the reason if it refuses to measure, and the job's result."""

    host: str
    tested: SelfTest
    refused: str
    result: str


@lru_cache(maxsize=1)
def _tested(_hour: int) -> SelfTest:
    return self_test()


def _start(
    ray: Any,
    state: State,
    queue: Queue,
    remote: Any,
    running: dict[Any, Any],
    seconds: float,
    limits: Limits | None,
) -> bool:
    """Start waiting jobs on the cluster as Ray tasks, as many for each class of machines as it has free units, and add
    them to `running`. A search ends after `seconds`. Returns whether any was started."""
    classes = _waiting(state)
    free = ray.cluster_resources()
    started = False
    for target in sorted(classes):
        units = int(free.get(resource(target), 0))
        busy = sum(job.target == target for job, _, _ in running.values())
        threads = int(target.rpartition("=")[2])
        for _ in range(units - busy):
            worker = f"ray-{resource(target)}"
            job = queue.claim(worker, "", target)
            if job is None:
                break
            options = {"num_cpus": threads, "resources": {resource(target): 1}, "max_retries": RETRIES}
            task = remote.options(**options).remote(job_text(job, seconds), limits)
            running[task] = job, worker, time.monotonic()
            started = True
    return started


def _waiting(state: State) -> set[str]:
    """The classes of machines for which jobs wait."""
    with state.database.reading() as t:
        rows = t.rows("SELECT DISTINCT target FROM job WHERE state IN ('queued', 'leased')")
    return {str(target) for (target,) in rows}


def _take(ray: Any, state: State, queue: Queue, task: Any, job: Job, worker: str, say: Callable[[str], None]) -> None:
    try:
        done = ray.get(task)
        name = f"ray-{done.host[:40]}"
        enter_worker(state, name, done.host, job.target, done.tested, done.refused)
        if done.refused:
            raise Error(f"{done.host}: {done.refused}")
        deliver(state, queue, job, name, done.host, done.result)
    except Error as error:
        queue.fail(job, worker, error.headline())
        say(f"{job.decision}: {error.headline()}")
    except Exception as error:  # Ray's own: a node that died, a task that was cancelled
        queue.fail(job, worker, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")


def _renew(queue: Queue, running: dict[Any, tuple[Job, str, float]]) -> None:
    for task, (job, worker, since) in list(running.items()):
        if time.monotonic() - since > queue.lease / 3:
            queue.renew(job, worker)
            running[task] = job, worker, time.monotonic()


__all__ = ["Done", "on_node", "resource", "run_on_ray"]
