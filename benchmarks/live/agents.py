"""Child processes of the measurements: `python -m benchmarks.live.agents TASK '{...}' CPU`.

Each task is a generator-free function that reads commands as lines of JSON and answers each with one.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.runtime.native import native


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def commands() -> Iterator[Any]:
    # Not by iterating: that would read ahead of what `select` sees.
    while line := sys.stdin.readline():
        yield json.loads(line)


def _open(name: str, program: str | None) -> Any:
    """An actor on the store `name`, or a private copy of a program."""
    return tw.load(program) if program else tw.attach(name, timeout=60.0)


def ring(name: str, program: str | None, batch: int, own: int, following: int, home: int, reading: bool) -> None:
    """One call whenever the token comes; then it goes to the next agent, at its end home.

    The token is eight bytes, the number of calls that are left. Descriptors are pipes: `own` is read, `following` and
    `home` are written. With `reading`, in place of a call the packed weights are read from end to end.
    """
    policy = _open(name, program)
    if reading:
        memory = _packed(policy)
        call = partial(native().checksum, memory.ctypes.data, memory.nbytes & -64)
    else:
        arguments, outputs = _prepared(policy, batch)
        call = partial(policy.__call__, *arguments, out=outputs)
    call()
    say({"pid": os.getpid()})
    while True:
        left = int.from_bytes(os.read(own, 8), "little")
        if left == 0:
            return
        call()
        if left == 1:
            os.write(home, bytes(8))
        else:
            os.write(following, (left - 1).to_bytes(8, "little"))


def _packed(policy: Any) -> Any:
    """The packed weights of an actor or of a model, as bytes."""
    if isinstance(policy, tw.Model):
        return policy._weights.current.packed
    return policy._epoch.segments.view(policy._epoch.control.current)


def _prepared(policy: Any, batch: int) -> tuple[list[Any], Any]:
    from tilewright.runtime.examples import random_inputs

    arrays = random_inputs(policy.inputs, {s.name: batch for s in policy.manifest.symbols}, os.getpid())
    arguments = [arrays[spec.name] for spec in policy.inputs]
    result = policy(*arguments)
    outputs = tuple(np.empty_like(o) for o in result) if isinstance(result, tuple) else np.empty_like(result)
    return arguments, outputs


def sit(name: str, program: str | None, batch: int, calls: int) -> None:
    """Attach, call, and stay: for measuring memory."""
    policy = _open(name, program)
    arguments, outputs = _prepared(policy, batch)
    for _ in range(calls):
        policy(*arguments, out=outputs)
    say({"pid": os.getpid()})
    for _ in commands():
        return


def check(name: str, expected: str, batch: int) -> None:
    """Calls that are timed and checked: {"calls": n, "pause": s} -> what they took and whether outputs were whole.

    `expected` is an .npz file: the inputs by name, and for each output an array whose k-th entry is that of the k-th
    set of weights; version v has the set v modulo their number.
    """
    actor = tw.attach(name, timeout=60.0)
    with np.load(expected) as file:
        data = dict(file)
    arguments = [data[f"in.{spec.name}"] for spec in actor.inputs]
    wanted = [data[f"out.{spec.name}"] for spec in actor.outputs]
    bytes_of = [[w[k].tobytes() for w in wanted] for k in range(len(wanted[0]))]
    sets = len(bytes_of)
    actor.versioned(*arguments)
    say({"pid": os.getpid()})
    clock = time.perf_counter_ns
    for command in commands():
        count, pause, seconds = command["calls"], command["pause"], command["seconds"]
        times = np.zeros(count, np.int64)
        torn = back = done = 0
        last, seen = -1, set()
        versioned = actor.versioned
        end = clock() + int(seconds * 1e9)
        for k in range(count):
            start = clock()
            outputs, version = versioned(*arguments)
            stop = clock()
            times[k] = stop - start
            done += 1
            if not isinstance(outputs, tuple):
                outputs = (outputs,)
            if [o.tobytes() for o in outputs] != bytes_of[version % sets]:
                torn += 1
            if version != last:
                back += version < last
                last = version
                seen.add(version)
            if stop > end:
                break
            if pause:
                time.sleep(pause)
        path = command["times"]
        np.save(path, times[:done])
        say({"calls": done, "torn": torn, "back": back, "versions": len(seen), "last": last})


def publish(name: str, program: str, sets: list[str]) -> None:
    """A publisher: {"rate": per second} begins, {"stop": true} ends -> how many, and the rate reached.

    It goes first where it may: with more processes than cores, it would get a share of a core in slices of
    milliseconds, and no rate could be kept.
    """
    with contextlib.suppress(PermissionError):
        os.nice(-10)
    model = tw.load(program)
    weights = []
    for path in sets:
        with np.load(path) as file:
            weights.append(dict(file))
    with tw.Publisher(name, model) as publisher:
        # The store begins with the first set: version and set must belong together.
        version = publisher.version + 1
        version += -version % len(weights)
        publisher.publish(weights[0], version=version)
        say({"pid": os.getpid(), "version": version})
        for command in commands():
            done, took = _at_rate(publisher, weights, command["rate"])
            rate = done / took if took else 0.0
            say({"publishes": done, "rate": rate, "version": publisher.version})


def _at_rate(publisher: Any, weights: list[Any], rate: float) -> tuple[int, float]:
    """Publish at this rate until something is said; gives how many, in how many seconds. Rate 0 only waits."""
    if rate == 0:
        sys.stdin.readline()
        return 0, 0.0
    done, start = 0, time.perf_counter()
    while True:
        rest = max(0.0, start + (done + 1) / rate - time.perf_counter())
        if select.select([sys.stdin], [], [], rest)[0]:
            sys.stdin.readline()
            return done, time.perf_counter() - start
        version = publisher.version + 1
        publisher.publish(weights[version % len(weights)], version=version)
        done += 1


def churn(program: str, publishes: int, marks: int) -> None:
    """Publish without pause; memory and files at some points on the way."""
    from pathlib import Path

    model = tw.load(program)
    weights = [{k: np.array(v) for k, v in model.weights.items()} for _ in range(4)]
    folder = Path(os.environ["TILEWRIGHT_STORE_DIR"])
    with tw.Publisher("churn", model) as publisher, tw.attach("churn") as actor:
        arguments, outputs = _prepared(actor, 1)
        done, start = 0, time.perf_counter()
        for mark in range(marks + 1):
            until = 1000 + mark * publishes // marks
            while done < until:
                publisher.publish(weights[done % 4])
                done += 1
                if done % 16 == 0:
                    actor(*arguments, out=outputs)
            say(
                {
                    "publishes": done,
                    "seconds": time.perf_counter() - start,
                    "resident": _status("VmRSS"),
                    "own": _status("RssAnon"),
                    "shared": sum(p.stat().st_blocks * 512 for p in folder.rglob("*") if p.is_file()),
                    "files": sum(p.is_file() for p in folder.rglob("*")),
                    "descriptors": len(os.listdir("/proc/self/fd")),
                }
            )


def _status(key: str) -> int:
    """Bytes of a line of /proc/self/status."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return 0


def fetch(**arguments: Any) -> None:
    """See `fetching.fetch`."""
    from benchmarks.live import fetching  # not for all: what processes take in memory is measured

    fetching.fetch(say, commands, **arguments)


def relaying(**arguments: Any) -> None:
    """See `fetching.relaying`."""
    from benchmarks.live import fetching

    fetching.relaying(say, commands, **arguments)


TASKS = {f.__name__: f for f in (ring, sit, check, publish, churn, fetch, relaying)}

if __name__ == "__main__":
    if sys.argv[3] != "None":
        os.sched_setaffinity(0, {int(sys.argv[3])})
    TASKS[sys.argv[1]](**json.loads(sys.argv[2]))
