"""All-reductions of processes of one machine against Gloo's: `python -m benchmarks.bench_collectives`.

The ranks are processes that have a group of each kind, and take turns with them. Two doors to ours: `torch.distributed`
with the backend "tilewright", and `tw.collective` on the arrays themselves. A call takes as long as the slowest rank's;
the time is that of the best of several runs, ratios are medians over turns [quartiles]. The copy bound is what memory
alone needs: every rank copies its data to where the others see it and reads all of theirs, at the speed of copies by as
many processes.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, commit, environment, markdown_table, write_report
from examples.distributed.processes import run

SIZES = (4, 256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20, 64 << 20)
DOORS = ("gloo", "torch", "tilewright")
HEADER = ["bytes", "Gloo us", "torch.distributed us", "Gloo/it", "tw.collective us", "Gloo/it", "of the copy bound"]
Doors = dict[str, Callable[[], Any]]


def seconds_a_call(call: Callable[[], Any], meet: Callable[[], Any], calls: int) -> float:
    meet()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def learn(rank: int, ranks: int, folder: str, turns: int, sizes: Sequence[int]) -> list[dict[str, list[float]]]:
    """The seconds of a call by size, door and turn; `copy` is that of a copy, all ranks at once."""
    import torch
    import torch.distributed as dist

    import tilewright.collective as collective

    torch.set_num_threads(1)
    dist.init_process_group("tilewright", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    gloo = dist.new_group(backend="gloo")
    results = []
    with collective.join(f"bench-{Path(folder).name}", rank, ranks, timeout=600) as group:
        for nbytes in sizes:
            tensor, array = torch.ones(nbytes // 4), np.ones(nbytes // 4, np.float32)
            other = np.ones_like(array)
            doors: Doors = {
                "gloo": lambda t=tensor: dist.all_reduce(t, group=gloo),  # type: ignore[misc]
                "torch": lambda t=tensor: dist.all_reduce(t),  # type: ignore[misc]
                "tilewright": lambda a=array: group.all_reduce(a),  # type: ignore[misc]
                "copy": lambda a=array, b=other: np.copyto(b, a),  # type: ignore[misc]
            }
            calls = int(np.clip((2 << 20) // nbytes, 2, 300))
            times: dict[str, list[float]] = {name: [] for name in doors}
            for call in doors.values():
                seconds_a_call(call, group.barrier, 2)
            for _ in range(turns):
                for name, call in doors.items():
                    tensor.fill_(1.0)
                    array.fill(1.0)
                    own = seconds_a_call(call, group.barrier, calls)
                    times[name].append(float(group.all_reduce(np.array([own]), "max")[0]))
            results.append(times)
    dist.destroy_process_group()
    return results


def measured(ranks: int, turns: int, sizes: Sequence[int]) -> list[dict[str, list[float]]]:
    with tempfile.TemporaryDirectory(suffix=secrets.token_hex(4)) as folder:
        return list(run(ranks, learn, ranks, folder, turns, sizes, seconds=1200)[0])


def row_of(ranks: int, nbytes: int, times: dict[str, list[float]]) -> dict[str, Any]:
    """Best times in microseconds, and the ratios of Gloo's times to ours turn by turn. A copy reads and writes its
    bytes; a direct all-reduction of n ranks copies them, reads them n times, and writes the sum."""
    row: dict[str, Any] = {"ranks": ranks, "bytes": nbytes, "commit": commit()}
    for door in DOORS:
        row[door] = 1e6 * min(times[door])
    for door in DOORS[1:]:
        ratios = sorted(g / o for g, o in zip(times["gloo"], times[door], strict=True))
        row[f"{door} ratio"] = [median(ratios), ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]]
    passes = (2 + ranks + 1) / 2  # a copy is two: it reads and writes
    shares = [passes * c / o for c, o in zip(times["copy"], times["tilewright"], strict=True)]
    row["bound"] = median(shares)
    return row


def cells(row: dict[str, Any]) -> list[str]:
    def shown(ratio: Sequence[float]) -> str:
        return "{:.1f} [{:.1f}, {:.1f}]".format(*ratio)

    return [
        f"{row['bytes']}",
        f"{row['gloo']:.0f}",
        f"{row['torch']:.1f}",
        shown(row["torch ratio"]),
        f"{row['tilewright']:.1f}",
        shown(row["tilewright ratio"]),
        f"{row['bound']:.2f}" if row["bytes"] >= 1 << 20 else "",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 3, 4])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="bytes")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    path = RESULTS / "collectives.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {(row["ranks"], row["bytes"]): row for row in known}
    for ranks in options.ranks:
        for nbytes, times in zip(options.sizes, measured(ranks, options.turns, options.sizes), strict=True):
            rows[ranks, nbytes] = row_of(ranks, nbytes, times)
            print(ranks, *cells(rows[ranks, nbytes]), sep="  ", flush=True)
    if not options.no_report:
        report([rows[key] for key in sorted(rows)])


def report(rows: Sequence[dict[str, Any]]) -> None:
    tables = []
    for ranks in sorted({row["ranks"] for row in rows}):
        some = [cells(row) for row in rows if row["ranks"] == ranks]
        tables.append(f"**{ranks} ranks**\n\n{markdown_table(HEADER, some)}")
    notes = (
        "Times are the best of all turns, ratios medians of turns [quartiles]. The last column is the time that memory"
    )
    notes += f" needs, at the speed of copies by as many processes, over ours. At {environment()['commit']}."
    write_report("collectives", "All-reductions of f32 against Gloo's", rows, "\n\n".join([*tables, notes, ""]))


if __name__ == "__main__":
    main()
