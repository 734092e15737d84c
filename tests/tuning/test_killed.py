"""kill -9 while tuning: what was verified stands, what was measured is not measured again, the next run ends it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tilewright.records.store import Store

KILLS = int(os.environ.get("TILEWRIGHT_KILLS", "3"))
"""`make tune-stress` kills 200 times."""

RUN = """
import sys, time
from tests.tuning.test_tuner import SHORT, Invented, model, preferred
from tilewright.tuning import entry

untuned = preferred()

class Slow(Invented):
    def compared_with(self, exact, untuned):
        return self

    def steps(self, candidates, rounds):
        for candidate in candidates[1:]:
            print("timed", sorted(candidate.forced.items()), rounds, flush=True)
        time.sleep(0.02)
        return super().steps(candidates, rounds)

entry.Processes = lambda *_, **_team: Slow(lambda label: 1.0 if label in untuned else 0.8)
print("begin", flush=True)
tuned = entry.tune(model(), target="x86-64-v3", policy=SHORT)
print("end", sorted(tuned.settings.items()), flush=True)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(folder), "TILEWRIGHT_VERIFY": "0"}
    command = [sys.executable, "-c", RUN]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=Path.cwd())


def test_runs_that_are_killed_go_on(tmp_path: Path) -> None:
    whole, _ = start(tmp_path / "whole").communicate(timeout=120)
    wanted = [line for line in whole.splitlines() if line.startswith("end")]
    assert len(wanted) == 1, "a run that no one kills comes to its end"
    draw = random.Random(0)
    folder = tmp_path / "killed"
    stood: set[str] = set()
    lines: list[str] = []
    for _ in range(KILLS):
        process = start(folder)
        assert process.stdout is not None
        process.stdout.readline()  # "begin": the compiler is imported
        time.sleep(draw.uniform(0.0, 1.0))
        process.send_signal(signal.SIGKILL)
        lines += process.communicate()[0].splitlines()
        now = {r.digest for r in Store(folder / "records").records()}
        assert stood <= now, "a record is gone"
        stood = now
    last, _ = start(folder).communicate(timeout=120)
    assert [line for line in last.splitlines() if line.startswith("end")] == wanted
    repeated, _ = start(folder).communicate(timeout=120)
    assert "timed" not in repeated and [x for x in repeated.splitlines() if x.startswith("end")] == wanted
    lines += last.splitlines()
    timed = [line for line in lines if line.startswith("timed")]
    assert len(timed) <= len(set(timed)) * 3 + KILLS * 5, "only what was under way when it was killed is timed again"
