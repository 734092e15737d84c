"""Workloads of production, collected for a tuning service: which decisions models depend on, and how often they run.

    TILEWRIGHT_COLLECT=/shared/collected         or tw.collect("/shared/collected"): a folder
    TILEWRIGHT_COLLECT=https://farm.example      or a service

Collecting is off by default. A compile notes once which decisions there were: the keys of the decisions, their
operators and shapes, the estimated share of a call's time. Then it counts compiles and calls. No weight, no data and no
name of a model is collected, unless the caller gives a label.

    <folder>/workloads/<digest>.json       a program's decisions, written once
    <folder>/counts/<source>.json          this process's counts so far, rewritten now and then

Calls are counted by the runtime anyway, for its weight stores; a thread reads these counters every half minute, so that
nothing is added to a call. Counts are totals of one process under a name that no other has: reading a file twice, or
sending it twice, counts nothing twice.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.identity import code_version
from tilewright.ir.loops import PrimFunc
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.cost import SYMBOL, roofline
from tilewright.plans.framework.decision_key import target_class
from tilewright.plans.framework.decisions import Context, Decision, Scheduled
from tilewright.runtime.program import Program
from tilewright.runtime.schema import encode
from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import Error
from tilewright.support.files import write_whole
from tilewright.targets.target import Target

if TYPE_CHECKING:
    from tilewright.runtime.model import Model

VERSION = 1
"""Version of the format of the files."""
PERIOD_SECONDS = 30.0
"""Seconds between two readings of the counters."""
GRAPH_HEADROOM = 0.05
"""Expected gain, as a share, of a decision about operators, for which there is no lower bound of the time: untuned
choices lose 1.2 to 1.7 % on average and 7.4 % at most (benchmarks/results/choice.md)."""
MAX_HEADROOM = 0.25
"""Bounds leave out much for kernels with several stages: expected gains beyond this are not believed."""
NEVER = ("precision",)
"""Kinds of decisions that change what results mean, which the caller decides."""


@dataclass(frozen=True, slots=True)
class Site:
    """A decision of a program with more than one setting.

    Args:
        decision: the name of its key.
        about, workload: the text of its key, and its program as text.
        setting: the label in force; why: "estimate", "rule", "record" or "forced".
        space: how many settings there are.
        share: the estimated part of a call's time that it decides.
        headroom: estimated gain that is possible, as a share of that time.
    """

    decision: str
    about: str
    workload: str
    setting: str
    why: str
    space: int
    share: float
    headroom: float


@dataclass(frozen=True, slots=True)
class Workload:
    """The decisions of one program for one class of machines.

    Args:
        structure: the program's key.
        seconds: the estimated time of a call.
    """

    structure: str
    target: str
    compiler: str
    seconds: float
    sites: tuple[Site, ...]
    version: int = VERSION

    @property
    def name(self) -> str:
        """The digest under which the workload is counted."""
        return workload_name(self.structure, self.target, self.compiler)


def workload_name(structure: str, target: str, compiler: str) -> str:
    """The digest that names the workload of a program compiled by a given compiler for a class of machines."""
    return blake2b(f"{structure}\n{target}\n{compiler}".encode(), digest_size=16).hexdigest()


@dataclass(slots=True)
class Count:
    """How often this process has compiled and called a program."""

    compiles: int = 0
    calls: int = 0
    label: str = ""


@dataclass(slots=True)
class _Watched:
    """A model whose calls are counted, the name of its workload, and its calls at the last count."""

    model: weakref.ref[Model]
    name: str
    seen: int = 0


@dataclass(slots=True)
class _State:
    source: str
    folder: Path
    address: str = ""
    label: str = ""
    known: set[str] = field(default_factory=set)
    fresh: dict[str, bytes] = field(default_factory=dict)
    counts: dict[str, Count] = field(default_factory=dict)
    watched: list[_Watched] = field(default_factory=list)
    changed: bool = False


class Collector:
    """Collects the workloads of this process for one place.

    Args:
        place: a folder or a service's address.
        label: a name for this process's models, shown to the operators of the service; empty for none.
        token: an access token of the service, with the role "submit".

    Raises RecordError for an address that is not https.
    """

    def __init__(self, place: str, label: str = "", token: str = "") -> None:
        address = place if "://" in place else ""
        if address:
            from tilewright.records.remote import check  # which loads what speaks HTTP

            check(address)
        folder = flags.CACHE_DIR() / "collected" / blake2b(place.encode(), digest_size=8).hexdigest()
        self._token = token
        self._state = _State(os.urandom(16).hex(), folder if address else Path(place), address, label[:200])
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def place(self) -> Path:
        """The folder that is written; for a service, the folder of what could not be sent yet."""
        return self._state.folder

    def knows(self, name: str) -> bool:
        """Whether this process or another one has written a workload before."""
        known = self._state.known
        if name not in known and os.path.exists(self._state.folder / "workloads" / f"{name}.json"):
            known.add(name)
        return name in known

    def compiled(self, name: str) -> None:
        """Count one compile of a workload."""
        self._after_fork()
        with self._lock:
            self._state.counts.setdefault(name, Count(label=self._state.label)).compiles += 1
            self._state.changed = True
        self._begin()

    def workload(self, each: Workload) -> None:
        """Write down the decisions of a program."""
        content = json.dumps(encode(each), separators=(",", ":"), sort_keys=True).encode()
        with self._lock:
            self._state.known.add(each.name)
            self._state.fresh[each.name] = content
            self._state.changed = True

    def watch(self, model: Model, name: str) -> None:
        """Count the calls of `model`, as those of the workload `name`, from now on."""
        with self._lock:
            self._state.counts.setdefault(name, Count(label=self._state.label))
            self._state.watched.append(_Watched(weakref.ref(model), name, _calls(model)))

    def flush(self) -> None:
        """Read the counters and write what is new. Never raises: collecting must not break the process that it
        observes."""
        with self._lock:
            state = self._state
            self._read()
            if not state.changed:
                return
            fresh, counts = dict(state.fresh), {name: encode(c) for name, c in state.counts.items()}
            said = {"version": VERSION, "source": state.source, "time": int(time.time()), "counts": counts}
            state.changed = False
            try:
                self._write(fresh, said)
                for name in fresh:
                    del state.fresh[name]
            except (OSError, ValueError):  # a disk that is full, a service that is down: the next time
                state.changed = True

    def close(self) -> None:
        """Write what is left, and stop collecting."""
        self._stop.set()
        self.flush()

    def _read(self) -> None:
        alive = []
        for watched in self._state.watched:
            model = watched.model()
            if model is None:
                continue
            alive.append(watched)
            now = _calls(model)
            if now > watched.seen:
                self._state.counts[watched.name].calls += now - watched.seen
                self._state.changed = True
            watched.seen = now
        self._state.watched[:] = alive

    def _write(self, fresh: Mapping[str, bytes], said: dict[str, Any]) -> None:
        folder = self._state.folder
        for part in ("workloads", "counts"):
            (folder / part).mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, content in fresh.items():
            write_whole(folder / "workloads" / f"{name}.json", content)
        write_whole(folder / "counts" / f"{self._state.source}.json", json.dumps(said).encode())
        if self._state.address:
            self._send(said)

    def _send(self, said: dict[str, Any]) -> None:
        """Send this process's counts with their workloads to the service."""
        import urllib.request

        from tilewright.records.remote import WAIT_SECONDS

        folder = self._state.folder / "workloads"
        workloads = []
        for name in said["counts"]:
            with contextlib.suppress(OSError):
                workloads.append(json.loads((folder / f"{name}.json").read_bytes()))
        body = json.dumps({**said, "workloads": workloads}).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "tilewright"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        address = f"{self._state.address.rstrip('/')}/v1/collected"
        request = urllib.request.Request(address, body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            answer.read(1 << 16)

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tilewright-collect", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_SECONDS):
            self.flush()

    def _after_fork(self) -> None:
        """Give a forked process counts of its own."""
        if self._process == os.getpid():
            return
        self._process, self._thread, self._lock = os.getpid(), None, threading.Lock()
        self._state.source, self._state.counts, self._state.watched = os.urandom(16).hex(), {}, []


_active: Collector | None = None
_by_flag: tuple[str, Collector | None] = ("", None)


def collect(place: str | os.PathLike[str] | None, *, label: str = "", token: str = "") -> Collector | None:
    """Begin to collect the programs that this process compiles and how often it calls them; None ends collecting.

    Args:
        place: a folder, or the https address of a tuning service (docs/farm.md).
        label: a name for this process's models, which the service shows. Without one nothing is named.
        token: an access token of the service, with the role "submit".

    Returns the collector, whose `flush` writes at once what is otherwise written every half minute and at the end.
    """
    global _active
    if _active is not None:
        _active.close()
    _active = None if place is None else Collector(os.fspath(place), label, token)
    return _active


def active() -> Collector | None:
    """The current collector: the one that `collect` began or TILEWRIGHT_COLLECT names; None if nothing is collected."""
    global _by_flag
    if _active is not None:
        return _active
    place = flags.COLLECT()
    if place != _by_flag[0]:
        with contextlib.suppress(Error):
            _by_flag = place, None
            _by_flag = place, Collector(place, token=os.environ.get("TILEWRIGHT_COLLECT_TOKEN", "")) if place else None
    return _by_flag[1]


def watch(model: Model) -> None:
    """Count the calls of a model if it was compiled while collecting."""
    collector = active()
    if collector is not None:
        manifest = model.manifest
        name = _names.get(manifest.structure_key)
        if name is not None:
            collector.watch(model, name)


_names: dict[str, str] = {}
"""The name of the workload compiled last, by the program's structure key."""


def name_of(structure: str, target: Target) -> str:
    """The name of the workload of a program compiled for a target by this compiler."""
    name = _names[structure] = workload_name(structure, target_class(target), code_version())
    return name


def note(structure: str, target: Target, context: Context, program: Program) -> None:
    """Collect the decisions about a program that was just compiled."""
    collector = active()
    if collector is not None:
        collector.workload(workload_of(structure, target, context, program))


def workload_of(structure: str, target: Target, context: Context, program: Program) -> Workload:
    """The workload of a program that was just compiled, with its decisions listed."""
    decisions = {d.key.name: d for d in context.decisions}
    versions = [context.kernels.get(step.kernel, ()) for step in program.manifest.run_steps]
    shares, cycles = _shares(versions, decisions)
    seconds = cycles / (1e9 * max(target.frequency, 0.1))
    sites = []
    for d in decisions.values():
        if len(d.space) > 1 and d.key.kind not in NEVER and (d.key.kind != "plan" or d.key.name in shares):
            share = shares[d.key.name] if d.key.kind == "plan" else _share_of_operators(d, cycles)
            label, text = d.selected.label, d.key.text
            workload = str(d.key.program)
            sites.append(Site(d.key.name, text, workload, label, d.why, len(d.space), share, _headroom(d, target)))
    return Workload(structure, target_class(target), code_version(), seconds, tuple(sites))


def _shares(
    versions: Sequence[Sequence[Scheduled]], decisions: Mapping[str, Decision]
) -> tuple[dict[str, float], float]:
    """(decision -> share of a call's time, cycles of a call). `versions` has the decisions about the versions of each
    kernel; each version counts as if all calls had its sizes."""

    def cycles(each: Scheduled) -> float:
        return decisions[each.name].estimate if each.name in decisions else 0.0

    general = [max((cycles(v) for v in step if not v.where), default=0.0) for step in versions]
    total = sum(general)
    shares: dict[str, float] = {}
    for step, own in zip(versions, general, strict=True):
        for version in step:
            mine = cycles(version)
            rest = total - own + mine
            shares[version.name] = min(1.0, shares.get(version.name, 0.0) + (mine / rest if rest > 0 else 0.0))
    return shares, total


def _share_of_operators(d: Decision, cycles: float) -> float:
    """The estimated share of a call's `cycles` of operators whose algorithm or packing is decided. For a symbolic
    number of images estimates of algorithms are for one, those of kernels for `SYMBOL`."""
    symbolic = SYMBOL if "n0" in d.key.text and d.key.kind == "algorithm" else 1
    return min(1.0, symbolic * d.estimate / cycles) if cycles > 0 else 0.0


def _headroom(d: Decision, target: Target) -> float:
    """The share of its estimated time that tuning a decision may save at most: how far the estimate exceeds a
    roofline."""
    if not isinstance(d.key.program, PrimFunc) or not d.estimate:
        return GRAPH_HEADROOM
    with contextlib.suppress(Error, ArithmeticError):
        bound = roofline(analyse(d.key.program), target).cycles
        if bound > 0:
            return max(0.0, min(MAX_HEADROOM, d.estimate / bound - 1.0))
    return GRAPH_HEADROOM


def _calls(model: Model) -> int:
    """How often a model was called, from the runtime's counter."""
    engine = model._engine
    return int(engine.control.reader(engine._reader).calls)


@atexit.register
def _at_the_end() -> None:
    for collector in (_active, _by_flag[1]):
        if collector is not None:
            collector.close()


__all__ = [
    "Collector",
    "Count",
    "Site",
    "Workload",
    "active",
    "collect",
    "name_of",
    "note",
    "watch",
    "workload_name",
    "workload_of",
]
