"""`python -m tests.farm.ray_run`: jobs on a Ray cluster of one node, for the class that it has (`make farm`)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import ray

from benchmarks.bench_farm import machines, queued
from tilewright.farm.queue import Queue, Wanted, job_name
from tilewright.farm.ray_workers import Done, on_node, resource, run_on_ray
from tilewright.farm.selftest import Limits


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        os.environ["TILEWRIGHT_TEST_MARKER"] = f"{folder}/killed"  # for the cluster's processes
        ray.init(
            num_cpus=4, resources={resource(machines()): 4}, include_dashboard=False, logging_level="ERROR",
            log_to_driver=False, _temp_dir=f"{folder}/ray",
        )  # fmt: skip
        state = queued(str(Path(folder) / "farm.sqlite"), 12, 0.2)
        queue = Queue(state)
        with state.database.transaction() as t:  # no node is of this class: it waits
            queue.add(t, Wanted(job_name("x"), "simulate", "other machine threads=1", "plan x", "", "{}", 9.0))
        stop = threading.Event()
        thread = threading.Thread(
            target=run_on_ray, args=(state, queue, None, stop), kwargs={"limits": None, "task": dies_once}
        )
        thread.start()
        try:
            end = time.monotonic() + 120
            while queue.counts().get("done") != 12 and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            stop.set()
            thread.join()
            ray.shutdown()
        killed = Path(f"{folder}/killed").exists()
        print(counts := queue.counts(), "a process was killed at work" if killed else "no process was killed")
        with state.database.transaction() as t:
            print(t.rows("SELECT name, host, done FROM worker"))
            (total,) = t.row("SELECT SUM(done) FROM worker") or (0,)
    return 0 if counts == {"done": 12, "queued": 1} and total == 12 and killed else 1


def dies_once(text: str, limits: Limits | None) -> Done:
    """Does a job; the first process that begins one is killed while it works."""
    marker = Path(os.environ["TILEWRIGHT_TEST_MARKER"])
    with contextlib.suppress(FileExistsError):
        marker.touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)
    return on_node(text, limits)


if __name__ == "__main__":
    sys.exit(main())
