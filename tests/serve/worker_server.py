"""A server of several processes for `test_workers.py`: `python -m tests.serve.worker_server FOLDER WORKERS`."""

from __future__ import annotations

import sys
from pathlib import Path

from tilewright.serve.server import Settings
from tilewright.serve.watch import Watcher
from tilewright.serve.workers import Supervisor


def main() -> None:
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    watcher = Watcher(folder)
    supervisor = Supervisor(Settings(http_port=0), watcher.accept(), workers, watcher)
    supervisor.on_start = lambda: print(supervisor.http_port, *supervisor.processes, flush=True)
    supervisor.run()


if __name__ == "__main__":
    main()
