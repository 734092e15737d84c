"""`python -m tests.farm.kills`: the service and its workers are killed at random points, and nothing is lost or counted
twice (part of `make farm`).

Workers of two hosts and the service run as forks of this process, so that a new one works at once. Each decision shall
become one search, one record, one confirmation, one signature, one entry of the canary, one line of the history for
each; whatever is delivered twice must show nowhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.farm import postgres
from tests.records.samples import ZEN4, product, record
from tilewright.farm import rollout
from tilewright.farm.intake import take
from tilewright.farm.planner import Budget, plan
from tilewright.farm.queue import Queue
from tilewright.farm.results import sign
from tilewright.farm.state import State
from tilewright.farm.work import Outcome
from tilewright.farm.worker import Worker
from tilewright.plans.framework.decision_key import target_class
from tilewright.records.collecting import Count, Site, Workload, workload_name
from tilewright.records.signed import SigningKey
from tilewright.runtime.schema import encode

COMPILER = "0" * 32
LEASE, TRIES = 0.5, 10_000
WORKERS = 3
SPENT = 0.25


def planned(address: str, decisions: int) -> None:
    """A state with one program of so many decisions."""
    target = target_class(ZEN4)
    keys = [product(rows) for rows in range(1, decisions + 1)]
    sites = tuple(Site(k.name, k.text, str(k.program), "direct", "estimate", 3, 1 / decisions, 0.05) for k in keys)
    name = workload_name("5" * 32, target, COMPILER)
    take(State(address), [Workload("5" * 32, target, COMPILER, 1e-3, sites)], "6" * 32, {name: Count(1, 1_000_000)})


def tuner(decisions: int, seed: int) -> Callable[[str], str]:
    """Does a job in some milliseconds: a search finds what `samples.record` says, a confirmation confirms."""
    rows = {product(k).name: k for k in range(1, decisions + 1)}
    draw = random.Random(seed)

    def run(text: str) -> str:
        job = json.loads(text)
        time.sleep(draw.expovariate(1 / 0.01))
        if job["kind"] == "confirm":
            return json.dumps(encode(Outcome((), "confirmed", "raced", SPENT)))
        best = record(rows[json.loads(job["body"])["decision"]])
        return json.dumps(encode(Outcome((best.to_bytes().decode(),), "", "searched", SPENT)))

    return run


def work(address: str, host: str, decisions: int) -> None:
    """A worker until it is killed."""
    state = State(address)
    queue = Queue(state, LEASE, TRIES)
    run = tuner(decisions, os.getpid())
    Worker(state, queue, target=target_class(ZEN4), host=host, limits=None, run=run).run(idle=0.01)


def serve(address: str, key: Path) -> None:
    """The service's own steps until it is killed; few jobs are planned at a time."""
    state, signing = State(address), SigningKey(key)
    queue = Queue(state, LEASE, TRIES)
    while True:
        plan(state, queue, Budget(core_hours=1e6, horizon_days=0, jobs=6))
        sign(state, signing, most=3)
        rollout.enter_canary(state)
        time.sleep(0.005)


def forked(function: Callable[..., None], *arguments: object) -> int:
    """The number of a process that runs a function and ends."""
    number = os.fork()
    if number == 0:
        try:
            function(*arguments)
        except BaseException:  # the reason for which the trial fails
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)
    return number


def killed(address: str, key: Path, decisions: int, points: int, seed: int) -> tuple[int, int]:
    """Kill a random process so many times while the work is done; how many kills, and how many before all was done."""
    draw = random.Random(seed)
    jobs: list[tuple[Callable[..., None], tuple[object, ...]]] = [(serve, (address, key))]
    jobs += [(work, (address, f"host {k % 2}", decisions)) for k in range(WORKERS)]
    running = [forked(function, *arguments) for function, arguments in jobs]
    kills = busy = 0
    try:
        end = time.monotonic() + 600
        while not (done := finished(address, decisions)) or kills < points:
            if time.monotonic() > end:
                raise SystemExit(f"not done after {end:.0f} s: {Queue(State(address)).counts()}")
            time.sleep(draw.expovariate(1 / 0.08))
            for place, number in enumerate(running):  # one that ended by itself would be a failure of its own
                ended, status = os.waitpid(number, os.WNOHANG)
                if ended:
                    del running[place]  # its number may be another process's now
                    raise SystemExit(f"process {jobs[place]} ended by itself: {os.waitstatus_to_exitcode(status)}")
            if kills < points:
                place = draw.randrange(len(running))
                os.kill(running[place], signal.SIGKILL)
                os.waitpid(running[place], 0)
                running[place] = forked(jobs[place][0], *jobs[place][1])
                kills, busy = kills + 1, busy + (not done)
    finally:
        for number in running:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
    return kills, busy


def finished(address: str, decisions: int) -> bool:
    """Whether every decision has its record in the canary."""
    state = State(address)
    with state.database.transaction() as t:
        row = t.row("SELECT COUNT(*) FROM channel WHERE channel = 'canary'")
    state.database.close()
    return row == (decisions,)


def complaints(address: str, decisions: int) -> list[str]:
    """Complaints about a state in which all work is done."""
    wanted = {
        "SELECT COUNT(*) FROM job WHERE kind = 'tune' AND state = 'done'": decisions,
        "SELECT COUNT(*) FROM job WHERE kind = 'confirm' AND state = 'done'": decisions,
        "SELECT COUNT(*) FROM job": 2 * decisions,
        "SELECT COUNT(*) FROM record WHERE state = 'confirmed' AND signature <> ''": decisions,
        "SELECT COUNT(*) FROM record": decisions,
        "SELECT CAST(SUM(done) AS BIGINT) FROM worker": 2 * decisions,
        "SELECT SUM(spent) FROM worker": 2 * decisions * SPENT,
        "SELECT SUM(spent) FROM job": 2 * decisions * SPENT,
        "SELECT COUNT(*) FROM history WHERE action = 'confirmed'": decisions,
        "SELECT COUNT(*) FROM history WHERE action = 'enters'": decisions,
        "SELECT COUNT(DISTINCT digest) FROM history WHERE action = 'enters'": decisions,
        "SELECT MAX(number) FROM history": 2 * decisions,
        "SELECT COUNT(*) FROM history": 2 * decisions,
    }
    with State(address).database.transaction() as t:
        return [
            f"{statement}: {got} instead of {number}"
            for statement, number in wanted.items()
            if (got := (t.row(statement) or (None,))[0]) != number
        ]


def trial(address: str, decisions: int, points: int, seed: int) -> list[str]:
    """Complaints after a run with kills."""
    with tempfile.TemporaryDirectory() as folder:
        planned(address, decisions)
        start = time.monotonic()
        kills, busy = killed(address, Path(folder) / "key", decisions, points, seed)
        with State(address).database.transaction() as t:
            tries = (t.row("SELECT CAST(SUM(tries) AS BIGINT) FROM job") or (0,))[0]
        seconds = time.monotonic() - start
        print(f"{kills} kills, {busy} of them before all was done, in {seconds:.0f} s", flush=True)
        print(f"{2 * decisions} jobs were begun {tries} times", flush=True)
    return complaints(address, decisions)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.farm.kills", description=__doc__)
    options.add_argument("--points", type=int, default=200, help="kills")
    options.add_argument("--decisions", type=int, default=400)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--postgres", action="store_true", help="on a Postgres server that is started for it")
    chosen = options.parse_args()
    with contextlib.ExitStack() as stack:
        if chosen.postgres:
            address = stack.enter_context(postgres.server())
        else:
            address = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "farm.sqlite")
        wrong = trial(address, chosen.decisions, chosen.points, chosen.seed)
    print("\n".join(wrong) or "no job lost, none counted twice", file=sys.stderr if wrong else sys.stdout)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
