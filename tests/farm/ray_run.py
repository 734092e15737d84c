"""`python -m tests.farm.ray_run [KILLS]`: jobs on a Ray cluster of one node, for the class that it has, whose processes
are killed at random points while they work; none is lost, and none counts twice (`make farm`)."""

from __future__ import annotations

import contextlib
import os
import random
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

KILLS, JOBS, SECONDS = 20, 80, 0.2
WAIT_SECONDS = 600.0


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        os.environ["TILEWRIGHT_TEST_FOLDER"] = folder  # for the cluster's processes
        ray.init(
            num_cpus=4, resources={resource(machines()): 4}, include_dashboard=False, logging_level="ERROR",
            log_to_driver=False, _temp_dir=f"{folder}/ray",
        )  # fmt: skip
        state = queued(str(Path(folder) / "farm.sqlite"), JOBS, SECONDS)
        queue = Queue(state, tries=1000)
        with state.database.transaction() as t:  # no node is of this class: it waits
            queue.add(t, Wanted(job_name("x"), "simulate", "other machine threads=1", "plan x", "", "{}", 9.0))
        stop = threading.Event()
        thread = threading.Thread(
            target=run_on_ray, args=(state, queue, None, stop), kwargs={"limits": None, "task": marked}
        )
        thread.start()
        try:
            kills = killed(Path(folder), queue, wanted)
        finally:
            stop.set()
            thread.join()
            ray.shutdown()
        counts = queue.counts()
        with state.database.reading() as t:
            (total,) = t.row("SELECT CAST(SUM(done) AS BIGINT) FROM worker") or (0,)
            (tries,) = t.row("SELECT CAST(SUM(tries) AS BIGINT) FROM job WHERE state = 'done'") or (0,)
    print(f"{counts}, counted {total} times, leased {tries} times; {kills} processes were killed at work")
    return 0 if counts == {"done": JOBS, "queued": 1} and total == JOBS and kills >= min(wanted, KILLS) else 1


def killed(folder: Path, queue: Queue, wanted: int) -> int:
    """Kill processes that are at work until all jobs are done; how many."""
    draw, kills, end = random.Random(1), 0, time.monotonic() + WAIT_SECONDS
    while queue.counts().get("done") != JOBS and time.monotonic() < end:
        time.sleep(draw.expovariate(1 / 0.3))
        at_work = sorted(int(path.name) for path in folder.glob("at-work/*"))
        if at_work and kills < wanted:
            number = draw.choice(at_work)
            with contextlib.suppress(OSError):  # it has just ended
                (folder / "at-work" / str(number)).unlink()
                os.kill(number, signal.SIGKILL)
                kills += 1
    return kills


def marked(text: str, limits: Limits | None) -> Done:
    """Does a job; a file says meanwhile which process is at work."""
    mark = Path(os.environ["TILEWRIGHT_TEST_FOLDER"]) / "at-work" / str(os.getpid())
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    try:
        return on_node(text, limits)
    finally:
        mark.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
