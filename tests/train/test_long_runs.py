"""Steps that go on for long: the same bits again after 1,000 of them, other numbers of threads within rounding, and
after a process was killed while it learned and saved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.train.test_step import batch, network, step_of, weights
from tilewright.train.entry import compile_step
from tilewright.train.optimizers import Adam
from tilewright.train.step import Step

STEPS, EVERY = 1000, 20
LEARNER = """
import sys
from pathlib import Path
from tests.train.test_long_runs import EVERY, learner
from tests.train.test_step import batch
step, path = learner(), Path(sys.argv[1])
while True:
    step(*batch(step.count))
    if step.count % EVERY == 0:
        step.save(path)
"""


def learner(**options: Any) -> Step:
    return step_of(Adam(0.003), clip=0.5, **options)


def after(steps: int) -> dict[str, Any]:
    step = learner()
    for t in range(steps):
        step(*batch(t))
    return step.state_dict()


def test_a_thousand_steps_give_the_same_bits() -> None:
    first, second = after(STEPS), after(STEPS)
    assert any((first[name] != start).any() for name, start in weights().items())
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)


def test_threads_change_no_more_than_rounding() -> None:
    """A batch that is large enough for threads to share it."""
    rows = 4096
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    y = rng.normal(size=(rows, 1)).astype(np.float32)
    result = []
    for threads in (1, 2, 2):
        step = compile_step((network(rows), weights()), optimizer=Adam(0.003), threads=threads)
        for _ in range(50):
            step(x, y)
        result.append(step.state_dict())
    one, two, reloaded = result
    for name, value in two.items():
        np.testing.assert_array_equal(reloaded[name], value)
        np.testing.assert_allclose(one[name], value, rtol=0, atol=1e-4)


def test_a_killed_learner_goes_on_from_its_last_save(tmp_path: Path) -> None:
    """Killed at any moment, while it saves too: the file is whole, and what follows is what would have followed."""
    path = tmp_path / "step.safetensors"
    step = learner()
    for pause in (0.0, 0.013):
        path.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", LEARNER, str(path)], env={**os.environ}) as process:
            while not path.exists() and process.poll() is None:
                time.sleep(0.005)
            time.sleep(pause)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        step.load(path)
        assert step.count and step.count % EVERY == 0
        more = step.count + 10
        for t in range(step.count, more):
            step(*batch(t))
        for name, value in after(more).items():
            np.testing.assert_array_equal(step.parameters[name], value)
