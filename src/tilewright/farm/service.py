"""The service as one process: it plans, confirms, signs, rolls out, answers HTTP, and has workers beside it.

    Service(Settings(state="farm.sqlite", workers=1)).run()

Workers are processes of their own, here or (with `ray`) on a Ray cluster; one that ends is started again. The service
itself holds nothing that is not in its database: it may be killed at any time, and several may share one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.farm import rollout
from tilewright.farm.http import Http, Site
from tilewright.farm.intake import take_folder
from tilewright.farm.planner import Budget, plan
from tilewright.farm.queue import LEASE_SECONDS, Queue
from tilewright.farm.results import GRACE_SECONDS, mark_single, sign
from tilewright.farm.selftest import Limits
from tilewright.farm.state import State
from tilewright.records.signed import SigningKey
from tilewright.serve.tokens import Tokens
from tilewright.support.errors import Error

TICK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a service.

    Args:
        state: a SQLite file or a Postgres URL.
        key: the file of the private key.
        collected: folders that processes collect into.
        workers: processes on this machine; `threads`: of the calls that they time.
        ray: address of a Ray cluster whose nodes work, "auto" for the running one; None for none.
        limits: the limits of workers' self-tests; None skips the test.
        budget: the limits of planning.
        grace: seconds that a record waits for a second host.
        rules: the rules of the canary channel.
        host, port: of HTTP; no port, no HTTP.
        search_seconds: the time of one job's search.
    """

    state: str = "farm.sqlite"
    key: Path = Path("farm.key")
    collected: tuple[Path, ...] = ()
    workers: int = 1
    threads: int = 1
    ray: str | None = None
    limits: Limits | None = field(default_factory=Limits)
    budget: Budget = field(default_factory=Budget)
    grace: float = GRACE_SECONDS
    rules: rollout.Rules = field(default_factory=rollout.Rules)
    host: str = "127.0.0.1"
    port: int | None = 8700
    tokens: Tokens = field(default_factory=Tokens)
    certificate: tuple[Path, Path | None] | None = None
    search_seconds: float = 120.0
    lease: float = LEASE_SECONDS


class Service:
    """A tuning service. `say` is called with a text about each event."""

    def __init__(self, settings: Settings, say: Callable[[str], None] = lambda _: None) -> None:
        self.settings = settings
        self.say = say
        self.state = State(settings.state)
        self.queue = Queue(self.state, settings.lease)
        self.key = SigningKey(settings.key)
        self.http: Http | None = None
        if settings.port is not None:
            site = Site(self.state, settings.tokens, self.key.public)
            self.http = Http(site, settings.host, settings.port, settings.certificate)
        self.workers: list[subprocess.Popen[bytes]] = []
        self._stop = threading.Event()

    def tick(self) -> None:
        """One round of the service's own work. A failure is reported, and retried in the next round."""
        for name, step in (
            ("collected", self._take),
            ("plan", self._plan),
            ("confirm", lambda: mark_single(self.state, self.settings.grace)),
            ("sign", lambda: sign(self.state, self.key)),
            ("canary", lambda: rollout.enter_canary(self.state)),
            ("weigh", self._weigh),
        ):
            try:
                step()
            except Error as error:
                self.say(f"{name}: {error.headline()}")

    def _take(self) -> None:
        for folder in self.settings.collected:
            done, damaged = take_folder(self.state, folder)
            if done.workloads or damaged:
                self.say(f"{folder}: {done.workloads} new workloads, {done.calls} calls; {len(damaged)} damaged files")

    def _plan(self) -> None:
        done = plan(self.state, self.queue, self.settings.budget)
        if done.jobs:
            self.say(f"{done.jobs} jobs planned of {done.sites} decisions: {done.why}")

    def _weigh(self) -> None:
        for text in rollout.weigh(self.state, self.settings.rules):
            self.say(text)

    def run(self, tick: float = TICK_SECONDS, signals: bool = True) -> None:
        """Serve until `stop`, or SIGTERM or SIGINT if `signals`, and do the regular work every `tick` seconds."""
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())
        if self.http is not None:
            self.http.start()
            self.say(f"listens on {self.http.url}, dashboard at {self.http.url}/dashboard")
        self.say(f"public key {self.key.public}")
        others = [self._ray()] if self.settings.ray is not None else []
        try:
            while not self._stop.is_set():
                self.hire()
                self.tick()
                self._stop.wait(tick)
        finally:
            for thread in others:
                thread.join(5.0)
            self.close()

    def _ray(self) -> threading.Thread:
        from tilewright.farm.ray_workers import run_on_ray

        thread = threading.Thread(
            target=run_on_ray,
            args=(self.state, self.queue, self.settings.ray, self._stop),
            kwargs={"seconds": self.settings.search_seconds, "limits": self.settings.limits, "say": self.say},
            daemon=True,
        )
        thread.start()
        return thread

    def hire(self) -> None:
        """Start workers in place of those that have ended."""
        ended = [w for w in self.workers if w.poll() is not None]
        for worker in ended:
            self.say(f"worker {worker.pid} has ended with {worker.returncode}")
            self.workers.remove(worker)
        while len(self.workers) < self.settings.workers:
            self.workers.append(subprocess.Popen(self.worker_command(), env=_environment()))

    def worker_command(self) -> list[str]:
        """The command line of a worker of this service."""
        s = self.settings
        command = [sys.executable, "-m", "tilewright.farm.worker_process", s.state, "--threads", str(s.threads)]
        command += ["--seconds", str(s.search_seconds), "--lease", str(s.lease), "--parent", str(os.getpid())]
        if s.limits is None:
            return [*command, "--untested"]
        return [*command, "--noise", str(s.limits.noise), "--neighbours", str(s.limits.neighbours)]

    def stop(self) -> None:
        """Let `run` return after its current round of regular work; may be called on any thread or by a signal
        handler."""
        self._stop.set()

    def close(self) -> None:
        """Stop HTTP and the workers; other workers take their jobs when the leases expire."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(10.0)
            if worker.poll() is None:
                worker.kill()
        self.workers.clear()
        if self.http is not None:
            self.http.close()


def _environment() -> dict[str, str]:
    """The environment variables of a worker, in which collecting is off: its compiles do not belong to production."""
    return {name: value for name, value in os.environ.items() if name != "TILEWRIGHT_COLLECT"}


__all__ = ["Service", "Settings"]
