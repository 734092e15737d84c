"""Learning steps against PyTorch's eager mode and JAX: `python -m benchmarks.bench_train`.

A PPO update of a policy and a value function with two hidden layers each: forward, loss, gradients, clipping, Adam. One
process each, taking turns, one thread. The arithmetic limit counts the products alone: six times rows and weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.harness import markdown_table, speedup, write_markdown
from benchmarks.peers import learning
from tilewright.measure import paired
from tilewright.measure.peak import measure
from tilewright.support import machine

PEERS = ("own", "eager", "jax")
HEADER = ["width@rows", "ours us", "eager PyTorch, fused Adam", "JAX, one jit", "ours / limit", "compile s"]
ONE_CORE = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "OMP_NUM_THREADS": "1"}


def compare(width: int, rows: int, rounds: int, peak: float) -> list[str]:
    contenders = [
        paired.Contender(name, f"benchmarks.peers.learning:{name}", {"width": width, "rows": rows}, ONE_CORE)
        for name in PEERS
    ]
    found = dict(zip(PEERS, paired.race(contenders, rounds=rounds, turn_seconds=0.05), strict=True))
    own = found["own"]
    if own.error:
        raise SystemExit(own.error)
    faster = [str(speedup(own, found[p])) if found[p].times else "-" for p in PEERS[1:]]
    products = sum(a.size for n, a in learning.weights(width).items() if n.endswith("weight"))
    limit = 6 * rows * products / peak
    seconds = own.info["compile_seconds"]
    return [f"{width}@{rows}", f"{own.median * 1e6:.1f}", *faster, f"{own.median / limit:.2f}", f"{seconds:.1f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="64@64,64@256,64@2048,256@256", help="width@rows, with commas between")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    peak = measure(machine.describe()).peak_gflops_one * 1e9
    table = []
    for case in options.cases.split(","):
        width, rows = map(int, case.split("@"))
        table.append(compare(width, rows, options.rounds, peak))
        print("  ".join(table[-1]), flush=True)
    if not options.no_report:
        title = "PPO updates, one thread: how many times faster, medians of paired ratios [95 %]"
        write_markdown("train", title, markdown_table(HEADER, table))


if __name__ == "__main__":
    main()
