"""`python -m tests.farm.hostile`: damaged and invented records, results, requests and measurements; none is followed,
none ends the process (part of `make farm`). All of them are mutations of sound ones, made here and sent nowhere.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.records.samples import ZEN4, product, record
from tilewright.farm.canary import Measurement, parse_measurement
from tilewright.farm.http import Site, tokens_of
from tilewright.farm.intake import take
from tilewright.farm.planner import Budget, plan
from tilewright.farm.queue import Job, Queue
from tilewright.farm.results import deliver
from tilewright.farm.state import State
from tilewright.farm.work import Outcome
from tilewright.plans.framework.decision_key import target_class
from tilewright.records.collecting import Count, Workload, workload_name
from tilewright.records.collecting import Site as Decision
from tilewright.records.signed import Signed, SigningKey, parse_line, verified
from tilewright.records.subscription import packed, unpacked
from tilewright.runtime.schema import encode
from tilewright.serve.protocol.routes import Asked
from tilewright.support.errors import Error

TARGET = target_class(ZEN4)
COMPILER = "0" * 32
TOKEN = "a-token-that-may-all"
ODD: tuple[Any, ...] = (None, True, -1, 0, 1 << 70, 1e308, "", "x" * 300, "\0", "\ud800", [], {}, [[]], {"a": 1}, "NaN")


class World:
    """A service with one decision, its job, and one signed record."""

    def __init__(self, folder: Path) -> None:
        self.state = State(str(folder / "farm.sqlite"))
        self.queue = Queue(self.state, tries=1 << 40)
        self.key, self.other = SigningKey(folder / "key"), SigningKey(folder / "other")
        self.site = Site(self.state, tokens_of({TOKEN: ["read", "submit", "release"]}), self.key.public)
        key = product(8)
        self.workload = Workload(
            "5" * 32, TARGET, COMPILER, 1e-3,
            (Decision(key.name, key.text, str(key.program), "direct", "estimate", 3, 0.5, 0.05),),
        )  # fmt: skip
        name = workload_name("5" * 32, TARGET, COMPILER)
        take(self.state, [self.workload], "6" * 32, {name: Count(1, 1000)})
        plan(self.state, self.queue, Budget(horizon_days=0))
        job = self.queue.claim("worker", "host", TARGET)
        assert job is not None
        self.job: Job = job
        self.content = record(8).to_bytes()
        self.signed = Signed(self.content, self.key.sign(self.content))
        self.outcome = Outcome((self.content.decode(),), "", "searched", 1.0)
        self.counts = {"version": 1, "source": "6" * 32, "time": 1, "counts": {name: encode(Count(1, 1000))}}
        self.measurement = Measurement("7" * 32, "5" * 32, TARGET, ("8" * 32,), (1.0, 1.01), 1.0, 0.0)


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Bytes with some of them changed, cut out, doubled or put elsewhere."""
    result = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
        at = draw.randrange(len(result) + 1)
        match draw.randrange(5):
            case 0 if result:
                result[at % len(result)] = draw.randrange(256)
            case 1:
                del result[at : at + draw.randrange(40)]
            case 2:
                result[at:at] = draw.randbytes(draw.randrange(8))
            case 3:
                result[at:at] = result[draw.randrange(len(result) + 1) :][:40]
            case _ if result:
                result[at % len(result)] ^= 1 << draw.randrange(8)
    return bytes(result)


def changed(value: Any, draw: random.Random) -> Any:
    """JSON data with one value, name or length changed somewhere."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        match draw.randrange(6):
            case 0:
                return {k: v for k, v in value.items() if k != name}
            case 1:
                return {**value, draw.choice(("version", "x", "", "__class__")): draw.choice(ODD)}
        return {**value, name: changed(value[name], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return [*value[:at], changed(value[at], draw), *value[at + 1 :]]
    if isinstance(value, str) and value and draw.random() < 0.5:
        return mutated(value.encode("utf-8", "replace"), draw).decode("utf-8", "replace")
    if isinstance(value, int | float) and not isinstance(value, bool) and draw.random() < 0.5:
        return draw.choice((-value, value + 1, value * 1e9, 0, 1 << 63))
    return draw.choice(ODD)


def damaged(data: Any, draw: random.Random) -> bytes:
    """JSON that is damaged in its bytes or in what it says."""
    if draw.random() < 0.5:
        return mutated(json.dumps(data).encode(), draw)
    return json.dumps(changed(data, draw)).encode("utf-8", "replace")


def records(world: World, draw: random.Random) -> str:
    """A damaged signed record, or one of another key or class of machines. Followed: whatever is not the record."""
    kind = draw.randrange(4)
    line, target = world.signed.line(), TARGET
    if kind == 0:
        line = mutated(line, draw)
    elif kind == 1:
        line = damaged(json.loads(line), draw)
    elif kind == 2:
        content = mutated(world.content, draw)
        key = draw.choice((world.other, world.key))
        line = json.dumps({"record": content.decode("latin-1"), "signature": key.sign(content)}).encode()
        if key is world.key:  # who has the key may sign nonsense: it must still be a sound record
            return _followed(lambda: verified(parse_line(line), world.key.public, target), lambda r: True)
    else:
        target = "x86_64 haswell 256x16 32768+262144 00000000 threads=1"
    return _followed(
        lambda: verified(parse_line(line), world.key.public, target),
        lambda r: r.to_bytes() == world.content and r.target == target,
    )


def answers(world: World, draw: random.Random) -> str:
    """A damaged answer of a channel."""
    body = mutated(packed(iter([world.signed])), draw)

    def read() -> list[Any]:
        return [verified(s, world.key.public, TARGET) for s in unpacked(body)]

    return _followed(read, lambda rs: all(r.to_bytes() == world.content for r in rs))


def results(world: World, draw: random.Random) -> str:
    """A damaged result of a worker. Followed: a result that brings another record into the state."""
    text = damaged(encode(world.outcome), draw).decode("utf-8", "replace")
    said = _followed(lambda: deliver(world.state, world.queue, world.job, "worker", "host", text), lambda done: True)
    with world.state.database.transaction() as t:
        strange = t.rows(
            "SELECT digest, decision, target FROM record WHERE target <> ? OR compiler <> ?", (TARGET, COMPILER)
        )
        t.run("UPDATE job SET state = 'leased' WHERE name = ?", (world.job.name,))
        t.run("DELETE FROM job WHERE kind = 'confirm'")
        t.run("DELETE FROM record")
    return "followed" if strange else said.replace("followed", "taken")


def requests(world: World, draw: random.Random) -> str:
    """A damaged request with a token that may all, or a sound one without."""
    said = draw.choice(
        (
            ("POST", "/v1/collected", {**world.counts, "workloads": [encode(world.workload)]}),
            ("POST", "/v1/measurements", encode(world.measurement)),
            ("POST", "/v1/lookup", {"channel": "stable", "target": TARGET, "decisions": [world.job.decision] * 3}),
            ("POST", "/v1/rollout", {"action": "back", "record": "8" * 32, "who": "x", "why": "y"}),
            ("GET", "/v1/channels/stable?target=x", {}),
            ("GET", "/v1/status", {}),
        )
    )
    method, path, body = said
    headers = {"authorization": f"Bearer {TOKEN}"}
    content = damaged(body, draw)
    match draw.randrange(6):
        case 0:
            path = mutated(path.encode(), draw).decode("latin-1")
        case 1:
            headers["authorization"] = mutated(headers["authorization"].encode(), draw).decode("latin-1")
        case 2:
            method = draw.choice(("GET", "PUT", "DELETE", "", "POST\n", "HEAD"))
    reply = world.site.reply(Asked(method, path, headers, content, 0.0))
    authorized = headers["authorization"].partition(" ")[2].strip() == TOKEN
    if reply.status == 500:
        raise AssertionError(f"{method} {path} {content[:200]!r}: {reply.body!r}")
    if not authorized and reply.status == 200 and reply.content_type != "text/html; charset=utf-8":
        return "followed"
    return "refused" if reply.status >= 400 else "taken"


def measurements(world: World, draw: random.Random) -> str:
    """A damaged measurement: one that is taken has numbers that can be."""
    body = damaged(encode(world.measurement), draw)
    return _followed(
        lambda: parse_measurement(body), lambda m: all(1e-3 < r < 1e3 for r in m.ratios) and 0 < m.tail < 1e6
    )


def _followed(call: Callable[[], Any], sound: Callable[[Any], bool]) -> str:
    """Whether a call refuses its input, takes it as what is sound, or follows what is not."""
    try:
        result = call()
    except Error:
        return "refused"
    return "taken" if sound(result) else "followed"


KINDS = (records, answers, results, requests, measurements)


def run(folder: Path, count: int, seed: int) -> Counter[str]:
    """Counts of what became of so many hostile inputs; an exception that is no `Error` ends it."""
    world, draw = World(folder), random.Random(seed)
    said: Counter[str] = Counter()
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        said[f"{kind.__name__} {kind(world, draw)}"] += 1
    world.site.close()
    return said


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.farm.hostile", description=__doc__)
    options.add_argument("--count", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=int(time.time()))
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        said = run(Path(folder), chosen.count, chosen.seed)
    for name, number in sorted(said.items()):
        print(f"{number:8} {name}")
    followed = sum(number for name, number in said.items() if name.endswith("followed"))
    print(f"{chosen.count} inputs of seed {chosen.seed}, {followed} followed")
    return 1 if followed else 0


if __name__ == "__main__":
    sys.exit(main())
