"""`python -m tests.farm.ray_run`: jobs on a Ray cluster of one node, for the class that it has (`make farm`)."""

from __future__ import annotations

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
from tilewright.farm.ray_workers import resource, run_on_ray


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        ray.init(
            num_cpus=4, resources={resource(machines()): 4}, include_dashboard=False, logging_level="ERROR",
            log_to_driver=False, _temp_dir=f"{folder}/ray",
        )  # fmt: skip
        state = queued(str(Path(folder) / "farm.sqlite"), 12, 0.2)
        queue = Queue(state)
        with state.database.transaction() as t:  # no node is of this class: it waits
            queue.add(t, Wanted(job_name("x"), "simulate", "other machine threads=1", "plan x", "", "{}", 9.0))
        stop = threading.Event()
        thread = threading.Thread(target=run_on_ray, args=(state, queue, None, stop), kwargs={"limits": None})
        thread.start()
        try:
            _end_a_worker(folder)
            end = time.monotonic() + 120
            while queue.counts().get("done") != 12 and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            stop.set()
            thread.join()
            ray.shutdown()
        print(counts := queue.counts())
        with state.database.transaction() as t:
            print(t.rows("SELECT name, host, done FROM worker"))
            (total,) = t.row("SELECT SUM(done) FROM worker") or (0,)
    return 0 if counts == {"done": 12, "queued": 1} and total == 12 else 1


def _end_a_worker(folder: str) -> None:
    """Kill one of the processes of the cluster in a folder while it works."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if b"ray::_on_node" in (path / "cmdline").read_bytes() and _is_of(folder, int(path.name)):
                    os.kill(int(path.name), signal.SIGKILL)
                    print("killed a process at work")
                    return
            except OSError:
                continue
        time.sleep(0.02)


def _is_of(folder: str, number: int) -> bool:
    """Whether a process belongs to the cluster in a folder: the one that began it names the folder."""
    while number > 1:
        if folder.encode() in Path(f"/proc/{number}/cmdline").read_bytes():
            return True
        number = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    return False


if __name__ == "__main__":
    sys.exit(main())
