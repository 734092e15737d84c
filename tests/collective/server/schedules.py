"""Random schedules of a parameter server's workers, without threads: which of them takes its next step is drawn.
Weights count: element [w] is how many of worker w's pushes they contain, so that what a worker sees is known."""

from __future__ import annotations

import numpy as np

from tilewright.collective.server import Add, Push, Shard


def run(seed: int, steps: int = 12) -> int:
    """Run a schedule to its end; returns how often a worker had to wait. AssertionError if one sees weights that are
    older than its staleness allows, is too many clocks ahead, or if none can go on."""
    rng = np.random.default_rng([seed, 6])
    workers = int(rng.integers(1, 6))
    staleness = [0, 1, 2, 5, None][int(rng.integers(5))]
    speeds = rng.exponential(1.0, workers) ** 2 + 0.01
    shard = Shard({"w": np.zeros(workers)}, workers, Add(), staleness)
    clocks, pulled, waits = [0] * workers, [False] * workers, 0
    while min(clocks) < steps:
        able = [w for w in range(workers) if clocks[w] < steps and (pulled[w] or shard.may_pull(clocks[w]))]
        waits += sum(not pulled[w] and not shard.may_pull(clocks[w]) for w in range(workers) if clocks[w] < steps)
        assert able, f"schedule {seed}: all wait, clocks {clocks}"
        odds = speeds[able] / speeds[able].sum()
        w = int(rng.choice(able, p=odds))
        if not pulled[w]:
            seen = np.rint(shard.values["w"] * workers).astype(int)
            if staleness is not None:
                assert clocks[w] - min(clocks) <= staleness, f"schedule {seed}: worker {w} of {clocks} is ahead"
                assert (seen >= clocks[w] - staleness).all(), (
                    f"schedule {seed}: {seen} is too old for clock {clocks[w]}"
                )
            if staleness == 0:
                assert (seen == clocks[w]).all(), f"schedule {seed}: {seen} at clock {clocks[w]} is half a step"
            else:
                assert (seen == clocks).all(), f"schedule {seed}: {seen} is not what was pushed, {clocks}"
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


def main() -> None:
    waits = [run(seed) for seed in range(10_000)]
    print(f"10000 schedules, {sum(waits)} waits: staleness was never exceeded")


if __name__ == "__main__":
    main()
