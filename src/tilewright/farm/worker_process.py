"""A worker as a process of its own: `python -m tilewright.farm.worker_process STATE`."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from dataclasses import replace

from tilewright.farm.queue import LEASE_SECONDS, MAX_TRIES, Queue
from tilewright.farm.selftest import Limits
from tilewright.farm.state import State
from tilewright.farm.worker import Worker
from tilewright.plans.framework.decision_key import target_class
from tilewright.targets.target import Target


def main() -> None:
    """Work until SIGTERM, or until the parent is gone."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("state", help="a SQLite file or a Postgres URL")
    options.add_argument("--threads", type=int, default=1, help="of the calls that are timed")
    options.add_argument("--target", help="the class of machines; this one's if left out")
    options.add_argument("--host", help="the machine's name")
    options.add_argument("--seconds", type=float, default=120.0, help="of a search")
    options.add_argument("--lease", type=float, default=LEASE_SECONDS)
    options.add_argument("--tries", type=int, default=MAX_TRIES)
    options.add_argument("--idle", type=float, default=1.0, help="seconds between two looks at an empty queue")
    options.add_argument("--noise", type=float, default=Limits().noise)
    options.add_argument("--neighbours", type=float, default=Limits().neighbours)
    options.add_argument("--untested", action="store_true", help="leave out the self-test")
    options.add_argument("--parent", type=int, help="end with this process")
    options.add_argument("--until-empty", action="store_true", help="end when there is no job")
    chosen = options.parse_args()
    state = State(chosen.state)
    limits = None if chosen.untested else Limits(chosen.noise, chosen.neighbours)
    target = chosen.target or target_class(replace(Target.host(), threads=chosen.threads))
    worker = Worker(
        state,
        Queue(state, chosen.lease, chosen.tries),
        target=target,
        host=chosen.host,
        limits=limits,
        seconds=chosen.seconds,
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    if chosen.parent is not None:
        threading.Thread(target=_until_orphaned, args=(chosen.parent, worker), daemon=True).start()
    worker.run(chosen.idle, chosen.until_empty)


def _until_orphaned(parent: int, worker: Worker) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    worker.stop()


if __name__ == "__main__":
    main()
