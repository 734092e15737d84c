"""`make demo-farm`: a model is collected in production, tuned, tried as a canary, and released; a bad record goes back.

    python -m examples.farm_demo [--model nat|m64|...|FILE.onnx] [--decisions 4] [--seconds 30] [--as graniterapids]

Everything runs on this machine, in a folder that goes afterwards: a process of production that compiles and calls the
model, the service with a worker, and further processes that measure the canary. So that there is something to be found,
`--as` has the compiler estimate for another machine's caches and ceilings, as on a processor that was not calibrated;
`--as native` estimates for this one. The worker's limits are wide: a machine with neighbours shows its noise, and the
races are paired.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

CALLS, PAIRS, PROCESSES = 200, 150, 3
GRACE = 2.0
WAIT_SECONDS = 1500.0


def load(model: str) -> Any:
    """A model of the benchmarks by its name, or a file."""
    if model.endswith(".onnx"):
        return model
    from benchmarks import models

    return models.load(model)


def inputs_of(model: Any) -> list[Any]:
    """Arrays of one call."""
    from tilewright.tuning.entry import example_inputs

    return list(example_inputs(model, None).values())


def produce(options: argparse.Namespace) -> None:
    """A process of production: compiles the model with the stable records, calls it, and is collected."""
    import tilewright as tw

    collector = tw.collect(options.folder / "collected", label=options.model)
    assert collector is not None
    model = tw.compile(load(options.model), records=options.address)
    inputs = inputs_of(model)
    for _ in range(CALLS):
        model(*inputs)
    collector.close()


def measure(options: argparse.Namespace) -> None:
    """A process of production that measures the canary while it answers, and sends what it has seen."""
    from tilewright.farm.canary import Canary, submit
    from tilewright.farm.canary import canary as with_canary

    model: Canary = with_canary(
        load(options.model), service=options.address, share=1.0, pairs=PAIRS, label=options.model
    )
    if not model.records:
        return
    inputs = inputs_of(model.stable)
    while model.sent is None:
        model(*inputs)
    submit(options.address.partition("#")[0], model.sent)  # a thread sends it, too; it counts once


def child(role: str, options: argparse.Namespace, address: str) -> None:
    """Run a process of production."""
    command = [sys.executable, "-m", "examples.farm_demo", "--role", role, "--model", options.model]
    subprocess.run([*command, "--folder", str(options.folder), "--address", address], check=True)


def raced(settings: dict[str, str], model: str, number: int = 5) -> tuple[float, float, float]:
    """The whole model with settings forced against without, freshly loaded `number` times: median and interval."""
    import tilewright as tw
    from tilewright.plans.framework.decisions import forcing
    from tilewright.tuning.significance import gain, there_and_back

    proto, loadings = load(model), []
    for _ in range(number):
        first = tw.compile(proto, records=None)
        with forcing(settings):
            second = tw.compile(proto, records=None)
        inputs, rounds = inputs_of(first), []
        for k in range(60):
            times = {}
            for each in (first, second) if k % 2 else (second, first):
                start = time.perf_counter()
                each(*inputs)
                times[each is second] = time.perf_counter() - start
            rounds.append(times[False] / times[True])
        loadings.append(there_and_back(rounds[10:]))
    shown = gain(loadings)
    return shown.median, shown.low, shown.high


def planted(state: Any, queue: Any, key: Any, model: str) -> str:
    """A bad record in the canary, as an operator with the key might sign one by mistake: it promises 20 % for the
    setting of the model's heaviest kernel that is estimated worst. Gives its digest."""
    import tilewright as tw
    from tilewright.farm import results
    from tilewright.plans.framework.decisions import deciding
    from tilewright.records.record import Candidate, Gain, Policy
    from tilewright.targets.target import Target
    from tilewright.tuning.rerace import Claim, record_of

    with deciding() as listed:
        tw.compile(load(model), records=None)
    kernels = [d for d in listed.decisions if d.key.kind == "plan" and len(d.space) > 2]
    d = max(kernels, key=lambda d: d.estimate)
    worst = max(zip(d.space.labels, d.estimates, strict=True), key=lambda pair: pair[1])[0]
    untuned, machine = d.selected.label, replace(Target.host(), threads=1)
    tried = [Candidate(untuned, "timed", 0.0, (2e-5,)), Candidate(worst, "timed", 0.0, (1e-5,))]
    policy, gain = Policy("by mistake 1", "warm", "kernel", 11, 5), Gain(1.2, 1.15, 1.25, 55)
    record = record_of(Claim(d.key, worst, "warm", "a mistake"), machine, d.space.labels, policy, tried, gain)
    with state.database.transaction() as t:
        results.enter(state, queue, t, record, "by hand", "")
        t.run("UPDATE record SET state = 'confirmed' WHERE digest = ?", (record.digest,))
        t.run("UPDATE job SET state = 'failed', why = 'no host is asked' WHERE kind = 'confirm' AND state = 'queued'")
    results.sign(state, key)
    return str(record.digest)


def rows(state: Any, statement: str) -> list[tuple[Any, ...]]:
    """Rows of the service's database."""
    with state.database.transaction() as t:
        return list(t.rows(statement))


def tuned(service: Any, queue: Any, start: float) -> None:
    """Wait until the service has no job left."""
    shown = 0
    while (counts := queue.counts()).get("queued", 0) + counts.get("leased", 0) and time.time() - start < WAIT_SECONDS:
        service.tick()
        done = rows(service.state, "SELECT kind, decision, spent, why FROM job WHERE state = 'done' ORDER BY finished")
        for kind, decision, spent, why in done[shown:]:
            print(f"  {kind} {decision[:28]}: {spent:.0f} core-seconds; {why}", flush=True)
        shown = len(done)
        waiting = rows(service.state, "SELECT 1 FROM job WHERE kind = 'tune' AND state IN ('queued', 'leased')")
        if not waiting:
            return
        time.sleep(1.0)


def tried(service: Any, options: argparse.Namespace, address: str) -> None:
    """Measure the canary in processes of production until the service has decided."""
    for _ in range(3 * PROCESSES):
        if not rows(service.state, "SELECT 1 FROM channel WHERE channel = 'canary'"):
            return
        child("measure", options, address)
        for text in said_by(service):
            print(f"  {text}", flush=True)


def said_by(service: Any) -> list[str]:
    """Decisions of the service about the canary now."""
    from tilewright.farm import rollout

    texts = rollout.weigh(service.state, service.settings.rules)
    rollout.enter_canary(service.state)
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nat")
    parser.add_argument("--decisions", type=int, default=4, help="that are tuned")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each search")
    parser.add_argument("--as", dest="machine", default="graniterapids", help="the machine of the estimates")
    parser.add_argument("--role", choices=("service", "produce", "measure"), default="service", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--address", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role != "service":
        (produce if options.role == "produce" else measure)(options)
        return 0
    with tempfile.TemporaryDirectory(prefix="farm-demo-") as folder:
        options.folder = Path(folder)
        os.environ |= {"TILEWRIGHT_HOST": options.machine, "TILEWRIGHT_CACHE_DIR": f"{folder}/cache"}
        return demonstrate(options)


def demonstrate(options: argparse.Namespace) -> int:
    """The whole way; 0 if it went as it should."""
    from tilewright.farm.planner import Budget
    from tilewright.farm.selftest import Limits
    from tilewright.farm.service import Service, Settings

    start = time.time()
    settings = Settings(
        state=str(options.folder / "farm.sqlite"), key=options.folder / "farm.key",
        collected=(options.folder / "collected",), workers=1, limits=Limits(9.0, 9.0, 9.0), grace=GRACE,
        budget=Budget(core_hours=10.0, horizon_days=0, jobs=options.decisions), port=0, search_seconds=options.seconds,
    )  # fmt: skip
    service = Service(settings)
    assert service.http is not None
    service.http.start()
    address = f"{service.http.url}#key={service.key.public}"
    print(f"1. production compiles and calls {options.model}; estimates are {options.machine}'s", flush=True)
    child("produce", options, address)
    service.tick()
    (line,) = rows(service.state, "SELECT w.calls, COUNT(*) FROM workload w JOIN site s ON s.workload = w.name"
                   " GROUP BY w.calls")  # fmt: skip
    print(f"   {line[0]} calls, {line[1]} decisions; dashboard: {service.http.url}/dashboard", flush=True)
    print(f"2. a worker tunes the {options.decisions} that promise most", flush=True)
    service.hire()
    try:
        tuned(service, service.queue, start)
        time.sleep(GRACE)
        service.tick()
        return rolled_out(service, options, address, start)
    finally:
        service.close()


def rolled_out(service: Any, options: argparse.Namespace, address: str, start: float) -> int:
    """The canary of what was tuned, then of the planted record; 0 if the first stays or shows no gain, and the second
    goes."""
    state = service.state
    best = rows(state, "SELECT decision, setting, median, low, high, state FROM record WHERE setting <> untuned")
    print(f"3. {len(best)} records promise a gain; the canary", flush=True)
    for decision, setting, median, low, high, how in best:
        print(f"   {decision[:28]}: {setting}, {median:.3f} [{low:.3f}, {high:.3f}], {how}", flush=True)
    tried(service, options, address)
    released = rows(
        state,
        "SELECT c.decision, r.setting FROM channel c JOIN record r ON r.digest = c.digest WHERE c.channel = 'stable'",
    )
    seen = production(state)
    print(f"4. released: {len(released)} records; in production {seen}", flush=True)
    if released:
        median, low, high = raced(dict(released), options.model)
        print(f"   raced by itself, the whole model is {median:.3f} [{low:.3f}, {high:.3f}] times as fast", flush=True)
    from tilewright.records.subscription import FRESH_SECONDS

    print("5. a bad record is planted in the canary, signed by mistake", flush=True)
    bad = planted(state, service.queue, service.key, options.model)
    said_by(service)
    time.sleep(FRESH_SECONDS + 1)  # a machine asks the service once in a minute
    tried(service, options, address)
    (verdict,) = rows(state, f"SELECT state FROM record WHERE digest = '{bad}'")
    stays = rows(state, f"SELECT 1 FROM channel WHERE digest = '{bad}'")
    print(f"   it is {verdict[0]}; {'STILL THERE' if stays else 'in no channel'}", flush=True)
    print("6. history", flush=True)
    for who, channel, action, decision, why in rows(
        state, "SELECT who, channel, action, decision, why FROM history ORDER BY number"
    ):
        print(f"   {who}: {action} {channel} {decision[:28]}: {why}", flush=True)
    print(f"{time.time() - start:.0f} s in all", flush=True)
    return 0 if verdict[0] == "withdrawn" and not stays else 1


def production(state: Any) -> str:
    """The gain that production measured, of all processes together."""
    from tilewright.farm.canary import parse_measurement
    from tilewright.tuning.significance import gain

    measured = [parse_measurement(str(body).encode()) for (body,) in rows(state, "SELECT body FROM measurement")]
    return str(gain([m.ratios for m in measured])) if measured else json.dumps(None)


if __name__ == "__main__":
    sys.exit(main())
