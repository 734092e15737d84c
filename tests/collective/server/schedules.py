"""Random schedules of a parameter server's workers, without threads: which of them takes its next step is drawn.
Weights count: element [w] is how many of worker w's pushes they contain, so that what a worker sees is known."""

from __future__ import annotations

import random

import numpy as np

from tilewright.collective.server import Add, Push, Shard


def run(seed: int, steps: int = 12) -> int:
    """Run a schedule to its end; returns how often a worker had to wait. AssertionError if one sees weights that are
    older than its staleness allows, is too many clocks ahead, or if none can go on."""
    rng = random.Random(seed)
    workers = rng.randint(1, 5)
    staleness = rng.choice([0, 1, 2, 5, None])
    speeds = [rng.expovariate(1.0) ** 2 + 0.01 for _ in range(workers)]
    shard = Shard({"w": np.zeros(workers)}, workers, Add(), staleness)
    clocks, pulled, waits = [0] * workers, [False] * workers, 0
    while min(clocks) < steps:
        able = [w for w in range(workers) if clocks[w] < steps and (pulled[w] or shard.may_pull(clocks[w]))]
        waits += sum(not pulled[w] and not shard.may_pull(clocks[w]) for w in range(workers) if clocks[w] < steps)
        assert able, f"schedule {seed}: all wait, clocks {clocks}"
        w = rng.choices(able, [speeds[k] for k in able])[0]
        if not pulled[w]:
            check(seed, w, clocks, [round(x * workers) for x in shard.values["w"].tolist()], staleness)
            pulled[w] = True
        else:
            one = np.zeros(workers)
            one[w] = 1
            push = Push(w, clocks[w], {"w": one}, {})
            shard.push(push)
            if rng.random() < 0.1:
                shard.push(push)  # its answer was lost: once more
            clocks[w] += 1
            pulled[w] = False
    return waits


def check(seed: int, w: int, clocks: list[int], seen: list[int], staleness: int | None) -> None:
    """AssertionError unless worker w may see so many pushes of each."""
    where = f"schedule {seed}, worker {w} of {clocks} sees {seen}"
    if staleness is not None:
        assert clocks[w] - min(clocks) <= staleness, f"{where}: it is ahead"
        assert min(seen) >= clocks[w] - staleness, f"{where}: too old"
    if staleness == 0:
        assert set(seen) == {clocks[w]}, f"{where}: half a step"
    else:
        assert seen == clocks, f"{where}: not what was pushed"


def main() -> None:
    waits = [run(seed) for seed in range(10_000)]
    print(f"10000 schedules, {sum(waits)} waits: staleness was never exceeded")


if __name__ == "__main__":
    main()
