"""Nexus's packing: never against its own model, as good as every partition tried, and what it promises on a clock."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import tilewright as tw
from tests.cli.conftest import cli  # noqa: F401  a fixture
from tilewright.serve.batching.estimates import Estimates
from tilewright.serve.batching.policy import DeadlineQueue
from tilewright.serve.batching.simulation import Load, simulate
from tilewright.serve.packing.plan import Demand, drawn, plan, violations


def linear(alpha: float, beta: float) -> Callable[[int], float]:
    return lambda rows: alpha * rows + beta


def demand(source: random.Random, name: str, most_rate: float = 300.0) -> Demand:
    alpha, beta = source.uniform(1e-4, 3e-3), source.uniform(1e-4, 1e-2)
    promise = source.uniform(2.1, 20) * (alpha + beta)
    return Demand(name, source.uniform(1, most_rate), promise, linear(alpha, beta), 64)


def partitions(items: Sequence[Demand]) -> Iterator[list[list[Demand]]]:
    """All ways to put the items into groups."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        for k, group in enumerate(rest):
            yield [*rest[:k], [items[0], *group], *rest[k + 1 :]]
        yield [[items[0]], *rest]


def fits(group: Sequence[Demand]) -> bool:
    """Whether one core can keep all promises of a group, by trying two thousand cycles."""
    longest = min(d.promise for d in group)
    for step in range(1, 2001):
        cycle = longest * step / 2000
        batches = [max(1, math.ceil(d.rate * cycle - 1e-9)) for d in group]
        overdue = any(cycle + d.time(b) > d.promise or b > d.most for d, b in zip(group, batches, strict=True))
        if not overdue and sum(d.time(b) for d, b in zip(group, batches, strict=True)) <= cycle:
            return True
    return False


def brute_force(demands: Sequence[Demand]) -> int:
    """The fewest cores: whole ones for what fills them, and the best of all partitions of what is left."""
    cores, rest = 0, []
    for d in demands:
        rate = max(b / d.time(b) for b in range(1, d.most + 1) if 2 * d.time(b) <= d.promise)
        full = int(d.rate / rate)
        cores += full
        if d.rate - full * rate > 1e-9:
            rest.append(Demand(d.name, d.rate - full * rate, d.promise, d.time, d.most))
    known: dict[tuple[str, ...], bool] = {}

    def possible(group: list[Demand]) -> bool:
        key = tuple(sorted(d.name for d in group))
        if key not in known:
            known[key] = fits(group)
        return known[key]

    return cores + min(len(p) for p in partitions(rest) if all(map(possible, p)))


@pytest.mark.parametrize("seed", range(12))
def test_against_all_partitions(seed: int) -> None:
    source = random.Random(seed)
    demands = [demand(source, f"m{k}", 120.0) for k in range(source.randrange(2, 6))]
    cores = plan(demands)
    assert violations(cores, demands) == []
    assert len(cores) <= 1.2 * brute_force(demands)


@pytest.mark.parametrize("seed", range(8))
def test_several_models_never_break_a_promise(seed: int) -> None:
    source = random.Random(100 + seed)
    demands = [demand(source, f"m{k}") for k in range(25)]
    cores = plan(demands)
    assert violations(cores, demands) == []
    # No plan can do with less: a batch takes half of the promise at most, as a request waits for a whole cycle.
    work = sum(d.rate * min(d.time(b) / b for b in range(1, d.most + 1) if 2 * d.time(b) <= d.promise) for d in demands)
    assert len(cores) <= 2 * math.ceil(work)


def test_what_a_wrong_plan_breaks_is_told() -> None:
    source = random.Random(3)
    demands = [demand(source, f"m{k}") for k in range(6)]
    cores = plan(demands)
    assert violations(cores[1:], demands)
    tight = [Demand(d.name, d.rate, d.promise / 2, d.time, d.most) for d in demands]
    assert any("too late" in text for text in violations(cores, tight))
    with pytest.raises(tw.Error, match="cannot be kept"):
        plan([Demand("m", 1.0, 0.001, linear(1e-3, 0))])


def noisy(by_name: dict[str, Demand], seed: int) -> Callable[[object, int], float]:
    noise = random.Random(seed)
    return lambda model, rows: by_name[str(model)].time(rows) * (1 + abs(noise.gauss(0, 0.02)))


def test_a_hundred_cores_on_a_clock() -> None:
    """The plan of a cluster, each core run by the server's own policy on a simulated clock with noise."""
    source = random.Random(1)
    demands = [demand(source, f"m{k}", 900.0) for k in range(60)]
    cores = plan([Demand(d.name, d.rate * 1.3, d.promise, d.time, d.most) for d in demands])
    assert 60 < len(cores) < 250
    by_name = {d.name: d for d in demands}
    total: dict[str, int] = defaultdict(int)
    for k, core in enumerate(random.Random(2).sample(cores, 60)):
        queues = {
            s.name: DeadlineQueue(Estimates(64, by_name[s.name].time), by_name[s.name].promise, 64) for s in core.slots
        }
        loads = [Load(s.name, s.rate / 1.3, by_name[s.name].promise) for s in core.slots]
        outcomes = simulate(queues, loads, noisy(by_name, k), seconds=0.7, seed=k)
        for outcome in outcomes.values():
            total["all"] += outcome.total
            total["kept"] += outcome.met
            total["missed"] += outcome.missed
    assert total["kept"] >= 0.98 * total["all"]
    assert total["missed"] <= 0.003 * total["all"]


MODELS = """
[models.fast]
rate = 100
promise_ms = 20
profile_ms = [[1, 1.0], [16, 8.0]]
[models.slow]
rate = 5
promise_ms = 400
profile_ms = [[1, 30.0], [4, 90.0]]
"""


def test_the_command(cli, tmp_path: Path) -> None:  # noqa: F811
    import json

    path = tmp_path / "models.toml"
    path.write_text(MODELS)
    code, page, _ = cli("plan-serving", path, "--json")
    assert code == 0
    cores = json.loads(page)["cores"]
    assert {s["model"] for core in cores for s in core["slots"]} == {"fast", "slow"}
    code, page, _ = cli("plan-serving", path)
    assert code == 0 and "fast x" in page
    assert cli("plan-serving", path, "--cores", len(cores))[0] == 0
    assert len(cores) == 1 or cli("plan-serving", path, "--cores", 1)[0] == 3
    path.write_text(MODELS + "[models.bad]\nrate = -1\n[models.worse]\nrate = 1\npromise_ms = 1\nprofile_ms = 7\n")
    code, _, err = cli("plan-serving", path)
    assert code == 1 and "models.bad" in err and "models.worse" in err
    path.write_text("""[models.text]\nrate = 1\npromise_ms = 1\nprofile_ms = [[1, "a"]]""")
    assert "models.text: cannot be planned" in cli("plan-serving", path)[2]


def test_a_picture_has_the_cycles_length() -> None:
    [core] = plan([Demand("m", 100.0, 0.02, linear(1e-3, 1e-3))])
    assert len(drawn(core, 40)) in range(40, 48) and "m x" in drawn(core)
