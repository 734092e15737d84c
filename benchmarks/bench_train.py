"""Learning steps against PyTorch's eager mode and JAX: `python -m benchmarks.bench_train [GROUP...]`.

A PPO update of a policy and a value function with two hidden layers each: forward, loss, gradients, clipping, Adam. And
whole updates of SAC and TD3: two critics, actor, temperature, target networks. One process each, taking turns, one
thread. The arithmetic limit counts the products alone: for PPO six times rows and weights. What PyTorch takes of that
limit is what no update of the same products at the core's peak can be faster than it by.

`overhead` is the whole time of a call of a step with five inputs that computes next to nothing.

`compile` is how long steps take to be compiled, each in processes of their own: with an empty cache, and as the median
of those that find there what the first has left.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from statistics import median

from benchmarks.harness import markdown_table, speedup, write_markdown
from benchmarks.peers import learning, nothing, off_policy, training
from benchmarks.peers.step_compile import POLICY
from tilewright.measure import paired
from tilewright.measure.peak import measure
from tilewright.support import machine

PEERS = ("own", "eager", "jax")
HEADER = ["width@rows", "ours us", "eager PyTorch, fused Adam", "JAX, one jit", "ours / limit", "compile s"]
OFF_POLICY_PEERS = ("own", "eager", "unfused")
OFF_POLICY_CASES = ("sac 64@64", "sac 64@256", "sac 256@256", "td3 64@64", "td3 64@256", "td3 256@256")
OFF_POLICY_HEADER = [
    "update",
    "ours us",
    "eager PyTorch, fused Adam",
    "eager, Adam as SB3's",
    "ours / limit",
    "eager, fused Adam / limit",
    "compile s",
]
COMPILED = (POLICY, *training.CASES)
COMPILE_HEADER = ["step", "first s", "from the cache s"]
OVERHEAD_HEADER = ["call", "us", "least us"]
REPEATS = 3
"""Processes that find what the first has left."""
GROUPS = {
    "ppo": ("train", "PPO updates", HEADER),
    "off-policy": ("train-off-policy", "Whole updates of SAC and TD3", OFF_POLICY_HEADER),
    "compile": ("train-compile", "Compiling learning steps", COMPILE_HEADER),
    "overhead": ("train-overhead", "Calls of learning steps that compute next to nothing, one thread", OVERHEAD_HEADER),
}
ONE_CORE = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "OMP_NUM_THREADS": "1"}


def compare(width: int, rows: int, rounds: int, peak: float) -> list[str]:
    contenders = [
        paired.Contender(name, f"benchmarks.peers.learning:{name}", {"width": width, "rows": rows}, ONE_CORE)
        for name in PEERS
    ]
    result = dict(zip(PEERS, paired.race(contenders, rounds=rounds, turn_seconds=0.05), strict=True))
    own = result["own"]
    if own.error:
        raise SystemExit(own.error)
    faster = [str(speedup(own, result[p])) if result[p].times else "-" for p in PEERS[1:]]
    products = sum(a.size for n, a in learning.weights(width).items() if n.endswith("weight"))
    limit = 6 * rows * products / peak
    seconds = own.info["compile_seconds"]
    return [f"{width}@{rows}", f"{own.median * 1e6:.1f}", *faster, f"{own.median / limit:.2f}", f"{seconds:.1f}"]


def compare_off_policy(algorithm: str, width: int, rows: int, rounds: int, peak: float) -> list[str]:
    options = {"algorithm": algorithm, "width": width, "rows": rows}
    contenders = [
        paired.Contender(name, f"benchmarks.peers.off_policy:{name}", options, ONE_CORE) for name in OFF_POLICY_PEERS
    ]
    result = paired.race(contenders, rounds=rounds, turn_seconds=0.1)
    if error := next((f.error for f in result if f.error), None):
        raise SystemExit(error)
    own, *others = result
    limit = off_policy.limit_flops(algorithm, width, rows) / peak
    faster = [str(speedup(own, other)) for other in others]
    seconds = own.info["compile_seconds"]
    name = f"{algorithm.upper()} {width}@{rows}"
    of_limit = [f"{own.median / limit:.2f}", f"{speedup(own, others[0]).median * own.median / limit:.2f}"]
    return [name, f"{own.median * 1e6:.0f}", *faster, *of_limit, f"{seconds:.1f}"]


def compile_seconds(case: str) -> list[str]:
    """How long a step takes to be compiled for the first time and again, in seconds."""
    run = [sys.executable, "-m", "benchmarks.peers.step_compile", case]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": folder}
        first, *reloaded = [
            float(subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout)
            for _ in range(1 + REPEATS)
        ]
    return [case, f"{first:.2f}", f"{median(reloaded):.2f}"]


def overhead(rounds: int) -> list[list[str]]:
    """The whole time of a call that computes next to nothing: of the model, as the step calls it, and of the step."""
    names = ("own", "native")
    contenders = [paired.Contender(name, f"benchmarks.peers.nothing:{name}", {}, ONE_CORE) for name in names]
    result = paired.race(contenders, rounds=rounds, turn_seconds=0.05)
    labels = ("step(*batch)", "the native call in it")
    return [
        [label, f"{each.median * 1e6 / nothing.CALLS:.2f}", f"{min(each.times) * 1e6 / nothing.CALLS:.2f}"]
        for label, each in zip(labels, result, strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--cases", default="64@64,64@256,64@2048,256@256", help="width@rows, with commas between")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--suffix", default="", help="of the reports' names, as -zen5")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    peak = measure(machine.describe()).peak_gflops_one * 1e9
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"there are no groups {sorted(unknown)}")
    for group in options.groups or GROUPS:
        table = overhead(options.rounds) if group == "overhead" else []
        for row in table:
            print("  ".join(row), flush=True)
        groups = {"ppo": options.cases.split(","), "off-policy": OFF_POLICY_CASES, "compile": COMPILED}
        cases = groups.get(group, ())
        for case in cases:
            if group == "compile":
                table.append(compile_seconds(case))
                print("  ".join(table[-1]), flush=True)
                continue
            *name, size = case.split()
            width, rows = map(int, size.split("@"))
            result = (
                compare_off_policy(name[0], width, rows, options.rounds, peak)
                if name
                else compare(width, rows, options.rounds, peak)
            )
            table.append(result)
            print("  ".join(result), flush=True)
        if not options.no_report:
            report, title, header = GROUPS[group]
            if group in ("ppo", "off-policy"):
                title = f"{title}, one thread: how many times faster, medians of paired ratios [95 %]"
            write_markdown(f"{report}{options.suffix}", title, markdown_table(header, table))


if __name__ == "__main__":
    main()
