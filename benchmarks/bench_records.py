"""Tuning records: what a lookup costs, an import of many, and a compile with records against one without.

    python -m benchmarks.bench_records [--records 100000] [--rounds 15] [--models resnet18 az6]

Lookups and imports are those of a store with so many records about one class of machines. Compiles are warm (the
program is in the cache) and cold compiles of the program alone (its kernels are in the cache, the program is not), with
records for all decisions of the model, with records of the class about other models only, with records of other
classes, and without any, taking turns.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tilewright as tw
from benchmarks import harness, models
from tilewright.identity import code_version
from tilewright.plans.framework.decision_key import target_class
from tilewright.plans.framework.decisions import Decision, deciding
from tilewright.records.archive import HEADER, take_in
from tilewright.records.lookup import index_of
from tilewright.records.record import NONE, Candidate, Policy, Provenance, Record, rounded
from tilewright.records.store import Store
from tilewright.targets.target import Target

CANDIDATES, TURNS = 8, 9
"""Candidates and turns of a record of the large store."""
LOOKUPS = 5000
TEXT = """Times of a compile are medians, the ratios medians of those within a round. Warm: the program is in the cache.
A cold compile finds its kernels in the cache, not the program; that is the least that asking for records can be hidden
in. Records of other models are of the same class of machines, so that every decision is asked about; those of other
machines are not. The store lies below `build`, on a disk as a user's does. It is not in /tmp: ext4 looks at every inode
that was deleted there within a minute before it gives one to a new file, so that one costs 30 us or 300 us by what ran
before.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", nargs="*", default=["m64", "az6", "resnet18"])
    arguments = parser.parse_args()
    place = models.ROOT / "build"
    with tempfile.TemporaryDirectory(prefix="records-", dir=place) as folder:
        os.environ["TILEWRIGHT_CACHE_DIR"] = folder
        facts = store_times(Path(folder), arguments.records) if arguments.records else {}
        rows = [row for name in arguments.models for row in compile_times(Path(folder), name, arguments.rounds)]
    text = "".join(f"- {name}: {value}\n" for name, value in facts.items())
    header = ["model", "compile", "records", "ms", "of one without", "decisions by records"]
    harness.write_markdown("records", "Tuning records", f"{text}\n{TEXT}\n{harness.markdown_table(header, rows)}")
    print(text, *rows, sep="\n")


def store_times(folder: Path, count: int) -> dict[str, str]:
    """An archive of `count` records, imported; lookups of some of them and of others."""
    target = Target.host()
    with deciding() as listed:
        tw.compile(models.load("m64"), records=None)
    base = record_of(listed.decisions[-1], target)
    text = base.to_bytes().decode()
    with gzip.open(folder / "many.twr", "wb", 1) as file:
        file.write(HEADER)
        for k in range(count):
            file.write(text.replace(base.decision, f"plan {k:032x}").encode())
    store = Store(folder / "many")
    start = time.perf_counter()
    done = take_in(folder / "many.twr", store)
    seconds = time.perf_counter() - start
    assert done.new == count
    index = index_of(store, target_class(target))
    time.sleep(2.1)
    index.refresh()
    draw = random.Random(0)
    known = [f"plan {draw.randrange(count):032x}" for _ in range(LOOKUPS)]
    unknown = [f"plan {count + draw.randrange(count):032x}" for _ in range(LOOKUPS)]
    times = [_median_us(index.find, names) for names in (known, unknown)]
    shutil.rmtree(store.folder)
    return {
        "bytes of a record": str(len(text)),
        f"import of {count}": f"{seconds:.1f} s",
        "lookup": f"{times[0]:.1f} us found, {times[1]:.1f} us missed (medians)",
    }


def _median_us(find: Callable[[str], object], names: Sequence[str]) -> float:
    times = []
    for name in names:
        start = time.perf_counter()
        find(name)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def record_of(d: Decision, target: Target) -> Record:
    """A record that says what the estimate says, of this compiler, as large as they are."""
    turns = tuple(rounded(1.2345e-5 * (1 + k / 99)) for k in range(TURNS))
    candidates = tuple(Candidate(s.label, "timed", e, turns) for s, e in zip(d.space, d.estimates, strict=True))
    created = Provenance(code_version(), "LLVM", "a host", "0" * 32, 1_800_000_000)
    policy = Policy("none 1", "warm", "kernel", TURNS, 1)
    label = d.space.labels[0]
    return Record.of(
        d.key, target, d.space, setting=label, untuned=label, policy=policy, candidates=candidates[:CANDIDATES],
        gain=NONE, provenance=created,
    )  # fmt: skip


def compile_times(folder: Path, name: str, rounds: int) -> list[list[object]]:
    """Compiles with and without records by turns."""
    path, target = models.load(name), Target.host()
    with deciding() as listed:
        tw.compile(path, records=None)
    own, others, elsewhere = (Store(folder / f"{name}-{what}") for what in ("own", "others", "elsewhere"))
    for k, d in enumerate(listed.decisions):
        record = record_of(d, target)
        own.put(record, durable=False)
        others.put(replace(record, decision=f"{d.key.kind} {k:032x}"), durable=False)
        elsewhere.put(replace(record, target="x86_64 other 512x32 1+1 0 threads=1"), durable=False)
    time.sleep(2.1)
    ways: dict[str, Any] = {"none": None, "other machines": elsewhere, "other models": others, "its own": own}
    used = {way: len(tw.compile_program(path, records=records).manifest.records) for way, records in ways.items()}
    rows = []
    for kind, count in (("warm", rounds), ("cold", max(3, rounds // 3))):
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(count):
            for way, records in ways.items():
                if kind == "cold":
                    forget(folder)
                start = time.perf_counter()
                tw.compile_program(path, records=records)
                times[way].append(time.perf_counter() - start)
        for way, candidate in times.items():
            ratio = statistics.median(a / b for a, b in zip(candidate, times["none"], strict=True))
            rows.append([name, kind, way, f"{1e3 * statistics.median(candidate):.2f}", f"{ratio:.3f}", used[way]])
    return rows


def forget(folder: Path) -> None:
    """Remove the programs that are kept, not their kernels."""
    for place in (folder / "objects").glob("*"):
        for entry in (*place.glob("program-*"), *place.glob("traces-*")):
            entry.unlink()


if __name__ == "__main__":
    main()
