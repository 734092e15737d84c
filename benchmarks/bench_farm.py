"""The tuning service against its bars: workers, look-ups, an import, planning, what collecting costs.

    python -m benchmarks.bench_farm workers [--jobs 120] [--seconds 0.5] [--ray]
    python -m benchmarks.bench_farm scale [--records 1000000] [--sites 100000]
    python -m benchmarks.bench_farm collect [--rounds 40]

Each part prints its rows of the table in benchmarks/results/farm.md; the demonstration, the kills and the hostile
inputs have commands of their own (`make demo-farm`, `make farm`).
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from benchmarks import models
from tilewright.farm.http import Http, Site, tokens_of
from tilewright.farm.importing import import_records
from tilewright.farm.intake import take
from tilewright.farm.planner import Budget, plan
from tilewright.farm.queue import Queue, Wanted, job_name
from tilewright.farm.results import sign
from tilewright.farm.state import State
from tilewright.plans.framework.decision_key import target_class
from tilewright.plans.framework.decisions import deciding
from tilewright.records.archive import HEADER
from tilewright.records.collecting import Count, Workload, collect, name_of, workload_name
from tilewright.records.collecting import Site as Decision
from tilewright.records.record import Candidate, Gain, Policy, Record
from tilewright.records.signed import SigningKey
from tilewright.targets.target import Target
from tilewright.tuning.entry import example_inputs
from tilewright.tuning.rerace import Claim, record_of

Rows = list[list[str]]
LOOKUPS, BATCH = 2000, 32
WARM = 4
"""Jobs for each of Ray's processes that are not timed."""


def machines() -> str:
    """The class of this machine, with one thread."""
    return target_class(replace(Target.host(), threads=1))


# -- row 1 -------------------------------------------------------------------------------------------------------------


def queued(address: str, jobs: int, seconds: float, name: str = "") -> State:
    """A state with so many jobs more that only wait; `name` tells them from others."""
    state = State(address)
    queue = Queue(state)
    body = json.dumps({"seconds": seconds})
    with state.database.transaction() as t:
        for k in range(jobs):
            queue.add(
                t, Wanted(job_name("simulate", name, str(k)), "simulate", machines(), f"plan {k:032x}", "", body, 1.0)
            )
    return state


def local_seconds(folder: Path, workers: int, jobs: int, seconds: float) -> float:
    """Time from the first job's begin to the last one's end with so many worker processes."""
    address = str(folder / f"local-{workers}.sqlite")
    state = queued(address, jobs, seconds)
    command = [sys.executable, "-m", "tilewright.farm.worker_process", address, "--untested", "--idle", "0.05"]
    running = [subprocess.Popen([*command, "--target", machines()]) for _ in range(workers)]
    try:
        return _time_of(state, jobs, workers)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _time_of(state: State, jobs: int, workers: int) -> float:
    """Seconds in which all workers did the jobs between the first moment at which all were at work and the end, as if
    that had been all of them: processes that start are no part of it."""
    start = done_then = None
    while True:
        with state.database.transaction() as t:
            counts = {str(s): int(n) for s, n in t.rows("SELECT state, COUNT(*) FROM job GROUP BY state")}
        done = counts.get("done", 0)
        now = time.perf_counter()
        if start is None and counts.get("leased", 0) >= workers:
            start, done_then = now, done
        if done == jobs:
            assert start is not None and done_then is not None
            return (now - start) * jobs / (jobs - done_then)
        time.sleep(0.01)


def ray_seconds(folder: Path, units: int, jobs: int, seconds: float) -> float:
    """The time through Ray on this machine, whose node says that it has so many units of the class: from jobs that are
    queued when all of Ray's processes have done some, to the last one's end."""
    import ray

    from tilewright.farm.ray_workers import resource, run_on_ray

    ray.init(
        num_cpus=units, resources={resource(machines()): units}, include_dashboard=False, logging_level="ERROR",
        log_to_driver=False, _temp_dir=str(folder / f"ray-{units}"),
    )  # fmt: skip
    address = str(folder / f"ray-{units}-{os.urandom(4).hex()}.sqlite")
    state = queued(address, WARM * units, seconds, "warm")
    stop = threading.Event()
    thread = threading.Thread(
        target=run_on_ray, args=(state, Queue(state), None, stop), kwargs={"limits": None}, daemon=True
    )
    thread.start()
    try:
        _until_done(state, WARM * units)
        queued(address, jobs, seconds)
        start = time.perf_counter()
        _until_done(state, WARM * units + jobs)
        return time.perf_counter() - start
    finally:
        stop.set()
        thread.join()
        ray.shutdown()


def _until_done(state: State, jobs: int) -> None:
    """Wait until so many jobs are done."""
    while Queue(state).counts().get("done", 0) < jobs:
        time.sleep(0.01)


def workers(jobs: int, seconds: float, ray: bool) -> Rows:
    """Row 1: four workers against one."""
    rows: Rows = []
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        for name, timed in [("local processes", local_seconds)] + ([("Ray, one node", ray_seconds)] if ray else []):
            # As many jobs for each worker: one of them takes as long as four, had they four times as many processors.
            one, four = (timed(Path(folder), n, jobs * n // 4, seconds) * 4 / n for n in (1, 4))
            print(f"{name}: {jobs} jobs of {seconds} s: {one:.1f} s by one, {four:.1f} s by four", flush=True)
            rows.append(["1", f"four workers against one, {name}", f"{one / four:.2f}x", ">= 3.6x"])
    return rows


# -- row 3 -------------------------------------------------------------------------------------------------------------


def scale(records: int, sites: int, postgres: str | None = None) -> Rows:
    """Row 3: many records and sites."""
    with tempfile.TemporaryDirectory(prefix="tw-", dir=models.ROOT / "build") as name:
        folder = Path(name)
        state = State(postgres or str(folder / "farm.sqlite"))
        rows = imported(state, folder, records)
        rows += looked_up(state, folder, records)
        rows += planned(State(str(folder / "plan.sqlite")), sites)
    return rows


def base_record() -> Record:
    """A record of this machine about a decision of M64, with up to eight candidates of nine turns."""
    with deciding() as listed:
        tw.compile(models.load("m64"), records=None)
    d = max(listed.decisions, key=lambda d: len(d.space))
    labels = list(d.space.labels[:8])
    tried = tuple(Candidate(x, "timed", 100.0, tuple(1e-6 * (k + 1) for k in range(9))) for x in labels)
    machine = replace(Target.host(), threads=1)
    policy, gain = Policy("by hand 1", "warm", "kernel", 9, 1), Gain(1.05, 1.03, 1.07, 55)
    return record_of(Claim(d.key, labels[1], "warm"), machine, d.space.labels, policy, tried, gain)


def imported(state: State, folder: Path, records: int) -> Rows:
    """Seconds of taking in an archive of so many records."""
    base = base_record()
    text = base.to_bytes().decode()
    with gzip.open(folder / "many.twr", "wb", 1) as file:
        file.write(HEADER)
        for k in range(records):
            file.write(text.replace(base.decision, f"plan {k:032x}").encode())
    start, used = time.perf_counter(), time.process_time()
    done = import_records(state, folder / "many.twr")
    wall, cpu = time.perf_counter() - start, time.process_time() - used
    assert done.new == records
    os.remove(folder / "many.twr")
    print(f"import of {records}: {wall:.1f} s, {cpu:.1f} s of one core, {len(text)} bytes each", flush=True)
    return [["3", f"import of {records} records", f"{wall:.0f} s ({cpu:.0f} s of a core)", "<= 60 s"]]


def looked_up(state: State, folder: Path, records: int) -> Rows:
    """Times of look-ups over HTTP, of one decision and of a model's, on a connection that stays."""
    key = SigningKey(folder / "key")
    sign(state, key, most=2000)  # as many as are asked about
    with state.database.transaction() as t:
        t.run(
            "INSERT INTO channel SELECT 'stable', decision, target, digest, 0 FROM record"
            " WHERE signature <> '' ON CONFLICT DO NOTHING"
        )
        t.run(
            "INSERT INTO channel SELECT 'stable', decision, target, digest, 0 FROM record"
            " WHERE 1 = 1 ON CONFLICT DO NOTHING"
        )
        names = [str(d) for (d,) in t.rows("SELECT decision FROM record WHERE signature <> '' LIMIT 2000")]
    server = Http(Site(state, tokens_of(), key.public)).start()
    draw = np.random.default_rng(0)
    rows: Rows = []
    try:
        connection = http.client.HTTPConnection(server.host, server.port)
        for count in (1, BATCH):
            times, used = [], time.process_time()
            for _ in range(LOOKUPS):
                asked = [names[k] for k in draw.integers(0, len(names), count)]
                body = json.dumps({"channel": "stable", "target": machines(), "decisions": asked})
                start = time.perf_counter()
                connection.request("POST", "/v1/lookup", body)
                answer = connection.getresponse().read()
                times.append(time.perf_counter() - start)
                assert len(answer) > 100
            p50, p99 = np.quantile(times[100:], [0.5, 0.99]) * 1e3
            cpu = (time.process_time() - used) / LOOKUPS * 1e3  # of both ends, whatever others do
            print(f"look-up of {count} among {records}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, {cpu:.2f} ms of a core")
            what = f"look-up of {count} of {records} records over HTTP, p99 (p50)"
            rows.append(["3", what, f"{p99:.1f} ms ({p50:.1f})", "<= 5 ms"])
    finally:
        server.close()
    return rows


def planned(state: State, sites: int) -> Rows:
    """Seconds of planning so many decisions."""
    compiler, target = "0" * 32, machines()
    for part in range(0, sites, 5000):
        of = tuple(
            Decision(f"plan {k:032x}", "matmul", "func f", "direct", "estimate", 3, 0.001, 0.05)
            for k in range(part, min(part + 5000, sites))
        )
        structure = f"{part:032x}"
        name = workload_name(structure, target, compiler)
        take(state, [Workload(structure, target, compiler, 1e-3, of)], f"{part:032x}", {name: Count(1, 10**9)})
    start = time.perf_counter()
    done = plan(state, Queue(state), Budget(core_hours=1e6, horizon_days=0, jobs=1000))
    seconds = time.perf_counter() - start
    assert done.jobs == 1000 and done.sites == sites
    print(f"planning of {sites}: {seconds:.2f} s", flush=True)
    return [["3", f"planning of {sites} decisions", f"{seconds:.1f} s", "<= 10 s"]]


# -- row 6, and what a compile pays ------------------------------------------------------------------------------------


def collecting(rounds: int) -> Rows:
    """Row 6: calls and warm compiles with collecting on against off, in turns."""
    rows: Rows = []
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        proto = models.load("m64")
        collect(folder)
        model = tw.compile(proto)
        collect(None)
        inputs = list(example_inputs(model, None).values())
        calls, compiles = [], []
        for k in range(rounds):
            times = {}
            for on in (k % 2 == 0, k % 2 == 1):
                collector = collect(folder if on else None)
                if collector is not None:  # the same model, which lies where it lies
                    collector.watch(model, name_of(model.manifest.structure_key, Target.host()))
                times[on] = (
                    _seconds(lambda: model(*inputs), 20_000, time.thread_time),
                    _seconds(lambda: tw.compile(proto), 5, time.process_time),
                )
            calls.append(times[True][0] / times[False][0])
            compiles.append(times[True][1] / times[False][1])
        collect(None)
    for what, ratios, bar in (("calls", calls, "<= 1.01"), ("warm compiles", compiles, "<= 1.01")):
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{what} with collecting on / off: {middle:.4f} [{low:.4f}, {high:.4f}]", flush=True)
        text = f"{middle:.3f} (middle half {low:.3f} to {high:.3f}, {rounds} turns)"
        rows.append(["6", f"M64's {what}, collecting on against off, time of the processor", text, bar])
    return rows


def _seconds(call: Any, count: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(count):
        call()
    return (clock() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["workers", "scale", "collect"])
    parser.add_argument("--jobs", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a simulated measurement")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--sites", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    chosen = parser.parse_args()
    rows: Rows = []
    for part in chosen.parts:
        match part:
            case "workers":
                rows += workers(chosen.jobs, chosen.seconds, chosen.ray)
            case "scale":
                rows += scale(chosen.records, chosen.sites)
            case "collect":
                rows += collecting(chosen.rounds)
            case _:
                parser.error(f"no part {part!r}")
    print(table(rows))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown."""
    head = "| # | point | measured | bar |\n|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    main()
